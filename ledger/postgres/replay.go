package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"tollgate/events"
	"tollgate/ledger"
)

// ErrNotEmpty says that a replay's target has a ledger already.
var ErrNotEmpty = errors.New("the target database has a ledger already; a replay needs an empty one")

// LogReader reads a whole log from its beginning: it calls fn with a
// partition's records in order and without overlap. Several partitions may call
// it at the same time. Records stay valid after fn returns.
type LogReader func(ctx context.Context, fn func(partition int, records []events.Record) error) error

// ReplayOptions say what to do with the log.
type ReplayOptions struct {
	// DryRun folds in memory and writes nothing; the target may be "".
	DryRun bool
	// Original is compared with the log: every row and the hashes of every
	// partition, as far as the original has folded. Nil compares nothing.
	Original *Store
	// Topic of the log; default events.TopicEvents.
	Topic string
	// Now gives the target's rolling window where there is no original; zero is
	// the present.
	Now time.Time
}

// ReplayReport is what a replay did.
type ReplayReport struct {
	Partitions []ledger.RefoldedPartition `json:"partitions"`
	Counts     ledger.Counts              `json:"counts"`
	// Skipped counts records that the original has not folded yet.
	Skipped     int64        `json:"skipped"`
	Compared    bool         `json:"compared"`
	Differences []Difference `json:"differences"` // Want is the log's, Got the original's
	More        bool         `json:"more,omitempty"`
}

// OK says that nothing differs.
func (r *ReplayReport) OK() bool { return len(r.Differences) == 0 }

// Err returns nil or an error that names the first difference.
func (r *ReplayReport) Err() error {
	if r.OK() {
		return nil
	}
	return fmt.Errorf("the ledger is not what the log gives: %s (%d differences)", r.Differences[0], len(r.Differences))
}

// replayBatch is the size of a replay's batches.
const replayBatch = 8192

// Replay folds a log from its beginning into an empty database and compares it
// with the ledger that was folded from the same log.
//
// The target must be migrated and without a ledger (else ErrNotEmpty). It is
// loaded in bulk: indexes are made after the rows. A replay that fails leaves a
// target that is good for nothing but to be dropped. Batches are cut anew, so
// chain hashes differ from the original's; tree roots do not depend on cuts.
//
// progress, if not nil, is called with the number of records read so far.
func Replay(ctx context.Context, read LogReader, targetURL string, opts ReplayOptions, progress func(done int64)) (*ReplayReport, error) {
	if opts.Topic == "" {
		opts.Topic = events.TopicEvents
	}
	r := &replay{opts: opts, progress: progress, fold: ledger.NewRefold(opts.Topic), pending: make(map[int][]events.Record)}
	run := func(original pgx.Tx) error { return r.run(ctx, read, targetURL, original) }
	var err error
	if opts.Original == nil {
		err = run(nil)
	} else {
		// One snapshot of the original says how far to fold and is compared.
		err = opts.Original.snapshot(ctx, run)
	}
	if err != nil {
		return nil, fmt.Errorf("replay: %w", err)
	}
	return &r.report, nil
}

type replay struct {
	opts     ReplayOptions
	progress func(int64)
	fold     *ledger.Refold
	target   *replayTarget // nil in a dry run
	until    map[int]int64 // nil: everything
	standing []Progress    // of the original
	report   ReplayReport

	mu      sync.Mutex
	pending map[int][]events.Record // by partition: less than a batch
	done    int64
}

func (r *replay) run(ctx context.Context, read LogReader, targetURL string, original pgx.Tx) (err error) {
	window := ledger.WindowAt(r.now())
	if original != nil {
		if r.standing, err = readProgress(ctx, original, r.opts.Original.topic); err != nil {
			return err
		}
		r.until = make(map[int]int64)
		for _, p := range r.standing {
			r.until[p.Partition] = p.Next
		}
		w, err := readWindow(ctx, original)
		if err != nil {
			return err
		}
		window = ledger.Window{} // as long as the original has closed no hour
		if w != nil {
			window = *w
		}
	}
	if !r.opts.DryRun {
		config, err := pgxpool.ParseConfig(targetURL)
		if err != nil {
			return fmt.Errorf("open the target: %w", err)
		}
		config.MaxConns = max(config.MaxConns, replayWriters+2)
		pool, err := pgxpool.NewWithConfig(ctx, config)
		if err != nil {
			return fmt.Errorf("open the target: %w", err)
		}
		defer pool.Close()
		if r.target, err = newReplayTarget(ctx, New(pool, Options{Topic: r.opts.Topic})); err != nil {
			return err
		}
		defer r.target.close()
	}
	if err := read(ctx, func(partition int, records []events.Record) error {
		return r.take(ctx, partition, records)
	}); err != nil {
		return err
	}
	for partition, records := range r.pending {
		if len(records) > 0 {
			if err := r.batch(ctx, partition, records); err != nil {
				return err
			}
		}
	}
	r.report.Partitions = r.fold.Partitions()
	for _, p := range r.report.Partitions {
		r.report.Counts.Add(p.Counts)
	}
	indexed := func() error { return nil }
	if r.target != nil {
		// The journal is whole: its indexes are made while the rest is summed and
		// loaded.
		indexed = r.target.indexJournal(ctx)
		defer func() { err = errors.Join(err, indexed()) }()
	}
	// What a partition's sums could not take is a dead letter of the refold, as it
	// was of the ledger. Sums over several partitions end at the range's end.
	sums := r.fold.Sums()
	if r.target != nil {
		if err := r.target.finish(ctx, &sums, r.report.Partitions, window, indexed); err != nil {
			return err
		}
	}
	if original != nil {
		r.report.Compared = true
		return r.compare(ctx, original, &sums, window)
	}
	return nil
}

func (r *replay) now() time.Time {
	if r.opts.Now.IsZero() {
		return time.Now()
	}
	return r.opts.Now
}

// take cuts a partition's records into batches. The records of one partition
// come from one goroutine.
func (r *replay) take(ctx context.Context, partition int, records []events.Record) error {
	r.mu.Lock()
	held := r.pending[partition]
	r.pending[partition] = nil
	r.done += int64(len(records))
	if r.progress != nil {
		r.progress(r.done)
	}
	r.mu.Unlock()

	if r.until != nil {
		n := len(records)
		for n > 0 && records[n-1].Offset >= r.until[partition] {
			n--
		}
		r.mu.Lock()
		r.report.Skipped += int64(len(records) - n)
		r.mu.Unlock()
		records = records[:n]
	}
	held = append(held, records...)
	rest := held
	for len(rest) >= replayBatch {
		if err := r.batch(ctx, partition, rest[:replayBatch]); err != nil {
			return err
		}
		rest = rest[replayBatch:]
	}
	// A batch that is written needs its records no more: the rest moves to the
	// front of the same memory.
	held = held[:copy(held, rest)]
	r.mu.Lock()
	r.pending[partition] = held
	r.mu.Unlock()
	return nil
}

func (r *replay) batch(ctx context.Context, partition int, records []events.Record) error {
	out, err := r.fold.Add(partition, records)
	if err != nil {
		return err
	}
	out.Link.CommittedAt = time.Now().UTC().Truncate(time.Microsecond)
	r.fold.Seal(&out.Link)
	if r.target == nil {
		return nil
	}
	return r.target.write(ctx, out)
}

func readWindow(ctx context.Context, tx pgx.Tx) (*ledger.Window, error) {
	var w ledger.Window
	err := tx.QueryRow(ctx, "SELECT window_start, closed_through FROM usage_window").Scan(&w.Start, &w.ClosedThrough)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	return &w, err
}
