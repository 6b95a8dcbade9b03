package forward

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"tollgate/admission"
	admissionredis "tollgate/admission/redis"
	"tollgate/events"
	"tollgate/internal/testenv"
	"tollgate/proxy"
	"tollgate/proxy/anthropic"
	"tollgate/proxy/gemini"
	"tollgate/proxy/openai"
	"tollgate/proxy/route"
	"tollgate/proxy/sse"
	"tollgate/tenancy"
)

func TestMain(m *testing.M) {
	if upstream := os.Getenv(benchGatewayVar); upstream != "" {
		benchGateway(upstream)
		return
	}
	goleak.VerifyTestMain(m)
}

// directory knows one tenant.
type directory struct {
	keys     map[string]tenancy.Principal
	platform *tenancy.Platform
}

func (d *directory) Authenticate(presented string) (tenancy.Principal, error) {
	p, ok := d.keys[presented]
	if !ok {
		return tenancy.Principal{}, tenancy.ErrBadKey
	}
	if p.Tenant != nil && p.Tenant.Suspended {
		return p, tenancy.ErrSuspended
	}
	return p, nil
}

func (d *directory) Tenant(string) (*tenancy.Tenant, error) { return nil, tenancy.ErrNotFound }
func (d *directory) Tenants() []string                      { return nil }
func (d *directory) Platform() *tenancy.Platform            { return d.platform }
func (d *directory) Version() int64                         { return 1 }

// words counts words, exactly: tests can do so too.
type words struct{}

func (words) Count(text []byte) int64 { return int64(len(bytes.Fields(text))) }
func (words) Exact() bool             { return true }

// upstream is a model server that a test scripts.
type upstream struct {
	server *httptest.Server
	calls  atomic.Int64
	mu     sync.Mutex
	bodies []string
	heads  []http.Header
	answer func(w http.ResponseWriter, r *http.Request, body []byte)
}

func (u *upstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	u.mu.Lock()
	u.bodies, u.heads = append(u.bodies, string(body)), append(u.heads, r.Header.Clone())
	answer := u.answer
	u.mu.Unlock()
	u.calls.Add(1)
	answer(w, r, body)
}

func (u *upstream) script(answer func(w http.ResponseWriter, r *http.Request, body []byte)) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.answer = answer
}

func (u *upstream) lastBody() string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.bodies[len(u.bodies)-1]
}

func (u *upstream) lastHeader() http.Header {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.heads[len(u.heads)-1]
}

// setup is what a test wants to differ.
type setup struct {
	limits    []tenancy.Limit
	platform  tenancy.Platform
	upstreams int // of each dialect; the second and further ones are backups
	idle      time.Duration
	response  time.Duration
	answer    time.Duration
	patience  time.Duration // of the server with one request
	fresh     bool          // breakers forget
	quiet     bool          // nothing is logged
	change    func(*Options)
	store     func(admission.Store) admission.Store
	client    *http.Client // of upstreams
	base      string       // of the one upstream, where it is not the test's own
}

type world struct {
	t         testing.TB
	redis     *admissionredis.Store
	tenant    *tenancy.Tenant
	key       string
	handler   *Handler
	server    *httptest.Server
	client    *http.Client
	upstreams []*upstream
	router    *route.Router
	dir       *directory
	shards    int
	observed  observer
	lost      bool // the test leaves reservations to the reconciler
}

// observer keeps what it saw.
type observer struct {
	mu   sync.Mutex
	seen []proxy.Exchange
}

func (o *observer) Begin(ctx context.Context, _ *proxy.Exchange, _ http.Header) context.Context {
	return ctx
}
func (o *observer) Try(context.Context, *proxy.Exchange, http.Header) {}
func (o *observer) End(_ context.Context, ex *proxy.Exchange) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.seen = append(o.seen, *ex)
}

func (o *observer) last() proxy.Exchange {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.seen) == 0 {
		return proxy.Exchange{}
	}
	return o.seen[len(o.seen)-1]
}

