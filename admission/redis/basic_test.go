package redis

import (
	"errors"
	"testing"
	"time"

	"tollgate/admission"
	"tollgate/events"
	"tollgate/tenancy"
)

func TestLifeOfAReservation(t *testing.T) {
	everywhere(t, func(t *testing.T, w *world) {
		acme := tenant("acme", perMinute(1000), ring("tokens-30d", 5000, 720*time.Hour, 720), rate(10, time.Second, 10), concurrency(5))
		platform := []tenancy.Limit{
			{Name: "endpoint", Layer: "L3", Kind: tenancy.KindLease, Scope: tenancy.ScopeEndpoint, Match: "*", Limit: 10, BurstPercent: 120},
			{Name: "global", Layer: "L3", Kind: tenancy.KindLease, Scope: tenancy.ScopeGlobal, Limit: 10, BurstPercent: 120},
		}
		r := w.mustReserve(ask(acme, "r1", 400, platform...))
		if r.State != events.StateHeld || r.AdmittedUnits != 400_000 || !r.ExpiresAt.Equal(noon.Add(2*time.Minute)) || !r.CreatedAt.Equal(noon) {
			t.Errorf("reservation %+v", r)
		}
		for _, l := range r.Left {
			switch l.Constraint.Limit.Name {
			case "tokens-60s":
				if l.Held != 400 || l.Used != 0 || l.Remaining != 600 {
					t.Errorf("left %+v", l)
				}
			case "concurrency":
				if l.Used != 1 || l.Remaining != 4 {
					t.Errorf("left %+v", l)
				}
			case "endpoint", "global":
				if l.Used != 1 || l.Remaining != 11 {
					t.Errorf("left %+v", l)
				}
			case "requests":
				if l.Used != 1 || l.Remaining != 9 {
					t.Errorf("left %+v", l)
				}
			}
		}

		again := w.mustReserve(ask(acme, "r1", 400, platform...))
		if !again.Replayed || again.ID != r.ID {
			t.Errorf("repeat gave %+v", again)
		}
		w.clock.advance(10 * time.Second)
		got, err := w.stores[1].Report(t.Context(), used(acme, r.ID, 200, 50))
		if err != nil {
			t.Fatal(err)
		}
		if got.TotalUnits != 250_000 || got.Stop != nil || !got.ExpiresAt.Equal(noon.Add(130*time.Second)) {
			t.Errorf("report gave %+v", got)
		}
		w.wantLeft(acme, "tokens-60s", 250, 150)
		w.wantLeft(acme, "tokens-30d", 250, 150)
		w.wantLeft(acme, "global", 1, 0, platform...)

		done := w.mustSettle(used(acme, r.ID, 200, 60))
		if done.State != events.StateSettled || done.TotalUnits != 260_000 || done.Replayed {
			t.Errorf("settle gave %+v", done)
		}
		w.wantLeft(acme, "tokens-60s", 260, 0)
		w.wantLeft(acme, "concurrency", 0, 0)
		w.wantLeft(acme, "global", 0, 0, platform...)
		w.wantLeft(acme, "endpoint", 0, 0, platform...)

		if twice := w.mustSettle(used(acme, r.ID, 200, 60)); !twice.Replayed {
			t.Errorf("second settle gave %+v", twice)
		}
		other, err := w.stores[2].Settle(t.Context(), used(acme, r.ID, 200, 61))
		if !errors.Is(err, admission.ErrAlreadyFinal) || other.TotalUnits != 260_000 {
			t.Errorf("other figures gave %+v, %v", other, err)
		}
		if kept, err := w.stores[1].Get(t.Context(), acme, r.ID); err != nil || kept.TotalUnits != 260_000 || kept.State != events.StateSettled {
			t.Errorf("Get gave %+v, %v", kept, err)
		}

		w.clock.advance(time.Minute)
		w.wantLeft(acme, "tokens-60s", 0, 0)
		w.wantLeft(acme, "tokens-30d", 260, 0)

		last := w.fold()[r.ID]
		if last.State != events.StateSettled || last.Seq != 3 || last.TotalMilliUnits != 260_000 || last.HeldMilliUnits != 0 {
			t.Errorf("log ends with %+v", last)
		}
	})
}

func TestProgressIsOfEachShard(t *testing.T) {
	everywhere(t, func(t *testing.T, w *world) {
		s, acme := w.stores[0], tenant("acme", concurrency(10))
		shard := admission.Shard("acme", s.opts.Shards)
		other := (shard + 1) % s.opts.Shards
		for i := range 3 {
			w.mustReserve(ask(acme, requestID(i), 1))
		}
		if n, err := s.Forget(t.Context(), map[int]string{other: "e1"}); n != 1 || err != nil {
			t.Fatalf("closed %d shards, %v", n, err)
		}
		before, added, after, err := s.Progress(t.Context())
		if err != nil || len(added) != s.opts.Shards {
			t.Fatalf("%v, %v", added, err)
		}
		for i := range s.opts.Shards {
			records, epoch := int64(0), "e1"
			switch i {
			case shard:
				records = 3
			case other:
				epoch = ""
			}
			if added[i] != records || before[i] != epoch || after[i] != epoch {
				t.Errorf("shard %d: %d records in epochs %q and %q, want %d in %q", i, added[i], before[i], after[i], records, epoch)
			}
		}
	})
}
