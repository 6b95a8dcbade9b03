package postgres

import (
	"context"
	"errors"
	"fmt"
	"strconv"
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

const amountColumns = "ARRAY[requests, input_tokens, output_tokens, cached_input_tokens, reasoning_tokens, tool_calls, images, audio_ms, gpu_ms, milli_units]::text[]"

const amountSums = "ARRAY[sum(requests), sum(input_tokens), sum(output_tokens), sum(cached_input_tokens), " +
	"sum(reasoning_tokens), sum(tool_calls), sum(images), sum(audio_ms), sum(gpu_ms), sum(milli_units)]::text[]"

// Usage30d returns a tenant's rolling use; zeros for a tenant without any. The
// two halves are of one moment. A figure beyond an int64's range is its end.
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
	var v []*string
	_, err = pgx.ForEachRow(rows, []any{&part, &start, &closed, &v}, func() error {
		if start != nil {
			u.Window = ledger.Window{Start: start.UTC(), ClosedThrough: closed.UTC()}
		}
		if part == 1 {
			return saturate(&u.Open, v)
		}
		return saturate(&u.Closed, v)
	})
	if err != nil {
		return u, fmt.Errorf("rolling use of a tenant: %w", err)
	}
	u.Total = u.Closed
	u.Total.Add(u.Open)
	return u, nil
}

// saturate reads sums that may be beyond an int64's range: those become its end.
// What is null stays as it is.
func saturate(a *ledger.Amount, sums []*string) error {
	for i, field := range fields(a) {
		if i >= len(sums) || sums[i] == nil {
			continue
		}
		n, err := strconv.ParseInt(*sums[i], 10, 64)
		if err != nil && !errors.Is(err, strconv.ErrRange) {
			return fmt.Errorf("%s: %w", amountNames[i], err)
		}
		*field = n
	}
	return nil
}
