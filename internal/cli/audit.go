package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"tollgate/events"
	"tollgate/internal/app"
	"tollgate/ledger"
	ledgerpg "tollgate/ledger/postgres"
	"tollgate/migrations"
)

type verifyCmd struct {
	SumsOnly bool `name:"sums-only" help:"Only compare sums: journal, reservations, hour buckets, 30-day bucket."`
	Workers  int  `help:"Partitions read at once." default:"2"`
}

// Help implements kong.HelpProvider.
func (verifyCmd) Help() string {
	return `Recomputes every hash from the stored columns and every sum from the journal, at one snapshot.
Status 1 when something differs; the first wrong batch is named, and the row where it can be told.

Examples:
  tollgate verify
  tollgate verify --sums-only --json`
}

// Run verifies the ledger.
func (c *verifyCmd) Run(e *env) error {
	if c.Workers < 1 || c.Workers > 64 {
		return usagef("--workers must be 1 to 64")
	}
	pool, err := e.database()
	if err != nil {
		return err
	}
	defer pool.Close()
	store := ledgerpg.New(pool, ledgerpg.Options{})
	if c.SumsOnly {
		report, err := store.Check(e.ctx)
		if err != nil {
			return err
		}
		if err := e.value(report, func() error { return e.sums(report) }); err != nil {
			return err
		}
		return withStatus(ExitDiffers, report.Err())
	}
	bar := e.progress(-1, "events")
	report, err := store.Verify(e.ctx, ledgerpg.VerifyOptions{Workers: c.Workers}, func(done, total int64) {
		bar.ChangeMax64(total)
		_ = bar.Set64(done) // a bar that cannot be drawn is no reason to stop
	})
	_ = bar.Finish()
	if err != nil {
		return err
	}
	if err := e.value(report, func() error { return e.verified(report) }); err != nil {
		return err
	}
	return withStatus(ExitDiffers, report.Err())
}

func (e *env) verified(r *ledgerpg.VerifyReport) error {
	fmt.Fprintf(e.out, "%s events in %s batches of %d partitions: %d faults.\n", count(r.Events), count(r.Batches), r.Partitions, len(r.Faults))
	for _, f := range r.Faults {
		fmt.Fprintf(e.out, "  %s\n", f)
	}
	if r.Check == nil {
		return nil
	}
	fmt.Fprintln(e.out)
	return e.sums(r.Check)
}

func (e *env) sums(r *ledgerpg.CheckReport) error {
	row := func(name string, a ledger.Amount) []string {
		return []string{name, count(a.Requests), count(a.InputTokens), count(a.OutputTokens), count(a.GPUMillis), count(a.MilliUnits)}
	}
	reservations := row("reservations", r.Reservations)
	reservations[1] = "-" // they do not count requests
	err := e.table([]string{"SUM OF", "REQUESTS", "INPUT TOKENS", "OUTPUT TOKENS", "GPU MS", "MILLI-UNITS"}, [][]string{
		row("journal", r.Journal),
		reservations,
		row("usage_hour", r.Hours),
		row("usage_30d + open hour", r.Rolling30d()),
		row("before the 30 days", r.BeforeWindow),
	})
	if err != nil {
		return err
	}
	c := r.Counts
	fmt.Fprintf(e.out, "\nConsumed %s = folded %s + duplicates %s + dead letters %s + conflicts %s. Incomplete reservations: %s.\n",
		count(c.Consumed), count(c.Folded), count(c.Duplicates), count(c.DeadLettered), count(c.Conflicts), count(r.Incomplete))
	for _, d := range r.Differences {
		fmt.Fprintf(e.out, "DIFFERS  %s\n", d)
	}
	return nil
}

type replayCmd struct {
	Target string `help:"URL of an empty database to fold into; it is migrated first." env:"TOLLGATE_REPLAY_TARGET" placeholder:"URL"`
	File   string `help:"Read the log from a file that \"tollgate export\" wrote instead of Kafka." type:"existingfile"`
	DryRun bool   `help:"Fold in memory, compare, and write nothing."`
	Alone  bool   `help:"Do not compare with the configured database."`
}

// Help implements kong.HelpProvider.
func (replayCmd) Help() string {
	return `Folds the event log from its beginning and compares every row and every partition's tree root with
the configured ledger. Status 1 when something differs.

Examples:
  tollgate replay --dry-run
  createdb replayed && tollgate replay --target postgres://localhost/replayed
  tollgate replay --file events.jsonl --dry-run`
}

