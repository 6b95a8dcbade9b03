package cli

import (
	"context"
	"fmt"
	"time"

	"tollgate/events/kafka"
	"tollgate/internal/app"
	reconcilepg "tollgate/reconcile/postgres"
)

type reconcileCmd struct {
	Run      reconcileRunCmd      `cmd:"" default:"1" help:"Run the schedule until told to stop (the default)."`
	Once     reconcileOnceCmd     `cmd:"" help:"Run once, now, and print what was done."`
	Status   reconcileStatusCmd   `cmd:"" help:"Show pending holds, freezes and drift."`
	Freeze   reconcileFreezeCmd   `cmd:"" help:"Stop automatic settlement of a tenant by hand."`
	Unfreeze reconcileUnfreezeCmd `cmd:"" help:"Let automatic settlement of a tenant go on; what was queued is applied once."`
}

type reconcileRunCmd struct{}

// Help implements kong.HelpProvider.
func (reconcileRunCmd) Help() string {
	return `Any number may run; one leads, by an advisory lock in PostgreSQL.

Example:
  tollgate --config tollgate.yaml reconcile`
}

// Run runs the role.
func (reconcileRunCmd) Run(e *env) error { return e.role("reconcile", (*app.App).Reconcile) }

type reconcileOnceCmd struct{}

// Help implements kong.HelpProvider.
func (reconcileOnceCmd) Help() string { return "Example:\n  tollgate reconcile once --json" }

// Run runs the reconciler once.
func (reconcileOnceCmd) Run(e *env) error {
	return e.withWorkingReconciler(func(ctx context.Context, r *reconcilepg.Reconciler) error {
		rep, err := r.RunOnce(ctx, time.Now())
		if err != nil {
			return err
		}
		err = e.value(rep, func() error {
			return e.table([]string{"WHAT", "COUNT"}, [][]string{
				{"settlements decided", fmt.Sprint(rep.Queued)},
				{"settlements applied", fmt.Sprint(rep.Applied)},
				{"already final", fmt.Sprint(rep.AlreadyFinal)},
				{"holds left pending", fmt.Sprint(rep.Pending)},
				{"windows judged", fmt.Sprint(rep.WindowsJudged)},
				{"windows drifting", fmt.Sprint(rep.WindowsDrift)},
				{"tenants frozen", fmt.Sprint(len(rep.Frozen))},
				{"failures", fmt.Sprint(rep.Failures)},
			})
		})
		for _, skipped := range []string{rep.HoldsSkipped, rep.DriftSkipped} {
			if skipped != "" {
				e.note("Skipped: %s", skipped)
			}
		}
		if err == nil && rep.Failures > 0 {
			err = withStatus(ExitDiffers, fmt.Errorf("%d steps failed; the first: %s", rep.Failures, rep.Errors[0]))
		}
		return err
	})
}

// withWorkingReconciler runs fn with a reconciler that can settle.
func (e *env) withWorkingReconciler(fn func(ctx context.Context, r *reconcilepg.Reconciler) error) error {
	cfg, err := e.config()
	if err != nil {
		return err
	}
	a := app.New(cfg, e.logger(cfg))
	r, err := a.SingleReconciler()
	if err != nil {
		return err
	}
	return a.Do(e.ctx, func(ctx context.Context, _ *app.App) error { return fn(ctx, r) })
}

// withReconciler runs fn with a reconciler that only looks and freezes.
func (e *env) withReconciler(fn func(ctx context.Context, r *reconcilepg.Reconciler) error) error {
	cfg, err := e.config()
	if err != nil {
		return err
	}
	pool, err := e.database()
	if err != nil {
		return err
	}
	defer pool.Close()
	client, err := app.NewKafka(cfg, e.logger(cfg))
	if err != nil {
		return err
	}
	defer client.Close()
	r, err := reconcilepg.New(pool, reconcilepg.Options{
		Publisher: client.NewProducer(kafka.ProducerOptions{}), Policy: app.ReconcilePolicy(cfg), Logger: e.logger(cfg),
	})
	if err != nil {
		return err
	}
	return fn(e.ctx, r)
}

type reconcileStatusCmd struct{}

// Help implements kong.HelpProvider.
func (reconcileStatusCmd) Help() string { return "Example:\n  tollgate reconcile status --json" }

