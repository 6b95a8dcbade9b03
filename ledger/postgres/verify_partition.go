package postgres

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/jackc/pgx/v5"

	"tollgate/ledger"
	"tollgate/ledger/internal/pgcopy"
)

// partitionVerifier walks one partition's batch records and rows side by side.
type partitionVerifier struct {
	v    *verification
	tx   pgx.Tx
	at   Progress
	read *journalReader
	sums *rowSums // nil: not summed
	rows int64    // read

	tree   *ledger.Tree
	lost   bool   // a batch is wrong: the tree no longer follows
	chain  []byte // stored chain hash of the batch before
	batch  int64  // its number
	last   int64  // its last offset
	counts ledger.Counts

	queue  []*batchWork // batches whose rows are being read, in order
	faults []Fault
	more   bool
}

func newPartitionVerifier(v *verification, tx pgx.Tx, at Progress, sums *rowSums) *partitionVerifier {
	return &partitionVerifier{
		v: v, tx: tx, at: at, read: newJournalReader(), sums: sums,
		tree: ledger.NewTree(), chain: ledger.Genesis(), last: -1,
	}
}

// batchWork is a batch record and the rows that fall into its offsets.
type batchWork struct {
	link      ledger.Link
	chainHash []byte // as stored
	rows      []verifiedRow
}

func (b *batchWork) holds(offset int64) bool { return b.link.First <= offset && offset <= b.link.Last }

func (w *partitionVerifier) fault(batch int64, row *verifiedRow, what string, args ...any) {
	if len(w.faults) >= maxFaults {
		w.more = true
		return
	}
	f := Fault{Partition: w.at.Partition, Batch: batch, What: fmt.Sprintf(what, args...)}
	if row != nil {
		f.EventID, f.Offset = row.eventID, &row.offset
	}
	w.faults = append(w.faults, f)
}

// Sizes of what is held in memory at once: about rowsAtOnce rows, of at most
// batchesAtOnce batches.
const (
	rowsAtOnce    = 50_000
	batchesAtOnce = 512
)

func (w *partitionVerifier) run(ctx context.Context) error {
	if err := w.readRows(ctx, math.MinInt64, -1); err != nil {
		return err
	}
	for {
		if err := w.nextBatches(ctx); err != nil {
			return err
		}
		if len(w.queue) == 0 {
			break
		}
		to := w.last
		for _, b := range w.queue {
			to = max(to, b.link.Last)
		}
		if err := w.readRows(ctx, w.last+1, to); err != nil {
			return err
		}
		var events int64
		for _, b := range w.queue {
			events += int64(len(b.rows))
			w.check(b)
		}
		w.last = to
		w.v.advance(int64(len(w.queue)), events)
	}
	if w.last < math.MaxInt64 {
		if err := w.readRows(ctx, w.last+1, math.MaxInt64); err != nil {
			return err
		}
	}
	w.checkStanding()
	return nil
}

// nextBatches queues the next batch records.
func (w *partitionVerifier) nextBatches(ctx context.Context) error {
	w.queue = w.queue[:0]
	rows, err := w.tx.Query(ctx, `
		SELECT batch, first_offset, last_offset, consumed, folded, duplicates, dead_lettered, conflicts,
			batch_root, prev_hash, chain_hash, tree_size, tree_root, committed_at
		FROM batches WHERE topic = $1 AND topic_partition = $2 AND batch > $3 ORDER BY batch LIMIT $4`,
		w.at.Topic, w.at.Partition, w.batch, batchesAtOnce)
	if err != nil {
		return err
	}
	defer rows.Close()
	var events int64
	for rows.Next() && events < rowsAtOnce {
		b := &batchWork{link: ledger.Link{Topic: w.at.Topic, Partition: w.at.Partition}}
		l, c := &b.link, &b.link.Counts
		err := rows.Scan(&l.Batch, &l.First, &l.Last, &c.Consumed, &c.Folded, &c.Duplicates, &c.DeadLettered, &c.Conflicts,
			&l.BatchRoot, &l.Prev, &b.chainHash, &l.TreeSize, &l.TreeRoot, &l.CommittedAt)
		if err != nil {
			return err
		}
		events += c.Folded
		b.rows = make([]verifiedRow, 0, min(max(0, c.Folded), rowsAtOnce))
		w.queue = append(w.queue, b)
	}
	return rows.Err()
}

