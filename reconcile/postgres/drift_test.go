package postgres

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"tollgate/events"
	"tollgate/reconcile"
)

func tokens(in, out int64) events.Usage { return events.Usage{InputTokens: in, OutputTokens: out} }

// One hour whose readings come late is suspect and then fine; it never freezes.
func TestLateReadingsDoNotFreeze(t *testing.T) {
	t.Parallel()
	f := setUp(t, func(o *Options) { o.Policy.ConfirmAfter = 50 * time.Minute })
	f.used("acme", "rsv_1", tokens(1000, 0), hour0)
	f.used("acme", "rsv_2", tokens(1000, 0), hour0.Add(time.Minute))
	f.used("beta", "rsv_3", tokens(1000, 0), hour0.Add(time.Minute))
	f.read("acme", "rsv_1", 1000, 0, hour0)
	f.read("beta", "rsv_3", 1, 0, hour0)

	first := hour0.Add(time.Hour + 5*time.Minute)
	rep := f.run(first)
	if got := f.reports()["acme hour 10T09"]; got.Verdict != reconcile.VerdictSuspect || got.TokensPPM != 500_000 || !got.OverSince.Equal(first) {
		t.Fatalf("first sight: %+v; want suspect of 500000 ppm since now", got)
	}
	if len(rep.Frozen) != 0 || rep.WindowsSuspect != 2 {
		t.Fatalf("%+v; want two suspects and no freeze", rep)
	}
	f.read("acme", "rsv_2", 1000, 0, hour0.Add(time.Minute)) // the late reading
	rep = f.run(first.Add(time.Hour))
	if diff := cmp.Diff([]string{"beta"}, rep.Frozen); diff != "" {
		t.Errorf("frozen (-want +got):\n%s", diff)
	}
	if got := f.reports()["acme hour 10T09"]; got.Verdict != reconcile.VerdictOK || got.TokensPPM != 0 || !got.OverSince.IsZero() {
		t.Errorf("after the late reading: %+v; want ok", got)
	}
}

func TestWindowsWaitForTheirGraceAndForTheMeters(t *testing.T) {
	t.Parallel()
	meters := &foldedTo{at: farFuture}
	f := setUp(t, func(o *Options) { o.Meters = meters })
	f.used("acme", "rsv_1", tokens(1000, 0), hour0.Add(time.Minute))
	f.read("acme", "rsv_1", 1, 0, hour0.Add(time.Minute))
	end := hour0.Add(time.Hour)
	if rep := f.run(end.Add(f.opts.Policy.WindowGrace - time.Second)); rep.WindowsJudged != 0 {
		t.Errorf("within its grace: %+v; want no window judged", rep)
	}
	meters.at = end
	if rep := f.run(end.Add(time.Hour)); rep.WindowsJudged != 0 {
		t.Errorf("meters folded to the hour's end only: %+v; want no window judged", rep)
	}
	meters.at = farFuture
	if rep := f.run(end.Add(f.opts.Policy.WindowGrace)); rep.WindowsDrift != 1 || !rep.DriftThrough.Equal(end) {
		t.Errorf("after its grace: %+v; want the hour judged", rep)
	}
}

