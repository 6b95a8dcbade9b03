package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Journal partitions are made for days near now only: a day comes from an event
// id, and ids that lie must not make tables without bound. Rows of other days
// go to the default partition, where they count as well.
const (
	partitionsBack  = 40 * 24 * time.Hour
	partitionsAhead = 2 * 24 * time.Hour
	partitionRetry  = time.Minute
)

// MakePartitions makes the journal's partitions of today and tomorrow. It is
// called ahead of need, so that no flush has to wait for one.
func (s *Store) MakePartitions(ctx context.Context) {
	now := s.now().UTC()
	s.makePartitions(ctx, []time.Time{now, now.Add(24 * time.Hour)})
}

// makePartitions makes what is missing of the given days, outside of any fold's
// transaction. A failure is no reason to stop: the default partition takes the
// rows.
func (s *Store) makePartitions(ctx context.Context, days []time.Time) {
	now := s.now()
	for _, at := range days {
		at = at.UTC().Truncate(24 * time.Hour)
		if at.Before(now.Add(-partitionsBack)) || at.After(now.Add(partitionsAhead)) || !s.partitionDue(at) {
			continue
		}
		if err := s.makePartition(ctx, at); err != nil {
			s.log.Warn("journal partition was not made; its rows go to the default partition",
				"day", at.Format(time.DateOnly), "error", err)
			continue
		}
		s.mu.Lock()
		s.days[at.Unix()] = time.Time{}
		s.mu.Unlock()
	}
}

// partitionDue says whether a day's partition should be tried now, and puts the
// next try off.
func (s *Store) partitionDue(at time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	next, tried := s.days[at.Unix()]
	if tried && (next.IsZero() || time.Now().Before(next)) {
		return false
	}
	s.days[at.Unix()] = time.Now().Add(partitionRetry)
	return true
}

// makePartition makes the table by itself and then attaches it: attaching lets
// flushes into other partitions go on, which creating in place would not.
func (s *Store) makePartition(ctx context.Context, at time.Time) error {
	name := "journal_" + at.Format("20060102")
	from, to := at.Format(time.DateOnly), at.Add(24*time.Hour).Format(time.DateOnly)
	return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		var there bool
		// The lock keeps two processes from making the same table; like
		// every lock here it is waited for briefly only.
		if _, err := tx.Exec(ctx, "SET LOCAL lock_timeout = '2s'"); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", int64(WindowLock)+1); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, "SELECT to_regclass($1) IS NOT NULL", name).Scan(&there); err != nil || there {
			return err
		}
		// Rows of that day in the default partition would make attaching
		// fail after a scan; they may stay where they are.
		var taken bool
		if err := tx.QueryRow(ctx, "SELECT EXISTS (SELECT 1 FROM journal_default WHERE day = $1)", at).Scan(&taken); err != nil || taken {
			return err
		}
		// Values are a date's digits; DDL takes no parameters.
		_, err := tx.Exec(ctx, fmt.Sprintf(`
				CREATE TABLE %[1]s (LIKE journal INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING INDEXES,
					CONSTRAINT %[1]s_day CHECK (day >= '%[2]s' AND day < '%[3]s'));
				ALTER TABLE journal ATTACH PARTITION %[1]s FOR VALUES FROM ('%[2]s') TO ('%[3]s');
				ALTER TABLE %[1]s DROP CONSTRAINT %[1]s_day`, name, from, to))
		return err
	})
}
