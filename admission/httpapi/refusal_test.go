package httpapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"tollgate/admission"
	"tollgate/tenancy"
)

func limit(layer string, kind tenancy.Kind, scope tenancy.Scope, change ...func(*tenancy.Limit)) admission.Constraint {
	l := tenancy.Limit{Name: "the-limit", Layer: layer, Kind: kind, Scope: scope, Limit: 100}
	switch kind {
	case tenancy.KindRing:
		l.Metric, l.Window, l.Slots = tenancy.MetricTokens, tenancy.Duration(time.Minute), 60
	case tenancy.KindRate:
		l.Metric, l.Window, l.Burst = tenancy.MetricRequests, tenancy.Duration(time.Second), 1
	case tenancy.KindCounter:
		l.Metric, l.Period = tenancy.MetricTokens, tenancy.PeriodMonth
	}
	for _, c := range change {
		c(&l)
	}
	units := l.Limit
	if l.Kind == tenancy.KindLease && l.BurstPercent > 0 {
		units = l.Limit * l.BurstPercent / 100
	}
	return admission.Constraint{Limit: l, Units: units}
}

func budget(l *tenancy.Limit) { l.Budget = true }

// TestRefusalMatrix is the design's table of refusals, line by line.
func TestRefusalMatrix(t *testing.T) {
	const (
		quota    = "https://iana.org/assignments/http-problem-types#quota-exceeded"
		capacity = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
	)
	for _, c := range []struct {
		name    string
		refusal admission.Refusal
		status  int
		retry   string // Retry-After
		kind    string
		policy  string // RateLimit-Policy
		limit   string // RateLimit
		never   bool   // x-should-retry: false
	}{
		{
			"L1 window",
			admission.Refusal{Constraint: limit("L1", tenancy.KindRing, tenancy.ScopeTenant), Reason: admission.ReasonWindow, Used: 58, Held: 10, Requested: 80, RetryAfter: 9400 * time.Millisecond},
			429, "10", quota, `"the-limit";q=100;w=60`, `"the-limit";r=32;t=10`, false,
		},
		{
			"L1 window, of a key, no prediction",
			admission.Refusal{Constraint: limit("L1", tenancy.KindRing, tenancy.ScopeKey), Reason: admission.ReasonWindow, Used: 100},
			429, "60", quota, `"the-limit";q=100;w=60`, `"the-limit";r=0;t=60`, false,
		},
		{
			"L1 larger than the window",
			admission.Refusal{Constraint: limit("L1", tenancy.KindRing, tenancy.ScopeTenant), Reason: admission.ReasonTooLarge, Requested: 175, RetryAfter: time.Second},
			429, "1", quota, `"the-limit";q=100;w=60`, `"the-limit";r=100;t=1`, true,
		},
		{
			"L2 rate",
			admission.Refusal{Constraint: limit("L2", tenancy.KindRate, tenancy.ScopeTenant), Reason: admission.ReasonRate, Used: 100, RetryAfter: 3 * time.Millisecond},
			429, "1", quota, `"the-limit";q=100;w=1`, `"the-limit";r=0;t=1`, false,
		},
		{
			"L2 rate, no prediction",
			admission.Refusal{Constraint: limit("L2", tenancy.KindRate, tenancy.ScopeTenant), Reason: admission.ReasonRate, Used: 100},
			429, "1", quota, `"the-limit";q=100;w=1`, `"the-limit";r=0;t=1`, false,
		},
		{
			"L3 concurrency",
			admission.Refusal{Constraint: limit("L3", tenancy.KindLease, tenancy.ScopeEndpoint), Reason: admission.ReasonConcurrency, Held: 100, Requested: 1, RetryAfter: 2 * time.Second},
			429, "2", quota, `"the-limit";q=100`, `"the-limit";r=0;t=2`, false,
		},
		{
			"L3 with burst, global, no prediction",
			admission.Refusal{Constraint: limit("L3", tenancy.KindLease, tenancy.ScopeGlobal, func(l *tenancy.Limit) { l.BurstPercent = 120 }), Reason: admission.ReasonConcurrency, Held: 120, Requested: 1},
			429, "5", quota, `"the-limit";q=120`, `"the-limit";r=0;t=5`, false,
		},
		{
			"budget held by others",
			admission.Refusal{Constraint: limit("L1", tenancy.KindRing, tenancy.ScopeTenant, budget), Reason: admission.ReasonHeld, Used: 20, Held: 80, Requested: 1},
			429, "5", quota, `"the-limit";q=100;w=60`, `"the-limit";r=0;t=5`, false,
		},
		{
			"budget really spent",
			admission.Refusal{Constraint: limit("L1", tenancy.KindRing, tenancy.ScopeTenant, budget), Reason: admission.ReasonSpent, Used: 100, Requested: 1, RetryAfter: time.Hour},
			402, "", quota, `"the-limit";q=100;w=60`, `"the-limit";r=0`, true,
		},
		{
			"month really spent",
			admission.Refusal{Constraint: limit("L1", tenancy.KindCounter, tenancy.ScopeTenant, budget), Reason: admission.ReasonSpent, Used: 100, Requested: 1},
			402, "", quota, `"the-limit";q=100`, `"the-limit";r=0`, true,
		},
		{
			"larger than the whole budget",
			admission.Refusal{Constraint: limit("L1", tenancy.KindCounter, tenancy.ScopeTenant, budget), Reason: admission.ReasonTooLarge, Requested: 101},
			402, "", quota, `"the-limit";q=100`, `"the-limit";r=100`, true,
		},
		{
			"period that is no budget",
			admission.Refusal{Constraint: limit("L1", tenancy.KindCounter, tenancy.ScopeTenant), Reason: admission.ReasonWindow, Used: 100, RetryAfter: 36 * time.Hour},
			429, "129600", quota, `"the-limit";q=100`, `"the-limit";r=0;t=129600`, false,
		},
		{
			"L4 slots",
			admission.Refusal{Constraint: limit("L4", tenancy.KindLease, tenancy.ScopeGlobal), Reason: admission.ReasonConcurrency, Held: 100, Requested: 1, RetryAfter: 11 * time.Second},
			503, "11", capacity, `"the-limit";q=100`, `"the-limit";r=0;t=11`, false,
		},
		{
			"L4 slots, no prediction",
			admission.Refusal{Constraint: limit("L4", tenancy.KindLease, tenancy.ScopeGlobal), Reason: admission.ReasonConcurrency, Held: 100, Requested: 1},
			503, "30", capacity, `"the-limit";q=100`, `"the-limit";r=0;t=30`, false,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t)
			f.store.failWith(fmt.Errorf("wrapped: %w", &c.refusal))
			w := f.ask("POST", "/v1/reservations", keyAcme, reserveJSON)
			h := w.Header()
			if w.Code != c.status || h.Get("Retry-After") != c.retry {
				t.Errorf("%d, Retry-After %q; want %d, %q", w.Code, h.Get("Retry-After"), c.status, c.retry)
			}
			if h.Get("RateLimit-Policy") != c.policy || h.Get("RateLimit") != c.limit {
				t.Errorf("RateLimit-Policy %s, RateLimit %s; want %s, %s", h.Get("RateLimit-Policy"), h.Get("RateLimit"), c.policy, c.limit)
			}
			if (h.Get("X-Should-Retry") == "false") != c.never {
				t.Errorf("X-Should-Retry %q, want false: %v", h.Get("X-Should-Retry"), c.never)
			}
			p := problemIn(t, w.Body.Bytes())
			l := &c.refusal.Constraint.Limit
			unit := string(l.Metric)
			if l.Kind == tenancy.KindLease {
				unit = "reservations"
			}
			want := Problem{
				Type: c.kind, Title: p.Title, Status: int64(c.status), Detail: p.Detail, Reason: c.refusal.Reason, RequestID: "r1",
				LimitFacts: LimitFacts{
					Name: "the-limit", Layer: l.Layer, Scope: string(l.Scope), Unit: unit,
					Limit: &c.refusal.Constraint.Units, Used: &c.refusal.Used, Reserved: &c.refusal.Held, Requested: &c.refusal.Requested,
				},
			}
			if c.kind == quota {
				want.ViolatedPolicies = []string{"the-limit"}
			}
			if diff := cmp.Diff(want, p); diff != "" {
				t.Errorf("body (-want +got):\n%s", diff)
			}
			if p.Title == "" || !strings.Contains(p.Detail, "the-limit") || !strings.HasSuffix(p.Detail, ".") {
				t.Errorf("title %q, detail %q", p.Title, p.Detail)
			}
		})
	}
}

