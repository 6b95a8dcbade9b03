package redis

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"tollgate/admission"
	"tollgate/events"
	"tollgate/tenancy"
)

// TestRandomHistories runs random histories of several gateways against the
// model: every decision, reason, wait and standing must be the model's, and the
// log's deltas must add up to the counters. On a single Redis several
// operations go in one batch. More histories: -rapid.checks=1000.
func TestRandomHistories(t *testing.T) {
	for _, b := range backends {
		t.Run(b.name, func(t *testing.T) {
			w := newWorld(t, b.open, 3, nil)
			history := 0
			rapid.Check(t, func(rt *rapid.T) {
				history++
				h := newHistory(rt, w, history)
				steps := rapid.IntRange(10, 80).Draw(rt, "steps")
				for range steps {
					h.step()
				}
				h.end()
			})
		})
	}
}

// history is one random run. Its tenants and pool limits have names of their
// own, so that histories share a Redis.
type history struct {
	t        *rapid.T
	w        *world
	m        *model
	n        int
	tenants  []*tenancy.Tenant
	platform *tenancy.Platform
	requests []string
	open     []*modelReservation
	batched  bool // more than one operation in the batch under way
	of       map[*modelReservation]*tenancy.Tenant
}

func newHistory(t *rapid.T, w *world, n int) *history {
	h := &history{t: t, w: w, m: newModel(), n: n, of: map[*modelReservation]*tenancy.Tenant{}}
	w.clock.set(noon.Add(time.Duration(rapid.IntRange(0, 200_000_000).Draw(t, "start ms")) * time.Millisecond))
	h.m.now = w.clock.now().UnixMilli()
	h.platform = &tenancy.Platform{Limits: []tenancy.Limit{
		{Name: "global", Layer: "L3", Kind: tenancy.KindLease, Scope: tenancy.ScopeGlobal, Limit: 5, BurstPercent: 120},
	}}
	h.platform.Limits[0].Name = fmt.Sprintf("global-%d", n)
	output := ring("output", 300, time.Minute, 10)
	output.Metric = tenancy.MetricOutputTokens
	images := budget(20, tenancy.PeriodNone)
	images.Name, images.Metric, images.Budget = "images", tenancy.MetricImages, false
	calls := ring("calls", 12, 10*time.Minute, 5)
	calls.Metric = tenancy.MetricRequests
	embed := concurrency(2)
	embed.Name, embed.Scope, embed.Match = "per-endpoint", tenancy.ScopeEndpoint, "*"
	h.tenants = []*tenancy.Tenant{
		tenant(fmt.Sprintf("one-%d", n), perMinute(500), output, budget(5000, tenancy.PeriodDay), rate(5, 10*time.Second, 4), concurrency(4)),
		tenant(fmt.Sprintf("two-%d", n), ring("tokens-1h", 900, time.Hour, 60), images, calls, embed),
	}
	h.tenants[1].Quota.Limits[0].Budget = true
	return h
}

func (h *history) step() {
	switch rapid.IntRange(0, 9).Draw(h.t, "step") {
	case 0, 2, 3, 4:
		reach := rapid.SampledFrom([]int{2_000, 15_000, 15_000, 60_000, 60_000, 600_000, 90_000_000}).Draw(h.t, "reach")
		d := rapid.IntRange(0, reach).Draw(h.t, "ms")
		h.w.clock.advance(time.Duration(d) * time.Millisecond)
		h.m.now = h.w.clock.now().UnixMilli()
	case 1:
		h.sweep()
	default:
		h.together(rapid.IntRange(1, 6).Draw(h.t, "operations"))
	}
	h.compare()
}

func (h *history) store() *Store {
	return h.w.stores[rapid.IntRange(0, len(h.w.stores)-1).Draw(h.t, "gateway")]
}

// together runs some operations: on a single Redis in one batch and in order,
// on a cluster one by one.
func (h *history) together(n int) {
	s := h.store()
	var calls []func()
	var checks []func()
	for range n {
		call, check := h.operation(s)
		if s.cluster {
			call()
			check()
			continue
		}
		calls, checks = append(calls, call), append(checks, check)
	}
	h.batched = len(calls) > 1
	defer func() { h.batched = false }()
	inOneBatch(s, calls)
	for _, check := range checks {
		check()
	}
}

// inOneBatch holds a store's queue until all calls wait in it, in order.
func inOneBatch(s *Store, calls []func()) {
	if len(calls) == 0 {
		return
	}
	target := s.targets[0]
	target.mu.Lock()
	target.inFlight += maxInFlight
	target.mu.Unlock()
	var wg sync.WaitGroup
	for i, call := range calls {
		wg.Go(call)
		for {
			target.mu.Lock()
			queued := len(target.queue)
			target.mu.Unlock()
			if queued > i {
				break
			}
			runtime.Gosched()
		}
	}
	target.mu.Lock()
	target.inFlight -= maxInFlight - 1
	s.running.Add(1)
	target.mu.Unlock()
	target.run()
	wg.Wait()
}

