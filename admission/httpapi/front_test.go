package httpapi

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"tollgate/internal/loadclient"
)

// front is a front door that knows paths under /v1/chat/ and /x/, and says what
// it was asked.
type front struct {
	asked  chan string
	stream func(w http.ResponseWriter, r *http.Request)
}

func (f *front) Matches(r *http.Request) bool {
	return r.URL.Path == "/v1/meters" || strings.HasPrefix(r.URL.Path, "/v1/chat/") || strings.HasPrefix(r.URL.Path, "/x/")
}

func (f *front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	f.asked <- fmt.Sprintf("%s %s %d", r.Method, r.URL.Path, len(body))
	if f.stream != nil {
		f.stream(w, r)
		return
	}
	w.WriteHeader(http.StatusTeapot)
}

// TestFrontDoor: on one connection the API's requests are the API's, before and
// after others went to the front door, whatever their bodies.
func TestFrontDoor(t *testing.T) {
	door := &front{asked: make(chan string, 16)}
	f, addr := started(t, func(o *Options) { o.FrontDoor = door })
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	in := bufio.NewReader(c)
	ask := func(raw string) int {
		t.Helper()
		if _, err := io.WriteString(c, raw); err != nil {
			t.Fatal(err)
		}
		res, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, res.Body); err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close() // read to its end
		return res.StatusCode
	}
	post := func(path string, size int) string {
		return string(loadclient.AppendRequest(nil, "POST", path, "gateway", "Bearer "+keyAcme, make([]byte, size)))
	}
	if status := ask(reserveRaw("r1")); status != 201 {
		t.Errorf("the API before: %d", status)
	}
	for _, size := range []int{0, 10, 3000, 100_000, 1 << 20} {
		if status := ask(post("/v1/chat/completions", size)); status != http.StatusTeapot {
			t.Errorf("%d bytes: %d", size, status)
		}
		if got, want := <-door.asked, fmt.Sprintf("POST /v1/chat/completions %d", size); got != want {
			t.Errorf("asked %s, want %s", got, want)
		}
	}
	if status := ask("GET /x/y?z HTTP/1.1\r\nHost: x\r\n\r\n"); status != http.StatusTeapot || <-door.asked != "GET /x/y 0" {
		t.Errorf("another path: %d", status)
	}
	if status := ask(reserveRaw("r2")); status != 201 {
		t.Errorf("the API after: %d", status)
	}
	if status := ask(post("/v1/meters", 2)); status == http.StatusTeapot {
		t.Error("the API's own path went to the front door")
	}
	if status := ask("GET /v1/nothing HTTP/1.1\r\nHost: x\r\n\r\n"); status != 404 {
		t.Errorf("nobody's path: %d", status)
	}
	if len(door.asked) != 0 {
		t.Errorf("asked %s", <-door.asked)
	}
	if n := f.scrape(`tollgate_http_requests_total{route="unknown",status="404"}`); n != "1" {
		t.Errorf("%s unknown requests are counted, want that of nobody's path alone", n)
	}
}

// Every path of the API that the plain reader takes begins like the API.
func TestBeginsLikeAPI(t *testing.T) {
	for i := routeReservations; i < routeCount; i++ {
		path := routes[i].path
		plain := strings.HasPrefix(path, "/v1/")
		if got := beginsLikeAPI([]byte(routes[i].method + " " + path + " HTTP/1.1\r\n")); got != plain {
			t.Errorf("%s: %v", path, got)
		}
	}
	for _, other := range []string{"", "POST", "POST ", "POST /v1/responses HTTP/1.1\r\n", "GET /v1/models HTTP/1.1\r\n", "POST /v1/res"} {
		if beginsLikeAPI([]byte(other)) {
			t.Errorf("%q", other)
		}
	}
}

// TestFrontDoorDrains: the front door can set deadlines of its own, and Stop
// waits for its streams while new connections are refused.
func TestFrontDoorDrains(t *testing.T) {
	ending := make(chan struct{})
	door := &front{asked: make(chan string, 1), stream: func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		if err := errors.Join(rc.SetReadDeadline(time.Time{}), rc.SetWriteDeadline(time.Time{})); err != nil {
			t.Error(err)
		}
		_, _ = io.WriteString(w, "one ")
		if err := rc.Flush(); err != nil {
			t.Error(err)
		}
		select {
		case <-ending:
		case <-r.Context().Done():
			t.Error("the stream was cut")
		}
		_, _ = io.WriteString(w, "two")
	}}
	f := newFixture(t, func(o *Options) { o.FrontDoor = door })
	if err := f.Start(); err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	res, err := client.Post("http://"+f.Addr().String()+"/v1/chat/completions", "application/json", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	first := make([]byte, 4)
	if _, err := io.ReadFull(res.Body, first); err != nil {
		t.Fatal(err)
	}
	stopped := make(chan error)
	go func() { stopped <- f.Stop(context.Background()) }()
	eventually(t, "new connections are refused", func() bool {
		c, err := net.Dial("tcp", f.Addr().String())
		if err == nil {
			_ = c.Close()
		}
		return err != nil
	})
	select {
	case err := <-stopped:
		t.Fatalf("stopped with a stream under way: %v", err)
	default:
	}
	close(ending)
	rest, err := io.ReadAll(res.Body)
	_ = res.Body.Close()
	if err != nil || string(rest) != "two" {
		t.Errorf("the stream's rest: %q, %v", rest, err)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// The fast way asks nobody.
func TestServeHTTPWithFrontDoor(t *testing.T) {
	door := &front{asked: make(chan string, 1)}
	f := newFixture(t, func(o *Options) { o.FrontDoor = door })
	w := httptest.NewRecorder()
	f.ServeHTTP(w, httptest.NewRequest("GET", "/x/1", nil))
	if w.Code != http.StatusTeapot || <-door.asked != "GET /x/1 0" {
		t.Errorf("status %d", w.Code)
	}
}
