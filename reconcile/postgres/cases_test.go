package postgres

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"tollgate/events"
	"tollgate/reconcile"
)

// Eight reserves, two settle, six handlers panic: after the TTL and
// reconciliation only two are charged, and each of the six has ended.
func TestCaseA11_PanickedHandlersAreChargedNothing(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	expires := hour0.Add(2 * time.Minute)
	for i := range 8 {
		id := fmt.Sprintf("rsv_%d", i)
		if i < 2 {
			f.used("acme", id, events.Usage{InputTokens: 30, OutputTokens: 12}, hour0.Add(time.Minute))
			continue
		}
		// The sweeper's expiry event is what the ledger last saw of it.
		f.reservation("acme", id, events.StateExpired, events.Usage{}, hour0.Add(2*time.Minute), expires)
	}
	p := f.opts.Policy

	rep := f.run(expires.Add(p.HoldGrace))
	if rep.Pending != 6 || rep.Queued != 0 {
		t.Fatalf("after the TTL: %d pending, %d queued; want 6 and 0", rep.Pending, rep.Queued)
	}
	rep = f.run(expires.Add(p.PendingDeadline))
	if rep.Pending != 0 || rep.Queued != 6 || rep.Applied != 6 {
		t.Fatalf("at the deadline: %+v; want 6 queued and applied", rep)
	}
	ended, calls := f.admission.count()
	if ended != 6 || calls != 6 {
		t.Fatalf("%d ended in %d calls; want 6 in 6", ended, calls)
	}
	for i := 2; i < 8; i++ {
		e := f.admission.ending(t, fmt.Sprintf("rsv_%d", i))
		want := ending{tenant: "acme", cancelled: true, estimated: true, author: "reconciler", reason: "deadline of the pending hold; at the last reported usage"}
		if diff := cmp.Diff(want, e, cmp.AllowUnexported(ending{})); diff != "" {
			t.Errorf("rsv_%d (-want +got):\n%s", i, diff)
		}
	}
	charged := scan[int64](f, `SELECT sum(input_tokens + output_tokens) FROM usage_hour`)
	if charged != 84 {
		t.Errorf("charged %d tokens; want the 84 of the two", charged)
	}
	// Their events are on the way to the ledger: nothing is asked again.
	rep = f.run(expires.Add(p.PendingDeadline + time.Minute))
	if _, calls := f.admission.count(); calls != 6 || rep.Queued != 0 {
		t.Errorf("a minute later: %d calls, %d queued; want 6 and 0", calls, rep.Queued)
	}
}

