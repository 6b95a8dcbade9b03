package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"tollgate/reconcile"
)

// window is a closed stretch of time in which meters are compared, in UTC.
type window struct {
	kind       string // "hour" or "day"
	start, end time.Time
}

// judgeDrift compares the meters of every closed hour and day in reach. Unless
// always is set it does so once an hour, in the first run after the hour's
// grace. Windows are judged only when ledger and meters are folded that far.
func (r *Reconciler) judgeDrift(ctx context.Context, conn *pgx.Conn, now time.Time, always bool, rep *Report) error {
	var judged *time.Time
	err := conn.QueryRow(ctx, `SELECT max(drift_through) FROM reconcile_runs WHERE drift_through IS NOT NULL`).Scan(&judged)
	if err != nil {
		return fmt.Errorf("read how far drift is judged: %w", err)
	}
	wanted := now.Add(-r.opts.Policy.WindowGrace).Truncate(time.Hour)
	if !always && judged != nil && !judged.Before(wanted) {
		return nil
	}
	asOf, err := foldedThrough(ctx, now, r.opts.Ledger, r.opts.Meters)
	if errors.Is(err, reconcile.ErrBehind) {
		rep.DriftSkipped = err.Error()
		return nil
	}
	if err != nil {
		rep.DriftSkipped = err.Error()
		return fmt.Errorf("how far ledger and meters are: %w", err)
	}
	through := asOf.Add(-r.opts.Policy.WindowGrace).Truncate(time.Hour)
	if !always && judged != nil && !judged.Before(through) {
		return nil // the log is not folded into the new hour yet
	}
	from := through.Add(-r.opts.Policy.Lookback)
	if judged != nil && judged.Before(from) {
		// The reconciler was away: what it missed is judged now, within bounds.
		from = judged.UTC().Add(-r.opts.Policy.Lookback)
	}
	if oldest := through.Add(-reconcile.MaxLookback); from.Before(oldest) {
		from = oldest
	}
	j := judging{r: r, conn: conn, now: now, rep: rep, budget: time.Now().Add(r.opts.RunTimeout / 4)}
	if !always {
		// Reports since the hour could first be judged are of an earlier run
		// that had no time to finish: this one goes on from there.
		j.skipSince = through.Add(r.opts.Policy.WindowGrace)
	}
	for _, w := range windows(from.Truncate(time.Hour), through) {
		if err := j.window(ctx, w); err != nil || rep.Partial {
			return err
		}
	}
	rep.DriftThrough = through
	return nil
}

// judging is one look at the windows.
type judging struct {
	r         *Reconciler
	conn      *pgx.Conn
	now       time.Time
	rep       *Report
	budget    time.Time // when to leave the rest to the next run
	skipSince time.Time // tenants whose report is as new are left out; zero: none
}

// windows lists the hours of [from, through), each complete day after its last
// hour. Days are whole only when all their hours have been judged, which those
// before from have been.
func windows(from, through time.Time) []window {
	var list []window
	for hour := from; hour.Before(through); hour = hour.Add(time.Hour) {
		end := hour.Add(time.Hour)
		list = append(list, window{"hour", hour, end})
		if end.Hour() == 0 {
			list = append(list, window{"day", end.Add(-24 * time.Hour), end})
		}
	}
	return list
}

// window judges every tenant that used or metered anything in it. A tenant that
// fails is noted and does not keep the others waiting.
func (j *judging) window(ctx context.Context, w window) error {
	active := `
		SELECT tenant_id FROM usage_hour WHERE hour = $1
		UNION SELECT tenant_id FROM meter_readings WHERE to_time > $1 AND to_time <= $2
		UNION SELECT tenant_id FROM drift_reports WHERE window_kind = 'hour' AND window_start = $1`
	if w.kind == "day" {
		active = `
			SELECT DISTINCT tenant_id FROM drift_reports
			WHERE window_kind = 'hour' AND window_start >= $1 AND window_start < $2`
	}
	var skipSince *time.Time // null compares with nothing
	if !j.skipSince.IsZero() {
		skipSince = &j.skipSince
	}
	rows, err := j.conn.Query(ctx, `
		SELECT tenant_id FROM (`+active+`) active
		WHERE NOT EXISTS (SELECT FROM drift_reports d WHERE d.tenant_id = active.tenant_id
		                  AND d.window_kind = $3 AND d.window_start = $1 AND d.judged_at >= $4)
		ORDER BY tenant_id`, w.start, w.end, w.kind, skipSince)
	if err != nil {
		return fmt.Errorf("list tenants of %s %s: %w", w.kind, w.start.Format(time.RFC3339), err)
	}
	tenants, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("list tenants of %s %s: %w", w.kind, w.start.Format(time.RFC3339), err)
	}
	for _, tenant := range tenants {
		if time.Now().After(j.budget) {
			j.rep.Partial = true
			return nil
		}
		if err := j.tenant(ctx, tenant, w); err != nil {
			if j.conn.IsClosed() || ctx.Err() != nil {
				return err
			}
			err = fmt.Errorf("tenant %s, %s %s: %w", tenant, w.kind, w.start.Format(time.RFC3339), err)
			j.rep.fail(err)
			j.r.log.Error("judging drift failed", "tenant", tenant, "error", err)
		}
	}
	return nil
}

