package billing

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/govalues/decimal"
	"pgregory.net/rapid"

	"tollgate/events"
)

var testAccount = Account{TenantID: "acme", Name: "Acme", Currency: "USD", TimeZone: "UTC"}

func testPeriod(t testing.TB) Period { return mustPeriod(t, "2026-11", "UTC") }

// day returns midnight of a day of the test period.
func day(n int) time.Time { return time.Date(2026, 11, n, 0, 0, 0, 0, time.UTC) }

func hourOf(at time.Time, model string, u events.Usage) Usage {
	return Usage{From: at, To: at.Add(time.Hour), Model: model, Usage: u}
}

func flat(id int64, model string, meter Meter, amount string, unit int64) Price {
	return Price{
		ID: id, Model: model, Meter: meter, Currency: "USD", From: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
		Pricing: PricingFlat, UnitSize: unit, Amount: decimal.MustParse(amount), Author: "test",
	}
}

func mustBook(t testing.TB, prices ...Price) *Book {
	t.Helper()
	book, err := NewBook("acme", "USD", prices)
	if err != nil {
		t.Fatalf("NewBook: %v", err)
	}
	return book
}

func mustRate(t testing.TB, book *Book, usage ...Usage) Bill {
	t.Helper()
	bill, err := Rate(usage, book, testAccount, testPeriod(t))
	if err != nil {
		t.Fatalf("Rate: %v", err)
	}
	checkSums(t, bill)
	return bill
}

type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

// checkSums is what must hold of every bill.
func checkSums(t fataler, bill Bill) {
	t.Helper()
	sum, unrated := new(big.Rat), 0
	for i, line := range bill.Lines {
		sum.Add(sum, fraction(line.Amount))
		if !line.Rated {
			unrated++
			if !line.Amount.IsZero() || line.Reason == "" {
				t.Fatalf("an unrated line has amount %v and reason %q", line.Amount, line.Reason)
			}
		}
		if line.N != i+1 {
			t.Fatalf("line %d has number %d", i+1, line.N)
		}
	}
	if sum.Cmp(fraction(bill.Total)) != 0 {
		t.Fatalf("lines add up to %s, the total is %v", sum.FloatString(6), bill.Total)
	}
	if unrated != bill.Unrated {
		t.Fatalf("%d lines are unrated, the bill says %d", unrated, bill.Unrated)
	}
}

// brief shows what a test wants to see of lines.
func brief(lines []Line) []string {
	var out []string
	for _, l := range lines {
		s := fmt.Sprintf("%s %s %d", l.Model, l.Meter, l.Quantity)
		if l.Rated {
			s += fmt.Sprintf(" × %s/%d", l.UnitPrice, l.UnitSize)
		} else {
			s += " unrated"
		}
		if l.Tier > 0 {
			s += fmt.Sprintf(" tier %d", l.Tier)
		}
		if l.Correction {
			s += " correction"
		}
		out = append(out, s+" = "+l.Amount.String())
	}
	return out
}

func wantLines(t *testing.T, bill Bill, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, brief(bill.Lines)); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
}

func TestRateChargesEachTokenOnce(t *testing.T) {
	t.Parallel()
	usage := hourOf(day(3), "m", events.Usage{InputTokens: 1_000_000, CachedInputTokens: 400_000, OutputTokens: 500_000, ReasoningTokens: 200_000})
	input, cached := flat(1, "m", MeterInput, "2.50", 1_000_000), flat(2, "m", MeterCachedInput, "0.25", 1_000_000)
	output, reasoning := flat(3, "m", MeterOutput, "10", 1_000_000), flat(4, "m", MeterReasoning, "20", 1_000_000)

	t.Run("with prices of their own", func(t *testing.T) {
		bill := mustRate(t, mustBook(t, input, cached, output, reasoning), usage)
		wantLines(t, bill,
			"m input_tokens 600000 × 2.50/1000000 = 1.50",
			"m cached_input_tokens 400000 × 0.25/1000000 = 0.10",
			"m output_tokens 300000 × 10/1000000 = 3.00",
			"m reasoning_tokens 200000 × 20/1000000 = 4.00")
		if bill.Total.String() != "8.60" {
			t.Errorf("total %v, want 8.60", bill.Total)
		}
	})
	t.Run("without", func(t *testing.T) {
		bill := mustRate(t, mustBook(t, input, output), usage)
		wantLines(t, bill,
			"m input_tokens 1000000 × 2.50/1000000 = 2.50",
			"m output_tokens 500000 × 10/1000000 = 5.00")
	})
}

