package redis

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	goredis "github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"tollgate/admission"
	"tollgate/events"
	"tollgate/internal/testenv"
	"tollgate/tenancy"
)

// fewChecks keeps property tests short; -rapid.checks asks for more.
const fewChecks = "15"

func TestMain(m *testing.M) {
	flag.Parse()
	asked := false
	flag.Visit(func(f *flag.Flag) { asked = asked || f.Name == "rapid.checks" })
	if !asked {
		if err := flag.Set("rapid.checks", fewChecks); err != nil {
			panic(err)
		}
	}
	goleak.VerifyTestMain(m)
}

// clock is a time that a test moves. It stands in for Redis's own.
type clock struct {
	mu sync.Mutex
	at time.Time
}

func newClock(at time.Time) *clock { return &clock{at: at} }

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}

func (c *clock) set(at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = at
}

// clockLine is where the script asks Redis for the time. Tests replace it: the
// script that is shipped has no way to be told one.
const clockLine = "local clock = call('TIME')"

func clockedSource() string {
	if strings.Count(decideSource, clockLine) != 1 {
		panic("admission.lua does not ask for the time where the tests expect it")
	}
	return strings.Replace(decideSource, clockLine, "local clock = {match(table.remove(args), '^(%d+),(%d+)$')}", 1)
}

func (s *Store) useClock(now func() time.Time) {
	s.decide = newProgram(clockedSource())
	s.now, s.redisNow = now, now
}

// backend is one implementation of Redis that the contract holds on.
type backend struct {
	name string
	open func(t testing.TB) (goredis.UniversalClient, string)
}

func miniBackend(t testing.TB) (goredis.UniversalClient, string) {
	t.Helper()
	m := miniredis.RunT(t)
	c := goredis.NewClient(&goredis.Options{Addr: m.Addr()})
	t.Cleanup(func() { _ = c.Close() })
	return c, "mini:"
}

var backends = []backend{
	{"miniredis", miniBackend},
	{"redis", testenv.Redis},
	{"redis-script", scriptBackend},
	{"cluster", testenv.RedisCluster},
}

// world is a test's state: some gateways over one Redis and one clock.
type world struct {
	t      testing.TB
	client goredis.UniversalClient
	prefix string
	clock  *clock
	stores []*Store
}

var noon = time.Date(2026, 8, 19, 12, 0, 0, 0, time.UTC)

// newWorld opens gateways on a backend, rebuilt and empty.
func newWorld(t testing.TB, open func(testing.TB) (goredis.UniversalClient, string), gateways int, change func(*Options)) *world {
	t.Helper()
	client, prefix := open(t)
	w := &world{t: t, client: client, prefix: prefix, clock: newClock(noon)}
	for range gateways {
		w.stores = append(w.stores, w.gateway(change))
	}
	for shard := range w.stores[0].opts.Shards {
		if _, err := w.stores[0].Seed(t.Context(), shard, "e1", nil); err != nil {
			t.Fatalf("seed shard %d: %v", shard, err)
		}
	}
	return w
}

func (w *world) gateway(change func(*Options)) *Store {
	w.t.Helper()
	opts := Options{Client: w.client, Prefix: w.prefix, Shards: 4, Timeout: 20 * time.Second, Logger: slog.New(slog.DiscardHandler)}
	if change != nil {
		change(&opts)
	}
	s, err := New(opts)
	if err != nil {
		w.t.Fatalf("New: %v", err)
	}
	s.useClock(w.clock.now)
	w.t.Cleanup(func() {
		if err := s.Stop(context.Background()); err != nil {
			w.t.Errorf("Stop: %v", err)
		}
	})
	return s
}

// everywhere runs a contract test on each implementation.
func everywhere(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	for _, b := range backends {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			test(t, newWorld(t, b.open, 3, nil))
		})
	}
}

// Limits that tests use. Tokens weigh 1 unless a request says otherwise.
func ring(name string, tokens int64, window time.Duration, slots int) tenancy.Limit {
	return tenancy.Limit{
		Name: name, Layer: "L1", Kind: tenancy.KindRing, Scope: tenancy.ScopeTenant, Metric: tenancy.MetricTokens,
		Limit: tokens, Window: tenancy.Duration(window), Slots: slots,
	}
}

func perMinute(tokens int64) tenancy.Limit { return ring("tokens-60s", tokens, time.Minute, 60) }

func budget(tokens int64, period tenancy.Period) tenancy.Limit {
	return tenancy.Limit{
		Name: "budget", Layer: "L1", Kind: tenancy.KindCounter, Scope: tenancy.ScopeTenant, Metric: tenancy.MetricTokens,
		Limit: tokens, Period: period, Budget: true,
	}
}

func rate(limit int64, window time.Duration, burst int64) tenancy.Limit {
	return tenancy.Limit{
		Name: "requests", Layer: "L2", Kind: tenancy.KindRate, Scope: tenancy.ScopeTenant, Metric: tenancy.MetricRequests,
		Limit: limit, Window: tenancy.Duration(window), Burst: burst,
	}
}

func concurrency(limit int64) tenancy.Limit {
	return tenancy.Limit{Name: "concurrency", Layer: "L3", Kind: tenancy.KindLease, Scope: tenancy.ScopeTenant, Limit: limit}
}

