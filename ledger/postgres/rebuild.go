package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"tollgate/events"
)

// UsageRow is use of one tenant by key, endpoint and model, in the hour or the
// second that At begins.
type UsageRow struct {
	At         time.Time
	KeyID      string
	Endpoint   string
	Model      string
	Requests   int64
	MilliUnits int64
	events.Usage
}

// UsageByHour returns the hour buckets of a tenant from an hour on.
func (s *Store) UsageByHour(ctx context.Context, tenantID string, from time.Time) ([]UsageRow, error) {
	rows, err := s.pool.Query(ctx, `
		SELECT hour, key_id, endpoint, model, requests, milli_units, input_tokens, output_tokens,
		       cached_input_tokens, reasoning_tokens, tool_calls, images, audio_ms, gpu_ms
		FROM usage_hour WHERE tenant_id = $1 AND hour >= $2`, tenantID, from)
	return collectUsage(rows, err)
}

// UsageBySecond returns a tenant's use since from, summed by second, from the
// journal. It is for short spans: windows of minutes, and the part of an hour.
func (s *Store) UsageBySecond(ctx context.Context, tenantID string, from time.Time) ([]UsageRow, error) {
	// The day is the event id's, which may differ from the event's own by the
	// clock of one script call; a day more on either side finds all.
	rows, err := s.pool.Query(ctx, `
		SELECT date_trunc('second', event_time), key_id, endpoint, model,
		       count(*) FILTER (WHERE state IN ('settled', 'cancelled') AND NOT tombstone
		                          AND type IN ('tollgate.reservation.settled.v1', 'tollgate.reservation.cancelled.v1')),
		       `+saturated("milli_units")+`, `+saturated("input_tokens")+`, `+saturated("output_tokens")+`,
		       `+saturated("cached_input_tokens")+`, `+saturated("reasoning_tokens")+`, `+saturated("tool_calls")+`,
		       `+saturated("images")+`, `+saturated("audio_ms")+`, `+saturated("gpu_ms")+`
		FROM journal
		WHERE tenant_id = $1 AND event_time >= $2 AND day >= ($2 AT TIME ZONE 'UTC')::date - 1
		GROUP BY 1, 2, 3, 4`, tenantID, from)
	return collectUsage(rows, err)
}

// saturated sums a column to a bigint; a sum beyond its range is the range's end.
func saturated(column string) string {
	return "greatest(least(sum(" + column + "), 9223372036854775807), -9223372036854775808)::bigint"
}

func collectUsage(rows pgx.Rows, err error) ([]UsageRow, error) {
	if err != nil {
		return nil, fmt.Errorf("read usage: %w", err)
	}
	usage, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (UsageRow, error) {
		var u UsageRow
		err := row.Scan(&u.At, &u.KeyID, &u.Endpoint, &u.Model, &u.Requests, &u.MilliUnits, &u.InputTokens, &u.OutputTokens,
			&u.CachedInputTokens, &u.ReasoningTokens, &u.ToolCalls, &u.Images, &u.AudioMillis, &u.GPUMillis)
		u.At = u.At.UTC()
		return u, err
	})
	if err != nil {
		return nil, fmt.Errorf("read usage: %w", err)
	}
	return usage, nil
}

// RecentReservations returns a tenant's reservations as their latest event left
// them: all that are open, and those that ended after endedSince, the newest
// first, at most limit of the latter.
func (s *Store) RecentReservations(ctx context.Context, tenantID string, endedSince time.Time, limit int) ([]events.Reservation, error) {
	rows, err := s.pool.Query(ctx, `
		WITH open AS (
			SELECT * FROM reservations WHERE tenant_id = $1 AND state IN ('held', 'expired')
		), ended AS (
			SELECT * FROM reservations
			WHERE tenant_id = $1 AND state IN ('settled', 'cancelled') AND last_event_at >= $2
			ORDER BY last_event_at DESC LIMIT $3
		)
		SELECT reservation_id, tenant_id, request_id, key_id, endpoint, model, seq, state, weight_milli, held_milli_units,
		       input_tokens, output_tokens, cached_input_tokens, reasoning_tokens, tool_calls, images, audio_ms, gpu_ms,
		       milli_units, estimated, expires_at
		FROM (TABLE open UNION ALL TABLE ended) recent`, tenantID, endedSince, limit)
	if err != nil {
		return nil, fmt.Errorf("read reservations: %w", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (events.Reservation, error) {
		var r events.Reservation
		t := &r.Total
		err := row.Scan(&r.ReservationID, &r.TenantID, &r.RequestID, &r.KeyID, &r.Endpoint, &r.Model, &r.Seq, &r.State, &r.WeightMilli,
			&r.HeldMilliUnits, &t.InputTokens, &t.OutputTokens, &t.CachedInputTokens, &t.ReasoningTokens, &t.ToolCalls, &t.Images,
			&t.AudioMillis, &t.GPUMillis, &r.TotalMilliUnits, &r.Estimated, &r.ExpiresAt)
		r.ExpiresAt = r.ExpiresAt.UTC()
		return r, err
	})
	if err != nil {
		return nil, fmt.Errorf("read reservations: %w", err)
	}
	return list, nil
}
