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

// maxReportErrors bounds the list of errors in a report; Failures counts all.
const maxReportErrors = 20

// retention is how long records of work that is done are kept, forgetPerRun
// how many of each kind a run removes.
const (
	retention    = 90 * 24 * time.Hour
	forgetPerRun = 5000
)

// Report says what one run did.
type Report struct {
	StartedAt time.Time `json:"started_at"`

	HoldsAsOf    time.Time `json:"holds_as_of,omitzero"`    // the ledger was folded through here
	HoldsSkipped string    `json:"holds_skipped,omitempty"` // why holds were not looked at
	Queued       int       `json:"queued"`                  // settlements decided
	Pending      int       `json:"pending"`                 // holds left to wait, the extended included
	Extended     int       `json:"extended"`                // of these, whose work is known to run

	Applied      int `json:"applied"`
	AlreadyFinal int `json:"already_final"`
	ClosedInLog  int `json:"closed_in_log"`

	DriftThrough   time.Time `json:"drift_through,omitzero"` // hours before this were judged
	DriftSkipped   string    `json:"drift_skipped,omitempty"`
	WindowsJudged  int       `json:"windows_judged"`
	WindowsUnknown int       `json:"windows_unknown"`
	WindowsSuspect int       `json:"windows_suspect"`
	WindowsDrift   int       `json:"windows_drift"`
	Frozen         []string  `json:"frozen"` // tenants that this run froze

	Published int      `json:"published"`
	Partial   bool     `json:"partial"` // the run's time ended before its work
	Failures  int      `json:"failures"`
	Errors    []string `json:"errors"`
}

// fail notes an error that concerns one tenant, reservation or step only.
func (rep *Report) fail(err error) {
	rep.Failures++
	if len(rep.Errors) < maxReportErrors {
		rep.Errors = append(rep.Errors, err.Error())
	}
}

// RunOnce does everything once as of now: it looks at the holds past their
// TTL, applies what is queued, judges drift and publishes events. It may be
// repeated at any time. It returns ErrNotLeader when another reconciler is at
// work. Failures that concern one tenant or step are in the report; the error
// is for what stopped the run.
func (r *Reconciler) RunOnce(ctx context.Context, now time.Time) (Report, error) {
	return r.run(ctx, now, true)
}

func (r *Reconciler) run(ctx context.Context, now time.Time, always bool) (Report, error) {
	if r.opts.Settler == nil || r.opts.Publisher == nil || r.opts.Ledger == nil || r.opts.Meters == nil {
		return Report{}, errors.New("a run needs a settler, a publisher and both lag checkers")
	}
	if !r.running.TryLock() {
		return Report{}, reconcile.ErrNotLeader // this process is at work already
	}
	defer r.running.Unlock()
	// Events carry milliseconds, so that is what every time here carries.
	now = now.UTC().Truncate(time.Millisecond)
	rep := Report{StartedAt: now, Frozen: []string{}, Errors: []string{}}
	ctx, cancel := context.WithTimeout(ctx, r.opts.RunTimeout)
	defer cancel()
	err := r.lead(ctx, func(conn *pgx.Conn) error {
		err := r.work(ctx, conn, now, always, &rep)
		r.observe(ctx, conn, now, &rep)
		return err
	})
	r.metrics.ended(&rep, err)
	return rep, err
}

