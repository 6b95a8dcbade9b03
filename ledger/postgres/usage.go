package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"tollgate/events"
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

// HourUsage is one exact bucket.
type HourUsage struct {
	TenantID string        `json:"tenant_id"`
	Hour     time.Time     `json:"hour"`
	Model    string        `json:"model"`
	Endpoint string        `json:"endpoint"`
	KeyID    string        `json:"key_id"`
	Amount   ledger.Amount `json:"amount"`
}

// UsageHours returns a tenant's buckets with hours in [from, to), in order.
func (s *Store) UsageHours(ctx context.Context, tenantID string, from, to time.Time) ([]HourUsage, error) {
	return s.usageHours(ctx, "tenant_id = $1 AND hour >= $2 AND hour < $3", tenantID, from, to)
}

// UsageByHourForRebuild returns the buckets of tenants since an hour, in order
// of tenant and hour: what an emptied admission state is rebuilt from. No
// tenants means all.
func (s *Store) UsageByHourForRebuild(ctx context.Context, tenants []string, since time.Time) ([]HourUsage, error) {
	if len(tenants) == 0 {
		return s.usageHours(ctx, "hour >= $1", since)
	}
	return s.usageHours(ctx, "tenant_id = ANY($1) AND hour >= $2", tenants, since)
}

func (s *Store) usageHours(ctx context.Context, where string, args ...any) ([]HourUsage, error) {
	rows, err := s.pool.Query(ctx, "SELECT tenant_id, hour, model, endpoint, key_id, "+amountColumns+
		" FROM usage_hour WHERE "+where+" ORDER BY tenant_id, hour, model, endpoint, key_id", args...)
	if err != nil {
		return nil, fmt.Errorf("use by hour: %w", err)
	}
	out, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (HourUsage, error) {
		var u HourUsage
		targets := []any{&u.TenantID, &u.Hour, &u.Model, &u.Endpoint, &u.KeyID}
		for _, f := range fields(&u.Amount) {
			targets = append(targets, f)
		}
		err := row.Scan(targets...)
		u.Hour = u.Hour.UTC()
		return u, err
	})
	if err != nil {
		return nil, fmt.Errorf("use by hour: %w", err)
	}
	return out, nil
}

// OpenReservation is a reservation that has not ended: held, or expired and
// pending reconciliation.
type OpenReservation struct {
	ReservationID  string       `json:"reservation_id"`
	TenantID       string       `json:"tenant_id"`
	RequestID      string       `json:"request_id"`
	KeyID          string       `json:"key_id"`
	Endpoint       string       `json:"endpoint"`
	Model          string       `json:"model"`
	Seq            int64        `json:"seq"`
	State          events.State `json:"state"`
	WeightMilli    int64        `json:"weight_milli"`
	HeldMilliUnits int64        `json:"held_milli_units"`
	Total          events.Usage `json:"total"`
	MilliUnits     int64        `json:"milli_units"`
	Estimated      bool         `json:"estimated"`
	CreatedAt      time.Time    `json:"created_at"` // time of its first event
	LastEventAt    time.Time    `json:"last_event_at"`
	ExpiresAt      time.Time    `json:"expires_at"`
}

// OpenReservations returns reservations that have not ended, in order of id,
// those after the given one, at most limit (0: all). No tenants means all.
func (s *Store) OpenReservations(ctx context.Context, tenants []string, after string, limit int) ([]OpenReservation, error) {
	rows, err := s.pool.Query(ctx, `
		SELECT reservation_id, tenant_id, request_id, key_id, endpoint, model, seq, state, weight_milli, held_milli_units,
			input_tokens, output_tokens, cached_input_tokens, reasoning_tokens, tool_calls, images, audio_ms, gpu_ms, milli_units,
			estimated, first_event_at, last_event_at, expires_at
		FROM reservations
		WHERE state IN ('held', 'expired') AND reservation_id > $2 AND (cardinality($1::text[]) = 0 OR tenant_id = ANY($1))
		ORDER BY reservation_id LIMIT nullif($3, 0)`, append([]string{}, tenants...), after, limit)
	if err != nil {
		return nil, fmt.Errorf("open reservations: %w", err)
	}
	out, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (OpenReservation, error) {
		var o OpenReservation
		u := &o.Total
		err := row.Scan(&o.ReservationID, &o.TenantID, &o.RequestID, &o.KeyID, &o.Endpoint, &o.Model, &o.Seq, &o.State,
			&o.WeightMilli, &o.HeldMilliUnits, &u.InputTokens, &u.OutputTokens, &u.CachedInputTokens, &u.ReasoningTokens,
			&u.ToolCalls, &u.Images, &u.AudioMillis, &u.GPUMillis, &o.MilliUnits,
			&o.Estimated, &o.CreatedAt, &o.LastEventAt, &o.ExpiresAt)
		o.CreatedAt, o.LastEventAt, o.ExpiresAt = o.CreatedAt.UTC(), o.LastEventAt.UTC(), o.ExpiresAt.UTC()
		return o, err
	})
	if err != nil {
		return nil, fmt.Errorf("open reservations: %w", err)
	}
	return out, nil
}
