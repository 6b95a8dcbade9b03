package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"tollgate/events"
	"tollgate/reconcile"
)

// Limits on asking for execution status: it is another system's time.
const (
	statusTimeout  = 2 * time.Second
	statusParallel = 8
	statusPerRun   = 1000
)

// cursor is a place in a list that is ordered by time and reservation id.
type cursor struct {
	at            time.Time
	reservationID string
}

// decideHolds looks at every hold past its TTL and queues the settlements that
// are due. It goes by the time through which the ledger is folded: a hold that
// was extended or ended before then shows it.
func (r *Reconciler) decideHolds(ctx context.Context, conn *pgx.Conn, now time.Time, rep *Report) error {
	asOf, err := foldedThrough(ctx, now, r.opts.Ledger)
	if errors.Is(err, reconcile.ErrBehind) {
		rep.HoldsSkipped = err.Error()
		return nil // they wait: a settlement may be in the log already
	}
	if err != nil {
		rep.HoldsSkipped = err.Error()
		return fmt.Errorf("how far the ledger is: %w", err)
	}
	rep.HoldsAsOf = asOf
	if err := r.reopen(ctx, conn, asOf, now); err != nil {
		return err
	}
	asked := 0
	// Half of the run's time, so that what is queued is applied also when there
	// are more holds than one run can look at.
	budget := time.Now().Add(r.opts.RunTimeout / 2)
	for {
		if time.Now().After(budget) {
			rep.Partial = true // the next run goes on at the cursor
			return nil
		}
		holds, err := r.dueHolds(ctx, conn, asOf, now)
		if err != nil {
			return err
		}
		if len(holds) == 0 {
			r.cursor = cursor{} // the next run starts at the oldest again
			return nil
		}
		if err := r.decidePage(ctx, conn, holds, asOf, now, &asked, rep); err != nil {
			return err
		}
		last := holds[len(holds)-1]
		r.cursor = cursor{last.ExpiresAt, last.ReservationID}
		if len(holds) < r.opts.PageSize {
			r.cursor = cursor{}
			return nil
		}
	}
}

// reopen asks admission again where a settlement was applied long ago and the
// ledger still shows the hold open: the change may have been lost with Redis.
// The figures stay, unless a final reading has come since; should admission
// know the settlement after all, it keeps its own.
func (r *Reconciler) reopen(ctx context.Context, conn *pgx.Conn, asOf, now time.Time) error {
	_, err := conn.Exec(ctx, `
		UPDATE automatic_settlements q SET applied_at = NULL, outcome = NULL, queued_at = $3
		FROM reservations r
		WHERE r.reservation_id = q.reservation_id AND r.state IN ('held', 'expired') AND r.expires_at <= $1
		  AND q.applied_at <= $2 AND q.outcome <> 'closed_in_log'`,
		asOf.Add(-r.opts.Policy.HoldGrace), asOf.Add(-r.opts.RetryAfter), now)
	if err != nil {
		return fmt.Errorf("ask again for settlements that never arrived: %w", err)
	}
	return nil
}

func (r *Reconciler) dueHolds(ctx context.Context, conn *pgx.Conn, asOf, now time.Time) ([]reconcile.Hold, error) {
	rows, err := conn.Query(ctx, dueHoldsSQL,
		asOf.Add(-r.opts.Policy.HoldGrace), r.cursor.at, r.cursor.reservationID,
		now.Add(-r.opts.RetryAfter), r.opts.PageSize)
	if err != nil {
		return nil, fmt.Errorf("list holds: %w", err)
	}
	holds, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (reconcile.Hold, error) {
		var h reconcile.Hold
		u := &h.Reported
		err := row.Scan(&h.TenantID, &h.ReservationID, &h.RequestID, &h.State, &h.ExpiresAt,
			&u.InputTokens, &u.OutputTokens, &u.CachedInputTokens, &u.ReasoningTokens,
			&u.ToolCalls, &u.Images, &u.AudioMillis, &u.GPUMillis)
		return h, err
	})
	if err != nil {
		return nil, fmt.Errorf("list holds: %w", err)
	}
	return holds, nil
}

func (r *Reconciler) decidePage(ctx context.Context, conn *pgx.Conn, holds []reconcile.Hold, asOf, now time.Time, asked *int, rep *Report) error {
	readings, err := readingsOf(ctx, conn, holds)
	if err != nil {
		return err
	}
	status := r.askStatus(ctx, holds, readings, asOf, asked, rep)
	var page settlementPage
	for _, h := range holds {
		action := reconcile.Decide(h, readings[h.ReservationID], status[h.ReservationID], asOf, r.opts.Policy)
		switch {
		case action.Ends():
			page.add(h, action)
		case action.Kind == reconcile.ActionExtend:
			rep.Extended++
			rep.Pending++
		case action.Kind == reconcile.ActionPending:
			rep.Pending++
		}
	}
	queued, err := page.write(ctx, conn, now)
	rep.Queued += queued
	return err
}

