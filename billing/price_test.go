package billing

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/govalues/decimal"
)

func TestPriceValidate(t *testing.T) {
	t.Parallel()
	good := flat(1, "m", MeterInput, "2.5", 1_000_000)
	if err := good.Validate(); err != nil {
		t.Fatalf("a good price: %v", err)
	}
	tier := func(upTo int64, amount string) Tier {
		return Tier{UpTo: upTo, Amount: decimal.MustParse(amount)}
	}
	tests := []struct {
		want   string
		change func(*Price)
	}{
		{"a name is empty", func(p *Price) { p.Model = "" }},
		{"a name is longer", func(p *Price) { p.Model = strings.Repeat("m", 257) }},
		{"not UTF-8", func(p *Price) { p.Model = "m\xff" }},
		{"control character", func(p *Price) { p.Region = "a\x00" }},
		{"begins or ends with a space", func(p *Price) { p.TenantID = "a " }},
		{"unknown meter", func(p *Price) { p.Meter = "words" }},
		{"not an ISO 4217 code", func(p *Price) { p.Currency = "dollar" }},
		{"whole UTC hour", func(p *Price) { p.From = p.From.Add(30 * time.Minute) }},
		{"whole UTC hour", func(p *Price) { p.From = time.Time{} }},
		{"valid_to is not after", func(p *Price) { p.To = p.From }},
		{"unit_size", func(p *Price) { p.UnitSize = 0 }},
		{"unit_size", func(p *Price) { p.UnitSize = maxUnitSize + 1 }},
		{"must not be negative", func(p *Price) { p.Amount = decimal.MustParse("-1") }},
		{"must not exceed", func(p *Price) { p.Amount = decimal.MustParse("1000000001") }},
		{"unknown pricing model", func(p *Price) { p.Pricing = "auction" }},
		{"has no tiers", func(p *Price) { p.Tiers = []Tier{tier(0, "1")} }},
		{"needs 1 to", func(p *Price) { p.Pricing, p.Amount = PricingVolume, decimal.Decimal{} }},
		{"amounts in its tiers", func(p *Price) { p.Pricing, p.Tiers = PricingVolume, []Tier{tier(0, "1")} }},
		{"must end after tier 1", func(p *Price) {
			p.Pricing, p.Amount, p.Tiers = PricingGraduated, decimal.Decimal{}, []Tier{tier(10, "1"), tier(10, "1"), tier(0, "1")}
		}},
		{"every tier but the last", func(p *Price) {
			p.Pricing, p.Amount, p.Tiers = PricingGraduated, decimal.Decimal{}, []Tier{tier(10, "1"), tier(20, "1")}
		}},
		{"every tier but the last", func(p *Price) {
			p.Pricing, p.Amount, p.Tiers = PricingGraduated, decimal.Decimal{}, []Tier{tier(0, "1"), tier(0, "1")}
		}},
		{"must not be negative", func(p *Price) {
			p.Pricing, p.Amount, p.Tiers = PricingGraduated, decimal.Decimal{}, []Tier{tier(0, "-1")}
		}},
	}
	for _, tt := range tests {
		p := good
		tt.change(&p)
		if err := p.Validate(); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("got %v, want ErrInvalid with %q", err, tt.want)
		}
	}
}

func TestParseTiers(t *testing.T) {
	t.Parallel()
	got, err := ParseTiers([]byte(`[{"up_to": 1000, "amount": "2.50"}, {"amount": 2.5e-06}]`))
	if err != nil || len(got) != 2 || got[0].UpTo != 1000 || got[0].Amount.String() != "2.5" && got[0].Amount.String() != "2.50" || got[1].Amount.String() != "0.0000025" {
		t.Errorf("got %v, %v", got, err)
	}
	for _, bad := range []string{
		``, `{}`, `[{"up_to": 1.5, "amount": "1"}]`, `[{"amount": "x"}]`, `[{"amount": null}]`, `[{}]`, `[{"amount": "1", "price": 2}]`,
		`[{"amount": "1"}] x`, `[{"amount": "1e500"}]`, `[{"amount": "0.12345678901234567891"}]`, `[{"amount": "NaN"}]`, `[{"amount": "1/3"}]`,
	} {
		if got, err := ParseTiers([]byte(bad)); !errors.Is(err, ErrInvalid) {
			t.Errorf("ParseTiers(%s) = %v, %v; want ErrInvalid", bad, got, err)
		}
	}
}

