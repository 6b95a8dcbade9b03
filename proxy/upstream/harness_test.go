package upstream

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds waits that end a test when it fails.
const patience = 20 * time.Second

// peer is a server that does on each connection what it is told.
type peer struct {
	*testing.T
	listener net.Listener
	url      string
	accepted atomic.Int64
	running  sync.WaitGroup
	mu       sync.Mutex
	open     []net.Conn
}

// newPeer runs script with every connection and its number, from 0. The
// connection is closed when the script returns.
func newPeer(t *testing.T, script func(n int64, c *peerConn)) *peer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &peer{T: t, listener: l, url: "http://" + l.Addr().String()}
	p.running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			n := p.accepted.Add(1) - 1
			p.mu.Lock()
			p.open = append(p.open, c)
			p.mu.Unlock()
			p.running.Go(func() {
				defer func() { _ = c.Close() }()
				script(n, &peerConn{Conn: c, r: bufio.NewReader(c)})
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		p.mu.Lock()
		for _, c := range p.open {
			_ = c.Close()
		}
		p.mu.Unlock()
		p.running.Wait()
	})
	return p
}

type peerConn struct {
	net.Conn
	r *bufio.Reader
}

// request reads one request, body and all; nil: there is none.
func (c *peerConn) request() *http.Request {
	req, err := http.ReadRequest(c.r)
	if err != nil {
		return nil
	}
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil
	}
	req.Body = io.NopCloser(strings.NewReader(string(body)))
	return req
}

func (c *peerConn) say(s string) { _, _ = io.WriteString(c.Conn, s) }

// reset closes the connection so that the other side is told of an error.
func (c *peerConn) reset() {
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close()
}

// untilGone returns when the other side has left.
func (c *peerConn) untilGone() { _, _ = io.Copy(io.Discard, c.r) }

func (p *peer) transport(opts Options) *Transport {
	p.Helper()
	t, err := New(p.url, opts)
	if err != nil {
		p.Fatal(err)
	}
	p.Cleanup(func() {
		t.CloseIdleConnections()
		if open, waiting := t.pool.counts(); open != 0 || waiting != 0 {
			p.Errorf("%d connections and %d waiting requests are left", open, waiting)
		}
	})
	return t
}

func (p *peer) get(path string) *http.Request { return request(p.T, http.MethodGet, p.url+path, "") }

// post is a request that may be repeated if repeat says so.
func (p *peer) post(body string, repeat bool) *http.Request {
	req := request(p.T, http.MethodPost, p.url+"/v1/x", body)
	if repeat {
		req.Header["X-Idempotency-Key"] = nil
	}
	return req
}

func request(t testing.TB, method, url, body string) *http.Request {
	t.Helper()
	var from io.Reader
	if body != "" {
		from = strings.NewReader(body)
	}
	req, err := http.NewRequestWithContext(context.Background(), method, url, from)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

// heard is an answer but for its body.
type heard struct {
	proto, status string
	code          int
	length        int64
	coding        []string
	closes        bool
	header        http.Header
	trailer       http.Header
	request       *http.Request
}

// read does a request and reads all of its answer.
func read(rt http.RoundTripper, req *http.Request) (*heard, string, error) {
	resp, err := rt.RoundTrip(req)
	if err != nil {
		return nil, "", err
	}
	body, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	return &heard{
		resp.Proto, resp.Status, resp.StatusCode, resp.ContentLength, resp.TransferEncoding, resp.Close, resp.Header, resp.Trailer, resp.Request,
	}, string(body), err
}

func mustRead(t *testing.T, rt http.RoundTripper, req *http.Request, want string) {
	t.Helper()
	_, body, err := read(rt, req)
	if err != nil || body != want {
		t.Fatalf("got %q, %v; want %q", body, err, want)
	}
}

func isTimeout(err error) bool {
	var network net.Error
	return errors.As(err, &network) && network.Timeout()
}

// inTime fails the test where a wait has no end.
func inTime(t *testing.T, what string, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatal("no end: " + what)
	}
}

const okAnswer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

func (p *pool) counts() (open, waiting int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.open, p.waiting.Len()
}
