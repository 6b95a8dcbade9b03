package upstream

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// TestClosedWhileIdle is of connections that the server closes with the next
// request already under way: it is repeated once, if it may be.
func TestClosedWhileIdle(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(*peerConn){
		"closed": func(c *peerConn) { c.request() },
		"reset":  func(c *peerConn) { c.request(); c.reset() },
	} {
		for what, test := range map[string]struct {
			repeat, lasting, ok bool
			body                string
			connections         int64
		}{
			"repeatable":     {repeat: true, ok: true, body: "hello", connections: 2},
			"large":          {repeat: true, ok: true, body: strings.Repeat("x", 3*inOne), connections: 2},
			"not repeatable": {body: "hello", connections: 1},
			"down for good":  {repeat: true, lasting: true, body: "hello", connections: 2},
		} {
			t.Run(name+"/"+what, func(t *testing.T) {
				t.Parallel()
				server := newPeer(t, func(n int64, c *peerConn) {
					if n > 0 && test.lasting {
						leave(c)
						return
					}
					for i := 0; ; i++ {
						if n == 0 && i == 1 {
							leave(c)
							return
						}
						if c.request() == nil {
							return
						}
						c.say(okAnswer)
					}
				})
				rt := server.transport(Options{})
				mustRead(t, rt, server.get("/"), "ok")
				_, body, err := read(rt, server.post(test.body, test.repeat))
				if (err == nil) != test.ok || test.ok && body != "ok" {
					t.Errorf("%q, %v", body, err)
				}
				if n := server.accepted.Load(); n != test.connections {
					t.Errorf("%d connections", n)
				}
			})
		}
	}
}

// TestFailedWithAnswerBegun is not repeated: the server did something.
func TestFailedWithAnswerBegun(t *testing.T) {
	t.Parallel()
	for name, reset := range map[string]bool{"closed": false, "reset": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			read1 := make(chan struct{})
			var n atomic.Int64
			rt, err := New("http://server", Options{Dial: func(context.Context, string, string) (net.Conn, error) {
				n.Add(1)
				mine, theirs := net.Pipe()
				go func() {
					c := &peerConn{Conn: theirs, r: bufio.NewReader(theirs)}
					c.request()
					c.say(okAnswer)
					c.request()
					c.say("H") // returns when it is read
					close(read1)
					_ = theirs.Close()
				}()
				if reset {
					return resets{mine}, nil
				}
				return mine, nil
			}})
			if err != nil {
				t.Fatal(err)
			}
			mustRead(t, rt, request(t, "GET", "http://server/", ""), "ok")
			if _, body, err := read(rt, request(t, "GET", "http://server/", "")); err == nil {
				t.Errorf("%q", body)
			}
			inTime(t, "the second answer", read1)
			if n.Load() != 1 {
				t.Errorf("%d connections", n.Load())
			}
		})
	}
}

// resets is a connection whose other side's end is an error.
type resets struct{ net.Conn }

func (r resets) Read(dst []byte) (int, error) {
	n, err := r.Conn.Read(dst)
	if err != nil {
		err = &net.OpError{Op: "read", Err: syscall.ECONNRESET}
	}
	return n, err
}

// TestNoticedBeforeUse finds idle connections that are closed, or on which
// something came that nobody asked for: it would be read as the next answer.
func TestNoticedBeforeUse(t *testing.T) {
	t.Parallel()
	for name, stray := range map[string]string{
		"closed": "", "late": "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil", "time-out": "HTTP/1.1 408 Request Timeout\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			more := make(chan struct{})
			server := newPeer(t, func(n int64, c *peerConn) {
				c.request()
				c.say(okAnswer)
				if n > 0 {
					c.untilGone()
					return
				}
				<-more
				c.say(stray)
				if stray != "" {
					c.untilGone()
				}
			})
			rt := server.transport(Options{})
			mustRead(t, rt, server.get("/"), "ok")
			close(more)
			rt.pool.mu.Lock()
			idle := rt.pool.idle[0]
			rt.pool.mu.Unlock()
			for until := time.Now().Add(patience); idle.quiet(); {
				if time.Now().After(until) {
					t.Fatal("nothing is noticed")
				}
			}
			mustRead(t, rt, server.post("hello", false), "ok")
			if n := server.accepted.Load(); n != 2 {
				t.Errorf("%d connections", n)
			}
		})
	}
}

