package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"tollgate/ledger"
)

// errOverflow is what PostgreSQL says as well when its own sum overflows.
var errOverflow = errors.New("a sum of the batch leaves the range of a bigint")

// record adds the sums, links the batch to the chain and moves the fence, in
// one round trip.
func (s *Store) record(ctx context.Context, tx pgx.Tx, at standing, b *ledger.Batch, out *outcome) error {
	link, packed, err := s.link(at, b, out)
	if err != nil {
		return err
	}
	q := &pgx.Batch{}
	if n := len(out.sums.Reservations); n > 0 {
		q.Queue(sqlReservations, reservationArgs(out.sums.Reservations)...)
	}
	if n := len(out.sums.Usage); n > 0 {
		q.Queue(sqlUsageHour, usageArgs(out.sums.Usage)...)
	}
	late, ok := out.sums.Late(at.window)
	if !ok || out.sums.Overflow {
		return &ledger.PoisonError{Err: errOverflow}
	}
	if len(late) > 0 {
		q.Queue(sqlUsage30d, tenantArgs(late)...)
	}
	for _, c := range out.conflicts {
		queueConflict(q, b.Partition, c)
	}
	queueLink(q, link)
	c := link.Counts
	q.Queue(`UPDATE fold_progress SET next_offset = $3, consumed = consumed + $4, folded = folded + $5,
			duplicates = duplicates + $6, dead_lettered = dead_lettered + $7, conflicts = conflicts + $8,
			chain_hash = $9, tree_size = $10, tree_range = $11, last_batch = $12, updated_at = now()
		WHERE topic = $1 AND topic_partition = $2`,
		b.Topic, b.Partition, b.Last+1, c.Consumed, c.Folded, c.Duplicates, c.DeadLettered, c.Conflicts,
		link.ChainHash(), link.TreeSize, packed, link.Batch)
	return tx.SendBatch(ctx, q).Close()
}

// link makes the batch's record and returns the tree's compact range after it.
func (s *Store) link(at standing, b *ledger.Batch, out *outcome) (*ledger.Link, []byte, error) {
	tree, err := ledger.LoadTree(at.treeSize, at.treeRange)
	if err != nil {
		return nil, nil, err
	}
	own, err := ledger.TreeOf(out.leaves)
	if err != nil {
		return nil, nil, err
	}
	if err := tree.AppendBatch(own, out.leaves); err != nil {
		return nil, nil, err
	}
	return &ledger.Link{
		Topic: b.Topic, Partition: b.Partition, Batch: at.lastBatch + 1,
		First: b.First, Last: b.Last, Counts: out.counts,
		BatchRoot: own.Root(), Prev: at.chain,
		TreeSize: tree.Size(), TreeRoot: tree.Root(),
		CommittedAt: s.now().UTC().Truncate(time.Microsecond),
	}, tree.Range(), nil
}

func queueConflict(q *pgx.Batch, partition int, c conflict) {
	q.Queue(`INSERT INTO event_conflicts (topic_partition, topic_offset, event_id, tenant_id, kept_leaf, other_leaf, other_event)
		VALUES ($1, $2, $3, $4, $5, $6, $7)`,
		partition, c.entry.Offset, c.entry.EventID, c.entry.TenantID, c.kept, c.entry.Leaf[:], string(c.value))
}

func queueLink(q *pgx.Batch, l *ledger.Link) {
	q.Queue(`INSERT INTO batches (topic, topic_partition, batch, first_offset, last_offset, consumed, folded,
			duplicates, dead_lettered, conflicts, batch_root, prev_hash, chain_hash, tree_size, tree_root, committed_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)`,
		l.Topic, l.Partition, l.Batch, l.First, l.Last, l.Counts.Consumed, l.Counts.Folded,
		l.Counts.Duplicates, l.Counts.DeadLettered, l.Counts.Conflicts,
		l.BatchRoot, l.Prev, l.ChainHash(), l.TreeSize, l.TreeRoot, l.CommittedAt)
}

// column collects one value of each row into a slice, as unnest wants it.
func column[R, V any](rows []R, value func(*R) V) []V {
	out := make([]V, len(rows))
	for i := range rows {
		out[i] = value(&rows[i])
	}
	return out
}

