package drill

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"tollgate/internal/trace"
)

func totals(requests, input, output int64) trace.Totals {
	return trace.Totals{Requests: requests, InputTokens: input, OutputTokens: output}
}

// siegeRun is a run in which everything is as it must be: an answer, a stream
// that the reconciler settled, one that is estimated, and a request that never
// reached the model server.
func siegeRun() (*SiegeResult, map[string]trace.Totals, []charge) {
	did := map[string]trace.Totals{"a": totals(1, 10, 100), "b": totals(1, 20, 50), "c": totals(1, 30, 40)}
	charges := []charge{
		{id: "a", tokens: totals(1, 10, 100), units: 110_000, held: 250_000},
		{id: "b", tokens: totals(1, 20, 50), units: 70_000, held: 250_000, reconciled: true},
		{id: "c", tokens: totals(1, 31, 38), units: 69_000, held: 90_000, estimated: true, why: "quota_unknown"},
		{id: "d", tokens: totals(1, 0, 0), held: 90_000, reconciled: true, estimated: true},
	}
	r := &SiegeResult{Clients: SiegeClients{Answered: 1}}
	for _, part := range []string{"gateway", "journal", modelMeter, "bill"} {
		t := totals(4, 61, 188)
		if part == modelMeter {
			t = totals(3, 60, 190)
		}
		r.Counts = append(r.Counts, Count{part, t})
	}
	return r, did, charges
}

func TestSiegeAddsUp(t *testing.T) {
	t.Parallel()
	r, did, charges := siegeRun()
	r.compare(did, charges)
	want := &SiegeResult{
		Clients: r.Clients, Counts: r.Counts,
		Generated: totals(3, 60, 190), Unreached: totals(1, 0, 0), Reconciled: totals(1, 20, 50), Expected: totals(4, 61, 188),
		EstimatedGenerated: totals(1, 30, 40), Estimated: totals(1, 31, 38), EstimatedUnits: 69_000, EstimatedBound: 90_000,
		EstimatedWhy: map[string]int64{"quota_unknown": 1},
	}
	if diff := cmp.Diff(want, r); diff != "" {
		t.Error(diff)
	}
}

// Each of these is one thing that is not as it must be, and what says so.
func TestSiegeFindsWhatDiffers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spoil func(r *SiegeResult, did map[string]trace.Totals, charges []charge)
		says  string
	}{
		"a token too few at the meter": {
			func(_ *SiegeResult, _ map[string]trace.Totals, charges []charge) { charges[1].tokens.OutputTokens-- },
			"reservation b is charged",
		},
		"work that nobody holds for": {
			func(_ *SiegeResult, did map[string]trace.Totals, _ []charge) { did["x"] = totals(1, 1, 1) },
			`reservation "x", which the ledger does not know`,
		},
		"nothing done and something charged": {
			func(_ *SiegeResult, _ map[string]trace.Totals, charges []charge) { charges[3].tokens.InputTokens = 5 },
			"reservation d is charged",
		},
		"an estimate beyond its hold": {
			func(_ *SiegeResult, _ map[string]trace.Totals, charges []charge) { charges[2].units = 90_001 },
			"reservation c is charged 90001 estimated milli-units and held 90000",
		},
		"an open reservation": {
			func(_ *SiegeResult, _ map[string]trace.Totals, charges []charge) { charges[0].open = true },
			"reservation a is still open",
		},
		"a part that lacks a token": {
			func(r *SiegeResult, _ map[string]trace.Totals, _ []charge) { r.Counts[3].InputTokens-- },
			"bill has",
		},
		"a model meter that lacks a token": {
			func(r *SiegeResult, _ map[string]trace.Totals, _ []charge) { r.Counts[2].OutputTokens-- },
			"model meter has",
		},
		"a slot that was not given back": {
			func(r *SiegeResult, _ map[string]trace.Totals, _ []charge) { r.InFlight = 1 },
			"1 requests are in flight",
		},
		"units that are still held": {
			func(r *SiegeResult, _ map[string]trace.Totals, _ []charge) { r.Held = 7 },
			"7 is held",
		},
		"no answer at all": {
			func(r *SiegeResult, _ map[string]trace.Totals, _ []charge) { r.Clients.Answered = 0 },
			"no request was answered",
		},
	} {
		r, did, charges := siegeRun()
		c.spoil(r, did, charges)
		r.compare(did, charges)
		if r.Expected != totals(4, 61, 188) {
			t.Errorf("%s: expected became %+v", name, r.Expected)
		}
		if !strings.Contains(strings.Join(r.Differences, "\n"), c.says) {
			t.Errorf("%s: told as %q, want %q", name, r.Differences, c.says)
		}
	}
}

