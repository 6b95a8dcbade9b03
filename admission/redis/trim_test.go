package redis

import (
	"errors"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

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
				s.backlog.looking.Store(true) // the script's own bound is tried here
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
				w.pass(old.ID)
				trim(old) // before anything was added
				backlog(0)
				if epoch == "e2" { // an entry that sorts before what is trimmed late
					w.early(shard)
					trim(old)
					backlog(1)
					early, err := s.Read(t.Context(), shard, "", 100)
					if err != nil || len(early) != 1 {
						t.Fatalf("%d entries, %v; an entry that nobody read was dropped", len(early), err)
					}
					trim(early[0])
					backlog(0)
				}
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

// pass waits until Redis's clock is past an entry's millisecond: a new stream
// must not begin in it.
func (w *world) pass(id string) {
	w.t.Helper()
	for {
		now, err := w.client.Time(w.t.Context()).Result()
		if err != nil {
			w.t.Fatal(err)
		}
		if now.Truncate(time.Millisecond).After(entryTime(id)) {
			return
		}
	}
}

// early adds a record of epoch e2 as a clock that runs far behind would.
func (w *world) early(shard int) {
	w.t.Helper()
	s := w.stores[0]
	if err := w.client.XAdd(w.t.Context(), &goredis.XAddArgs{
		Stream: s.shardKey(shard, "outbox"), ID: "1-1", Values: []string{"n", "1", "c", "1", "p", "e2", "e", "?"},
	}).Err(); err != nil {
		w.t.Fatal(err)
	}
	if err := w.client.HSet(w.t.Context(), s.shardKey(shard, "meta"), "added", 1).Err(); err != nil {
		w.t.Fatal(err)
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

// ReadMany tells of each shard by itself: what cannot be read of one does not
// hide the others' entries.
func TestReadManyOneOfWhichFails(t *testing.T) {
	for _, b := range backends {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, b.open, 1, nil)
			s := w.stores[0]
			tenants := onShards(4, concurrency(10))
			for i, who := range tenants {
				for n := range i {
					w.mustReserve(ask(who, requestID(n), 1))
				}
			}
			first, errs := s.ReadMany(t.Context(), []int{3}, []string{""}, 1)
			if errs[0] != nil || len(first[0]) != 1 {
				t.Fatalf("%v, %v", first, errs)
			}
			if err := w.client.Set(t.Context(), s.shardKey(1, "outbox"), "no stream", 0).Err(); err != nil {
				t.Fatal(err)
			}
			entries, errs := s.ReadMany(t.Context(), []int{3, 1, 0, 2}, []string{first[0][0].ID, "", "", ""}, 10)
			for i, want := range []int{2, 0, 0, 2} {
				failed := i == 1
				if len(entries[i]) != want || failed != errors.Is(errs[i], admission.ErrUnavailable) || !failed && errs[i] != nil {
					t.Errorf("place %d: %d entries, %v; want %d", i, len(entries[i]), errs[i], want)
				}
			}
			if err := w.client.Del(t.Context(), s.shardKey(1, "outbox")).Err(); err != nil {
				t.Fatal(err)
			}
		})
	}
}
