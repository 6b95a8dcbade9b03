package ledgerbench

import (
	"context"
	"sync"
	"time"

	"tollgate/events"
)

// Source is a partition of the log in memory; it implements ledger.Source. It
// may grow while it is read.
type Source struct {
	mu        sync.Mutex
	records   []events.Record
	next      int64
	committed int64
	grown     chan struct{} // made by who waits, closed when records are added
}

// NewSource returns a source of records, whose offsets must ascend.
func NewSource(records []events.Record) *Source {
	return &Source{records: records}
}

// Append adds records.
func (s *Source) Append(records ...events.Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.records = append(s.records, records...)
	if s.grown != nil {
		close(s.grown)
		s.grown = nil
	}
}

// SeekTo implements ledger.Source.
func (s *Source) SeekTo(offset int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next = offset
}

// Fetch implements ledger.Source.
func (s *Source) Fetch(ctx context.Context, limit int, wait time.Duration) ([]events.Record, error) {
	var timeout <-chan time.Time
	for {
		got, grown := s.take(limit)
		if len(got) > 0 {
			return got, nil
		}
		if timeout == nil {
			t := time.NewTimer(wait)
			defer t.Stop()
			timeout = t.C
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-timeout:
			return nil, nil
		case <-grown:
		}
	}
}

func (s *Source) take(limit int) ([]events.Record, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := s.index(s.next)
	n := min(limit, len(s.records)-i)
	got := s.records[i : i+n : i+n]
	if n > 0 {
		s.next = got[n-1].Offset + 1
	}
	if s.grown == nil {
		s.grown = make(chan struct{})
	}
	return got, s.grown
}

// index returns the place of the first record at or after offset.
func (s *Source) index(offset int64) int {
	lo, hi := 0, len(s.records)
	for lo < hi {
		if mid := (lo + hi) / 2; s.records[mid].Offset < offset {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

// Commit implements ledger.Source.
func (s *Source) Commit(offset int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.committed = offset
	return nil
}

// Committed returns the last offset that was committed.
func (s *Source) Committed() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.committed
}

// HighWater implements ledger.Source.
func (s *Source) HighWater() (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.records) == 0 {
		return 0, nil
	}
	return s.records[len(s.records)-1].Offset + 1, nil
}