// operation draws one operation. call does it; check, which runs after it in
// order, asks the model and compares.
func (h *history) operation(s *Store) (call, check func()) {
	kind := rapid.IntRange(0, 9).Draw(h.t, "operation")
	if kind < 5 || len(h.open) == 0 {
		return h.reserve(s)
	}
	r := h.open[rapid.IntRange(0, len(h.open)-1).Draw(h.t, "reservation")]
	t := h.of[r]
	total := events.Usage{
		InputTokens: rapid.Int64Range(0, 90).Draw(h.t, "in"), OutputTokens: rapid.Int64Range(0, 140).Draw(h.t, "out"),
		Images: rapid.Int64Range(0, 1).Draw(h.t, "images"),
	}
	rep := &admission.UsageReport{
		Tenant: t, ReservationID: admission.ReservationID(r.hash, r.created), Total: total, Author: "client",
		TTL: time.Duration(rapid.IntRange(0, 200).Draw(h.t, "ttl")) * time.Second,
	}
	switch kind {
	case 5, 6:
		return h.report(s, r, rep)
	case 7, 8:
		return h.finish(s, r, rep, events.StateSettled)
	}
	rep.SoFar = rapid.Bool().Draw(h.t, "so far")
	if rapid.Bool().Draw(h.t, "by request") {
		rep.ReservationID, rep.RequestID = "", r.request
	}
	return h.finish(s, r, rep, events.StateCancelled)
}

func (h *history) reserve(s *Store) (call, check func()) {
	t := h.tenants[rapid.IntRange(0, 1).Draw(h.t, "tenant")]
	if len(h.requests) == 0 || rapid.IntRange(0, 5).Draw(h.t, "new") > 0 {
		h.requests = append(h.requests, requestID(len(h.requests)))
	}
	req := ask(t, h.requests[rapid.IntRange(max(0, len(h.requests)-4), len(h.requests)-1).Draw(h.t, "request")], rapid.Int64Range(1, 150).Draw(h.t, "tokens"))
	req.Endpoint = rapid.SampledFrom([]string{"chat", "embed"}).Draw(h.t, "endpoint")
	req.Limits = admission.Constraints(t, nil, req.Endpoint, "m", h.platform)
	req.WeightMilli = rapid.SampledFrom([]int64{1000, 1500}).Draw(h.t, "weight")
	req.Hold.Images, req.ImageTokens = rapid.Int64Range(0, 1).Draw(h.t, "images"), 30
	req.TTL = time.Duration(rapid.IntRange(1, 200).Draw(h.t, "ttl")) * time.Second
	req.MaxHold = 10 * time.Minute
	var got *admission.Reservation
	var err error
	call = func() { got, err = s.Reserve(h.w.t.Context(), req) }
	check = func() {
		want, replayed, refusal, wantErr := h.m.reserve(req)
		if refusal != nil {
			r, ok := err.(*admission.Refusal) //nolint:errorlint // the contract: not wrapped
			if !ok {
				h.t.Fatalf("%s: got %v, %v; the model refuses: %v", req.RequestID, got, err, refusal)
			}
			if have := (verdict{r.Constraint.Limit.Name, r.Reason, r.RetryAfter}); !h.agree(have, *refusal) {
				h.t.Fatalf("%s: refused with %v, the model with %v", req.RequestID, have, *refusal)
			}
			return
		}
		if wantErr != nil || err != nil {
			if !errors.Is(err, wantErr) {
				h.t.Fatalf("%s: got %v, the model %v", req.RequestID, err, wantErr)
			}
			return
		}
		h.same(got, want)
		if got.Replayed != replayed {
			h.t.Fatalf("%s: replayed %v, the model %v", req.RequestID, got.Replayed, replayed)
		}
		if !replayed {
			h.open = append(h.open, want)
			h.of[want] = t
		}
	}
	return call, check
}

func (h *history) report(s *Store, r *modelReservation, rep *admission.UsageReport) (call, check func()) {
	var got *admission.Reservation
	var err error
	call = func() { got, err = s.Report(h.w.t.Context(), rep) }
	check = func() {
		stop, wantErr := h.m.report(r, rep.Total, rep.TTL)
		if !errors.Is(err, wantErr) {
			h.t.Fatalf("report: got %v, the model %v", err, wantErr)
		}
		h.same(got, r)
		if wantErr != nil {
			return
		}
		var have *verdict
		if got.Stop != nil {
			have = &verdict{got.Stop.Constraint.Limit.Name, got.Stop.Reason, got.Stop.RetryAfter}
		}
		was := h.batched
		h.batched = true // a report moves its own lease, which the hint does not see
		if (have == nil) != (stop == nil) || have != nil && !h.agree(*have, *stop) {
			h.t.Fatalf("report: stop %v, the model %v", have, stop)
		}
		h.batched = was
	}
	return call, check
}

func (h *history) finish(s *Store, r *modelReservation, rep *admission.UsageReport, state events.State) (call, check func()) {
	var got *admission.Reservation
	var err error
	call = func() {
		if state == events.StateSettled {
			got, err = s.Settle(h.w.t.Context(), rep)
		} else {
			got, err = s.Cancel(h.w.t.Context(), rep)
		}
	}
	check = func() {
		wantErr := h.m.finish(r, state, rep.Total, rep.SoFar)
		if !errors.Is(err, wantErr) {
			h.t.Fatalf("%s: got %v, the model %v", state, err, wantErr)
		}
		h.same(got, r)
	}
	return call, check
}

