package cli

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"tollgate/billing"
	billingpg "tollgate/billing/postgres"
)

type priceCmd struct {
	Import priceImportCmd `cmd:"" help:"Import a public price file into the list prices."`
	Set    priceSetCmd    `cmd:"" help:"Set one price from an hour on."`
	List   priceListCmd   `cmd:"" help:"List prices."`
}

type priceImportCmd struct {
	File     string `arg:"" help:"Price file (JSON object of model entries, as LiteLLM publishes)." type:"existingfile"`
	From     string `help:"Whole UTC hour from which the prices hold (RFC 3339). Default: the current hour."`
	Currency string `help:"Currency of the file's numbers." default:"USD"`
	Source   string `help:"Where the file is from, for people. Default: its name."`
	DryRun   bool   `help:"Say what would change and write nothing."`
	Details  bool   `help:"List everything that was left out, and why."`
	author
}

// Help implements kong.HelpProvider.
func (priceImportCmd) Help() string {
	return "Prices that are in force already are left alone: importing a file twice changes nothing.\n\nExample:\n  tollgate price import model_prices.json --dry-run --details"
}

// Run imports the file.
func (c *priceImportCmd) Run(e *env) error {
	from, err := parseHour(c.From)
	if err != nil {
		return err
	}
	f, err := os.Open(c.File)
	if err != nil {
		return withStatus(ExitUsage, err)
	}
	defer func() { _ = f.Close() }() // only read
	source := cmp.Or(c.Source, filepath.Base(c.File))
	return e.withBilling(func(ctx context.Context, s *billingpg.Store, _ *pgxpool.Pool) error {
		report, err := s.ImportPrices(ctx, f, billingpg.ImportOptions{
			ValidFrom: from, Currency: c.Currency, Source: source, Author: c.change("").Author, DryRun: c.DryRun,
		})
		if err != nil {
			return err
		}
		return e.value(report, func() error { return c.print(e, report) })
	})
}

func (c *priceImportCmd) print(e *env, r billingpg.ImportReport) error {
	verb := "Imported"
	if r.DryRun {
		verb = "Would import"
	}
	fmt.Fprintf(e.out, "%s %s prices of %s entries, from %s: %s added, %s changed, %s unchanged, %s free by the file's own word.\n\n",
		verb, count(int64(r.Prices)), count(int64(r.Entries)), instant(r.ValidFrom), count(int64(r.Added)), count(int64(r.Changed)), count(int64(r.Unchanged)), count(int64(r.Zero)))
	if len(r.LeftOut) == 0 {
		return nil
	}
	var rows [][]string
	if c.Details {
		for _, l := range r.LeftOut {
			rows = append(rows, []string{fmt.Sprint(l.Line), l.Entry, l.Field, l.Reason})
		}
		return e.table([]string{"LINE", "ENTRY", "FIELD", "LEFT OUT BECAUSE"}, rows)
	}
	for reason, n := range r.ByReason {
		rows = append(rows, []string{count(int64(n)), reason})
	}
	slices.SortFunc(rows, func(a, b []string) int { return cmp.Compare(a[1], b[1]) })
	if err := e.table([]string{"LEFT OUT", "BECAUSE"}, rows); err != nil {
		return err
	}
	_, err := fmt.Fprintln(e.out, "\nEach one by name: --details")
	return err
}

