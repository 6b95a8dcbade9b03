package loadclient

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// loop is one run: all connections, driven by one thread. A goroutine for each
// connection would cost as much as the request itself: it parks and is woken
// for every answer, and each read first finds nothing.
type loop struct {
	opts     Options
	ctx      context.Context // the run's, and its end; a loop is one run
	end      context.CancelFunc
	poll     int // epoll's descriptor
	events   []unix.EpollEvent
	start    time.Time
	deadline time.Time // zero: none

	conns   []*conn
	live    int // connections that are not retired
	waiting int // for an answer
	idle    []*conn

	// Dials go on beside the loop, which looks for their end while there are any.
	dialing int
	dialed  chan dialed
	dials   sync.WaitGroup

	drawn    int64 // requests of the run so far
	sweepAt  time.Time
	scratch  []byte
	sent     int64
	errors   int64
	lastErr  error
	elapsed  time.Duration
	byStatus [maxStatus]int64
	latency  *Histogram
	service  *Histogram
	first    *Histogram
	streamed int64 // events
}

// conn is one keep-alive connection.
type conn struct {
	index   int
	fd      int // -1: none now
	out     []byte
	in      []byte // in[:got] was received for the answer that is awaited
	got     int
	waiting bool
	dueAt   time.Time
	sentAt  time.Time
	stream  stream
}

type dialed struct {
	conn *conn
	fd   int
	err  error
}

func newLoop(ctx context.Context, opts Options) (*loop, error) {
	l := &loop{
		opts: opts, events: make([]unix.EpollEvent, 128), latency: NewHistogram(), service: NewHistogram(), first: NewHistogram(),
		dialed: make(chan dialed, opts.Conns),
	}
	l.ctx, l.end = context.WithCancel(ctx)
	var err error
	if l.poll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		l.end()
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	for i := range opts.Conns {
		c := &conn{index: i, fd: -1, in: make([]byte, 8<<10)}
		l.conns = append(l.conns, c)
		fd, err := dial(ctx, opts)
		if err == nil {
			err = l.attach(c, fd)
		}
		if err != nil {
			l.close()
			return nil, err
		}
	}
	return l, nil
}

// dial returns the descriptor of a new connection, which is the loop's alone.
func dial(ctx context.Context, opts Options) (int, error) {
	d := net.Dialer{Timeout: opts.Timeout}
	c, err := d.DialContext(ctx, "tcp", opts.Addr)
	if err != nil {
		return -1, err
	}
	defer func() { _ = c.Close() }() // the runtime's poller must not see it
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		return -1, err
	}
	fd, dupErr := -1, error(nil)
	err = raw.Control(func(theirs uintptr) {
		fd, dupErr = unix.FcntlInt(theirs, unix.F_DUPFD_CLOEXEC, 0)
	})
	return fd, errors.Join(err, os.NewSyscallError("fcntl", dupErr))
}

// attach makes fd the connection's.
func (l *loop) attach(c *conn, fd int) error {
	c.fd, c.got = fd, 0
	event := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLRDHUP, Fd: int32(c.index)}
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(l.poll, unix.EPOLL_CTL_ADD, fd, &event))
}

func (l *loop) close() {
	l.end()
	for _, c := range l.conns {
		l.drop(c)
	}
	_ = unix.Close(l.poll)
}

func (l *loop) drop(c *conn) {
	if c.fd >= 0 {
		_ = unix.Close(c.fd) // which also takes it out of epoll
		c.fd = -1
	}
}

// run drives the connections until the end of the run.
func (l *loop) run() {
	// The kernel may end a thread's sleep 50 µs late. That would be charged to
	// the server, so this thread asks for less.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1000, 0, 0, 0)
	defer func() { _ = unix.Prctl(unix.PR_SET_TIMERSLACK, 0, 0, 0, 0) }() // the default again

	l.start = time.Now()
	l.live = len(l.conns)
	if l.opts.Duration > 0 {
		l.deadline = l.start.Add(l.opts.Duration)
	}
	for _, c := range l.conns {
		l.free(c)
	}
	for {
		var next time.Time // when the loop must wake by itself
		if l.opts.Rate > 0 {
			next = l.sendDue()
		}
		if l.over() {
			l.end() // also of the dials
			if l.waiting == 0 {
				break
			}
		} else if l.live == 0 {
			break
		}
		l.await(next)
		l.takeDialed()
	}
	l.elapsed = time.Since(l.start)
	l.end()
	l.dials.Wait()
	for l.dialing > 0 {
		if d := <-l.dialed; d.fd >= 0 {
			_ = unix.Close(d.fd)
		}
		l.dialing--
	}
}

