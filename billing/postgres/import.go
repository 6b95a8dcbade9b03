package postgres

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5"

	"tollgate/billing"
)

// ImportOptions say how a price file becomes list prices.
type ImportOptions struct {
	ValidFrom time.Time // a whole UTC hour, from which changed prices hold
	Currency  string    // of the file's numbers; empty: USD
	Source    string    // where the file is from, for people
	Author    string
	DryRun    bool // say what would change and write nothing
}

// ImportReport says what an import did, or with DryRun would do.
type ImportReport struct {
	SHA256    string            `json:"sha256"`
	Entries   int               `json:"entries"`
	Prices    int               `json:"prices"`
	Added     int               `json:"added"`
	Changed   int               `json:"changed"`
	Unchanged int               `json:"unchanged"`
	Zero      int               `json:"zero_prices"` // free by the file's own word
	DryRun    bool              `json:"dry_run"`
	ValidFrom time.Time         `json:"valid_from"`
	LeftOut   []billing.LeftOut `json:"left_out"`
	// ByReason counts LeftOut.
	ByReason map[string]int `json:"left_out_by_reason"`
}

// ImportPrices reads a price file (see billing.ReadPriceFile) into the list
// prices, in one transaction. Prices that are already in force at
// opts.ValidFrom are left alone, so importing a file twice changes nothing the
// second time. Models that a file no longer has keep their prices.
func (s *Store) ImportPrices(ctx context.Context, r io.Reader, opts ImportOptions) (ImportReport, error) {
	if opts.Currency == "" {
		opts.Currency = "USD"
	}
	if opts.Author == "" {
		return ImportReport{}, fmt.Errorf("%w: an import needs an author", billing.ErrInvalid)
	}
	file, err := billing.ReadPriceFile(r)
	if err != nil {
		return ImportReport{}, err
	}
	report := ImportReport{
		SHA256: file.SHA256, Entries: file.Entries, Prices: len(file.Prices), Zero: file.Zero,
		DryRun: opts.DryRun, ValidFrom: opts.ValidFrom.UTC(), LeftOut: file.LeftOut, ByReason: map[string]int{},
	}
	for _, left := range file.LeftOut {
		report.ByReason[left.Reason]++
	}
	prices := make([]billing.Price, 0, len(file.Prices))
	for _, fp := range file.Prices {
		p := billing.Price{
			Model: fp.Model, Meter: fp.Meter, Currency: opts.Currency, From: opts.ValidFrom.UTC(),
			Pricing: billing.PricingFlat, UnitSize: fp.UnitSize, Amount: fp.Amount, Source: opts.Source, Author: opts.Author,
		}
		if err := p.Validate(); err != nil {
			return ImportReport{}, fmt.Errorf("price file, line %d: %w", fp.Line, err)
		}
		prices = append(prices, p)
	}
	err = s.transact(ctx, plainWrite, func(tx pgx.Tx) error {
		report.Added, report.Changed, report.Unchanged = 0, 0, 0
		return importPrices(ctx, tx, prices, opts, &report)
	})
	if err != nil {
		return ImportReport{}, fmt.Errorf("import prices: %w", err)
	}
	return report, nil
}

func importPrices(ctx context.Context, tx pgx.Tx, prices []billing.Price, opts ImportOptions, report *ImportReport) error {
	if err := exec(ctx, tx, "lock the price book", holdPrices); err != nil {
		return err
	}
	existing, err := queryPrices(ctx, tx, `WHERE withdrawn_at IS NULL AND s.tenant_id = '' AND s.region = '' AND s.currency = $1`, opts.Currency)
	if err != nil {
		return err
	}
	type series struct {
		model string
		meter billing.Meter
	}
	versions := map[series][]billing.Price{}
	for _, p := range existing {
		key := series{p.Model, p.Meter}
		versions[key] = append(versions[key], p)
	}
	var placements []billing.Placement
	for _, p := range prices {
		placed, err := billing.Place(versions[series{p.Model, p.Meter}], p)
		switch {
		case err != nil:
			return err
		case placed.Unchanged:
			report.Unchanged++
			continue
		case placed.EndID != 0 || placed.WithdrawID != 0:
			report.Changed++
		default:
			report.Added++
		}
		placements = append(placements, placed)
	}
	if len(placements) == 0 {
		return nil
	}
	if opts.DryRun {
		return checkClosed(ctx, tx, placements)
	}
	if _, err := writePlacements(ctx, tx, placements); err != nil {
		return err
	}
	return exec(ctx, tx, "record the import", `
		INSERT INTO price_imports (sha256, source, currency, valid_from, author, entries, added, changed, left_out)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)`,
		report.SHA256, opts.Source, opts.Currency, opts.ValidFrom, opts.Author, report.Entries, report.Added, report.Changed, len(report.LeftOut))
}