func TestScheduledRunsJudgeOnceAnHour(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	f.used("acme", "rsv_1", tokens(1000, 0), hour0.Add(time.Minute))
	f.read("acme", "rsv_1", 1000, 0, hour0.Add(time.Minute))
	judged := func(now time.Time) int {
		t.Helper()
		rep, err := f.run0(now)
		if err != nil {
			t.Fatal(err)
		}
		return rep.WindowsJudged
	}
	at := hour0.Add(time.Hour + 5*time.Minute)
	if n := judged(at.Add(-time.Minute)); n != 0 {
		t.Errorf("at :04 %d windows; want none of this hour", n)
	}
	if n := judged(at); n != 1 {
		t.Errorf("at :05 %d windows; want 1", n)
	}
	if n := judged(at.Add(time.Minute)); n != 0 {
		t.Errorf("at :06 %d windows; want 0", n)
	}
	// Nobody ran for a day and a half: nothing in between is skipped.
	f.used("acme", "rsv_2", tokens(1000, 0), hour0.Add(3*time.Hour))
	if n := judged(at.Add(36 * time.Hour)); n != 3 { // two hours and a day
		t.Errorf("after a pause %d windows; want 3", n)
	}
	if got := f.reports()["acme hour 10T12"]; got.Verdict != reconcile.VerdictUnknown || got.UnmeteredTokens != 1000 {
		t.Errorf("the hour in the pause: %+v; want it judged, unmetered", got)
	}
}

// run0 is a run of the schedule.
func (f *fixture) run0(now time.Time) (Report, error) {
	*f.clock = now
	return f.Reconciler.run(f.t.Context(), now, false)
}

// What is too small for an hour may be enough for a day.
func TestDayAddsUpItsHours(t *testing.T) {
	t.Parallel()
	f := setUp(t, func(o *Options) { o.Policy.MinTokens = 100 })
	day := hour0.Truncate(24 * time.Hour)
	for h := range 24 {
		id := fmt.Sprintf("rsv_%d", h)
		at := day.Add(time.Duration(h) * time.Hour)
		f.used("acme", id, tokens(100, 0), at)
		f.read("acme", id, 90, 0, at)
	}
	rep := f.run(day.Add(24*time.Hour + 5*time.Minute))
	if diff := cmp.Diff([]string{"acme"}, rep.Frozen); diff != "" || rep.WindowsDrift != 1 {
		t.Fatalf("frozen (-want +got), %d drifting windows:\n%s", rep.WindowsDrift, diff)
	}
	got := f.reports()["acme day 10T00"]
	if got.GatewayTokens != 2400 || got.ModelTokens != 2160 || got.TokensPPM != 100_000 || got.Verdict != reconcile.VerdictDrift {
		t.Errorf("day = %+v", got)
	}
	frozen, err := f.ListFreezes(t.Context(), FreezeFilter{TenantID: "acme"})
	if err != nil || len(frozen) != 1 || frozen[0].WindowKind != "day" || !frozen[0].WindowEnd.Equal(day.Add(24*time.Hour)) {
		t.Errorf("freezes %+v, %v; want one of the day", frozen, err)
	}
}

// Drift that begins after an unfreeze freezes again; what began before does not.
func TestFreezesAgainForNewDriftOnly(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	drift := func(id string, at time.Time) {
		f.used("acme", id, tokens(1000, 0), at)
		f.read("acme", id, 10, 0, at)
	}
	drift("rsv_1", hour0)
	if rep := f.run(hour0.Add(65 * time.Minute)); len(rep.Frozen) != 1 {
		t.Fatalf("%+v; want frozen", rep)
	}
	*f.clock = hour0.Add(90 * time.Minute)
	if _, err := f.Unfreeze(t.Context(), "acme", "ops", "understood"); err != nil {
		t.Fatal(err)
	}
	drift("rsv_2", hour0.Add(70*time.Minute)) // in the hour of the unfreeze, before it
	if rep := f.run(hour0.Add(125 * time.Minute)); len(rep.Frozen) != 0 || rep.WindowsDrift != 2 {
		t.Fatalf("%+v; want two drifting windows and no freeze", rep)
	}
	drift("rsv_3", hour0.Add(130*time.Minute))
	if rep := f.run(hour0.Add(185 * time.Minute)); len(rep.Frozen) != 1 {
		t.Fatalf("%+v; want frozen again", rep)
	}
	all, err := f.ListFreezes(t.Context(), FreezeFilter{})
	if err != nil || len(all) != 2 || !all[0].UnfrozenAt.IsZero() || all[1].UnfrozenBy != "ops" || all[1].UnfreezeReason != "understood" {
		t.Errorf("freezes %+v, %v", all, err)
	}
}

