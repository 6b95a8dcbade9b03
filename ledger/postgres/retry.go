package postgres

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"tollgate/ledger"
)

// maxRestarts bounds how often a transaction is repeated at once after a
// deadlock or a serialization failure; beyond it the caller's backoff takes over.
const maxRestarts = 20

// restart repeats do while PostgreSQL says that another transaction was in the
// way. Nothing of a failed attempt is left.
func restart(ctx context.Context, do func() error) error {
	for n := 0; ; n++ {
		err := do()
		if err == nil || !inTheWay(err) || n == maxRestarts {
			return err
		}
		// The jitter only keeps two transactions from meeting again.
		wait := time.Duration(rand.Int64N(int64(time.Millisecond) << min(n, 6)))
		select {
		case <-ctx.Done():
			return err
		case <-time.After(wait):
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

// inTheWay: serialization_failure, deadlock_detected, lock_not_available.
func inTheWay(err error) bool {
	switch sqlState(err) {
	case "40001", "40P01", "55P03":
		return true
	}
	return false
}

const uniqueViolation = "23505"

// classify wraps errors that say the data itself is refused: class 22 (a number
// out of range, a character that cannot be stored) and class 54 (a value too
// large for an index). Everything else may pass when it is tried again.
func classify(err error) error {
	if code := sqlState(err); len(code) == 5 {
		switch code[:2] {
		case "22", "54":
			return &ledger.PoisonError{Err: err}
		}
	}
	return err
}
