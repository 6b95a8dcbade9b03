package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"tollgate/ledger"
	"tollgate/ledger/internal/pgcopy"
)

var (
	journalColumns = strings.Join(ledger.Columns, ", ")
	sqlCopyJournal = "COPY journal (" + journalColumns + ") FROM STDIN BINARY"
	sqlCopyStage   = "COPY fold_stage (" + journalColumns + ") FROM STDIN BINARY"
)

// Flush implements ledger.Store.
//
// The usual batch holds only new events: it is copied into the journal, and the
// sums computed while it was decoded are added. If the copy meets an id that is
// there already, the savepoint takes it back and the slow path sorts out which
// rows are new, which repeat and which contradict.
func (s *Store) Flush(ctx context.Context, lease ledger.Lease, b *ledger.Batch) (ledger.Lease, ledger.Counts, error) {
	next, counts, err := lease, ledger.Counts{}, error(nil)
	if b.Topic != lease.Topic || b.Partition != lease.Partition || b.First < lease.Next {
		return lease, counts, fmt.Errorf("batch of %s/%d from %d does not follow the lease of %s/%d at %d",
			b.Topic, b.Partition, b.First, lease.Topic, lease.Partition, lease.Next)
	}
	s.makePartitions(ctx, b.Days())
	err = restart(ctx, func() error {
		next, counts, err = s.flushOnce(ctx, lease, b)
		return err
	})
	if err != nil {
		return lease, ledger.Counts{}, fmt.Errorf("flush offsets %d to %d of %s/%d: %w",
			b.First, b.Last, b.Topic, b.Partition, classify(err))
	}
	return next, counts, nil
}

// standing is the partition's row as a flush finds it.
type standing struct {
	next, epoch int64
	owner       string
	chain       []byte
	treeSize    int64
	treeRange   []byte
	lastBatch   int64
	window      ledger.Window
}

func (s *Store) flushOnce(ctx context.Context, lease ledger.Lease, b *ledger.Batch) (ledger.Lease, ledger.Counts, error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return lease, ledger.Counts{}, err
	}
	defer conn.Release()
	tx, err := conn.Begin(ctx)
	if err != nil {
		return lease, ledger.Counts{}, err
	}
	// After a commit this does nothing. The batch's own context may be over.
	defer rollback(ctx, tx)

	at, err := s.enter(ctx, tx, lease)
	if err != nil {
		return lease, ledger.Counts{}, err
	}
	if at.next == b.Last+1 && at.next != lease.Next {
		// An earlier attempt of this owner committed, and its answer was lost.
		return s.committed(ctx, tx, lease, b)
	}
	if at.next != lease.Next {
		return lease, ledger.Counts{}, ledger.ErrFenced
	}
	out, err := s.journal(ctx, tx, b)
	if err != nil {
		return lease, ledger.Counts{}, err
	}
	if err := s.record(ctx, tx, at, b, out); err != nil {
		return lease, ledger.Counts{}, err
	}
	if err := tx.Commit(ctx); err != nil {
		return lease, ledger.Counts{}, err
	}
	lease.Next = b.Last + 1
	return lease, out.counts, nil
}

// rollback ends a transaction whatever became of its context.
func rollback(ctx context.Context, tx pgx.Tx) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	_ = tx.Rollback(ctx) // a lost connection rolls back by itself
}

// enter takes the locks in their order and checks the fence.
func (s *Store) enter(ctx context.Context, tx pgx.Tx, lease ledger.Lease) (standing, error) {
	var at standing
	q := &pgx.Batch{}
	// Each statement sees what was committed before it began, so the window is
	// read as it stands under the lock.
	q.Queue("SELECT pg_advisory_xact_lock_shared($1)", int64(WindowLock))
	q.Queue(`SELECT next_offset, owner, owner_epoch, chain_hash, tree_size, tree_range, last_batch
		FROM fold_progress WHERE topic = $1 AND topic_partition = $2 FOR UPDATE`,
		lease.Topic, lease.Partition).QueryRow(func(row pgx.Row) error {
		err := row.Scan(&at.next, &at.owner, &at.epoch, &at.chain, &at.treeSize, &at.treeRange, &at.lastBatch)
		if errors.Is(err, pgx.ErrNoRows) {
			return ledger.ErrFenced
		}
		return err
	})
	q.Queue("SELECT window_start, closed_through FROM usage_window").QueryRow(func(row pgx.Row) error {
		err := row.Scan(&at.window.Start, &at.window.ClosedThrough)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil // no hour was ever closed: every hour counts as open
		}
		return err
	})
	q.Queue("SAVEPOINT journal")
	if err := tx.SendBatch(ctx, q).Close(); err != nil {
		return at, err
	}
	if at.owner != lease.Owner || at.epoch != lease.Epoch {
		return at, ledger.ErrFenced
	}
	return at, nil
}

// committed returns the counts of a batch that is in the ledger already.
func (s *Store) committed(ctx context.Context, tx pgx.Tx, lease ledger.Lease, b *ledger.Batch) (ledger.Lease, ledger.Counts, error) {
	var c ledger.Counts
	err := tx.QueryRow(ctx, `SELECT consumed, folded, duplicates, dead_lettered, conflicts FROM batches
		WHERE topic = $1 AND topic_partition = $2 AND first_offset = $3 AND last_offset = $4`,
		b.Topic, b.Partition, b.First, b.Last).Scan(&c.Consumed, &c.Folded, &c.Duplicates, &c.DeadLettered, &c.Conflicts)
	if errors.Is(err, pgx.ErrNoRows) {
		return lease, c, ledger.ErrFenced
	}
	if err != nil {
		return lease, c, err
	}
	lease.Next = b.Last + 1
	return lease, c, nil
}

