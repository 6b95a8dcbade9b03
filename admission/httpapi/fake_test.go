package httpapi

import (
	"bufio"
	"context"
	"flag"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"tollgate/admission"
	"tollgate/admission/answer"
	"tollgate/events"
	"tollgate/tenancy"
)

var update = flag.Bool("update", false, "rewrite generated files")

func TestMain(m *testing.M) {
	if os.Getenv(benchServerVar) != "" {
		runBenchServer()
		return
	}
	goleak.VerifyTestMain(m)
}

// testNow is when everything in these tests happens.
var testNow = time.Date(2026, 3, 4, 5, 6, 7, 8e6, time.UTC)

// fakeStore keeps reservations in a map and admits everything, unless hook
// says otherwise. It has the store's idempotency, not its arithmetic.
type fakeStore struct {
	mu    sync.Mutex
	byID  map[string]*fakeRecord
	tomb  map[string]bool
	hook  func(ctx context.Context, op string) error
	stop  *admission.Refusal
	ready error

	lastReserve *admission.ReserveRequest
	lastReport  *admission.UsageReport
	standing    *admission.Standing
	asked       []admission.Constraint
}

type fakeRecord struct {
	tenant string
	hash   [16]byte
	res    admission.Reservation
}

func newFakeStore() *fakeStore {
	return &fakeStore{byID: map[string]*fakeRecord{}, tomb: map[string]bool{}}
}

func (s *fakeStore) enter(ctx context.Context, op string) error {
	s.mu.Lock()
	hook := s.hook
	s.mu.Unlock()
	if hook != nil {
		return hook(ctx, op)
	}
	return ctx.Err()
}

func (s *fakeStore) failWith(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hook = func(context.Context, string) error { return err }
}

func (s *fakeStore) Reserve(ctx context.Context, req *admission.ReserveRequest) (*admission.Reservation, error) {
	if err := s.enter(ctx, "reserve"); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastReserve = req
	if s.tomb[req.Tenant.ID+"|"+req.RequestID] {
		return nil, admission.ErrTombstone
	}
	id := admission.ReservationID(admission.RequestHash(req.Tenant.ID, req.RequestID), testNow.UnixMilli())
	if r := s.byID[id]; r != nil {
		if r.hash != req.BodyHash {
			return nil, admission.ErrBodyMismatch
		}
		again := r.res
		again.Replayed = true
		return &again, nil
	}
	units, err := admission.Units(req.Hold, req.WeightMilli, req.ImageTokens)
	if err != nil {
		return nil, err
	}
	r := &fakeRecord{tenant: req.Tenant.ID, hash: req.BodyHash, res: admission.Reservation{
		ID: id, RequestID: req.RequestID, State: events.StateHeld, AdmittedUnits: units,
		CreatedAt: testNow, ExpiresAt: testNow.Add(req.TTL),
	}}
	for _, c := range req.Limits {
		r.res.Left = append(r.res.Left, admission.Left{
			Constraint: c, Held: 1, Remaining: max(answer.Effective(&c)-1, 0), Reset: time.Duration(c.Limit.Window),
		})
	}
	s.byID[id] = r
	res := r.res
	return &res, nil
}

func (s *fakeStore) record(tenant *tenancy.Tenant, id string) *fakeRecord {
	if r := s.byID[id]; r != nil && r.tenant == tenant.ID {
		return r
	}
	return nil
}

func (s *fakeStore) Report(ctx context.Context, rep *admission.UsageReport) (*admission.Reservation, error) {
	if err := s.enter(ctx, "usage"); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastReport = rep
	r := s.record(rep.Tenant, rep.ReservationID)
	if r == nil {
		return nil, admission.ErrNotFound
	}
	r.res.Total = rep.Total
	r.res.ExpiresAt = testNow.Add(rep.TTL)
	res := r.res
	res.Stop = s.stop
	return &res, nil
}

func (s *fakeStore) Settle(ctx context.Context, rep *admission.UsageReport) (*admission.Reservation, error) {
	return s.end(ctx, rep, events.StateSettled)
}

func (s *fakeStore) Cancel(ctx context.Context, rep *admission.UsageReport) (*admission.Reservation, error) {
	return s.end(ctx, rep, events.StateCancelled)
}