func tenant(id string, limits ...tenancy.Limit) *tenancy.Tenant {
	return &tenancy.Tenant{ID: id, TimeZone: "UTC", Currency: "EUR", Quota: tenancy.Quota{Limits: limits}}
}

// ask is a reserve of so many tokens, half input and half output.
func ask(t *tenancy.Tenant, requestID string, tokens int64, platform ...tenancy.Limit) *admission.ReserveRequest {
	p := &tenancy.Platform{Limits: platform}
	f := admission.Figures{InputTokens: tokens / 2, MaxOutputTokens: tokens - tokens/2}
	return &admission.ReserveRequest{
		Tenant: t, RequestID: requestID, Endpoint: "chat", Model: "m", Author: "client",
		Hold:        events.Usage{InputTokens: f.InputTokens, OutputTokens: f.MaxOutputTokens},
		WeightMilli: 1000, BodyHash: admission.BodyHash("chat", "m", f),
		TTL: 2 * time.Minute, MaxHold: time.Hour,
		Limits: admission.Constraints(t, nil, "chat", "m", p),
	}
}

func used(t *tenancy.Tenant, id string, in, out int64) *admission.UsageReport {
	return &admission.UsageReport{
		Tenant: t, ReservationID: id, Total: events.Usage{InputTokens: in, OutputTokens: out},
		Author: "client", TTL: 2 * time.Minute,
	}
}

func (w *world) reserve(req *admission.ReserveRequest) (*admission.Reservation, error) {
	return w.stores[0].Reserve(w.t.Context(), req)
}

func (w *world) mustReserve(req *admission.ReserveRequest) *admission.Reservation {
	w.t.Helper()
	r, err := w.reserve(req)
	if err != nil {
		w.t.Fatalf("Reserve(%s): %v", req.RequestID, err)
	}
	return r
}

func (w *world) mustSettle(rep *admission.UsageReport) *admission.Reservation {
	w.t.Helper()
	r, err := w.stores[0].Settle(w.t.Context(), rep)
	if err != nil {
		w.t.Fatalf("Settle: %v", err)
	}
	return r
}

// refused fails unless err is a refusal.
func (w *world) refused(err error) *admission.Refusal {
	w.t.Helper()
	r, ok := err.(*admission.Refusal) //nolint:errorlint // the contract: not wrapped
	if !ok {
		w.t.Fatalf("got %v, want a refusal", err)
	}
	return r
}

// left returns a limit's standing by name.
func (w *world) left(t *tenancy.Tenant, name string, platform ...tenancy.Limit) admission.Left {
	w.t.Helper()
	p := &tenancy.Platform{Limits: platform}
	st, err := w.stores[0].Standing(w.t.Context(), t, admission.Constraints(t, nil, "chat", "m", p))
	if err != nil {
		w.t.Fatalf("Standing: %v", err)
	}
	for _, l := range st.Left {
		if l.Constraint.Limit.Name == name {
			return l
		}
	}
	w.t.Fatalf("no limit %q in the standing", name)
	return admission.Left{}
}

func (w *world) wantLeft(t *tenancy.Tenant, name string, used, held int64, platform ...tenancy.Limit) {
	w.t.Helper()
	l := w.left(t, name, platform...)
	if l.Used != used || l.Held != held {
		w.t.Errorf("%s: used %d, held %d; want used %d, held %d", name, l.Used, l.Held, used, held)
	}
}

// log reads every event of every outbox.
func (w *world) log() []events.Event {
	w.t.Helper()
	var out []events.Event
	for shard := range w.stores[0].opts.Shards {
		after := ""
		for {
			entries, err := w.stores[0].Read(w.t.Context(), shard, after, 100)
			if err != nil {
				w.t.Fatalf("Read: %v", err)
			}
			if len(entries) == 0 {
				break
			}
			for _, e := range entries {
				out = append(out, e.Events...)
				after = e.ID
			}
		}
	}
	return out
}

// fold parses the log and checks what every log keeps: seq without gaps, deltas
// that add up to totals, unique ids. Streams are in no order to each other, so
// each reservation's events are put into theirs. It returns the last event of
// each reservation.
func (w *world) fold() map[string]events.Reservation {
	w.t.Helper()
	all := map[string][]events.Reservation{}
	seen := map[string]bool{}
	for _, e := range w.log() {
		r, err := e.Reservation()
		if err != nil {
			w.t.Fatalf("event %s: %v (%s)", e.ID, err, e.Data)
		}
		if seen[e.ID] {
			w.t.Errorf("event id %s twice", e.ID)
		}
		seen[e.ID] = true
		all[r.ReservationID] = append(all[r.ReservationID], r)
	}
	last := map[string]events.Reservation{}
	for id, list := range all {
		slices.SortFunc(list, func(a, b events.Reservation) int { return int(a.Seq - b.Seq) })
		var sum int64
		for i, r := range list {
			if want := int64(i + 1); r.Seq != want {
				w.t.Errorf("%s: seq %d, want %d", id, r.Seq, want)
			}
			if sum += r.DeltaMilliUnits; sum != r.TotalMilliUnits {
				w.t.Errorf("%s: deltas sum to %d, total is %d", id, sum, r.TotalMilliUnits)
			}
		}
		last[id] = list[len(list)-1]
	}
	return last
}

func requestID(i int) string { return fmt.Sprintf("req-%04d", i) }
