package redis

import (
	"errors"
	"testing"
	"time"

	"tollgate/admission"
	"tollgate/events"
)

// TestALateTrimLeavesTheBoundOn: a relay trims what it read before Redis was
// emptied or restored. What waits since must still be counted.
func TestALateTrimLeavesTheBoundOn(t *testing.T) {
	for _, epoch := range []string{"e1", "e2"} { // e1: a backup of the same epoch
		for _, b := range backends {
			t.Run(b.name+"/"+epoch, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, b.open, 1, func(o *Options) { o.MaxBacklog = 3 })
				s := w.stores[0]
				acme, shard := tenant("acme", concurrency(100)), admission.Shard("acme", 4)
				reserve := func(from int) (entries []events.OutboxEntry) {
					t.Helper()
					for i := range 3 {
						w.mustReserve(ask(acme, requestID(from+i), 1))
					}
					entries, err := s.Read(t.Context(), shard, "", 100)
					if err != nil {
						t.Fatal(err)
					}
					return entries
				}
				trim := func(e events.OutboxEntry) {
					t.Helper()
					if err := s.Trim(t.Context(), shard, e); err != nil {
						t.Fatal(err)
					}
					s.backlog.full.Store(false)
					s.backlog.next.Store(time.Now().Add(time.Hour).UnixMilli())
				}
				backlog := func(want int64) {
					t.Helper()
					if n, err := s.Backlog(t.Context()); err != nil || n != want {
						t.Errorf("backlog %d, %v; want %d", n, err, want)
					}
				}
				entries := reserve(0)
				trim(entries[2])
				old := reserve(3)[2] // the sixth record of a stream that is lost

				for _, name := range []string{"outbox", "meta", "epoch"} {
					if err := w.client.Del(t.Context(), s.shardKey(shard, name)).Err(); err != nil {
						t.Fatal(err)
					}
				}
				if _, err := s.Seed(t.Context(), shard, epoch, nil); err != nil {
					t.Fatal(err)
				}
				trim(old) // before anything was added
				backlog(0)
				entries = reserve(6)
				trim(old)
				backlog(3)
				if _, err := w.reserve(ask(acme, "more", 1)); !errors.Is(err, admission.ErrBacklogFull) {
					t.Errorf("beyond the bound: %v", err)
				}
				// A count that is wrong already is mended by the next trim.
				if err := w.client.HSet(t.Context(), s.shardKey(shard, "meta"), "trimmed", 22749).Err(); err != nil {
					t.Fatal(err)
				}
				trim(entries[0])
				backlog(2)
				trim(old)
				backlog(2)
				w.mustReserve(ask(acme, "fits", 1))
				if _, err := w.reserve(ask(acme, "more", 1)); !errors.Is(err, admission.ErrBacklogFull) {
					t.Errorf("beyond the bound: %v", err)
				}
				trim(entries[2])
				backlog(1)
			})
		}
	}
}

// TestEntriesOfAnEarlierEpochCanBeTrimmed: an epoch that was lost alone leaves
// its entries, which must not fill the outbox for ever.
func TestEntriesOfAnEarlierEpochCanBeTrimmed(t *testing.T) {
	everywhere(t, func(t *testing.T, w *world) {
		s, shard := w.stores[0], admission.Shard("acme", 4)
		w.mustReserve(ask(tenant("acme"), "a", 1))
		w.mustReserve(ask(tenant("acme"), "b", 1))
		entries, err := s.Read(t.Context(), shard, "", 100)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.client.Del(t.Context(), s.shardKey(shard, "epoch")).Err(); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Seed(t.Context(), shard, "e2", nil); err != nil {
			t.Fatal(err)
		}
		if err := s.Trim(t.Context(), shard, entries[1]); err != nil {
			t.Fatal(err)
		}
		if n, err := s.Backlog(t.Context()); err != nil || n != 0 {
			t.Errorf("backlog %d, %v", n, err)
		}
	})
}
