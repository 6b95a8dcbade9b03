package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"tollgate/billing"
)

// holdPrices keeps other writers of prices, and bills that are being closed,
// out until the transaction ends.
const holdPrices = `LOCK TABLE prices IN SHARE ROW EXCLUSIVE MODE`

// SetPrice adds a version of a price from p.From. The version in force until
// then ends; one that begins at the same hour is withdrawn. A version with an
// end of its own (p.To) interrupts the one before, which then resumes. Setting
// the price that is already in force changes nothing and returns it.
//
// It returns ErrClosedPeriod where the version would hold in time that is on a
// closed bill of the tenant or, for a list price, of anyone.
func (s *Store) SetPrice(ctx context.Context, p billing.Price) (billing.Price, error) {
	p.From, p.To = p.From.UTC(), utcOrZero(p.To)
	if err := p.Validate(); err != nil {
		return billing.Price{}, err
	}
	if p.Author == "" {
		return billing.Price{}, fmt.Errorf("%w: a price needs an author", billing.ErrInvalid)
	}
	var placed billing.Placement
	err := s.transact(ctx, plainWrite, func(tx pgx.Tx) error {
		if err := exec(ctx, tx, "lock the price book", holdPrices); err != nil {
			return err
		}
		versions, err := queryPrices(ctx, tx,
			`WHERE withdrawn_at IS NULL AND s.tenant_id = $1 AND s.model = $2 AND s.region = $3 AND s.meter = $4 AND s.currency = $5`,
			p.TenantID, p.Model, p.Region, p.Meter, p.Currency)
		if err != nil {
			return err
		}
		if placed, err = billing.Place(versions, p); err != nil || placed.Unchanged {
			return err
		}
		ids, err := writePlacements(ctx, tx, []billing.Placement{placed})
		if err != nil {
			return err
		}
		placed.Price.ID = ids[0]
		return nil
	})
	if err != nil {
		return billing.Price{}, fmt.Errorf("set price: %w", err)
	}
	return placed.Price, nil
}

// PriceFilter selects prices to list. Empty fields select all.
type PriceFilter struct {
	TenantID  *string // &"" selects list prices
	Model     string
	Meter     billing.Meter
	At        time.Time // versions in force then; zero: all times
	Withdrawn bool      // include withdrawn versions
	Limit     int       // 0: all
}

// ListPrices returns versions ordered by tenant, model, region, meter, currency
// and time.
func (s *Store) ListPrices(ctx context.Context, f PriceFilter) ([]billing.Price, error) {
	var at *time.Time
	if !f.At.IsZero() {
		at = &f.At
	}
	var limit *int
	if f.Limit > 0 {
		limit = &f.Limit
	}
	return queryPrices(ctx, s.pool, `
		WHERE ($1::text IS NULL OR s.tenant_id = $1) AND ($2 = '' OR s.model = $2) AND ($3 = '' OR s.meter = $3)
			AND ($4::timestamptz IS NULL OR (valid_from <= $4 AND (valid_to IS NULL OR valid_to > $4)))
			AND ($5 OR withdrawn_at IS NULL)
		ORDER BY s.tenant_id, s.model, s.region, s.meter, s.currency, valid_from, price_id LIMIT $6`,
		f.TenantID, f.Model, string(f.Meter), at, f.Withdrawn, limit)
}

// querier is a pool or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

func queryPrices(ctx context.Context, q querier, where string, args ...any) ([]billing.Price, error) {
	rows, err := q.Query(ctx, `
		SELECT price_id, s.tenant_id, s.model, s.region, s.meter, s.currency, valid_from, valid_to,
			pricing_model, unit_size, amount::text, tiers::text, source, author, created_at, withdrawn_at
		FROM prices p JOIN price_series s USING (series_id) `+where, args...)
	if err != nil {
		return nil, fmt.Errorf("read prices: %w", err)
	}
	prices, err := pgx.CollectRows(rows, scanPrice)
	if err != nil {
		return nil, fmt.Errorf("read prices: %w", err)
	}
	return prices, nil
}