// readRows reads the rows with offsets in [from, to], computes their leaves and
// gives them to the queued batches. The database may send them in any order:
// it would have to sort whole rows where so little is kept of each.
func (w *partitionVerifier) readRows(ctx context.Context, from, to int64) error {
	at := 0 // the batch of the row before
	sink := &pgcopy.Sink{Columns: ledger.ColumnCount, Row: func(row []byte) error {
		v, err := w.read.read(row)
		if err != nil {
			return err
		}
		w.rows++
		if w.sums != nil {
			w.sums.add(w.read, v.eventID)
		}
		if at >= len(w.queue) || !w.queue[at].holds(v.offset) {
			at, _ = slices.BinarySearchFunc(w.queue, v.offset, func(b *batchWork, offset int64) int {
				return cmp.Compare(b.link.Last, offset)
			})
		}
		if at < len(w.queue) && w.queue[at].holds(v.offset) {
			w.queue[at].rows = append(w.queue[at].rows, v)
			return nil
		}
		before := int64(0)
		if at < len(w.queue) {
			before = w.queue[at].link.Batch
		}
		w.fault(before, &v, "no batch speaks of this row")
		return nil
	}}
	// COPY takes no parameters; these are numbers, quoted so that the least of
	// them is a bigint.
	sql := fmt.Sprintf("COPY (SELECT %s FROM journal WHERE topic_partition = %d AND topic_offset BETWEEN '%d' AND '%d') TO STDOUT BINARY",
		journalColumns, w.at.Partition, from, to)
	if _, err := w.tx.Conn().PgConn().CopyTo(ctx, sink, sql); err != nil {
		return err
	}
	for _, b := range w.queue {
		slices.SortFunc(b.rows, func(a, b verifiedRow) int {
			return cmp.Or(cmp.Compare(a.offset, b.offset), cmp.Compare(a.eventID, b.eventID))
		})
	}
	return sink.Done()
}

// check holds one batch record against its rows and the batch before.
func (w *partitionVerifier) check(b *batchWork) {
	l := &b.link
	switch {
	case l.Batch != w.batch+1:
		w.fault(w.batch+1, nil, "batch records %d to %d are missing", w.batch+1, l.Batch-1)
		w.lost = true
	case !bytes.Equal(l.Prev, w.chain):
		w.fault(l.Batch, nil, "prev_hash is not the chain_hash of the batch before")
	}
	if err := l.Counts.Check(); err != nil {
		w.fault(l.Batch, nil, "%s", err)
	}
	if !bytes.Equal(l.ChainHash(), b.chainHash) {
		w.fault(l.Batch, nil, "chain_hash is not that of the batch record: the record was changed")
	}
	w.checkRows(b)
	w.batch, w.chain = l.Batch, b.chainHash
	w.counts.Add(l.Counts)
}

// checkRows holds a batch's root and the tree against its rows.
func (w *partitionVerifier) checkRows(b *batchWork) {
	l := &b.link
	for i := range b.rows {
		if r := &b.rows[i]; r.changed() {
			w.fault(l.Batch, r, "row is not what was written: its columns do not give its leaf")
		}
	}
	rows := int64(len(b.rows))
	switch {
	case rows < l.Counts.Folded:
		w.nameMissing(b)
	case rows > l.Counts.Folded:
		w.nameAdded(b)
	}
	own, leaves := matching(b.rows, l.BatchRoot)
	if own == nil {
		if rows == l.Counts.Folded {
			w.fault(l.Batch, nil, "rows do not give batch_root")
		}
		w.lost = true
	}
	if w.lost {
		return
	}
	if err := w.tree.AppendBatch(own, leaves); err != nil {
		w.fault(l.Batch, nil, "rows do not go on the tree: %s", err)
		w.lost = true
		return
	}
	if l.TreeSize != w.tree.Size() || !bytes.Equal(l.TreeRoot, w.tree.Root()) {
		w.fault(l.Batch, nil, "tree_root over all rows so far is another")
		w.lost = true // named once
	}
}

