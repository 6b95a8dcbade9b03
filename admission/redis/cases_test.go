package redis

import (
	"errors"
	"sync"
	"testing"
	"time"

	"tollgate/admission"
	"tollgate/events"
	"tollgate/tenancy"
)

// together reserves all requests at once, spread over the gateways, and
// returns the admitted reservations and the refusals.
func (w *world) together(reqs []*admission.ReserveRequest) (admitted []*admission.Reservation, refused []*admission.Refusal) {
	w.t.Helper()
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i, req := range reqs {
		wg.Go(func() {
			r, err := w.stores[i%len(w.stores)].Reserve(w.t.Context(), req)
			mu.Lock()
			defer mu.Unlock()
			refusal, isRefusal := err.(*admission.Refusal) //nolint:errorlint // the contract: not wrapped
			switch {
			case isRefusal:
				refused = append(refused, refusal)
			case err != nil:
				w.t.Errorf("Reserve(%s): %v", req.RequestID, err)
			default:
				admitted = append(admitted, r)
			}
		})
	}
	wg.Wait()
	return admitted, refused
}

func TestCaseA1_ParallelRequestsBeyondTheWindow(t *testing.T) {
	everywhere(t, func(t *testing.T, w *world) {
		acme := tenant("acme", perMinute(100))
		var reqs []*admission.ReserveRequest
		for i, tokens := range []int64{58, 80, 175, 175, 175} {
			reqs = append(reqs, ask(acme, requestID(i), tokens))
		}
		admitted, refused := w.together(reqs)
		var sum int64
		for _, r := range admitted {
			sum += r.AdmittedUnits
		}
		if len(admitted) != 1 || sum > 100_000 {
			t.Errorf("admitted %d requests, %d milli-units", len(admitted), sum)
		}
		for _, r := range refused {
			if r.RetryAfter < time.Second || r.RetryAfter > time.Minute || r.RetryAfter%time.Second != 0 {
				t.Errorf("%v: retry after %v", r, r.RetryAfter)
			}
		}
		w.wantLeft(acme, "tokens-60s", 0, sum/1000)
	})
}

func TestCaseA2_ABudgetIsNeverPassed(t *testing.T) {
	everywhere(t, func(t *testing.T, w *world) {
		acme := tenant("acme", budget(1000, tenancy.PeriodNone))
		var reqs []*admission.ReserveRequest
		for i := range 50 {
			reqs = append(reqs, ask(acme, requestID(i), 100))
		}
		admitted, refused := w.together(reqs)
		if len(admitted) != 10 || len(refused) != 40 {
			t.Errorf("admitted %d, refused %d", len(admitted), len(refused))
		}
		for _, r := range refused {
			if r.Reason != admission.ReasonHeld || r.RetryAfter != 5*time.Second {
				t.Errorf("refused %v, retry after %v", r, r.RetryAfter)
			}
		}
		w.wantLeft(acme, "budget", 0, 1000)
		for _, r := range admitted {
			w.mustSettle(used(acme, r.ID, 50, 50))
		}
		w.wantLeft(acme, "budget", 1000, 0)
		_, err := w.reserve(ask(acme, "late", 100))
		if r := w.refused(err); r.Reason != admission.ReasonSpent || r.RetryAfter != 0 {
			t.Errorf("a spent budget refused with %v, retry after %v", r, r.RetryAfter)
		}
	})
}

func TestCaseA3_ANarrowCapBindsARichTenant(t *testing.T) {
	everywhere(t, func(t *testing.T, w *world) {
		rich := tenant("rich", budget(1_000_000, tenancy.PeriodNone))
		capped := budget(300, tenancy.PeriodNone)
		capped.Name, capped.Scope = "key-cap", tenancy.ScopeKey
		key := &tenancy.Key{ID: "tgk_0123456789abcdef", TenantID: "rich", Limits: []tenancy.Limit{capped}}
		var reqs []*admission.ReserveRequest
		for i := range 20 {
			req := ask(rich, requestID(i), 100)
			req.Key, req.Limits = key, admission.Constraints(rich, key, "chat", "m", nil)
			reqs = append(reqs, req)
		}
		admitted, refused := w.together(reqs)
		if len(admitted) != 3 {
			t.Errorf("admitted %d, want 3", len(admitted))
		}
		for _, r := range refused {
			if r.Constraint.Limit.Name != "key-cap" {
				t.Errorf("refused by %s", r.Constraint.Limit.Name)
			}
		}
		w.wantLeft(rich, "budget", 0, 300)
	})
}

