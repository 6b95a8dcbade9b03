package app

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"tollgate/admission"
	admissionredis "tollgate/admission/redis"
	"tollgate/events"
	ledgerpg "tollgate/ledger/postgres"
	"tollgate/tenancy"
	tenancypg "tollgate/tenancy/postgres"
)

// zoneAwayFromMidnight returns a zone whose days begin inside a UTC hour, and
// in which midnight is not near, so that a calendar counter does not begin
// anew in the middle of a test.
func zoneAwayFromMidnight(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"Asia/Kolkata", "America/St_Johns", "Asia/Kathmandu"} {
		loc, err := time.LoadLocation(name)
		if err != nil {
			t.Fatal(err)
		}
		now := time.Now().In(loc)
		if minutes := now.Hour()*60 + now.Minute(); minutes > 10 && minutes < 24*60-10 {
			return name
		}
	}
	t.Fatal("it is midnight everywhere")
	return ""
}

// wideQuota has a limit of every kind that keeps a count.
func wideQuota() tenancy.Quota {
	limit := func(name string, kind tenancy.Kind, scope tenancy.Scope, metric tenancy.Metric) tenancy.Limit {
		return tenancy.Limit{Name: name, Layer: "L1", Kind: kind, Scope: scope, Metric: metric, Limit: 1_000_000}
	}
	ring := func(name string, scope tenancy.Scope, metric tenancy.Metric, window time.Duration, slots int) tenancy.Limit {
		l := limit(name, tenancy.KindRing, scope, metric)
		l.Window, l.Slots = tenancy.Duration(window), slots
		return l
	}
	counter := func(name string, scope tenancy.Scope, metric tenancy.Metric, period tenancy.Period) tenancy.Limit {
		l := limit(name, tenancy.KindCounter, scope, metric)
		l.Period = period
		return l
	}
	perModel := counter("model-output-day", tenancy.ScopeModel, tenancy.MetricOutputTokens, tenancy.PeriodDay)
	perModel.Match = "*"
	perEndpoint := ring("endpoint-tokens-10m", tenancy.ScopeEndpoint, tenancy.MetricTokens, 10*time.Minute, 600)
	perEndpoint.Match = "*"
	budget := counter("input-total", tenancy.ScopeTenant, tenancy.MetricInputTokens, tenancy.PeriodNone)
	budget.Budget = true
	lease := tenancy.Limit{Name: "concurrency", Layer: "L3", Kind: tenancy.KindLease, Scope: tenancy.ScopeTenant, Limit: 5}
	return tenancy.Quota{Limits: []tenancy.Limit{
		ring("tokens-10m", tenancy.ScopeTenant, tenancy.MetricTokens, 10*time.Minute, 600),
		ring("tokens-30d", tenancy.ScopeTenant, tenancy.MetricTokens, 720*time.Hour, 720),
		counter("tokens-day", tenancy.ScopeTenant, tenancy.MetricTokens, tenancy.PeriodDay),
		ring("requests-10m", tenancy.ScopeTenant, tenancy.MetricRequests, 10*time.Minute, 600),
		counter("requests-month", tenancy.ScopeTenant, tenancy.MetricRequests, tenancy.PeriodMonth),
		counter("gpu-month", tenancy.ScopeTenant, tenancy.MetricGPUMillis, tenancy.PeriodMonth),
		budget, perModel, perEndpoint, lease,
	}}
}

type usageAnswer struct {
	Limits []limitStanding `json:"limits"`
}

type limitStanding struct {
	Name, Scope, Match string
	Used, Held         int64
}

// standing is what the usage query says for an endpoint and a model.
func standing(t *testing.T, a *App, key string) []limitStanding {
	t.Helper()
	got := ask(t, "GET", "http://"+a.Addr+"/v1/quota/usage?endpoint=chat&model=heavy", key, nil)
	if got.status != 200 {
		t.Fatalf("usage query: %+v", got)
	}
	var u usageAnswer
	got.decode(t, &u)
	return u.Limits
}

