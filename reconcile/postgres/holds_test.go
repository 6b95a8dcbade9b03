package postgres

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"tollgate/events"
	"tollgate/reconcile"
)

// statusFake answers by request id.
type statusFake map[string]reconcile.Execution

func (s statusFake) Status(_ context.Context, _, requestID string) (reconcile.Execution, error) {
	if answer, ok := s[requestID]; ok {
		return answer, nil
	}
	return "", errBoom
}

func TestHoldsWaitWhileTheLedgerIsBehind(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	f.reservation("acme", "rsv_1", events.StateExpired, events.Usage{}, hour0, hour0)
	f.read("acme", "rsv_1", 5, 5, hour0)
	now := hour0.Add(48 * time.Hour)

	f.ledger.err = fmt.Errorf("%w: 17 records", reconcile.ErrBehind)
	rep := f.run(now)
	if _, calls := f.admission.count(); calls != 0 || rep.Queued != 0 || !strings.Contains(rep.HoldsSkipped, "17 records") || rep.DriftSkipped == "" {
		t.Fatalf("behind: %d calls, %+v; want none and the reason", calls, rep)
	}
	if rep.Failures != 0 {
		t.Errorf("%d failures; being behind is none of them", rep.Failures)
	}
	// Folded, but only to a moment before the hold's grace ended.
	f.ledger.err, f.ledger.at = nil, hour0.Add(f.opts.Policy.HoldGrace-time.Second)
	if rep = f.run(now); rep.Queued != 0 || rep.Pending != 0 {
		t.Fatalf("folded to before the grace: %+v; want nothing decided", rep)
	}
	f.ledger.at = hour0.Add(f.opts.Policy.HoldGrace)
	if rep = f.run(now); rep.Applied != 1 {
		t.Fatalf("folded through the grace: %+v; want 1 applied", rep)
	}
}

// Holds that wait for their deadline must not hide younger ones that are due.
func TestHoldsAreLookedAtPageByPage(t *testing.T) {
	t.Parallel()
	f := setUp(t, func(o *Options) { o.PageSize = 3 })
	for i := range 10 { // the last four have readings
		id := fmt.Sprintf("rsv_%d", i)
		f.reservation("acme", id, events.StateExpired, events.Usage{}, hour0, hour0.Add(time.Duration(i/2)*time.Second))
		if i >= 6 {
			f.read("acme", id, 5, 5, hour0)
		}
	}
	rep := f.run(hour0.Add(time.Hour))
	if rep.Pending != 6 || rep.Queued != 4 || rep.Applied != 4 || rep.Partial {
		t.Errorf("%+v; want 6 pending, 4 queued and applied", rep)
	}
}

func TestExecutionStatus(t *testing.T) {
	t.Parallel()
	f := setUp(t, func(o *Options) {
		o.Execution = statusFake{"req-running": reconcile.ExecutionRunning, "req-ended": reconcile.ExecutionEnded}
	})
	for _, id := range []string{"running", "ended", "unknown", "read"} {
		f.reservation("acme", id, events.StateExpired, events.Usage{InputTokens: 4}, hour0, hour0)
	}
	f.read("acme", "read", 9, 1, hour0)
	rep := f.run(hour0.Add(f.opts.Policy.EndedWait))
	if rep.Extended != 1 || rep.Pending != 2 || rep.Applied != 2 {
		t.Fatalf("%+v; want 1 extended, 2 pending, 2 applied", rep)
	}
	if rep.Failures != 1 || !strings.Contains(rep.Errors[0], "unknown for 1 holds") {
		t.Errorf("failures %v; want the one unknown", rep.Errors)
	}
	if e := f.admission.ending(t, "ended"); !e.cancelled || e.total.InputTokens != 4 {
		t.Errorf("ended: %+v; want cancelled at the 4 reported", e)
	}
	rep = f.run(hour0.Add(f.opts.Policy.PendingDeadline))
	if rep.Pending != 0 || rep.Extended != 0 {
		t.Errorf("at the deadline %+v; want none left", rep)
	}
}

