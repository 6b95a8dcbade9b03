package redis

import (
	"context"
	"errors"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	goredis "github.com/redis/go-redis/v9"

	"tollgate/admission"
	"tollgate/events"
	"tollgate/internal/testenv"
	"tollgate/tenancy"
)

// deafHook lets a script call reach Redis and then loses its answer.
type deafHook struct{ lose atomic.Int64 }

type timeoutError struct{}

func (timeoutError) Error() string   { return "i/o timeout" }
func (timeoutError) Timeout() bool   { return true }
func (timeoutError) Temporary() bool { return true }

var _ net.Error = timeoutError{}

func (h *deafHook) DialHook(next goredis.DialHook) goredis.DialHook { return next }
func (h *deafHook) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return next
}

func (h *deafHook) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error {
		err := next(ctx, cmd)
		if (cmd.Name() == "fcall" || strings.HasPrefix(cmd.Name(), "eval")) && err == nil && h.lose.Add(-1) >= 0 {
			cmd.SetErr(timeoutError{})
			return timeoutError{}
		}
		return err
	}
}

func TestCaseA15_AnAnswerIsLostAfterTheWork(t *testing.T) {
	everywhere(t, func(t *testing.T, w *world) {
		hook := &deafHook{}
		w.client.AddHook(hook)
		global := tenancy.Limit{Name: "global", Layer: "L4", Kind: tenancy.KindLease, Scope: tenancy.ScopeGlobal, Limit: 10}
		acme := tenant("acme", perMinute(1000), rate(10, time.Minute, 10), concurrency(5))
		once := func(what string) {
			w.wantLeft(acme, "requests", 1, 0)
			w.wantLeft(acme, "global", 1, 0, global)
			if t.Failed() {
				t.Fatalf("after %s", what)
			}
		}

		hook.lose.Store(1)
		r := w.mustReserve(ask(acme, "r", 100, global))
		w.wantLeft(acme, "tokens-60s", 0, 100)
		once("a lost reserve")

		// Both tries are lost: the caller does not know, asks again elsewhere.
		hook.lose.Store(2)
		if _, err := w.stores[0].Settle(t.Context(), used(acme, r.ID, 10, 20)); !errors.Is(err, admission.ErrUnavailable) {
			t.Fatalf("two lost answers gave %v", err)
		}
		again, err := w.stores[1].Settle(t.Context(), used(acme, r.ID, 10, 20))
		if err != nil || !again.Replayed || again.TotalUnits != 30_000 {
			t.Errorf("the repeat gave %+v, %v", again, err)
		}
		w.wantLeft(acme, "tokens-60s", 30, 0)
		w.wantLeft(acme, "concurrency", 0, 0)
		if n := len(w.log()); n != 2 {
			t.Errorf("%d events, want 2", n)
		}
	})
}

func TestOutOfReach(t *testing.T) {
	m := miniredis.RunT(t)
	client := goredis.NewClient(&goredis.Options{Addr: m.Addr(), MaxRetries: -1, DialTimeout: 100 * time.Millisecond})
	defer func() { _ = client.Close() }()
	s, err := New(Options{Client: client})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Stop(context.Background()) }()
	acme := tenant("acme", concurrency(1))
	if err := s.Ready(t.Context()); !errors.Is(err, admission.ErrNotRebuilt) {
		t.Errorf("an empty Redis: Ready %v", err)
	}
	if _, err := s.Reserve(t.Context(), ask(acme, "r", 1)); !errors.Is(err, admission.ErrNotRebuilt) {
		t.Errorf("an empty Redis: Reserve %v", err)
	}
	for name, call := range map[string]func(context.Context, *admission.UsageReport) (*admission.Reservation, error){
		"Settle": s.Settle, "Report": s.Report, "Cancel": s.Cancel,
	} {
		if _, err := call(t.Context(), used(acme, admission.ReservationID(admission.RequestHash("acme", "r"), 1787140913413), 1, 1)); !errors.Is(err, admission.ErrNotRebuilt) {
			t.Errorf("an empty Redis: %s %v", name, err)
		}
	}
	m.Close()
	if _, err := s.Reserve(t.Context(), ask(acme, "r", 1)); !errors.Is(err, admission.ErrUnavailable) {
		t.Errorf("no Redis: Reserve %v", err)
	}
	if err := s.Ready(t.Context()); !errors.Is(err, admission.ErrUnavailable) {
		t.Errorf("no Redis: Ready %v", err)
	}
	if err := s.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := s.Reserve(t.Context(), ask(acme, "r", 1)); !errors.Is(err, admission.ErrUnavailable) {
		t.Errorf("stopped: Reserve %v", err)
	}
}