func TestNewBookRefusesOverlap(t *testing.T) {
	t.Parallel()
	one, two := flat(1, "m", MeterInput, "1", 1), flat(2, "m", MeterInput, "2", 1)
	two.From = day(1)
	if _, err := NewBook("acme", "USD", []Price{two, one}); !errors.Is(err, ErrInvalid) {
		t.Errorf("got %v, want ErrInvalid", err)
	}
	two.WithdrawnAt = day(2)
	if _, err := NewBook("acme", "USD", []Price{two, one}); err != nil {
		t.Errorf("with a withdrawn version: %v", err)
	}
}

func TestPlace(t *testing.T) {
	t.Parallel()
	version := func(id int64, amount string, from, to time.Time) Price {
		p := flat(id, "m", MeterInput, amount, 1)
		p.From, p.To = from, to
		return p
	}
	var open time.Time
	january := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	tests := []struct {
		name     string
		versions []Price
		p        Price
		want     Placement
	}{
		{"first", nil, version(0, "1", day(1), open), Placement{Price: version(0, "1", day(1), open)}},
		{
			"change",
			[]Price{version(1, "1", january, open)},
			version(0, "2", day(1), open),
			Placement{Price: version(0, "2", day(1), open), EndID: 1, EndAt: day(1)},
		},
		{
			"same again",
			[]Price{version(1, "1", january, open)},
			version(0, "1.0", day(1), open),
			Placement{Unchanged: true, Price: version(1, "1", january, open)},
		},
		{
			"replaced from its beginning",
			[]Price{version(1, "1", day(1), open)},
			version(0, "2", day(1), open),
			Placement{Price: version(0, "2", day(1), open), WithdrawID: 1},
		},
		{
			"until the next",
			[]Price{version(1, "1", january, day(9)), version(2, "3", day(9), open)},
			version(0, "2", day(1), open),
			Placement{Price: version(0, "2", day(1), day(9)), EndID: 1, EndAt: day(1)},
		},
		{
			"a week's offer",
			[]Price{version(1, "5", january, open)},
			version(0, "2", day(1), day(8)),
			Placement{Price: version(0, "2", day(1), day(8)), EndID: 1, EndAt: day(1), Resume: ptr(version(0, "5", day(8), open))},
		},
		{
			"an end for a price that had none",
			[]Price{version(1, "5", day(1), open)},
			version(0, "5", day(1), day(8)),
			Placement{Price: version(0, "5", day(1), day(8)), WithdrawID: 1, Resume: ptr(version(0, "5", day(8), open))},
		},
		{
			"before all",
			[]Price{version(1, "5", day(5), open)},
			version(0, "2", day(1), open),
			Placement{Price: version(0, "2", day(1), day(5))},
		},
	}
	for _, tt := range tests {
		got, err := Place(tt.versions, tt.p)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		equal := cmp.Comparer(func(a, b decimal.Decimal) bool { return a.Cmp(b) == 0 })
		if diff := cmp.Diff(tt.want, got, equal); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
	if _, err := Place([]Price{version(1, "1", day(5), open)}, version(0, "2", day(1), day(6))); !errors.Is(err, ErrInvalid) {
		t.Errorf("into a later version: %v, want ErrInvalid", err)
	}
}

func ptr(p Price) *Price { return &p }

func TestCreditValidate(t *testing.T) {
	t.Parallel()
	good := Credit{TenantID: "acme", IdempotencyKey: "k", Kind: KindRefund, Amount: decimal.MustParse("1.25"), Currency: "USD", Reason: "r", Author: "a"}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Credit){
		"zero":      func(c *Credit) { c.Amount = decimal.Decimal{} },
		"negative":  func(c *Credit) { c.Amount = decimal.MustParse("-1") },
		"too fine":  func(c *Credit) { c.Amount = decimal.MustParse("1.255") },
		"kind":      func(c *Credit) { c.Kind = "gift" },
		"currency":  func(c *Credit) { c.Currency = "usd" },
		"no key":    func(c *Credit) { c.IdempotencyKey = "" },
		"no reason": func(c *Credit) { c.Reason = "" },
		"no author": func(c *Credit) { c.Author = "" },
		"no tenant": func(c *Credit) { c.TenantID = "" },
	} {
		c := good
		change(&c)
		if err := c.Validate(); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
}
