package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"tollgate/events"
	"tollgate/ledger"
	"tollgate/ledger/ledgerbench"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memoryStore is a Store that keeps the offsets it was given.
type memoryStore struct {
	mu      sync.Mutex
	epoch   int64
	next    int64
	flushes [][2]int64 // first and last offset of each commit
	dead    int64
	closed  int
	// before runs ahead of each flush and may fail it.
	before func(b *ledger.Batch) error
	acquir error
}

func (m *memoryStore) Acquire(_ context.Context, topic string, partition int, owner string) (ledger.Lease, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.acquir != nil {
		return ledger.Lease{}, m.acquir
	}
	m.epoch++
	return ledger.Lease{Topic: topic, Partition: partition, Owner: owner, Epoch: m.epoch, Next: m.next}, nil
}

func (m *memoryStore) Flush(_ context.Context, lease ledger.Lease, b *ledger.Batch) (ledger.Lease, ledger.Counts, error) {
	if m.before != nil {
		if err := m.before(b); err != nil {
			return lease, ledger.Counts{}, err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if lease.Epoch != m.epoch || lease.Next != m.next {
		return lease, ledger.Counts{}, ledger.ErrFenced
	}
	m.flushes = append(m.flushes, [2]int64{b.First, b.Last})
	m.next = b.Last + 1
	m.dead += int64(len(b.DeadLetters))
	lease.Next = m.next
	return lease, ledger.Counts{
		Consumed: int64(b.Consumed), Folded: int64(len(b.Entries)),
		Duplicates: int64(len(b.Repeats)), DeadLettered: int64(len(b.DeadLetters)),
	}, nil
}

func (m *memoryStore) CloseHours(context.Context, time.Time) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed++
	return 1, nil
}

func (m *memoryStore) state() (next int64, flushes [][2]int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.next, append([][2]int64(nil), m.flushes...)
}

type memoryDeadLetters struct {
	mu   sync.Mutex
	kept []int64
	err  error
}

func (d *memoryDeadLetters) DeadLetter(_ context.Context, r events.Record, _ string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err != nil {
		return d.err
	}
	d.kept = append(d.kept, r.Offset)
	return nil
}

func testLog(n int) []events.Record {
	log := ledgerbench.Log(ledgerbench.LogOptions{Seed: 1, Events: n})[0]
	return log[:n]
}

// bubble runs a partition in a synctest bubble.
func bubble(t *testing.T, store *memoryStore, dead ledger.DeadLetterer, src ledger.Source, opts ledger.Options, do func(r *ledger.Runner)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		opts.Owner = "a"
		r := ledger.NewRunner(store, dead, opts)
		done := make(chan error, 1)
		go func() { done <- r.RunPartition(t.Context(), 0, src) }()
		synctest.Wait()
		do(r)
		r.Stop()
		r.Stop()
		if err := <-done; err != nil {
			t.Errorf("partition ended with %v", err)
		}
	})
}