func TestCaseA4_ARefusalLeavesNoTrace(t *testing.T) {
	everywhere(t, func(t *testing.T, w *world) {
		global := tenancy.Limit{Name: "global", Layer: "L4", Kind: tenancy.KindLease, Scope: tenancy.ScopeGlobal, Limit: 10}
		acme := tenant("acme", perMinute(1000), rate(2, time.Minute, 2), concurrency(1))
		a := w.mustReserve(ask(acme, "a", 100, global))
		_, err := w.reserve(ask(acme, "b", 100, global))
		if r := w.refused(err); r.Reason != admission.ReasonConcurrency || r.Constraint.Limit.Layer != "L3" {
			t.Errorf("b was refused by %v", r)
		}
		w.wantLeft(acme, "tokens-60s", 0, 100)
		w.wantLeft(acme, "requests", 1, 0)
		w.wantLeft(acme, "concurrency", 1, 0)
		w.wantLeft(acme, "global", 1, 0, global)
		w.mustSettle(used(acme, a.ID, 50, 50))
		w.mustReserve(ask(acme, "c", 100, global))
		w.wantLeft(acme, "requests", 2, 0)
	})
}

func TestCaseA6_ManyGatewaysShareOneLimit(t *testing.T) {
	for name, limit := range map[string]tenancy.Limit{"rate": rate(100, time.Minute, 100), "concurrency": concurrency(100)} {
		t.Run(name, func(t *testing.T) {
			everywhere(t, func(t *testing.T, w *world) {
				acme := tenant("acme", limit)
				var reqs []*admission.ReserveRequest
				for i := range 300 {
					reqs = append(reqs, ask(acme, requestID(i), 10))
				}
				admitted, refused := w.together(reqs)
				if len(admitted) != 100 || len(refused) != 200 {
					t.Errorf("admitted %d, refused %d", len(admitted), len(refused))
				}
			})
		})
	}
}

func TestCaseA7_RetriesDoNotProlongABlock(t *testing.T) {
	everywhere(t, func(t *testing.T, w *world) {
		acme := tenant("acme", perMinute(100), rate(1, time.Minute, 1))
		r := w.mustReserve(ask(acme, "first", 100))
		w.mustSettle(used(acme, r.ID, 50, 50))
		for second := 1; second < 60; second++ {
			w.clock.advance(time.Second)
			for g, s := range w.stores {
				_, err := s.Reserve(t.Context(), ask(acme, "blocked", 100))
				if err == nil {
					t.Fatalf("second %d, gateway %d: admitted", second, g)
				}
				if r := w.refused(err); r.RetryAfter != time.Duration(60-second)*time.Second {
					t.Fatalf("second %d: retry after %v (%v)", second, r.RetryAfter, r)
				}
			}
		}
		w.clock.advance(time.Second)
		if _, err := w.reserve(ask(acme, "blocked", 100)); err != nil {
			t.Errorf("the first request of the new window: %v", err)
		}
	})
}

func TestCaseA8_APeriodEndsAtTheTenantsMidnight(t *testing.T) {
	everywhere(t, func(t *testing.T, w *world) {
		acme := tenant("acme", budget(100, tenancy.PeriodDay))
		acme.TimeZone = "Asia/Shanghai"
		w.clock.set(time.Date(2026, 8, 19, 15, 59, 59, 0, time.UTC))
		r := w.mustReserve(ask(acme, "before", 100))
		w.mustSettle(used(acme, r.ID, 50, 50))
		_, err := w.reserve(ask(acme, "too much", 100))
		_ = w.refused(err)
		if l := w.left(acme, "budget"); l.Reset != time.Second {
			t.Errorf("reset in %v, want 1 s", l.Reset)
		}
		w.clock.set(time.Date(2026, 8, 19, 16, 0, 0, 0, time.UTC)) // 2026-08-20T00:00+08:00
		if _, err := w.reserve(ask(acme, "after", 100)); err != nil {
			t.Errorf("in the new period: %v", err)
		}
		w.wantLeft(acme, "budget", 0, 100)
	})
}