func (s *fakeStore) end(ctx context.Context, rep *admission.UsageReport, state events.State) (*admission.Reservation, error) {
	if err := s.enter(ctx, string(state)); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastReport = rep
	id := rep.ReservationID
	if rep.RequestID != "" {
		id = admission.ReservationID(admission.RequestHash(rep.Tenant.ID, rep.RequestID), testNow.UnixMilli())
	}
	r := s.record(rep.Tenant, id)
	if r == nil && rep.RequestID != "" {
		s.tomb[rep.Tenant.ID+"|"+rep.RequestID] = true
		return &admission.Reservation{ID: id, RequestID: rep.RequestID, State: state}, nil
	}
	if r == nil {
		return nil, admission.ErrNotFound
	}
	total := rep.Total
	if rep.SoFar {
		total = r.res.Total
	}
	if r.res.State != events.StateHeld {
		res := r.res
		if r.res.State != state || r.res.Total != total {
			return &res, admission.ErrAlreadyFinal
		}
		res.Replayed = true
		return &res, nil
	}
	r.res.State, r.res.Total = state, total
	r.res.TotalUnits = (total.InputTokens + total.OutputTokens) * 1000
	res := r.res
	return &res, nil
}

func (s *fakeStore) Get(ctx context.Context, tenant *tenancy.Tenant, id string) (*admission.Reservation, error) {
	if err := s.enter(ctx, "get"); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.record(tenant, id); r != nil {
		res := r.res
		return &res, nil
	}
	return nil, admission.ErrNotFound
}

func (s *fakeStore) Standing(ctx context.Context, _ *tenancy.Tenant, limits []admission.Constraint) (*admission.Standing, error) {
	if err := s.enter(ctx, "standing"); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = limits
	if s.standing != nil {
		return s.standing, nil
	}
	out := &admission.Standing{At: testNow}
	for _, c := range limits {
		out.Left = append(out.Left, admission.Left{Constraint: c, Remaining: answer.Effective(&c)})
	}
	return out, nil
}

func (s *fakeStore) Ready(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ready
}

// fakeDirectory knows a few keys by their whole credential.
type fakeDirectory struct {
	tenants  map[string]*tenancy.Tenant
	keys     map[string]*tenancy.Key
	errs     map[string]error
	platform *tenancy.Platform
}

// Credentials of the fake directory.
const (
	keyAcme     = "tgk_acmeacmeacmeacme.secret"
	keyOther    = "tgk_otherotherother0.secret"
	keyOperator = "tgk_operatoroperator.secret"
	keyMeter    = "tgk_metermetermeter0.secret"
	keyOwnMeter = "tgk_metermetermeter1.secret"
	keyRevoked  = "tgk_revokedrevoked00.secret"
	keySuspend  = "tgk_suspendsuspend00.secret"
	keyStarting = "tgk_startingstarting.secret"
)

func newFakeDirectory() *fakeDirectory {
	platform := tenancy.DefaultPlatform()
	platform.Models = []tenancy.Model{
		{Name: "small", WeightMilli: 500, ImageTokens: 10},
		{Name: "huge", WeightMilli: tenancy.MaxWeight, ImageTokens: 10},
	}
	d := &fakeDirectory{
		platform: &platform,
		tenants: map[string]*tenancy.Tenant{
			"acme":  {ID: "acme", Name: "Acme", Quota: tenancy.DefaultQuota()},
			"other": {ID: "other", Name: "Other", Quota: tenancy.DefaultQuota()},
		},
		errs: map[string]error{keyRevoked: tenancy.ErrKeyRevoked, keySuspend: tenancy.ErrSuspended, keyStarting: tenancy.ErrNotReady},
		keys: map[string]*tenancy.Key{
			keyAcme: {TenantID: "acme", Role: tenancy.RoleTenant, Limits: []tenancy.Limit{{
				Name: "key-tokens", Layer: "L1", Kind: tenancy.KindRing, Scope: tenancy.ScopeKey, Metric: tenancy.MetricTokens,
				Limit: 500_000, Window: tenancy.Duration(time.Minute), Slots: 60,
			}}},
			keyOther:    {TenantID: "other", Role: tenancy.RoleTenant},
			keyOperator: {Role: tenancy.RoleOperator},
			keyMeter:    {Role: tenancy.RoleMeter},
			keyOwnMeter: {TenantID: "acme", Role: tenancy.RoleMeter},
			keySuspend:  {TenantID: "acme", Role: tenancy.RoleTenant}, // as if acme were suspended
		},
	}
	d.tenants["acme"].Quota.Version = 7
	for presented, key := range d.keys {
		key.ID, _, _ = strings.Cut(presented, ".")
	}
	return d
}

func (d *fakeDirectory) Authenticate(presented string) (tenancy.Principal, error) {
	key := d.keys[presented]
	if err := d.errs[presented]; err != nil {
		if key != nil { // of a suspended tenant
			return tenancy.Principal{Key: key, Tenant: d.tenants[key.TenantID]}, err
		}
		return tenancy.Principal{}, err
	}
	if key == nil {
		return tenancy.Principal{}, tenancy.ErrBadKey
	}
	return tenancy.Principal{Key: key, Tenant: d.tenants[key.TenantID]}, nil
}

