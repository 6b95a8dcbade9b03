package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"tollgate/ledger"
	"tollgate/ledger/internal/pgcopy"
)

// replayWriters is how many connections load rows at once. Two more make
// partitions and indexes, and load what is small.
const replayWriters = 2

// maxReplayDays bounds how many journal partitions a replay makes; rows of
// further days go to the default partition.
const maxReplayDays = 4000

// replayTarget loads an empty database.
type replayTarget struct {
	store   *Store
	indexes map[string][]string // by table: statements that make its indexes again
	conns   chan *pgxpool.Conn

	mu   sync.Mutex
	days map[time.Time]bool
}

// newReplayTarget refuses a target with a ledger and takes the indexes off the
// tables that get many rows.
func newReplayTarget(ctx context.Context, s *Store) (_ *replayTarget, err error) {
	t := &replayTarget{store: s, conns: make(chan *pgxpool.Conn, replayWriters), days: make(map[time.Time]bool), indexes: make(map[string][]string)}
	if err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error { return t.prepare(ctx, tx) }); err != nil {
		return nil, fmt.Errorf("prepare the target: %w", err)
	}
	defer func() {
		if err != nil {
			t.close()
		}
	}()
	for range replayWriters {
		conn, err := s.pool.Acquire(ctx)
		if err != nil {
			return nil, err
		}
		t.conns <- conn
		// Nothing is waited for but the last transaction, which is written
		// through, and with it all before. A target whose replay did not get
		// there is thrown away.
		if _, err := conn.Exec(ctx, "SET synchronous_commit = off"); err != nil {
			return nil, err
		}
	}
	return t, nil
}

func (t *replayTarget) close() {
	close(t.conns)
	for conn := range t.conns {
		conn.Release()
	}
}

func (t *replayTarget) prepare(ctx context.Context, tx pgx.Tx) error {
	// Another replay or a ledger that starts now waits here, and then finds the
	// rows.
	if _, err := tx.Exec(ctx, "LOCK TABLE fold_progress, journal, reservations IN ACCESS EXCLUSIVE MODE"); err != nil {
		return err
	}
	var empty bool
	if err := tx.QueryRow(ctx, `SELECT NOT (EXISTS (SELECT 1 FROM journal) OR EXISTS (SELECT 1 FROM reservations)
		OR EXISTS (SELECT 1 FROM usage_hour) OR EXISTS (SELECT 1 FROM usage_30d) OR EXISTS (SELECT 1 FROM batches)
		OR EXISTS (SELECT 1 FROM fold_progress WHERE topic = $1) OR EXISTS (SELECT 1 FROM event_conflicts))`,
		t.store.topic).Scan(&empty); err != nil {
		return err
	}
	if !empty {
		return ErrNotEmpty
	}
	// The mark of a replay under way: whoever comes now finds a ledger.
	if _, err := tx.Exec(ctx, `INSERT INTO fold_progress (topic, topic_partition, next_offset, owner, owner_epoch,
			consumed, folded, duplicates, dead_lettered, conflicts, chain_hash, tree_size, tree_range)
		VALUES ($1, -1, 0, 'replay', 0, 0, 0, 0, 0, 0, '', 0, '')`, t.store.topic); err != nil {
		return err
	}
	for _, table := range []string{"journal", "reservations"} {
		if err := t.dropIndexes(ctx, tx, table); err != nil {
			return err
		}
	}
	return nil
}

// dropIndexes drops a table's indexes and notes how to make them again.
func (t *replayTarget) dropIndexes(ctx context.Context, tx pgx.Tx, table string) error {
	rows, err := tx.Query(ctx, `SELECT c.relname, pg_get_indexdef(c.oid), coalesce(pg_get_constraintdef(k.oid), ''), coalesce(k.conname, '')
		FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid LEFT JOIN pg_constraint k ON k.conindid = c.oid
		WHERE i.indrelid = $1::regclass ORDER BY i.indisprimary DESC, c.relname`, table)
	if err != nil {
		return err
	}
	var drops []string
	var name, def, constraintDef, constraint string
	_, err = pgx.ForEachRow(rows, []any{&name, &def, &constraintDef, &constraint}, func() error {
		if constraint != "" {
			id := pgx.Identifier{constraint}.Sanitize()
			drops = append(drops, "ALTER TABLE "+table+" DROP CONSTRAINT "+id)
			t.indexes[table] = append(t.indexes[table], "ALTER TABLE "+table+" ADD CONSTRAINT "+id+" "+constraintDef)
			return nil
		}
		drops = append(drops, "DROP INDEX "+pgx.Identifier{name}.Sanitize())
		// On a partitioned table the definition speaks of the parent alone.
		t.indexes[table] = append(t.indexes[table], strings.Replace(def, " ON ONLY ", " ON ", 1))
		return nil
	})
	if err != nil {
		return err
	}
	for _, drop := range drops {
		if _, err := tx.Exec(ctx, drop); err != nil {
			return err
		}
	}
	return nil
}

