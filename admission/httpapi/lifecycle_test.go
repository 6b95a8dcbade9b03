package httpapi

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tollgate/admission"
	"tollgate/internal/loadclient"
	"tollgate/tenancy"
)

// started is a fixture that listens.
func started(t *testing.T, change ...func(*Options)) (*fixture, string) {
	t.Helper()
	f := newFixture(t, change...)
	if err := f.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return f, f.Addr().String()
}

// scrape returns the value that /metrics shows for a series, as text.
func (f *fixture) scrape(series string) string {
	w := httptest.NewRecorder()
	f.adminHandler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for line := range strings.Lines(w.Body.String()) {
		if value, ok := strings.CutPrefix(line, series+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// eventually waits for a condition, and fails the test when it never holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for range 2000 {
		if holds() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("never: %s", what)
}

// speak sends raw bytes on a connection of its own and returns the answer.
func speak(t *testing.T, addr, raw string) (status int, header http.Header, body string) {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	// The server may answer and close before it has read everything.
	_, _ = io.WriteString(c, raw)
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	b, _ := io.ReadAll(res.Body)
	_ = res.Body.Close()
	return res.StatusCode, res.Header, string(b)
}

func reserveRaw(id string) string {
	body := strings.Replace(reserveJSON, "r1", id, 1)
	return string(loadclient.AppendRequest(nil, "POST", "/v1/reservations", "gateway", "Bearer "+keyAcme, []byte(body)))
}

func TestOverTheWire(t *testing.T) {
	f, addr := started(t)
	for i, r := range f.running {
		if s := r.server; s.ReadHeaderTimeout <= 0 || s.ReadTimeout <= 0 || s.WriteTimeout <= 0 || s.IdleTimeout <= 0 || s.MaxHeaderBytes <= 0 {
			t.Errorf("listener %d lets a client take for ever, or as much as it likes", i)
		}
	}
	status, header, body := speak(t, addr, reserveRaw("r1"))
	if status != 201 || header.Get("Content-Length") == "" || !strings.Contains(body, `"reservation_id":"rsv_`) {
		t.Errorf("%d %v %s", status, header, body)
	}
	status, _, _ = speak(t, addr, "POST /v1/reservations HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "+keyAcme+
		"\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"req\r\n"+
		fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(reserveJSON)-5, reserveJSON[5:]))
	if status != 200 {
		t.Errorf("the same in chunks: %d, want the replay", status)
	}
	huge := strings.Repeat("x", 70_000)
	status, _, body = speak(t, addr, "POST /v1/reservations HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "+keyAcme+
		"\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"+fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(huge), huge))
	if status != 413 || !strings.Contains(body, "body_too_large") {
		t.Errorf("too much in chunks: %d %s", status, body)
	}
	if status, _, _ = speak(t, addr, "GET /healthz HTTP/1.1\r\nHost: x\r\nX-Long: "+strings.Repeat("y", 64<<10)+"\r\n\r\n"); status != 431 {
		t.Errorf("a long header: %d, want 431", status)
	}
	if status, _, _ = speak(t, addr, "GET /"+strings.Repeat("y", 64<<10)+" HTTP/1.1\r\nHost: x\r\n\r\n"); status != 431 {
		t.Errorf("a very long URL: %d, want 431", status)
	}
	if status, _, _ = speak(t, addr, "POST /v1/reservations HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"); status == 201 || status == 200 {
		t.Errorf("two lengths: %d", status)
	}
	for range 2 { // the buffers of a refused request serve the next one
		if status, _, body = speak(t, addr, reserveRaw("r2")); status != 201 && status != 200 {
			t.Errorf("%d %s", status, body)
		}
	}
	// Metrics and health are on a listener of their own, and not on this one.
	if status, _, _ = speak(t, addr, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"); status != 404 {
		t.Errorf("metrics for everybody: %d", status)
	}
	// A request is counted after it was answered.
	eventually(t, "metrics that count what was asked", func() bool {
		res, err := http.Get("http://" + f.AdminAddr().String() + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		metrics, err := io.ReadAll(res.Body)
		_ = res.Body.Close() // read to its end
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{
			`tollgate_http_requests_total{route="/v1/reservations",status="201"} 2`,
			`tollgate_http_requests_total{route="/v1/reservations",status="413"} 1`,
			`tollgate_http_request_duration_seconds_count{route="/v1/reservations"}`,
			`tollgate_http_requests_in_flight`,
		} {
			if !strings.Contains(string(metrics), want) {
				return false
			}
		}
		return true
	})
	http.DefaultClient.CloseIdleConnections()
}

func TestRefusalsAreCounted(t *testing.T) {
	f := newFixture(t)
	f.store.failWith(&admission.Refusal{Constraint: limit("L3", tenancy.KindLease, tenancy.ScopeTenant), Reason: admission.ReasonConcurrency})
	for range 3 {
		f.ask("POST", "/v1/reservations", keyAcme, reserveJSON)
	}
	if n := f.scrape(`tollgate_http_refusals_total{layer="L3",reason="concurrency_exhausted"}`); n != "3" {
		t.Errorf("counted %q, want 3", n)
	}
}

// TestClientsThatLeaveLeaveNothing: clients go away while they send, while the
// store decides, and while the answer is written; nothing stays in flight, and
// the settle of one that left is still recorded.
func TestClientsThatLeaveLeaveNothing(t *testing.T) {
	const clients = 200
	f, addr := started(t)
	path := f.reserved(t)
	deciding := make(chan struct{}, clients)
	var leftEarly atomic.Int64
	f.store.hook = func(ctx context.Context, op string) error {
		if op != "reserve" {
			return nil
		}
		deciding <- struct{}{}
		<-ctx.Done() // the store learns that the client is gone
		if errors.Is(ctx.Err(), context.Canceled) {
			leftEarly.Add(1)
		}
		return ctx.Err()
	}
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			c, err := net.Dial("tcp", addr)
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = c.Close() }()
			raw := reserveRaw(fmt.Sprint("gone-", i))
			if i%2 == 0 { // in the middle of the request
				_, _ = io.WriteString(c, raw[:rand.IntN(len(raw)-1)+1])
				return
			}
			_, _ = io.WriteString(c, raw)
			<-deciding
		})
	}
	wg.Wait()
	eventually(t, "nothing in flight", func() bool { return f.metrics.inFlight.Load() == 0 && leftEarly.Load() == clients/2 })

	// A settle counts though its sender leaves before the store is done.
	reached, release := make(chan struct{}), make(chan struct{})
	var settleErr error
	f.store.mu.Lock()
	f.store.hook = func(ctx context.Context, _ string) error {
		close(reached)
		<-release
		settleErr = ctx.Err()
		return settleErr
	}
	f.store.mu.Unlock()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = c.Write(loadclient.AppendRequest(nil, "POST", path+"/settle", "gateway", "Bearer "+keyAcme, []byte(settleJSON)))
	<-reached
	_ = c.Close()
	gone := f.scrape(`tollgate_http_requests_total{route="/v1/reservations",status="499"}`)
	close(release)
	eventually(t, "the settle is done", func() bool { return f.metrics.inFlight.Load() == 0 })
	f.store.mu.Lock()
	defer f.store.mu.Unlock()
	for _, r := range f.store.byID {
		if r.res.State != "settled" || settleErr != nil {
			t.Errorf("the settle of a client that left: %s, context %v", r.res.State, settleErr)
		}
	}
	if gone != fmt.Sprint(clients/2) {
		t.Errorf("%q requests counted as left by their client, want %d", gone, clients/2)
	}
}