// Run replays the log.
func (c *replayCmd) Run(e *env) error {
	if (c.Target == "") != c.DryRun {
		return usagef("say where to fold: --target URL of an empty database, or --dry-run")
	}
	cfg, err := e.config()
	if err != nil {
		return err
	}
	if !c.DryRun {
		if err := freeTarget(e.ctx, c.Target, cfg.Postgres.URL.Reveal()); err != nil {
			return err
		}
	}
	opts := ledgerpg.ReplayOptions{DryRun: c.DryRun}
	if !c.Alone {
		pool, err := e.database()
		if err != nil {
			return err
		}
		defer pool.Close()
		opts.Original = ledgerpg.New(pool, ledgerpg.Options{})
	}
	if !c.DryRun {
		if err := migrations.Up(e.ctx, c.Target); err != nil {
			return fmt.Errorf("migrate the target: %w", err)
		}
	}
	var read ledgerpg.LogReader
	if c.File != "" {
		read = fileReader(c.File)
	} else {
		client, err := app.NewKafka(cfg, e.logger(cfg))
		if err != nil {
			return err
		}
		defer client.Close()
		if err := logThere(e.ctx, client, events.TopicEvents); err != nil {
			return err
		}
		read = func(ctx context.Context, fn func(int, []events.Record) error) error {
			_, err := client.ReadAll(ctx, events.TopicEvents, nil, fn)
			return err
		}
	}
	bar := e.progress(-1, "records")
	report, err := ledgerpg.Replay(e.ctx, read, c.Target, opts, func(done int64) { _ = bar.Set64(done) })
	_ = bar.Finish()
	if err != nil {
		return err
	}
	if err := e.value(report, func() error { return e.replayed(report) }); err != nil {
		return err
	}
	return withStatus(ExitDiffers, report.Err())
}

// freeTarget refuses a target that is in use, before it is migrated or locked:
// a replay takes every lock on its tables, and the configured database's own
// ledger would wait for it.
func freeTarget(ctx context.Context, target, configured string) error {
	ask := func(url string) (server time.Time, database string, used bool, err error) {
		conn, err := pgx.Connect(ctx, url)
		if err != nil {
			return server, "", false, fmt.Errorf("connect to PostgreSQL: %w", err)
		}
		defer conn.Close(ctx)
		var tables bool
		if err = conn.QueryRow(ctx, `SELECT pg_postmaster_start_time(), current_database(), to_regclass('fold_progress') IS NOT NULL AND to_regclass('journal') IS NOT NULL`).
			Scan(&server, &database, &tables); err != nil || !tables {
			return server, database, false, err
		}
		err = conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM fold_progress) OR EXISTS (SELECT FROM journal)`).Scan(&used)
		return server, database, used, err
	}
	server, database, used, err := ask(target)
	if err != nil {
		return fmt.Errorf("look at the target: %w", err)
	}
	if used {
		return withStatus(ExitConflict, ledgerpg.ErrNotEmpty)
	}
	if configured == "" {
		return nil
	}
	own, name, _, err := ask(configured)
	if err == nil && own.Equal(server) && name == database {
		return withStatus(ExitConflict, errors.New("the target is the configured database itself; a replay needs one of its own"))
	}
	return nil // a configured database that is out of reach is told by whoever needs it
}

func (e *env) replayed(r *ledgerpg.ReplayReport) error {
	rows := make([][]string, len(r.Partitions))
	for i, p := range r.Partitions {
		rows[i] = []string{fmt.Sprint(p.Partition), count(p.Counts.Consumed), count(p.Counts.Folded), count(int64(p.TreeSize)), fmt.Sprintf("%x", p.TreeRoot)}
	}
	if err := e.table([]string{"PARTITION", "RECORDS", "FOLDED", "TREE SIZE", "TREE ROOT"}, rows); err != nil {
		return err
	}
	fmt.Fprintf(e.out, "\nConsumed %s, folded %s, duplicates %s, dead letters %s, conflicts %s; not folded by the original yet: %s.\n",
		count(r.Counts.Consumed), count(r.Counts.Folded), count(r.Counts.Duplicates), count(r.Counts.DeadLettered), count(r.Counts.Conflicts), count(r.Skipped))
	for _, d := range r.Differences {
		fmt.Fprintf(e.out, "DIFFERS  %s\n", d)
	}
	if r.Compared && r.OK() {
		fmt.Fprintln(e.out, "Equal to the configured ledger: every row, every tree root.")
	}
	return nil
}
