package httpapi

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// conns are the connections of one listener, with their watch. It is the
// listener of the http.Server that takes over what is not plain.
type conns struct {
	server   *Server
	listener net.Listener
	handed   chan net.Conn
	ended    chan struct{} // closed when net/http accepts no more
	endOnce  sync.Once

	looks    atomic.Uint64 // of the watch, so far, as if it never rested
	resting  atomic.Bool   // the watch looks rarely
	hurry    chan struct{} // ends that
	date     atomic.Pointer[string]
	stopping atomic.Bool

	mu      sync.Mutex
	open    map[*conn]struct{}
	running sync.WaitGroup // the accepting and the watch
	serving sync.WaitGroup // the connections
	stop    chan struct{}  // ends the watch
}

// lookEvery is how often the watch looks while something is decided: the ends of
// decisions and the news that a client has left are late by up to that. After
// calmLooks without a decision it does restLooks in one, because each look of an
// idle gateway wakes the whole process; the patience with clients is longer by
// up to that.
const (
	lookEvery = 25 * time.Millisecond
	calmLooks = 40
	restLooks = 20
)

func newConns(s *Server, listener net.Listener) *conns {
	c := &conns{
		server: s, listener: listener, handed: make(chan net.Conn), ended: make(chan struct{}),
		hurry: make(chan struct{}, 1), open: map[*conn]struct{}{}, stop: make(chan struct{}),
	}
	c.setDate(time.Now())
	return c
}

// start accepts and watches.
func (c *conns) start() {
	c.running.Go(c.watch)
	c.running.Go(func() {
		pause := time.Duration(0)
		for {
			accepted, err := c.listener.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil { // out of descriptors, say: wait as net/http does
				pause = min(max(2*pause, 5*time.Millisecond), time.Second)
				c.server.log.Warn("cannot accept a connection", "error", err)
				select {
				case <-time.After(pause):
				case <-c.stop:
					return
				}
				continue
			}
			pause = 0
			c.add(accepted)
		}
	})
}

// add serves a connection.
func (c *conns) add(accepted net.Conn) {
	one := &conn{Conn: accepted, owner: c}
	one.state.Store(c.looks.Load()*uint64(phaseCount) + uint64(phaseNew))
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopping.Load() {
		_ = accepted.Close()
		return
	}
	c.open[one] = struct{}{}
	c.serving.Go(one.serve)
}

func (c *conns) remove(one *conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.open, one)
}

// handOver gives a connection to net/http.
func (c *conns) handOver(one *conn) {
	// From here on the watch must leave it alone.
	if was := one.state.Load(); phase(was%uint64(phaseCount)) == phaseCut || !one.state.CompareAndSwap(was, uint64(phaseCut)) {
		_ = one.Close()
		return
	}
	first := append([]byte(nil), one.buf[one.from:one.to]...)
	select {
	case c.handed <- &handed{Conn: one.Conn, first: first}:
	case <-c.ended:
		_ = one.Close()
	}
}

// watch looks at every connection until it is told to stop.
func (c *conns) watch() {
	timer := time.NewTimer(lookEvery)
	defer timer.Stop()
	calm, step := 0, uint64(1)
	for {
		select {
		case now := <-timer.C:
			if calm++; c.look(now, step) {
				calm = 0
			}
		case <-c.hurry:
			calm = 0
		case <-c.stop:
			return
		}
		step = 1
		if calm >= calmLooks && c.rest() {
			step = restLooks
		}
		timer.Reset(time.Duration(step) * lookEvery)
	}
}

// rest lets decisions know that they must wake the watch; false when one has
// begun before it could know.
func (c *conns) rest() bool {
	c.resting.Store(true)
	c.mu.Lock()
	defer c.mu.Unlock()
	for one := range c.open {
		if one.deciding.Load() != nil {
			return false
		}
	}
	return true
}

// wake makes a watch that rests look soon.
func (c *conns) wake() {
	if c.resting.Load() && c.resting.CompareAndSwap(true, false) {
		select {
		case c.hurry <- struct{}{}:
		default: // it has been told
		}
	}
}

// look counts as so many looks, and says whether something is being decided.
func (c *conns) look(now time.Time, step uint64) bool {
	look := c.looks.Add(step)
	if look/restLooks != (look-step)/restLooks {
		c.setDate(now)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	decides := false
	for one := range c.open {
		state := one.state.Load()
		p := phase(state % uint64(phaseCount))
		if d := one.deciding.Load(); d != nil && p == phaseAnswer {
			decides = true
			one.look(d, now)
		}
		// A phase may have begun up to restLooks after the look that it counts from.
		waited := int64(look-state/uint64(phaseCount)) - restLooks
		if wait := patience[p]; wait > 0 && time.Duration(waited)*lookEvery > wait {
			one.cut(state)
		}
	}
	return decides
}

func (c *conns) setDate(now time.Time) {
	field := "Date: " + now.UTC().Format(http.TimeFormat) + "\r\n"
	c.date.Store(&field)
}

// shutdown accepts no more, ends connections that wait for a request, and waits
// for the others. When ctx ends first it cuts them and returns ctx's error; what
// does not heed even that is not waited for.
func (c *conns) shutdown(ctx context.Context) error {
	c.stopping.Store(true)
	if c.listener != nil { // tests bring connections of their own
		_ = c.listener.Close()
	}
	c.mu.Lock()
	for one := range c.open {
		switch state := one.state.Load(); phase(state % uint64(phaseCount)) {
		case phaseNew, phaseIdle:
			one.cut(state)
		}
	}
	c.mu.Unlock()

	var err error
	for c.count() > 0 && err == nil {
		select {
		case <-ctx.Done():
			err = ctx.Err()
			c.closeAll()
		case <-time.After(lookEvery / 5):
		}
	}
	close(c.stop)
	c.running.Wait()
	if err == nil {
		c.serving.Wait()
	}
	return err
}

func (c *conns) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.open)
}

func (c *conns) closeAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for one := range c.open {
		one.gone.Store(true)
		if d := one.deciding.Load(); d != nil {
			d.end(context.Canceled)
		}
		_ = one.Close()
	}
}

// Accept implements net.Listener for net/http.
func (c *conns) Accept() (net.Conn, error) {
	select {
	case one := <-c.handed:
		return one, nil
	case <-c.ended:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (c *conns) Close() error {
	c.endOnce.Do(func() { close(c.ended) })
	return nil
}

// Addr implements net.Listener.
func (c *conns) Addr() net.Addr { return c.listener.Addr() }
