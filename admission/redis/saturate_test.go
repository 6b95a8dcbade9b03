package redis

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"tollgate/admission"
	"tollgate/events"
	"tollgate/tenancy"
)

// mostTokens is the largest figure that the HTTP API takes.
const mostTokens = int64(1<<31 - 1)

// saturating is a tenant whose budgets are of every shape that sums: a window, a
// month, and one without end.
func saturating() *tenancy.Tenant {
	month := budget(1_000_000, tenancy.PeriodMonth)
	prepaid := budget(1_000_000, tenancy.PeriodNone)
	window := ring("tokens-30d", 1_000_000, 30*24*time.Hour, 720)
	month.Name, prepaid.Name, window.Budget = "month", "prepaid", true
	return tenant("acme", window, month, prepaid)
}

// fullTokens is what a full count of milli-units is shown as: never too little.
const fullTokens = (admission.MaxCount + 999) / 1000

var saturatingLimits = []string{"tokens-30d", "month", "prepaid"}

// wantSpent fails unless every limit is at its end and a reserve is refused for
// good.
func (w *world) wantSpent(acme *tenancy.Tenant, requestID string) {
	w.t.Helper()
	_, err := w.reserve(ask(acme, requestID, 2))
	if r := w.refused(err); r.Reason != admission.ReasonSpent || r.RetryAfter != 0 {
		w.t.Errorf("refused because of %s, again in %v", r.Reason, r.RetryAfter)
	}
	for _, name := range saturatingLimits {
		if l := w.left(acme, name); l.Used != fullTokens {
			w.t.Errorf("%s: used %d, want %d", name, l.Used, fullTokens)
		}
	}
}

// TestASpentBudgetStaysSpent: the largest figures, settled again and again, must
// not turn a counter over. The same after a rebuild from their sums.
func TestASpentBudgetStaysSpent(t *testing.T) {
	const settles = 2100
	everywhere(t, func(t *testing.T, w *world) {
		acme := saturating()
		var open []*admission.Reservation
		for i := range settles {
			open = append(open, w.mustReserve(ask(acme, requestID(i), 2)))
		}
		slots := make([]SlotSum, 0, settles)
		var sum int64
		for i, r := range open {
			if i == settles/2 { // two slots share the sum, and each is below its end
				w.clock.advance(time.Second)
			}
			w.mustSettle(used(acme, r.ID, mostTokens, mostTokens))
			slots = append(slots, SlotSum{Start: w.clock.now(), Units: 2 * mostTokens * 1000})
			sum = admission.AddCount(sum, 2*mostTokens*1000)
			if i%300 == 0 {
				_, err := w.reserve(ask(acme, "more", 2))
				_ = w.refused(err)
			}
		}
		w.wantSpent(acme, "at the end")

		for _, name := range []string{"t:acme", "outbox", "meta", "epoch"} {
			if err := w.client.Del(t.Context(), w.stores[0].shardKey(admission.Shard("acme", 4), name)).Err(); err != nil {
				t.Fatal(err)
			}
		}
		constraints := admission.Constraints(acme, nil, "chat", "m", &tenancy.Platform{})
		start := time.Date(2026, 8, 1, 0, 0, 0, 0, time.UTC)
		seed := TenantSeed{
			Tenant: acme,
			Rings:  []RingSeed{{Constraint: constraints[0], Slots: slots}},
			Counters: []CounterSeed{
				{Constraint: constraints[1], PeriodStart: start, Used: sum},
				{Constraint: constraints[2], Used: 1<<63 - 1},
			},
		}
		if _, err := w.stores[0].Seed(t.Context(), admission.Shard("acme", 4), "e2", []TenantSeed{seed}); err != nil {
			t.Fatal(err)
		}
		w.wantSpent(acme, "after the rebuild")
	})
}