func TestCaseA9_RetryAfterIsWhatIsLeftOfTheWindow(t *testing.T) {
	everywhere(t, func(t *testing.T, w *world) {
		acme := tenant("acme", perMinute(100))
		r := w.mustReserve(ask(acme, "a", 60))
		w.mustSettle(used(acme, r.ID, 30, 30))
		w.clock.advance(20 * time.Second)
		r = w.mustReserve(ask(acme, "b", 40))
		w.mustSettle(used(acme, r.ID, 20, 20))
		w.clock.advance(30*time.Second + 400*time.Millisecond)
		_, err := w.reserve(ask(acme, "c", 50))
		if r := w.refused(err); r.RetryAfter != 10*time.Second || r.Reason != admission.ReasonWindow {
			t.Errorf("with 50 s gone: %v, retry after %v", r, r.RetryAfter)
		}
		_, err = w.reserve(ask(acme, "d", 70)) // needs the second use to leave, too
		if r := w.refused(err); r.RetryAfter != 30*time.Second {
			t.Errorf("retry after %v, want 30 s", r.RetryAfter)
		}
		_, err = w.reserve(ask(acme, "e", 101))
		if r := w.refused(err); r.Reason != admission.ReasonTooLarge || r.RetryAfter < time.Second || r.RetryAfter > time.Minute {
			t.Errorf("too large: %v, retry after %v", r, r.RetryAfter)
		}
		w.clock.advance(10 * time.Second)
		w.mustReserve(ask(acme, "c", 50))
	})
}

func TestCaseA10_NoMaximumGiven(t *testing.T) {
	everywhere(t, func(t *testing.T, w *world) {
		acme := tenant("acme", perMinute(100))
		platform := &tenancy.Platform{DefaultMaxOutputTokens: 4096}
		req := ask(acme, "first", 0)
		worst, err := admission.Hold(admission.Figures{InputTokens: 30, MaxOutputTokens: -1}, acme, "m", platform, req.Limits)
		if err != nil {
			t.Fatal(err)
		}
		req.Hold, req.WeightMilli = worst.Hold, worst.WeightMilli
		if r := w.mustReserve(req); r.AdmittedUnits != 100_000 {
			t.Errorf("held %d milli-units, want 100000", r.AdmittedUnits)
		}
	})
}

func TestCaseA12_CancelBeforeReserve(t *testing.T) {
	everywhere(t, func(t *testing.T, w *world) {
		acme := tenant("acme", perMinute(100), concurrency(1))
		cancel := &admission.UsageReport{Tenant: acme, RequestID: "r1", Author: "client", Reason: "gone | away\n100%"}
		r, err := w.stores[0].Cancel(t.Context(), cancel)
		if err != nil || r.State != events.StateCancelled || r.Replayed {
			t.Fatalf("cancel gave %+v, %v", r, err)
		}
		if again, err := w.stores[1].Cancel(t.Context(), cancel); err != nil || !again.Replayed || again.ID != r.ID {
			t.Errorf("second cancel gave %+v, %v", again, err)
		}
		if _, err := w.stores[2].Reserve(t.Context(), ask(acme, "r1", 50)); !errors.Is(err, admission.ErrTombstone) {
			t.Errorf("the late reserve gave %v", err)
		}
		w.wantLeft(acme, "tokens-60s", 0, 0)
		w.wantLeft(acme, "concurrency", 0, 0)
		last := w.fold()[r.ID]
		if !last.Tombstone || last.RequestID != "r1" || last.Reason != cancel.Reason || last.State != events.StateCancelled {
			t.Errorf("log ends with %+v", last)
		}
		if n := len(w.log()); n != 1 {
			t.Errorf("%d events, want 1", n)
		}
	})
}

func TestCaseA13_CancelledStreamsGiveTheirHoldsBack(t *testing.T) {
	everywhere(t, func(t *testing.T, w *world) {
		acme := tenant("acme", budget(800, tenancy.PeriodMonth))
		for i := range 7 {
			r := w.mustReserve(ask(acme, requestID(i), 500))
			if _, err := w.stores[1].Report(t.Context(), used(acme, r.ID, 20, 10)); err != nil {
				t.Fatal(err)
			}
			rep := used(acme, r.ID, 20, 20)
			rep.Estimated = true
			if _, err := w.stores[2].Cancel(t.Context(), rep); err != nil {
				t.Fatal(err)
			}
		}
		w.wantLeft(acme, "budget", 280, 0)
		w.mustReserve(ask(acme, "next", 520))
		for id, r := range w.fold() {
			if r.State == events.StateCancelled && (r.TotalMilliUnits != 40_000 || !r.Estimated) {
				t.Errorf("%s ended with %+v", id, r)
			}
		}
	})
}