// A caller that gives up gets its context's error, and the others their answer.
func TestACallerGoesAway(t *testing.T) {
	w := newWorld(t, miniBackend, 1, nil)
	acme := tenant("acme", concurrency(100))
	s := w.stores[0]
	target := s.targets[0]
	target.mu.Lock()
	target.inFlight += maxInFlight // nothing is sent
	target.mu.Unlock()
	ctx, cancel := context.WithCancel(t.Context())
	var gone, kept error
	var wg sync.WaitGroup
	wg.Go(func() { _, gone = s.Reserve(ctx, ask(acme, "gone", 1)) })
	wg.Go(func() { _, kept = s.Reserve(t.Context(), ask(acme, "kept", 1)) })
	for queued := 0; queued < 2; {
		target.mu.Lock()
		queued = len(target.queue)
		target.mu.Unlock()
	}
	cancel()
	target.mu.Lock()
	target.inFlight -= maxInFlight - 1
	s.running.Add(1)
	target.mu.Unlock()
	target.run()
	wg.Wait()
	if !errors.Is(gone, context.Canceled) || kept != nil {
		t.Errorf("gone %v, kept %v", gone, kept)
	}
	w.wantLeft(acme, "concurrency", 1, 0)
}

func TestCaseA11_ExpiredHoldsStayUntilReconciled(t *testing.T) {
	everywhere(t, func(t *testing.T, w *world) {
		global := tenancy.Limit{Name: "global", Layer: "L4", Kind: tenancy.KindLease, Scope: tenancy.ScopeGlobal, Limit: 10}
		acme := tenant("acme", perMinute(1000), budget(1000, tenancy.PeriodNone), concurrency(8))
		var all []*admission.Reservation
		for i := range 8 {
			all = append(all, w.mustReserve(ask(acme, requestID(i), 100, global)))
		}
		w.mustSettle(used(acme, all[0].ID, 10, 10))
		w.mustSettle(used(acme, all[1].ID, 10, 10))
		w.clock.advance(2 * time.Minute)
		var expired atomic.Int64
		var wg sync.WaitGroup
		for _, s := range w.stores {
			wg.Go(func() {
				for shard := range s.opts.Shards {
					n, err := s.Sweep(t.Context(), shard)
					if err != nil {
						t.Errorf("Sweep: %v", err)
					}
					expired.Add(int64(n))
				}
			})
		}
		wg.Wait()
		if expired.Load() != 6 {
			t.Errorf("three sweepers expired %d holds, want 6", expired.Load())
		}
		w.wantLeft(acme, "budget", 40, 600)
		w.wantLeft(acme, "concurrency", 0, 0)
		w.wantLeft(acme, "global", 0, 0, global)

		late, err := w.stores[0].Report(t.Context(), used(acme, all[2].ID, 5, 5))
		if err != nil || late.State != events.StateExpired || late.Stop == nil || late.Stop.Reason != admission.ReasonExpired || late.TotalUnits != 10_000 {
			t.Errorf("a late report gave %+v, %v", late, err)
		}
		w.wantLeft(acme, "budget", 50, 590)
		w.mustSettle(used(acme, all[2].ID, 5, 5))
		for _, r := range all[3:] {
			rep := used(acme, r.ID, 0, 0)
			rep.SoFar, rep.Author, rep.Reason = true, "reconciler", "no reading"
			if _, err := w.stores[1].Cancel(t.Context(), rep); err != nil {
				t.Fatal(err)
			}
		}
		w.wantLeft(acme, "budget", 50, 0)
		n := 0
		for _, e := range w.log() {
			if e.Type == events.TypeExpired {
				n++
			}
		}
		if n != 6 {
			t.Errorf("%d expiry events, want 6", n)
		}
		w.fold()
	})
}

