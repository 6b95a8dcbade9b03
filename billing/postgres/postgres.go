// Package postgres keeps the price book, closed bills and credits in
// PostgreSQL, and drafts bills from the ledger's tables.
//
// A draft reads usage, prices, closed bills and the balance at one snapshot.
// Closing a period stores the bill for good; the database itself refuses to
// change it, and refuses lines that do not add up to their bill. Usage that
// arrives for a closed period appears as corrections on the next bill.
//
// Lock order: prices (table), then billing_accounts (row). Closing a bill holds
// the price book still while it reads it, so that no price can change within
// the period between the rating and the close.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Options of a Store. The zero value is good.
type Options struct {
	Logger *slog.Logger     // nil: discard
	Now    func() time.Time // nil: time.Now; says whether a period has ended
}

// Store is safe for concurrent use.
type Store struct {
	pool *pgxpool.Pool
	log  *slog.Logger
	now  func() time.Time
}

// New returns a store on a migrated database. The pool stays the caller's.
func New(pool *pgxpool.Pool, options Options) *Store {
	s := &Store{pool: pool, log: options.Logger, now: options.Now}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.now == nil {
		s.now = time.Now
	}
	return s
}

// maxRestarts bounds repeats of a transaction that met another one.
const maxRestarts = 20

var (
	snapshotRead  = pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	snapshotWrite = pgx.TxOptions{IsoLevel: pgx.RepeatableRead}
	plainWrite    = pgx.TxOptions{IsoLevel: pgx.ReadCommitted}
)

// transact runs do in a transaction and repeats it while another transaction
// was in the way. Nothing of a failed attempt is left.
func (s *Store) transact(ctx context.Context, options pgx.TxOptions, do func(pgx.Tx) error) error {
	for n := 0; ; n++ {
		err := pgx.BeginTxFunc(ctx, s.pool, options, do)
		if err == nil || n == maxRestarts || !inTheWay(err) {
			return err
		}
		timer := time.NewTimer(time.Duration(rand.Int64N(int64(time.Millisecond) << min(n, 6))))
		select {
		case <-ctx.Done():
			timer.Stop()
			return errors.Join(ctx.Err(), err)
		case <-timer.C:
		}
	}
}

func sqlState(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}

// inTheWay: serialization_failure, deadlock_detected.
func inTheWay(err error) bool {
	code := sqlState(err)
	return code == "40001" || code == "40P01"
}

// exec runs a statement and says what it was for where it fails.
func exec(ctx context.Context, tx pgx.Tx, what, sql string, args ...any) error {
	if _, err := tx.Exec(ctx, sql, args...); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}