// over says that no request will be sent any more.
func (l *loop) over() bool {
	return l.ctx.Err() != nil || l.opts.Requests > 0 && l.drawn >= l.opts.Requests ||
		!l.deadline.IsZero() && !time.Now().Before(l.deadline)
}

// free says that a connection can carry a request: a closed loop sends the next.
func (l *loop) free(c *conn) {
	if l.opts.Rate > 0 {
		l.idle = append(l.idle, c)
		return
	}
	if !l.over() {
		l.send(c, time.Time{})
	}
}

// sendDue sends what is due, as far as connections are idle, and returns when
// the next request is due; zero when that depends on an answer.
func (l *loop) sendDue() time.Time {
	for l.opts.Requests <= 0 || l.drawn < l.opts.Requests {
		dueAt := l.start.Add(time.Duration(l.drawn * int64(time.Second) / int64(l.opts.Rate)))
		if l.ctx.Err() != nil || !l.deadline.IsZero() && !dueAt.Before(l.deadline) {
			return l.deadline
		}
		if len(l.idle) == 0 {
			return time.Time{}
		}
		if time.Until(dueAt) > 0 {
			return dueAt
		}
		c := l.idle[0]
		l.idle = append(l.idle[:0], l.idle[1:]...)
		l.send(c, dueAt)
	}
	return time.Time{}
}

// send writes the next request. DueAt is zero in a closed loop.
func (l *loop) send(c *conn, dueAt time.Time) {
	c.out = l.opts.Next(c.index, c.out[:0])
	if c.out == nil {
		l.live--
		l.drop(c)
		return
	}
	l.drawn++
	l.sent++
	c.sentAt = time.Now()
	c.dueAt = dueAt
	if dueAt.IsZero() {
		c.dueAt = c.sentAt
	}
	// A request is smaller than the socket's buffer, which is empty: a write
	// that would block or falls short means that the server is not reading.
	n, err := unix.Write(c.fd, c.out)
	if err == nil && n < len(c.out) {
		err = io.ErrShortWrite
	}
	c.waiting = true
	c.stream = stream{}
	l.waiting++
	if err != nil {
		l.fail(c, os.NewSyscallError("write", err))
	}
}

// fail counts the request under way as an error and replaces the connection.
func (l *loop) fail(c *conn, err error) {
	l.errors++
	l.lastErr = err
	l.settle(c)
	l.redial(c, 0)
}

// settle: the connection's request has its outcome.
func (l *loop) settle(c *conn) {
	c.waiting = false
	l.waiting--
}

// redialPause keeps a client whose server is away from spinning.
const redialPause = 20 * time.Millisecond

func (l *loop) redial(c *conn, pause time.Duration) {
	l.drop(c)
	if l.over() {
		return
	}
	l.dialing++
	l.dials.Go(func() {
		select {
		case <-time.After(pause):
		case <-l.ctx.Done():
		}
		fd, err := dial(l.ctx, l.opts)
		l.dialed <- dialed{c, fd, err}
	})
}

// takeDialed puts connections that were replaced to work. A dial that failed
// uses up one of the run's requests, so that a run against nobody ends.
func (l *loop) takeDialed() {
	for l.dialing > 0 {
		select {
		case d := <-l.dialed:
			l.dialing--
			if d.err == nil {
				d.err = l.attach(d.conn, d.fd)
			}
			if d.err == nil {
				l.free(d.conn)
				continue
			}
			if !l.over() {
				l.errors++
				l.lastErr = d.err
				l.drawn++
				l.redial(d.conn, redialPause)
			}
		default:
			return
		}
	}
}

// sweepEvery is how often the loop looks for exchanges that take too long, and
// at its context.
const sweepEvery = 50 * time.Millisecond

// await waits until a connection has news or the given time has come, and
// handles the news.
func (l *loop) await(until time.Time) {
	now := time.Now()
	if l.dialing > 0 {
		until = now.Add(time.Millisecond)
	}
	if sweep := now.Add(sweepEvery); until.IsZero() || sweep.Before(until) {
		until = sweep
	}
	if !l.deadline.IsZero() && now.Before(l.deadline) && l.deadline.Before(until) {
		until = l.deadline
	}
	n, err := 0, error(nil)
	if wait := until.Sub(now); l.opts.Rate > 0 {
		// Epoll's own timeout is in milliseconds: a request would be late.
		spec := unix.NsecToTimespec(int64(max(wait, 0)))
		n, err = unix.Ppoll([]unix.PollFd{{Fd: int32(l.poll), Events: unix.POLLIN}}, &spec, nil)
		if n > 0 && err == nil {
			n, err = unix.EpollWait(l.poll, l.events, 0)
		}
	} else {
		n, err = unix.EpollWait(l.poll, l.events, int(max(wait.Milliseconds(), 1)))
	}
	if err != nil { // a signal; the loop comes again
		return
	}
	for i := range n {
		l.receive(l.conns[l.events[i].Fd])
	}
	if !now.Before(l.sweepAt) {
		l.sweepAt = now.Add(sweepEvery)
		l.sweep(now)
	}
}

