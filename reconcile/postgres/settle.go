package postgres

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"tollgate/events"
	"tollgate/reconcile"
)

// tenantPatience is how many settlements of a tenant may fail in a row before
// the run leaves the tenant for the next one.
const tenantPatience = 3

// What became of a settlement, as the outcome column says it.
const (
	outcomeApplied     = "applied"
	outcomeFinal       = "already_final"
	outcomeClosedInLog = "closed_in_log"
)

// waiting is a queued settlement.
type waiting struct {
	reservationID string
	action        reconcile.ActionKind
	total         events.Usage
	estimated     bool
	reason        string
	queuedAt      time.Time
}

// applyWaiting asks admission for every queued settlement of tenants that are
// not frozen, a page of each tenant in turn. What fails stays queued. It stops
// early when admission is out of reach.
func (r *Reconciler) applyWaiting(ctx context.Context, conn *pgx.Conn, now time.Time, rep *Report) error {
	rows, err := conn.Query(ctx, `
		SELECT DISTINCT tenant_id FROM automatic_settlements q
		WHERE applied_at IS NULL
		  AND NOT EXISTS (SELECT FROM settlement_freezes f WHERE f.tenant_id = q.tenant_id AND f.unfrozen_at IS NULL)
		ORDER BY tenant_id`)
	if err != nil {
		return fmt.Errorf("list tenants with settlements: %w", err)
	}
	tenants, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("list tenants with settlements: %w", err)
	}
	cursors := make(map[string]*cursor, len(tenants))
	for _, tenant := range tenants {
		cursors[tenant] = &cursor{}
	}
	for len(tenants) > 0 {
		left := tenants[:0:0]
		for _, tenant := range tenants {
			more, err := r.applyPage(ctx, conn, tenant, cursors[tenant], now, rep)
			if errors.Is(err, reconcile.ErrUnavailable) || conn.IsClosed() || ctx.Err() != nil {
				return err
			}
			if err != nil {
				rep.fail(fmt.Errorf("tenant %s: %w", tenant, err))
				r.log.Warn("settlements of a tenant are left for the next run", "tenant", tenant, "error", err)
				continue
			}
			if more {
				left = append(left, tenant)
			}
		}
		tenants = left
	}
	return nil
}

// applyPage settles a page of one tenant and marks it. A crash between the two
// repeats the page in a later run, with the same figures, which admission
// answers as it did before. A reservation that fails is tried again later and
// later; several in a row end the tenant's turn with an error.
func (r *Reconciler) applyPage(ctx context.Context, conn *pgx.Conn, tenant string, at *cursor, now time.Time, rep *Report) (more bool, err error) {
	page, err := r.waitingPage(ctx, conn, tenant, *at, now)
	if err != nil || len(page) == 0 {
		return false, err
	}
	var marks outcomes
	var stop error
	failedInRow := 0
	for _, w := range page {
		outcome, err := r.settle(ctx, conn, tenant, w, now)
		if errors.Is(err, reconcile.ErrUnavailable) || ctx.Err() != nil {
			stop = errors.Join(err, ctx.Err())
			break
		}
		*at = cursor{w.queuedAt, w.reservationID}
		if err == nil {
			failedInRow = 0
			marks.done(w.reservationID, outcome)
			continue
		}
		marks.failed(w.reservationID, err)
		rep.fail(fmt.Errorf("reservation %s of tenant %s: %w", w.reservationID, tenant, err))
		if failedInRow++; failedInRow >= tenantPatience {
			stop = fmt.Errorf("%d settlements failed in a row: %w", failedInRow, err)
			break
		}
	}
	// What admission answered is marked even when the run's time has ended.
	markCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := marks.write(markCtx, conn, now); err != nil {
		return false, errors.Join(stop, err)
	}
	marks.count(rep)
	return stop == nil && len(page) == r.opts.PageSize, stop
}

func (r *Reconciler) waitingPage(ctx context.Context, conn *pgx.Conn, tenant string, at cursor, now time.Time) ([]waiting, error) {
	rows, err := conn.Query(ctx, waitingSQL, tenant, at.at, at.reservationID, r.opts.PageSize, now)
	if err != nil {
		return nil, fmt.Errorf("list settlements: %w", err)
	}
	page, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (waiting, error) {
		var w waiting
		u := &w.total
		err := row.Scan(&w.reservationID, &w.action, &u.InputTokens, &u.OutputTokens, &u.CachedInputTokens,
			&u.ReasoningTokens, &u.ToolCalls, &u.Images, &u.AudioMillis, &u.GPUMillis,
			&w.estimated, &w.reason, &w.queuedAt)
		return w, err
	})
	if err != nil {
		return nil, fmt.Errorf("list settlements: %w", err)
	}
	return page, nil
}

// settle asks admission to end one reservation and says what became of it.
func (r *Reconciler) settle(ctx context.Context, conn *pgx.Conn, tenant string, w waiting, now time.Time) (string, error) {
	callCtx, cancel := context.WithTimeout(ctx, r.opts.SettleTimeout)
	defer cancel()
	call := r.opts.Settler.Settle
	if w.action == reconcile.ActionCancel {
		call = r.opts.Settler.Cancel
	}
	err := call(callCtx, tenant, w.reservationID, w.total, w.estimated, reconcile.Author, w.reason)
	switch {
	case err == nil:
		return outcomeApplied, nil
	case errors.Is(err, reconcile.ErrAlreadyFinal):
		return outcomeFinal, nil
	case errors.Is(err, reconcile.ErrGone):
		return outcomeClosedInLog, r.closeInLog(ctx, conn, tenant, w, now)
	}
	return "", err
}