func TestCaseR3_ManyRebuildersGiveTheValueOnce(t *testing.T) {
	for _, b := range backends {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			client, prefix := b.open(t)
			w := &world{t: t, client: client, prefix: prefix, clock: newClock(noon)}
			for range 3 {
				w.stores = append(w.stores, w.gateway(nil))
			}
			global := tenancy.Limit{Name: "global", Layer: "L4", Kind: tenancy.KindLease, Scope: tenancy.ScopeGlobal, Limit: 10}
			acme := tenant("acme", ring("tokens-30d", 1000, 720*time.Hour, 720), budget(1000, tenancy.PeriodMonth), concurrency(8))
			limits := admission.Constraints(acme, nil, "chat", "m", &tenancy.Platform{Limits: []tenancy.Limit{global}})
			open := events.Reservation{
				TenantID: "acme", ReservationID: admission.ReservationID(admission.RequestHash("acme", "old"), noon.Add(-time.Minute).UnixMilli()),
				RequestID: "old", Endpoint: "chat", Model: "m", Seq: 2, State: events.StateHeld,
				Total: events.Usage{InputTokens: 30, OutputTokens: 10}, TotalMilliUnits: 80_000, WeightMilli: 2000,
				HeldMilliUnits: 120_000, ExpiresAt: noon.Add(time.Minute),
			}
			ended := open
			ended.ReservationID, ended.RequestID = admission.ReservationID(admission.RequestHash("acme", "ended"), noon.Add(-time.Hour).UnixMilli()), "ended"
			ended.State, ended.HeldMilliUnits = events.StateSettled, 0
			seed := TenantSeed{
				Tenant: acme,
				Rings: []RingSeed{{Constraint: limits[0], Slots: []SlotSum{
					{Start: noon.Add(-719 * time.Hour), Units: 100_000},
					{Start: noon.Add(-800 * time.Hour), Units: 5_000},
					{Start: noon.Add(-2 * time.Hour), Units: 200_000},
					{Start: noon, Units: 50_000},
				}}},
				Counters: []CounterSeed{{Constraint: limits[1], PeriodStart: time.Date(2026, 8, 1, 0, 0, 0, 0, time.UTC), Used: 300_000}},
				Reservations: []ReservationSeed{
					{Reservation: open, Limits: limits, MaxHold: time.Hour}, {Reservation: ended, Limits: limits, MaxHold: time.Hour},
				},
			}
			shard := admission.Shard("acme", 4)
			var wg sync.WaitGroup
			epochs := make([]string, 6)
			for i := range epochs {
				wg.Go(func() {
					var err error
					epochs[i], err = w.stores[i%3].Seed(t.Context(), shard, "e"+strconv.Itoa(i), []TenantSeed{seed})
					if err != nil {
						t.Errorf("Seed: %v", err)
					}
				})
			}
			wg.Wait()
			if slices.Min(epochs) != slices.Max(epochs) {
				t.Errorf("epochs %v", epochs)
			}
			w.wantLeft(acme, "tokens-30d", 350, 120)
			w.wantLeft(acme, "budget", 300, 120)
			w.wantLeft(acme, "concurrency", 1, 0)
			w.wantLeft(acme, "global", 1, 0, global)

			// In use now: another rebuild changes nothing.
			w.mustReserve(ask(acme, "new", 10, global))
			if _, err := w.stores[1].Seed(t.Context(), shard, "late", []TenantSeed{seed}); err != nil {
				t.Fatal(err)
			}
			w.wantLeft(acme, "tokens-30d", 350, 130)
			w.wantLeft(acme, "concurrency", 2, 0)

			rep := used(acme, open.ReservationID, 50, 20)
			if r := w.mustSettle(rep); r.TotalUnits != 140_000 {
				t.Errorf("settled %+v", r)
			}
			w.wantLeft(acme, "tokens-30d", 410, 10)
			w.wantLeft(acme, "budget", 360, 10)
			w.wantLeft(acme, "global", 1, 0, global)
			if r := w.mustSettle(used(acme, ended.ReservationID, 30, 10)); !r.Replayed {
				t.Errorf("a repeat of an ended one gave %+v", r)
			}
			if r := w.mustReserve(ask(acme, "ended", 80, global)); !r.Replayed || r.State != events.StateSettled {
				t.Errorf("reserve of an ended request gave %+v", r)
			}
			w.clock.advance(2 * time.Hour)
			w.wantLeft(acme, "tokens-30d", 310, 10) // the oldest slot has left
			for _, e := range w.log() {
				if !strings.HasPrefix(e.ID, epochs[0]+"-s0") || e.Source != "tollgate/admission/"+epochs[0]+"/"+strconv.Itoa(shard) {
					t.Errorf("event %s from %s", e.ID, e.Source)
				}
			}
		})
	}
}

func TestBacklogBoundRefusesReservesOnly(t *testing.T) {
	for _, b := range backends {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, b.open, 1, func(o *Options) { o.MaxBacklog = 3 })
			acme := tenant("acme", concurrency(100))
			var open []*admission.Reservation
			for i := range 3 {
				open = append(open, w.mustReserve(ask(acme, requestID(i), 1)))
			}
			if _, err := w.reserve(ask(acme, "more", 1)); !errors.Is(err, admission.ErrBacklogFull) {
				t.Fatalf("beyond the bound: %v", err)
			}
			for _, r := range open {
				w.mustSettle(used(acme, r.ID, 1, 1))
			}
			shard := admission.Shard("acme", 4)
			entries, err := w.stores[0].Read(t.Context(), shard, "", 100)
			if err != nil {
				t.Fatal(err)
			}
			if n, err := w.stores[0].Backlog(t.Context()); err != nil || n != 6 {
				t.Errorf("backlog %d, %v", n, err)
			}
			last := entries[len(entries)-1]
			if last.Cumulative != 6 {
				t.Errorf("cumulative %d, want 6", last.Cumulative)
			}
			for _, e := range []events.OutboxEntry{last, entries[0], last} { // late trims do no harm
				if err := w.stores[0].Trim(t.Context(), shard, e); err != nil {
					t.Fatal(err)
				}
			}
			if n, err := w.stores[0].Backlog(t.Context()); err != nil || n != 0 {
				t.Errorf("backlog %d after the trim, %v", n, err)
			}
			if rest, err := w.stores[0].Read(t.Context(), shard, "", 100); err != nil || len(rest) != 0 {
				t.Errorf("%d entries after the trim, %v", len(rest), err)
			}
			w.stores[0].backlog.full.Store(false)
			w.stores[0].backlog.next.Store(time.Now().Add(time.Hour).UnixMilli())
			w.mustReserve(ask(acme, "more", 1))
		})
	}
}

