package ledgerbench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"tollgate/events"
	"tollgate/ledger"
	"tollgate/ledger/postgres"
)

// foldPartitions is how many partitions are folded at once.
const foldPartitions = 4

// noDeadLetters refuses: a generated log has none.
type noDeadLetters struct{}

func (noDeadLetters) DeadLetter(_ context.Context, r events.Record, reason string) error {
	return fmt.Errorf("record %d of a generated log is refused: %s", r.Offset, reason)
}

// FoldRate measures how many events a second the ledger folds from a log that
// is there already, with everything that a Runner does: decoding, hashing, the
// fence, batch records. Beside it, in the same run and with the same rows, it
// measures what the database takes at best: the rows ready made, copied into
// the journal, and the same upserts, in transactions of the same size.
//
// Both run in scratch databases on the server of pgURL.
func FoldRate(ctx context.Context, pgURL string, count int) (perSecond, rawPerSecond float64, err error) {
	log := Log(LogOptions{
		Seed: 1, Events: count, Partitions: foldPartitions, Tenants: 64,
		Start: time.Now().UTC().Truncate(time.Hour).Add(-2 * time.Hour), Step: time.Millisecond,
	})
	// Taking turns evens out what else the machine does.
	var fold, raw time.Duration
	half := func(part int) [][]events.Record {
		out := make([][]events.Record, len(log))
		for p := range log {
			mid := len(log[p]) / 2
			out[p] = [][]events.Record{log[p][:mid], log[p][mid:]}[part]
		}
		return out
	}
	foldDB, err := NewScratch(ctx, pgURL)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, foldDB.Close()) }()
	rawDB, err := NewScratch(ctx, pgURL)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, rawDB.Close()) }()

	// The tail of a log waits for the flush interval; that is not work.
	opts := ledger.Options{Owner: "bench", FlushInterval: 20 * time.Millisecond}
	for part := range 2 {
		took, err := foldOnce(ctx, foldDB, half(part), opts)
		if err != nil {
			return 0, 0, err
		}
		fold += took
		if took, err = rawOnce(ctx, rawDB, half(part)); err != nil {
			return 0, 0, err
		}
		raw += took
	}
	total := 0
	for _, records := range log {
		total += len(records)
	}
	return float64(total) / fold.Seconds(), float64(total) / raw.Seconds(), nil
}

// foldOnce runs a Runner over the partitions until all is folded.
func foldOnce(ctx context.Context, db *Scratch, log [][]events.Record, opts ledger.Options) (time.Duration, error) {
	store := postgres.New(db.Pool, postgres.Options{})
	store.MakePartitions(ctx)
	runner := ledger.NewRunner(store, noDeadLetters{}, opts)
	defer runner.Stop()

	began := time.Now()
	errs := make(chan error, len(log))
	var wg sync.WaitGroup
	for p, records := range log {
		wg.Go(func() {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			src := &untilDone{Source: NewSource(records), end: records[len(records)-1].Offset + 1, done: cancel}
			errs <- runner.RunPartition(ctx, p, src)
		})
	}
	wg.Wait()
	took := time.Since(began)
	close(errs)
	for err := range errs {
		if err != nil {
			return 0, err
		}
	}
	progress, err := store.Progress(ctx)
	if err != nil {
		return 0, err
	}
	for i, p := range progress {
		if want := log[i][len(log[i])-1].Offset + 1; p.Next != want {
			return 0, fmt.Errorf("partition %d is folded to %d of %d", p.Partition, p.Next, want)
		}
	}
	return took, nil
}

// untilDone ends the run when the last record is committed.
type untilDone struct {
	*Source
	end  int64
	done context.CancelFunc
}

// Commit implements ledger.Source.
func (u *untilDone) Commit(offset int64) error {
	if offset >= u.end {
		u.done()
	}
	return u.Source.Commit(offset)
}

// rawBatch is the size of the raw limit's transactions: what a Runner uses
// while it catches up.
const rawBatch = 8192

func rawOnce(ctx context.Context, db *Scratch, log [][]events.Record) (time.Duration, error) {
	store := postgres.New(db.Pool, postgres.Options{})
	store.MakePartitions(ctx)
	batches := make([][]*ledger.Batch, len(log))
	for p, records := range log {
		for len(records) > 0 {
			n := min(rawBatch, len(records))
			b, err := ledger.NewBatch(events.TopicEvents, p, records[:n])
			if err != nil {
				return 0, err
			}
			batches[p], records = append(batches[p], b), records[n:]
		}
	}
	began := time.Now()
	errs := make(chan error, len(log))
	for p := range batches {
		go func() {
			for _, b := range batches[p] {
				if err := store.RawWrite(ctx, b); err != nil {
					errs <- err
					return
				}
			}
			errs <- nil
		}()
	}
	var err error
	for range batches {
		err = errors.Join(err, <-errs)
	}
	return time.Since(began), err
}