func TestCaseA14_TheSameRequestIDAgain(t *testing.T) {
	everywhere(t, func(t *testing.T, w *world) {
		acme := tenant("acme", concurrency(1))
		a := w.mustReserve(ask(acme, "a", 100))
		if again := w.mustReserve(ask(acme, "a", 100)); !again.Replayed || again.ID != a.ID || again.AdmittedUnits != 100_000 {
			t.Errorf("same body gave %+v", again)
		}
		if _, err := w.reserve(ask(acme, "a", 102)); !errors.Is(err, admission.ErrBodyMismatch) {
			t.Errorf("other body gave %v", err)
		}
		_, err := w.reserve(ask(acme, "b", 100))
		_ = w.refused(err)
		w.mustSettle(used(acme, a.ID, 1, 1))
		if b := w.mustReserve(ask(acme, "b", 100)); b.Replayed {
			t.Error("a refused id was answered as a repeat")
		}
		if again := w.mustReserve(ask(acme, "a", 100)); !again.Replayed || again.State != events.StateSettled {
			t.Errorf("a settled id gave %+v", again)
		}
		// The same id of another tenant is another request.
		other := tenant("other", concurrency(1))
		if r := w.mustReserve(ask(other, "a", 300)); r.Replayed || r.ID == a.ID {
			t.Errorf("another tenant's request gave %+v", r)
		}
	})
}

// A batch holds the same request many times: it is decided once.
func TestCaseA14_ManyTimesAtOnce(t *testing.T) {
	everywhere(t, func(t *testing.T, w *world) {
		acme := tenant("acme", perMinute(1000), concurrency(10))
		var reqs []*admission.ReserveRequest
		for range 60 {
			reqs = append(reqs, ask(acme, "same", 100))
		}
		admitted, _ := w.together(reqs)
		fresh := 0
		for _, r := range admitted {
			if !r.Replayed {
				fresh++
			}
			if r.ID != admitted[0].ID {
				t.Errorf("ids %s and %s", r.ID, admitted[0].ID)
			}
		}
		if len(admitted) != 60 || fresh != 1 {
			t.Errorf("%d answers, %d of them fresh", len(admitted), fresh)
		}
		w.wantLeft(acme, "tokens-60s", 0, 100)
		w.wantLeft(acme, "concurrency", 1, 0)
	})
}

func TestCaseM5_SettleTwice(t *testing.T) {
	everywhere(t, func(t *testing.T, w *world) {
		acme := tenant("acme", budget(1000, tenancy.PeriodNone))
		r := w.mustReserve(ask(acme, "a", 100))
		w.mustSettle(used(acme, r.ID, 13, 33))
		if again := w.mustSettle(used(acme, r.ID, 13, 33)); !again.Replayed {
			t.Error("the same figures were not a repeat")
		}
		stored, err := w.stores[1].Settle(t.Context(), used(acme, r.ID, 13, 34))
		if !errors.Is(err, admission.ErrAlreadyFinal) || stored.TotalUnits != 46_000 {
			t.Errorf("other figures gave %+v, %v", stored, err)
		}
		if _, err := w.stores[2].Cancel(t.Context(), used(acme, r.ID, 13, 33)); !errors.Is(err, admission.ErrAlreadyFinal) {
			t.Errorf("cancel after settle gave %v", err)
		}
		w.wantLeft(acme, "budget", 46, 0)
	})
}