func scanPrice(row pgx.CollectableRow) (billing.Price, error) {
	var p billing.Price
	var to, withdrawn *time.Time
	var amount, tiers string
	err := row.Scan(&p.ID, &p.TenantID, &p.Model, &p.Region, &p.Meter, &p.Currency, &p.From, &to,
		&p.Pricing, &p.UnitSize, &amount, &tiers, &p.Source, &p.Author, &p.CreatedAt, &withdrawn)
	if err != nil {
		return p, err
	}
	p.From, p.CreatedAt = p.From.UTC(), p.CreatedAt.UTC()
	if to != nil {
		p.To = to.UTC()
	}
	if withdrawn != nil {
		p.WithdrawnAt = withdrawn.UTC()
	}
	if p.Amount, err = billing.ParseAmount(amount); err != nil {
		return p, fmt.Errorf("price %d: %w", p.ID, err)
	}
	if tiers != "[]" {
		if p.Tiers, err = billing.ParseTiers([]byte(tiers)); err != nil {
			return p, fmt.Errorf("price %d: %w", p.ID, err)
		}
	}
	return p, nil
}

// writePlacements writes new versions under the price book's lock and returns
// their ids, in order.
func writePlacements(ctx context.Context, tx pgx.Tx, placements []billing.Placement) ([]int64, error) {
	if err := checkClosed(ctx, tx, placements); err != nil {
		return nil, err
	}
	var endIDs, withdrawIDs []int64
	var endAts []time.Time
	var inserts, resumes []billing.Price
	for _, p := range placements {
		if p.EndID != 0 {
			endIDs, endAts = append(endIDs, p.EndID), append(endAts, p.EndAt)
		}
		if p.WithdrawID != 0 {
			withdrawIDs = append(withdrawIDs, p.WithdrawID)
		}
		if p.Resume != nil {
			resumes = append(resumes, *p.Resume)
		}
		inserts = append(inserts, p.Price)
	}
	err := exec(ctx, tx, "end prices", `
		UPDATE prices SET valid_to = e.at FROM unnest($1::bigint[], $2::timestamptz[]) AS e (id, at) WHERE price_id = e.id`, endIDs, endAts)
	if err != nil {
		return nil, err
	}
	if err := exec(ctx, tx, "withdraw prices", `UPDATE prices SET withdrawn_at = now() WHERE price_id = ANY ($1)`, withdrawIDs); err != nil {
		return nil, err
	}
	ids, err := insertPrices(ctx, tx, inserts)
	if err != nil {
		return nil, err
	}
	if _, err := insertPrices(ctx, tx, resumes); err != nil {
		return nil, err
	}
	return ids, nil
}

// checkClosed refuses versions that hold in closed time. Under the price book's
// lock no bill is being closed, so what is seen here is all there is.
func checkClosed(ctx context.Context, tx pgx.Tx, placements []billing.Placement) error {
	type span struct {
		tenant, currency string
	}
	from, open := map[span]time.Time{}, map[span]time.Time{}
	for _, p := range placements {
		key := span{p.Price.TenantID, p.Price.Currency}
		if f, ok := from[key]; !ok || p.Price.From.Before(f) {
			from[key] = p.Price.From
		}
		end := p.Price.To
		if end.IsZero() {
			end = time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)
		}
		if end.After(open[key]) {
			open[key] = end
		}
	}
	for key, start := range from {
		var closedTo *time.Time
		err := tx.QueryRow(ctx, `
			SELECT max(period_to) FROM bills
			WHERE ($1 = '' OR tenant_id = $1) AND currency = $2 AND period_to > $3 AND period_from < $4`,
			key.tenant, key.currency, start, open[key]).Scan(&closedTo)
		if err != nil {
			return fmt.Errorf("look for closed bills: %w", err)
		}
		if closedTo != nil {
			hour := closedTo.UTC().Add(time.Hour - 1).Truncate(time.Hour)
			return fmt.Errorf("%w: let the price begin at %s or later", billing.ErrClosedPeriod, hour.Format(time.RFC3339))
		}
	}
	return nil
}