// sweep ends exchanges that take too long.
func (l *loop) sweep(now time.Time) {
	for _, c := range l.conns {
		if c.waiting && now.Sub(c.sentAt) > l.opts.Timeout {
			l.fail(c, os.ErrDeadlineExceeded)
		}
	}
}

var errUnasked = errors.New("the server sent something that was not asked for")

// receive reads what a connection has, once: the rest, if any, is news again.
func (l *loop) receive(c *conn) {
	if c.fd < 0 {
		return
	}
	if c.got == len(c.in) {
		c.in = append(c.in, make([]byte, len(c.in))...)
	}
	n, err := unix.Read(c.fd, c.in[c.got:])
	switch {
	case errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR):
		return
	case !c.waiting:
		l.lost(c, n)
		return
	case err != nil:
		l.fail(c, os.NewSyscallError("read", err))
		return
	}
	ended := n == 0
	c.got += n
	if l.opts.Streams && l.follow(c, ended) {
		return
	}
	a, err := parse(c.in[:c.got], ended, &l.scratch)
	switch {
	case errors.Is(err, errMore) && !ended:
		return
	case err != nil:
		l.fail(c, err)
		return
	}
	l.answered(c, a, ended)
}

// answered counts an answer and frees its connection.
func (l *loop) answered(c *conn, a answer, ended bool) {
	now := time.Now()
	l.settle(c)
	l.latency.Record(now.Sub(c.dueAt))
	l.service.Record(now.Sub(c.sentAt))
	l.byStatus[a.status]++
	if l.opts.Done != nil {
		l.opts.Done(c.index, a.status, a.body)
	}
	if more := c.got - a.size; more > 0 {
		l.lost(c, more)
		return
	}
	if ended || !a.keep {
		l.redial(c, 0)
		return
	}
	c.got = 0
	l.free(c)
}

// follow takes what came of a stream. False: it is no stream, or not known yet.
func (l *loop) follow(c *conn, ended bool) bool {
	if !c.stream.open {
		h, err := parseHead(c.in[:c.got])
		for err == nil && h.status < http.StatusOK { // an interim answer; the final one follows
			c.got = copy(c.in, c.in[h.size:c.got])
			h, err = parseHead(c.in[:c.got])
		}
		if err != nil || h.status != http.StatusOK {
			return false
		}
		if !h.chunked {
			l.fail(c, errNoStream)
			return true
		}
		c.stream = stream{open: true, close: !h.keep}
		c.got = copy(c.in, c.in[h.size:c.got])
	}
	before := c.stream.events
	taken, over, err := c.stream.feed(c.in[:c.got])
	l.streamed += c.stream.events - before
	if before == 0 && c.stream.events > 0 {
		l.first.Record(time.Since(c.dueAt))
		if l.opts.Began != nil {
			l.opts.Began(c.index)
		}
	}
	c.got = copy(c.in, c.in[taken:c.got])
	switch {
	case over:
		err = c.stream.outcome()
	case ended && err == nil:
		err = errCut
	}
	switch {
	case err != nil:
		l.fail(c, err)
	case over:
		keep := !c.stream.close
		c.stream = stream{}
		l.answered(c, answer{status: http.StatusOK, keep: keep}, ended)
	}
	return true
}

// lost replaces a connection that its server has closed between requests, which
// it may, or on which n bytes came that nobody asked for, which is an error.
func (l *loop) lost(c *conn, n int) {
	if n > 0 {
		l.errors++
		l.lastErr = errUnasked
	}
	l.idle = slices.DeleteFunc(l.idle, func(other *conn) bool { return other == c })
	l.redial(c, 0)
}

func (l *loop) result() Result {
	res := Result{
		Sent: l.sent, Errors: l.errors, LastErr: l.lastErr, Elapsed: l.elapsed,
		Latency: l.latency, Service: l.service, FirstEvent: l.first, Events: l.streamed, ByStatus: make(map[int]int64),
	}
	for status, n := range l.byStatus {
		if n > 0 {
			res.ByStatus[status] = n
		}
	}
	return res
}