func TestRatePrecedence(t *testing.T) {
	t.Parallel()
	price := func(id int64, tenant, model, region, amount string) Price {
		p := flat(id, model, MeterInput, amount, 1)
		p.TenantID, p.Region = tenant, region
		return p
	}
	book := mustBook(t,
		price(1, "", "*", "", "1"), price(2, "", "m", "", "2"), price(3, "", "m", "eu", "3"),
		price(4, "acme", "*", "", "4"), price(5, "acme", "n", "eu", "5"), price(6, "other", "m", "", "6"))
	tests := []struct {
		model, region string
		want          int64
	}{
		{"m", "", 4}, // negotiated before list, even where only the list names the model
		{"n", "eu", 5},
		{"n", "us", 4},
	}
	for _, tt := range tests {
		if p, ok := book.Find(tt.model, tt.region, MeterInput, day(1)); !ok || p.ID != tt.want {
			t.Errorf("Find(%s, %s) = price %d, %v; want %d", tt.model, tt.region, p.ID, ok, tt.want)
		}
	}
	for _, tt := range []struct {
		model, region string
		want          int64
	}{{"m", "", 2}, {"m", "eu", 3}, {"m", "us", 2}, {"x", "", 1}} {
		if p, ok := book.FindList(tt.model, tt.region, MeterInput, day(1)); !ok || p.ID != tt.want {
			t.Errorf("FindList(%s, %s) = price %d, %v; want %d", tt.model, tt.region, p.ID, ok, tt.want)
		}
	}
}

func TestRateShowsWhatTheListWouldCost(t *testing.T) {
	t.Parallel()
	list, negotiated := flat(1, "m", MeterInput, "3", 1_000_000), flat(2, "m", MeterInput, "0.002", 1_000)
	negotiated.TenantID = "acme"
	line := mustRate(t, mustBook(t, list, negotiated), hourOf(day(1), "m", events.Usage{InputTokens: 1_500_000})).Lines[0]
	if line.Amount.String() != "3.00" || line.ListAmount != "4.5" || line.ListUnitPrice != "0.003" || !line.Negotiated {
		t.Errorf("amount %v, list %s at %s, negotiated %v; want 3.00, 4.5 at 0.003, true", line.Amount, line.ListAmount, line.ListUnitPrice, line.Negotiated)
	}
}

func TestRateSplitsAtAPriceChange(t *testing.T) {
	t.Parallel()
	before, after := flat(1, "m", MeterInput, "1", 1000), flat(2, "m", MeterInput, "2", 1000)
	before.To, after.From = day(10), day(10)
	book := mustBook(t, before, after)
	bill := mustRate(t, book,
		hourOf(day(10).Add(-time.Hour), "m", events.Usage{InputTokens: 5000}),
		hourOf(day(10), "m", events.Usage{InputTokens: 7000}))
	wantLines(t, bill, "m input_tokens 5000 × 1/1000 = 5.00", "m input_tokens 7000 × 2/1000 = 14.00")

	_, err := Rate([]Usage{{From: day(9), To: day(11), Model: "m", Usage: events.Usage{InputTokens: 1}}}, book, testAccount, testPeriod(t))
	if !errors.Is(err, ErrInvalid) {
		t.Errorf("usage over a price change: %v, want ErrInvalid", err)
	}
}