// tenant writes the tenant's report and, on drift, the freeze and its event, in
// one transaction.
func (j *judging) tenant(ctx context.Context, tenant string, w window) error {
	rep, now, policy := j.rep, j.now, j.r.opts.Policy
	var verdict reconcile.Verdict
	var frozen *Freeze
	err := inTx(ctx, j.conn, func(tx pgx.Tx) error {
		read := hourFigures
		if w.kind == "day" {
			read = dayFigures
		}
		figures, err := read(ctx, tx, tenant, w)
		if err != nil {
			return err
		}
		difference := reconcile.Drift(figures, policy)
		overSince, err := overSince(ctx, tx, tenant, w, difference, now)
		if err != nil {
			return err
		}
		verdict = reconcile.Judge(difference, overSince, now, policy)
		if err := writeReport(ctx, tx, tenant, w, figures, difference, verdict, overSince, now); err != nil {
			return err
		}
		if verdict != reconcile.VerdictDrift {
			return nil
		}
		frozen, err = freezeFor(ctx, tx, tenant, w, figures, difference, now)
		return err
	})
	if err != nil {
		return err
	}
	rep.WindowsJudged++
	switch verdict {
	case reconcile.VerdictUnknown:
		rep.WindowsUnknown++
	case reconcile.VerdictSuspect:
		rep.WindowsSuspect++
	case reconcile.VerdictDrift:
		rep.WindowsDrift++
	case reconcile.VerdictOK:
	}
	if frozen != nil {
		rep.Frozen = append(rep.Frozen, tenant)
		j.r.log.Error("meters drift: automatic settlement is frozen", "tenant", tenant, "freeze", frozen.ID, "reason", frozen.Reason)
	}
	return nil
}

func hourFigures(ctx context.Context, tx pgx.Tx, tenant string, w window) (reconcile.Figures, error) {
	rows, err := tx.Query(ctx, figuresSQL, tenant, w.start, w.end)
	if err != nil {
		return reconcile.Figures{}, fmt.Errorf("read figures: %w", err)
	}
	models, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (reconcile.ModelFigures, error) {
		var m reconcile.ModelFigures
		err := row.Scan(&m.Model, &m.UsageTokens, &m.UsageGPU, &m.CohortTokens, &m.CohortGPU,
			&m.ReadTokens, &m.ReadGPU, &m.StrayTokens, &m.StrayGPU, &m.TokenReads, &m.GPUReads,
			&m.IntervalTokens, &m.IntervalGPU, &m.IntervalTokenReads, &m.IntervalGPUReads, &m.EstimatedTokens)
		return m, err
	})
	if err != nil {
		return reconcile.Figures{}, fmt.Errorf("read figures: %w", err)
	}
	return reconcile.Combine(models), nil
}

// dayFigures sums the day's hours, each with what could be compared in it.
func dayFigures(ctx context.Context, tx pgx.Tx, tenant string, w window) (reconcile.Figures, error) {
	var sum, hour reconcile.Figures
	rows, err := tx.Query(ctx, `
		SELECT gateway_tokens, model_tokens, model_known, gateway_gpu_ms, meter_gpu_ms, gpu_known, unmetered_tokens, estimated_tokens
		FROM drift_reports
		WHERE tenant_id = $1 AND window_kind = 'hour' AND window_start >= $2 AND window_start < $3`, tenant, w.start, w.end)
	if err != nil {
		return sum, fmt.Errorf("read the day's hours: %w", err)
	}
	_, err = pgx.ForEachRow(rows, []any{
		&hour.GatewayTokens, &hour.ModelTokens, &hour.ModelKnown,
		&hour.GatewayGPU, &hour.MeterGPU, &hour.GPUKnown, &hour.UnmeteredTokens, &hour.EstimatedTokens,
	}, func() error {
		if !hour.GPUKnown {
			hour.GatewayGPU, hour.MeterGPU = 0, 0
		}
		sum = sum.Add(hour)
		return nil
	})
	if err != nil {
		return sum, fmt.Errorf("read the day's hours: %w", err)
	}
	return sum, nil
}

