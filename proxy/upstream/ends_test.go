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
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

var errLeft = errors.New("the client has left")

// TestTheContextEndsEveryWait ends a request's context at every point where the
// request can be, and wants its cause, at once, and the connection closed.
func TestTheContextEndsEveryWait(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("x", 64<<20) // more than the system takes from a writer
	for name, at := range map[string]struct {
		body  string
		reads bool
		says  string
	}{
		"written":       {body: large},
		"before head":   {reads: true},
		"in the head":   {reads: true, says: "HTTP/1.1 200 OK\r\nContent-"},
		"after interim": {reads: true, says: "HTTP/1.1 100 Continue\r\n\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			reached, gone := make(chan struct{}), make(chan struct{})
			server := newPeer(t, func(_ int64, c *peerConn) {
				if at.reads {
					c.request()
				} else if _, err := c.r.Peek(1); err != nil {
					t.Error(err)
				}
				c.say(at.says)
				close(reached)
				c.untilGone()
				close(gone)
			})
			ctx, cancel := context.WithCancelCause(context.Background())
			go func() { <-reached; cancel(errLeft) }()
			_, _, err := read(server.transport(Options{ResponseTimeout: time.Hour}), server.post(at.body, true).WithContext(ctx))
			if !errors.Is(err, errLeft) {
				t.Errorf("ended by %v", err)
			}
			inTime(t, "the connection", gone)
		})
	}
}

func TestTheContextEndsADial(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt, err := New("http://server", Options{Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeoutCause(context.Background(), time.Second, errLeft)
		defer cancel()
		began := time.Now()
		_, _, err = read(rt, request(t, "GET", "http://server/", "").WithContext(ctx))
		if !errors.Is(err, errLeft) || time.Since(began) != time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		synctest.Wait()
		if open, _ := rt.pool.counts(); open != 0 {
			t.Error("a connection that was never made is counted")
		}
		cancelled, cancelNow := context.WithCancelCause(context.Background())
		cancelNow(errLeft)
		if _, _, err = read(rt, request(t, "GET", "http://server/", "").WithContext(cancelled)); !errors.Is(err, errLeft) {
			t.Errorf("begun with %v", err)
		}
	})
}

// TestDialTimeouts that came in time are believed, and those that came late once
// they came twice.
func TestDialTimeouts(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		lasts []time.Duration // each dial, whose time-out is 2 s
		ok    bool
		dials int
	}{
		"in time":        {[]time.Duration{time.Second}, true, 1},
		"no server":      {[]time.Duration{2 * time.Second, 0}, false, 1},
		"stopped":        {[]time.Duration{3 * time.Second, 0}, true, 2},
		"stopped twice":  {[]time.Duration{3 * time.Second, 3 * time.Second, 0}, false, 2},
		"late, no error": {[]time.Duration{-3 * time.Second}, true, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				n := 0
				dial := believing(2*time.Second, func(context.Context, string, string) (net.Conn, error) {
					lasts := test.lasts[n]
					n++
					time.Sleep(lasts.Abs())
					if lasts >= 2*time.Second {
						return nil, context.DeadlineExceeded
					}
					return &net.TCPConn{}, nil
				})
				if c, err := dial(t.Context(), "tcp", "x:1"); (err == nil) != test.ok || (c != nil) != test.ok || n != test.dials {
					t.Errorf("%v, %v after %d", c, err, n)
				}
			})
		})
	}
}

// pipes returns a Transport whose connections are pipes in memory, served by
// script, so that time is the bubble's.
func pipes(t *testing.T, opts Options, script func(n int64, c *peerConn)) (*Transport, *atomic.Int64) {
	t.Helper()
	var dialled atomic.Int64
	var running sync.WaitGroup
	t.Cleanup(running.Wait)
	opts.Dial = func(context.Context, string, string) (net.Conn, error) {
		mine, theirs := net.Pipe()
		n := dialled.Add(1) - 1
		running.Go(func() {
			defer func() { _ = theirs.Close() }()
			script(n, &peerConn{Conn: theirs, r: bufio.NewReader(theirs)})
		})
		return mine, nil
	}
	rt, err := New("http://server", opts)
	if err != nil {
		t.Fatal(err)
	}
	return rt, &dialled
}

