package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
)

func dialer(c net.Conn) func(context.Context, string, string) (net.Conn, error) {
	used := false
	return func(context.Context, string, string) (net.Conn, error) {
		if used {
			return nil, errors.New("there is one connection")
		}
		used = true
		return c, nil
	}
}

// TestRequestsAreThoseOfNetHTTP holds what a server reads against what it reads
// of net/http's Transport.
func TestRequestsAreThoseOfNetHTTP(t *testing.T) {
	t.Parallel()
	seen := make(chan string, 1)
	server := newPeer(t, func(_ int64, c *peerConn) {
		for {
			req := c.request()
			if req == nil {
				return
			}
			body, err := io.ReadAll(req.Body)
			seen <- fmt.Sprint(req.Method, " ", req.RequestURI, " ", req.Host, " ", req.Header, req.ContentLength, req.TransferEncoding, req.Close, len(body), string(body[:min(50, len(body))]), err)
			c.say(okAnswer)
		}
	})
	ours := server.transport(Options{})
	theirs := &http.Transport{DisableCompression: true}
	defer theirs.CloseIdleConnections()
	for name, change := range map[string]func(*http.Request){
		"get":         func(r *http.Request) { r.Method, r.Body, r.ContentLength = "", nil, 0 },
		"delete":      func(r *http.Request) { r.Method, r.Body, r.ContentLength = "DELETE", nil, 0 },
		"post":        func(*http.Request) {},
		"no body":     func(r *http.Request) { r.Body, r.ContentLength = nil, 0 },
		"empty body":  func(r *http.Request) { r.Body, r.ContentLength = http.NoBody, 0 },
		"host":        func(r *http.Request) { r.Host = "other:99" },
		"query":       func(r *http.Request) { r.URL, _ = url.Parse(server.url + "/a%2Fb/%C3%A9?x=1&y=%20z") },
		"no path":     func(r *http.Request) { r.URL, _ = url.Parse(server.url) },
		"fields":      func(r *http.Request) { r.Header["X-A"] = []string{"1", "2", "\xff\t é"} },
		"no values":   func(r *http.Request) { r.Header["X-A"] = nil },
		"closing":     func(r *http.Request) { r.Close = true },
		"lies":        func(r *http.Request) { r.Header["Content-Length"] = []string{"99"} },
		"lies more":   func(r *http.Request) { r.Header["Transfer-Encoding"] = []string{"chunked"} },
		"other host":  func(r *http.Request) { r.Header["Host"] = []string{"elsewhere"} },
		"large":       func(r *http.Request) { withBody(r, strings.Repeat("x", 300_000)) },
		"just so":     func(r *http.Request) { withBody(r, strings.Repeat("x", inOne)) },
		"three parts": func(r *http.Request) { withBody(r, strings.Repeat("x", 3*inOne)) },
	} {
		var got [2]string
		for i, rt := range []http.RoundTripper{ours, theirs} {
			req := server.post("hello", false)
			req.Header["User-Agent"] = []string{"x"}
			change(req)
			_, body, err := read(rt, req)
			if err != nil || body != "ok" {
				t.Fatalf("%s: %q, %v", name, body, err)
			}
			got[i] = <-seen
		}
		if got[0] != got[1] {
			t.Errorf("%s:\nours\n%s\nnet/http's\n%s", name, got[0], got[1])
		}
	}
	if n := server.accepted.Load(); n > 4 { // two, and two that were said to close
		t.Errorf("%d connections", n)
	}
}

func withBody(r *http.Request, body string) {
	r.Body, r.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
}

// TestRequestsThatWouldBeOthers are refused before a connection is made.
func TestRequestsThatWouldBeOthers(t *testing.T) {
	t.Parallel()
	server := newPeer(t, func(int64, *peerConn) {})
	rt := server.transport(Options{})
	closed := 0
	for name, change := range map[string]func(*http.Request){
		"value with a line":   func(r *http.Request) { r.Header["X-A"] = []string{"b\r\nX-C: d"} },
		"value with a zero":   func(r *http.Request) { r.Header["X-A"] = []string{"b\x00"} },
		"value with DEL":      func(r *http.Request) { r.Header["X-A"] = []string{"b\x7f"} },
		"name with a line":    func(r *http.Request) { r.Header["X\r\nA"] = []string{"b"} },
		"name with a colon":   func(r *http.Request) { r.Header["X:A"] = nil },
		"empty name":          func(r *http.Request) { r.Header[""] = []string{"b"} },
		"method":              func(r *http.Request) { r.Method = "GET /x HTTP/1.1\r\nX:" },
		"tunnel":              func(r *http.Request) { r.Method = "CONNECT" },
		"query":               func(r *http.Request) { r.URL.RawQuery = "a b" },
		"query with a line":   func(r *http.Request) { r.URL.RawQuery = "a\r\nb" },
		"opaque":              func(r *http.Request) { r.URL.Opaque = "a b" },
		"host with a line":    func(r *http.Request) { r.Host = "a\r\nX-B: c" },
		"other server":        func(r *http.Request) { r.URL.Host = "127.0.0.2:1" },
		"other scheme":        func(r *http.Request) { r.URL.Scheme = "https" },
		"no URL":              func(r *http.Request) { r.URL = nil },
		"length unknown":      func(r *http.Request) { r.ContentLength = -1 },
		"length not said":     func(r *http.Request) { r.ContentLength = 0 },
		"length without body": func(r *http.Request) { r.Body = nil },
		"coding":              func(r *http.Request) { r.TransferEncoding = []string{"chunked"} },
		"trailer":             func(r *http.Request) { r.Trailer = http.Header{"X": nil} },
	} {
		req := server.post("hello", true)
		body := &closes{Reader: strings.NewReader("hello"), closed: &closed}
		req.Body = body
		change(req)
		had := req.Body != nil
		before := closed
		if _, _, err := read(rt, req); err == nil {
			t.Errorf("%s: sent", name)
		}
		if had && closed == before {
			t.Errorf("%s: the body is left open", name)
		}
	}
	// The URL is looked at when a connection is there; the rest before.
	if n := server.accepted.Load(); n > 3 {
		t.Errorf("%d connections", n)
	}
}

type closes struct {
	io.Reader
	closed *int
}

func (c *closes) Close() error { *c.closed++; return nil }

// TestBodiesOfAnotherLength would be read as a part of the next request.
func TestBodiesOfAnotherLength(t *testing.T) {
	t.Parallel()
	server := newPeer(t, func(_ int64, c *peerConn) {
		for c.request() != nil {
			c.say(okAnswer)
		}
	})
	rt := server.transport(Options{})
	for _, size := range []int{10, 2 * inOne} {
		for _, off := range []int{-1, 1} {
			req := server.post("x", true)
			withBody(req, strings.Repeat("x", size+off))
			req.ContentLength = int64(size)
			if _, body, err := read(rt, req); err == nil {
				t.Errorf("%d%+d: %q", size, off, body)
			}
		}
	}
	mustRead(t, rt, server.get("/"), "ok")
}

func TestServes(t *testing.T) {
	t.Parallel()
	for base, want := range map[string]bool{
		"http://a": true, "HTTP://a:81/v1": true, "http://[::1]:80/x": true,
		"https://a": false, "http://": false, "http://ü": false, "http://[fe80::1%25e]": false, "http://u:p@a": false, "a": false,
	} {
		if _, err := New(base, Options{}); (err == nil) != want {
			t.Errorf("%s: %v", base, err)
		}
	}
}