type outcome struct {
	ReservationID string `json:"reservation_id"`
	State         string `json:"state"`
	Reason        string `json:"reason"`
}

// spent is a site on which a tenant has settled, cancelled and open
// reservations, all of them folded.
type spent struct {
	*site
	key  string
	ids  map[string]string // request id → reservation id
	used map[string]int64  // by limit, reckoned by hand
	held map[string]int64
}

func (s *spent) reserve(t *testing.T, a *App, id string, input, output int64) (int, outcome) {
	t.Helper()
	body := reserve(id, input, output)
	body.Model, body.TTLMillis = "heavy", 600_000
	got := ask(t, "POST", "http://"+a.Addr+"/v1/reservations", s.key, body)
	var o outcome
	got.decode(t, &o)
	return got.status, o
}

func (s *spent) report(t *testing.T, a *App, id, verb string, input, output, gpu int64) answer {
	t.Helper()
	return ask(t, "POST", "http://"+a.Addr+"/v1/reservations/"+s.ids[id]+"/"+verb, s.key,
		map[string]int64{"input_tokens": input, "output_tokens": output, "gpu_ms": gpu})
}

func newSpent(t *testing.T) *spent {
	t.Helper()
	s := &spent{site: newSite(t), ids: map[string]string{}}
	keyLimit := tenancy.Limit{
		Name: "key-tokens", Layer: "L1", Kind: tenancy.KindCounter, Scope: tenancy.ScopeKey, Metric: tenancy.MetricTokens,
		Limit: 900_000, Period: tenancy.PeriodDay,
	}
	s.key = s.tenant(tenancy.Tenant{ID: "acme", Name: "Acme", TimeZone: zoneAwayFromMidnight(t), Currency: "USD", Quota: wideQuota()}, keyLimit)
	pool, err := NewPostgres(s.config())
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	change := tenancy.Change{Author: "test", Reason: "test"}
	if _, err := tenancypg.New(pool).SetModel(t.Context(), change, tenancy.Model{Name: "heavy", WeightMilli: 2500}); err != nil {
		t.Fatal(err)
	}

	a := New(s.config(), quiet())
	stop := s.start(a, a.Gateway, a.Ledger)
	untilReady(t, a)
	untilKnown(t, a, s.key)
	for _, id := range []string{"settled", "cancelled", "reported", "silent"} {
		status, o := s.reserve(t, a, id, 100, 200)
		if status != 201 {
			t.Fatalf("reserve %s: %d %+v", id, status, o)
		}
		s.ids[id] = o.ReservationID
	}
	for _, r := range []struct {
		id, verb           string
		input, output, gpu int64
	}{{"settled", "settle", 100, 50, 7}, {"cancelled", "cancel", 100, 10, 5}, {"reported", "usage", 100, 30, 3}} {
		if got := s.report(t, a, r.id, r.verb, r.input, r.output, r.gpu); got.status != 200 {
			t.Fatalf("%s: %+v", r.verb, got)
		}
	}
	backend, err := newBackend(a)
	if err != nil {
		t.Fatal(err)
	}
	until(t, func() string { return undrained(t, backend) })
	// 300 in, 90 out; held are 170 out and 100 in, 200 out. A token of this
	// model counts two and a half. A request counts when it is admitted.
	const tokens, heldTokens = (300 + 90) * 5 / 2, (170 + 100 + 200) * 5 / 2
	s.used = map[string]int64{
		"tokens-10m": tokens, "tokens-30d": tokens, "tokens-day": tokens, "endpoint-tokens-10m": tokens, "key-tokens": tokens,
		"requests-month": 4, "requests-10m": 4, "gpu-month": 15, "input-total": 300, "model-output-day": 90,
	}
	s.held = map[string]int64{
		"tokens-10m": heldTokens, "tokens-30d": heldTokens, "tokens-day": heldTokens, "endpoint-tokens-10m": heldTokens,
		"key-tokens": heldTokens, "input-total": 100, "model-output-day": 370, "concurrency": 2,
	}
	s.check(t, a, "before")
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	// The log has a hold in weighted tokens, without telling input from output.
	// Until it ends, a rebuilt one is all output to limits of one direction.
	delete(s.held, "input-total")
	s.held["model-output-day"] = 470
	return s
}

