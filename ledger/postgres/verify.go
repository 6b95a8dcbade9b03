package postgres

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/jackc/pgx/v5"
)

// VerifyOptions say how to verify. The zero value verifies everything.
type VerifyOptions struct {
	// Workers is how many partitions are read at once; default 2.
	Workers int
	// SkipCheck leaves Check out.
	SkipCheck bool
	// SumInMemory is up to how many events the sums are computed in memory, from
	// the rows as they are read, which needs about 500 bytes for each
	// reservation; a larger ledger is summed by the database. Default 4 million;
	// negative: always by the database.
	SumInMemory int64
}

// Fault is something in the audit trail that is not as it was written.
type Fault struct {
	Partition int    `json:"partition"`
	Batch     int64  `json:"batch"` // 0: behind all batches, or the partition as a whole
	What      string `json:"what"`
	// EventID and Offset name the row where it can be told.
	EventID string `json:"event_id,omitempty"`
	Offset  *int64 `json:"offset,omitempty"`
}

// String implements fmt.Stringer.
func (f Fault) String() string {
	s := fmt.Sprintf("partition %d", f.Partition)
	if f.Batch != 0 {
		s += fmt.Sprintf(" batch %d", f.Batch)
	}
	if f.Offset != nil {
		s += fmt.Sprintf(" offset %d", *f.Offset)
	}
	if f.EventID != "" {
		s += fmt.Sprintf(" event %q", f.EventID)
	}
	return s + ": " + f.What
}

// VerifyReport is what Verify found. Faults are in order of partition and
// batch, so the first is the first wrong batch.
type VerifyReport struct {
	Partitions int          `json:"partitions"`
	Batches    int64        `json:"batches"`
	Events     int64        `json:"events"`
	Faults     []Fault      `json:"faults"`
	More       bool         `json:"more,omitempty"`  // there are more faults than are named
	Check      *CheckReport `json:"check,omitempty"` // nil where it was skipped
}

// OK says that nothing was found.
func (r *VerifyReport) OK() bool {
	return len(r.Faults) == 0 && (r.Check == nil || r.Check.OK())
}

// Err returns nil or an error that names the first fault.
func (r *VerifyReport) Err() error {
	if len(r.Faults) > 0 {
		return fmt.Errorf("the journal is not what was written: %s (%d faults)", r.Faults[0], len(r.Faults))
	}
	if r.Check != nil {
		return r.Check.Err()
	}
	return nil
}

// maxFaults bounds how many faults of one partition are named.
const maxFaults = 100

// sumInMemory is VerifyOptions.SumInMemory's default.
const sumInMemory = 4_000_000

// Verify recomputes, from the stored columns and at one snapshot, every leaf,
// batch root, chain hash and tree root, and holds them against what the flushes
// recorded. A changed, added or removed row or batch record is found, and named
// as closely as the hashes allow. Columns that the chain does not cover are
// those that tell who works now: owner, owner_epoch and updated_at of
// fold_progress. The sums are those of Check, computed from the same reading of
// the rows where that is possible.
//
// What no hash inside the database can show is that its newest batches were
// removed together with all that speaks of them; the log, or a root that was
// noted elsewhere, does (see Replay).
//
// progress, if not nil, is called with the number of events done and of all.
func (s *Store) Verify(ctx context.Context, opts VerifyOptions, progress func(done, total int64)) (*VerifyReport, error) {
	r := new(VerifyReport)
	err := s.snapshot(ctx, func(tx pgx.Tx) error { return s.verify(ctx, tx, opts, progress, r) })
	if err != nil {
		return nil, fmt.Errorf("verify the ledger: %w", err)
	}
	slices.SortStableFunc(r.Faults, func(a, b Fault) int {
		// 0 comes after every batch.
		return cmp.Or(cmp.Compare(a.Partition, b.Partition), cmp.Compare(uint64(a.Batch-1), uint64(b.Batch-1)))
	})
	return r, nil
}

func (s *Store) verify(ctx context.Context, tx pgx.Tx, opts VerifyOptions, progress func(done, total int64), r *VerifyReport) error {
	var snapshot string
	if err := tx.QueryRow(ctx, "SELECT pg_export_snapshot()").Scan(&snapshot); err != nil {
		return err
	}
	standings, err := readProgress(ctx, tx, s.topic)
	if err != nil {
		return err
	}
	// Batch records of a partition that has no standing are somebody's work,
	// too; its journal rows are found by Check.
	orphans, err := tx.Query(ctx, `SELECT DISTINCT topic_partition FROM batches WHERE topic = $1
		AND topic_partition NOT IN (SELECT topic_partition FROM fold_progress WHERE topic = $1)`, s.topic)
	if err != nil {
		return err
	}
	lost, err := pgx.CollectRows(orphans, pgx.RowTo[int])
	if err != nil {
		return err
	}
	for _, p := range lost {
		r.Faults = append(r.Faults, Fault{Partition: p, What: "fold_progress has no row for the partition"})
		standings = append(standings, Progress{Topic: s.topic, Partition: p})
	}
	r.Partitions = len(standings)
	v := &verification{store: s, progress: progress, rows: make(map[int]int64)}
	for _, p := range standings {
		v.total += p.TreeSize
	}

	if opts.Workers <= 0 {
		opts.Workers = 2
	}
	if opts.SumInMemory == 0 {
		opts.SumInMemory = sumInMemory
	}
	if !opts.SkipCheck && v.total <= opts.SumInMemory {
		v.limits = newSumLimits(opts.SumInMemory)
	}
	work := make(chan Progress)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for range min(opts.Workers, len(standings)) {
		wg.Go(func() {
			if err := v.worker(ctx, snapshot, work); err != nil {
				cancel(err)
			}
		})
	}
	// The main connection has the same snapshot and nothing else to do.
	stored := make(chan *storedSums, 1)
	wg.Go(func() {
		s, err := v.readSums(ctx, tx, opts, r)
		if err != nil {
			cancel(err)
		}
		stored <- s
	})
feed:
	for _, p := range standings {
		select {
		case work <- p:
		case <-ctx.Done():
			break feed
		}
	}
	close(work)
	wg.Wait()
	r.Batches, r.Events, r.More = v.batches, v.events, v.more
	r.Faults = append(r.Faults, v.faults...)
	if err := context.Cause(ctx); err != nil || v.limits == nil {
		return err
	}
	return v.checkSums(ctx, tx, <-stored, r)
}

