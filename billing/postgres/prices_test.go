package postgres

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/govalues/decimal"

	"tollgate/billing"
	"tollgate/events"
)

func (f *fixture) listed(model string) []string {
	f.t.Helper()
	prices, err := f.ListPrices(f.t.Context(), PriceFilter{Model: model})
	if err != nil {
		f.t.Fatal(err)
	}
	var out []string
	for _, p := range prices {
		s := fmt.Sprintf("%s%s %v from %s", map[bool]string{true: "", false: p.TenantID + " "}[p.TenantID == ""], p.Meter, p.Amount, p.From.Format("2006-01-02"))
		if !p.To.IsZero() {
			s += " to " + p.To.Format("2006-01-02")
		}
		out = append(out, s)
	}
	return out
}

func wantList(t *testing.T, got []string, want ...string) {
	t.Helper()
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("prices:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestSetPriceMakesVersions(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	first := f.price("m", billing.MeterInput, "1", 1000, newYear)
	if again := f.price("m", billing.MeterInput, "1.00", 1000, at("2026-05-01T00:00:00Z")); again.ID != first.ID {
		t.Errorf("setting the same price made version %d beside %d", again.ID, first.ID)
	}
	f.price("m", billing.MeterInput, "2", 1000, at("2026-06-01T00:00:00Z"))
	f.price("m", billing.MeterInput, "3", 1000, at("2026-06-01T00:00:00Z")) // a mistake, put right before any bill
	offer := flat("m", billing.MeterInput, "0.5", 1000, at("2026-08-01T00:00:00Z"))
	offer.To = at("2026-09-01T00:00:00Z")
	if _, err := f.SetPrice(t.Context(), offer); err != nil {
		t.Fatal(err)
	}
	negotiated := flat("m", billing.MeterInput, "0.1", 1000, newYear)
	negotiated.TenantID = "acme"
	if _, err := f.SetPrice(t.Context(), negotiated); err != nil {
		t.Fatal(err)
	}
	wantList(t, f.listed("m"),
		"input_tokens 1 from 2026-01-01 to 2026-06-01",
		"input_tokens 3 from 2026-06-01 to 2026-08-01",
		"input_tokens 0.5 from 2026-08-01 to 2026-09-01",
		"input_tokens 3 from 2026-09-01",
		"acme input_tokens 0.1 from 2026-01-01")
	all, err := f.ListPrices(t.Context(), PriceFilter{Model: "m", Withdrawn: true})
	if err != nil || len(all) != 6 {
		t.Errorf("%d versions with the withdrawn one, %v; want 6", len(all), err)
	}
	inForce, err := f.ListPrices(t.Context(), PriceFilter{At: at("2026-08-15T00:00:00Z"), TenantID: new(string)})
	if err != nil || len(inForce) != 1 || inForce[0].Amount.String() != "0.5" {
		t.Errorf("in force in August: %+v, %v", inForce, err)
	}
}

func TestSetPriceKeepsTiers(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	p := flat("m", billing.MeterInput, "0", 1000, newYear)
	p.Pricing = billing.PricingGraduated
	p.Tiers = []billing.Tier{{UpTo: 10_000, Amount: decimal.MustParse("0.1234567890123456789")}, {Amount: decimal.MustParse("0.05")}}
	set, err := f.SetPrice(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	got, err := f.ListPrices(t.Context(), PriceFilter{})
	if err != nil || len(got) != 1 || !got[0].SameTerms(set) || !got[0].SameTerms(p) {
		t.Fatalf("read back %+v, %v", got, err)
	}
	f.use("acme", at("2026-11-05T00:00:00Z"), "m", events.Usage{InputTokens: 12_000})
	wantBill(t, f.draft(acme, month(t, "2026-11", "UTC")), "1.33", "m input_tokens 10000 = 1.23", "m input_tokens 2000 = 0.10")
}

func TestSetPriceLeavesClosedPeriodsAlone(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.price("m", billing.MeterInput, "1", 1, newYear)
	f.use("india", at("2026-11-05T00:00:00Z"), "m", events.Usage{InputTokens: 5})
	india := billing.Account{TenantID: "india", Name: "India", Currency: "USD", TimeZone: "Asia/Kolkata"}
	f.close(india, month(t, "2026-11", india.TimeZone)) // until 30 November 18:30 UTC

	list := flat("m", billing.MeterInput, "2", 1, at("2026-11-30T18:00:00Z"))
	_, err := f.SetPrice(t.Context(), list)
	if !errors.Is(err, billing.ErrClosedPeriod) || !strings.Contains(err.Error(), "2026-11-30T19:00:00Z") {
		t.Errorf("into the closed period: %v, want ErrClosedPeriod naming 19:00", err)
	}
	other := list
	other.Model = "new"
	if _, err := f.SetPrice(t.Context(), other); !errors.Is(err, billing.ErrClosedPeriod) {
		t.Errorf("a new model in closed time: %v, want ErrClosedPeriod", err)
	}
	list.From = at("2026-11-30T19:00:00Z")
	if _, err := f.SetPrice(t.Context(), list); err != nil {
		t.Errorf("after it: %v", err)
	}
	elsewhere := flat("m", billing.MeterInput, "3", 1, newYear)
	elsewhere.TenantID = "acme"
	if _, err := f.SetPrice(t.Context(), elsewhere); err != nil {
		t.Errorf("another tenant's price: %v", err)
	}
}

func TestSetPriceAtOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, err := range together(8, func(i int) error {
		_, err := f.SetPrice(t.Context(), flat("m", billing.MeterInput, fmt.Sprint(i), 1, newYear.AddDate(0, i, 0)))
		return err
	}) {
		if err != nil {
			t.Error(err)
		}
	}
	prices, err := f.ListPrices(t.Context(), PriceFilter{})
	if err != nil || len(prices) != 8 {
		t.Fatalf("%d versions, %v; want 8", len(prices), err)
	}
	for i, p := range prices[:7] {
		if !p.To.Equal(prices[i+1].From) {
			t.Errorf("version %d ends at %s, the next begins at %s", i, p.To, prices[i+1].From)
		}
	}
}

func importFile(t *testing.T, f *fixture, file string, change func(*ImportOptions)) ImportReport {
	t.Helper()
	opts := ImportOptions{ValidFrom: newYear, Source: "test", Author: "operator"}
	if change != nil {
		change(&opts)
	}
	report, err := f.ImportPrices(t.Context(), strings.NewReader(file), opts)
	if err != nil {
		t.Fatalf("ImportPrices: %v", err)
	}
	return report
}

func TestImportPrices(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const file = `{"m": {"input_cost_per_token": 2.5e-06, "output_cost_per_token": 1e-05, "input_cost_per_pixel": 1}, "n": {"input_cost_per_token": 0}}`
	dry := importFile(t, f, file, func(o *ImportOptions) { o.DryRun = true })
	if dry.Added != 3 || dry.Zero != 1 || len(dry.LeftOut) != 1 || dry.ByReason["pixels are not metered"] != 1 || !dry.DryRun {
		t.Errorf("dry run: %+v", dry)
	}
	for _, table := range []string{"prices", "price_series", "price_imports"} {
		if n := count(t, f.pool, `SELECT count(*) FROM `+table); n != 0 {
			t.Errorf("the dry run left %d rows in %s", n, table)
		}
	}
	if first := importFile(t, f, file, nil); first.Added != 3 || first.Changed != 0 || first.Unchanged != 0 {
		t.Errorf("first import: %+v", first)
	}
	// The same file again, also on a later day, changes nothing.
	for _, from := range []string{"2026-01-01T00:00:00Z", "2026-07-01T00:00:00Z"} {
		again := importFile(t, f, file, func(o *ImportOptions) { o.ValidFrom = at(from) })
		if again.Added != 0 || again.Changed != 0 || again.Unchanged != 3 {
			t.Errorf("import again from %s: %+v", from, again)
		}
	}
	if n := count(t, f.pool, `SELECT count(*) FROM price_imports`); n != 1 {
		t.Errorf("%d imports recorded, want 1", n)
	}
	changed := importFile(t, f, strings.Replace(file, "1e-05", "2e-05", 1), func(o *ImportOptions) { o.ValidFrom = at("2026-07-01T00:00:00Z") })
	if changed.Changed != 1 || changed.Unchanged != 2 {
		t.Errorf("changed import: %+v", changed)
	}
	wantList(t, f.listed("m"), "input_tokens 2.5 from 2026-01-01", "output_tokens 10 from 2026-01-01 to 2026-07-01", "output_tokens 20 from 2026-07-01")
}

func TestImportPricesRefusals(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	good := ImportOptions{ValidFrom: newYear, Author: "operator"}
	for name, tt := range map[string]struct {
		file   string
		change func(*ImportOptions)
	}{
		"bad JSON":         {`{"m": {"input_cost_per_token": 1}`, nil},
		"no author":        {`{}`, func(o *ImportOptions) { o.Author = "" }},
		"half an hour":     {`{"m": {"input_cost_per_token": 1}}`, func(o *ImportOptions) { o.ValidFrom = at("2026-01-01T00:30:00Z") }},
		"unknown currency": {`{"m": {"input_cost_per_token": 1}}`, func(o *ImportOptions) { o.Currency = "ABC" }},
	} {
		opts := good
		if tt.change != nil {
			tt.change(&opts)
		}
		if _, err := f.ImportPrices(t.Context(), strings.NewReader(tt.file), opts); !errors.Is(err, billing.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
	if n := count(t, f.pool, `SELECT count(*) FROM prices`); n != 0 {
		t.Errorf("%d prices were written", n)
	}
	f.close(acme, month(t, "2026-11", "UTC"))
	for _, dry := range []bool{false, true} {
		opts := good
		opts.DryRun = dry
		_, err := f.ImportPrices(t.Context(), strings.NewReader(`{"m": {"input_cost_per_token": 1}}`), opts)
		if !errors.Is(err, billing.ErrClosedPeriod) {
			t.Errorf("into closed time (dry run %v): %v, want ErrClosedPeriod", dry, err)
		}
	}
}

// The public list that may lie beside the repository is imported whole, and a
// second time without a change.
func TestImportRealPriceFile(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(root, "..", "shared", "prices", "litellm-model-prices.json"))
	if errors.Is(err, os.ErrNotExist) {
		t.Skip("skipped: there is no real price file beside the repository")
	}
	if err != nil {
		t.Fatal(err)
	}
	f := newFixture(t)
	opts := ImportOptions{ValidFrom: newYear, Source: "LiteLLM", Author: "operator"}
	first, err := f.ImportPrices(t.Context(), bytes.NewReader(data), opts)
	if err != nil {
		t.Fatal(err)
	}
	if n := count(t, f.pool, `SELECT count(*) FROM prices`); n != first.Added || first.Added != first.Prices || n == 0 {
		t.Errorf("%d prices stored, %d added, %d in the file", n, first.Added, first.Prices)
	}
	again, err := f.ImportPrices(t.Context(), bytes.NewReader(data), opts)
	if err != nil || again.Unchanged != first.Added || again.Added+again.Changed != 0 {
		t.Errorf("again: %d added, %d changed, %d unchanged, %v", again.Added, again.Changed, again.Unchanged, err)
	}
	t.Logf("%d entries: %d prices added, %d left out", first.Entries, first.Added, len(first.LeftOut))
}