// agree compares verdicts. The soonest end of a lease is as it was before the
// batch, which is a hint for when to come again and need not be exact; so is
// which of two limits binds by it.
func (h *history) agree(have, want verdict) bool {
	if have == want {
		return true
	}
	hint := func(v verdict) bool {
		return v.reason == admission.ReasonHeld || v.reason == admission.ReasonConcurrency
	}
	soon := func(v verdict) bool { return v.wait >= time.Second && v.wait <= 5*time.Second }
	return h.batched && (hint(have) || hint(want)) && soon(have) && soon(want)
}

// same compares a reservation with the model's.
func (h *history) same(got *admission.Reservation, want *modelReservation) {
	h.t.Helper()
	if got == nil || got.ID != admission.ReservationID(want.hash, want.created) || got.Total != want.total ||
		got.State != want.state || got.ExpiresAt.UnixMilli() != want.deadline {
		h.t.Fatalf("got %+v, the model has %+v", got, want)
	}
}

func (h *history) sweep() {
	s := h.store()
	expired := 0
	for shard := range s.opts.Shards {
		n, err := s.Sweep(h.w.t.Context(), shard)
		if err != nil {
			h.t.Fatalf("Sweep: %v", err)
		}
		expired += n
	}
	if want := h.m.sweep(); expired != want {
		h.t.Fatalf("swept %d, the model %d", expired, want)
	}
}

// compare asks for every standing and compares it with the model's.
func (h *history) compare() {
	s := h.store()
	for _, t := range h.tenants {
		mt := h.m.tenant(t.ID)
		st, err := s.Standing(h.w.t.Context(), t, admission.Constraints(t, nil, "chat", "m", h.platform))
		if err != nil {
			h.t.Fatalf("Standing: %v", err)
		}
		for i := range st.Left {
			l := &st.Left[i]
			c := &l.Constraint
			var used, held int64
			switch c.Limit.Kind {
			case tenancy.KindRate:
				continue // its figure is derived; decisions compare it
			case tenancy.KindLease:
				used, _ = h.m.inUse(mt, c)
			case tenancy.KindRing:
				used, held = h.m.ringSum(mt.ring(c), c), mt.ring(c).held
			case tenancy.KindCounter:
				n := h.m.counter(mt, c)
				used, held = n.used, n.held
			}
			if l.Used != c.LimitUnits(used) || l.Held != c.LimitUnits(held) {
				h.t.Fatalf("%s of %s: used %d, held %d; the model %d, %d", c.Limit.Name, t.ID, l.Used, l.Held, c.LimitUnits(used), c.LimitUnits(held))
			}
			if c.Limit.Kind != tenancy.KindLease && l.Held < 0 {
				h.t.Fatalf("%s of %s holds %d", c.Limit.Name, t.ID, l.Held)
			}
		}
	}
}

// end ends every reservation and checks that nothing stays held, and that the
// log tells the same as the model.
func (h *history) end() {
	h.sweep()
	for _, r := range h.open {
		rep := &admission.UsageReport{
			Tenant: h.of[r], ReservationID: admission.ReservationID(r.hash, r.created), SoFar: true, Author: "reconciler", Reason: "end of test",
		}
		_, err := h.store().Cancel(h.w.t.Context(), rep)
		if wantErr := h.m.finish(r, events.StateCancelled, r.total, true); !errors.Is(err, wantErr) {
			h.t.Fatalf("ending %s: %v, the model %v", rep.ReservationID, err, wantErr)
		}
	}
	h.compare()
	for field, ring := range h.m.tenant(h.tenants[0].ID).rings {
		if ring.held != 0 {
			h.t.Fatalf("%s holds %d at the end", field, ring.held)
		}
	}
	last := h.w.fold()
	for _, r := range h.open {
		e := last[admission.ReservationID(r.hash, r.created)]
		units := figure(r.total, r.weight, r.image, tenancy.MetricTokens)
		if e.State != r.state || e.Total != r.total || e.TotalMilliUnits != units || e.HeldMilliUnits != 0 {
			h.t.Fatalf("log ends with %+v, the model with %+v", e, r)
		}
	}
	// The log of this history is read: drop it, so that the next reads its own.
	for shard := range h.w.stores[0].opts.Shards {
		entries, err := h.w.stores[0].Read(h.w.t.Context(), shard, "", 10_000)
		if err != nil {
			h.t.Fatalf("Read: %v", err)
		}
		if len(entries) > 0 {
			if err := h.w.stores[0].Trim(h.w.t.Context(), shard, entries[len(entries)-1]); err != nil {
				h.t.Fatalf("Trim: %v", err)
			}
		}
	}
	if n, err := h.w.stores[0].Backlog(h.w.t.Context()); err != nil || n != 0 {
		h.t.Fatalf("backlog %d after trimming everything, %v", n, err)
	}
}