func insertPrices(ctx context.Context, tx pgx.Tx, prices []billing.Price) ([]int64, error) {
	if len(prices) == 0 {
		return nil, nil
	}
	series, err := seriesOf(ctx, tx, prices)
	if err != nil {
		return nil, err
	}
	n := len(prices)
	ids, units := make([]int32, n), make([]int64, n)
	froms, tos := make([]time.Time, n), make([]*time.Time, n)
	pricings, amounts, tiers, sources, authors := make([]string, n), make([]string, n), make([]string, n), make([]string, n), make([]string, n)
	for i, p := range prices {
		ids[i], units[i], froms[i] = series[keyOf(p)], p.UnitSize, p.From
		pricings[i], amounts[i], sources[i], authors[i] = string(p.Pricing), p.Amount.String(), p.Source, p.Author
		if !p.To.IsZero() {
			tos[i] = &p.To
		}
		if tiers[i], err = encodeTiers(p.Tiers); err != nil {
			return nil, err
		}
	}
	rows, err := tx.Query(ctx, `
		INSERT INTO prices (series_id, valid_from, valid_to, pricing_model, unit_size, amount, tiers, source, author)
		SELECT v.series_id, v.valid_from, v.valid_to, v.pricing, v.unit_size, v.amount::numeric, v.tiers::jsonb, v.source, v.author
		FROM unnest($1::integer[], $2::timestamptz[], $3::timestamptz[], $4::text[], $5::bigint[], $6::text[], $7::text[], $8::text[], $9::text[])
			WITH ORDINALITY AS v (series_id, valid_from, valid_to, pricing, unit_size, amount, tiers, source, author, place)
		ORDER BY v.place
		RETURNING price_id`,
		ids, froms, tos, pricings, units, amounts, tiers, sources, authors)
	if err != nil {
		return nil, fmt.Errorf("insert prices: %w", err)
	}
	written, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return nil, fmt.Errorf("insert prices: %w", err)
	}
	if len(written) != n {
		return nil, fmt.Errorf("insert prices: %d of %d were written", len(written), n)
	}
	return written, nil
}

// seriesKey is what a series of versions is for.
type seriesKey struct {
	tenantID, model, region, meter, currency string
}

func keyOf(p billing.Price) seriesKey {
	return seriesKey{p.TenantID, p.Model, p.Region, string(p.Meter), p.Currency}
}

// seriesOf makes the series that are missing and returns the ids. They are
// looked up here rather than joined to the insert, because the planner knows
// nothing of a table that this transaction has just filled.
func seriesOf(ctx context.Context, tx pgx.Tx, prices []billing.Price) (map[seriesKey]int32, error) {
	n := len(prices)
	tenants, models, regions, meters, currencies := make([]string, n), make([]string, n), make([]string, n), make([]string, n), make([]string, n)
	for i, p := range prices {
		k := keyOf(p)
		tenants[i], models[i], regions[i], meters[i], currencies[i] = k.tenantID, k.model, k.region, k.meter, k.currency
	}
	err := exec(ctx, tx, "insert price series", `
		INSERT INTO price_series (tenant_id, model, region, meter, currency)
		SELECT DISTINCT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[])
		ON CONFLICT DO NOTHING`, tenants, models, regions, meters, currencies)
	if err != nil {
		return nil, err
	}
	rows, err := tx.Query(ctx, `SELECT series_id, tenant_id, model, region, meter, currency FROM price_series WHERE model = ANY ($1)`, models)
	if err != nil {
		return nil, fmt.Errorf("read price series: %w", err)
	}
	series := map[seriesKey]int32{}
	var id int32
	var k seriesKey
	_, err = pgx.ForEachRow(rows, []any{&id, &k.tenantID, &k.model, &k.region, &k.meter, &k.currency}, func() error {
		series[k] = id
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read price series: %w", err)
	}
	return series, nil
}

// encodeTiers writes amounts as strings, so that no reader makes floats of
// them.
func encodeTiers(tiers []billing.Tier) (string, error) {
	if len(tiers) == 0 {
		return "[]", nil
	}
	encoded, err := json.Marshal(tiers)
	if err != nil {
		return "", fmt.Errorf("encode tiers: %w", err)
	}
	return string(encoded), nil
}

func utcOrZero(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return t.UTC()
}