// TestStopDrains: a request under way is answered, new connections are refused,
// Stop returns after that and may be called again.
func TestStopDrains(t *testing.T) {
	f := newFixture(t)
	if err := f.Start(); err != nil {
		t.Fatal(err)
	}
	if err := f.Start(); err == nil {
		t.Error("started twice")
	}
	addr := f.Addr().String()
	deciding, release := make(chan struct{}), make(chan struct{})
	f.store.hook = func(context.Context, string) error {
		close(deciding)
		<-release
		return nil
	}
	answer := make(chan int)
	go func() {
		status, _, _ := speak(t, addr, reserveRaw("r1"))
		answer <- status
	}()
	<-deciding
	stopped := make(chan error)
	go func() { stopped <- f.Stop(context.Background()) }()
	eventually(t, "the listener is closed", func() bool {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			_ = c.Close()
		}
		return err != nil
	})
	select {
	case err := <-stopped:
		t.Fatalf("stopped with a request under way: %v", err)
	default:
	}
	close(release)
	if status := <-answer; status != 201 {
		t.Errorf("the request under way got %d", status)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	if err := f.Stop(context.Background()); err != nil {
		t.Error("a second stop:", err)
	}
}

// TestStopGivesUpOnTheStuck: what does not end in time is cut, and said.
func TestStopGivesUpOnTheStuck(t *testing.T) {
	f := newFixture(t, func(o *Options) { o.DrainTimeout, o.RequestTimeout = 50*time.Millisecond, time.Hour })
	if err := f.Start(); err != nil {
		t.Fatal(err)
	}
	deciding := make(chan struct{})
	f.store.hook = func(ctx context.Context, _ string) error {
		close(deciding)
		<-ctx.Done()
		return ctx.Err()
	}
	c, err := net.Dial("tcp", f.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	_, _ = io.WriteString(c, reserveRaw("r1"))
	<-deciding
	if err := f.Stop(context.Background()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("stop: %v, want a deadline", err)
	}
	eventually(t, "nothing in flight", func() bool { return f.metrics.inFlight.Load() == 0 })
}

func TestDecisionsAreBounded(t *testing.T) {
	f := newFixture(t, func(o *Options) { o.RequestTimeout = 10 * time.Millisecond })
	f.store.hook = func(ctx context.Context, _ string) error {
		<-ctx.Done()
		return ctx.Err()
	}
	for _, r := range []struct{ method, path, body string }{
		{"POST", "/v1/reservations", reserveJSON}, {"POST", "/v1/requests/r1/cancel", "{}"}, {"GET", "/v1/quota/usage", ""},
	} {
		w := f.ask(r.method, r.path, keyAcme, r.body)
		if p := problemIn(t, w.Body.Bytes()); w.Code != 503 || p.Reason != "timeout" || w.Header().Get("Retry-After") != "1" {
			t.Errorf("%s: %d %+v", r.path, w.Code, p)
		}
	}
}

func TestNewAndStartRefuse(t *testing.T) {
	if _, err := New(Options{}); err == nil {
		t.Error("no store and no directory")
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	for _, change := range []func(*Options){
		func(o *Options) { o.Listen = taken.Addr().String() },
		func(o *Options) { o.AdminListen = taken.Addr().String() },
	} {
		f := newFixture(t, change)
		if err := f.Start(); err == nil {
			t.Error("an address that is taken")
		}
		if f.Addr() != nil {
			t.Error("half started")
		}
	}
	f := newFixture(t, func(o *Options) { o.Listen, o.AdminListen = "", "-" })
	if f.opts.Listen != "127.0.0.1:8080" {
		t.Errorf("listens on %s by default", f.opts.Listen)
	}
}

// TestNoSecretsInTheLog, at any level.
func TestNoSecretsInTheLog(t *testing.T) {
	var log strings.Builder
	f := newFixture(t, func(o *Options) {
		o.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	path := f.reserved(t)
	f.ask("POST", path+"/settle", keyAcme, settleJSON)
	f.ask("POST", "/v1/reservations", keyRevoked, reserveJSON)
	f.ask("POST", "/v1/reservations", "tgk_garbage.secret", reserveJSON)
	if strings.Contains(log.String(), "secret") {
		t.Errorf("a secret: %s", log.String())
	}
	for _, want := range []string{"tenant=acme", "request_id=r1", "key=tgk_acmeacmeacmeacme", "reservation=rsv_", "status=401"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("no %s in %s", want, log.String())
		}
	}
}

// TestManyClientsShareNothing: calls are reused under load; every answer must
// be its own request's.
func TestManyClientsShareNothing(t *testing.T) {
	_, addr := started(t)
	const conns = 32
	var last [conns]string
	var n [conns]int
	var wrong atomic.Int64
	res, err := loadclient.Run(context.Background(), loadclient.Options{
		Addr: addr, Conns: conns, Requests: 3000,
		Next: func(conn int, buf []byte) []byte {
			n[conn]++
			last[conn] = fmt.Sprintf("r-%d-%d", conn, n[conn])
			if n[conn]%7 == 0 { // refusals in between
				return loadclient.AppendRequest(buf, "POST", "/v1/reservations", addr, "Bearer "+keyAcme, []byte(`{"request_id":"`+last[conn]+`"}`))
			}
			return append(buf, reserveRaw(last[conn])...)
		},
		Done: func(conn, status int, body []byte) {
			want := 201
			if n[conn]%7 == 0 {
				want = 422
			} else if !strings.Contains(string(body), `"request_id":"`+last[conn]+`"`) {
				wrong.Add(1)
			}
			if status != want {
				wrong.Add(1)
			}
		},
	})
	if err != nil || res.Errors != 0 || wrong.Load() != 0 || res.Answers() != 3000 {
		t.Errorf("%d answers, %d wrong, %d errors (%v), %v", res.Answers(), wrong.Load(), res.Errors, res.LastErr, err)
	}
}

// TestDecisionsAreBoundedWhileTheWatchRests: a decision wakes it, also one that
// begins as it goes to rest.
func TestDecisionsAreBoundedWhileTheWatchRests(t *testing.T) {
	f := newFixture(t, func(o *Options) { o.RequestTimeout = 10 * time.Millisecond })
	f.ask("GET", "/v1/quota/usage", keyAcme, "")
	f.store.hook = func(ctx context.Context, _ string) error {
		<-ctx.Done()
		return ctx.Err()
	}
	for range 2 {
		eventually(t, "the watch rests", f.pipe.resting.Load)
		w := f.ask("GET", "/v1/quota/usage", keyAcme, "")
		if p := problemIn(t, w.Body.Bytes()); w.Code != 503 || p.Reason != "timeout" {
			t.Errorf("%d %+v", w.Code, p)
		}
	}

	one := &conn{owner: f.pipe}
	one.deciding.Store(&decision{deadline: time.Now().Add(time.Hour)})
	f.pipe.mu.Lock()
	f.pipe.open[one] = struct{}{}
	f.pipe.mu.Unlock()
	if f.pipe.rest() {
		t.Error("it rests though something is being decided")
	}
	f.pipe.wake()
	f.pipe.remove(one)
	if !f.pipe.rest() {
		t.Error("it does not rest though nothing is being decided")
	}
}
