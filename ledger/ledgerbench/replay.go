package ledgerbench

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"time"

	"tollgate/events"
	"tollgate/ledger/postgres"
)

// Rates are events a second.
type Rates struct {
	Replay float64 // from the log in memory into an empty database, indexes included
	Verify float64 // of what was written, Check included
	Both   float64 // one after the other
}

// ReplayRate measures how many events a second are replayed into an empty
// database and then verified, on the server of pgURL.
func ReplayRate(ctx context.Context, pgURL string, count int) (rates Rates, err error) {
	log := Log(LogOptions{
		Seed: 2, Events: count, Partitions: foldPartitions, Tenants: 64,
		Start: time.Now().UTC().Truncate(time.Hour).Add(-48 * time.Hour), Step: 100 * time.Millisecond,
	})
	db, err := NewScratch(ctx, pgURL)
	if err != nil {
		return rates, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()

	runtime.GC() // what is left of making the log
	began := time.Now()
	report, err := postgres.Replay(ctx, Reader(log), db.URL, postgres.ReplayOptions{}, nil)
	if err != nil {
		return rates, err
	}
	replayed := time.Since(began)
	verified, err := postgres.New(db.Pool, postgres.Options{}).Verify(ctx, postgres.VerifyOptions{}, nil)
	if err != nil {
		return rates, err
	}
	both := time.Since(began)
	if err := verified.Err(); err != nil {
		return rates, err
	}
	n := float64(report.Counts.Folded)
	return Rates{Replay: n / replayed.Seconds(), Verify: n / (both - replayed).Seconds(), Both: n / both.Seconds()}, nil
}

// readAtOnce is how many records a Reader gives at once, like a fetch.
const readAtOnce = 5000

// Reader reads a log in memory as a LogReader, all partitions at once.
func Reader(log [][]events.Record) postgres.LogReader {
	return func(ctx context.Context, fn func(int, []events.Record) error) error {
		errs := make([]error, len(log))
		var wg sync.WaitGroup
		for p, records := range log {
			wg.Go(func() {
				for len(records) > 0 && ctx.Err() == nil && errs[p] == nil {
					n := min(readAtOnce, len(records))
					errs[p] = fn(p, records[:n])
					records = records[n:]
				}
			})
		}
		wg.Wait()
		return errors.Join(append(errs, ctx.Err())...)
	}
}