// check compares the gateway's figures with those that were reckoned by hand.
func (s *spent) check(t *testing.T, a *App, when string) {
	t.Helper()
	used, held := map[string]int64{}, map[string]int64{}
	for _, l := range standing(t, a, s.key) {
		if l.Name == "concurrency" {
			held[l.Name] = l.Used + l.Held
			continue
		}
		if _, counted := s.used[l.Name]; !counted {
			continue
		}
		used[l.Name] = l.Used
		if l.Held != 0 {
			held[l.Name] = l.Held
		}
	}
	if diff := cmp.Diff(s.used, used); diff != "" {
		t.Errorf("%s: used (-want +got)\n%s", when, diff)
	}
	if diff := cmp.Diff(s.held, held); diff != "" {
		t.Errorf("%s: held (-want +got)\n%s", when, diff)
	}
}

// lose deletes everything of the site in Redis but the published tenants.
func (s *spent) lose(t *testing.T) {
	t.Helper()
	lost := 0
	iter := s.redis.Scan(t.Context(), 0, s.prefix+"*", 1000).Iterator()
	for iter.Next(t.Context()) {
		if strings.HasPrefix(iter.Val(), s.prefix+"{cfg}") {
			continue
		}
		if err := s.redis.Unlink(t.Context(), iter.Val()).Err(); err != nil {
			t.Fatal(err)
		}
		lost++
	}
	if err := iter.Err(); err != nil || lost == 0 {
		t.Fatalf("lost %d keys: %v", lost, err)
	}
}

// holdRebuild keeps every rebuilder from its work until release is called.
func (s *spent) holdRebuild(t *testing.T) (release func()) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.set["postgres.url"])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), `SELECT pg_advisory_lock($1)`, int64(rebuildLock)); err != nil {
		t.Fatal(err)
	}
	return func() { _ = conn.Close(context.WithoutCancel(t.Context())) }
}