func TestRateTiers(t *testing.T) {
	t.Parallel()
	tiered := func(model PricingModel) Price {
		p := flat(1, "m", MeterRequests, "0", 1)
		p.Pricing = model
		p.Tiers = []Tier{{UpTo: 100, Amount: decimal.MustParse("1")}, {UpTo: 200, Amount: decimal.MustParse("0.5")}, {Amount: decimal.MustParse("0.1")}}
		return p
	}
	requests := func(d int, n int64) Usage {
		return Usage{From: day(d), To: day(d).Add(time.Hour), Model: "m", Requests: n}
	}
	packages := flat(1, "m", MeterRequests, "3", 100)
	packages.Pricing = PricingPackage
	tests := []struct {
		name  string
		price Price
		n     int64
		want  []string
	}{
		{"graduated, end of a tier", tiered(PricingGraduated), 100, []string{"m requests 100 × 1/1 tier 1 = 100.00"}},
		{"graduated", tiered(PricingGraduated), 250, []string{"m requests 100 × 1/1 tier 1 = 100.00", "m requests 100 × 0.5/1 tier 2 = 50.00", "m requests 50 × 0.1/1 tier 3 = 5.00"}},
		{"volume, end of a tier", tiered(PricingVolume), 200, []string{"m requests 200 × 0.5/1 tier 2 = 100.00"}},
		{"volume", tiered(PricingVolume), 201, []string{"m requests 201 × 0.1/1 tier 3 = 20.10"}},
		{"package, begun", packages, 101, []string{"m requests 101 × 3/100 = 6.00"}},
		{"package, full", packages, 200, []string{"m requests 200 × 3/100 = 6.00"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			// Two hours: the tiers count the period, not the hour.
			wantLines(t, mustRate(t, mustBook(t, tt.price), requests(1, tt.n-1), requests(2, 1)), tt.want...)
		})
	}
	t.Run("a new version goes on where the old one ended", func(t *testing.T) {
		old, renewed := tiered(PricingGraduated), tiered(PricingGraduated)
		old.To, renewed.From, renewed.ID = day(10), day(10), 2
		renewed.Tiers = []Tier{{UpTo: 100, Amount: decimal.MustParse("9")}, {Amount: decimal.MustParse("0.2")}}
		wantLines(t, mustRate(t, mustBook(t, old, renewed), requests(1, 150), requests(20, 10)),
			"m requests 100 × 1/1 tier 1 = 100.00", "m requests 50 × 0.5/1 tier 2 = 25.00", "m requests 10 × 0.2/1 tier 2 = 2.00")
	})
}

func TestRateListsUnpricedUsage(t *testing.T) {
	t.Parallel()
	usage := Usage{From: day(1), To: day(1).Add(time.Hour), Model: "m", Requests: 2, Usage: events.Usage{InputTokens: 10, GPUMillis: 500}}
	t.Run("one meter has no price", func(t *testing.T) {
		bill := mustRate(t, mustBook(t, flat(1, "m", MeterInput, "1", 1)), usage)
		wantLines(t, bill, "m input_tokens 10 × 1/1 = 10.00", "m gpu_ms 500 unrated = 0.00")
		if bill.Unrated != 1 {
			t.Errorf("unrated %d, want 1", bill.Unrated)
		}
	})
	t.Run("the model has no price", func(t *testing.T) {
		wantLines(t, mustRate(t, mustBook(t), usage), "m input_tokens 10 unrated = 0.00", "m gpu_ms 500 unrated = 0.00", "m requests 2 unrated = 0.00")
	})
	t.Run("the price is in another currency", func(t *testing.T) {
		euro := flat(1, "m", MeterInput, "1", 1)
		euro.Currency = "EUR"
		if bill := mustRate(t, mustBook(t, euro), usage); bill.Unrated != 3 {
			t.Errorf("unrated %d, want 3", bill.Unrated)
		}
	})
	t.Run("the price begins later", func(t *testing.T) {
		late := flat(1, "m", MeterInput, "1", 1)
		late.From = day(2)
		if bill := mustRate(t, mustBook(t, late), usage); bill.Unrated != 3 {
			t.Errorf("unrated %d, want 3", bill.Unrated)
		}
	})
	t.Run("a price of zero is a price", func(t *testing.T) {
		bill := mustRate(t, mustBook(t, flat(1, "m", MeterInput, "1", 1), flat(2, "*", MeterGPUMillis, "0", 1)), usage)
		wantLines(t, bill, "m input_tokens 10 × 1/1 = 10.00", "m gpu_ms 500 × 0/1 = 0.00")
	})
}

