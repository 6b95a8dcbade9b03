// Package postgres does the reconciler's work on the ledger's database.
//
// One process leads at a time: a run holds a session-level advisory lock and
// does all of its SQL on the lock's own connection, so a leader that loses the
// lock loses its hands with it. The lock saves work; what keeps two leaders
// harmless is that each step may be repeated: an automatic settlement is
// written before admission is asked and marked after, admission recognises a
// repeat, a tenant is frozen once by a unique index, reports are upserts, and
// events leave through an outbox with ids of their own.
//
// A pooler in front of PostgreSQL must hand out whole sessions.
package postgres

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/robfig/cron/v3"

	"tollgate/events"
	"tollgate/reconcile"
)

//go:embed sql/due_holds.sql
var dueHoldsSQL string

//go:embed sql/readings.sql
var readingsSQL string

//go:embed sql/queue.sql
var queueSQL string

//go:embed sql/waiting.sql
var waitingSQL string

//go:embed sql/figures.sql
var figuresSQL string

// Options say what a Reconciler works with. Settler, Ledger and Meters may be
// nil where only Status, ListFreezes, Freeze and Unfreeze are called.
type Options struct {
	Settler   reconcile.Settler
	Publisher reconcile.Publisher
	Execution reconcile.ExecutionStatus // optional
	Ledger    reconcile.LagChecker      // how far tollgate.events.v1 is folded
	Meters    reconcile.LagChecker      // how far tollgate.meters.v1 is folded
	Policy    reconcile.Policy
	// Topic is where freeze events go; empty takes events.TopicEvents.
	Topic string
	// Schedule is a cron line in UTC; empty takes "* * * * *". Drift is judged
	// by the first run after an hour's grace, whatever the schedule.
	Schedule string
	// RunTimeout bounds one run; what is left over is done by the next. 0 takes
	// five minutes.
	RunTimeout time.Duration
	// SettleTimeout bounds one call of the Settler; 0 takes five seconds.
	SettleTimeout time.Duration
	// RetryAfter is how long an applied settlement may be on its way to the
	// ledger before admission is asked again; 0 takes ten minutes.
	RetryAfter time.Duration
	// PageSize bounds what is held in memory at once; 0 takes 500.
	PageSize   int
	Name       string // of this process, in reconcile_runs; empty takes host and pid
	Logger     *slog.Logger
	Registerer prometheus.Registerer // optional
	Now        func() time.Time      // of scheduled runs; nil takes time.Now
}

// Reconciler ends pending holds, judges drift and keeps the freezes. Its
// methods may be called at once from several goroutines and processes.
type Reconciler struct {
	pool    *pgxpool.Pool
	opts    Options
	log     *slog.Logger
	metrics *metrics

	running sync.Mutex // held for a run; guards cursor
	cursor  cursor     // where an unfinished look at the holds stopped

	mu     sync.Mutex // guards the schedule
	cron   *cron.Cron
	cancel context.CancelFunc
}

// New checks the options. It does not connect.
func New(pool *pgxpool.Pool, opts Options) (*Reconciler, error) {
	if err := opts.Policy.Validate(); err != nil {
		return nil, fmt.Errorf("reconcile policy: %w", err)
	}
	if opts.Topic == "" {
		opts.Topic = events.TopicEvents
	}
	if opts.Schedule == "" {
		opts.Schedule = "* * * * *"
	}
	if _, err := cron.ParseStandard(opts.Schedule); err != nil {
		return nil, fmt.Errorf("reconcile schedule %q: %w", opts.Schedule, err)
	}
	if opts.RunTimeout <= 0 {
		opts.RunTimeout = 5 * time.Minute
	}
	if opts.SettleTimeout <= 0 {
		opts.SettleTimeout = 5 * time.Second
	}
	if opts.RetryAfter <= 0 {
		opts.RetryAfter = 10 * time.Minute
	}
	if opts.PageSize <= 0 {
		opts.PageSize = 500
	}
	if opts.Name == "" {
		host, _ := os.Hostname() // a name for people; empty is as good
		opts.Name = fmt.Sprintf("%s/%d", host, os.Getpid())
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	m, err := newMetrics(opts.Registerer)
	if err != nil {
		return nil, err
	}
	return &Reconciler{pool: pool, opts: opts, log: opts.Logger, metrics: m}, nil
}

// querier is what a pool and a connection have in common.
type querier interface {
	Begin(ctx context.Context) (pgx.Tx, error)
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// inTx runs fn in a transaction. The rollback after a failed fn is done even
// when ctx has ended, so that the leader's connection stays usable.
func inTx(ctx context.Context, q querier, fn func(pgx.Tx) error) error {
	tx, err := q.Begin(ctx)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	if err := fn(tx); err != nil {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if rollbackErr := tx.Rollback(clean); rollbackErr != nil && !errors.Is(rollbackErr, pgx.ErrTxClosed) {
			err = errors.Join(err, fmt.Errorf("roll back: %w", rollbackErr))
		}
		return err
	}
	if err := tx.Commit(ctx); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}
