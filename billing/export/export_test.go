package export

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/govalues/decimal"
	"pgregory.net/rapid"

	"tollgate/billing"
	"tollgate/events"
)

func month(t testing.TB, text string) billing.Period {
	t.Helper()
	p, err := billing.ParsePeriod(text, "Asia/Kolkata")
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func price(id int64, tenant, model string, meter billing.Meter, amount string, unit int64) billing.Price {
	return billing.Price{
		ID: id, TenantID: tenant, Model: model, Meter: meter, Currency: "USD", From: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
		Pricing: billing.PricingFlat, UnitSize: unit, Amount: decimal.MustParse(amount),
	}
}

// testBill has every kind of line: flat, negotiated, tiered, package, time,
// unrated, correction and credit; and a hostile name.
func testBill(t testing.TB) billing.Bill {
	t.Helper()
	account := billing.Account{TenantID: "acme", Name: `=HYPERLINK("http://evil","Acme")`, Currency: "USD", TimeZone: "Asia/Kolkata"}
	tiered := price(3, "", "tiered", billing.MeterRequests, "0", 1)
	tiered.Pricing = billing.PricingGraduated
	tiered.Tiers = []billing.Tier{{UpTo: 10, Amount: decimal.MustParse("1")}, {Amount: decimal.MustParse("0.5")}}
	packages := price(4, "", "packed", billing.MeterImages, "2", 10)
	packages.Pricing = billing.PricingPackage
	book, err := billing.NewBook("acme", "USD", []billing.Price{
		price(1, "", "m", billing.MeterInput, "2.5", 1_000_000), price(2, "acme", "m", billing.MeterOutput, "8", 1_000_000),
		price(6, "", "m", billing.MeterOutput, "10", 1_000_000), tiered, packages,
		price(5, "", "m", billing.MeterGPUMillis, "3.6", 3_600_000),
	})
	if err != nil {
		t.Fatal(err)
	}
	november, october := month(t, "2026-11"), month(t, "2026-10")
	usage := func(p billing.Period, model string, requests int64, u events.Usage) billing.Usage {
		return billing.Usage{From: p.From, To: p.To, Model: model, Requests: requests, Usage: u}
	}
	bill, err := billing.Rate([]billing.Usage{
		usage(november, "m", 1, events.Usage{InputTokens: 1_234_567, OutputTokens: 1_000_000, GPUMillis: 1_234_500}),
		usage(november, "tiered", 12, events.Usage{}),
		usage(november, "packed", 0, events.Usage{Images: 11}),
		usage(november, "@cf/unpriced", 0, events.Usage{InputTokens: 7}),
	}, book, account, november)
	if err != nil {
		t.Fatal(err)
	}
	corrections, err := billing.Corrections(billing.ClosedPeriod{
		BillID: "bil_october", Period: october, Usage: []billing.Usage{usage(october, "m", 0, events.Usage{InputTokens: -4000})},
	}, book, "USD")
	if err != nil {
		t.Fatal(err)
	}
	if err := bill.AddCorrections(corrections); err != nil {
		t.Fatal(err)
	}
	if _, err := bill.ApplyCredit(decimal.MustParse("5.25")); err != nil {
		t.Fatal(err)
	}
	bill.ID, bill.Status, bill.ClosedBy = "bil_november", billing.StatusClosed, "operator"
	return bill
}

func write(t testing.TB, format Format, bill billing.Bill) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := Write(&b, format, bill, Options{Provider: "North AI", Issuer: "North AI Ltd"}); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// rows reads CSV into maps by column.
func rows(t testing.TB, data []byte) []map[string]string {
	t.Helper()
	all, err := csv.NewReader(bytes.NewReader(data)).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	var out []map[string]string
	for _, row := range all[1:] {
		m := map[string]string{}
		for i, name := range all[0] {
			m[name] = row[i]
		}
		out = append(out, m)
	}
	return out
}

func TestCSV(t *testing.T) {
	t.Parallel()
	got := string(write(t, CSV, testBill(t)))
	want := `line,category,class,corrects_bill,from,to,model,region,meter,quantity,pricing_model,tier,unit_price,unit_size,price_id,exact_amount,amount,currency,rated,description
1,usage,,,2026-10-31T18:30:00Z,2026-11-30T18:30:00Z,'@cf/unpriced,,input_tokens,7,,,,,,0,0.00,USD,no,"'@cf/unpriced, input_tokens: not rated: no price in USD for input_tokens of ""@cf/unpriced"""
2,usage,,,2026-10-31T18:30:00Z,2026-11-30T18:30:00Z,m,,input_tokens,1234567,flat,,2.5,1000000,1,3.0864175,3.09,USD,yes,"m, input_tokens at 2.5 per 1000000"
3,usage,,,2026-10-31T18:30:00Z,2026-11-30T18:30:00Z,m,,output_tokens,1000000,flat,,8,1000000,2,8,8.00,USD,yes,"m, output_tokens at 8 per 1000000"
4,usage,,,2026-10-31T18:30:00Z,2026-11-30T18:30:00Z,m,,gpu_ms,1234500,flat,,3.6,3600000,5,1.2345,1.23,USD,yes,"m, gpu_ms at 3.6 per 3600000"
5,usage,,,2026-10-31T18:30:00Z,2026-11-30T18:30:00Z,packed,,images,11,package,,2,10,4,4,4.00,USD,yes,"packed, images at 2 per 10"
6,usage,,,2026-10-31T18:30:00Z,2026-11-30T18:30:00Z,tiered,,requests,10,graduated,1,1,1,3,10,10.00,USD,yes,"tiered, requests at 1 per 1, tier 1"
7,usage,,,2026-10-31T18:30:00Z,2026-11-30T18:30:00Z,tiered,,requests,2,graduated,2,0.5,1,3,1,1.00,USD,yes,"tiered, requests at 0.5 per 1, tier 2"
8,usage,correction,bil_october,2026-09-30T18:30:00Z,2026-10-31T18:30:00Z,m,,input_tokens,-4000,flat,,2.5,1000000,1,-0.01,-0.01,USD,yes,"correction of bill bil_october: m, input_tokens at 2.5 per 1000000"
9,credit,,,2026-10-31T18:30:00Z,2026-11-30T18:30:00Z,,,,0,,,,,,-5.25,-5.25,USD,yes,credit balance applied
,total,,,2026-10-31T18:30:00Z,2026-11-30T18:30:00Z,,,,,,,,,,,22.06,USD,no,closed bill of acme for 2026-11; 1 lines have no price and are not in the total
`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestJSONReadsBack(t *testing.T) {
	t.Parallel()
	bill := testBill(t)
	var got billing.Bill
	if err := json.Unmarshal(write(t, JSON, bill), &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(bill, got, cmp.Comparer(func(a, b decimal.Decimal) bool { return a.String() == b.String() })); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if !strings.Contains(string(write(t, JSON, bill)), `"total": "22.06"`) {
		t.Error("the total is not a string: a reader would make a float of it")
	}
}

// focusRules are what FOCUS 1.2 demands of the columns that are written:
// presence, nulls, formats and allowed values.
var focusRules = map[string]struct {
	mandatory bool
	null      func(row map[string]string) (allowed, demanded bool)
	format    *regexp.Regexp
}{
	"BilledCost":          {true, never, decimalFormat},
	"BillingAccountId":    {true, never, anyText},
	"BillingAccountName":  {true, maybe, anyText},
	"BillingCurrency":     {true, never, regexp.MustCompile(`^[A-Z]{3}$`)},
	"BillingPeriodEnd":    {true, never, dateFormat},
	"BillingPeriodStart":  {true, never, dateFormat},
	"ChargeCategory":      {true, never, regexp.MustCompile(`^(Usage|Purchase|Tax|Credit|Adjustment)$`)},
	"ChargeClass":         {true, maybe, regexp.MustCompile(`^Correction$`)},
	"ChargeDescription":   {true, maybe, anyText},
	"ChargeFrequency":     {false, never, regexp.MustCompile(`^(One-Time|Recurring|Usage-Based)$`)},
	"ChargePeriodEnd":     {true, never, dateFormat},
	"ChargePeriodStart":   {true, never, dateFormat},
	"ConsumedQuantity":    {false, onlyUsage, decimalFormat},
	"ConsumedUnit":        {false, onlyUsage, unitFormat},
	"ContractedCost":      {true, never, decimalFormat},
	"ContractedUnitPrice": {false, onlyRated, nonNegative},
	"EffectiveCost":       {true, never, decimalFormat},
	"InvoiceId":           {false, maybe, anyText},
	"InvoiceIssuerName":   {true, never, anyText},
	"ListCost":            {true, never, decimalFormat},
	"ListUnitPrice":       {false, onlyRated, nonNegative},
	"PricingCategory":     {false, onlyUsage, regexp.MustCompile(`^(Standard|Dynamic|Committed|Other)$`)},
	"PricingQuantity":     {true, onlyUsage, decimalFormat},
	"PricingUnit":         {true, onlyUsage, unitFormat},
	"ProviderName":        {true, never, anyText},
	"PublisherName":       {true, never, anyText},
	"RegionId":            {false, maybe, anyText},
	"RegionName":          {false, maybe, anyText},
	"ResourceId":          {false, maybe, anyText},
	"ServiceCategory":     {true, never, regexp.MustCompile(`^AI and Machine Learning$`)},
	"ServiceName":         {true, never, anyText},
	"ServiceSubcategory":  {false, never, regexp.MustCompile(`^Generative AI$`)},
	"SkuId":               {false, onlyUsage, anyText},
	"SkuMeter":            {false, onlyUsage, anyText},
	"SkuPriceDetails":     {false, onlyRated, regexp.MustCompile(`^\{"x_[A-Za-z]+":.*\}$`)},
	"SkuPriceId":          {false, onlyUsage, anyText},
	"SubAccountId":        {false, maybe, anyText},
	"SubAccountName":      {false, maybe, anyText},
	"Tags":                {false, maybe, regexp.MustCompile(`^\{.*\}$`)},
}

var (
	anyText       = regexp.MustCompile(`^[^=+\-@\t\r\n][^\r\n]*$`)
	decimalFormat = regexp.MustCompile(`^-?[0-9]+(\.[0-9]+)?$`)
	nonNegative   = regexp.MustCompile(`^[0-9]+(\.[0-9]+)?$`)
	dateFormat    = regexp.MustCompile(`^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$`)
	unitFormat    = regexp.MustCompile(`^([0-9]+ )?(GPU-)?[A-Z][a-z]+s$`)
)

func never(map[string]string) (bool, bool) { return false, false }
func maybe(map[string]string) (bool, bool) { return true, false }

func onlyUsage(row map[string]string) (allowed, demanded bool) {
	usage := row["ChargeCategory"] == "Usage"
	return !usage, !usage
}

// onlyRated: usage without a price has none to show. The specification knows no
// such rows; x_Rated marks them.
func onlyRated(row map[string]string) (allowed, demanded bool) {
	rated := row["ChargeCategory"] == "Usage" && row["x_Rated"] == "true"
	return !rated, !rated
}

// checkFOCUS is a validator of exports.
func checkFOCUS(data []byte) error {
	reader := csv.NewReader(bytes.NewReader(data))
	header, err := reader.Read()
	if err != nil {
		return err
	}
	for i, name := range header {
		if slices.Contains(header[:i], name) {
			return fmt.Errorf("column %s comes twice", name)
		}
		if _, known := focusRules[name]; !known && !regexp.MustCompile(`^x_[A-Z][A-Za-z]*$`).MatchString(name) {
			return fmt.Errorf("column %s is neither of FOCUS nor custom", name)
		}
	}
	for name, rule := range focusRules {
		if rule.mandatory && !slices.Contains(header, name) {
			return fmt.Errorf("mandatory column %s is missing", name)
		}
	}
	for {
		values, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		row := map[string]string{}
		for i, name := range header {
			row[name] = values[i]
		}
		if err := checkFOCUSRow(row); err != nil {
			return fmt.Errorf("%w in %v", err, row)
		}
	}
}

func checkFOCUSRow(row map[string]string) error {
	for name, rule := range focusRules {
		value := row[name]
		if allowed, demanded := rule.null(row); value == "" && !allowed {
			return fmt.Errorf("%s is null", name)
		} else if value != "" && demanded {
			return fmt.Errorf("%s is %q and must be null", name, value)
		}
		if value != "" && !rule.format.MatchString(value) {
			return fmt.Errorf("%s is %q", name, value)
		}
	}
	if row["ChargePeriodStart"] >= row["ChargePeriodEnd"] || row["BillingPeriodStart"] >= row["BillingPeriodEnd"] {
		return errors.New("a period ends before it begins")
	}
	if (row["ChargeClass"] == "Correction") != (row["ChargePeriodStart"] < row["BillingPeriodStart"]) {
		return errors.New("corrections are charges of earlier periods, and only they")
	}
	if row["ChargeClass"] == "" && row["ContractedUnitPrice"] != "" {
		for unit, cost := range map[string]string{"ContractedUnitPrice": "ContractedCost", "ListUnitPrice": "ListCost"} {
			product := new(big.Rat).Mul(number128(row[unit]), number128(row["PricingQuantity"]))
			if off := product.Sub(product, number128(row[cost])); off.Abs(off).Cmp(big.NewRat(1, 1_000_000_000)) > 0 {
				return fmt.Errorf("%s × PricingQuantity is not %s", unit, cost)
			}
		}
	}
	return nil
}

func number128(s string) *big.Rat {
	r, ok := new(big.Rat).SetString(s)
	if !ok {
		return new(big.Rat)
	}
	return r
}

func TestFOCUS(t *testing.T) {
	t.Parallel()
	bill := testBill(t)
	data := write(t, FOCUS, bill)
	if err := checkFOCUS(data); err != nil {
		t.Fatal(err)
	}
	all := rows(t, data)
	sum := new(big.Rat)
	for _, row := range all {
		sum.Add(sum, number128(row["BilledCost"]))
	}
	if len(all) != len(bill.Lines) || sum.FloatString(2) != "22.06" {
		t.Errorf("%d rows add up to %s, want %d and 22.06", len(all), sum.FloatString(2), len(bill.Lines))
	}
	want := map[string]string{
		"BilledCost": "8.00", "ContractedCost": "8", "ContractedUnitPrice": "8", "ListCost": "10", "ListUnitPrice": "10",
		"PricingQuantity": "1", "PricingUnit": "1000000 Tokens", "ConsumedQuantity": "1000000", "ConsumedUnit": "Tokens",
		"SkuId": "m/output_tokens", "SkuPriceId": "m/output_tokens", "x_PriceId": "2", "InvoiceId": "bil_november",
		"BillingAccountName": `'=HYPERLINK("http://evil","Acme")`, "InvoiceIssuerName": "North AI Ltd", "ProviderName": "North AI",
		"BillingPeriodStart": "2026-10-31T18:30:00Z",
	}
	for name, value := range want {
		if got := all[2][name]; got != value {
			t.Errorf("%s is %q, want %q", name, got, value)
		}
	}
	if gpu := all[3]; gpu["PricingUnit"] != "GPU-Hours" || gpu["ConsumedUnit"] != "GPU-Seconds" || gpu["ConsumedQuantity"] != "1234.500" {
		t.Errorf("GPU time is %s %s, priced by %s", gpu["ConsumedQuantity"], gpu["ConsumedUnit"], gpu["PricingUnit"])
	}
	if fix := all[7]; fix["ChargeClass"] != "Correction" || fix["x_CorrectedInvoiceId"] != "bil_october" || fix["BilledCost"] != "-0.01" {
		t.Errorf("the correction is %v", fix)
	}
	if credit := all[8]; credit["ChargeCategory"] != "Credit" || credit["BilledCost"] != "-5.25" || credit["ContractedCost"] != "-5.25" {
		t.Errorf("the credit is %v", credit)
	}
}

// The validator itself must find mistakes.
func TestFOCUSValidatorFindsMistakes(t *testing.T) {
	t.Parallel()
	good := string(write(t, FOCUS, testBill(t)))
	for _, change := range [][2]string{
		{"BilledCost,", "billed_cost,"},
		{",ListCost,", ",x_ListCost,"},
		{"2026-11-30T18:30:00Z", "2026-11-30 18:30:00"},
		{"3.09,acme", "3.09 USD,acme"},
		{"Usage-Based", "Usage"},
		{",Correction,", ",,"},
		{"1000000 Tokens", "1M tokens"},
		{",8,8.00,", ",7,8.00,"},
		{",USD,", ",usd,"},
	} {
		bad := strings.Replace(good, change[0], change[1], 1)
		if bad == good {
			t.Errorf("%q is not in the export", change[0])
		} else if checkFOCUS([]byte(bad)) == nil {
			t.Errorf("%q for %q is not found", change[1], change[0])
		}
	}
}

func TestDraftHasNoInvoice(t *testing.T) {
	t.Parallel()
	bill := testBill(t)
	bill.ID, bill.Status = "", billing.StatusDraft
	for _, row := range rows(t, write(t, FOCUS, bill)) {
		if row["InvoiceId"] != "" {
			t.Errorf("a draft's row names invoice %q", row["InvoiceId"])
		}
	}
}

func TestNamesAreNotFormulas(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", " =1", "|cmd", "%0A"} {
		if got := safe(name); got != "'"+name {
			t.Errorf("safe(%q) = %q", name, got)
		}
	}
	for _, name := range []string{"", "Acme", "a=b", "1-2", "'quoted", "Überall"} {
		if got := safe(name); got != name {
			t.Errorf("safe(%q) = %q", name, got)
		}
	}
}

func TestFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "bill.csv")
	bill := testBill(t)
	if err := File(path, CSV, bill, Options{}, false); err != nil {
		t.Fatal(err)
	}
	first, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(first, write(t, CSV, bill)) {
		t.Fatalf("the file differs from the export, %v", err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file's mode is %v, %v; want 0600", info.Mode(), err)
	}
	// Without force the file stays, with it the file is replaced.
	if err := File(path, JSON, bill, Options{}, false); !errors.Is(err, ErrExists) {
		t.Errorf("overwriting: %v, want ErrExists", err)
	}
	if now, _ := os.ReadFile(path); !bytes.Equal(now, first) {
		t.Error("a refused export changed the file")
	}
	if err := File(path, JSON, bill, Options{}, true); err != nil {
		t.Fatal(err)
	}
	if now, _ := os.ReadFile(path); !bytes.Equal(now, write(t, JSON, bill)[:len(now)]) || !json.Valid(now) {
		t.Error("the forced export is not there")
	}
	// A failed export leaves neither a file nor a remnant.
	if err := File(filepath.Join(dir, "other"), "pdf", bill, Options{}, false); !errors.Is(err, billing.ErrInvalid) {
		t.Errorf("unknown format: %v, want ErrInvalid", err)
	}
	if err := File(filepath.Join(dir, "none", "bill.csv"), CSV, bill, Options{}, false); err == nil {
		t.Error("an export into a directory that is not there succeeded")
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("the directory holds %v, %v; want the bill alone", entries, err)
	}
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestWriteErrorsSurface(t *testing.T) {
	t.Parallel()
	for _, format := range Formats {
		if err := Write(brokenWriter{}, format, testBill(t), Options{}); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("%s: %v, want the writer's error", format, err)
		}
	}
}

// Whatever is on a bill, every export of it adds up to its total.
func TestExportsAddUp(t *testing.T) {
	t.Parallel()
	period := month(t, "2026-11")
	rapid.Check(t, func(t *rapid.T) {
		var prices []billing.Price
		var usage []billing.Usage
		for i := range rapid.IntRange(0, 8).Draw(t, "lines") {
			model := fmt.Sprintf("%sm%d", rapid.SampledFrom([]string{"", "=", "\"", "a,b"}).Draw(t, "prefix"), i)
			p := price(int64(i+1), "", model, billing.MeterInput, "0", rapid.SampledFrom([]int64{1, 3, 1_000_000}).Draw(t, "unit"))
			amount, err := decimal.New(rapid.Int64Range(0, 1_000_000).Draw(t, "amount"), 6)
			if err != nil {
				t.Fatal(err)
			}
			p.Amount = amount
			if rapid.Bool().Draw(t, "priced") {
				prices = append(prices, p)
			}
			usage = append(usage, billing.Usage{
				From: period.From, To: period.To, Model: model, Requests: 1,
				Usage: events.Usage{InputTokens: rapid.Int64Range(-10, 1_000_000).Draw(t, "input")},
			})
		}
		book, err := billing.NewBook("acme", "USD", prices)
		if err != nil {
			t.Fatal(err)
		}
		bill, err := billing.Rate(usage, book, billing.Account{TenantID: "acme", Name: "Acme", Currency: "USD"}, period)
		if err != nil {
			t.Fatal(err)
		}
		want := number128(bill.Total.String())
		for format, column := range map[Format]string{CSV: "amount", FOCUS: "BilledCost"} {
			var b bytes.Buffer
			if err := Write(&b, format, bill, Options{}); err != nil {
				t.Fatal(err)
			}
			all, err := csv.NewReader(&b).ReadAll()
			if err != nil {
				t.Fatal(err)
			}
			at := slices.Index(all[0], column)
			sum := new(big.Rat)
			for _, row := range all[1:] {
				if row[1] == "total" {
					if row[at] != bill.Total.String() {
						t.Fatalf("the total row says %s, the bill %v", row[at], bill.Total)
					}
					continue
				}
				sum.Add(sum, number128(row[at]))
			}
			if sum.Cmp(want) != 0 {
				t.Fatalf("%s adds up to %s, the bill to %v", format, sum.FloatString(4), bill.Total)
			}
		}
	})
}
