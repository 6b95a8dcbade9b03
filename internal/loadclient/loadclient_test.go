package loadclient

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func next(path string) func(int, []byte) []byte {
	return func(_ int, buf []byte) []byte {
		return AppendRequest(buf, "POST", path, "test", "Bearer x", []byte(`{"a":1}`))
	}
}

func serve(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return srv.Listener.Addr().String()
}

func TestClosedLoopCountsEveryAnswerOnce(t *testing.T) {
	var got atomic.Int64
	addr := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if string(body) != `{"a":1}` || r.Header.Get("Authorization") != "Bearer x" {
			w.WriteHeader(400)
			return
		}
		switch got.Add(1) % 3 {
		case 0:
			w.WriteHeader(http.StatusTooManyRequests)
		case 1: // chunked: flushed before its end
			_, _ = io.WriteString(w, strings.Repeat("x", 3000))
			w.(http.Flusher).Flush()
			_, _ = io.WriteString(w, "end")
		default:
			w.WriteHeader(http.StatusNoContent)
		}
	})
	var long atomic.Int64
	res, err := Run(context.Background(), Options{
		Addr: addr, Conns: 4, Requests: 300, Next: next("/"),
		Done: func(_, status int, body []byte) {
			if status == 200 && len(body) == 3003 && strings.HasSuffix(string(body), "xend") {
				long.Add(1)
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if res.Sent != 300 || got.Load() != 300 || res.Errors != 0 || res.Latency.Count() != 300 {
		t.Fatalf("sent %d, served %d, errors %d (%v), timed %d; want 300, 300, 0, 300",
			res.Sent, got.Load(), res.Errors, res.LastErr, res.Latency.Count())
	}
	if res.ByStatus[200] != 100 || res.ByStatus[204] != 100 || res.ByStatus[429] != 100 || long.Load() != 100 {
		t.Fatalf("by status %v, %d whole chunked bodies; want 100 each", res.ByStatus, long.Load())
	}
}

// An open loop charges a stall to every request that was due during it.
func TestOpenLoopMeasuresFromTheIntendedTime(t *testing.T) {
	const stall = 300 * time.Millisecond
	var n atomic.Int64
	addr := serve(t, func(http.ResponseWriter, *http.Request) {
		if n.Add(1) == 1 {
			time.Sleep(stall)
		}
	})
	res, err := Run(context.Background(), Options{Addr: addr, Conns: 1, Rate: 100, Requests: 30, Next: next("/")})
	if err != nil {
		t.Fatal(err)
	}
	if res.Answers() != 30 {
		t.Fatalf("answers %d (%v), want 30", res.Answers(), res.LastErr)
	}
	// Requests 1..15 were due in the first half of the stall and waited at
	// least its other half; by service time only the first one did.
	if got := res.Latency.Quantile(0.55); got < stall/2-20*time.Millisecond {
		t.Errorf("p55 from the intended time is %v, want at least about %v", got, stall/2)
	}
	if res.Latency.Mean() <= res.Service.Mean() {
		t.Errorf("mean latency %v is not above mean service time %v", res.Latency.Mean(), res.Service.Mean())
	}
}

func TestConnectionsThatBreakAreCountedAndReplaced(t *testing.T) {
	var n atomic.Int64
	addr := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		switch n.Add(1) % 4 {
		case 1:
			conn, _, _ := w.(http.Hijacker).Hijack()
			_ = conn.Close()
		case 2:
			w.Header().Set("Connection", "close")
		}
	})
	res, err := Run(context.Background(), Options{Addr: addr, Conns: 1, Requests: 40, Next: next("/")})
	if err != nil {
		t.Fatal(err)
	}
	if res.Errors != 10 || res.ByStatus[200] != 30 || res.LastErr == nil {
		t.Fatalf("errors %d (%v), answers %v; want 10 errors and 30 × 200", res.Errors, res.LastErr, res.ByStatus)
	}
}

func TestTimeoutsCountAsErrors(t *testing.T) {
	release := make(chan struct{})
	addr := serve(t, func(http.ResponseWriter, *http.Request) { <-release })
	res, err := Run(context.Background(), Options{
		Addr: addr, Conns: 1, Requests: 1, Next: next("/"), Timeout: 30 * time.Millisecond,
	})
	close(release)
	if err != nil {
		t.Fatal(err)
	}
	if res.Errors != 1 || res.Answers() != 0 {
		t.Fatalf("errors %d, answers %d; want 1, 0", res.Errors, res.Answers())
	}
}

func TestNextMayRetireAConnection(t *testing.T) {
	for name, rate := range map[string]int{"closed": 0, "open": 5000} {
		t.Run(name, func(t *testing.T) {
			addr := serve(t, func(http.ResponseWriter, *http.Request) {})
			var left atomic.Int64
			left.Store(10)
			res, err := Run(context.Background(), Options{
				Addr: addr, Conns: 2, Rate: rate, Duration: time.Minute,
				Next: func(conn int, buf []byte) []byte {
					if left.Add(-1) < 0 {
						return nil
					}
					return next("/")(conn, buf)
				},
			})
			if err != nil || res.Answers() != 10 {
				t.Fatalf("answers %d, %v; want 10", res.Answers(), err)
			}
		})
	}
}

func TestRunRefusesWhatMakesNoSense(t *testing.T) {
	for _, opts := range []Options{
		{Conns: 1, Requests: 1},
		{Conns: 0, Requests: 1, Next: next("/")},
		{Conns: 1, Next: next("/")},
		{Conns: 1, Requests: 1, Rate: -1, Next: next("/")},
		{Addr: "127.0.0.1:1", Conns: 1, Requests: 1, Next: next("/")},
	} {
		if _, err := Run(context.Background(), opts); err == nil {
			t.Errorf("%+v: no error", opts)
		}
	}
}

func TestBadFramingIsAnError(t *testing.T) {
	for _, in := range []string{
		"", "HTTP/1.1 2", "hello world, friend\r\n\r\n", "HTTP/1.1 999 x\r\n\r\n",
		"HTTP/1.1 200 OK\r\nno colon\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
	} {
		var scratch []byte
		if a, err := parse([]byte(in), true, &scratch); err == nil {
			t.Errorf("%q: status %d and no error", in, a.status)
		}
	}
}

func TestInterimAnswersAreSkipped(t *testing.T) {
	var scratch []byte
	in := "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Created\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok"
	a, err := parse([]byte(in), false, &scratch)
	if a.status != 201 || a.keep || err != nil || string(a.body) != "ok" || a.size != len(in) {
		t.Fatalf("%+v, body %q, %v", a, a.body, err)
	}
}

// An answer that came in part is waited for, whatever the part.
func TestAnswersInPiecesAreWaitedFor(t *testing.T) {
	var scratch []byte
	for _, in := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
		"HTTP/1.1 204 No Content\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\nA: b\r\n\r\n",
	} {
		for cut := range len(in) {
			if a, err := parse([]byte(in[:cut]), false, &scratch); !errors.Is(err, errMore) {
				t.Errorf("%q: %+v, %v", in[:cut], a, err)
			}
		}
		if a, err := parse([]byte(in+"next"), false, &scratch); err != nil || a.size != len(in) || a.status == 200 && string(a.body) != "hello" {
			t.Errorf("%q: %+v, %v", in, a, err)
		}
	}
	whole := "HTTP/1.1 200 OK\r\n\r\nuntil the end"
	if _, err := parse([]byte(whole), false, &scratch); !errors.Is(err, errMore) {
		t.Error("a body without length ended before its connection:", err)
	}
	if a, err := parse([]byte(whole), true, &scratch); err != nil || a.keep || string(a.body) != "until the end" {
		t.Errorf("%+v, %v", a, err)
	}
}