// matching returns the tree that has that root, and its leaves: as the columns
// give them, or as they are stored; nil if neither does. A changed row keeps its
// old leaf.
func matching(rows []verifiedRow, root []byte) (*ledger.Tree, [][]byte) {
	leaves := make([][]byte, len(rows))
	changed := false
	for i := range rows {
		leaves[i] = rows[i].leaf[:]
		changed = changed || rows[i].changed()
	}
	if t, err := ledger.TreeOf(leaves); err == nil && bytes.Equal(t.Root(), root) {
		return t, leaves
	}
	if !changed {
		return nil, nil
	}
	for i := range rows {
		leaves[i] = rows[i].stored[:]
	}
	if t, err := ledger.TreeOf(leaves); err == nil && bytes.Equal(t.Root(), root) {
		return t, leaves
	}
	return nil, nil
}

// nameMissing tells which rows are gone, where every offset of the batch must
// have had a row.
func (w *partitionVerifier) nameMissing(b *batchWork) {
	l := &b.link
	missing := l.Counts.Folded - int64(len(b.rows))
	if l.Last-l.First+1-int64(len(b.rows)) != missing {
		w.fault(l.Batch, nil, "%d of %d rows are missing", missing, l.Counts.Folded)
		return
	}
	next := 0
	for offset := l.First; offset <= l.Last; offset++ {
		if next < len(b.rows) && b.rows[next].offset == offset {
			next++
			continue
		}
		w.fault(l.Batch, &verifiedRow{offset: offset}, "row is missing")
	}
}

// tryAdded bounds the search for an added row, whose cost is quadratic.
const tryAdded = 4096

// nameAdded tells which row was added: without it the others give the root.
func (w *partitionVerifier) nameAdded(b *batchWork) {
	l := &b.link
	added := int64(len(b.rows)) - l.Counts.Folded
	if added == 1 && len(b.rows) <= tryAdded {
		rest := make([]verifiedRow, 0, len(b.rows))
		for i := range b.rows {
			rest = append(append(rest[:0], b.rows[:i]...), b.rows[i+1:]...)
			if own, _ := matching(rest, l.BatchRoot); own != nil {
				w.fault(l.Batch, &b.rows[i], "row was added")
				return
			}
		}
	}
	w.fault(l.Batch, nil, "%d rows too many: %d were folded", added, l.Counts.Folded)
}

// checkStanding holds fold_progress against the last batch.
func (w *partitionVerifier) checkStanding() {
	p := &w.at
	if p.LastBatch != w.batch {
		w.fault(0, nil, "fold_progress speaks of %d batches, there are %d", p.LastBatch, w.batch)
	}
	if !bytes.Equal(p.ChainHash, w.chain) {
		w.fault(0, nil, "fold_progress has another chain_hash than the last batch")
	}
	if w.batch > 0 && p.Next != w.last+1 {
		w.fault(0, nil, "fold_progress goes on at offset %d, the last batch ends at %d", p.Next, w.last)
	}
	if p.Counts != w.counts {
		w.fault(0, nil, "fold_progress has other counts than the sum of its batches")
	}
	if !w.lost && (p.TreeSize != w.tree.Size() || !bytes.Equal(p.treeRange, w.tree.Range())) {
		w.fault(0, nil, "fold_progress has another tree than the rows give")
	}
}