func TestCaseT3_NegativeNeverInflatesABill(t *testing.T) {
	t.Parallel()
	book := mustBook(t, flat(1, "m", MeterOutput, "1", 1))
	outputs := func(quantities ...int64) []Usage {
		var usage []Usage
		for i, q := range quantities {
			usage = append(usage, hourOf(day(1+i), "m", events.Usage{OutputTokens: q}))
		}
		return usage
	}
	// Hours below zero lower the line of their own period …
	wantLines(t, mustRate(t, book, outputs(20, -5)...), "m output_tokens 15 × 1/1 = 15.00")
	// … but not below zero: +20 then −25 is billed as nothing …
	bill := mustRate(t, book, outputs(20, -25)...)
	if len(bill.Lines) != 0 || !bill.Total.IsZero() {
		t.Fatalf("got %v, total %v; want an empty bill", brief(bill.Lines), bill.Total)
	}
	// … and the rest is a credit on the next bill, once.
	closed := ClosedPeriod{BillID: "bil_1", Period: testPeriod(t), Billed: bill.Lines, Usage: outputs(20, -25)}
	corrections, err := Corrections(closed, book, "USD")
	if err != nil {
		t.Fatal(err)
	}
	if got := brief(corrections); !cmp.Equal(got, []string{"m output_tokens -5 × 1/1 correction = -5.00"}) {
		t.Fatalf("corrections %v", got)
	}
	closed.Billed = append(closed.Billed, corrections...)
	if again, err := Corrections(closed, book, "USD"); err != nil || len(again) != 0 {
		t.Errorf("corrected again: %v, %v", brief(again), err)
	}
}

func TestCaseT4_LinesAddUpToTheTotal(t *testing.T) {
	t.Parallel()
	third := func(model string) Price { return flat(1, model, MeterRequests, "0.01", 3) } // a third of a cent
	t.Run("81 lines", func(t *testing.T) {
		var prices []Price
		var usage []Usage
		for i := range 81 {
			model := fmt.Sprintf("m%02d", i)
			p := third(model)
			p.ID = int64(i + 1)
			prices = append(prices, p)
			usage = append(usage, Usage{From: day(1), To: day(1).Add(time.Hour), Model: model, Requests: 301}) // 1.00333… dollars
		}
		bill := mustRate(t, mustBook(t, prices...), usage...)
		if len(bill.Lines) != 81 || bill.Total.String() != "81.00" {
			t.Errorf("%d lines, total %v; want 81 and 81.00", len(bill.Lines), bill.Total)
		}
		if !strings.HasPrefix(bill.Rounding, "-0.26999999") && bill.Rounding != "-0.27" {
			t.Errorf("rounding %s, want about -0.27", bill.Rounding)
		}
	})
	t.Run("81 hours are one line, rounded once", func(t *testing.T) {
		var usage []Usage
		for i := range 81 {
			at := day(1).Add(time.Duration(i) * time.Hour)
			usage = append(usage, Usage{From: at, To: at.Add(time.Hour), Model: "m", Requests: 1})
		}
		wantLines(t, mustRate(t, mustBook(t, third("m")), usage...), "m requests 81 × 0.01/3 = 0.27")
	})
}

func TestRoundHalfEven(t *testing.T) {
	t.Parallel()
	tests := []struct {
		value  string
		places int
		want   string
	}{
		{"0.005", 2, "0.00"},
		{"0.015", 2, "0.02"},
		{"0.025", 2, "0.02"},
		{"0.0250000000001", 2, "0.03"},
		{"-0.005", 2, "0.00"},
		{"-0.015", 2, "-0.02"},
		{"-0.025", 2, "-0.02"},
		{"-0.0250000000001", 2, "-0.03"},
		{"2.5", 0, "2"},
		{"3.5", 0, "4"},
		{"1", 3, "1.000"},
		{"-7/3", 2, "-2.33"},
	}
	for _, tt := range tests {
		r, _ := new(big.Rat).SetString(tt.value)
		if got, err := roundHalfEven(r, tt.places); err != nil || got.String() != tt.want {
			t.Errorf("roundHalfEven(%s, %d) = %v, %v; want %s", tt.value, tt.places, got, err, tt.want)
		}
	}
	huge, _ := new(big.Rat).SetString("123456789012345678901")
	if got, err := roundHalfEven(huge, 2); !errors.Is(err, ErrInvalid) {
		t.Errorf("21 digits gave %v, %v; want ErrInvalid", got, err)
	}
}