// Drift over the threshold freezes: holds may expire but automatic settlement
// stops; the unfreeze needs a reason and applies the queue once.
func TestCaseR1_DriftFreezesAndUnfreezeAppliesOnce(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	for i := range 4 {
		id := fmt.Sprintf("used_%d", i)
		f.used("acme", id, events.Usage{InputTokens: 1000, OutputTokens: 100}, hour0.Add(time.Duration(i)*time.Minute))
		f.read("acme", id, 500, 100, hour0.Add(time.Duration(i)*time.Minute)) // far from what was settled
		f.used("beta", "b"+id, events.Usage{InputTokens: 1000, OutputTokens: 100}, hour0.Add(time.Duration(i)*time.Minute))
		f.read("beta", "b"+id, 1000, 100, hour0.Add(time.Duration(i)*time.Minute))
	}
	for i := range 5 {
		f.reservation("acme", fmt.Sprintf("open_%d", i), events.StateExpired, events.Usage{InputTokens: 7}, hour0, hour0.Add(time.Minute))
		f.read("acme", fmt.Sprintf("open_%d", i), 9, 3, hour0)
	}
	f.reservation("beta", "open_b", events.StateExpired, events.Usage{}, hour0, hour0.Add(time.Minute))
	f.read("beta", "open_b", 9, 3, hour0)
	before := f.balances()
	now := hour0.Add(time.Hour + f.opts.Policy.WindowGrace)
	rep := f.run(now)
	if diff := cmp.Diff([]string{"acme"}, rep.Frozen); diff != "" {
		t.Fatalf("frozen (-want +got):\n%s", diff)
	}
	if rep.Queued != 6 || rep.Applied != 1 {
		t.Fatalf("queued %d, applied %d; want 6 and beta's 1", rep.Queued, rep.Applied)
	}
	f.admission.ending(t, "open_b")
	if after := f.balances(); after != before {
		t.Errorf("the freeze changed a balance:\n%s", cmp.Diff(before, after))
	}
	f.exec(`UPDATE reservations SET state = 'settled' WHERE reservation_id = 'open_b'`) // its event arrives
	for day := range 3 {                                                                // and it stays so, past the deadline too
		f.run(now.Add(time.Duration(day) * 24 * time.Hour))
	}
	if ended, calls := f.admission.count(); ended != 1 || calls != 1 {
		t.Fatalf("while frozen %d ended in %d calls; want beta's 1", ended, calls)
	}
	frozen, err := f.ListFreezes(t.Context(), FreezeFilter{Active: true})
	if err != nil || len(frozen) != 1 {
		t.Fatalf("freezes %+v, %v; want one", frozen, err)
	}
	got := frozen[0]
	if got.TenantID != "acme" || got.GatewayTokens != 4400 || got.ModelTokens != 2400 || got.TokensPPM != 454_545 ||
		got.Queued != 5 || got.Author != "reconciler" || !got.FrozenAt.Equal(now) || got.WindowKind != "hour" || !got.WindowStart.Equal(hour0) {
		t.Errorf("freeze = %+v", got)
	}

	for _, bad := range [][2]string{{"", "looked at it"}, {"ops", ""}, {"ops", "  "}, {"ops", "a\x00b"}} {
		if _, err := f.Unfreeze(t.Context(), "acme", bad[0], bad[1]); !errors.Is(err, reconcile.ErrReasonMissing) {
			t.Errorf("unfreeze by %q for %q: %v; want ErrReasonMissing", bad[0], bad[1], err)
		}
	}
	res, err := f.Unfreeze(t.Context(), "acme", "ops", "meter was misconfigured")
	if err != nil || res.Applied != 5 || res.Waiting != 0 || !res.Published {
		t.Fatalf("unfreeze = %+v, %v; want 5 applied, none waiting", res, err)
	}
	e := f.admission.ending(t, "open_3")
	if e.cancelled || e.total != (events.Usage{InputTokens: 9, OutputTokens: 3}) || e.estimated {
		t.Errorf("open_3 ended as %+v; want settled at the meter's 9 and 3", e)
	}
	if _, err := f.Unfreeze(t.Context(), "acme", "ops", "again"); !errors.Is(err, reconcile.ErrNotFrozen) {
		t.Errorf("second unfreeze: %v; want ErrNotFrozen", err)
	}
	// What drifted before the unfreeze was looked at: it does not freeze again.
	rep = f.run(f.clock.Add(time.Minute))
	if ended, calls := f.admission.count(); ended != 6 || calls != 6 || len(rep.Frozen) != 0 {
		t.Errorf("after the unfreeze %d ended in %d calls, frozen %v; want 6, 6 and none", ended, calls, rep.Frozen)
	}

	var kinds []events.Type
	ids := make(map[string]bool)
	for _, ev := range f.log.events() {
		kinds = append(kinds, ev.Type)
		ids[ev.ID] = true
		v, err := ev.Settlement()
		if err != nil || v.TenantID != "acme" || v.GatewayCount != 4400 || v.ModelCount != 2400 || v.Reason == "" {
			t.Errorf("event %s: %+v, %v", ev.Type, v, err)
		}
		if _, err := events.DayOf(ev.ID); err != nil {
			t.Errorf("event id %q has no day: %v", ev.ID, err)
		}
	}
	if diff := cmp.Diff([]events.Type{events.TypeFrozen, events.TypeUnfrozen}, kinds); diff != "" || len(ids) != 2 {
		t.Errorf("events (-want +got), %d ids:\n%s", len(ids), diff)
	}
}

// A process that dies after admission was asked and before that is marked
// leaves nothing undone and nothing done twice.
func TestCrashBetweenSettlingAndMarking(t *testing.T) {
	t.Parallel()
	f := setUp(t, func(o *Options) { o.PageSize = 4 })
	for i := range 10 {
		id := fmt.Sprintf("rsv_%d", i)
		f.reservation("acme", id, events.StateExpired, events.Usage{}, hour0, hour0.Add(time.Duration(i)*time.Second))
		f.read("acme", id, int64(i), 1, hour0)
	}
	now := hour0.Add(30 * time.Minute)
	f.admission.before = func(call int, _, _ string) error {
		if call == 6 { // in the middle of the second page: the leader's session dies
			_, err := f.pool.Exec(t.Context(), `SELECT pg_terminate_backend(pid, 10000) FROM pg_locks WHERE locktype = 'advisory'
				AND pid <> pg_backend_pid() AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`)
			return err
		}
		return nil
	}
	if _, err := f.RunOnce(t.Context(), now); err == nil {
		t.Fatal("a run without its leader's connection succeeded")
	}
	ended, calls := f.admission.count()
	marked := scan[int](f, `SELECT count(*) FROM automatic_settlements WHERE applied_at IS NOT NULL`)
	if ended != 8 || calls != 8 || marked != 4 {
		t.Fatalf("%d ended in %d calls, %d marked; want the run to stop after 8, with 4 marked", ended, calls, marked)
	}
	rep := f.run(now.Add(time.Minute))
	ended, calls = f.admission.count()
	if ended != 10 || calls != 14 || rep.Applied != 6 || rep.AlreadyFinal != 0 {
		t.Fatalf("%d ended in %d calls, %+v; want 10 in 14 calls, 6 applied, each with its first figures", ended, calls, rep)
	}
	for i := range 10 {
		if e := f.admission.ending(t, fmt.Sprintf("rsv_%d", i)); e.total.InputTokens != int64(i) {
			t.Errorf("rsv_%d ended at %+v", i, e.total)
		}
	}
}