// TestMaxConnections never has more than are allowed, and serves all.
func TestMaxConnections(t *testing.T) {
	t.Parallel()
	var now, most atomic.Int64
	server := newPeer(t, func(n int64, c *peerConn) {
		most.Store(max(most.Load(), now.Add(1)))
		defer now.Add(-1)
		for range 3 + n%3 {
			if c.request() == nil {
				return
			}
			if n%4 == 3 {
				return // without an answer
			}
			c.say(okAnswer)
		}
	})
	rt := server.transport(Options{MaxConnections: 2})
	var all sync.WaitGroup
	var served, failed atomic.Int64
	for range 40 {
		all.Go(func() {
			if _, _, err := read(rt, server.post("x", true)); err != nil {
				failed.Add(1)
			} else {
				served.Add(1)
			}
		})
	}
	all.Wait()
	if served.Load() < 20 || served.Load()+failed.Load() != 40 {
		t.Errorf("%d served, %d failed", served.Load(), failed.Load())
	}
	// A connection that is closed here is seen to be by the server a little later.
	if n := most.Load(); n > 4 {
		t.Errorf("%d connections at once", n)
	}
}

// TestWaitingForATurn is of requests that wait for a connection: they leave when
// their context ends, and the turn passes on when a connection cannot be made.
func TestWaitingForATurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		release, refuse := make(chan struct{}), atomic.Bool{}
		rt, _ := pipes(t, Options{MaxConnections: 1}, func(_ int64, c *peerConn) {
			for c.request() != nil {
				<-release
				c.say("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok")
			}
		})
		dial := rt.opts.Dial
		rt.opts.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			if refuse.Load() {
				return nil, errors.New("refused")
			}
			return dial(ctx, network, address)
		}
		ask := func(ctx context.Context) chan error {
			done := make(chan error, 1)
			go func() {
				_, _, err := read(rt, request(t, "GET", "http://server/", "").WithContext(ctx))
				done <- err
			}()
			synctest.Wait()
			return done
		}
		first := ask(t.Context())
		ctx, cancel := context.WithCancelCause(t.Context())
		second, third, fourth := ask(ctx), ask(t.Context()), ask(t.Context())
		if open, waiting := rt.pool.counts(); open != 1 || waiting != 3 {
			t.Fatalf("%d connections, %d waiting", open, waiting)
		}
		cancel(errLeft)
		if err := <-second; !errors.Is(err, errLeft) {
			t.Error(err)
		}
		refuse.Store(true)
		release <- struct{}{}
		if err := <-first; err != nil {
			t.Error(err)
		}
		for _, next := range []chan error{third, fourth} {
			if err := <-next; err == nil || err.Error() != "refused" {
				t.Error(err)
			}
		}
		synctest.Wait()
		if open, waiting := rt.pool.counts(); open != 0 || waiting != 0 {
			t.Errorf("%d connections, %d waiting", open, waiting)
		}
	})
}

// TestADialThatIsOvertaken: a request that waits for a new connection takes one
// that becomes free before, and the new one is kept for others.
func TestADialThatIsOvertaken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt, dialled := pipes(t, Options{}, func(_ int64, c *peerConn) {
			for c.request() != nil {
				time.Sleep(time.Second)
				c.say(okAnswer)
			}
		})
		dial := rt.opts.Dial
		rt.opts.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			if dialled.Load() == 1 {
				time.Sleep(time.Minute)
			}
			return dial(ctx, network, address)
		}
		began := time.Now()
		first := make(chan struct{})
		go func() {
			defer close(first)
			mustRead(t, rt, request(t, "GET", "http://server/", ""), "ok")
		}()
		synctest.Wait()
		mustRead(t, rt, request(t, "GET", "http://server/", ""), "ok")
		<-first
		if took := time.Since(began); took != 2*time.Second {
			t.Errorf("took %v", took)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(rt.pool.idle) != 2 {
			t.Errorf("%d idle connections", len(rt.pool.idle))
		}
		rt.CloseIdleConnections()
	})
}

// TestFreshConnections: who asks for one that was never used does not get
// another, whatever becomes free, and takes the place of an idle one where there
// may be no more.
func TestFreshConnections(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt, dialled := pipes(t, Options{MaxConnections: 2}, func(_ int64, c *peerConn) { c.untilGone() })
		p := &rt.pool
		var used []*conn
		for range 2 {
			c, err := p.get(t.Context(), false)
			if err != nil {
				t.Fatal(err)
			}
			c.used = 1
			used = append(used, c)
		}
		p.put(used[0])
		began := time.Now()
		c, err := p.get(t.Context(), true) // in the place of the idle one, which has not grown old
		if err != nil || time.Since(began) > 0 || c.used != 0 || len(p.idle) != 0 || p.open != 2 {
			t.Fatalf("%v, %v, %d connections", c, err, p.open)
		}
		got := make(chan *conn)
		go func() {
			c, err := p.get(t.Context(), true)
			if err != nil {
				t.Error(err)
			}
			got <- c
		}()
		synctest.Wait()
		p.put(used[1]) // which is closed, so that another can be made
		if other := <-got; other == used[1] || other.used != 0 {
			t.Error("a used connection")
		} else {
			p.put(other)
		}
		p.put(c)
		if n := dialled.Load(); n != 4 {
			t.Errorf("%d connections were made", n)
		}
		rt.CloseIdleConnections()
		if open, waiting := p.counts(); open != 0 || waiting != 0 {
			t.Errorf("%d connections, %d waiting", open, waiting)
		}
	})
}