func TestReadingsOfAHold(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	f.reservation("acme", "rsv_1", events.StateExpired, events.Usage{InputTokens: 2}, hour0, hour0)
	f.reservation("acme", "foreign", events.StateExpired, events.Usage{}, hour0, hour0)
	meter := events.Meter{TenantID: "acme", ReservationID: "rsv_1", From: hour0, To: hour0}
	for _, out := range []int64{10, 40, 25} { // cumulative: the highest counts, not the sum
		m := meter
		m.InputTokens, m.OutputTokens, m.Final = 3, out, out == 25
		f.reading("model", m)
	}
	for _, pool := range []string{"a", "b"} { // two pools each count their own
		for _, gpu := range []int64{100, 300} {
			m := meter
			m.Pool, m.GPUMillis = pool, gpu
			f.reading("gpu", m)
		}
	}
	f.read("other", "foreign", 999, 999, hour0) // another tenant's word is nobody's
	rep := f.run(hour0.Add(time.Hour))
	if rep.Applied != 1 || rep.Pending != 1 {
		t.Fatalf("%+v; want 1 applied and the foreign reading ignored", rep)
	}
	e := f.admission.ending(t, "rsv_1")
	if want := (events.Usage{InputTokens: 3, OutputTokens: 40, GPUMillis: 600}); e.total != want || e.estimated {
		t.Errorf("settled at %+v, estimated %t; want %+v exactly", e.total, e.estimated, want)
	}
}

// While a settlement waits, its estimate follows late reports, a final reading
// makes it exact, and nothing changes it from then on.
func TestQueuedEstimateBecomesExact(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	if _, err := f.Freeze(t.Context(), "acme", "ops", "testing"); err != nil {
		t.Fatal(err)
	}
	f.reservation("acme", "rsv_1", events.StateExpired, events.Usage{InputTokens: 4}, hour0, hour0)
	now := hour0.Add(f.opts.Policy.PendingDeadline)
	f.run(now)
	if !scan[bool](f, `SELECT estimated FROM automatic_settlements`) {
		t.Fatal("closed at the deadline without an estimate")
	}
	if rep := f.run(now); rep.Queued != 0 {
		t.Errorf("%+v; want nothing new without news", rep)
	}
	f.exec(`UPDATE reservations SET output_tokens = 9`) // a late usage report
	f.run(now)
	if n := scan[int64](f, `SELECT input_tokens + output_tokens FROM automatic_settlements`); n != 13 {
		t.Errorf("the estimate is %d; want the 13 reported by now", n)
	}
	f.read("acme", "rsv_1", 11, 22, hour0)
	f.run(now.Add(time.Minute))
	f.read("acme", "rsv_1", 33, 44, hour0) // too late: exact already
	f.run(now.Add(2 * time.Minute))
	if res, err := f.Unfreeze(t.Context(), "acme", "ops", "done"); err != nil || res.Applied != 1 {
		t.Fatalf("unfreeze = %+v, %v", res, err)
	}
	e := f.admission.ending(t, "rsv_1")
	if want := (events.Usage{InputTokens: 11, OutputTokens: 22}); e.total != want || e.cancelled || e.estimated {
		t.Errorf("ended %+v; want settled at %+v", e, want)
	}
}

// One tenant's failures keep neither the other tenants nor its own other
// reservations waiting.
func TestOneTenantsFailuresStayItsOwn(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	for _, tenant := range []string{"acme", "beta", "zeta"} {
		for i := range 6 {
			id := fmt.Sprintf("%s_%d", tenant, i)
			f.reservation(tenant, id, events.StateExpired, events.Usage{}, hour0, hour0)
			f.read(tenant, id, 5, 5, hour0)
		}
	}
	broken := func(id string) bool { return strings.HasPrefix(id, "beta_") && id < "beta_4" }
	f.admission.before = func(_ int, _, id string) error {
		if broken(id) {
			return errBoom
		}
		return nil
	}
	now := hour0.Add(time.Hour)
	rep := f.run(now)
	// beta's turn ends after three failures in a row.
	if rep.Applied != 12 || rep.Failures != 4 {
		t.Fatalf("%+v; want the other tenants' 12 applied and 3 failures and 1 for the tenant", rep)
	}
	// They wait a minute; those behind them get their turn.
	rep = f.run(now.Add(30 * time.Second))
	if rep.Applied != 2 || rep.Failures != 1 {
		t.Fatalf("%+v; want beta's 2 sound ones applied and the fourth failure", rep)
	}
	s, err := f.Status(t.Context())
	if err != nil || s.Queued != 4 || s.Failing != 4 {
		t.Errorf("status %+v, %v; want 4 queued and failing", s, err)
	}
	f.admission.before = nil
	rep = f.run(now.Add(5 * time.Minute))
	if rep.Applied != 4 || rep.Failures != 0 {
		t.Errorf("%+v; want the 4 applied once they can be", rep)
	}
}

