package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"tollgate/events"
	"tollgate/reconcile"
)

// waitFor polls a condition on the database.
func (f *fixture) waitFor(what, sql string) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), 20*time.Second)
	defer cancel()
	for {
		var ok bool
		if err := f.pool.QueryRow(ctx, sql).Scan(&ok); err != nil {
			f.t.Fatalf("waiting for %s: %v", what, err)
		}
		if ok {
			return
		}
		select {
		case <-ctx.Done():
			f.t.Fatalf("no %s", what)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// The schedule runs, survives a panic in a run, and stops in the midst of one.
func TestScheduleStartStop(t *testing.T) {
	t.Parallel()
	f := setUp(t, func(o *Options) { o.Schedule = "@every 1s" })
	f.reservation("acme", "rsv_1", events.StateExpired, events.Usage{}, hour0, hour0)
	f.read("acme", "rsv_1", 5, 5, hour0)
	f.admission.before = func(call int, _, _ string) error {
		if call == 1 {
			panic("a bug in the settler")
		}
		return nil
	}
	if err := f.Start(); err != nil {
		t.Fatal(err)
	}
	if err := f.Start(); err == nil {
		t.Error("started twice")
	}
	f.waitFor("settlement after the panic", `SELECT count(*) = 1 FROM automatic_settlements WHERE outcome = 'applied'`)
	f.Stop()
	f.Stop()

	// A run that hangs in admission ends with Stop.
	f.reservation("acme", "rsv_2", events.StateExpired, events.Usage{}, hour0, hour0)
	f.read("acme", "rsv_2", 5, 5, hour0)
	inside := make(chan struct{})
	hang := hanging{f.admission, inside}
	f.opts.Settler = &hang
	if err := f.Start(); err != nil {
		t.Fatal(err)
	}
	<-inside
	f.Stop()
	if n := scan[int](f, `SELECT count(*) FROM automatic_settlements WHERE applied_at IS NULL AND attempts = 0`); n != 1 {
		t.Errorf("%d settlements untouched; want the one that was cut short", n)
	}
}

// hanging is a Settler that answers when its context ends.
type hanging struct {
	*admissionFake
	inside chan struct{}
}

func (h *hanging) Settle(ctx context.Context, _, _ string, _ events.Usage, _ bool, _, _ string) error {
	close(h.inside)
	<-ctx.Done()
	return ctx.Err()
}

func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	if _, err := New(nil, Options{}); err == nil || !strings.Contains(err.Error(), "policy") {
		t.Errorf("no policy: %v", err)
	}
	if _, err := New(nil, Options{Policy: reconcile.DefaultPolicy(), Schedule: "every minute"}); err == nil || !strings.Contains(err.Error(), "every minute") {
		t.Errorf("bad schedule: %v", err)
	}
	f := setUp(t, func(o *Options) { o.Settler = nil })
	if _, err := f.RunOnce(t.Context(), hour0); err == nil {
		t.Error("a run without a settler succeeded")
	}
	if _, err := f.Status(t.Context()); err != nil {
		t.Errorf("status without a settler: %v", err)
	}
}

func TestStatusAndMetrics(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewPedanticRegistry()
	f := setUp(t, func(o *Options) { o.Registerer = reg })
	if s, err := f.Status(t.Context()); err != nil || s.LastRun != nil || s.Pending != 0 {
		t.Fatalf("empty status %+v, %v", s, err)
	}
	f.used("acme", "rsv_1", tokens(1000, 0), hour0)
	f.read("acme", "rsv_1", 10, 0, hour0)
	f.reservation("acme", "waits", events.StateExpired, events.Usage{}, hour0, hour0)
	f.reservation("beta", "ends", events.StateExpired, events.Usage{}, hour0, hour0)
	f.reservation("beta", "lives", events.StateHeld, events.Usage{}, hour0, hour0.Add(99*time.Hour))
	f.read("beta", "ends", 1, 1, hour0)
	f.log.fail = errBoom
	now := hour0.Add(65 * time.Minute)
	f.run(now)

	s, err := f.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// "ends" counts until its settlement is in the ledger.
	if s.Pending != 2 || s.Overdue != 0 || !s.OldestPending.Equal(hour0) || s.FrozenTenants != 1 || s.Unpublished != 1 ||
		len(s.Over) != 1 || !s.DriftThrough.Equal(hour0.Add(time.Hour)) || s.LastRun == nil || s.LastRun.EndedAt.IsZero() {
		t.Errorf("status %+v", s)
	}
	var rep Report
	if err := json.Unmarshal(s.LastRun.Report, &rep); err != nil || rep.Applied != 1 || rep.Failures != 1 {
		t.Errorf("last run %+v, %v", rep, err)
	}
	if body, err := json.Marshal(s); err != nil || !strings.Contains(string(body), `"window_start":"2026-03-10T09:00:00Z"`) {
		t.Errorf("status as JSON: %s, %v", body, err)
	}
	for name, want := range map[string]float64{
		"drift_ppm{gpu,acme}": 0, "drift_ppm{model,acme}": 990_000, "leader": 1, "frozen_tenants": 1,
		"oldest_pending_seconds": 3900, "pending_holds": 2, "overdue_holds": 0, "queued_settlements": 0,
		"unpublished_events": 1, "failures_total": 1, "settlements_total{applied}": 1, "runs_total{ok}": 1,
	} {
		if got, ok := gather(t, reg)[name]; !ok || got != want {
			t.Errorf("metric %s = %v (there: %t); want %v", name, got, ok, want)
		}
	}
	// A process that does not lead shows nothing, so that sums are right.
	err = f.lead(t.Context(), func(*pgx.Conn) error {
		if _, err := f.RunOnce(t.Context(), now); !errors.Is(err, reconcile.ErrNotLeader) {
			t.Errorf("run beside a leader: %v", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	got := gather(t, reg)
	if _, shown := got["drift_ppm{model,acme}"]; shown || got["leader"] != 0 || got["pending_holds"] != 0 || got["runs_total{not_leader}"] != 1 {
		t.Errorf("metrics of a process that does not lead: %v", got)
	}
}

// gather returns every value by its short name and label values.
func gather(t *testing.T, reg *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := make(map[string]float64)
	for _, family := range families {
		for _, m := range family.GetMetric() {
			name := strings.TrimPrefix(family.GetName(), "tollgate_reconcile_")
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetValue())
			}
			if len(labels) > 0 {
				name += "{" + strings.Join(labels, ",") + "}"
			}
			values[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return values
}

// The freeze and its event are one change; the event reaches the log at least
// once, always under the same id.
func TestFreezeEventSurvivesTheLogBeingAway(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	f.log.fail = errBoom
	if _, err := f.Freeze(t.Context(), "acme", "ops", "looking into it"); err != nil {
		t.Fatal(err)
	}
	f.log.fail = nil
	rep := f.run(hour0.Add(time.Hour))
	got := f.log.events()
	if rep.Published != 1 || len(got) != 2 || got[0].ID != got[1].ID || got[1].Type != events.TypeFrozen {
		t.Fatalf("published %d, events %+v; want the same event twice", rep.Published, got)
	}
	if rep = f.run(hour0.Add(2 * time.Hour)); rep.Published != 0 || len(f.log.events()) != 2 {
		t.Errorf("published again: %+v", rep)
	}
}

func TestOffsetLag(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	advance := func(partition int, next int64) error {
		_, err := f.pool.Exec(t.Context(), `INSERT INTO fold_progress AS p (topic, topic_partition, next_offset, owner, owner_epoch, consumed, folded, duplicates,
		            dead_lettered, conflicts, chain_hash, tree_size, tree_range)
		        VALUES ('events', $1, $2, 'x', 1, 0, 0, 0, 0, 0, '', 0, '')
		        ON CONFLICT (topic, topic_partition) DO UPDATE SET next_offset = excluded.next_offset`, partition, next)
		return err
	}
	marks := map[int]int64{0: 10, 1: 5, 2: 0}
	lag := &OffsetLag{
		Pool: f.pool, Topic: "events", Wait: time.Millisecond, Now: func() time.Time { return hour0 },
		HighWater: func(context.Context) (map[int]int64, error) { return marks, nil },
	}
	if err := advance(0, 10); err != nil {
		t.Fatal(err)
	}
	_, err := lag.FoldedThrough(t.Context())
	if !errors.Is(err, reconcile.ErrBehind) || !strings.Contains(err.Error(), "5 records of 1 partitions") {
		t.Fatalf("a partition that nobody folds: %v; want ErrBehind by 5", err)
	}
	// It waits for the ledger: the fold happens after the marks were read.
	lag.Wait = 20 * time.Second
	advanced := make(chan error, 1)
	lag.HighWater = func(context.Context) (map[int]int64, error) {
		go func() { advanced <- advance(1, 5) }()
		return marks, nil
	}
	if at, err := lag.FoldedThrough(t.Context()); err != nil || !at.Equal(hour0) {
		t.Errorf("FoldedThrough = %s, %v; want the time before the marks were read", at, err)
	}
	if err := <-advanced; err != nil {
		t.Fatal(err)
	}
	lag.HighWater = func(context.Context) (map[int]int64, error) { return nil, errBoom }
	if _, err := lag.FoldedThrough(t.Context()); !errors.Is(err, errBoom) || errors.Is(err, reconcile.ErrBehind) {
		t.Errorf("the log is away: %v; want its error", err)
	}
}

// Records of work done long ago go; freezes, what is still open and what the
// next run goes on from stay.
func TestForget(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	f.used("acme", "rsv_1", tokens(1000, 0), hour0.Add(time.Minute))
	f.read("acme", "rsv_1", 10, 0, hour0.Add(time.Minute))
	f.run(hour0.Add(65 * time.Minute)) // freezes
	if _, err := f.Unfreeze(t.Context(), "acme", "ops", "fine"); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"closed", "open"} {
		f.reservation("acme", id, events.StateExpired, events.Usage{}, hour0, hour0)
		f.read("acme", id, 1, 1, hour0)
	}
	f.run(hour0.Add(70 * time.Minute))
	f.exec(`UPDATE reservations SET state = 'settled' WHERE reservation_id = 'closed'`)
	f.exec(`UPDATE reconcile_outbox SET published_at = $1`, hour0)
	f.ledger.err = reconcile.ErrBehind // nothing new is decided or judged
	f.run(hour0.Add(retention + 24*time.Hour))
	got := scan[string](f, `SELECT concat_ws(' ',
		(SELECT string_agg(reservation_id, ',') FROM automatic_settlements), (SELECT count(*) FROM reconcile_outbox),
		(SELECT count(*) FROM drift_reports), (SELECT count(*) FROM settlement_freezes), (SELECT count(*) FROM reconcile_runs))`)
	if want := "open 0 0 1 2"; got != want {
		t.Errorf("left: %q; want %q (the open settlement, the freeze, the last two runs)", got, want)
	}
}
