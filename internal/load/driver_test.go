package load

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"tollgate/internal/trace"
)

// call is what a fake gateway was asked.
type call struct {
	path, key, requestID string
	body                 string
	at                   time.Time
}

// gateway answers as a gateway does, after fault had its say.
type gateway struct {
	*httptest.Server
	mu    sync.Mutex
	calls []call
	known map[string]bool
	// fault returns true when it has answered itself; n counts the calls of
	// this path and request from 1.
	fault func(w http.ResponseWriter, c call, n int) bool
}

func newGateway(t *testing.T, fault func(w http.ResponseWriter, c call, n int) bool) *gateway {
	g := &gateway{known: map[string]bool{}, fault: fault}
	seen := map[string]int{}
	g.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		data, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		var body struct {
			RequestID string `json:"request_id"`
		}
		if err := json.Unmarshal(data, &body); err != nil {
			t.Errorf("%s: %v", r.URL.Path, err)
		}
		c := call{r.URL.Path, strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "), body.RequestID, string(data), time.Now()}
		g.mu.Lock()
		g.calls = append(g.calls, c)
		seen[c.path+c.requestID]++
		n := seen[c.path+c.requestID]
		again := g.known[c.requestID]
		g.mu.Unlock()
		if g.fault != nil && g.fault(w, c, n) {
			return
		}
		if c.path != "/v1/reservations" {
			io.WriteString(w, "{}")
			return
		}
		g.mu.Lock()
		g.known[c.requestID] = true
		g.mu.Unlock()
		if !again {
			w.WriteHeader(http.StatusCreated)
		}
		fmt.Fprintf(w, `{"reservation_id":"rsv_%s"}`, c.requestID)
	}))
	t.Cleanup(g.Close)
	return g
}

// to returns the calls of a path.
func (g *gateway) to(path string) []call {
	g.mu.Lock()
	defer g.mu.Unlock()
	var list []call
	for _, c := range g.calls {
		if c.path == path {
			list = append(list, c)
		}
	}
	return list
}

func (g *gateway) driver() *Driver {
	return &Driver{
		Addresses: []string{g.URL}, TenantKeys: []string{"key-0"}, TenantIDs: []string{"t0"}, Workers: 2,
		Endpoint: "chat", Model: "m", Patience: 20 * time.Second, Client: g.Client(),
	}
}

// plan has one step a function given, which changes it.
func plan(changes ...func(*Step)) *Plan {
	p := &Plan{Run: "r", Tenants: 1, ByTenant: make([]trace.Totals, 1)}
	for i, change := range changes {
		s := Step{
			RequestID: fmt.Sprintf("r-%d", i), Request: trace.Request{InputTokens: 100, OutputTokens: 40},
			Outcome: Completed, OutputTokens: 40,
		}
		change(&s)
		p.add(s)
	}
	return p
}

func plain(*Step) {}

func TestDriverSendsWhatIsPlanned(t *testing.T) {
	t.Parallel()
	g := newGateway(t, nil)
	d := g.driver()
	d.MeterKey, d.HoldTTL = "meter-key", 3*time.Second
	var progress []int
	var mu sync.Mutex
	d.Progress = func(done int) { mu.Lock(); progress = append(progress, done); mu.Unlock() }
	report, err := d.Run(t.Context(), plan(
		plain,
		func(s *Step) { s.DuplicateStart, s.DuplicateSettle = true, true },
		func(s *Step) { s.Outcome, s.OutputTokens, s.DuplicateSettle = Cancelled, 7, true },
		func(s *Step) { s.Outcome = Lost },
		func(s *Step) { s.Progress = 11 },
	))
	if err != nil {
		t.Fatal(err)
	}
	want := Report{Done: 5, Reserved: 5, Replayed: 1, Settled: 3, Cancelled: 1, Lost: 1, MeterEntries: 10}
	if diff := cmp.Diff(want, report); diff != "" {
		t.Errorf("report (-want +got)\n%s", diff)
	}
	for path, n := range map[string]int{
		"/v1/reservations": 6, "/v1/reservations/rsv_r-0/settle": 1, "/v1/reservations/rsv_r-1/settle": 2,
		"/v1/reservations/rsv_r-2/cancel": 2, "/v1/reservations/rsv_r-2/settle": 0,
		"/v1/reservations/rsv_r-3/settle": 0, "/v1/reservations/rsv_r-3/cancel": 0, "/v1/reservations/rsv_r-4/usage": 1,
	} {
		if got := g.to(path); len(got) != n {
			t.Errorf("%s was called %d times, want %d", path, len(got), n)
		}
	}
	for _, c := range g.to("/v1/reservations/rsv_r-2/cancel") {
		if !strings.Contains(c.body, `"output_tokens":7`) {
			t.Errorf("cancel reports %s, want what was generated", c.body)
		}
	}
	for _, c := range g.to("/v1/reservations") {
		if c.key != "key-0" || !strings.Contains(c.body, `"ttl_ms":3000`) {
			t.Errorf("reserve with key %q and body %s", c.key, c.body)
		}
	}
	for _, c := range g.to("/v1/meters") {
		if c.key != "meter-key" {
			t.Errorf("readings are reported with %q", c.key)
		}
	}
	slices.Sort(progress)
	if diff := cmp.Diff([]int{1, 2, 3, 4, 5}, progress); diff != "" {
		t.Errorf("progress: %s", diff)
	}
}

