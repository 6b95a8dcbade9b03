// Package loadclient drives an HTTP/1.1 server over keep-alive connections and
// measures what its callers would feel.
//
// A closed loop sends the next request of a connection when the answer to the
// last one is in. An open loop sends at a given rate whatever the server does,
// and measures each latency from the moment at which the request was due, so
// that a stall is charged to every request it delayed and not only to the one
// that met it (what is known as coordinated omission).
//
// The client shares its machine with what it measures, so it does little:
// requests are bytes made by a callback, answers are parsed only as far as
// their framing. It speaks no TLS, follows no redirect and retries nothing.
package loadclient

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Options says what to send and for how long.
type Options struct {
	Addr  string // host:port
	Conns int    // keep-alive connections; at least 1
	// Rate is the number of requests a second over all connections; 0 runs a
	// closed loop.
	Rate int
	// The run ends when Duration has passed or Requests were sent, whichever
	// comes first. At least one of the two is set.
	Duration time.Duration
	Requests int64
	// Next appends one whole request to buf, which is empty, and returns it.
	// Returning nil retires the connection. It is called by one goroutine at a
	// time for each conn, and in an open loop by one goroutine for all.
	Next func(conn int, buf []byte) []byte
	// Done, when set, is given each answer. Body is valid during the call.
	Done func(conn int, status int, body []byte)
	// Timeout bounds one exchange; 0 is 10 s. A timed-out request counts as
	// an error and its connection is replaced.
	Timeout time.Duration
}

// Result is what a run saw.
type Result struct {
	Sent     int64         // requests written
	ByStatus map[int]int64 // answers by status
	Errors   int64         // requests without an answer, and failed dials
	LastErr  error         // one of those errors, for the reader
	Elapsed  time.Duration
	// Latency is measured from the moment a request was due (open loop) or
	// sent (closed loop); Service always from the moment it was sent.
	Latency *Histogram
	Service *Histogram
}

// Answers is the number of requests that were answered.
func (r *Result) Answers() int64 {
	var n int64
	for _, c := range r.ByStatus {
		n += c
	}
	return n
}

// PerSecond is answers ÷ elapsed.
func (r *Result) PerSecond() float64 {
	if r.Elapsed <= 0 {
		return 0
	}
	return float64(r.Answers()) / r.Elapsed.Seconds()
}

// maxStatus bounds the table of counts; HTTP statuses have three digits.
const maxStatus = 600

type run struct {
	opts     Options
	deadline time.Time // zero: none
	tickets  atomic.Int64

	sent     atomic.Int64
	errors   atomic.Int64
	byStatus [maxStatus]atomic.Int64
	latency  *Histogram
	service  *Histogram

	mu      sync.Mutex
	lastErr error
}

// Run drives the server until the run's end or ctx's, and returns what it saw.
// It fails when the options make no sense or not one connection can be made.
func Run(ctx context.Context, opts Options) (Result, error) {
	if opts.Conns < 1 || opts.Next == nil || opts.Rate < 0 || (opts.Duration <= 0 && opts.Requests <= 0) {
		return Result{}, errors.New("load client: Conns, Next and one of Duration or Requests are needed")
	}
	if opts.Timeout <= 0 {
		opts.Timeout = 10 * time.Second
	}
	r := &run{opts: opts, latency: NewHistogram(), service: NewHistogram()}

	conns := make([]*conn, opts.Conns)
	for i := range conns {
		conns[i] = &conn{run: r, index: i, buf: make([]byte, 0, 1024)}
		if err := conns[i].dial(ctx); err != nil {
			for _, c := range conns[:i] {
				c.close()
			}
			return Result{}, fmt.Errorf("load client: %w", err)
		}
	}
	start := time.Now()
	if opts.Duration > 0 {
		r.deadline = start.Add(opts.Duration)
		var cancel context.CancelFunc
		// Answers still under way at the end are waited for, within Timeout.
		ctx, cancel = context.WithDeadline(ctx, r.deadline)
		defer cancel()
	}
	if opts.Rate > 0 {
		r.openLoop(ctx, conns, start)
	} else {
		r.closedLoop(ctx, conns)
	}

	res := Result{
		Sent: r.sent.Load(), Errors: r.errors.Load(), LastErr: r.lastErr,
		Elapsed: time.Since(start), Latency: r.latency, Service: r.service,
		ByStatus: make(map[int]int64),
	}
	for status := range r.byStatus {
		if n := r.byStatus[status].Load(); n > 0 {
			res.ByStatus[status] = n
		}
	}
	return res, nil
}