// The figures of an hour, from the rows that they are made of.
func TestHourFigures(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	at := hour0.Add(10 * time.Minute)
	reading := func(tenant, id, model, pool, kind string, n int64, to time.Time) {
		m := events.Meter{TenantID: tenant, ReservationID: id, Model: model, Pool: pool, From: to.Add(-time.Minute), To: to}
		if kind == "gpu" {
			m.GPUMillis = n
		} else {
			m.InputTokens = n
		}
		f.reading(kind, m)
	}
	// cohort: cumulative readings, the last one after the hour; two pools of GPUs
	f.used("cohort", "c1", events.Usage{InputTokens: 100, GPUMillis: 70_000}, at)
	reading("cohort", "c1", "", "", "model", 60, at)
	reading("cohort", "c1", "", "", "model", 100, hour0.Add(2*time.Hour))
	reading("cohort", "c1", "", "p1", "gpu", 30_000, at)
	reading("cohort", "c1", "", "p1", "gpu", 40_000, at)
	reading("cohort", "c1", "", "p2", "gpu", 30_000, at)
	// stray: the ledger does not know the reservation; it belongs to its last hour
	f.used("stray", "s1", tokens(100, 0), at)
	reading("stray", "s1", "", "", "model", 100, at)
	reading("stray", "nobody", "model-a", "", "model", 40, at)
	reading("stray", "nobody", "model-a", "", "model", 55, at.Add(time.Minute))
	reading("stray", "later", "model-a", "", "model", 40, at)
	reading("stray", "later", "model-a", "", "model", 90, hour0.Add(2*time.Hour))
	// foreign: a reading that names another tenant's reservation is a stray of
	// the tenant that it names
	reading("foreign", "s1", "model-a", "", "model", 77, at)
	// interval: increments; the one that ends at the hour's start is the hour's before
	f.used("interval", "i1", tokens(100, 0), at)
	reading("interval", "", "model-a", "", "model", 9, hour0)
	reading("interval", "", "model-a", "", "model", 60, at)
	reading("interval", "", "model-a", "", "model", 40, hour0.Add(time.Hour))
	// open: what has not ended stands on neither side
	f.reservation("open", "o1", events.StateHeld, tokens(50, 0), at, hour0.Add(99*time.Hour))
	f.used("open", "o2", tokens(10, 0), at)
	reading("open", "o1", "", "", "model", 50, at)
	reading("open", "o2", "", "", "model", 10, at)
	// estimated: the front door's own count of what it cut, whose GPU time nobody
	// told; the API's clients have no such room
	f.used("estimated", "e1", tokens(20_000, 0), at)
	f.used("estimated", "e2", events.Usage{InputTokens: 50_000, GPUMillis: 90_000}, at)
	f.used("estimated", "e3", tokens(30_000, 0), at)
	f.exec(`UPDATE reservations SET estimated = true, request_id = 'gw-1~1' WHERE reservation_id = 'e1'`)
	f.exec(`UPDATE reservations SET estimated = true, request_id = 'plain' WHERE reservation_id = 'e3'`)
	reading("estimated", "e1", "", "", "model", 10_500, at)
	reading("estimated", "e1", "", "", "gpu", 70_000, at)
	reading("estimated", "e2", "", "", "model", 50_000, at)
	reading("estimated", "e2", "", "", "gpu", 90_000, at)
	reading("estimated", "e3", "", "", "model", 30_000, at)
	// huge: sums saturate and are judged
	for i := range 3 {
		reading("huge", "", "model-a", fmt.Sprint(i), "model", math.MaxInt64, at)
	}

	rep := f.run(hour0.Add(65 * time.Minute))
	if rep.Failures != 0 {
		t.Fatalf("failures: %v", rep.Errors)
	}
	want := map[string]reconcile.Figures{
		"cohort":   {GatewayTokens: 100, ModelTokens: 100, ModelKnown: true, GatewayGPU: 70_000, MeterGPU: 70_000, GPUKnown: true},
		"stray":    {GatewayTokens: 100, ModelTokens: 155, ModelKnown: true},
		"foreign":  {ModelTokens: 77, ModelKnown: true},
		"interval": {GatewayTokens: 100, ModelTokens: 100, ModelKnown: true},
		"open":     {GatewayTokens: 10, ModelTokens: 10, ModelKnown: true},
		"estimated": {
			GatewayTokens: 100_000, ModelTokens: 90_500, ModelKnown: true, EstimatedTokens: 20_000,
			GatewayGPU: 90_000, MeterGPU: 90_000, GPUKnown: true,
		},
		"huge": {ModelTokens: math.MaxInt64, ModelKnown: true},
	}
	reports := f.reports()
	for tenant, figures := range want {
		if diff := cmp.Diff(figures, reports[tenant+" hour 10T09"].Figures); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tenant, diff)
		}
	}
	frozen := map[string]bool{}
	for _, tenant := range rep.Frozen {
		frozen[tenant] = true
	}
	if !frozen["stray"] || !frozen["foreign"] || !frozen["huge"] || len(frozen) != 3 {
		t.Errorf("frozen %v; want stray, foreign and huge", rep.Frozen)
	}
	if v, err := f.log.events()[0].Settlement(); err != nil || v.ModelCount > 1<<53 {
		t.Errorf("event %+v, %v; want counts that an event may carry", v, err)
	}
}