// A crash after the unfreeze is committed leaves the queue to the next run.
func TestCrashAfterUnfreeze(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	if _, err := f.Freeze(t.Context(), "acme", "ops", "looking into it"); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Freeze(t.Context(), "acme", "ops", "twice"); !errors.Is(err, reconcile.ErrFrozen) {
		t.Fatalf("second freeze: %v; want ErrFrozen", err)
	}
	for i := range 3 {
		id := fmt.Sprintf("rsv_%d", i)
		f.reservation("acme", id, events.StateExpired, events.Usage{}, hour0, hour0)
		f.read("acme", id, 5, 5, hour0)
	}
	f.run(hour0.Add(time.Hour))
	f.admission.before = func(call int, _, _ string) error {
		if call == 2 {
			return reconcile.ErrUnavailable
		}
		return nil
	}
	res, err := f.Unfreeze(t.Context(), "acme", "ops", "all fine")
	if err != nil || res.Applied != 1 || res.Waiting != 2 {
		t.Fatalf("unfreeze = %+v, %v; want 1 applied and 2 waiting", res, err)
	}
	f.admission.before = nil
	rep := f.run(hour0.Add(61 * time.Minute))
	if ended, calls := f.admission.count(); ended != 3 || calls != 4 || rep.Applied != 2 {
		t.Errorf("%d ended in %d calls, %d applied; want 3 in 4, 2 applied", ended, calls, rep.Applied)
	}
}

// Two reconcilers at once: one acts, the other does nothing.
func TestTwoReconcilersOneActs(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	other := setUpOn(t, f.pool, f.admission)
	f.reservation("acme", "rsv_1", events.StateExpired, events.Usage{}, hour0, hour0)
	f.read("acme", "rsv_1", 5, 5, hour0)
	now := hour0.Add(time.Hour)
	inside, release := make(chan struct{}), make(chan struct{})
	f.admission.before = func(int, string, string) error {
		close(inside)
		<-release
		return nil
	}
	done := make(chan error, 1)
	go func() {
		_, err := f.RunOnce(t.Context(), now)
		done <- err
	}()
	<-inside
	if _, err := other.RunOnce(t.Context(), now); !errors.Is(err, reconcile.ErrNotLeader) {
		t.Errorf("the second reconciler: %v; want ErrNotLeader", err)
	}
	if _, err := f.RunOnce(t.Context(), now); !errors.Is(err, reconcile.ErrNotLeader) {
		t.Errorf("the first once more: %v; want ErrNotLeader", err)
	}
	close(release)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if _, calls := f.admission.count(); calls != 1 {
		t.Errorf("%d calls of admission; want 1", calls)
	}
	f.admission.before = nil
	if _, err := other.RunOnce(t.Context(), now); err != nil {
		t.Errorf("the lock is not given back: %v", err)
	}
}

// A freeze that comes in the midst of a run stops it at the next page.
func TestFreezeStopsTheRunUnderWay(t *testing.T) {
	t.Parallel()
	f := setUp(t, func(o *Options) { o.PageSize = 4 })
	for i := range 10 {
		id := fmt.Sprintf("rsv_%d", i)
		f.reservation("acme", id, events.StateExpired, events.Usage{}, hour0, hour0)
		f.read("acme", id, 5, 5, hour0)
	}
	f.admission.before = func(call int, _, _ string) error {
		if call == 2 {
			_, err := f.Freeze(t.Context(), "acme", "ops", "stop this")
			return err
		}
		return nil
	}
	rep := f.run(hour0.Add(time.Hour))
	if _, calls := f.admission.count(); calls != 4 || rep.Applied != 4 || rep.Queued != 10 {
		t.Errorf("%d calls, %+v; want the page of 4 that was under way", calls, rep)
	}
}