// parseHour reads a whole UTC hour; "" is the current one.
func parseHour(text string) (time.Time, error) {
	if text == "" {
		return hourStart(time.Now()), nil
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil || !t.Equal(t.Truncate(time.Hour)) {
		return time.Time{}, usagef("%q must be a whole UTC hour such as 2026-11-01T00:00:00Z", text)
	}
	return t.UTC(), nil
}

type priceSetCmd struct {
	Model    string `arg:"" help:"Model name, or * for every model without a price of its own."`
	Meter    string `arg:"" help:"input_tokens, cached_input_tokens, output_tokens, reasoning_tokens, images, audio_ms, gpu_ms, tool_calls or requests."`
	Amount   string `arg:"" help:"Price of --per units, as an exact decimal."`
	Per      int64  `help:"How many units the price is for." default:"1000000"`
	Tenant   string `help:"Negotiated with this tenant. Default: a list price."`
	Region   string `help:"Only in this region."`
	Currency string `help:"ISO 4217. Default: billing.currency of the configuration (USD)."`
	From     string `help:"Whole UTC hour from which the price holds (RFC 3339). Default: the current hour."`
	Pricing  string `help:"flat, or package (whole packages of --per units). Tiers: see --tiers." enum:"flat,package,graduated,volume" default:"flat"`
	Tiers    string `help:"Tiers as JSON, for graduated and volume; the amount is then ignored." placeholder:"JSON"`
	author
}

// Help implements kong.HelpProvider.
func (priceSetCmd) Help() string {
	return `Examples:
  tollgate price set llama-70b input_tokens 0.60
  tollgate price set llama-70b gpu_ms 2.50 --per 3600000 --tenant acme
  tollgate price set llama-70b output_tokens 0 --pricing graduated --tiers '[{"up_to":1000000000,"amount":"0.80"},{"amount":"0.60"}]'`
}

// Run sets the price.
func (c *priceSetCmd) Run(e *env) error {
	from, err := parseHour(c.From)
	if err != nil {
		return err
	}
	cfg, err := e.config()
	if err != nil {
		return err
	}
	p := billing.Price{
		TenantID: c.Tenant, Model: c.Model, Region: c.Region, Meter: billing.Meter(c.Meter), Currency: cmp.Or(c.Currency, cfg.Billing.Currency),
		From: from, Pricing: billing.PricingModel(c.Pricing), UnitSize: c.Per, Source: c.Reason, Author: c.change("").Author,
	}
	if c.Tiers != "" {
		if p.Tiers, err = billing.ParseTiers([]byte(c.Tiers)); err != nil {
			return withStatus(ExitUsage, err)
		}
	} else if p.Amount, err = billing.ParseAmount(c.Amount); err != nil {
		return withStatus(ExitUsage, err)
	}
	return e.withBilling(func(ctx context.Context, s *billingpg.Store, _ *pgxpool.Pool) error {
		set, err := s.SetPrice(ctx, p)
		if err != nil {
			return err
		}
		return e.prices([]billing.Price{set})
	})
}

type priceListCmd struct {
	Model  string `help:"Only this model."`
	Tenant string `help:"Only prices negotiated with this tenant."`
	List   bool   `name:"list" help:"Only list prices."`
	At     string `help:"Only versions in force at this time (RFC 3339)."`
	Limit  int    `help:"At most so many; 0 for all." default:"100"`
}

// Help implements kong.HelpProvider.
func (priceListCmd) Help() string { return "Example:\n  tollgate price list --model llama-70b" }

// Run lists prices.
func (c *priceListCmd) Run(e *env) error {
	filter := billingpg.PriceFilter{Model: c.Model, Limit: c.Limit}
	if c.Limit < 0 {
		return usagef("--limit must not be negative")
	}
	switch {
	case c.Tenant != "" && c.List:
		return usagef("--tenant and --list exclude each other")
	case c.Tenant != "":
		filter.TenantID = &c.Tenant
	case c.List:
		filter.TenantID = new(string)
	}
	if c.At != "" {
		at, err := time.Parse(time.RFC3339, c.At)
		if err != nil {
			return usagef("--at %q must be an RFC 3339 time such as 2026-11-01T00:00:00Z", c.At)
		}
		filter.At = at
	}
	return e.withBilling(func(ctx context.Context, s *billingpg.Store, _ *pgxpool.Pool) error {
		prices, err := s.ListPrices(ctx, filter)
		if err != nil {
			return err
		}
		return e.prices(prices)
	})
}

func (e *env) prices(prices []billing.Price) error {
	return e.value(prices, func() error {
		rows := make([][]string, len(prices))
		for i, p := range prices {
			amount := p.Amount.String()
			if len(p.Tiers) > 0 {
				amount = fmt.Sprintf("%d tiers", len(p.Tiers))
			}
			rows[i] = []string{fmt.Sprint(p.ID), cmp.Or(p.TenantID, "list"), p.Model, p.Region, string(p.Meter), string(p.Pricing), amount, count(p.UnitSize), p.Currency, instant(p.From), instant(p.To)}
		}
		return e.table([]string{"PRICE", "TENANT", "MODEL", "REGION", "METER", "PRICING", "AMOUNT", "PER", "CURRENCY", "FROM", "TO"}, rows)
	})
}