// door answers as a front door does whose other gateways die: the first attempt
// breaks, the second is told to wait, and the third is answered, or told that it
// was, in turn. Without a key there is one attempt.
type door struct {
	mu       sync.Mutex
	attempts map[string]int
	stop     chan struct{}
	once     sync.Once
}

func (d *door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/v1/quota/usage" {
		_, _ = io.WriteString(w, `{"limits":[]}`)
		return
	}
	body, _ := io.ReadAll(r.Body)
	key := r.Header.Get("Idempotency-Key")
	d.mu.Lock()
	if key != "" {
		d.attempts[key]++
	}
	n, keys := d.attempts[key], len(d.attempts)
	d.mu.Unlock()
	switch {
	case keys > 4:
		d.once.Do(func() { close(d.stop) })
		fallthrough
	case key != "" && n == 1:
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, "data: {}\n\n") // and no more: the connection breaks
	case n == 2:
		w.WriteHeader(http.StatusConflict)
	case n == 3 && keys%2 == 0:
		w.Header().Set("x-should-retry", "false")
		w.WriteHeader(http.StatusConflict)
	case !strings.Contains(string(body), `"stream":true`):
		_, _ = io.WriteString(w, `{}`)
	case r.URL.Path == "/v1/messages":
		_, _ = io.WriteString(w, "event: message_stop\ndata: {}\n\n")
	default:
		_, _ = io.WriteString(w, "data: [DONE]\n\n")
	}
}

func TestSiegeRepeatsWithItsKeyUntilItIsAnswered(t *testing.T) {
	t.Parallel()
	d := &door{attempts: map[string]int{}, stop: make(chan struct{})}
	server := httptest.NewServer(d)
	defer server.Close()
	s := &Siege{
		Gateways: []string{server.URL, server.URL}, Client: server.Client(), Workers: 1,
		fleet: &Fleet{Tenants: []Tenant{{ID: "siege-1", Secret: "k"}}},
	}
	if err := s.Drive(t.Context(), d.stop); err != nil {
		t.Fatal(err)
	}
	// Keys 0, 3, 6 and 9 broke once, waited once, and were answered or told so; 12
	// broke when the run was over.
	got := SiegeClients{
		Asked: s.met.asked.Load(), Answered: s.met.answered.Load(), Broken: s.met.broken.Load(), Refused: s.met.refused.Load(),
		Repeated: s.met.repeated.Load(), Already: s.met.already.Load(), Dropped: s.met.dropped.Load(),
	}
	want := SiegeClients{Asked: 13, Answered: 10, Broken: 5, Refused: 4, Repeated: 8, Already: 2, Dropped: 1}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// An answer that no killed process explains ends the drill.
func TestSiegeEndsAtAnAnswerThatNoKillExplains(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/quota/usage" {
			_, _ = io.WriteString(w, `{}`)
			return
		}
		http.Error(w, "who are you", http.StatusUnauthorized)
	}))
	defer server.Close()
	s := &Siege{Gateways: []string{server.URL}, Client: server.Client(), Workers: 3, fleet: &Fleet{Tenants: []Tenant{{ID: "siege-1"}}}}
	if err := s.Drive(t.Context(), make(chan struct{})); err == nil || !strings.Contains(err.Error(), "401 Unauthorized: who are you") {
		t.Errorf("got %v", err)
	}
}

func TestTheModelServersLogIsAddedUpByReservation(t *testing.T) {
	t.Parallel()
	log := `{"reservation":"a","tenant":"siege-1","input_tokens":5,"output_tokens":7,"end":"client_gone"}
{"reservation":"a","tenant":"siege-1","input_tokens":5,"output_tokens":1}
{"reservation":"b","tenant":"somebody","input_tokens":5,"output_tokens":1}
`
	s := &Siege{
		fleet: &Fleet{Tenants: []Tenant{{ID: "siege-1"}}},
		Log:   func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(log)), nil },
	}
	did, err := s.generated()
	if diff := cmp.Diff(map[string]trace.Totals{"a": totals(2, 10, 8)}, did); diff != "" || err != nil {
		t.Error(diff, err)
	}
	log += `{"reservation":"c"` // cut short
	if _, err := s.generated(); err == nil {
		t.Error("a log that is cut short was read")
	}
}

func TestWhatATenantHoldsIsReadFromItsUsage(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"limits":[{"name":"input-total","used":9,"held":40},{"name":"concurrency","used":3,"held":0},{"name":"output-total","used":9,"held":2}]}`)
	}))
	defer server.Close()
	u, err := (&Totals{Gateway: server.URL, Client: server.Client()}).usage(t.Context(), "k")
	if inFlight, held := u.open(); err != nil || inFlight != 3 || held != 40 {
		t.Errorf("%d in flight, %d held, %v; want 3 and 40", inFlight, held, err)
	}
}
