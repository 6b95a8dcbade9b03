package ledger

import (
	"context"
	"testing"
	"time"

	"tollgate/events"
)

// shrinkingSource is far behind at first, so that large batches are wanted, and
// has caught up when it is asked again. It fails the test when it is asked for
// no records or fewer.
type shrinkingSource struct {
	t      *testing.T
	looks  int
	next   int64
	cancel context.CancelFunc
	c      *collector
}

func (s *shrinkingSource) SeekTo(int64)       {}
func (s *shrinkingSource) Commit(int64) error { return nil }
func (s *shrinkingSource) HighWater() (int64, error) {
	s.looks++
	if s.looks == 1 {
		return 1_000_000, nil
	}
	return s.next, nil
}

func (s *shrinkingSource) Fetch(_ context.Context, limit int, _ time.Duration) ([]events.Record, error) {
	if limit < 1 {
		s.t.Errorf("asked for %d records", limit)
		s.cancel()
		return nil, nil
	}
	if s.next == 30 {
		s.cancel()
		return nil, nil
	}
	s.c.looked = time.Time{} // a look is due again
	var got []events.Record
	for range 15 {
		got = append(got, events.Record{Topic: events.TopicEvents, Offset: s.next, Value: []byte("{}")})
		s.next++
	}
	return got, nil
}

// A batch that grew while the partition was far behind is cut as soon as a
// smaller one is wanted.
func TestCollectorCutsWhatIsMoreThanWanted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	src := &shrinkingSource{t: t, cancel: cancel}
	opts := Options{FlushEvents: 10, MaxBatch: 100}.withDefaults()
	c := &collector{opts: &opts, src: src, state: (&health{}).add(0), out: make(chan *Batch, 10)}
	src.c = c
	go func() {
		defer cancel()
		if err := c.run(ctx); err != nil {
			t.Error(err)
		}
	}()
	total := 0
	for b := range c.out {
		total += int(b.Last - b.First + 1)
	}
	if total != 30 {
		t.Errorf("%d records were handed on, want 30", total)
	}
}
