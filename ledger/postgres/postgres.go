// Package postgres keeps the ledger in PostgreSQL: the flush of a batch in one
// transaction behind a fence, the hour's close, and what reads the result
// (Check, Verify, Replay, usage).
//
// Lock order, the same in every transaction: the advisory lock of the rolling
// window (shared by flushes, exclusive at an hour's close), the partition's
// row of fold_progress, then journal, reservations, usage_hour and usage_30d,
// each in the order of its keys.
//
// A Store keeps no state that matters: any number of processes may have one on
// the same database.
package postgres

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"tollgate/events"
	"tollgate/ledger"
)

// WindowLock is the key of the advisory lock of the rolling window.
const WindowLock = 0x746f6c6c_77696e64

//go:embed sql/reservations.sql
var sqlReservations string

//go:embed sql/usage_hour.sql
var sqlUsageHour string

//go:embed sql/usage_30d.sql
var sqlUsage30d string

//go:embed sql/close_hours.sql
var sqlCloseHours string

// Options of a Store. The zero value is usable.
type Options struct {
	// Topic is the log that this ledger folds; default events.TopicEvents. A
	// database keeps the journal of one topic.
	Topic string
	// Log gets what is worth a person's look; nil discards it.
	Log *slog.Logger
	// Now is the clock of batch records and of partitions made ahead; nil is
	// time.Now. No decision of the fold depends on it.
	Now func() time.Time
}

// Store keeps the ledger; it implements ledger.Store.
type Store struct {
	pool  *pgxpool.Pool
	topic string
	log   *slog.Logger
	now   func() time.Time

	mu   sync.Mutex
	days map[int64]time.Time // when to try next to make a day's journal partition; zero: done
}

var _ ledger.Store = (*Store)(nil)

// New returns a store on a database that migrations have brought up to date.
// The pool stays the caller's.
func New(pool *pgxpool.Pool, opts Options) *Store {
	s := &Store{pool: pool, topic: opts.Topic, log: opts.Log, now: opts.Now, days: make(map[int64]time.Time)}
	if s.topic == "" {
		s.topic = events.TopicEvents
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.now == nil {
		s.now = time.Now
	}
	return s
}

// Acquire implements ledger.Store. A partition that was never folded starts at
// offset 0.
func (s *Store) Acquire(ctx context.Context, topic string, partition int, owner string) (ledger.Lease, error) {
	lease := ledger.Lease{Topic: topic, Partition: partition, Owner: owner}
	switch {
	case owner == "":
		return lease, errors.New("acquire a partition: owner is empty")
	case topic != s.topic:
		return lease, fmt.Errorf("acquire a partition: this ledger folds topic %s, not %s", s.topic, topic)
	}
	err := s.pool.QueryRow(ctx, `
		INSERT INTO fold_progress AS p (topic, topic_partition, next_offset, owner, owner_epoch,
			consumed, folded, duplicates, dead_lettered, conflicts, chain_hash, tree_size, tree_range)
		VALUES ($1, $2, 0, $3, 1, 0, 0, 0, 0, 0, $4, 0, '')
		ON CONFLICT (topic, topic_partition) DO UPDATE
			SET owner = excluded.owner, owner_epoch = p.owner_epoch + 1, updated_at = now()
		RETURNING owner_epoch, next_offset`,
		topic, partition, owner, ledger.Genesis()).Scan(&lease.Epoch, &lease.Next)
	if err != nil {
		return lease, fmt.Errorf("acquire partition %d of %s: %w", partition, topic, err)
	}
	return lease, nil
}

// Progress is a partition's standing.
type Progress struct {
	Topic     string        `json:"topic"`
	Partition int           `json:"partition"`
	Next      int64         `json:"next_offset"`
	Owner     string        `json:"owner"`
	Epoch     int64         `json:"owner_epoch"`
	Counts    ledger.Counts `json:"counts"`
	ChainHash []byte        `json:"chain_hash"`
	TreeSize  int64         `json:"tree_size"`
	TreeRoot  []byte        `json:"tree_root"`
	LastBatch int64         `json:"last_batch"`
	UpdatedAt time.Time     `json:"updated_at"`

	treeRange []byte
}

// Progress returns the standing of every partition, in order.
func (s *Store) Progress(ctx context.Context) ([]Progress, error) {
	out, err := readProgress(ctx, s.pool, s.topic)
	if err != nil {
		return nil, fmt.Errorf("read progress: %w", err)
	}
	return out, nil
}

// querier is a pool, a connection or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

func readProgress(ctx context.Context, q querier, topic string) ([]Progress, error) {
	rows, err := q.Query(ctx, `
		SELECT topic, topic_partition, next_offset, owner, owner_epoch, consumed, folded, duplicates,
			dead_lettered, conflicts, chain_hash, tree_size, tree_range, last_batch, updated_at
		FROM fold_progress WHERE topic = $1 ORDER BY topic_partition`, topic)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (Progress, error) {
		var p Progress
		err := row.Scan(&p.Topic, &p.Partition, &p.Next, &p.Owner, &p.Epoch, &p.Counts.Consumed,
			&p.Counts.Folded, &p.Counts.Duplicates, &p.Counts.DeadLettered, &p.Counts.Conflicts,
			&p.ChainHash, &p.TreeSize, &p.treeRange, &p.LastBatch, &p.UpdatedAt)
		if err != nil {
			return p, err
		}
		// A range that does not fit has no root; Verify names it.
		if tree, err := ledger.LoadTree(p.TreeSize, p.treeRange); err == nil {
			p.TreeRoot = tree.Root()
		}
		return p, nil
	})
}