func TestCaseT5_TimeDoesNotRunBackwardsInAWindow(t *testing.T) {
	everywhere(t, func(t *testing.T, w *world) {
		acme := tenant("acme", perMinute(100), budget(1000, tenancy.PeriodDay))
		for _, jump := range []time.Duration{6 * time.Minute, -36 * 24 * time.Hour} {
			w.clock.advance(jump)
			r, err := w.reserve(ask(acme, "at "+jump.String(), 60))
			if jump < 0 {
				if r := w.refused(err); r.Constraint.Limit.Name != "tokens-60s" {
					t.Errorf("after a jump back: %v", r)
				}
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			w.mustSettle(used(acme, r.ID, 30, 30))
		}
		w.wantLeft(acme, "tokens-60s", 60, 0)
		w.wantLeft(acme, "budget", 60, 0)
	})
}

func TestCasesT1T2_PeriodsFollowTheZone(t *testing.T) {
	for _, c := range []struct {
		zone          string
		period        tenancy.Period
		before, after time.Time // the last moment of a period and the first of the next
	}{
		{"Asia/Kolkata", tenancy.PeriodDay, time.Date(2026, 8, 19, 18, 29, 59, 0, time.UTC), time.Date(2026, 8, 19, 18, 30, 0, 0, time.UTC)},
		{"Pacific/Tongatapu", tenancy.PeriodMonth, time.Date(2026, 8, 31, 10, 59, 59, 0, time.UTC), time.Date(2026, 8, 31, 11, 0, 0, 0, time.UTC)},
		{"America/New_York", tenancy.PeriodMonth, time.Date(2026, 12, 1, 4, 59, 59, 0, time.UTC), time.Date(2026, 12, 1, 5, 0, 0, 0, time.UTC)},
		// A day of 23 hours, then one of 25.
		{"Europe/Berlin", tenancy.PeriodDay, time.Date(2026, 3, 29, 21, 59, 59, 0, time.UTC), time.Date(2026, 3, 29, 22, 0, 0, 0, time.UTC)},
		{"Europe/Berlin", tenancy.PeriodDay, time.Date(2026, 10, 25, 22, 59, 59, 0, time.UTC), time.Date(2026, 10, 25, 23, 0, 0, 0, time.UTC)},
	} {
		t.Run(c.zone+"/"+string(c.period), func(t *testing.T) {
			everywhere(t, func(_ *testing.T, w *world) {
				acme := tenant("acme", budget(100, c.period))
				acme.TimeZone = c.zone
				w.clock.set(c.before)
				r := w.mustReserve(ask(acme, "before", 100))
				w.mustSettle(used(acme, r.ID, 50, 50))
				_, err := w.reserve(ask(acme, "refused", 1))
				_ = w.refused(err)
				w.clock.set(c.after)
				w.wantLeft(acme, "budget", 0, 0)
				w.mustReserve(ask(acme, "after", 100))
			})
		})
	}
}

// A gateway whose clock is wrong by days asks again with the right calendar.
func TestCaseA8_AGatewayWithAWrongClock(t *testing.T) {
	everywhere(t, func(t *testing.T, w *world) {
		acme := tenant("acme", budget(100, tenancy.PeriodDay))
		for _, wrong := range []time.Duration{-40 * 24 * time.Hour, -30 * time.Hour, 30 * time.Hour, 400 * 24 * time.Hour} {
			s := w.gateway(nil)
			s.now = func() time.Time { return w.clock.now().Add(wrong) }
			if _, err := s.Reserve(t.Context(), ask(acme, "by "+wrong.String(), 10)); err != nil {
				t.Errorf("clock wrong by %v: %v", wrong, err)
			}
		}
		w.wantLeft(acme, "budget", 0, 40)
	})
}

// A final figure below what was reported takes the difference from the slots
// that hold it, newest first, and never from other use.
func TestAnEstimateIsTakenBackWhereItIs(t *testing.T) {
	everywhere(t, func(t *testing.T, w *world) {
		acme := tenant("acme", perMinute(1000))
		early, r := w.mustReserve(ask(acme, "early", 100)), w.mustReserve(ask(acme, "r", 100))
		w.mustSettle(used(acme, early.ID, 5, 5))
		if _, err := w.stores[0].Report(t.Context(), used(acme, r.ID, 50, 30)); err != nil {
			t.Fatal(err)
		}
		w.clock.advance(10 * time.Second)
		if _, err := w.stores[1].Report(t.Context(), used(acme, r.ID, 50, 40)); err != nil {
			t.Fatal(err)
		}
		w.clock.advance(10 * time.Second)
		w.wantLeft(acme, "tokens-60s", 100, 10)
		w.mustSettle(used(acme, r.ID, 50, 5)) // 35 less: 10 of the second slot, 25 of the first
		w.wantLeft(acme, "tokens-60s", 65, 0)
		late := w.mustReserve(ask(acme, "late", 20))
		w.mustSettle(used(acme, late.ID, 10, 10))
		w.clock.advance(39 * time.Second)
		w.wantLeft(acme, "tokens-60s", 85, 0)
		w.clock.advance(time.Second) // the first slot leaves, with its 10 + 55
		w.wantLeft(acme, "tokens-60s", 20, 0)
		w.clock.advance(20 * time.Second)
		w.wantLeft(acme, "tokens-60s", 0, 0)
	})
}

// Use beyond the hold is recorded, and the report says when to end.
func TestUseBeyondTheHold(t *testing.T) {
	everywhere(t, func(t *testing.T, w *world) {
		acme := tenant("acme", budget(200, tenancy.PeriodMonth))
		a, b := w.mustReserve(ask(acme, "a", 100)), w.mustReserve(ask(acme, "b", 50))
		r, err := w.stores[0].Report(t.Context(), used(acme, a.ID, 50, 90)) // 40 beyond, 50 are free
		if err != nil || r.Stop != nil {
			t.Errorf("inside the limit: stop %v, %v", r.Stop, err)
		}
		r, err = w.stores[0].Report(t.Context(), used(acme, a.ID, 50, 120))
		if err != nil || r.Stop == nil || r.Stop.Reason != admission.ReasonHeld || r.Stop.Constraint.Limit.Name != "budget" || r.Stop.Constraint.Limit.Limit != 200 {
			t.Errorf("beyond the limit: stop %v, %v", r.Stop, err)
		}
		w.wantLeft(acme, "budget", 170, 50)
		r, err = w.stores[0].Report(t.Context(), used(acme, a.ID, 50, 170))
		if err != nil || r.Stop == nil || r.Stop.Reason != admission.ReasonSpent || r.Stop.RetryAfter != 0 {
			t.Errorf("beyond the budget: stop %v, %v", r.Stop, err)
		}
		w.mustSettle(used(acme, a.ID, 50, 170))
		w.mustSettle(used(acme, b.ID, 0, 0))
		w.wantLeft(acme, "budget", 220, 0)
		_, err = w.reserve(ask(acme, "c", 1))
		if r := w.refused(err); r.Reason != admission.ReasonSpent {
			t.Errorf("then refused by %v", r)
		}
	})
}

// A report that comes late or twice changes no total.
func TestReportsAreCumulative(t *testing.T) {
	everywhere(t, func(t *testing.T, w *world) {
		acme := tenant("acme", budget(1000, tenancy.PeriodNone))
		r := w.mustReserve(ask(acme, "a", 200))
		for _, out := range []int64{10, 30, 20, 30, 30} {
			if _, err := w.stores[out%3].Report(t.Context(), used(acme, r.ID, 13, out)); err != nil {
				t.Fatal(err)
			}
		}
		w.wantLeft(acme, "budget", 43, 157)
		w.mustSettle(used(acme, r.ID, 13, 33))
		w.wantLeft(acme, "budget", 46, 0)
		w.fold()
	})
}

// A hold is extended by reports, but not beyond its longest life.
func TestAHoldEnds(t *testing.T) {
	everywhere(t, func(t *testing.T, w *world) {
		acme := tenant("acme", concurrency(1))
		req := ask(acme, "a", 10)
		req.TTL, req.MaxHold = time.Minute, 100*time.Second
		r := w.mustReserve(req)
		w.clock.advance(50 * time.Second)
		got, err := w.stores[0].Report(t.Context(), used(acme, r.ID, 1, 1))
		if err != nil || !got.ExpiresAt.Equal(noon.Add(100*time.Second)) {
			t.Errorf("expires %v, %v", got.ExpiresAt, err)
		}
		w.clock.advance(49 * time.Second)
		_, err = w.reserve(ask(acme, "b", 10))
		if r := w.refused(err); r.RetryAfter != time.Second {
			t.Errorf("retry after %v", r.RetryAfter)
		}
		w.clock.advance(time.Second)
		w.mustReserve(ask(acme, "b", 10)) // before any sweep
		late, err := w.stores[0].Report(t.Context(), used(acme, r.ID, 2, 2))
		if err != nil || late.State != events.StateExpired || late.Stop == nil {
			t.Errorf("a report after the deadline gave %+v, %v", late, err)
		}
		w.wantLeft(acme, "concurrency", 1, 0)
		w.fold()
	})
}