func newWorld(t testing.TB, s setup) *world {
	t.Helper()
	client, prefix := testenv.Redis(t)
	store, err := admissionredis.New(admissionredis.Options{Client: client, Prefix: prefix, Shards: 1, Timeout: 10 * time.Second, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Seed(t.Context(), 0, "e1", nil); err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, redis: store, shards: 1}
	w.build(s, store)
	t.Cleanup(func() {
		w.close()
		if err := store.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return w
}

func (w *world) build(s setup, store admission.Store) {
	w.t.Helper()
	w.buildHandler(s, store)
	w.server = httptest.NewUnstartedServer(w.handler)
	w.server.Config.ReadTimeout, w.server.Config.WriteTimeout = 15*time.Second, 30*time.Second
	if s.patience > 0 {
		w.server.Config.ReadTimeout, w.server.Config.WriteTimeout = s.patience, s.patience
	}
	w.server.Start()
	w.client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
}

// buildHandler makes what is behind the server. It panics where a test cannot be
// told, as in a process of its own.
func (w *world) buildHandler(s setup, store admission.Store) {
	credential, err := tenancy.NewCredential(rand.Reader)
	if err != nil {
		panic(err)
	}
	w.key = credential.Presented
	w.tenant = &tenancy.Tenant{ID: "acme", TimeZone: "UTC", Currency: "EUR", Quota: tenancy.Quota{Limits: s.limits}}
	if s.platform.DefaultMaxOutputTokens == 0 {
		s.platform.DefaultMaxOutputTokens = 4096
	}
	if s.platform.HoldTTL == 0 {
		s.platform.HoldTTL = tenancy.Duration(time.Minute)
	}
	if s.platform.MaxHold == 0 {
		s.platform.MaxHold = tenancy.Duration(time.Hour)
	}
	w.dir = &directory{
		platform: &s.platform,
		keys: map[string]tenancy.Principal{w.key: {
			Key: &tenancy.Key{ID: credential.KeyID, TenantID: "acme", Role: tenancy.RoleTenant}, Tenant: w.tenant,
		}},
	}
	table := &route.Table{}
	model := &route.Model{Name: "m", Aliases: []string{"alias"}}
	for i := range max(s.upstreams, 1) {
		at := s.base
		if at == "" {
			u := &upstream{}
			u.server = httptest.NewServer(u)
			w.upstreams = append(w.upstreams, u)
			at = u.server.URL
		}
		for _, dialect := range []string{"openai", "anthropic"} {
			base := at
			if dialect == "openai" {
				base += "/v1"
			}
			up := &route.Upstream{
				Name: dialect + strconv.Itoa(i), Dialect: dialect, Server: proxy.Upstream{Base: base, Key: "upstream-secret"}, Identify: true,
				ConnectTimeout: 5 * time.Second, ResponseTimeout: 20 * time.Second, IdleTimeout: 20 * time.Second,
			}
			up.Client = s.client
			if s.idle > 0 {
				up.IdleTimeout = s.idle
			}
			if s.response > 0 {
				up.ResponseTimeout = s.response
			}
			up.AnswerTimeout = s.answer
			table.Upstreams = append(table.Upstreams, up)
			model.Deployments = append(model.Deployments, &route.Deployment{Upstream: up, Model: "real-m", Weight: 1, Backup: i > 0})
		}
	}
	table.Models = []*route.Model{model}
	w.router = route.NewRouter(table, route.RouterOptions{})
	if s.store != nil {
		store = s.store(store)
	}
	o := Options{
		Store: store, Directory: w.dir, Router: w.router, Dialects: []proxy.Dialect{openai.New(), anthropic.New(), gemini.New()},
		Observer: &w.observed, Counters: func(string, string) proxy.Counter { return words{} },
		DrainTimeout: 5 * time.Second, DecideTimeout: 10 * time.Second,
	}
	if w.t != nil && testing.Verbose() && !s.quiet {
		o.Logger = slog.New(slog.NewTextHandler(testWriter{w.t}, &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	if s.fresh {
		o.Router = fresh{w.router, table}
	}
	if s.change != nil {
		s.change(&o)
	}
	if w.handler, err = New(o); err != nil {
		panic(err)
	}
	if err := w.handler.Start(); err != nil {
		panic(err)
	}
}

// testWriter logs to a test as long as it runs.
type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

func (w *world) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := w.handler.Stop(ctx); err != nil && !w.lost {
		w.t.Error(err)
	}
	w.client.CloseIdleConnections()
	w.server.Close()
	w.router.Close()
	for _, u := range w.upstreams {
		u.server.CloseClientConnections()
		u.server.Close()
	}
}

// request makes a chat request; extra are members of its body.
func (w *world) request(ctx context.Context, extra string, header ...string) *http.Request {
	body := `{"model":"alias","messages":[{"role":"user","content":"one two three"}]` + extra + `}`
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, w.server.URL+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+w.key)
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	return r
}

type answered struct {
	status int
	header http.Header
	body   string
	err    error // of reading the body
}

func (w *world) do(r *http.Request) answered {
	w.t.Helper()
	resp, err := w.client.Do(r)
	if err != nil {
		w.t.Fatalf("%s %s: %v", r.Method, r.URL, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return answered{resp.StatusCode, resp.Header, string(body), err}
}

func (w *world) chat(extra string, header ...string) answered {
	w.t.Helper()
	return w.do(w.request(w.t.Context(), extra, header...))
}

// record is what the log says of a reservation in the end.
type record struct {
	events.Reservation
	typ events.Type
}

// ended waits until n reservations have ended and returns them by age.
func (w *world) ended(n int) []record {
	w.t.Helper()
	var list []record
	w.eventually(fmt.Sprintf("%d ended reservations", n), func() bool {
		list = w.finals()
		return len(list) >= n
	})
	if len(list) != n {
		w.t.Fatalf("%d reservations have ended, want %d", len(list), n)
	}
	return list
}

func (w *world) finals() []record {
	w.t.Helper()
	last := map[string]record{}
	var order []string
	after := ""
	for {
		entries, err := w.redis.Read(context.Background(), 0, after, 1000)
		if err != nil {
			w.t.Fatalf("read the outbox: %v", err)
		}
		if len(entries) == 0 {
			break
		}
		for _, e := range entries {
			after = e.ID
			for i := range e.Events {
				r, err := e.Events[i].Reservation()
				if err != nil {
					w.t.Fatal(err)
				}
				if _, known := last[r.ReservationID]; !known {
					order = append(order, r.ReservationID)
				}
				if old := last[r.ReservationID]; r.Seq > old.Seq {
					last[r.ReservationID] = record{r, e.Events[i].Type}
				}
			}
		}
	}
	var list []record
	for _, id := range order {
		if r := last[id]; r.State == events.StateSettled || r.State == events.StateCancelled {
			list = append(list, r)
		}
	}
	return list
}

// eventually waits for a condition that nothing announces.
func (w *world) eventually(what string, ok func() bool) {
	w.t.Helper()
	for until := time.Now().Add(20 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(until) {
			w.t.Fatalf("waited in vain for %s", what)
		}
	}
}

// standing returns what a limit counts.
func (w *world) standing(name string) admission.Left {
	w.t.Helper()
	st, err := w.redis.Standing(context.Background(), w.tenant, admission.Constraints(w.tenant, nil, "chat/completions", "alias", w.dir.platform))
	if err != nil {
		w.t.Fatal(err)
	}
	i := slices.IndexFunc(st.Left, func(l admission.Left) bool { return l.Constraint.Limit.Name == name })
	if i < 0 {
		w.t.Fatalf("no limit %q", name)
	}
	return st.Left[i]
}

func (w *world) wantStanding(name string, used, held int64) {
	w.t.Helper()
	if l := w.standing(name); l.Used != used || l.Held != held {
		w.t.Errorf("%s: used %d, held %d; want %d and %d", name, l.Used, l.Held, used, held)
	}
}

func wantRecord(t testing.TB, r record, state events.State, input, output int64, estimated bool) {
	t.Helper()
	if r.State != state || r.Total.InputTokens != input || r.Total.OutputTokens != output || r.Estimated != estimated || r.HeldMilliUnits != 0 {
		t.Errorf("ended as %s (%s) with %d in, %d out, estimated %v, %d held; want %s with %d in, %d out, estimated %v",
			r.State, r.Reason, r.Total.InputTokens, r.Total.OutputTokens, r.Estimated, r.HeldMilliUnits, state, input, output, estimated)
	}
}

// Limits.
func perMinute(tokens int64) tenancy.Limit {
	return tenancy.Limit{
		Name: "tokens-60s", Layer: "L1", Kind: tenancy.KindRing, Scope: tenancy.ScopeTenant, Metric: tenancy.MetricTokens,
		Limit: tokens, Window: tenancy.Duration(time.Minute), Slots: 60,
	}
}

func concurrency(n int64) tenancy.Limit {
	return tenancy.Limit{Name: "concurrency", Layer: "L3", Kind: tenancy.KindLease, Scope: tenancy.ScopeTenant, Limit: n}
}

// What OpenAI-compatible servers answer.

const usageText = `{"prompt_tokens":13,"completion_tokens":33,"total_tokens":46}`

func chatAnswer(text, usage string) string {
	if usage != "" {
		usage = `,"usage":` + usage
	}
	return `{"id":"c1","object":"chat.completion","created":1,"model":"real-m","choices":[{"index":0,"message":{"role":"assistant","content":"` +
		text + `"},"finish_reason":"stop"}]` + usage + `}`
}

func whole(text, usage string) func(http.ResponseWriter, *http.Request, []byte) {
	return func(w http.ResponseWriter, _ *http.Request, _ []byte) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, chatAnswer(text, usage))
	}
}

func delta(text string) string {
	return `data: {"id":"c1","object":"chat.completion.chunk","created":1,"model":"real-m","choices":[{"index":0,"delta":{"content":"` + text + `"},"finish_reason":null}]}` + "\n\n"
}

const (
	stopEvent = `data: {"id":"c1","object":"chat.completion.chunk","created":1,"model":"real-m","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n"
	doneEvent = "data: [DONE]\n\n"
)

func usageEvent(usage string) string {
	return `data: {"id":"c1","object":"chat.completion.chunk","created":1,"model":"real-m","choices":[],"usage":` + usage + `}` + "\n\n"
}

// stream writes pieces, each flushed.
func stream(pieces ...string) func(http.ResponseWriter, *http.Request, []byte) {
	return func(w http.ResponseWriter, _ *http.Request, _ []byte) { writeStream(w, pieces...) }
}

func writeStream(w http.ResponseWriter, pieces ...string) {
	w.Header().Set("Content-Type", "text/event-stream")
	for _, p := range pieces {
		_, _ = io.WriteString(w, p)
		_ = http.NewResponseController(w).Flush()
	}
}

// breakOff breaks the connection.
func breakOff(w http.ResponseWriter) {
	_ = http.NewResponseController(w).Flush()
	panic(http.ErrAbortHandler)
}

func refusal(status int, header ...string) func(http.ResponseWriter, *http.Request, []byte) {
	return func(w http.ResponseWriter, _ *http.Request, _ []byte) {
		w.Header().Set("Content-Type", "application/json")
		for i := 0; i+1 < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(status)
		_, _ = fmt.Fprintf(w, `{"error":{"message":"upstream says %d","type":"t","param":null,"code":null}}`, status)
	}
}

// firstLine waits for the first line of a stream.
func firstLine(t testing.TB, r io.Reader) string {
	t.Helper()
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return line
}

// promptTokens is what the tests' counter makes of the tests' prompt: its words,
// and what the dialect adds for a message.
var promptTokens = func() int64 {
	e, _, _ := openai.New().Endpoint(http.MethodPost, "/v1/chat/completions", nil)
	ask, err := e.Read([]byte(`{"model":"alias","messages":[{"role":"user","content":"one two three"}]}`), "application/json", "")
	if err != nil {
		panic(err)
	}
	return ask.InputTokens(words{})
}()

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

// fresh makes each plan with breakers that know nothing, for tests of many
// failures.
type fresh struct {
	Router
	table *route.Table
}

func (f fresh) Plan(model, dialect, region string) (*route.Plan, error) {
	table := &route.Table{Upstreams: f.table.Upstreams}
	for _, m := range f.table.Models {
		again := *m
		again.Deployments = nil
		for _, d := range m.Deployments {
			again.Deployments = append(again.Deployments, &route.Deployment{Upstream: d.Upstream, Model: d.Model, Weight: d.Weight, Backup: d.Backup})
		}
		table.Models = append(table.Models, &again)
	}
	return route.NewRouter(table, route.RouterOptions{}).Plan(model, dialect, region)
}

// panicking is a dialect that panics at the word.
type panicking struct{ proxy.Dialect }

func (p panicking) Endpoint(method, path string, header http.Header) (proxy.Endpoint, string, bool) {
	e, model, ok := p.Dialect.Endpoint(method, path, header)
	if !ok {
		return nil, "", false
	}
	return panickingEndpoint{e}, model, ok
}

type panickingEndpoint struct{ proxy.Endpoint }

func (p panickingEndpoint) Answer(body []byte, contentType string, ask *proxy.Ask, count proxy.Counter) proxy.Tally {
	if bytes.Contains(body, []byte("panic")) {
		panic("the test says so")
	}
	return p.Endpoint.Answer(body, contentType, ask, count)
}

func (p panickingEndpoint) Stream(ask *proxy.Ask, count proxy.Counter) proxy.Stream {
	return panickingStream{p.Endpoint.Stream(ask, count)}
}

type panickingStream struct{ proxy.Stream }

func (p panickingStream) Event(ev sse.Event) proxy.Action {
	if bytes.Contains(ev.Data, []byte("panic")) {
		panic("the test says so")
	}
	return p.Stream.Event(ev)
}