func TestResponseTimeout(t *testing.T) {
	t.Parallel()
	for name, server := range map[string]struct {
		says string
		body string
		read bool
	}{
		"no answer":          {read: true},
		"half a head":        {read: true, says: "HTTP/1.1 200 OK\r\nConte"},
		"interim alone":      {read: true, says: "HTTP/1.1 103 Early Hints\r\n\r\n"},
		"nothing is read":    {body: "hello"},
		"not all is read":    {body: strings.Repeat("x", 2*inOne)},
		"large, all is read": {body: strings.Repeat("x", 2*inOne), read: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				rt, _ := pipes(t, Options{ResponseTimeout: time.Second}, func(_ int64, c *peerConn) {
					switch {
					case server.read:
						c.request()
						c.say(server.says)
					case len(server.body) > inOne:
						_, _ = io.CopyN(io.Discard, c.r, inOne+1)
					}
					time.Sleep(time.Minute)
				})
				began := time.Now()
				_, _, err := read(rt, request(t, "POST", "http://server/", server.body))
				if !isTimeout(err) {
					t.Errorf("ended by %v", err)
				}
				if took := time.Since(began); took != time.Second {
					t.Errorf("ended after %v", took)
				}
			})
		})
	}
}

// TestTimeoutsEndWithTheHead lets an answer, and a request, last longer than
// each of their steps may.
func TestTimeoutsEndWithTheHead(t *testing.T) {
	t.Parallel()
	for _, size := range []int{5, 5 * inOne} {
		synctest.Test(t, func(t *testing.T) {
			rt, dialled := pipes(t, Options{ResponseTimeout: time.Second}, func(_ int64, c *peerConn) {
				c.r = bufio.NewReader(slow{c.Conn}) // 0.8 s for each part of a request
				for {
					if c.request() == nil {
						return
					}
					time.Sleep(900 * time.Millisecond)
					c.say("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n")
					for range 3 {
						time.Sleep(2 * time.Second)
						c.say("a")
					}
				}
			})
			for range 2 {
				mustRead(t, rt, request(t, "POST", "http://server/", strings.Repeat("x", size)), "aaa")
			}
			if n := dialled.Load(); n != 1 {
				t.Errorf("%d connections", n)
			}
			rt.CloseIdleConnections()
		})
	}
}

// slow reads 4 KiB in 50 ms.
type slow struct{ io.Reader }

func (s slow) Read(dst []byte) (int, error) {
	time.Sleep(50 * time.Millisecond)
	return s.Reader.Read(dst[:min(len(dst), 4<<10)])
}

// TestAnswerBesideTheBody is of a server that begins to answer before it has all,
// and takes its time with the rest of both.
func TestAnswerBesideTheBody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt, dialled := pipes(t, Options{ResponseTimeout: time.Second}, func(_ int64, c *peerConn) {
			c.r = bufio.NewReader(slow{c.Conn})
			for range 2 {
				req, err := http.ReadRequest(c.r)
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = io.CopyN(io.Discard, req.Body, inOne) // all that is written at once
				c.say("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n")
				if _, err := io.Copy(io.Discard, req.Body); err != nil {
					t.Error(err)
				}
				for range 3 {
					time.Sleep(2 * time.Second)
					c.say("a")
				}
			}
		})
		for range 2 {
			mustRead(t, rt, request(t, "POST", "http://server/", strings.Repeat("x", 3*inOne)), "aaa")
		}
		if n := dialled.Load(); n != 1 {
			t.Errorf("%d connections", n)
		}
		rt.CloseIdleConnections()
	})
}

// TestAnswerBeforeTheBody is of a server that refuses a body without reading it.
func TestAnswerBeforeTheBody(t *testing.T) {
	t.Parallel()
	const refusal = "HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno"
	large := strings.Repeat("x", 64<<20)
	for name, closes := range map[string]bool{"and waits": false, "and closes": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := newPeer(t, func(n int64, c *peerConn) {
				if n > 0 {
					c.request()
					c.say(okAnswer)
					return
				}
				if _, err := c.r.ReadString('\n'); err != nil {
					t.Error(err)
				}
				c.say(refusal)
				if closes {
					_ = c.Conn.(*net.TCPConn).CloseWrite()
				}
				c.untilGone()
			})
			rt := server.transport(Options{ResponseTimeout: time.Hour})
			resp, body, err := read(rt, server.post(large, true))
			if err != nil || resp.code != 413 || body != "no" {
				t.Fatalf("%v %q %v", resp, body, err)
			}
			mustRead(t, rt, server.get("/"), "ok")
			if n := server.accepted.Load(); n != 2 {
				t.Errorf("%d connections", n)
			}
		})
	}
}

