package upstream

import (
	"container/list"
	"context"
	"sync"
	"time"
)

// pool holds the connections to one address. The one used last is used first,
// so that those that a quieter time does not need grow old and are closed.
type pool struct {
	address string
	opts    *Options

	mu      sync.Mutex
	idle    []*conn    // the one used last at the end
	open    int        // connections: being made, in use, idle
	waiting *list.List // of *waiter, in the order they came
	sweep   *time.Timer
	sweeps  bool // the timer runs
	closing bool // nothing is kept
}

// waiter is a request that waits for a connection.
type waiter struct {
	fresh   bool // it takes none that was used before
	dialing bool // a connection is being made on its behalf
	cancel  context.CancelFunc
	given   chan gift // of 1
	place   *list.Element
}

type gift struct {
	conn *conn
	err  error
}

func (p *pool) init(address string, opts *Options) {
	p.address, p.opts, p.waiting = address, opts, list.New()
}

// get returns a connection that the caller then gives back by put or gone. A
// fresh one has had no request.
func (p *pool) get(ctx context.Context, fresh bool) (*conn, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	for !fresh {
		c := p.take()
		if c == nil {
			break
		}
		if c.quiet() {
			return c, nil
		}
		_ = c.raw.Close()
		p.gone()
	}
	w := &waiter{fresh: fresh, given: make(chan gift, 1)}
	p.mu.Lock()
	p.closing = false
	w.place = p.waiting.PushBack(w)
	if limit := p.opts.MaxConnections; fresh && limit > 0 && p.open >= limit && len(p.idle) > 0 {
		_ = p.idle[0].raw.Close()
		p.idle = append(p.idle[:0], p.idle[1:]...)
		p.open--
	}
	p.dialFor(w)
	p.mu.Unlock()

	select {
	case g := <-w.given:
		return g.conn, g.err
	case <-ctx.Done():
	}
	p.mu.Lock()
	if w.place != nil {
		p.waiting.Remove(w.place)
		w.place = nil
	}
	if w.cancel != nil {
		w.cancel()
	}
	p.mu.Unlock()
	select { // it may have been given one at the same moment
	case g := <-w.given:
		if g.conn != nil {
			p.put(g.conn)
		}
	default:
	}
	return nil, context.Cause(ctx)
}

// take takes the connection that was used last; nil: there is none.
func (p *pool) take() *conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closing = false
	n := len(p.idle)
	if n == 0 {
		return nil
	}
	c := p.idle[n-1]
	p.idle[n-1] = nil
	p.idle = p.idle[:n-1]
	c.reused = true
	return c
}

// put gives a connection back that can have another request.
func (p *pool) put(c *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	stuck := false // somebody waits whom only a new connection helps
	for e := p.waiting.Front(); e != nil; e = e.Next() {
		w := e.Value.(*waiter)
		if !w.fresh || c.used == 0 {
			c.reused = c.used > 0
			p.give(w, gift{conn: c})
			return
		}
		stuck = stuck || !w.dialing
	}
	if stuck || p.closing || len(p.idle) >= p.opts.MaxIdle {
		_ = c.raw.Close()
		p.goneLocked()
		return
	}
	c.idleSince = time.Now()
	p.idle = append(p.idle, c)
	if !p.sweeps {
		p.sweepIn(p.opts.IdleTimeout)
	}
}

// gone says that a connection was closed, so that another may be made.
func (p *pool) gone() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.goneLocked()
}

func (p *pool) goneLocked() {
	p.open--
	for e := p.waiting.Front(); e != nil; e = e.Next() {
		if w := e.Value.(*waiter); !w.dialing {
			p.dialFor(w)
			return
		}
	}
}

func (p *pool) give(w *waiter, g gift) {
	p.waiting.Remove(w.place)
	w.place = nil
	w.given <- g
}

// dialFor begins to make a connection on a request's behalf, if there may be one
// more. Whoever waits longest gets it, and the request takes what comes first:
// this one, or one that another request has done with.
func (p *pool) dialFor(w *waiter) {
	if p.opts.MaxConnections > 0 && p.open >= p.opts.MaxConnections {
		return
	}
	p.open++
	w.dialing = true
	ctx, cancel := context.WithCancel(context.Background())
	w.cancel = cancel
	go func() {
		defer cancel()
		raw, err := p.opts.Dial(ctx, "tcp", p.address)
		if err == nil {
			p.put(newConn(p, raw))
			return
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if w.place != nil {
			p.give(w, gift{err: err})
		}
		p.goneLocked()
	}()
}

func (p *pool) closeIdle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closing = true
	p.closeUntil(len(p.idle))
	if p.sweeps {
		p.sweeps = !p.sweep.Stop()
	}
}

// closeUntil closes the n idle connections that were used longest ago.
func (p *pool) closeUntil(n int) {
	for _, c := range p.idle[:n] {
		_ = c.raw.Close()
	}
	left := copy(p.idle, p.idle[n:])
	clear(p.idle[left:])
	p.idle = p.idle[:left]
	for range n {
		p.goneLocked()
	}
}

func (p *pool) sweepIn(wait time.Duration) {
	p.sweeps = true
	if p.sweep == nil {
		p.sweep = time.AfterFunc(wait, p.sweepIdle)
		return
	}
	p.sweep.Reset(wait)
}

// sweepIdle closes the connections that were idle for too long.
func (p *pool) sweepIdle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	old := 0
	for old < len(p.idle) && now.Sub(p.idle[old].idleSince) >= p.opts.IdleTimeout {
		old++
	}
	p.closeUntil(old)
	p.sweeps = false
	if len(p.idle) > 0 {
		p.sweepIn(max(p.opts.IdleTimeout-now.Sub(p.idle[0].idleSince), time.Millisecond))
	}
}