func TestIdleConnections(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		rt, dialled := pipes(t, Options{IdleTimeout: time.Minute, MaxIdle: 2}, func(_ int64, c *peerConn) {
			for c.request() != nil {
				<-hold
				c.say(okAnswer)
			}
		})
		ask := func(n int) {
			var all sync.WaitGroup
			for range n {
				all.Go(func() { mustRead(t, rt, request(t, "GET", "http://server/", ""), "ok") })
			}
			synctest.Wait()
			for range n {
				hold <- struct{}{}
			}
			all.Wait()
		}
		idle := func(want int) {
			t.Helper()
			synctest.Wait()
			rt.pool.mu.Lock()
			defer rt.pool.mu.Unlock()
			if len(rt.pool.idle) != want || rt.pool.open != want {
				t.Errorf("%d idle of %d connections; want %d", len(rt.pool.idle), rt.pool.open, want)
			}
		}
		ask(4)
		idle(2) // no more are kept
		for range 3 {
			time.Sleep(40 * time.Second)
			ask(1)
		}
		idle(1) // the one that was used last was used again, the other grew old
		if n := dialled.Load(); n != 4 {
			t.Errorf("%d connections were made", n)
		}
		time.Sleep(time.Minute)
		idle(0)

		// Closed for good: what is in use then is not kept either.
		var all sync.WaitGroup
		all.Go(func() { mustRead(t, rt, request(t, "GET", "http://server/", ""), "ok") })
		synctest.Wait()
		rt.CloseIdleConnections()
		hold <- struct{}{}
		all.Wait()
		idle(0)
		ask(1)
		idle(1)
		rt.CloseIdleConnections()
		idle(0)
	})
}

// TestManyAtOnce has requests of all kinds, most of which are ended somewhere,
// and wants every answer to be its own request's.
func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		switch rand.IntN(12) {
		case 0:
			panic(http.ErrAbortHandler)
		case 1:
			w.Header().Set("Connection", "close")
		case 2:
			w.(http.Flusher).Flush()
		}
		_, _ = fmt.Fprint(w, r.URL.Path, " ", len(body), strings.Repeat(".", rand.IntN(20_000)))
	}))
	defer server.Close()
	rt, err := New(server.URL, Options{MaxConnections: 20, ResponseTimeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	var answered atomic.Int64
	for g := range 30 {
		all.Go(func() {
			for i := range 30 {
				ctx, cancel := context.WithCancel(context.Background())
				if rand.IntN(3) == 0 {
					time.AfterFunc(time.Duration(rand.IntN(3000))*time.Microsecond, cancel)
				}
				size := rand.IntN(3) * rand.IntN(100_000)
				path := fmt.Sprint("/", g, "/", i)
				req := request(t, "POST", server.URL+path, strings.Repeat("x", size)).WithContext(ctx)
				req.Header["X-Idempotency-Key"] = nil
				if resp, err := rt.RoundTrip(req); err == nil {
					dst := make([]byte, 100)
					n, err := io.ReadFull(resp.Body, dst[:len(path)+1])
					if err == nil && string(dst[:n]) != path+" " {
						t.Errorf("%s was answered %q", path, dst[:n])
					}
					if rand.IntN(4) > 0 {
						_, _ = io.Copy(io.Discard, resp.Body)
					}
					_ = resp.Body.Close()
					answered.Add(1)
				}
				cancel()
			}
		})
	}
	all.Wait()
	rt.CloseIdleConnections()
	if answered.Load() < 300 {
		t.Errorf("%d answers", answered.Load())
	}
	// A connection may still be made on behalf of a request that has ended.
	for until := time.Now().Add(patience); ; {
		open, waiting := rt.pool.counts()
		if open == 0 && waiting == 0 {
			break
		}
		if time.Now().After(until) {
			t.Fatalf("%d connections and %d waiting requests are left", open, waiting)
		}
		rt.CloseIdleConnections()
	}
}
