package app

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"tollgate/admission"
	"tollgate/events"
	"tollgate/events/kafka"
	"tollgate/internal/config"
	"tollgate/reconcile"
	reconcilepg "tollgate/reconcile/postgres"
	"tollgate/tenancy"
)

// Reconcile adds the reconcile role: a schedule under an advisory lock.
func (a *App) Reconcile() error {
	r, err := a.Reconciler(a.metrics)
	if err != nil {
		return err
	}
	a.add(part{
		name:  "reconcile",
		start: func(context.Context) error { return r.Start() },
		stop:  func(context.Context) error { r.Stop(); return nil },
	})
	directory := a.directory
	a.check("tenants", func(context.Context) error { return directory.Ready() })
	a.check("postgres", a.pool.Ping)
	return nil
}

// Reconciler returns a reconciler on the app's connections, for the role and
// for single runs.
func (a *App) Reconciler(registerer prometheus.Registerer) (*reconcilepg.Reconciler, error) {
	pool, err := a.postgres()
	if err != nil {
		return nil, err
	}
	client, err := a.kafka()
	if err != nil {
		return nil, err
	}
	store, err := a.admission()
	if err != nil {
		return nil, err
	}
	directory, err := a.tenants()
	if err != nil {
		return nil, err
	}
	lag := func(topic string) *reconcilepg.OffsetLag { return a.foldLag(pool, client, topic, 5*time.Second) }
	execution, err := a.execution()
	if err != nil {
		return nil, err
	}
	return reconcilepg.New(pool, reconcilepg.Options{
		Settler:    settler{store, directory},
		Execution:  execution,
		Publisher:  client.NewProducer(kafka.ProducerOptions{}),
		Ledger:     lag(events.TopicEvents),
		Meters:     lag(events.TopicMeters),
		Policy:     ReconcilePolicy(a.cfg),
		Schedule:   a.cfg.Reconcile.Every,
		Name:       processName(),
		Logger:     a.log,
		Registerer: registerer,
	})
}

// execution returns who can say whether a request's work still runs; nil when
// nobody is configured.
func (a *App) execution() (reconcile.ExecutionStatus, error) {
	address := a.cfg.Reconcile.ExecutionStatusURL
	if address == "" {
		return nil, nil
	}
	client, err := newExecutionClient(address)
	if err != nil {
		return nil, err
	}
	a.closers = append(a.closers, client.close)
	return client, nil
}

// foldLag says how far a topic is folded. A batch may be as old as the flush
// interval before it is written; grace is what is waited beyond two of them.
func (a *App) foldLag(pool *pgxpool.Pool, client *kafka.Client, topic string, grace time.Duration) *reconcilepg.OffsetLag {
	return &reconcilepg.OffsetLag{
		Pool: pool, Topic: topic,
		HighWater: func(ctx context.Context) (map[int]int64, error) { return client.HighWaters(ctx, topic) },
		Wait:      2*a.cfg.Ledger.FlushInterval + grace,
	}
}

// settler is admission as the reconciler sees it.
type settler struct {
	store     admission.Store
	directory tenancy.Directory
}

// Settle implements reconcile.Settler.
func (s settler) Settle(ctx context.Context, tenantID, reservationID string, total events.Usage, estimated bool, author, reason string) error {
	_, err := s.store.Settle(ctx, s.report(tenantID, reservationID, total, estimated, author, reason))
	return settleError(err)
}

// Cancel implements reconcile.Settler.
func (s settler) Cancel(ctx context.Context, tenantID, reservationID string, total events.Usage, estimated bool, author, reason string) error {
	_, err := s.store.Cancel(ctx, s.report(tenantID, reservationID, total, estimated, author, reason))
	return settleError(err)
}

func (s settler) report(tenantID, reservationID string, total events.Usage, estimated bool, author, reason string) *admission.UsageReport {
	tenant, err := s.directory.Tenant(tenantID)
	if err != nil {
		// A hold of a tenant that was removed must end as well. Only the time
		// zone of calendar limits is missing then, and nobody spends from them.
		tenant = &tenancy.Tenant{ID: tenantID, TimeZone: "UTC"}
	}
	return &admission.UsageReport{
		Tenant:        tenant,
		ReservationID: reservationID,
		Total:         total,
		Estimated:     estimated,
		Author:        author,
		Reason:        reason,
	}
}

func settleError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, admission.ErrAlreadyFinal):
		return fmt.Errorf("%w: %w", reconcile.ErrAlreadyFinal, err)
	case errors.Is(err, admission.ErrNotFound):
		return fmt.Errorf("%w: %w", reconcile.ErrGone, err)
	case errors.Is(err, admission.ErrUnavailable), errors.Is(err, admission.ErrNotRebuilt):
		return fmt.Errorf("%w: %w", reconcile.ErrUnavailable, err)
	}
	return err
}

// SingleReconciler prepares the app for single runs of a reconciler that this
// process starts by hand: add it, then call fn inside Do.
func (a *App) SingleReconciler() (*reconcilepg.Reconciler, error) {
	r, err := a.Reconciler(nil)
	if err != nil {
		return nil, err
	}
	directory := a.directory
	a.add(part{
		name: "wait for tenants",
		start: func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, directoryTimeout)
			defer cancel()
			return directory.WaitReady(ctx)
		},
	})
	return r, nil
}

// directoryTimeout bounds the first load of the tenants.
const directoryTimeout = 10 * time.Second

// ReconcilePolicy is the configured policy on top of the defaults.
func ReconcilePolicy(cfg *config.Config) reconcile.Policy {
	c := cfg.Reconcile
	p := reconcile.DefaultPolicy()
	p.HoldGrace = c.HoldGrace
	p.PendingDeadline = c.PendingDeadline
	p.EndedWait = min(p.EndedWait, c.PendingDeadline)
	p.ThresholdPPM = c.DriftThresholdPercent.PPM()
	p.MinTokens = c.DriftMinTokens
	return p
}
