package postgres

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"tollgate/billing"
)

//go:embed sql/usage.sql
var usageSQL string

//go:embed sql/split_hour.sql
var splitHourSQL string

// readUsage returns a tenant's usage in a period, in rows among which no price
// of the book changes. Whole hours come from the hour buckets; an hour that the
// period cuts is split by the times of the journal's events.
func readUsage(ctx context.Context, tx pgx.Tx, tenantID string, period billing.Period, book *billing.Book) ([]billing.Usage, error) {
	first := period.From.Add(time.Hour - 1).Truncate(time.Hour)
	last := period.To.Truncate(time.Hour)
	if last.Before(first) { // both boundaries within one hour
		return readPart(ctx, tx, tenantID, period.From, period.To)
	}
	edges := append([]time.Time{first}, book.Edges(first, last)...)
	rows, err := tx.Query(ctx, usageSQL, tenantID, first, last, edges)
	if err != nil {
		return nil, fmt.Errorf("read usage: %w", err)
	}
	usage, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (billing.Usage, error) {
		var u billing.Usage
		err := row.Scan(&u.Model, &u.From, &u.To, &u.Requests, &u.InputTokens, &u.OutputTokens,
			&u.CachedInputTokens, &u.ReasoningTokens, &u.ToolCalls, &u.Images, &u.AudioMillis, &u.GPUMillis)
		return u, err
	})
	if err != nil {
		return nil, fmt.Errorf("read usage: %w", err)
	}
	for _, part := range [][2]time.Time{{period.From, first}, {last, period.To}} {
		if part[0].Before(part[1]) {
			split, err := readPart(ctx, tx, tenantID, part[0], part[1])
			if err != nil {
				return nil, err
			}
			usage = append(usage, split...)
		}
	}
	return usage, nil
}

// readPart returns usage of [from, to), which lies within one hour.
func readPart(ctx context.Context, tx pgx.Tx, tenantID string, from, to time.Time) ([]billing.Usage, error) {
	hour := from.Truncate(time.Hour)
	rows, err := tx.Query(ctx, splitHourSQL, tenantID, hour, from, to)
	if err != nil {
		return nil, fmt.Errorf("split the hour %s: %w", hour.Format(time.RFC3339), err)
	}
	usage, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (billing.Usage, error) {
		u := billing.Usage{From: from, To: to}
		var agree bool
		err := row.Scan(&u.Model, &u.Requests, &u.InputTokens, &u.OutputTokens, &u.CachedInputTokens,
			&u.ReasoningTokens, &u.ToolCalls, &u.Images, &u.AudioMillis, &u.GPUMillis, &agree)
		if err == nil && !agree {
			err = fmt.Errorf("%w (model %q): verify the ledger", billing.ErrJournal, u.Model)
		}
		return u, err
	})
	if err != nil {
		return nil, fmt.Errorf("split the hour %s: %w", hour.Format(time.RFC3339), err)
	}
	return usage, nil
}