// write loads one batch.
func (t *replayTarget) write(ctx context.Context, out *ledger.Refolded) error {
	if err := t.makeDays(ctx, out.Batch.Days()); err != nil {
		return err
	}
	conn := <-t.conns
	defer func() { t.conns <- conn }()
	if _, err := conn.Conn().PgConn().CopyFrom(ctx, pgcopy.Reader(out.Rows), sqlCopyJournal); err != nil {
		return fmt.Errorf("load offsets %d to %d of partition %d: %w", out.Link.First, out.Link.Last, out.Link.Partition, err)
	}
	q := &pgx.Batch{}
	for _, c := range out.Conflicts {
		queueConflict(q, out.Batch.Partition, conflict{entry: c.Entry, kept: c.Kept[:], value: c.Value})
	}
	queueLink(q, &out.Link)
	return conn.SendBatch(ctx, q).Close()
}

// makeDays makes the partitions of days that are new; the others wait for it.
func (t *replayTarget) makeDays(ctx context.Context, days []time.Time) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, at := range days {
		if t.days[at] || len(t.days) >= maxReplayDays {
			continue
		}
		if err := t.store.makePartition(ctx, at); err != nil {
			return fmt.Errorf("make the journal partition of %s: %w", at.Format(time.DateOnly), err)
		}
		t.days[at] = true
	}
	return nil
}

// indexJournal begins to make the journal's indexes, and returns a function that
// waits for the end the first time it is called, and then returns nil.
func (t *replayTarget) indexJournal(ctx context.Context) (wait func() error) {
	built := make(chan error, 1)
	go func() {
		defer close(built)
		built <- t.makeIndexes(ctx, "journal")
	}()
	return func() error { return <-built }
}

// finish writes the sums, the standing and the window; indexed says when the
// journal has its indexes.
func (t *replayTarget) finish(ctx context.Context, sums *ledger.Sums, partitions []ledger.RefoldedPartition, window ledger.Window, indexed func() error) error {
	err := t.loadSums(ctx, sums, window)
	if err == nil {
		err = t.makeIndexes(ctx, "reservations")
	}
	if err = errors.Join(err, indexed()); err != nil {
		return err
	}
	return pgx.BeginFunc(ctx, t.store.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "DELETE FROM fold_progress WHERE topic = $1 AND topic_partition = -1", t.store.topic); err != nil {
			return err
		}
		for i := range partitions {
			p := &partitions[i]
			c := p.Counts
			if _, err := tx.Exec(ctx, `INSERT INTO fold_progress (topic, topic_partition, next_offset, owner, owner_epoch,
					consumed, folded, duplicates, dead_lettered, conflicts, chain_hash, tree_size, tree_range, last_batch)
				VALUES ($1, $2, $3, 'replay', 0, $4, $5, $6, $7, $8, $9, $10, $11, $12)`,
				t.store.topic, p.Partition, p.Next, c.Consumed, c.Folded, c.Duplicates, c.DeadLettered, c.Conflicts,
				p.ChainHash, p.TreeSize, p.TreeRange, p.LastBatch); err != nil {
				return err
			}
		}
		return nil
	})
}

