package hop

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"tollgate/internal/benchupstream"
	"tollgate/internal/loadclient"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func upstream(t *testing.T) *benchupstream.Server {
	t.Helper()
	s, err := benchupstream.New("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s
}

// at is a hop on addr whose held streams are short enough for a test.
func at(addr string) Target {
	return Target{Addr: addr, Root: os.Getpid(), Requests: func(p Pace, stream bool) [][]byte {
		if p == Held {
			p = "/every-25ms/chunks-40"
		}
		return [][]byte{loadclient.AppendRequest(nil, http.MethodPost, p.Path(), addr, "", Body("m", stream))}
	}}
}

func TestLoadsGiveTheirFigures(t *testing.T) {
	s := upstream(t)
	var names []string
	for _, load := range Loads {
		figures, err := load.Run(t.Context(), Direct(s.Addr()), at(s.Addr()), Options{Each: 200 * time.Millisecond, Rounds: 2})
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range figures {
			names = append(names, f.Name)
			// Nothing stands between: what is added is near zero, on either side of it.
			if !strings.Contains(f.Name, "added") && f.Value < 0 || f.Baseline != nil && *f.Baseline <= 0 {
				t.Errorf("%+v", f)
			}
			if f.Name == "streams_open" && f.Value != heldStreams {
				t.Errorf("%v streams were open at once, want %d", f.Value, heldStreams)
			}
		}
	}
	want := []string{
		"idle_cpu_ms_per_s", "stream_rss_kib", "streams_open", "200rps_added_p50_ms", "200rps_added_p99_ms",
		"50rps_added_p50_ms", "50rps_added_p99_ms", "50rps_cpu_ms", "32_rps", "saturated_cpu_ms",
		"stream_ttft_added_ms", "streams_per_s", "stream_cpu_ms",
	}
	if !slices.Equal(names, want) {
		t.Errorf("figures %q, want %q", names, want)
	}
	if !benchupstream.Healthy(t.Context(), s.Addr()) { // it has counted what it sent before it answers this
		t.Error("the model server does not answer")
	}
	http.DefaultClient.CloseIdleConnections()
	got := s.Stats()
	if got.Cut != 0 || got.Refused != 0 || got.Streams*chunks != got.Chunks {
		t.Errorf("the model server's count %+v: nothing may be cut or refused", got)
	}
}

// What a hop adds is told apart from what the model server takes.
func TestWhatAHopAdds(t *testing.T) {
	s := upstream(t)
	const pause = 15 * time.Millisecond
	hop := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(pause)
		res, err := http.Post("http://"+s.Addr()+r.URL.Path, "application/json", r.Body)
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		defer func() { _ = res.Body.Close() }()
		_, _ = io.Copy(w, res.Body)
	}))
	defer http.DefaultClient.CloseIdleConnections()
	defer hop.Close()
	figures, err := open50(t.Context(), Direct(s.Addr()), at(hop.Listener.Addr().String()), Options{Each: 500 * time.Millisecond, Rounds: 1})
	if err != nil {
		t.Fatal(err)
	}
	if f := figures[0]; f.Value < millis(pause) || *f.Baseline < 20 {
		t.Errorf("%s = %.2f above %.2f, want at least 15 above at least 20", f.Name, f.Value, *f.Baseline)
	}
}

// A hop that refuses, or loses a part of a stream, is not fast: it fails.
func TestWhatIsNotWholeFails(t *testing.T) {
	for name, answer := range map[string]struct {
		status int
		body   string
		want   string
	}{
		"refused": {http.StatusTooManyRequests, "", "map[429:"},
		"lost":    {http.StatusOK, "data: {}\n\ndata: [DONE]\n\n", "some are lost"},
		"cut":     {http.StatusOK, strings.Repeat("data: {}\n\n", chunks), "before its end marker"},
	} {
		t.Run(name, func(t *testing.T) {
			hop := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(answer.status)
				w.(http.Flusher).Flush()
				_, _ = io.WriteString(w, answer.body)
			}))
			defer hop.Close()
			err := at(hop.Listener.Addr().String()).Send(t.Context(), Prompt, true, 10)
			if err == nil || !strings.Contains(err.Error(), answer.want) {
				t.Errorf("%v, want %q in it", err, answer.want)
			}
		})
	}
}

func TestMiddle(t *testing.T) {
	for _, test := range []struct {
		values []float64
		want   float64
	}{{nil, 0}, {[]float64{3}, 3}, {[]float64{9, 1}, 5}, {[]float64{9, 1, 4}, 4}} {
		if got := middle(test.values); got != test.want {
			t.Errorf("middle(%v) = %v, want %v", test.values, got, test.want)
		}
	}
}

// A process and what it started are measured together, and end together.
func TestProcesses(t *testing.T) {
	p, err := Start("sh", []string{"-c", "echo hello; sh -c 'while :; do :; done' & wait"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Stop()
	var pids []int
	for len(pids) < 2 { // the test's own time-out ends it
		if pids, err = tree(p.PID()); err != nil {
			t.Fatal(err)
		}
	}
	for used := time.Duration(0); used < 20*time.Millisecond; { // of the child, which works
		if used, err = cpu(p.PID()); err != nil {
			t.Fatal(err)
		}
	}
	if kib, err := rss(p.PID()); err != nil || kib < 100 {
		t.Errorf("memory %v KiB, %v", kib, err)
	}
	p.Stop()
	p.Stop()
	if got := p.Output(); got != "hello\n" {
		t.Errorf("output %q", got)
	}
	for syscall.Kill(pids[1], 0) == nil { // its parent is init now, which takes a moment
		if data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pids[1])); err != nil || strings.Contains(string(data), ") Z ") {
			break
		}
	}
	if _, err := cpu(p.PID()); err == nil {
		t.Error("a process that has ended has processor time")
	}
	if used, err := cpu(0); used != 0 || err != nil {
		t.Errorf("no process: %v, %v", used, err)
	}
}

func TestAwait(t *testing.T) {
	ended := make(chan struct{})
	asked := 0
	if err := Await(t.Context(), ended, time.Minute, func(context.Context) bool { asked++; return asked == 2 }); err != nil || asked != 2 {
		t.Errorf("asked %d times, %v; want 2, nil", asked, err)
	}
	never := func(context.Context) bool { return false }
	if err := Await(t.Context(), ended, time.Millisecond, never); err == nil || !strings.Contains(err.Error(), "1ms") {
		t.Error(err)
	}
	close(ended)
	if err := Await(t.Context(), ended, time.Minute, never); err == nil || !strings.Contains(err.Error(), "ended") {
		t.Error(err)
	}
}