// TestUnreadAnswers keeps a connection where what is left is little and here,
// and closes it otherwise.
func TestUnreadAnswers(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]struct {
		says string
		want int64
	}{
		"little":       {okAnswer, 1},
		"last chunk":   {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", 1},
		"more to come": {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n", 2},
		"large":        {"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + strings.Repeat("x", 100_000), 2},
		"and stray":    {okAnswer + "HTTP/1.1 200 OK\r\n", 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := newPeer(t, func(n int64, c *peerConn) {
				for c.request() != nil {
					if n > 0 {
						c.say(okAnswer)
						continue
					}
					c.say(answer.says)
				}
			})
			rt := server.transport(Options{})
			for range 2 {
				resp, err := rt.RoundTrip(server.get("/"))
				if err != nil {
					t.Fatal(err)
				}
				if _, err := resp.Body.Read(make([]byte, 1)); err != nil {
					t.Fatal(err)
				}
				for range 2 {
					if err := resp.Body.Close(); err != nil {
						t.Error(err)
					}
				}
				if _, err := resp.Body.Read(make([]byte, 1)); !errors.Is(err, http.ErrBodyReadAfterClose) {
					t.Errorf("read after Close: %v", err)
				}
			}
			if n := server.accepted.Load(); n != answer.want {
				t.Errorf("%d connections", n)
			}
		})
	}
}

func TestCloseEndsARead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt, _ := pipes(t, Options{}, func(_ int64, c *peerConn) {
			c.request()
			c.say("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\na")
			c.untilGone()
		})
		resp, err := rt.RoundTrip(request(t, "GET", "http://server/", ""))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		if _, err := resp.Body.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() {
			_, err := resp.Body.Read(make([]byte, 1))
			done <- err
		}()
		synctest.Wait()
		_ = resp.Body.Close()
		synctest.Wait()
		select {
		case err := <-done:
			if !errors.Is(err, http.ErrBodyReadAfterClose) {
				t.Error(err)
			}
		default:
			t.Fatal("the read goes on")
		}
		if open, _ := rt.pool.counts(); open != 0 {
			t.Errorf("%d connections", open)
		}
	})
}

// TestTheContextEndsABody ends it after a part of the body was read, and after
// all of it has come but was not read: the connection is not used again then.
func TestTheContextEndsABody(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		says string
		err  error
	}{
		"length":  {"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n1", errLeft},
		"chunked": {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\na", errLeft},
		"all":     {okAnswer, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				rt, _ := pipes(t, Options{}, func(_ int64, c *peerConn) {
					c.request()
					c.say(test.says)
					c.untilGone()
				})
				ctx, cancel := context.WithCancelCause(t.Context())
				resp, err := rt.RoundTrip(request(t, "GET", "http://server/", "").WithContext(ctx))
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = resp.Body.Close() }()
				if _, err := resp.Body.Read(make([]byte, 1)); err != nil {
					t.Fatal(err)
				}
				cancel(errLeft)
				synctest.Wait()
				if _, err := io.ReadAll(resp.Body); !errors.Is(err, test.err) {
					t.Errorf("ended by %v", err)
				}
				if open, _ := rt.pool.counts(); open != 0 {
					t.Errorf("%d connections", open)
				}
			})
		})
	}
}

// TestAnswerToAWriteThatFails is read all the same: a server may answer, close
// and be done before it has the request.
func TestAnswerToAWriteThatFails(t *testing.T) {
	t.Parallel()
	for name, size := range map[string]int{"at once": 5, "later": 2 * inOne} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				rt, err := New("http://server", Options{Dial: dialer(&deaf{
					scripted: scripted{answer: []byte(okAnswer), step: 100, asked: make(chan struct{}), closed: make(chan struct{})},
				})})
				if err != nil {
					t.Fatal(err)
				}
				mustRead(t, rt, request(t, "POST", "http://server/", strings.Repeat("x", size)), "ok")
				if open, _ := rt.pool.counts(); open != 0 {
					t.Error("the connection is kept")
				}
			})
		})
	}
}

// deaf takes the first part of a request alone, if there is more than one, and
// answers a second later.
type deaf struct {
	scripted
	heard bool
}

func (d *deaf) Write(b []byte) (int, error) {
	n, _ := d.scripted.Write(b)
	if len(b) < inOne || d.heard {
		return 0, &net.OpError{Op: "write", Err: syscall.EPIPE}
	}
	d.heard = true
	return n, nil
}

func (d *deaf) Read(dst []byte) (int, error) {
	time.Sleep(time.Second)
	select {
	case <-d.closed:
		return 0, net.ErrClosed
	default:
	}
	return d.scripted.Read(dst)
}