// outcome is what journal found.
type outcome struct {
	sums      ledger.Sums
	leaves    [][]byte // of the folded events, in offset order
	counts    ledger.Counts
	conflicts []conflict
}

type conflict struct {
	entry *ledger.Entry
	kept  []byte
	value []byte
}

// journal writes the batch's rows and says which of them count.
func (s *Store) journal(ctx context.Context, tx pgx.Tx, b *ledger.Batch) (*outcome, error) {
	out := &outcome{counts: ledger.Counts{
		Consumed:     int64(b.Consumed),
		DeadLettered: int64(len(b.DeadLetters)),
	}}
	stored := make(map[int]storedRow) // entries whose id was there before
	if len(b.Entries) > 0 {
		_, err := tx.Conn().PgConn().CopyFrom(ctx, pgcopy.Reader(b.CopyData()), sqlCopyJournal)
		switch {
		case err == nil:
			out.sums = b.Sums
		case sqlState(err) == uniqueViolation:
			if stored, err = s.journalSlowly(ctx, tx, b); err != nil {
				return nil, err
			}
			out.sums = b.Sum(func(i int) bool { _, old := stored[i]; return !old })
		default:
			return nil, err
		}
	}
	out.leaves = make([][]byte, 0, len(b.Entries))
	for i := range b.Entries {
		if old, ok := stored[i]; ok {
			out.repeat(&b.Entries[i], b.Row(i), b.Value(i), old)
			continue
		}
		out.leaves = append(out.leaves, b.Entries[i].Leaf[:])
		out.counts.Folded++
	}
	for i := range b.Repeats {
		r := &b.Repeats[i]
		first, ok := stored[r.Of]
		if !ok {
			first = storedRow{row: b.Row(r.Of), leaf: b.Entries[r.Of].Leaf[:]}
		}
		out.repeat(&r.Entry, r.Row, r.Value, first)
	}
	return out, out.counts.Check()
}

// repeat counts an event whose id the journal has: once more the same, or a
// contradiction.
func (o *outcome) repeat(e *ledger.Entry, row, value []byte, kept storedRow) {
	if ledger.SameEvent(row, kept.row) {
		o.counts.Duplicates++
		return
	}
	o.counts.Conflicts++
	o.conflicts = append(o.conflicts, conflict{entry: e, kept: kept.leaf, value: value})
}

// storedRow is a row of the journal in canonical encoding.
type storedRow struct{ row, leaf []byte }

// journalSlowly inserts what is new and returns the stored rows of what is not.
func (s *Store) journalSlowly(ctx context.Context, tx pgx.Tx, b *ledger.Batch) (map[int]storedRow, error) {
	for _, statement := range []string{
		"ROLLBACK TO SAVEPOINT journal",
		"CREATE TEMPORARY TABLE IF NOT EXISTS fold_stage (LIKE journal) ON COMMIT DELETE ROWS",
	} {
		if _, err := tx.Exec(ctx, statement); err != nil {
			return nil, err
		}
	}
	if _, err := tx.Conn().PgConn().CopyFrom(ctx, pgcopy.Reader(b.CopyData()), sqlCopyStage); err != nil {
		return nil, err
	}
	rows, err := tx.Query(ctx, "INSERT INTO journal ("+journalColumns+") SELECT "+journalColumns+
		" FROM fold_stage ORDER BY day, event_id ON CONFLICT DO NOTHING RETURNING topic_offset")
	if err != nil {
		return nil, err
	}
	inserted := make(map[int64]bool, len(b.Entries))
	var offset int64
	if _, err := pgx.ForEachRow(rows, []any{&offset}, func() error { inserted[offset] = true; return nil }); err != nil {
		return nil, err
	}
	var old []int
	for i := range b.Entries {
		if !inserted[b.Entries[i].Offset] {
			old = append(old, i)
		}
	}
	return s.readStored(ctx, tx, b, old)
}

// readStored reads the journal's rows with the ids of the given entries.
func (s *Store) readStored(ctx context.Context, tx pgx.Tx, b *ledger.Batch, old []int) (map[int]storedRow, error) {
	byID := make(map[string]int, len(old))
	days, ids := make([]time.Time, len(old)), make([]string, len(old))
	for n, i := range old {
		e := &b.Entries[i]
		byID[e.EventID] = i
		days[n], ids[n] = time.Unix(e.Day*86400, 0).UTC(), e.EventID
	}
	// A row that another transaction inserted meanwhile is visible here: this
	// statement has a newer snapshot than the insert that waited for it.
	rows, err := tx.Query(ctx, "SELECT "+qualified("j")+` FROM journal j
		JOIN unnest($1::date[], $2::text[]) AS o (day, event_id) ON j.day = o.day AND j.event_id = o.event_id`,
		pgx.QueryResultFormats{pgx.BinaryFormatCode}, days, ids)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	stored := make(map[int]storedRow, len(old))
	for rows.Next() {
		raw := rows.RawValues()
		var row []byte
		for _, column := range raw[:ledger.ColumnLeaf] {
			row = pgcopy.Bytes(row, column)
		}
		i, ok := byID[string(raw[ledger.ColumnEventID])]
		if !ok {
			return nil, errors.New("journal returned a row that was not asked for")
		}
		stored[i] = storedRow{row: row, leaf: bytes.Clone(raw[ledger.ColumnLeaf])}
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	if len(stored) != len(old) {
		return nil, fmt.Errorf("journal has %d of %d rows that kept others out", len(stored), len(old))
	}
	return stored, nil
}

func qualified(alias string) string {
	return alias + "." + strings.Join(ledger.Columns, ", "+alias+".")
}