// loadSums writes the sums, the reservations on all connections at once.
func (t *replayTarget) loadSums(ctx context.Context, sums *ledger.Sums, window ledger.Window) error {
	g, ctx := errgroup.WithContext(ctx)
	rows := sums.Reservations
	for part := range replayWriters {
		some := rows[len(rows)*part/replayWriters : len(rows)*(part+1)/replayWriters]
		g.Go(func() error {
			conn := <-t.conns
			defer func() { t.conns <- conn }()
			_, err := conn.Conn().PgConn().CopyFrom(ctx, pgcopy.Reader(reservationTuples(some)),
				"COPY reservations ("+reservationColumns+") FROM STDIN BINARY")
			if err != nil {
				return fmt.Errorf("load reservations: %w", err)
			}
			return nil
		})
	}
	g.Go(func() error {
		return pgx.BeginFunc(ctx, t.store.pool, func(tx pgx.Tx) error {
			if _, err := tx.Conn().PgConn().CopyFrom(ctx, pgcopy.Reader(usageTuples(sums.Usage)),
				"COPY usage_hour ("+usageColumns+") FROM STDIN BINARY"); err != nil {
				return fmt.Errorf("load usage_hour: %w", err)
			}
			if window.ClosedThrough.IsZero() {
				return nil
			}
			_, err := closeHours(ctx, tx, window)
			return err
		})
	})
	return g.Wait()
}

func (t *replayTarget) makeIndexes(ctx context.Context, table string) error {
	return pgx.BeginFunc(ctx, t.store.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SET LOCAL maintenance_work_mem = '256MB'"); err != nil {
			return err
		}
		for _, statement := range t.indexes[table] {
			if _, err := tx.Exec(ctx, statement); err != nil {
				return fmt.Errorf("make the indexes of %s: %w", table, err)
			}
		}
		return nil
	})
}

// Columns of the sums' tables in the order of their tuples.
const (
	reservationColumns = "reservation_id, tenant_id, request_id, key_id, endpoint, model, seq, state, " +
		"weight_milli, held_milli_units, input_tokens, output_tokens, cached_input_tokens, reasoning_tokens, " +
		"tool_calls, images, audio_ms, gpu_ms, milli_units, estimated, first_event_at, last_event_at, expires_at, " +
		"head_event_id, events, total_milli_units"
	usageColumns = "tenant_id, hour, model, endpoint, key_id, requests, input_tokens, output_tokens, " +
		"cached_input_tokens, reasoning_tokens, tool_calls, images, audio_ms, gpu_ms, milli_units"
)

var (
	reservationColumnNames = strings.Split(reservationColumns, ", ")
	usageColumnNames       = strings.Split(usageColumns, ", ")
)

func reservationTuples(sums []ledger.ReservationSum) []byte {
	b := make([]byte, 0, len(sums)*384)
	for i := range sums {
		b = pgcopy.Tuple(b, len(reservationColumnNames))
		b = appendReservation(b, &sums[i])
	}
	return b
}

func appendReservation(b []byte, r *ledger.ReservationSum) []byte {
	h := r.Head
	for _, v := range [...]string{h.ReservationID, h.TenantID, h.RequestID, h.KeyID, h.Endpoint, h.Model} {
		b = pgcopy.Text(b, v)
	}
	b = pgcopy.Int64(b, h.Seq)
	b = pgcopy.Text(b, string(h.State))
	u := &r.Usage
	for _, v := range [...]int64{
		h.WeightMilli, h.HeldMilliUnits, u.InputTokens, u.OutputTokens, u.CachedInputTokens, u.ReasoningTokens,
		u.ToolCalls, u.Images, u.AudioMillis, u.GPUMillis, r.MilliUnits,
	} {
		b = pgcopy.Int64(b, v)
	}
	b = pgcopy.Bool(b, h.Estimated)
	b = pgcopy.Time(b, r.FirstMicros)
	b = pgcopy.Time(b, r.LastMicros)
	b = pgcopy.Time(b, h.ExpiresMicros)
	b = pgcopy.Text(b, h.EventID)
	b = pgcopy.Int64(b, r.Events)
	return pgcopy.Int64(b, h.TotalMilliUnits)
}

func usageTuples(sums []ledger.UsageSum) []byte {
	b := make([]byte, 0, len(sums)*256)
	for i := range sums {
		b = pgcopy.Tuple(b, len(usageColumnNames))
		b = appendUsageRow(b, &sums[i])
	}
	return b
}

func appendUsageRow(b []byte, u *ledger.UsageSum) []byte {
	b = pgcopy.Text(b, u.TenantID)
	b = pgcopy.Time(b, u.HourMicros)
	b = pgcopy.Text(b, u.Model)
	b = pgcopy.Text(b, u.Endpoint)
	b = pgcopy.Text(b, u.KeyID)
	for _, v := range fields(&u.Amount) {
		b = pgcopy.Int64(b, *v)
	}
	return b
}