// closeInLog ends a reservation that admission knows nothing of: it was lost
// with Redis, so the ledger alone still shows it open. The closing event is
// derived from the ledger's row, so a repeat makes the same event.
func (r *Reconciler) closeInLog(ctx context.Context, conn *pgx.Conn, tenant string, w waiting, now time.Time) error {
	return inTx(ctx, conn, func(tx pgx.Tx) error {
		v := events.Reservation{TenantID: tenant, ReservationID: w.reservationID}
		var reported events.Usage
		var milliUnits int64
		var lastEvent time.Time
		err := tx.QueryRow(ctx, `
			SELECT request_id, key_id, endpoint, model, seq, state, weight_milli, milli_units, expires_at, last_event_at,
			       input_tokens, output_tokens, cached_input_tokens, reasoning_tokens, tool_calls, images, audio_ms, gpu_ms
			FROM reservations WHERE reservation_id = $1 AND tenant_id = $2`, w.reservationID, tenant).Scan(
			&v.RequestID, &v.KeyID, &v.Endpoint, &v.Model, &v.Seq, &v.State, &v.WeightMilli, &milliUnits, &v.ExpiresAt, &lastEvent,
			&reported.InputTokens, &reported.OutputTokens, &reported.CachedInputTokens, &reported.ReasoningTokens,
			&reported.ToolCalls, &reported.Images, &reported.AudioMillis, &reported.GPUMillis)
		if err != nil {
			return fmt.Errorf("read the ledger's row: %w", err)
		}
		if v.State == events.StateSettled || v.State == events.StateCancelled {
			return nil
		}
		v.Seq++
		kind := events.TypeSettled
		v.State = events.StateSettled
		if w.action == reconcile.ActionCancel {
			kind, v.State = events.TypeCancelled, events.StateCancelled
		}
		v.Total = w.total
		v.Delta = minus(w.total, reported)
		// Images are not changed here, so tokens are all that weighs.
		v.DeltaMilliUnits = (v.Delta.InputTokens + v.Delta.OutputTokens) * v.WeightMilli
		v.TotalMilliUnits = milliUnits + v.DeltaMilliUnits
		v.Estimated = w.estimated
		v.Author = reconcile.Author
		v.Reason = w.reason + "; admission has no record"
		data := events.AppendReservation(nil, &v)
		if _, err := events.ParseReservation(data); err != nil {
			return fmt.Errorf("make the closing event: %w", err)
		}
		name := sha256.Sum256([]byte(w.reservationID))
		id := events.NewID("reconcile-close-"+hex.EncodeToString(name[:12]), lastEvent, v.Seq, 0)
		return addEvent(ctx, tx, id, kind, tenant, now, data)
	})
}

func minus(a, b events.Usage) events.Usage {
	return events.Usage{
		InputTokens: a.InputTokens - b.InputTokens, OutputTokens: a.OutputTokens - b.OutputTokens,
		CachedInputTokens: a.CachedInputTokens - b.CachedInputTokens, ReasoningTokens: a.ReasoningTokens - b.ReasoningTokens,
		ToolCalls: a.ToolCalls - b.ToolCalls, Images: a.Images - b.Images,
		AudioMillis: a.AudioMillis - b.AudioMillis, GPUMillis: a.GPUMillis - b.GPUMillis,
	}
}

// outcomes gathers what became of a page, for one statement.
type outcomes struct {
	ids, results, errs []string
}

func (o *outcomes) done(id, outcome string) {
	o.ids, o.results, o.errs = append(o.ids, id), append(o.results, outcome), append(o.errs, "")
}

func (o *outcomes) failed(id string, err error) {
	text := err.Error()
	if len(text) > 500 {
		text = text[:500]
	}
	o.ids, o.results, o.errs = append(o.ids, id), append(o.results, ""), append(o.errs, text)
}

func (o *outcomes) write(ctx context.Context, conn *pgx.Conn, now time.Time) error {
	if len(o.ids) == 0 {
		return nil
	}
	_, err := conn.Exec(ctx, `
		UPDATE automatic_settlements q SET
		    outcome = nullif(u.outcome, ''),
		    applied_at = CASE WHEN u.outcome <> '' THEN $4::timestamptz END,
		    attempts = q.attempts + 1,
		    -- 1, 2, 4 … 64 minutes between tries
		    next_attempt_at = $4::timestamptz + interval '1 minute' * (1 << least(q.attempts, 6)),
		    last_error = u.error
		FROM unnest($1::text[], $2::text[], $3::text[]) AS u (reservation_id, outcome, error)
		WHERE q.reservation_id = u.reservation_id AND q.applied_at IS NULL`, o.ids, o.results, cleanText(o.errs), now)
	if err != nil {
		return fmt.Errorf("mark settlements: %w", err)
	}
	return nil
}

func (o *outcomes) count(rep *Report) {
	for _, outcome := range o.results {
		switch outcome {
		case outcomeApplied:
			rep.Applied++
		case outcomeFinal:
			rep.AlreadyFinal++
		case outcomeClosedInLog:
			rep.ClosedInLog++
		}
	}
}

// cleanText makes other systems' error texts fit for PostgreSQL's text.
func cleanText(list []string) []string {
	list = slices.Clone(list)
	for i, s := range list {
		list[i] = toText(s)
	}
	return list
}