// A rerun writes the same reports and nothing else.
func TestDriftRerunIsIdempotent(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	f.used("acme", "rsv_1", tokens(1000, 0), hour0)
	f.read("acme", "rsv_1", 10, 0, hour0)
	now := hour0.Add(65 * time.Minute)
	f.run(now)
	const all = `SELECT string_agg(d::text, ';' ORDER BY d::text) FROM drift_reports d`
	before := scan[string](f, all)
	rep := f.run(now)
	if after := scan[string](f, all); after != before || len(rep.Frozen) != 0 {
		t.Errorf("rerun froze %v and changed reports:\n%s", rep.Frozen, cmp.Diff(before, after))
	}
	if n := len(f.log.events()); n != 1 {
		t.Errorf("%d events; want the one of the freeze", n)
	}
}

// A run that has no time for all tenants leaves the rest to the next one,
// which does not begin anew.
func TestDriftGoesOnInTheNextRun(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	at := hour0.Add(time.Minute)
	for i := range 5 {
		tenant := fmt.Sprintf("tenant-%d", i)
		f.used(tenant, tenant, tokens(1000, 0), at)
		f.read(tenant, tenant, 1000, 0, at)
	}
	now := hour0.Add(65 * time.Minute)
	f.run0Must(now.Add(-time.Hour))
	f.exec(`INSERT INTO drift_reports SELECT 'tenant-' || n, 'hour', $1, $2, 7, 7, true, 0, 0, false, 0, 0, 0, 'ok', NULL, $3
	        FROM generate_series(0, 2) n`, hour0, hour0.Add(time.Hour), now) // as a run that was cut short left them
	if rep := f.run0Must(now.Add(time.Minute)); rep.WindowsJudged != 2 || !rep.DriftThrough.Equal(hour0.Add(time.Hour)) {
		t.Errorf("the next run: %+v; want the 2 that are left, and the hour done", rep)
	}
	if rep := f.run(now.Add(2 * time.Minute)); rep.WindowsJudged != 5 {
		t.Errorf("by hand: %+v; want all 5 again", rep)
	}
}

func (f *fixture) run0Must(now time.Time) Report {
	f.t.Helper()
	rep, err := f.run0(now)
	if err != nil {
		f.t.Fatal(err)
	}
	return rep
}