func TestLostStateIsRebuiltFromTheLedger(t *testing.T) {
	t.Parallel()
	s := newSpent(t)
	a := New(s.config(), quiet())
	s.start(a, a.Gateway, a.Ledger)
	untilReady(t, a)

	release := s.holdRebuild(t)
	s.lose(t)
	got := ask(t, "POST", "http://"+a.Addr+"/v1/reservations", s.key, reserve("too-early", 1, 1))
	if got.status != 503 || got.header.Get("Retry-After") == "" || !strings.Contains(got.body, "state_not_rebuilt") {
		t.Errorf("reserve on lost state: %+v, want 503 state_not_rebuilt", got)
	}
	if got := s.report(t, a, "silent", "settle", 100, 20, 0); got.status != 503 {
		t.Errorf("settle on lost state: %+v, want 503: it must not be taken for unknown", got)
	}
	if got := ready(t, a); got.status != 503 || !strings.Contains(got.body, "not ready: admission\n") {
		t.Errorf("readyz on lost state: %+v", got)
	}
	release()
	untilReady(t, a)
	s.check(t, a, "after")

	// Recent requests are known: nothing is admitted twice.
	for id, state := range map[string]string{"settled": "settled", "cancelled": "cancelled", "reported": "held", "silent": "held"} {
		status, o := s.reserve(t, a, id, 100, 200)
		if status != 200 || o.ReservationID != s.ids[id] || o.State != state {
			t.Errorf("repeat of %s: %d %+v, want 200, %s in state %s", id, status, o, s.ids[id], state)
		}
	}
	s.check(t, a, "after the repeats")
	// A settle of before is a no-op with the same figures, refused with others.
	if got := s.report(t, a, "settled", "settle", 100, 50, 7); got.status != 200 {
		t.Errorf("repeated settle: %+v", got)
	}
	if got := s.report(t, a, "settled", "settle", 100, 51, 7); got.status != 409 || !strings.Contains(got.body, "already_settled") {
		t.Errorf("settle with other figures: %+v", got)
	}
	// Open holds go on, and give back what they held.
	for _, id := range []string{"reported", "silent"} {
		if got := s.report(t, a, id, "settle", 100, 40, 3); got.status != 200 {
			t.Errorf("settle %s: %+v", id, got)
		}
	}
	const tokens = (400 + 50 + 10 + 40 + 40) * 5 / 2
	s.used["input-total"] = 400
	for _, name := range []string{"tokens-10m", "tokens-30d", "tokens-day", "endpoint-tokens-10m", "key-tokens"} {
		s.used[name] = tokens
	}
	s.used["gpu-month"], s.used["model-output-day"] = 18, 140
	s.held = map[string]int64{"concurrency": 0}
	s.check(t, a, "settled")
	// What was rebuilt is charged once in the ledger as well.
	backend, err := newBackend(a)
	if err != nil {
		t.Fatal(err)
	}
	until(t, func() string { return undrained(t, backend) })
	var requests, input, output, conflicts int64
	err = a.pool.QueryRow(t.Context(), `SELECT sum(requests), sum(input_tokens), sum(output_tokens), (SELECT count(*) FROM event_conflicts) FROM usage_hour`).
		Scan(&requests, &input, &output, &conflicts)
	if err != nil || requests != 4 || input != 400 || output != 140 || conflicts != 0 {
		t.Errorf("ledger: %d requests, %d in, %d out, %d conflicts, %v; want 4, 400, 140, 0", requests, input, output, conflicts, err)
	}
}

func TestCaseR3_SeveralGatewaysRebuildAtOnce(t *testing.T) {
	t.Parallel()
	s := newSpent(t)
	s.lose(t)
	ledger := New(s.config(), quiet())
	s.start(ledger, ledger.Ledger)
	release := s.holdRebuild(t)
	gateways := make([]*App, 4)
	for i := range gateways {
		gateways[i] = New(s.config(), quiet())
		s.start(gateways[i], gateways[i].Gateway)
	}
	// Beside the rebuilders of the gateways, others that heed no lock: they
	// have each found the state lost and write all at once.
	r, err := gateways[0].rebuilderFor(t)
	if err != nil {
		t.Fatal(err)
	}
	missing, err := r.missing(t.Context())
	if err != nil || len(missing) != 4 {
		t.Fatalf("missing shards: %v, %v", missing, err)
	}
	errs := make(chan error, 4)
	release()
	for range 4 {
		go func() { errs <- r.rebuild(t.Context(), missing) }()
	}
	for range 4 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	for i, a := range gateways {
		untilReady(t, a)
		untilKnown(t, a, s.key)
		s.check(t, a, fmt.Sprintf("gateway %d", i+1))
	}
}

// rebuilderFor is a rebuilder on a running app's connections.
func (a *App) rebuilderFor(t *testing.T) (*rebuilder, error) {
	t.Helper()
	b := New(a.cfg, quiet())
	t.Cleanup(b.close)
	return b.rebuilder()
}

