package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"tollgate/reconcile"
)

// Status is where reconciliation stands.
type Status struct {
	At            time.Time     `json:"at"`
	LastRun       *Run          `json:"last_run"` // null before the first
	DriftThrough  time.Time     `json:"drift_through,omitzero"`
	Pending       int64         `json:"pending"`                 // holds past their TTL and grace
	OldestPending time.Time     `json:"oldest_pending,omitzero"` // end of its TTL
	Overdue       int64         `json:"overdue"`                 // of these, past their deadline: of frozen tenants, or failing
	Queued        int64         `json:"queued"`                  // settlements that wait
	Failing       int64         `json:"failing"`                 // of these, tried at least once
	FrozenTenants int64         `json:"frozen_tenants"`
	Frozen        []Freeze      `json:"frozen"`      // the newest of them
	Unpublished   int64         `json:"unpublished"` // events that the log has not acknowledged
	Conflicts     int64         `json:"meter_conflicts"`
	Over          []DriftReport `json:"over"` // newest windows over the threshold
}

// Run is one run of a leader. EndedAt is zero while it runs or where it broke off.
type Run struct {
	ID        int64           `json:"id"`
	Leader    string          `json:"leader"`
	StartedAt time.Time       `json:"started_at"`
	EndedAt   time.Time       `json:"ended_at,omitzero"`
	Report    json.RawMessage `json:"report"`
}

// DriftReport is the comparison of one tenant and window.
type DriftReport struct {
	TenantID string    `json:"tenant_id"`
	Kind     string    `json:"window_kind"`
	Start    time.Time `json:"window_start"`
	End      time.Time `json:"window_end"`
	reconcile.Figures
	TokensPPM int64             `json:"tokens_ppm"`
	GPUPPM    int64             `json:"gpu_ppm"`
	Verdict   reconcile.Verdict `json:"verdict"`
	OverSince time.Time         `json:"over_since,omitzero"`
	JudgedAt  time.Time         `json:"judged_at"`
}

// maxListed bounds the lists in a Status.
const maxListed = 100

// Status reads where reconciliation stands. It needs no leader.
func (r *Reconciler) Status(ctx context.Context) (Status, error) {
	return r.status(ctx, r.pool, r.now())
}

func (r *Reconciler) status(ctx context.Context, q querier, now time.Time) (Status, error) {
	s := Status{At: now}
	var oldest, through *time.Time
	p := r.opts.Policy
	err := q.QueryRow(ctx, `
		SELECT p.pending, p.oldest, p.overdue,
		       (SELECT count(*) FROM automatic_settlements WHERE applied_at IS NULL),
		       (SELECT count(*) FROM automatic_settlements WHERE applied_at IS NULL AND attempts > 0),
		       (SELECT count(*) FROM reconcile_outbox WHERE published_at IS NULL),
		       (SELECT count(*) FROM meter_conflicts),
		       (SELECT count(*) FROM settlement_freezes WHERE unfrozen_at IS NULL),
		       (SELECT max(drift_through) FROM reconcile_runs WHERE drift_through IS NOT NULL)
		FROM (SELECT count(*) AS pending, min(expires_at) AS oldest, count(*) FILTER (WHERE expires_at <= $2) AS overdue
		      FROM reservations WHERE state IN ('held', 'expired') AND expires_at <= $1) p`,
		now.Add(-p.HoldGrace), now.Add(-p.PendingDeadline)).Scan(
		&s.Pending, &oldest, &s.Overdue, &s.Queued, &s.Failing, &s.Unpublished, &s.Conflicts, &s.FrozenTenants, &through)
	if err != nil {
		return s, fmt.Errorf("read the reconciler's status: %w", err)
	}
	if oldest != nil {
		s.OldestPending = oldest.UTC()
	}
	if through != nil {
		s.DriftThrough = through.UTC()
	}
	if s.LastRun, err = lastRun(ctx, q); err != nil {
		return s, err
	}
	if s.Frozen, err = listFreezes(ctx, q, FreezeFilter{Active: true, Limit: maxListed}); err != nil {
		return s, err
	}
	s.Over, err = listReports(ctx, q, ReportFilter{OverOnly: true, Since: now.Add(-p.Lookback - 24*time.Hour), Limit: maxListed})
	return s, err
}

func lastRun(ctx context.Context, q querier) (*Run, error) {
	var run Run
	var ended *time.Time
	err := q.QueryRow(ctx, `SELECT run_id, leader, started_at, ended_at, report FROM reconcile_runs ORDER BY run_id DESC LIMIT 1`).
		Scan(&run.ID, &run.Leader, &run.StartedAt, &ended, &run.Report)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the last run: %w", err)
	}
	run.StartedAt = run.StartedAt.UTC()
	if ended != nil {
		run.EndedAt = ended.UTC()
	}
	return &run, nil
}

// ReportFilter narrows a list of drift reports.
type ReportFilter struct {
	TenantID string    // empty: of all tenants
	OverOnly bool      // only windows over the threshold
	Since    time.Time // windows that start at or after it
	Limit    int       // 0 takes 100
}

// DriftReports returns comparisons, the newest window first.
func (r *Reconciler) DriftReports(ctx context.Context, filter ReportFilter) ([]DriftReport, error) {
	return listReports(ctx, r.pool, filter)
}

func listReports(ctx context.Context, q querier, filter ReportFilter) ([]DriftReport, error) {
	if filter.Limit <= 0 {
		filter.Limit = maxListed
	}
	rows, err := q.Query(ctx, `
		SELECT tenant_id, window_kind, window_start, window_end, gateway_tokens, model_tokens, model_known,
		       gateway_gpu_ms, meter_gpu_ms, gpu_known, unmetered_tokens, estimated_tokens, tokens_ppm, gpu_ppm, verdict, over_since, judged_at
		FROM drift_reports
		WHERE ($1 = '' OR tenant_id = $1) AND (NOT $2 OR over_since IS NOT NULL) AND window_start >= $3
		ORDER BY window_start DESC, window_kind, tenant_id LIMIT $4`,
		filter.TenantID, filter.OverOnly, filter.Since, filter.Limit)
	if err != nil {
		return nil, fmt.Errorf("list drift reports: %w", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (DriftReport, error) {
		var d DriftReport
		var since *time.Time
		err := row.Scan(&d.TenantID, &d.Kind, &d.Start, &d.End, &d.GatewayTokens, &d.ModelTokens, &d.ModelKnown,
			&d.GatewayGPU, &d.MeterGPU, &d.GPUKnown, &d.UnmeteredTokens, &d.EstimatedTokens, &d.TokensPPM, &d.GPUPPM, &d.Verdict, &since, &d.JudgedAt)
		d.Start, d.End, d.JudgedAt = d.Start.UTC(), d.End.UTC(), d.JudgedAt.UTC()
		if since != nil {
			d.OverSince = since.UTC()
		}
		return d, err
	})
	if err != nil {
		return nil, fmt.Errorf("list drift reports: %w", err)
	}
	return list, nil
}