// TestErrorTable: what the store and the directory can say, at each route that
// can meet it.
func TestErrorTable(t *testing.T) {
	for _, c := range []struct {
		err    error
		status int
		reason string
		retry  string
		never  bool
	}{
		{admission.ErrUnavailable, 503, "state_unavailable", "1", false},
		{admission.ErrNotRebuilt, 503, "state_not_rebuilt", "5", false},
		{admission.ErrBacklogFull, 503, "event_backlog_full", "5", false},
		{tenancy.ErrNotReady, 503, "directory_not_loaded", "1", false},
		{context.DeadlineExceeded, 503, "timeout", "1", false},
		{admission.ErrInFlight, 409, "in_flight", "1", false},
		{admission.ErrAlreadyFinal, 409, "already_settled", "", true},
		{admission.ErrTombstone, 409, "cancelled_before_reserve", "", true},
		{admission.ErrBodyMismatch, 422, "request_id_reused", "", false},
		{admission.ErrInvalid, 422, "out_of_range", "", false},
		{admission.ErrNotFound, 404, "reservation_not_found", "", false},
		{errors.New("dial tcp 10.0.0.7:6379: secret detail"), 500, "internal", "", false},
	} {
		t.Run(c.reason, func(t *testing.T) {
			var log strings.Builder
			f := newFixture(t, func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
			path := f.reserved(t)
			f.store.failWith(fmt.Errorf("redis at 10.0.0.7: secret detail: %w", c.err))
			for _, route := range []struct{ method, path, body string }{
				{"POST", "/v1/reservations", reserveJSON},
				{"GET", path, ""},
				{"POST", path + "/usage", settleJSON},
				{"POST", path + "/settle", settleJSON},
				{"POST", path + "/cancel", settleJSON},
				{"POST", "/v1/requests/r9/cancel", "{}"},
				{"GET", "/v1/quota/usage", ""},
			} {
				log.Reset()
				w := f.ask(route.method, route.path, keyAcme, route.body)
				p := problemIn(t, w.Body.Bytes())
				if w.Code != c.status || p.Reason != c.reason || w.Header().Get("Retry-After") != c.retry {
					t.Errorf("%s: %d %s, Retry-After %q; want %d %s %q", route.path, w.Code, p.Reason, w.Header().Get("Retry-After"), c.status, c.reason, c.retry)
				}
				if (w.Header().Get("X-Should-Retry") == "false") != c.never {
					t.Errorf("%s: X-Should-Retry %q", route.path, w.Header().Get("X-Should-Retry"))
				}
				if strings.Contains(w.Body.String(), "secret") || strings.Contains(w.Body.String(), "10.0.0.7") {
					t.Errorf("%s: internals in the answer: %s", route.path, w.Body)
				}
				if logged := strings.Contains(log.String(), "secret detail") && strings.Contains(log.String(), p.RequestID); logged != (c.status >= 500) {
					t.Errorf("%s: logged with the request id: %v, at status %d: %s", route.path, logged, c.status, log.String())
				}
			}
		})
	}
}

func TestPanicsAreAnswered(t *testing.T) {
	f := newFixture(t)
	f.store.hook = func(context.Context, string) error { panic("secret detail") }
	w := f.ask("POST", "/v1/reservations", keyAcme, reserveJSON)
	p := problemIn(t, w.Body.Bytes())
	if w.Code != 500 || p.Reason != "internal" || strings.Contains(w.Body.String(), "secret") || strings.Contains(w.Body.String(), ".go") {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	if n := f.metrics.inFlight.Load(); n != 0 {
		t.Errorf("%d in flight after a panic", n)
	}
}

// TestCaseA9_RetryAfter: an integer of at least one, never below RateLimit's t,
// and the wait that the store predicts, rounded up.
func TestCaseA9_RetryAfter(t *testing.T) {
	ask := func(t testing.TB, r *admission.Refusal) *httptest.ResponseRecorder {
		f := newFixture(t)
		f.store.failWith(r)
		return f.ask("POST", "/v1/reservations", keyAcme, reserveJSON)
	}
	window := limit("L1", tenancy.KindRing, tenancy.ScopeTenant)
	w := ask(t, &admission.Refusal{Constraint: window, Reason: admission.ReasonWindow, Used: 100, RetryAfter: 10 * time.Second})
	if got := w.Header().Get("Retry-After"); got != "10" {
		t.Errorf("a window of 60 s with 50 s gone: Retry-After %s, want 10", got)
	}
	breaker := limit("L4", tenancy.KindLease, tenancy.ScopeGlobal)
	w = ask(t, &admission.Refusal{Constraint: breaker, Reason: admission.ReasonConcurrency, RetryAfter: 120 * time.Second})
	if got := w.Header().Get("Retry-After"); got != "120" {
		t.Errorf("120 s left: Retry-After %s, want 120", got)
	}

	rapid.Check(t, func(rt *rapid.T) {
		r := &admission.Refusal{
			Constraint: limit(rapid.SampledFrom([]string{"L1", "L2", "L3", "L4"}).Draw(rt, "layer"),
				rapid.SampledFrom([]tenancy.Kind{tenancy.KindRing, tenancy.KindCounter, tenancy.KindRate, tenancy.KindLease}).Draw(rt, "kind"),
				tenancy.ScopeTenant, func(l *tenancy.Limit) { l.Budget = rapid.Bool().Draw(rt, "budget") }),
			Reason: rapid.SampledFrom([]string{
				admission.ReasonWindow, admission.ReasonRate, admission.ReasonConcurrency,
				admission.ReasonHeld, admission.ReasonSpent, admission.ReasonTooLarge,
			}).Draw(rt, "reason"),
			RetryAfter: time.Duration(rapid.Int64Range(0, int64(40*24*time.Hour)).Draw(rt, "wait")),
		}
		w := ask(t, r)
		after := w.Header().Get("Retry-After")
		_, reset, hasReset := strings.Cut(w.Header().Get("RateLimit"), ";t=")
		if w.Code == http.StatusPaymentRequired {
			if after != "" || hasReset {
				rt.Fatalf("402 with Retry-After %q, RateLimit %q", after, w.Header().Get("RateLimit"))
			}
			return
		}
		seconds, err := strconv.ParseInt(after, 10, 64)
		if err != nil || seconds < 1 || time.Duration(seconds)*time.Second < r.RetryAfter {
			rt.Fatalf("Retry-After %q for a wait of %v", after, r.RetryAfter)
		}
		if r.RetryAfter > 0 && time.Duration(seconds-1)*time.Second >= r.RetryAfter && seconds > 1 {
			rt.Fatalf("Retry-After %q is a second too long for %v", after, r.RetryAfter)
		}
		if n, err := strconv.ParseInt(reset, 10, 64); !hasReset || err != nil || n > seconds {
			rt.Fatalf("t=%q above Retry-After %d", reset, seconds)
		}
	})
}