// Run shows the status.
func (reconcileStatusCmd) Run(e *env) error {
	return e.withReconciler(func(ctx context.Context, r *reconcilepg.Reconciler) error {
		status, err := r.Status(ctx)
		if err != nil {
			return err
		}
		return e.value(status, func() error { return e.reconcileStatus(status) })
	})
}

type reconcileFreezeCmd struct {
	Tenant string `arg:"" help:"Tenant id."`
	author
}

// Help implements kong.HelpProvider.
func (reconcileFreezeCmd) Help() string {
	return "Example:\n  tollgate reconcile freeze acme --reason 'meter replaced, figures not yet trusted'"
}

// Run freezes the tenant.
func (c *reconcileFreezeCmd) Run(e *env) error {
	if c.Reason == "" {
		return usagef("say why with --reason; it is kept with the freeze")
	}
	return e.withReconciler(func(ctx context.Context, r *reconcilepg.Reconciler) error {
		freeze, err := r.Freeze(ctx, c.Tenant, c.change("").Author, c.Reason)
		if err != nil {
			return err
		}
		return e.value(freeze, func() error {
			_, err := fmt.Fprintf(e.out, "Automatic settlement of %s is frozen.\n", c.Tenant)
			return err
		})
	})
}

type reconcileUnfreezeCmd struct {
	Tenant string `arg:"" help:"Tenant id."`
	author
}

// Help implements kong.HelpProvider.
func (reconcileUnfreezeCmd) Help() string {
	return "Example:\n  tollgate reconcile unfreeze acme --reason 'meter of node 7 was counted twice; corrected'"
}

// Run unfreezes the tenant.
func (c *reconcileUnfreezeCmd) Run(e *env) error {
	if c.Reason == "" {
		return usagef("say why with --reason; it is kept with the freeze")
	}
	return e.withWorkingReconciler(func(ctx context.Context, r *reconcilepg.Reconciler) error {
		result, err := r.Unfreeze(ctx, c.Tenant, c.change("").Author, c.Reason)
		if err != nil {
			return err
		}
		return e.value(result, func() error {
			_, err := fmt.Fprintf(e.out, "Automatic settlement of %s goes on: %d queued settlements applied, %d wait for the next run.\n",
				c.Tenant, result.Applied, result.Waiting)
			return err
		})
	})
}

// reconcileStatus prints where reconciliation stands.
func (e *env) reconcileStatus(s reconcilepg.Status) error {
	last := "never"
	if s.LastRun != nil {
		last = instant(s.LastRun.StartedAt)
	}
	err := e.table([]string{"WHAT", "VALUE"}, [][]string{
		{"last run", last},
		{"drift judged through", instant(s.DriftThrough)},
		{"pending holds", count(s.Pending)},
		{"  oldest since", instant(s.OldestPending)},
		{"  past their deadline", count(s.Overdue)},
		{"settlements queued", count(s.Queued)},
		{"  tried in vain", count(s.Failing)},
		{"frozen tenants", count(s.FrozenTenants)},
		{"events not in the log yet", count(s.Unpublished)},
		{"meter conflicts", count(s.Conflicts)},
	})
	if err != nil || len(s.Frozen)+len(s.Over) == 0 {
		return err
	}
	rows := make([][]string, len(s.Frozen))
	for i, f := range s.Frozen {
		rows[i] = []string{f.TenantID, instant(f.FrozenAt), f.WindowKind, instant(f.WindowStart), count(f.GatewayTokens), count(f.ModelTokens), count(f.Queued), f.Author, f.Reason}
	}
	fmt.Fprintln(e.out)
	if err := e.table([]string{"FROZEN", "AT", "WINDOW", "FROM", "GATEWAY TOKENS", "MODEL TOKENS", "QUEUED", "BY", "REASON"}, rows); err != nil || len(s.Over) == 0 {
		return err
	}
	rows = make([][]string, len(s.Over))
	for i, d := range s.Over {
		rows[i] = []string{d.TenantID, d.Kind, instant(d.Start), count(d.TokensPPM), count(d.GPUPPM), string(d.Verdict)}
	}
	fmt.Fprintln(e.out)
	return e.table([]string{"DRIFT OF", "WINDOW", "FROM", "TOKENS PPM", "GPU PPM", "VERDICT"}, rows)
}
