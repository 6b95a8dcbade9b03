package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"tollgate/ledger"
)

// Usage30d is a tenant's rolling use: 719 closed hours and what is open.
type Usage30d struct {
	Window ledger.Window `json:"window"`
	Closed ledger.Amount `json:"closed"`
	Open   ledger.Amount `json:"open"`
	Total  ledger.Amount `json:"total"`
}

const amountColumns = "requests, input_tokens, output_tokens, cached_input_tokens, reasoning_tokens, tool_calls, images, audio_ms, gpu_ms, milli_units"

const amountSums = "sum(requests)::bigint, sum(input_tokens)::bigint, sum(output_tokens)::bigint, sum(cached_input_tokens)::bigint, " +
	"sum(reasoning_tokens)::bigint, sum(tool_calls)::bigint, sum(images)::bigint, sum(audio_ms)::bigint, sum(gpu_ms)::bigint, sum(milli_units)::bigint"

// Usage30d returns a tenant's rolling use; zeros for a tenant without any. The
// two halves are of one moment.
func (s *Store) Usage30d(ctx context.Context, tenantID string) (Usage30d, error) {
	var u Usage30d
	rows, err := s.pool.Query(ctx, `
		WITH w AS (SELECT window_start, closed_through FROM usage_window)
		SELECT 0, (SELECT window_start FROM w), (SELECT closed_through FROM w), `+amountColumns+`
			FROM usage_30d WHERE tenant_id = $1
		UNION ALL
		SELECT 1, (SELECT window_start FROM w), (SELECT closed_through FROM w), `+amountSums+`
			FROM usage_hour WHERE tenant_id = $1
			AND hour >= coalesce((SELECT closed_through FROM w), '-infinity')`, tenantID)
	if err != nil {
		return u, fmt.Errorf("rolling use of a tenant: %w", err)
	}
	var part int
	var start, closed *time.Time
	var v [10]*int64
	targets := []any{&part, &start, &closed}
	for i := range v {
		targets = append(targets, &v[i])
	}
	_, err = pgx.ForEachRow(rows, targets, func() error {
		if start != nil {
			u.Window = ledger.Window{Start: start.UTC(), ClosedThrough: closed.UTC()}
		}
		a := &u.Closed
		if part == 1 {
			a = &u.Open
		}
		for i, f := range fields(a) {
			if v[i] != nil {
				*f = *v[i]
			}
		}
		return nil
	})
	if err != nil {
		return u, fmt.Errorf("rolling use of a tenant: %w", err)
	}
	u.Total = u.Closed
	u.Total.Add(u.Open)
	return u, nil
}