func micros(v int64) time.Time { return time.UnixMicro(v).UTC() }

func reservationArgs(sums []ledger.ReservationSum) []any {
	type row = ledger.ReservationSum
	return []any{
		column(sums, func(r *row) string { return r.Head.ReservationID }),
		column(sums, func(r *row) string { return r.Head.TenantID }),
		column(sums, func(r *row) string { return r.Head.RequestID }),
		column(sums, func(r *row) string { return r.Head.KeyID }),
		column(sums, func(r *row) string { return r.Head.Endpoint }),
		column(sums, func(r *row) string { return r.Head.Model }),
		column(sums, func(r *row) int64 { return r.Head.Seq }),
		column(sums, func(r *row) string { return string(r.Head.State) }),
		column(sums, func(r *row) int64 { return r.Head.WeightMilli }),
		column(sums, func(r *row) int64 { return r.Head.HeldMilliUnits }),
		column(sums, func(r *row) int64 { return r.Usage.InputTokens }),
		column(sums, func(r *row) int64 { return r.Usage.OutputTokens }),
		column(sums, func(r *row) int64 { return r.Usage.CachedInputTokens }),
		column(sums, func(r *row) int64 { return r.Usage.ReasoningTokens }),
		column(sums, func(r *row) int64 { return r.Usage.ToolCalls }),
		column(sums, func(r *row) int64 { return r.Usage.Images }),
		column(sums, func(r *row) int64 { return r.Usage.AudioMillis }),
		column(sums, func(r *row) int64 { return r.Usage.GPUMillis }),
		column(sums, func(r *row) int64 { return r.MilliUnits }),
		column(sums, func(r *row) bool { return r.Head.Estimated }),
		column(sums, func(r *row) time.Time { return micros(r.FirstMicros) }),
		column(sums, func(r *row) time.Time { return micros(r.LastMicros) }),
		column(sums, func(r *row) time.Time { return micros(r.Head.ExpiresMicros) }),
		column(sums, func(r *row) string { return r.Head.EventID }),
		column(sums, func(r *row) int64 { return r.Events }),
		column(sums, func(r *row) int64 { return r.Head.TotalMilliUnits }),
	}
}

func usageArgs(sums []ledger.UsageSum) []any {
	type row = ledger.UsageSum
	return append([]any{
		column(sums, func(r *row) string { return r.TenantID }),
		column(sums, func(r *row) time.Time { return micros(r.HourMicros) }),
		column(sums, func(r *row) string { return r.Model }),
		column(sums, func(r *row) string { return r.Endpoint }),
		column(sums, func(r *row) string { return r.KeyID }),
	}, amountArgs(sums, func(r *row) *ledger.Amount { return &r.Amount })...)
}

func tenantArgs(sums []ledger.TenantSum) []any {
	type row = ledger.TenantSum
	return append([]any{
		column(sums, func(r *row) string { return r.TenantID }),
	}, amountArgs(sums, func(r *row) *ledger.Amount { return &r.Amount })...)
}

func amountArgs[R any](rows []R, amount func(*R) *ledger.Amount) []any {
	of := func(value func(*ledger.Amount) int64) []int64 {
		return column(rows, func(r *R) int64 { return value(amount(r)) })
	}
	return []any{
		of(func(a *ledger.Amount) int64 { return a.Requests }),
		of(func(a *ledger.Amount) int64 { return a.InputTokens }),
		of(func(a *ledger.Amount) int64 { return a.OutputTokens }),
		of(func(a *ledger.Amount) int64 { return a.CachedInputTokens }),
		of(func(a *ledger.Amount) int64 { return a.ReasoningTokens }),
		of(func(a *ledger.Amount) int64 { return a.ToolCalls }),
		of(func(a *ledger.Amount) int64 { return a.Images }),
		of(func(a *ledger.Amount) int64 { return a.AudioMillis }),
		of(func(a *ledger.Amount) int64 { return a.GPUMillis }),
		of(func(a *ledger.Amount) int64 { return a.MilliUnits }),
	}
}