// verification is the work of all workers together.
type verification struct {
	store    *Store
	progress func(done, total int64)
	total    int64
	limits   *sumLimits // nil: nothing is summed in memory

	mu              sync.Mutex
	sums            []*rowSums    // one of each worker
	rows            map[int]int64 // of the journal, by partition
	batches, events int64
	faults          []Fault
	more            bool
}

func (v *verification) advance(batches, events int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.batches += batches
	v.events += events
	if v.progress != nil {
		v.progress(v.events, max(v.total, v.events))
	}
}

func (v *verification) worker(ctx context.Context, snapshot string, work <-chan Progress) error {
	return v.store.snapshot(ctx, func(tx pgx.Tx) error { return v.partitions(ctx, tx, work) }, snapshot)
}

func (v *verification) partitions(ctx context.Context, tx pgx.Tx, work <-chan Progress) error {
	var sums *rowSums
	if v.limits != nil {
		sums = newRowSums(v.limits)
		v.mu.Lock()
		v.sums = append(v.sums, sums)
		v.mu.Unlock()
	}
	for p := range work {
		w := newPartitionVerifier(v, tx, p, sums)
		err := w.run(ctx)
		v.mu.Lock()
		v.rows[p.Partition] = w.rows
		v.faults = append(v.faults, w.faults...)
		v.more = v.more || w.more
		v.mu.Unlock()
		if err != nil {
			return fmt.Errorf("partition %d: %w", p.Partition, err)
		}
	}
	return nil
}

// readSums reads, while the workers read the journal, what its rows should sum
// up to; where they are not summed in memory, it checks all.
func (v *verification) readSums(ctx context.Context, tx pgx.Tx, opts VerifyOptions, r *VerifyReport) (*storedSums, error) {
	if opts.SkipCheck {
		return nil, nil
	}
	r.Check = new(CheckReport)
	if v.limits == nil {
		return nil, v.store.check(ctx, tx, r.Check)
	}
	if err := readTotals(ctx, tx, r.Check); err != nil {
		return nil, err
	}
	if err := r.Check.checkWindow(ctx, tx); err != nil {
		return nil, err
	}
	return readStoredSums(ctx, tx, v.limits)
}

// checkSums finishes the check with what the workers summed. Where anything
// differs, the database checks all, and names what differs.
func (v *verification) checkSums(ctx context.Context, tx pgx.Tx, stored *storedSums, r *VerifyReport) error {
	sums := newRowSums(v.limits)
	for i, s := range v.sums {
		if i == 0 {
			sums = s
			continue
		}
		sums.merge(s)
	}
	c := r.Check
	if err := v.store.checkPartitions(ctx, tx, c, v.rows); err != nil {
		return err
	}
	strangers, err := v.strangers(ctx, tx)
	if err != nil {
		return err
	}
	if strangers || !c.OK() || !sums.agree(stored) {
		r.Check = new(CheckReport)
		return v.store.check(ctx, tx, r.Check)
	}
	c.Journal, c.Reservations, c.Incomplete = sums.all, stored.all, stored.incomplete
	if v.limits.twice.Load() {
		return c.checkEnds(ctx, tx)
	}
	return nil
}

// strangers says whether the journal has rows of partitions that no worker read.
func (v *verification) strangers(ctx context.Context, tx pgx.Tx) (bool, error) {
	rows, err := tx.Query(ctx, sqlJournalPartitions)
	if err != nil {
		return false, err
	}
	partitions, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil {
		return false, err
	}
	for _, p := range partitions {
		if _, ok := v.rows[p]; !ok {
			return true, nil
		}
	}
	return false, nil
}

// sqlJournalPartitions goes from one partition to the next by the index.
const sqlJournalPartitions = `WITH RECURSIVE p AS (
		SELECT min(topic_partition) AS n FROM journal
	UNION ALL
		SELECT (SELECT min(topic_partition) FROM journal WHERE topic_partition > p.n) FROM p WHERE p.n IS NOT NULL
	) SELECT n FROM p WHERE n IS NOT NULL`
