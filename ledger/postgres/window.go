package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"tollgate/ledger"
)

// CloseHours implements ledger.Store: in one transaction the hours that ended
// are added to usage_30d and those that left the window are subtracted. The
// first call of a database's life fills the window from usage_hour. Folds wait
// for it, and it for them, so no event falls between the two. A clock that goes
// back changes nothing.
func (s *Store) CloseHours(ctx context.Context, now time.Time) (int, error) {
	s.MakePartitions(ctx)
	to := ledger.WindowAt(now)
	// Nearly every call finds nothing to do, and should not stop the folds to
	// find out.
	var from ledger.Window
	err := s.pool.QueryRow(ctx, "SELECT window_start, closed_through FROM usage_window").Scan(&from.Start, &from.ClosedThrough)
	if err == nil && !to.ClosedThrough.After(from.ClosedThrough) {
		return 0, nil
	}
	closed := 0
	err = restart(ctx, func() error {
		return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
			closed, err = closeHours(ctx, tx, to)
			return err
		})
	})
	if err != nil {
		return 0, fmt.Errorf("close hours up to %s: %w", to.ClosedThrough.Format(time.RFC3339), err)
	}
	return closed, nil
}

func closeHours(ctx context.Context, tx pgx.Tx, to ledger.Window) (int, error) {
	if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", int64(WindowLock)); err != nil {
		return 0, err
	}
	var from ledger.Window
	err := tx.QueryRow(ctx, "SELECT window_start, closed_through FROM usage_window").Scan(&from.Start, &from.ClosedThrough)
	if errors.Is(err, pgx.ErrNoRows) {
		// No hour was closed yet: an empty window at the start of the first one.
		from = ledger.Window{Start: to.Start, ClosedThrough: to.Start}
	} else if err != nil {
		return 0, err
	}
	if !to.ClosedThrough.After(from.ClosedThrough) {
		return 0, nil
	}
	if _, err := tx.Exec(ctx, sqlCloseHours, from.Start, from.ClosedThrough, to.Start, to.ClosedThrough); err != nil {
		return 0, err
	}
	_, err = tx.Exec(ctx, `INSERT INTO usage_window (window_start, closed_through) VALUES ($1, $2)
		ON CONFLICT (only_row) DO UPDATE SET window_start = excluded.window_start, closed_through = excluded.closed_through`,
		to.Start, to.ClosedThrough)
	return int(to.ClosedThrough.Sub(from.ClosedThrough) / time.Hour), err
}