func TestAdmissionOutOfReachStopsTheRun(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	for i := range 20 {
		tenant := fmt.Sprintf("tenant-%d", i%5)
		id := fmt.Sprintf("rsv_%d", i)
		f.reservation(tenant, id, events.StateExpired, events.Usage{}, hour0, hour0)
		f.read(tenant, id, 5, 5, hour0)
	}
	f.admission.before = func(int, string, string) error { return fmt.Errorf("redis: %w", reconcile.ErrUnavailable) }
	rep := f.run(hour0.Add(time.Hour))
	if _, calls := f.admission.count(); calls != 1 || rep.Failures != 1 {
		t.Fatalf("%d calls, %+v; want one call and one failure", calls, rep)
	}
	f.admission.before = nil
	if rep = f.run(hour0.Add(time.Hour)); rep.Applied != 20 {
		t.Errorf("%+v; want all 20 at once when admission is back", rep)
	}
}

// Somebody else's settlement is as good: the hold has ended.
func TestAlreadyFinalIsDone(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	f.reservation("acme", "rsv_1", events.StateExpired, events.Usage{}, hour0, hour0)
	f.read("acme", "rsv_1", 5, 5, hour0)
	f.admission.ended["rsv_1"] = ending{tenant: "acme", total: events.Usage{InputTokens: 8}}
	rep := f.run(hour0.Add(time.Hour))
	if rep.AlreadyFinal != 1 || rep.Failures != 0 {
		t.Fatalf("%+v; want it counted as already final", rep)
	}
	if e := f.admission.ending(t, "rsv_1"); e.total.InputTokens != 8 {
		t.Errorf("the client's settlement became %+v", e)
	}
}

// A settlement that admission took and whose event never reached the ledger is
// asked for again.
func TestLostSettlementIsAskedForAgain(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	f.reservation("acme", "rsv_1", events.StateExpired, events.Usage{InputTokens: 3}, hour0, hour0)
	now := hour0.Add(f.opts.Policy.PendingDeadline)
	f.run(now)
	delete(f.admission.ended, "rsv_1") // Redis lost its last second
	if rep := f.run(now.Add(f.opts.RetryAfter - time.Minute)); rep.Queued+rep.Applied != 0 {
		t.Fatalf("%+v; want patience while the event may be on its way", rep)
	}
	if rep := f.run(now.Add(f.opts.RetryAfter)); rep.Applied != 1 {
		t.Fatalf("%+v; want it applied again", rep)
	}
	if e := f.admission.ending(t, "rsv_1"); !e.cancelled || e.total.InputTokens != 3 {
		t.Errorf("ended %+v; want the figures of the first time", e)
	}
}

// A reservation that admission lost is closed in the log, once.
func TestGoneReservationIsClosedInTheLog(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	f.reservation("acme", "rsv_1", events.StateExpired, events.Usage{InputTokens: 10, OutputTokens: 10}, hour0, hour0)
	f.read("acme", "rsv_1", 10, 25, hour0)
	f.admission.before = func(int, string, string) error { return reconcile.ErrGone }
	now := hour0.Add(time.Hour)
	f.log.fail = errBoom // the first time the log does not answer
	rep := f.run(now)
	if rep.ClosedInLog != 1 || rep.Published != 0 {
		t.Fatalf("%+v; want 1 closed, nothing acknowledged", rep)
	}
	f.log.fail = nil
	f.run(now.Add(time.Minute))
	f.run(now.Add(24 * time.Hour)) // the ledger still lags: the same event at most
	got := f.log.events()
	if len(got) != 2 || got[0].ID != got[1].ID {
		t.Fatalf("%d events; want the same one sent twice", len(got))
	}
	v, err := got[0].Reservation()
	if err != nil {
		t.Fatal(err)
	}
	if v.Seq != 3 || v.State != events.StateSettled || v.Delta != (events.Usage{OutputTokens: 15}) || v.DeltaMilliUnits != 15_000 ||
		v.Total != (events.Usage{InputTokens: 10, OutputTokens: 25}) || v.TotalMilliUnits != 35_000 || v.HeldMilliUnits != 0 || v.Author != "reconciler" {
		t.Errorf("closing event %+v", v)
	}
}