func (r *run) closedLoop(ctx context.Context, conns []*conn) {
	var wg sync.WaitGroup
	for _, c := range conns {
		wg.Go(func() {
			defer c.close()
			for ctx.Err() == nil && r.take() {
				if !c.ready(ctx) {
					continue
				}
				sentAt, ok := c.send()
				if !ok {
					return
				}
				c.receive(sentAt, sentAt)
			}
		})
	}
	wg.Wait()
}

// take draws one of the run's requests; false when none is left.
func (r *run) take() bool {
	return r.opts.Requests <= 0 || r.tickets.Add(1) <= r.opts.Requests
}

func (r *run) fail(err error) {
	r.errors.Add(1)
	r.mu.Lock()
	r.lastErr = err
	r.mu.Unlock()
}

// conn is one keep-alive connection. Its methods are called by one goroutine
// at a time.
type conn struct {
	run   *run
	index int
	tcp   net.Conn
	in    *bufio.Reader
	buf   []byte
	body  []byte
	due   chan exchange // open loop: what to receive
}

// exchange is a request on its way.
type exchange struct{ dueAt, sentAt time.Time }

func (c *conn) dial(ctx context.Context) error {
	d := net.Dialer{Timeout: c.run.opts.Timeout}
	tcp, err := d.DialContext(ctx, "tcp", c.run.opts.Addr)
	if err != nil {
		return err
	}
	c.tcp = tcp
	if c.in == nil {
		c.in = bufio.NewReaderSize(tcp, 16<<10)
	} else {
		c.in.Reset(tcp)
	}
	return nil
}

func (c *conn) close() {
	if c.tcp != nil {
		_ = c.tcp.Close()
		c.tcp = nil
	}
}

// redialPause keeps a client whose server is away from spinning.
const redialPause = 20 * time.Millisecond

// ready makes sure that there is a connection. It counts one error and pauses
// when none can be made.
func (c *conn) ready(ctx context.Context) bool {
	if c.tcp != nil {
		return true
	}
	err := c.dial(ctx)
	if err == nil {
		return true
	}
	if ctx.Err() == nil {
		c.run.fail(err)
		select {
		case <-time.After(redialPause):
		case <-ctx.Done():
		}
	}
	return false
}

// send writes one request; false retires the connection.
func (c *conn) send() (time.Time, bool) {
	c.buf = c.run.opts.Next(c.index, c.buf[:0])
	if c.buf == nil {
		return time.Time{}, false
	}
	now := time.Now()
	c.run.sent.Add(1)
	_ = c.tcp.SetDeadline(now.Add(c.run.opts.Timeout))
	if _, err := c.tcp.Write(c.buf); err != nil {
		c.run.fail(err)
		c.close()
	}
	return now, true
}

// receive reads one answer and counts it. A connection that failed to send
// has been counted already.
func (c *conn) receive(dueAt, sentAt time.Time) {
	if c.tcp == nil {
		return
	}
	status, keep, err := c.readResponse()
	if err != nil {
		c.run.fail(err)
		c.close()
		return
	}
	now := time.Now()
	c.run.latency.Record(now.Sub(dueAt))
	c.run.service.Record(now.Sub(sentAt))
	c.run.byStatus[status].Add(1)
	if c.run.opts.Done != nil {
		c.run.opts.Done(c.index, status, c.body)
	}
	if !keep {
		c.close()
	}
}