// overSince is when the window was first seen over the threshold without a
// break; zero when it is not over.
func overSince(ctx context.Context, tx pgx.Tx, tenant string, w window, d reconcile.Difference, now time.Time) (time.Time, error) {
	if !d.Over {
		return time.Time{}, nil
	}
	var since *time.Time
	err := tx.QueryRow(ctx, `SELECT over_since FROM drift_reports WHERE tenant_id = $1 AND window_kind = $2 AND window_start = $3`,
		tenant, w.kind, w.start).Scan(&since)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return time.Time{}, fmt.Errorf("read the earlier report: %w", err)
	}
	if since == nil || since.After(now) {
		return now, nil
	}
	return since.UTC(), nil
}

func writeReport(ctx context.Context, tx pgx.Tx, tenant string, w window, f reconcile.Figures, d reconcile.Difference, verdict reconcile.Verdict, since, now time.Time) error {
	var over *time.Time
	if !since.IsZero() {
		over = &since
	}
	_, err := tx.Exec(ctx, `
		INSERT INTO drift_reports (tenant_id, window_kind, window_start, window_end, gateway_tokens, model_tokens, model_known,
		    gateway_gpu_ms, meter_gpu_ms, gpu_known, unmetered_tokens, tokens_ppm, gpu_ppm, verdict, over_since, judged_at,
		    estimated_tokens)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)
		ON CONFLICT (tenant_id, window_kind, window_start) DO UPDATE SET
		    window_end = excluded.window_end, gateway_tokens = excluded.gateway_tokens, model_tokens = excluded.model_tokens,
		    model_known = excluded.model_known, gateway_gpu_ms = excluded.gateway_gpu_ms, meter_gpu_ms = excluded.meter_gpu_ms,
		    gpu_known = excluded.gpu_known, unmetered_tokens = excluded.unmetered_tokens, tokens_ppm = excluded.tokens_ppm,
		    gpu_ppm = excluded.gpu_ppm, verdict = excluded.verdict, over_since = excluded.over_since, judged_at = excluded.judged_at,
		    estimated_tokens = excluded.estimated_tokens`,
		tenant, w.kind, w.start, w.end, f.GatewayTokens, f.ModelTokens, f.ModelKnown,
		f.GatewayGPU, f.MeterGPU, f.GPUKnown, f.UnmeteredTokens, d.TokensPPM, d.GPUPPM, string(verdict), over, now, f.EstimatedTokens)
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}

// freezeFor freezes the tenant unless it is frozen, or the window had begun
// when an operator last unfroze it: what was off until then was looked at.
func freezeFor(ctx context.Context, tx pgx.Tx, tenant string, w window, f reconcile.Figures, d reconcile.Difference, now time.Time) (*Freeze, error) {
	var settled bool
	err := tx.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM settlement_freezes
		               WHERE tenant_id = $1 AND (unfrozen_at IS NULL OR unfrozen_at > $2))`, tenant, w.start).Scan(&settled)
	if err != nil {
		return nil, fmt.Errorf("look for a freeze: %w", err)
	}
	if settled {
		return nil, nil
	}
	frozen := &Freeze{
		TenantID: tenant, WindowKind: w.kind, WindowStart: w.start, WindowEnd: w.end,
		GatewayTokens: f.GatewayTokens, ModelTokens: f.ModelTokens, GatewayGPU: f.GatewayGPU, MeterGPU: f.MeterGPU,
		TokensPPM: d.TokensPPM, GPUPPM: d.GPUPPM, Author: reconcile.Author, FrozenAt: now,
		Reason: fmt.Sprintf("drift in the %s of %s: gateway %d tokens, model meter %d (%d ppm); gateway %d gpu_ms, GPU meter %d (%d ppm)",
			w.kind, w.start.Format(time.RFC3339), f.GatewayTokens, f.ModelTokens, d.TokensPPM, f.GatewayGPU, f.MeterGPU, d.GPUPPM),
	}
	err = freeze(ctx, tx, frozen)
	if errors.Is(err, reconcile.ErrFrozen) {
		return nil, nil // an operator was faster
	}
	if err != nil {
		return nil, err
	}
	return frozen, nil
}