func TestRateMinorUnits(t *testing.T) {
	t.Parallel()
	for currency, want := range map[string]string{"JPY": "1", "USD": "1.24", "KWD": "1.235"} {
		p := flat(1, "m", MeterRequests, "1.235", 1)
		p.Currency = currency
		book, err := NewBook("acme", currency, []Price{p})
		if err != nil {
			t.Fatal(err)
		}
		account := testAccount
		account.Currency = currency
		bill, err := Rate([]Usage{{From: day(1), To: day(2), Model: "m", Requests: 1}}, book, account, testPeriod(t))
		if err != nil || bill.Total.String() != want {
			t.Errorf("%s: total %v, %v; want %s", currency, bill.Total, err, want)
		}
	}
	for _, currency := range []string{"", "usd", "XXX", "DOLLARS", "ZZZ"} {
		account := testAccount
		account.Currency = currency
		if _, err := Rate(nil, mustBook(t), account, testPeriod(t)); !errors.Is(err, ErrInvalid) {
			t.Errorf("currency %q: %v, want ErrInvalid", currency, err)
		}
	}
}

func TestRateRefusesWhatCannotBeExact(t *testing.T) {
	t.Parallel()
	book := mustBook(t, flat(1, "m", MeterInput, "1000000000", 1))
	tests := map[string][]Usage{
		"beyond 19 digits":   {hourOf(day(1), "m", events.Usage{InputTokens: math.MaxInt64 / 4})},
		"sum overflows":      {hourOf(day(1), "m", events.Usage{InputTokens: 1 << 62}), hourOf(day(2), "m", events.Usage{InputTokens: 1 << 62})},
		"least integer":      {hourOf(day(1), "m", events.Usage{InputTokens: math.MinInt64})},
		"outside the period": {hourOf(day(1).Add(-time.Hour), "m", events.Usage{InputTokens: 1})},
		"across the end":     {{From: day(30), To: day(32), Model: "m"}},
	}
	for name, usage := range tests {
		if _, err := Rate(usage, book, testAccount, testPeriod(t)); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
}

// Random usage and prices: lines add up, nothing is negative, and for flat
// prices cutting the usage in other pieces changes nothing.
func TestRateProperties(t *testing.T) {
	t.Parallel()
	period := testPeriod(t)
	rapid.Check(t, func(t *rapid.T) {
		models := []string{"a", "b", "c"}
		var prices []Price
		flatOnly := rapid.Bool().Draw(t, "flat only")
		for i, model := range append(models, AnyModel) {
			for j, meter := range Meters {
				if rapid.IntRange(0, 3).Draw(t, "has price") == 0 {
					continue
				}
				p := flat(int64(100*i+j+1), model, meter, "0", rapid.SampledFrom([]int64{1, 3, 7, 1000, 1_000_000}).Draw(t, "unit"))
				p.Amount = drawAmount(t)
				if !flatOnly {
					p.Pricing = rapid.SampledFrom([]PricingModel{PricingFlat, PricingGraduated, PricingVolume, PricingPackage}).Draw(t, "pricing")
				}
				if p.Pricing == PricingGraduated || p.Pricing == PricingVolume {
					p.Amount = decimal.Decimal{}
					p.Tiers = []Tier{{UpTo: rapid.Int64Range(1, 1000).Draw(t, "tier"), Amount: drawAmount(t)}, {Amount: drawAmount(t)}}
				}
				prices = append(prices, p)
			}
		}
		book, err := NewBook("acme", "USD", prices)
		if err != nil {
			t.Fatalf("NewBook: %v", err)
		}
		var whole, pieces []Usage
		for range rapid.IntRange(0, 12).Draw(t, "rows") {
			u := hourOf(day(rapid.IntRange(1, 30).Draw(t, "day")), rapid.SampledFrom(models).Draw(t, "model"), events.Usage{
				InputTokens:       rapid.Int64Range(-500, 5_000_000).Draw(t, "input"),
				CachedInputTokens: rapid.Int64Range(0, 500).Draw(t, "cached"),
				OutputTokens:      rapid.Int64Range(-500, 5_000_000).Draw(t, "output"),
				Images:            rapid.Int64Range(0, 9).Draw(t, "images"),
			})
			whole = append(whole, u)
			part := u
			part.InputTokens = rapid.Int64Range(-1000, 1000).Draw(t, "part")
			part.OutputTokens, part.Images = u.OutputTokens/3, 0
			rest := u
			rest.InputTokens, rest.OutputTokens = u.InputTokens-part.InputTokens, u.OutputTokens-part.OutputTokens
			rest.CachedInputTokens = 0
			pieces = append(pieces, part, rest)
		}
		bill, err := Rate(whole, book, testAccount, period)
		if err != nil {
			t.Fatalf("Rate: %v", err)
		}
		checkSums(t, bill)
		for _, line := range bill.Lines {
			if line.Quantity <= 0 || line.Amount.IsNeg() {
				t.Fatalf("a line has quantity %d and amount %v", line.Quantity, line.Amount)
			}
		}
		other, err := Rate(pieces, book, testAccount, period)
		if err != nil {
			t.Fatalf("Rate in pieces: %v", err)
		}
		if bill.Total.Cmp(other.Total) != 0 || !cmp.Equal(brief(bill.Lines), brief(other.Lines)) {
			t.Fatalf("in pieces: %v %v, whole: %v %v", other.Total, brief(other.Lines), bill.Total, brief(bill.Lines))
		}
	})
}

func drawAmount(t *rapid.T) decimal.Decimal {
	d, err := decimal.New(rapid.Int64Range(0, 99_999).Draw(t, "amount"), rapid.IntRange(0, 12).Draw(t, "scale"))
	if err != nil {
		t.Fatalf("amount: %v", err)
	}
	return d
}

// Whatever arrives late, in whatever order bills are closed: a period's bill
// and its corrections add up to what the period costs with all usage known.
func TestCorrectionsCatchUp(t *testing.T) {
	t.Parallel()
	period := testPeriod(t)
	rapid.Check(t, func(t *rapid.T) {
		p := flat(1, "m", MeterInput, "0", rapid.SampledFrom([]int64{1, 3, 1000}).Draw(t, "unit"))
		p.Pricing = rapid.SampledFrom([]PricingModel{PricingFlat, PricingGraduated, PricingVolume, PricingPackage}).Draw(t, "pricing")
		if p.Pricing == PricingFlat || p.Pricing == PricingPackage {
			p.Amount = drawAmount(t)
		} else {
			p.Tiers = []Tier{{UpTo: rapid.Int64Range(1, 1000).Draw(t, "tier"), Amount: drawAmount(t)}, {Amount: drawAmount(t)}}
		}
		book, err := NewBook("acme", "USD", []Price{p})
		if err != nil {
			t.Fatalf("NewBook: %v", err)
		}
		row := func() Usage {
			return hourOf(day(rapid.IntRange(1, 30).Draw(t, "day")), "m", events.Usage{InputTokens: rapid.Int64Range(-1000, 3000).Draw(t, "input")})
		}
		usage := []Usage{row(), row()}
		bill, err := Rate(usage, book, testAccount, period)
		if err != nil {
			t.Fatalf("Rate: %v", err)
		}
		billed := bill.Lines
		for range rapid.IntRange(1, 3).Draw(t, "bills after") {
			usage = append(usage, row())
			lines, err := Corrections(ClosedPeriod{BillID: "b", Period: period, Billed: billed, Usage: usage}, book, "USD")
			if err != nil {
				t.Fatalf("Corrections: %v", err)
			}
			billed = append(billed, lines...)
		}
		now, err := rateLines(usage, book, "USD", period, false)
		if err != nil {
			t.Fatalf("rateLines: %v", err)
		}
		got, want := new(big.Rat), new(big.Rat)
		var gotQuantity, wantQuantity int64
		for _, l := range billed {
			got.Add(got, fraction(l.Amount))
			gotQuantity += l.Quantity
		}
		for _, l := range now {
			want.Add(want, fraction(l.Amount))
			wantQuantity += l.Quantity
		}
		if got.Cmp(want) != 0 || gotQuantity != wantQuantity {
			t.Fatalf("billed %s for %d, the period costs %s for %d", got.FloatString(4), gotQuantity, want.FloatString(4), wantQuantity)
		}
	})
}