// A server may close a connection between requests: that is no error.
func TestConnectionsThatCloseBetweenRequests(t *testing.T) {
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	srv.Config.IdleTimeout = time.Millisecond
	srv.Start()
	defer srv.Close()
	res, err := Run(context.Background(), Options{Addr: srv.Listener.Addr().String(), Conns: 2, Rate: 100, Requests: 20, Next: next("/")})
	if err != nil || res.Answers()+res.Errors != 20 || res.Answers() < 10 {
		t.Fatalf("%d answers, %d errors (%v), %v; want 20, most of them answers", res.Answers(), res.Errors, res.LastErr, err)
	}
}

// A run ends when its context does, and when its server has gone.
func TestRunsEnd(t *testing.T) {
	for name, rate := range map[string]int{"closed": 0, "open": 5000} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(context.Background())
			var n atomic.Int64
			addr := serve(t, func(http.ResponseWriter, *http.Request) {
				if n.Add(1) == 10 {
					cancel()
				}
			})
			res, err := Run(ctx, Options{Addr: addr, Conns: 2, Rate: rate, Duration: time.Minute, Next: next("/")})
			if err != nil || res.Answers() < 10 || res.Elapsed > 30*time.Second {
				t.Errorf("cancelled: %d answers in %v, %v", res.Answers(), res.Elapsed, err)
			}

			srv := httptest.NewUnstartedServer(nil)
			srv.Config.Handler = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
				_ = srv.Listener.Close()
				panic(http.ErrAbortHandler)
			})
			srv.Start()
			defer srv.Close()
			res, err = Run(context.Background(), Options{Addr: srv.Listener.Addr().String(), Conns: 2, Rate: rate, Requests: 6, Next: next("/")})
			if err != nil || res.Answers() != 0 || res.Errors < 5 {
				t.Errorf("server gone: %d answers, %d errors, %v", res.Answers(), res.Errors, err)
			}
		})
	}
}

// Quantiles lie within a thousandth above the true nearest-rank ones.
func TestHistogramQuantiles(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.Int64Range(0, int64(100*time.Second)), 1, 200).Draw(t, "values")
		q := rapid.Float64Range(0.001, 1).Draw(t, "q")
		h := NewHistogram()
		for _, v := range values {
			h.Record(time.Duration(v))
		}
		slices.Sort(values)
		rank := 0
		for rank < len(values)-1 && float64(rank+1) < q*float64(len(values)) {
			rank++
		}
		want, got := values[rank], int64(h.Quantile(q))
		if got < want || got > want+want/1000+1 {
			t.Fatalf("quantile %v of %v = %d, want %d", q, values, got, want)
		}
		if int64(h.Max()) != values[len(values)-1] {
			t.Fatalf("max %v", h.Max())
		}
	})
}

func BenchmarkClosedLoop(b *testing.B) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = w.Write([]byte("{}"))
	})}
	go func() { _ = srv.Serve(ln) }()
	defer func() { _ = srv.Close() }()
	res, err := Run(context.Background(), Options{Addr: ln.Addr().String(), Conns: 64, Requests: int64(b.N), Next: next("/")})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(res.PerSecond(), "req/s")
	b.ReportMetric(float64(res.Latency.Quantile(0.99).Microseconds()), "p99-µs")
}
