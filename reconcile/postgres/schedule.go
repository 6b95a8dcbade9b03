package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/robfig/cron/v3"

	"tollgate/reconcile"
)

// Start runs the schedule until Stop. Every process may start: those that do
// not hold the leader's lock do nothing. It may be called again after Stop.
func (r *Reconciler) Start() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cron != nil {
		return errors.New("reconciler runs already")
	}
	ctx, cancel := context.WithCancel(context.Background())
	logger := cronLogger{r.log}
	// Recover is inside SkipIfStillRunning: that one does not give its token
	// back on a panic, and would skip every run from then on.
	c := cron.New(cron.WithLocation(time.UTC), cron.WithLogger(logger),
		cron.WithChain(cron.SkipIfStillRunning(logger), cron.Recover(logger)))
	if _, err := c.AddFunc(r.opts.Schedule, func() { r.scheduled(ctx) }); err != nil {
		cancel()
		return fmt.Errorf("reconcile schedule %q: %w", r.opts.Schedule, err)
	}
	r.cron, r.cancel = c, cancel
	c.Start()
	return nil
}

// Stop ends a run that is under way, waits for it, and may be called twice.
func (r *Reconciler) Stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cron == nil {
		return
	}
	r.cancel()
	<-r.cron.Stop().Done()
	r.cron, r.cancel = nil, nil
}

// scheduled is one run of the schedule. It is the edge where errors are logged.
func (r *Reconciler) scheduled(ctx context.Context) {
	rep, err := r.run(ctx, r.opts.Now(), false)
	switch {
	case errors.Is(err, reconcile.ErrNotLeader), ctx.Err() != nil:
		r.log.Debug("reconcile run did nothing", "reason", err)
	case err != nil:
		r.log.Error("reconcile run failed", "error", err)
	default:
		level := slog.LevelDebug
		if rep.Failures > 0 || rep.HoldsSkipped != "" || len(rep.Frozen) > 0 {
			level = slog.LevelWarn
		}
		r.log.Log(ctx, level, "reconcile run", "queued", rep.Queued, "applied", rep.Applied, "pending", rep.Pending,
			"frozen", len(rep.Frozen), "failures", rep.Failures, "holds_skipped", rep.HoldsSkipped, "errors", rep.Errors)
	}
}

// cronLogger hands cron's lines on. Cron tells of every wake-up at Info, which
// is Debug to anybody else.
type cronLogger struct{ log *slog.Logger }

func (l cronLogger) Info(msg string, keysAndValues ...any) {
	l.log.Debug("reconcile schedule", append([]any{"event", msg}, keysAndValues...)...)
}

func (l cronLogger) Error(err error, msg string, keysAndValues ...any) {
	l.log.Error("reconcile schedule", append([]any{"event", msg, "error", err}, keysAndValues...)...)
}