// The sums of a period that begins inside an hour, and of windows with short
// slots, are those of the single seconds, whatever the hours add up to.
func TestSeedSumsEqualTheSumOfSeconds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		zone := rapid.SampledFrom([]string{"UTC", "Asia/Kolkata", "America/St_Johns", "Asia/Kathmandu", "Australia/Lord_Howe", "Pacific/Apia"}).Draw(t, "zone")
		loc, err := time.LoadLocation(zone)
		if err != nil {
			t.Fatal(err)
		}
		now := time.Unix(rapid.Int64Range(1_767_225_600, 1_798_761_600).Draw(t, "now"), 0).UTC()
		tenant := &tenancy.Tenant{ID: "acme", TimeZone: zone, Quota: wideQuota()}
		s := &seedSums{
			tenant: tenant, platform: &tenancy.Platform{}, now: now, calendar: admission.CalendarAt(now, loc),
			rings: map[string]*admissionredis.RingSeed{}, counters: map[string]*admissionredis.CounterSeed{},
		}
		local := now.In(loc)
		day := time.Date(local.Year(), local.Month(), local.Day(), 0, 0, 0, 0, loc)
		month := time.Date(local.Year(), local.Month(), 1, 0, 0, 0, 0, loc)
		if !day.Equal(s.periodStart(tenancy.PeriodDay)) || !month.Equal(s.periodStart(tenancy.PeriodMonth)) {
			t.Fatalf("periods begin %s and %s, want %s and %s", s.periodStart(tenancy.PeriodDay), s.periodStart(tenancy.PeriodMonth), day.UTC(), month.UTC())
		}
		// Seconds near where something begins, and anywhere.
		near := rapid.SampledFrom([]time.Time{day, month, now.Add(-10 * time.Minute), now.Add(-20 * 24 * time.Hour)})
		seconds := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) ledgerpg.UsageRow {
			at := near.Draw(t, "near").Add(time.Duration(rapid.Int64Range(-7200, 7200).Draw(t, "off")) * time.Second).UTC()
			if at.After(now) {
				at = now
			}
			n := rapid.Int64Range(1, 1000).Draw(t, "n")
			return ledgerpg.UsageRow{
				At: at, Endpoint: "chat", Model: "m",
				Requests: 1, MilliUnits: n * 1000, Usage: events.Usage{InputTokens: n, OutputTokens: 2 * n, GPUMillis: 3 * n},
			}
		}), 0, 40).Draw(t, "seconds")

		hours := map[time.Time]*ledgerpg.UsageRow{}
		wantDay, wantMonth, wantAll, wantRing := int64(0), int64(0), int64(0), int64(0)
		for i := range seconds {
			row := &seconds[i]
			h := hours[row.At.Truncate(time.Hour)]
			if h == nil {
				h = &ledgerpg.UsageRow{At: row.At.Truncate(time.Hour), Endpoint: "chat", Model: "m"}
				hours[h.At] = h
			}
			h.Requests, h.MilliUnits, h.GPUMillis = h.Requests+row.Requests, h.MilliUnits+row.MilliUnits, h.GPUMillis+row.GPUMillis
			h.InputTokens, h.OutputTokens = h.InputTokens+row.InputTokens, h.OutputTokens+row.OutputTokens
			if !row.At.Before(day) {
				wantDay += row.MilliUnits
			}
			if !row.At.Before(month) {
				wantMonth += row.GPUMillis
			}
			wantAll += row.InputTokens
			if !row.At.Before(now.Add(-10 * time.Minute)) {
				wantRing += row.MilliUnits
			}
		}
		for _, h := range hours {
			s.add(h, time.Hour)
		}
		for i := range seconds {
			if fine := s.fineFrom(); !seconds[i].At.Before(fine) {
				s.add(&seconds[i], time.Second)
			}
		}
		got := map[string]int64{}
		for _, c := range s.counters {
			got[c.Constraint.Limit.Name] += c.Used
		}
		for _, r := range s.rings {
			if r.Constraint.Limit.Name != "tokens-10m" {
				continue
			}
			for _, slot := range r.Slots {
				if !slot.Start.Before(now.Add(-10 * time.Minute)) {
					got["tokens-10m"] += slot.Units
				}
			}
		}
		for name, want := range map[string]int64{"tokens-day": wantDay, "gpu-month": wantMonth, "input-total": wantAll, "tokens-10m": wantRing} {
			if got[name] != want {
				t.Errorf("%s at %s in %s: %d, want %d", name, now, zone, got[name], want)
			}
		}
	})
}