// Whatever a gateway that dies looks like from outside, the same request is
// sent again until it is answered.
func TestDriverRepeatsTheSameRequestUntilItIsAnswered(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(w http.ResponseWriter){
		"503":               func(w http.ResponseWriter) { w.WriteHeader(503) },
		"500":               func(w http.ResponseWriter) { w.WriteHeader(500) },
		"connection closed": func(http.ResponseWriter) { panic(http.ErrAbortHandler) },
		"answer cut off": func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", "1000")
			w.WriteHeader(201)
			io.WriteString(w, `{"res`)
			panic(http.ErrAbortHandler)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGateway(t, func(w http.ResponseWriter, _ call, n int) bool {
				if n <= 2 {
					fault(w)
				}
				return n <= 2
			})
			report, err := g.driver().Run(t.Context(), plan(plain))
			if err != nil {
				t.Fatal(err)
			}
			if want := (Report{Done: 1, Reserved: 1, Settled: 1, Retried: 4}); report != want {
				t.Errorf("report %+v, want %+v", report, want)
			}
			reserves := g.to("/v1/reservations")
			if len(reserves) != 3 {
				t.Fatalf("%d reserves, want 3", len(reserves))
			}
			for _, c := range reserves {
				if c.body != reserves[0].body || c.requestID != "r-0" {
					t.Errorf("a repeat differs: %s and %s", c.body, reserves[0].body)
				}
			}
		})
	}
}

func TestDriverObeysRetryAfter(t *testing.T) {
	t.Parallel()
	g := newGateway(t, func(w http.ResponseWriter, c call, n int) bool {
		if c.path == "/v1/reservations" && n == 1 {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(429)
			return true
		}
		return false
	})
	report, err := g.driver().Run(t.Context(), plan(plain))
	if err != nil || report.Refused != 1 || report.Retried != 0 || report.Settled != 1 {
		t.Fatalf("%+v, %v", report, err)
	}
	if r := g.to("/v1/reservations"); len(r) != 2 || r[1].at.Sub(r[0].at) < 990*time.Millisecond {
		t.Errorf("asked again after %s, want the second that was asked for", r[1].at.Sub(r[0].at))
	}
}

func TestDriverGivesUpAfterPatience(t *testing.T) {
	t.Parallel()
	g := newGateway(t, func(w http.ResponseWriter, _ call, _ int) bool { w.WriteHeader(503); return true })
	d := g.driver()
	d.Patience = 100 * time.Millisecond
	report, err := d.Run(t.Context(), plan(plain, plain, plain))
	var answer *HTTPError
	if !errors.Is(err, ErrNoAnswer) || !errors.As(err, &answer) || answer.Status != 503 || !strings.Contains(err.Error(), "request r-") {
		t.Errorf("got %v, want ErrNoAnswer with the last answer and the request", err)
	}
	if report.Done != 0 || report.Retried < 2 {
		t.Errorf("report %+v", report)
	}
}

func TestDriverTakesOther4xxForFinal(t *testing.T) {
	t.Parallel()
	for _, status := range []int{400, 401, 402, 403, 404, 409, 413, 422} {
		g := newGateway(t, func(w http.ResponseWriter, _ call, _ int) bool {
			w.WriteHeader(status)
			io.WriteString(w, "because")
			return true
		})
		_, err := g.driver().Run(t.Context(), plan(plain))
		var answer *HTTPError
		if !errors.As(err, &answer) || answer.Status != status || answer.Body != "because" || errors.Is(err, ErrNoAnswer) {
			t.Errorf("%d: got %v", status, err)
		}
		if n := len(g.to("/v1/reservations")); n != 1 {
			t.Errorf("%d: asked %d times, want once", status, n)
		}
	}
}

// A repeated reserve that gives another reservation would be charged twice.
func TestDriverNoticesAReservationThatIsNotTheSame(t *testing.T) {
	t.Parallel()
	g := newGateway(t, func(w http.ResponseWriter, c call, n int) bool {
		if c.path == "/v1/reservations" && n == 2 {
			w.WriteHeader(201)
			io.WriteString(w, `{"reservation_id":"rsv_other"}`)
			return true
		}
		return false
	})
	_, err := g.driver().Run(t.Context(), plan(func(s *Step) { s.DuplicateStart = true }))
	if err == nil || !strings.Contains(err.Error(), "gave reservation rsv_other, not rsv_r-0") {
		t.Errorf("got %v", err)
	}
}

// With several gateways a repeat goes to another one: a dead one costs time.
func TestDriverGoesOnWithTheNextGateway(t *testing.T) {
	t.Parallel()
	dead := httptest.NewServer(nil)
	dead.Close()
	g := newGateway(t, nil)
	d := g.driver()
	d.Addresses = []string{dead.URL, g.URL}
	report, err := d.Run(t.Context(), plan(plain, plain, plain))
	if err != nil || report.Settled != 3 || report.Retried == 0 {
		t.Errorf("%+v, %v", report, err)
	}
}

func TestDriverEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	g := newGateway(t, func(w http.ResponseWriter, _ call, _ int) bool { cancel(); w.WriteHeader(503); return true })
	if _, err := g.driver().Run(ctx, plan(plain)); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// At a speed, a request is not sent before its time.
func TestDriverKeepsTheTracesTiming(t *testing.T) {
	t.Parallel()
	g := newGateway(t, nil)
	d := g.driver()
	d.Speed = 10
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	_, err := d.Run(t.Context(), plan(
		func(s *Step) { s.Request.At = start },
		func(s *Step) { s.Request.At = start.Add(2 * time.Second) },
	))
	if err != nil {
		t.Fatal(err)
	}
	if r := g.to("/v1/reservations"); r[1].at.Sub(r[0].at) < 150*time.Millisecond {
		t.Errorf("the second request followed after %s, want about 200 ms", r[1].at.Sub(r[0].at))
	}
}