func TestBatchIsFlushedWhenItIsFullOrOldEnough(t *testing.T) {
	log := testLog(130)
	store := &memoryStore{}
	synctest.Test(t, func(t *testing.T) {
		src := ledgerbench.NewSource(log[:130])
		r := ledger.NewRunner(store, &memoryDeadLetters{}, ledger.Options{Owner: "a", FlushEvents: 100})
		done := make(chan error, 1)
		go func() { done <- r.RunPartition(t.Context(), 0, src) }()
		synctest.Wait()
		if next, _ := store.state(); next != 100 {
			t.Errorf("folded to %d at once, want the full batch, 100", next)
		}
		time.Sleep(9 * time.Second)
		synctest.Wait()
		if next, _ := store.state(); next != 100 {
			t.Errorf("folded to %d after 9 s, want 100 still", next)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if next, flushes := store.state(); next != 130 || len(flushes) != 2 {
			t.Errorf("folded to %d in %v after 11 s, want the rest in a second batch", next, flushes)
		}
		if src.Committed() != 130 {
			t.Errorf("group offset is %d, want 130", src.Committed())
		}
		r.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestStopFlushesWhatIsInHand(t *testing.T) {
	store := &memoryStore{}
	bubble(t, store, &memoryDeadLetters{}, ledgerbench.NewSource(testLog(30)), ledger.Options{}, func(*ledger.Runner) {
		if next, _ := store.state(); next != 0 {
			t.Errorf("folded to %d before stop, want nothing", next)
		}
	})
	if next, flushes := store.state(); next != 30 || len(flushes) != 1 {
		t.Errorf("stop left it at %d after %v, want all 30 in one batch", next, flushes)
	}
}

func TestStopGivesUpOnADatabaseThatIsAway(t *testing.T) {
	store := &memoryStore{before: func(*ledger.Batch) error { return errors.New("connection refused") }}
	synctest.Test(t, func(t *testing.T) {
		r := ledger.NewRunner(store, &memoryDeadLetters{}, ledger.Options{Owner: "a"})
		done := make(chan error, 1)
		go func() { done <- r.RunPartition(t.Context(), 0, ledgerbench.NewSource(testLog(30))) }()
		synctest.Wait()
		began := time.Now()
		r.Stop()
		if err := <-done; err != nil { // what was not folded is the next owner's
			t.Errorf("the partition ended with %v", err)
		}
		if took := time.Since(began); took < 5*time.Second || took > 11*time.Second {
			t.Errorf("stop took %s, want its timeout of 5 s and not much more", took)
		}
	})
}

func TestFarBehindTakesLargerBatches(t *testing.T) {
	store := &memoryStore{}
	bubble(t, store, &memoryDeadLetters{}, ledgerbench.NewSource(testLog(1000)), ledger.Options{FlushEvents: 10, MaxBatch: 400}, func(*ledger.Runner) {})
	if _, flushes := store.state(); len(flushes) != 3 || flushes[0] != [2]int64{0, 399} {
		t.Errorf("flushes are %v, want 400, 400 and 200 records", flushes)
	}
}

func TestCaseL6_FailedBatchIsAppliedBeforeTheNext(t *testing.T) {
	failures := 3
	store := &memoryStore{}
	store.before = func(b *ledger.Batch) error {
		if b.First == 0 && failures > 0 {
			failures--
			return errors.New("could not serialize access")
		}
		return nil
	}
	bubble(t, store, &memoryDeadLetters{}, ledgerbench.NewSource(testLog(300)), ledger.Options{FlushEvents: 100, MaxBatch: 100}, func(*ledger.Runner) {
		time.Sleep(time.Minute)
		synctest.Wait()
	})
	want := [][2]int64{{0, 99}, {100, 199}, {200, 299}}
	if _, flushes := store.state(); fmt.Sprint(flushes) != fmt.Sprint(want) || failures != 0 {
		t.Errorf("flushes are %v, want %v", flushes, want)
	}
}

func TestDatabaseAwayStopsConsumptionAndReadiness(t *testing.T) {
	var mu sync.Mutex
	away := true
	store := &memoryStore{before: func(*ledger.Batch) error {
		mu.Lock()
		defer mu.Unlock()
		if away {
			return errors.New("connection refused")
		}
		return nil
	}}
	src := &countingSource{Source: ledgerbench.NewSource(testLog(5000))}
	bubble(t, store, &memoryDeadLetters{}, src, ledger.Options{FlushEvents: 100, MaxBatch: 100}, func(r *ledger.Runner) {
		time.Sleep(time.Hour)
		synctest.Wait()
		if err := r.Ready(); err == nil || !strings.Contains(err.Error(), "connection refused") {
			t.Errorf("ready is %v while the database is away", err)
		}
		if n := src.fetched(); n > 300 {
			t.Errorf("%d records were fetched meanwhile, want no more than a few batches", n)
		}
		mu.Lock()
		away = false
		mu.Unlock()
		time.Sleep(time.Minute)
		synctest.Wait()
		if next, _ := store.state(); next != 5000 {
			t.Errorf("folded to %d after it came back, want all 5000", next)
		}
		if err := r.Ready(); err != nil {
			t.Errorf("ready is %v afterwards", err)
		}
	})
}

type countingSource struct {
	*ledgerbench.Source
	mu sync.Mutex
	n  int
}

func (c *countingSource) Fetch(ctx context.Context, limit int, wait time.Duration) ([]events.Record, error) {
	got, err := c.Source.Fetch(ctx, limit, wait)
	c.mu.Lock()
	c.n += len(got)
	c.mu.Unlock()
	return got, err
}

func (c *countingSource) fetched() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

// mutedSource has records that it does not give.
type mutedSource struct {
	*ledgerbench.Source
	mu    sync.Mutex
	muted bool
}

func (m *mutedSource) Fetch(ctx context.Context, limit int, wait time.Duration) ([]events.Record, error) {
	m.mu.Lock()
	muted := m.muted
	m.mu.Unlock()
	if muted {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(wait):
			return nil, nil
		}
	}
	return m.Source.Fetch(ctx, limit, wait)
}

func TestCaseL5_LagWithoutProgressTurnsReadinessRed(t *testing.T) {
	store := &memoryStore{}
	src := &mutedSource{Source: ledgerbench.NewSource(testLog(50)), muted: true}
	bubble(t, store, &memoryDeadLetters{}, src, ledger.Options{StallAfter: time.Minute}, func(r *ledger.Runner) {
		time.Sleep(50 * time.Second)
		synctest.Wait()
		if err := r.Ready(); err != nil {
			t.Errorf("not ready too early: %v", err)
		}
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if err := r.Ready(); err == nil || !strings.Contains(err.Error(), "50 records wait") {
			t.Errorf("ready is %v with 50 records waiting for over a minute", err)
		}
		src.mu.Lock()
		src.muted = false
		src.mu.Unlock()
		time.Sleep(15 * time.Second)
		synctest.Wait()
		if err := r.Ready(); err != nil {
			t.Errorf("ready is %v after consumption resumed", err)
		}
	})
	if next, _ := store.state(); next != 50 {
		t.Errorf("folded to %d, want 50", next)
	}
}

func TestIdlePartitionStaysReady(t *testing.T) {
	bubble(t, &memoryStore{}, &memoryDeadLetters{}, ledgerbench.NewSource(nil), ledger.Options{}, func(r *ledger.Runner) {
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		if err := r.Ready(); err != nil {
			t.Errorf("an idle partition is %v", err)
		}
	})
}

func TestFencedRunnerStandsBackAndReturns(t *testing.T) {
	store := &memoryStore{}
	src := ledgerbench.NewSource(testLog(100))
	bubble(t, store, &memoryDeadLetters{}, src, ledger.Options{FlushEvents: 1000}, func(*ledger.Runner) {
		// Another process folds the first half meanwhile.
		store.mu.Lock()
		store.epoch++
		store.next = 50
		store.mu.Unlock()
		time.Sleep(time.Minute)
		synctest.Wait()
		next, flushes := store.state()
		if next != 100 || fmt.Sprint(flushes) != fmt.Sprint([][2]int64{{50, 99}}) {
			t.Errorf("folded to %d with %v, want only what the other left", next, flushes)
		}
	})
}

func TestDeadLettersArePublishedBeforeTheCommitThatCountsThem(t *testing.T) {
	log := testLog(10)
	log[4].Value = []byte("{")
	dead := &memoryDeadLetters{err: errors.New("kafka is away")}
	store := &memoryStore{}
	bubble(t, store, dead, ledgerbench.NewSource(log), ledger.Options{FlushEvents: 10}, func(r *ledger.Runner) {
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if next, _ := store.state(); next != 0 {
			t.Errorf("folded to %d although the dead letter is not safe", next)
		}
		if r.Ready() == nil {
			t.Error("ready although dead letters cannot be published")
		}
		dead.mu.Lock()
		dead.err = nil
		dead.mu.Unlock()
		time.Sleep(10 * time.Second)
		synctest.Wait()
	})
	if next, _ := store.state(); next != 10 || store.dead != 1 || fmt.Sprint(dead.kept) != "[4]" {
		t.Errorf("folded to %d, %d counted dead, %v published", next, store.dead, dead.kept)
	}
}

func TestPoisonIsFoundByHalvingAndNothingElseIsRefused(t *testing.T) {
	log := testLog(64)
	store := &memoryStore{before: func(b *ledger.Batch) error {
		for i := range b.Entries {
			if o := b.Entries[i].Offset; o == 17 || o == 40 {
				return fmt.Errorf("flush: %w", &ledger.PoisonError{Err: errors.New("out of range")})
			}
		}
		return nil
	}}
	dead := &memoryDeadLetters{}
	bubble(t, store, dead, ledgerbench.NewSource(log), ledger.Options{FlushEvents: 64}, func(*ledger.Runner) {
		time.Sleep(time.Second)
		synctest.Wait()
	})
	if next, _ := store.state(); next != 64 || fmt.Sprint(dead.kept) != "[17 40]" || store.dead != 2 {
		t.Errorf("folded to %d, dead letters %v", next, dead.kept)
	}
}

func TestHoursAreClosedByAnyProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &memoryStore{}
		r := ledger.NewRunner(store, &memoryDeadLetters{}, ledger.Options{CloseEvery: time.Minute})
		r.Start()
		time.Sleep(10*time.Minute + time.Second)
		r.Stop()
		if store.closed != 11 {
			t.Errorf("hours were tried %d times in ten minutes, want 11", store.closed)
		}
		r.Start() // after Stop nothing starts
		if err := r.RunPartition(t.Context(), 0, ledgerbench.NewSource(nil)); err != nil {
			t.Error(err)
		}
	})
}