func (d *fakeDirectory) Tenant(id string) (*tenancy.Tenant, error) {
	if d.platform == nil {
		return nil, tenancy.ErrNotReady
	}
	if t := d.tenants[id]; t != nil {
		return t, nil
	}
	return nil, tenancy.ErrNotFound
}

func (d *fakeDirectory) Tenants() []string           { return []string{"acme", "other"} }
func (d *fakeDirectory) Platform() *tenancy.Platform { return d.platform }
func (d *fakeDirectory) Version() int64              { return 1 }

// fakeSink keeps what is published.
type fakeSink struct {
	mu  sync.Mutex
	got []events.Event
	err error
}

func (s *fakeSink) Publish(_ context.Context, batch []events.Event) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	s.got = append(s.got, batch...)
	return nil
}

// fixture is a server that does not listen, with its fakes.
type fixture struct {
	*Server
	store     *fakeStore
	directory *fakeDirectory
	sink      *fakeSink

	t    testing.TB
	pipe *conns // made by the first ask
}

func newFixture(t testing.TB, change ...func(*Options)) *fixture {
	t.Helper()
	f := &fixture{t: t, store: newFakeStore(), directory: newFakeDirectory(), sink: &fakeSink{}}
	opts := Options{
		Store: f.store, Directory: f.directory, Meters: f.sink,
		Listen: "127.0.0.1:0", AdminListen: "127.0.0.1:0",
		Now: func() time.Time { return testNow },
	}
	for _, c := range change {
		c(&opts)
	}
	s, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	f.Server = s
	return f
}

// request makes a request. Headers are "Name: value"; one without a value
// takes away what is there by itself.
func request(method, path, key, body string, headers ...string) *http.Request {
	var reader io.Reader
	if method == http.MethodPost {
		reader = strings.NewReader(body)
	}
	r := httptest.NewRequest(method, path, reader)
	if method == http.MethodPost {
		r.Header.Set("Content-Type", "application/json")
	}
	if key != "" {
		r.Header.Set("Authorization", "Bearer "+key)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		if value == "" {
			r.Header.Del(name)
		} else {
			r.Header.Add(name, value)
		}
	}
	return r
}

// ask sends one request as a client's connection would bring it, and returns
// the answer.
func (f *fixture) ask(method, path, key, body string, headers ...string) *httptest.ResponseRecorder {
	f.t.Helper()
	r := request(method, path, key, body, headers...)
	client, done := f.dial()
	defer func() { _ = client.Close() }()
	wrote := make(chan struct{})
	go func() { // the answer may come before all is sent
		defer close(wrote)
		r.Header.Set("User-Agent", "test")
		_ = r.Write(client)
	}()
	res, err := http.ReadResponse(bufio.NewReader(client), r)
	if err != nil {
		f.t.Fatalf("%s %s: %v", method, path, err)
	}
	w := httptest.NewRecorder()
	w.Code = res.StatusCode
	w.HeaderMap = res.Header //nolint:staticcheck // a recorder filled by hand
	if _, err := io.Copy(w.Body, res.Body); err != nil {
		f.t.Fatalf("%s %s: %v", method, path, err)
	}
	_ = res.Body.Close() // read to its end
	_ = client.Close()
	<-wrote
	<-done // whatever the server does after its answer, such as to count it
	return w
}

// dial connects to the fixture in memory. Done is closed when the server has
// closed its side.
func (f *fixture) dial() (client net.Conn, done <-chan struct{}) {
	f.t.Helper()
	if f.pipe == nil {
		f.pipe = newConns(f.Server, nil)
		f.pipe.running.Go(f.pipe.watch)
		server := &http.Server{Handler: f.Server}
		served := make(chan struct{})
		go func() {
			defer close(served)
			_ = server.Serve(f.pipe)
		}()
		f.t.Cleanup(func() {
			if err := f.pipe.shutdown(context.Background()); err != nil {
				f.t.Error(err)
			}
			_ = server.Close()
			<-served
		})
	}
	client, ours := net.Pipe()
	closed := make(chan struct{})
	f.pipe.add(&watchedConn{Conn: ours, closed: closed})
	return client, closed
}

type watchedConn struct {
	net.Conn
	once   sync.Once
	closed chan struct{}
}

func (c *watchedConn) Close() error {
	defer c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

const (
	reserveJSON = `{"request_id":"r1","endpoint":"chat","model":"small","input_tokens":100,"max_output_tokens":50}`
	settleJSON  = `{"input_tokens":100,"output_tokens":20}`
)

// reserved makes a reservation of acme's and returns its path.
func (f *fixture) reserved(t testing.TB) string {
	t.Helper()
	w := f.ask("POST", "/v1/reservations", keyAcme, reserveJSON)
	if w.Code != http.StatusCreated {
		t.Fatalf("reserve: %d %s", w.Code, w.Body)
	}
	return w.Header().Get("Location")
}
