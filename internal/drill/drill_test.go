package drill

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"tollgate/internal/load"
	"tollgate/internal/testenv"
	"tollgate/internal/trace"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// drained has nothing left to do.
type drained struct{ reconciled int }

func (d *drained) Backlog(context.Context) (int64, error) { return 0, nil }
func (d *drained) Lag(context.Context) (int64, error)     { return 0, nil }
func (d *drained) Reconcile(context.Context) error        { d.reconciled++; return nil }

// counting is a gateway that keeps the totals and no log: what it says is
// right, and nothing of it arrives anywhere else.
func counting(t *testing.T) *httptest.Server {
	var mu sync.Mutex
	used := map[string]map[string]int64{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		key := r.Header.Get("Authorization")
		if used[key] == nil {
			used[key] = map[string]int64{}
		}
		var body struct {
			RequestID    string `json:"request_id"`
			InputTokens  int64  `json:"input_tokens"`
			OutputTokens int64  `json:"output_tokens"`
		}
		if r.Method == http.MethodPost {
			if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
				t.Error(err)
			}
		}
		switch {
		case r.URL.Path == "/v1/quota/usage":
			type limit struct {
				Name string `json:"name"`
				Used int64  `json:"used"`
			}
			limits := []limit{}
			for name, n := range used[key] {
				limits = append(limits, limit{name, n})
			}
			if err := json.NewEncoder(w).Encode(map[string]any{"limits": limits}); err != nil {
				t.Error(err)
			}
			return
		case r.URL.Path == "/v1/reservations":
			used[key][requestsLimit]++
			w.WriteHeader(http.StatusCreated)
		case strings.HasSuffix(r.URL.Path, "/settle"):
			used[key][inputLimit] += body.InputTokens
			used[key][outputLimit] += body.OutputTokens
		}
		_, _ = io.WriteString(w, `{"reservation_id":"rsv_`+body.RequestID+`"}`)
	}))
	t.Cleanup(server.Close)
	return server
}

// Every part that has not what the trace says is a difference, and names
// itself; the one that has it is none.
func TestDrillFindsWhatDiffers(t *testing.T) {
	t.Parallel()
	pool := testenv.Postgres(t)
	gateway := counting(t)
	fleet, err := Setup(t.Context(), pool, 2)
	if err != nil {
		t.Fatal(err)
	}
	if len(fleet.Tenants) != 2 || fleet.MeterKey == "" || fleet.OperatorKey == "" {
		t.Fatalf("fleet %+v", fleet)
	}
	requests := []trace.Request{{InputTokens: 100, OutputTokens: 10}, {InputTokens: 200, OutputTokens: 20}, {InputTokens: 300, OutputTokens: 30}}
	backend := &drained{}
	d := &Drill{
		Pool: pool, Backend: backend, Fleet: fleet, Plan: load.NewPlan("d", 1, 2, load.Mix{}, requests), Gateways: []string{gateway.URL},
		Client: gateway.Client(), Workers: 2, Patience: 5 * time.Second, DrainTimeout: 5 * time.Second, Note: func(string, ...any) {},
	}
	result, err := d.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := trace.Totals{Requests: 3, InputTokens: 600, OutputTokens: 60}
	if result.Expected != want || result.Counts[0].Totals != want {
		t.Errorf("expected %+v, gateway %+v, want both %+v", result.Expected, result.Counts[0].Totals, want)
	}
	if len(result.Counts) != 6 || len(result.Differences) != 5 {
		t.Fatalf("%d counts, differences %q; want all but the gateway", len(result.Counts), result.Differences)
	}
	for i, c := range result.Counts[1:] {
		if c.Totals != (trace.Totals{}) || !strings.HasPrefix(result.Differences[i], c.Part+" has ") {
			t.Errorf("%+v is told as %q", c, result.Differences[i])
		}
	}
	// A second set-up on the same database is the same tenants with new keys.
	again, err := Setup(t.Context(), pool, 2)
	if err != nil || again.Tenants[0].ID != fleet.Tenants[0].ID || again.Tenants[0].Secret == fleet.Tenants[0].Secret {
		t.Errorf("second set-up: %v", err)
	}
}

// What has not come to its end within the time is told with what is open.
func TestDrillGivesUpOnWhatDoesNotEnd(t *testing.T) {
	t.Parallel()
	pool := testenv.Postgres(t)
	backend := &drained{}
	if _, err := pool.Exec(t.Context(), `
		INSERT INTO reservations (reservation_id, tenant_id, request_id, key_id, endpoint, model, seq, state, weight_milli, held_milli_units,
			input_tokens, output_tokens, cached_input_tokens, reasoning_tokens, tool_calls, images, audio_ms, gpu_ms, milli_units, estimated,
			first_event_at, last_event_at, expires_at)
		VALUES ('r', 'acme', 'r', '', 'chat', 'm', 1, 'held', 1000, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, false, now(), now(), now())`); err != nil {
		t.Fatal(err)
	}
	d := &Drill{Pool: pool, Backend: backend, DrainTimeout: 50 * time.Millisecond}
	err := d.drain(t.Context())
	if err == nil || !strings.Contains(err.Error(), "1 reservations are open") || backend.reconciled == 0 {
		t.Errorf("got %v after %d reconciliations", err, backend.reconciled)
	}
}