// TestAFullSlotDoesNotForgive: what is taken back from a full count may be
// another's use, so it stays; when the slot leaves the window, so does the use.
func TestAFullSlotDoesNotForgive(t *testing.T) {
	everywhere(t, func(t *testing.T, w *world) {
		window := ring("window", 1_000_000, time.Minute, 60)
		acme := tenant("acme", window, budget(1_000_000, tenancy.PeriodNone))
		var open []*admission.Reservation
		for i := range 6 {
			open = append(open, w.mustReserve(ask(acme, requestID(i), 2)))
		}
		c := admission.Constraints(acme, nil, "chat", "m", &tenancy.Platform{})
		hash := w.stores[0].shardKey(admission.Shard("acme", 4), "t:acme")
		put := func(field, text string) {
			t.Helper()
			if err := w.client.HSet(t.Context(), hash, field, text).Err(); err != nil {
				t.Fatal(err)
			}
		}
		head := w.clock.now().Unix()
		most := fmt.Sprint(admission.MaxCount)
		// The sum is at its end, and would be twice that: both slots are full.
		put(c[0].Field, fmt.Sprintf("%d,%s,12000,%s", head, most, most))
		put(c[0].Field+fmt.Sprintf("#%d", (head-1)%60), fmt.Sprintf("%d:%s", head-1, most))
		put(c[1].Field, "0,"+most+",12000")
		both := func(window, budget int64) {
			t.Helper()
			if l := w.left(acme, "window"); l.Used != window {
				t.Errorf("window: used %d, want %d", l.Used, window)
			}
			if l := w.left(acme, "budget"); l.Used != budget {
				t.Errorf("budget: used %d, want %d", l.Used, budget)
			}
		}
		for _, r := range open[:5] { // reported much, settled with nothing
			if _, err := w.stores[0].Report(t.Context(), used(acme, r.ID, mostTokens, mostTokens)); err != nil {
				t.Fatal(err)
			}
			w.mustSettle(used(acme, r.ID, 0, 0))
		}
		both(fullTokens, fullTokens)
		w.clock.advance(59 * time.Second) // the older slot leaves, the full newer one stays
		both(fullTokens, fullTokens)
		// Of a sum at its end whose slots are not, the slots tell what remains.
		w.mustSettle(used(acme, open[5].ID, 5, 5))
		w.clock.advance(time.Second)
		both(10, fullTokens)
	})
}

// TestACorruptCounterRefuses: use that cannot be read is not none, nobody else's
// counter is read in its place, and nobody else is refused for it.
func TestACorruptCounterRefuses(t *testing.T) {
	everywhere(t, func(t *testing.T, w *world) {
		acme := saturating()
		acme.Quota.Limits = append(acme.Quota.Limits, rate(1000, time.Second, 1000))
		other := tenant("other", perMinute(1000))
		c := admission.Constraints(acme, nil, "chat", "m", &tenancy.Platform{})
		r := w.mustReserve(ask(acme, "first", 2))
		hash := w.stores[0].shardKey(admission.Shard("acme", 4), "t:acme")
		good, err := w.client.HGetAll(t.Context(), hash).Result()
		if err != nil {
			t.Fatal(err)
		}
		for i := range c {
			field := c[i].Field
			for _, text := range []string{
				"", "x", "-9223372036854775808", "null", "true", "[1]", `"1"`, "1.5", "nan", "1e300", good[field] + ",1",
				good[field] + ",true", strings.Replace(good[field], good[field][:1], "-1", 1), good[field][:len(good[field])-1] + "x",
			} {
				if err := w.client.HSet(t.Context(), hash, field, text).Err(); err != nil {
					t.Fatal(err)
				}
				for what, do := range map[string]func() error{
					"reserve": func() error { _, err := w.reserve(ask(acme, "next", 2)); return err },
					"settle":  func() error { _, err := w.stores[0].Settle(t.Context(), used(acme, r.ID, 1, 1)); return err },
				} {
					if err := do(); !errors.Is(err, admission.ErrUnavailable) {
						t.Errorf("%s with %s = %q: %v", what, c[i].Limit.Name, text, err)
					}
				}
			}
			if err := w.client.HSet(t.Context(), hash, field, good[field]).Err(); err != nil {
				t.Fatal(err)
			}
		}
		w.mustReserve(ask(other, "unharmed", 2))

		// A slot is read when its ring moves on.
		head := w.clock.now().Unix() / 3600
		slot := c[0].Field + fmt.Sprintf("#%d", (head-719)%720)
		w.clock.advance(time.Hour)
		for _, text := range []string{"", "x", "1", fmt.Sprintf("%d:-5", head-719), fmt.Sprintf("%d:9223372036854775807", head-719)} {
			if err := w.client.HSet(t.Context(), hash, slot, text).Err(); err != nil {
				t.Fatal(err)
			}
			if _, err := w.reserve(ask(acme, "next", 2)); !errors.Is(err, admission.ErrUnavailable) {
				t.Errorf("reserve with a slot of %q: %v", text, err)
			}
		}
		if err := w.client.HDel(t.Context(), hash, slot).Err(); err != nil {
			t.Fatal(err)
		}
		w.mustReserve(ask(acme, "next", 2))
		for _, e := range w.log() {
			if e.Type != events.TypeReserved {
				t.Errorf("a refused call left %s", e.Data)
			}
		}
	})
}
