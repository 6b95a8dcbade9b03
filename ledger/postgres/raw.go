package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"tollgate/ledger"
	"tollgate/ledger/internal/pgcopy"
)

// RawWrite writes a batch's rows and sums in one transaction and nothing else:
// no fence, no record, no chain. It is the yardstick of benchmarks; a ledger
// that was written with it fails its checks.
func (s *Store) RawWrite(ctx context.Context, b *ledger.Batch) error {
	return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if _, err := tx.Conn().PgConn().CopyFrom(ctx, pgcopy.Reader(b.CopyData()), sqlCopyJournal); err != nil {
			return err
		}
		q := &pgx.Batch{}
		q.Queue(sqlReservations, reservationArgs(b.Sums.Reservations)...)
		q.Queue(sqlUsageHour, usageArgs(b.Sums.Usage)...)
		return tx.SendBatch(ctx, q).Close()
	})
}