func TestAnUndecodableRecordDoesNotBlockItsShard(t *testing.T) {
	w := newWorld(t, miniBackend, 1, nil)
	w.mustReserve(ask(tenant("acme"), "r", 1))
	shard := admission.Shard("acme", 4)
	if err := w.client.XAdd(t.Context(), &goredis.XAddArgs{
		Stream: w.stores[0].shardKey(shard, "outbox"), Values: []string{"n", "2", "c", "3", "p", "e1", "e", "garbage|x\n\x00"},
	}).Err(); err != nil {
		t.Fatal(err)
	}
	log := w.log()
	if len(log) != 3 || log[0].Type != events.TypeReserved {
		t.Fatalf("%d events", len(log))
	}
	if log[1].Type != "" || string(log[1].Data) != "garbage|x" || !strings.HasSuffix(log[1].ID, ".0") || !strings.HasSuffix(log[2].ID, ".1") {
		t.Errorf("the record came as %+v, %+v", log[1], log[2])
	}
}

func TestRelaysShareTheShards(t *testing.T) {
	for _, b := range backends {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, b.open, 1, func(o *Options) { o.Shards = 8 })
			s := w.stores[0]
			claim := func(owner string) []int {
				t.Helper()
				got, err := s.Claim(t.Context(), owner, time.Minute)
				if err != nil {
					t.Fatal(err)
				}
				return got
			}
			if got := claim("a"); len(got) != 8 {
				t.Fatalf("alone: %v", got)
			}
			if got := claim("b"); len(got) != 0 {
				t.Errorf("b took %v from a live relay", got)
			}
			a := claim("a")
			bs := claim("b")
			if len(a) != 4 || len(bs) != 4 {
				t.Errorf("shares %v and %v", a, bs)
			}
			for _, shard := range a {
				if slices.Contains(bs, shard) {
					t.Errorf("shard %d has two relays", shard)
				}
			}
			if err := s.Release(t.Context(), "b"); err != nil {
				t.Fatal(err)
			}
			if got := claim("a"); len(got) != 8 {
				t.Errorf("after b left: %v", got)
			}
		})
	}
}

// One operation that makes the script fail does not take its batch with it.
func TestAFaultHarmsOnlyItsOperation(t *testing.T) {
	for _, b := range []backend{backends[0], {"redis", testenv.Redis}} {
		t.Run(b.name, func(t *testing.T) {
			w := newWorld(t, b.open, 1, nil)
			good, bad := tenant("good", perMinute(100)), tenant("bad", perMinute(100))
			shard := admission.Shard("bad", 4)
			if err := w.client.Set(t.Context(), w.stores[0].shardKey(shard, "t:bad"), "not a hash", 0).Err(); err != nil {
				t.Fatal(err)
			}
			var errs [3]error
			var calls []func()
			for i, who := range []*tenancy.Tenant{good, bad, good} {
				calls = append(calls, func() { _, errs[i] = w.stores[0].Reserve(t.Context(), ask(who, requestID(i), 10)) })
			}
			inOneBatch(w.stores[0], calls)
			if errs[0] != nil || errs[2] != nil || !errors.Is(errs[1], admission.ErrUnavailable) {
				t.Errorf("got %v", errs)
			}
			w.wantLeft(good, "tokens-60s", 0, 20)
		})
	}
}

func TestLastRefusals(t *testing.T) {
	everywhere(t, func(t *testing.T, w *world) {
		acme := tenant("acme", perMinute(10))
		_, err := w.reserve(ask(acme, "r", 11))
		_ = w.refused(err)
		if err := w.stores[0].Stop(t.Context()); err != nil { // waits for the note
			t.Fatal(err)
		}
		st, err := w.stores[1].Standing(t.Context(), acme, admission.Constraints(acme, nil, "chat", "m", nil))
		if err != nil {
			t.Fatal(err)
		}
		if r := st.LastRefusals["tokens-60s"]; r.Reason != admission.ReasonTooLarge || !r.At.Equal(noon) {
			t.Errorf("last refusals %+v", st.LastRefusals)
		}
	})
}