// work does the steps of a run. A step's failure does not stop the next one,
// unless the leader's connection is gone.
func (r *Reconciler) work(ctx context.Context, conn *pgx.Conn, now time.Time, always bool, rep *Report) error {
	var runID int64
	err := conn.QueryRow(ctx, `INSERT INTO reconcile_runs (leader, started_at) VALUES ($1, $2) RETURNING run_id`,
		r.opts.Name, now).Scan(&runID)
	if err != nil {
		return fmt.Errorf("note the run: %w", err)
	}
	steps := []struct {
		name string
		do   func(context.Context, *pgx.Conn, time.Time, *Report) error
	}{
		{"decide on holds", r.decideHolds},
		// Drift comes before settling, so that a tenant that must be frozen is.
		{"judge drift", func(ctx context.Context, conn *pgx.Conn, now time.Time, rep *Report) error {
			return r.judgeDrift(ctx, conn, now, always, rep)
		}},
		{"apply settlements", r.applyWaiting},
		{"publish events", r.publishWaiting},
		{"forget old work", forget},
	}
	for _, step := range steps {
		err := step.do(ctx, conn, now, rep)
		switch {
		case err == nil:
		case conn.IsClosed():
			return fmt.Errorf("%s: the leader's connection is gone: %w", step.name, err)
		case ctx.Err() != nil && errors.Is(ctx.Err(), context.DeadlineExceeded):
			rep.Partial = true
			return fmt.Errorf("%s: the run's time is over: %w", step.name, ctx.Err())
		case ctx.Err() != nil:
			return fmt.Errorf("%s: %w", step.name, ctx.Err())
		default:
			rep.fail(fmt.Errorf("%s: %w", step.name, err))
			r.log.Error("reconcile step failed", "step", step.name, "error", err)
		}
	}
	body, err := json.Marshal(rep)
	if err != nil {
		return fmt.Errorf("encode the report: %w", err)
	}
	var through *time.Time
	if !rep.DriftThrough.IsZero() {
		through = &rep.DriftThrough
	}
	_, err = conn.Exec(ctx, `UPDATE reconcile_runs SET ended_at = now(), drift_through = $2, report = $3 WHERE run_id = $1`,
		runID, through, body)
	if err != nil {
		return fmt.Errorf("note the run's end: %w", err)
	}
	return nil
}

// forget removes what only records work done long ago, a bounded number of
// rows a run. Freezes stay for ever, and so do the events in the log, which
// tell who decided what and why.
func forget(ctx context.Context, conn *pgx.Conn, now time.Time, _ *Report) error {
	for _, sql := range []string{
		// The newest run that judged drift stays: the next one goes on from it.
		`DELETE FROM reconcile_runs WHERE run_id IN (
			SELECT run_id FROM reconcile_runs WHERE started_at < $1 AND run_id NOT IN (
				SELECT run_id FROM reconcile_runs WHERE drift_through IS NOT NULL ORDER BY drift_through DESC LIMIT 1)
			ORDER BY started_at LIMIT $2)`,
		`DELETE FROM automatic_settlements WHERE reservation_id IN (
			SELECT q.reservation_id FROM automatic_settlements q
			WHERE q.applied_at < $1
			  AND NOT EXISTS (SELECT FROM reservations r WHERE r.reservation_id = q.reservation_id AND r.state IN ('held', 'expired'))
			ORDER BY q.applied_at LIMIT $2)`,
		`DELETE FROM reconcile_outbox WHERE seq IN (
			SELECT seq FROM reconcile_outbox WHERE published_at < $1 ORDER BY seq LIMIT $2)`,
		`DELETE FROM drift_reports WHERE (tenant_id, window_kind, window_start) IN (
			SELECT tenant_id, window_kind, window_start FROM drift_reports
			WHERE window_kind = 'hour' AND window_start < $1 ORDER BY window_start LIMIT $2)`,
	} {
		if _, err := conn.Exec(ctx, sql, now.Add(-retention), forgetPerRun); err != nil {
			return err
		}
	}
	return nil
}

// foldedThrough is the earliest of now and the given checkers' answers.
func foldedThrough(ctx context.Context, now time.Time, checkers ...reconcile.LagChecker) (time.Time, error) {
	asOf := now
	for _, c := range checkers {
		t, err := c.FoldedThrough(ctx)
		if err != nil {
			return time.Time{}, err
		}
		if t.Before(asOf) {
			asOf = t
		}
	}
	return asOf.UTC(), nil
}
