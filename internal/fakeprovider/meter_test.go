package fakeprovider

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidwall/gjson"
)

// receiver is a gateway that takes readings, or not.
type receiver struct {
	mu       sync.Mutex
	calls    int
	readings map[string]gjson.Result // by id
	repeated int
	fail     func(call int, body gjson.Result) int // status instead of taking it; 0 takes it
	lose     func(call int) bool                   // takes it, and the answer is lost
}

func (g *receiver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	batch := gjson.ParseBytes(body)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.calls++
	if r.URL.Path != "/v1/meters" || r.Header.Get("Authorization") != "Bearer key" || len(batch.Get("readings").Array()) > 256 {
		w.WriteHeader(http.StatusTeapot)
		return
	}
	if g.fail != nil {
		if status := g.fail(g.calls, batch); status != 0 {
			w.WriteHeader(status)
			return
		}
	}
	for _, reading := range batch.Get("readings").Array() {
		id := reading.Get("id").Str
		if _, again := g.readings[id]; again {
			g.repeated++
		}
		g.readings[id] = reading
	}
	if g.lose != nil && g.lose(g.calls) {
		panic(http.ErrAbortHandler)
	}
	w.WriteHeader(http.StatusAccepted)
}

func startReceiver(t *testing.T) (*receiver, *httptest.Server) {
	t.Helper()
	g := &receiver{readings: map[string]gjson.Result{}}
	server := httptest.NewServer(g)
	t.Cleanup(server.Close)
	return g, server
}

func meteredBy(gateway *httptest.Server) MeterOptions {
	return MeterOptions{URL: gateway.URL, Key: "key", Pool: "fake", Every: time.Millisecond}
}

func metered(t *testing.T, s *Server, tenant, reservation string, more ...string) {
	t.Helper()
	header := append([]string{"X-Tollgate-Tenant", tenant, "X-Tollgate-Reservation", reservation, "X-Request-Id", "req-" + reservation}, more...)
	send(t, s.URL()+chatPath, chatPlain, header...)
}

// A receiver that fails, and one that takes a batch and loses its answer, get
// every reading once under its id.
func TestMetersExactlyOnce(t *testing.T) {
	t.Parallel()
	g, gateway := startReceiver(t)
	g.fail = func(call int, _ gjson.Result) int {
		return []int{0, 503, 0, 401, 0, 500, 429}[call%7]
	}
	g.lose = func(call int) bool { return call%2 == 0 }
	s := New(Options{Meters: meteredBy(gateway)})
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	const n = 300
	var wait sync.WaitGroup
	for worker := range 10 {
		wait.Go(func() {
			for i := worker; i < n; i += 10 {
				metered(t, s, "acme", fmt.Sprintf("rsv_%d", i))
			}
		})
	}
	wait.Wait()
	eventually(t, "all records", func() bool { return len(s.Records()) == n })
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := s.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	if got := s.Totals().Meters; got.Made != 2*n || got.Accepted != 2*n || got.Pending != 0 || got.Refused != 0 || got.Retries == 0 {
		t.Errorf("totals %+v", got)
	}
	if g.repeated == 0 {
		t.Error("no reading came twice: the test lost no answer")
	}
	var model, gpu, input, output, millis int64
	for _, r := range g.readings {
		if r.Get("tenant_id").Str != "acme" || r.Get("request_id").Str != "req-"+r.Get("reservation_id").Str ||
			r.Get("pool").Str != "fake" || r.Get("model").Str != "m" || !r.Get("final").Bool() || r.Get("to").Time().Before(r.Get("from").Time()) {
			t.Fatalf("reading %s", r.Raw)
		}
		switch r.Get("kind").Str {
		case "model":
			model++
			input += r.Get("input_tokens").Int()
			output += r.Get("output_tokens").Int()
		case "gpu":
			gpu++
			millis += r.Get("gpu_ms").Int()
		}
	}
	want := s.Totals()
	if model != n || gpu != n || input != want.Input || output != want.Output || millis != want.GPUMS || input != 8*n || output != 20*n {
		t.Errorf("%d and %d readings of %d, %d tokens and %d ms; the log has %+v", model, gpu, input, output, millis, want.Totals)
	}
}