func readingsOf(ctx context.Context, conn *pgx.Conn, holds []reconcile.Hold) (map[string]reconcile.Reading, error) {
	tenants, ids := make([]string, len(holds)), make([]string, len(holds))
	for i, h := range holds {
		tenants[i], ids[i] = h.TenantID, h.ReservationID
	}
	rows, err := conn.Query(ctx, readingsSQL, tenants, ids)
	if err != nil {
		return nil, fmt.Errorf("read the meters of holds: %w", err)
	}
	readings := make(map[string]reconcile.Reading)
	var id string
	var m reconcile.Reading
	_, err = pgx.ForEachRow(rows, []any{&id, &m.HasModel, &m.Final, &m.InputTokens, &m.OutputTokens, &m.HasGPU, &m.GPUMillis},
		func() error {
			readings[id] = m
			return nil
		})
	if err != nil {
		return nil, fmt.Errorf("read the meters of holds: %w", err)
	}
	return readings, nil
}

// askStatus asks only where the answer can change the decision, a few at once
// and a bounded number in a run. Whoever is not asked counts as unknown, and
// the deadline ends it.
func (r *Reconciler) askStatus(ctx context.Context, holds []reconcile.Hold, readings map[string]reconcile.Reading, asOf time.Time, asked *int, rep *Report) map[string]reconcile.Execution {
	status := make(map[string]reconcile.Execution)
	if r.opts.Execution == nil {
		return status
	}
	var mu sync.Mutex
	var failed int
	var lastErr error
	var wg sync.WaitGroup
	slots := make(chan struct{}, statusParallel)
	for _, h := range holds {
		undecided := reconcile.Decide(h, readings[h.ReservationID], reconcile.ExecutionUnknown, asOf, r.opts.Policy)
		if undecided.Kind != reconcile.ActionPending || *asked >= statusPerRun {
			continue
		}
		*asked++
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			callCtx, cancel := context.WithTimeout(ctx, statusTimeout)
			defer cancel()
			answer, err := r.opts.Execution.Status(callCtx, h.TenantID, h.RequestID)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed, lastErr = failed+1, err
				return
			}
			status[h.ReservationID] = answer
		})
	}
	wg.Wait()
	if failed > 0 {
		rep.fail(fmt.Errorf("execution status unknown for %d holds: %w", failed, lastErr))
	}
	return status
}

// settlementPage gathers settlements as columns, for one statement.
type settlementPage struct {
	ids, tenants, actions, reasons                         []string
	input, output, cached, reasoning, tools, images, audio []int64
	gpu                                                    []int64
	estimated                                              []bool
}

func (p *settlementPage) add(h reconcile.Hold, a reconcile.Action) {
	p.ids = append(p.ids, h.ReservationID)
	p.tenants = append(p.tenants, h.TenantID)
	p.actions = append(p.actions, string(a.Kind))
	p.reasons = append(p.reasons, a.Reason)
	p.addUsage(a.Total)
	p.estimated = append(p.estimated, a.Estimated)
}

func (p *settlementPage) addUsage(u events.Usage) {
	p.input = append(p.input, u.InputTokens)
	p.output = append(p.output, u.OutputTokens)
	p.cached = append(p.cached, u.CachedInputTokens)
	p.reasoning = append(p.reasoning, u.ReasoningTokens)
	p.tools = append(p.tools, u.ToolCalls)
	p.images = append(p.images, u.Images)
	p.audio = append(p.audio, u.AudioMillis)
	p.gpu = append(p.gpu, u.GPUMillis)
}

// write returns how many rows were new or became exact.
func (p *settlementPage) write(ctx context.Context, conn *pgx.Conn, now time.Time) (int, error) {
	if len(p.ids) == 0 {
		return 0, nil
	}
	tag, err := conn.Exec(ctx, queueSQL, p.ids, p.tenants, p.actions, p.input, p.output, p.cached,
		p.reasoning, p.tools, p.images, p.audio, p.gpu, p.estimated, p.reasons, now)
	if err != nil {
		return 0, fmt.Errorf("queue settlements: %w", err)
	}
	return int(tag.RowsAffected()), nil
}