// A second attempt under one reservation adds to the first, because readings
// say what a reservation used so far.
func TestMetersAddUpAReservation(t *testing.T) {
	t.Parallel()
	g, gateway := startReceiver(t)
	s := start(t, Options{Meters: meteredBy(gateway)})
	metered(t, s, "acme", "rsv_1", HeaderFault, "503") // used nothing: no reading, and no end
	metered(t, s, "acme", "rsv_1", HeaderFault, "cut=100")
	metered(t, s, "acme", "rsv_1")
	metered(t, s, "", "rsv_2") // whose?
	metered(t, s, "Not A Tenant", "rsv_3")
	metered(t, s, "acme", "not a reservation")
	eventually(t, "the readings", func() bool { return s.Totals().Meters.Accepted == 4 && len(s.Records()) == 6 })
	if made := s.Totals().Meters.Made; made != 4 {
		t.Errorf("%d readings were made, want 4", made)
	}
	var highest int64
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, r := range g.readings {
		highest = max(highest, r.Get("output_tokens").Int())
	}
	if highest != 40 {
		t.Errorf("the reservation used %d output tokens, want 40", highest)
	}
}

// One reading that the gateway refuses for good does not hold up the others.
func TestMetersRefused(t *testing.T) {
	t.Parallel()
	g, gateway := startReceiver(t)
	g.fail = func(_ int, batch gjson.Result) int {
		if strings.Contains(batch.Raw, `"tenant_id":"unknown"`) {
			return http.StatusUnprocessableEntity
		}
		return 0
	}
	s := start(t, Options{Meters: MeterOptions{URL: gateway.URL, Key: "key", Every: 20 * time.Millisecond}})
	for i := range 20 {
		tenant := "acme"
		if i == 7 {
			tenant = "unknown"
		}
		metered(t, s, tenant, fmt.Sprintf("rsv_%d", i))
	}
	eventually(t, "the end", func() bool { m := s.Totals().Meters; return m.Accepted == 38 && m.Refused == 2 && m.Pending == 0 })
}

// What could not be reported is said at the end.
func TestMetersLeft(t *testing.T) {
	t.Parallel()
	g, gateway := startReceiver(t)
	g.fail = func(int, gjson.Result) int { return http.StatusServiceUnavailable }
	s := New(Options{Meters: meteredBy(gateway)})
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	metered(t, s, "acme", "rsv_1")
	eventually(t, "a failure", func() bool { return s.Totals().Meters.Retries > 0 })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := s.Stop(ctx); err == nil || !strings.Contains(err.Error(), "2 meter readings") {
		t.Errorf("got %v", err)
	}
	if err := s.Stop(ctx); err != nil {
		t.Errorf("the second time: %v", err)
	}
}

func TestLog(t *testing.T) {
	t.Parallel()
	var file bytes.Buffer
	s := start(t, Options{LogFile: &file, LogLimit: 3})
	for range 5 {
		metered(t, s, "acme", "rsv_1")
	}
	eventually(t, "five records", func() bool { return s.Totals().Requests == 5 })
	lines := strings.Split(strings.TrimSpace(get(t, s.URL()+"/fake/log?since=3").body), "\n")
	if len(s.Records()) != 3 || len(lines) != 2 || gjson.Get(lines[1], "sequence").Int() != 5 {
		t.Errorf("%d records kept; since 3: %v", len(s.Records()), lines)
	}
	if got := gjson.Get(lines[0], "@this").Get("output_tokens").Int(); got != 20 {
		t.Errorf("a line is %s", lines[0])
	}
	totals := get(t, s.URL()+"/fake/totals").body
	if gjson.Get(totals, "output_tokens").Int() != 100 || gjson.Get(totals, "by_tenant.acme.input_tokens").Int() != 40 ||
		gjson.Get(totals, "by_model.m.requests").Int() != 5 || gjson.Get(totals, "running").Int() != 0 {
		t.Errorf("totals %s", totals)
	}
	s.log.mu.Lock()
	written := strings.Split(strings.TrimSpace(file.String()), "\n")
	s.log.mu.Unlock()
	for i, line := range written {
		var r Record
		if err := json.Unmarshal([]byte(line), &r); err != nil || r.Sequence != int64(i+1) || r.Reservation != "rsv_1" || r.Output != 20 {
			t.Errorf("line %d: %v %s", i, err, line)
		}
	}
	if len(written) != 5 {
		t.Errorf("%d lines", len(written))
	}
	s.ResetLog()
	if got := s.Totals(); got.Requests != 0 || len(s.Records()) != 0 {
		t.Errorf("after the reset: %+v", got)
	}
}
