package httpapi

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime/debug"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"
)

// conn serves one connection as long as its requests are plain; see readHead.
// With the first one that is not, or that does not come in one piece, the
// connection is net/http's for good, the unread request included.
//
// It sets no timers and asks for no deadlines: the conns' watch looks at all
// connections now and then and wakes those that wait too long.
type conn struct {
	net.Conn
	owner *conns

	buf  [maxHead]byte
	from int // buf[from:to] is read and not used yet
	to   int
	rest int64 // bytes of the request's body that are not used yet
	// broken says that the request's body did not come.
	broken bool

	// state is what the connection waits for and since which look of the watch.
	// The connection and its watch both change it, by compare-and-swap: one that
	// the watch has cut must not begin anything.
	state    atomic.Uint64
	deciding atomic.Pointer[decision]
	gone     atomic.Bool // the client left while its request was decided
}

// phase is what a connection waits for.
type phase uint64

const (
	phaseCut    phase = iota // by the watch; nothing is waited for any more
	phaseNew                 // a first request
	phaseIdle                // the next request
	phaseBody                // the rest of a body
	phaseAnswer              // the decision: it has a deadline of its own
	phaseWrite               // the client, to take the answer
	phaseCount
)

// patience is how long a connection may stay in a phase; 0 is for ever.
var patience = [phaseCount]time.Duration{
	phaseNew: readHeaderTimeout, phaseIdle: idleTimeout, phaseBody: readTimeout, phaseWrite: writeTimeout,
}

var (
	errCut       = errors.New("the connection was cut")
	errHandOver  = errors.New("the request is not plain")
	headerFinish = []byte("\r\n\r\n")
)

// enter changes the phase; false when the watch has cut the connection.
func (c *conn) enter(p phase) bool {
	was := c.state.Load()
	return phase(was%uint64(phaseCount)) != phaseCut &&
		c.state.CompareAndSwap(was, c.owner.looks.Load()*uint64(phaseCount)+uint64(p))
}

// cut ends the wait of a connection that is still in the state was.
func (c *conn) cut(was uint64) {
	if !c.state.CompareAndSwap(was, uint64(phaseCut)) {
		return
	}
	longAgo := time.Unix(1, 0)
	if phase(was%uint64(phaseCount)) == phaseWrite {
		_ = c.SetWriteDeadline(longAgo)
	} else {
		_ = c.SetReadDeadline(longAgo)
	}
}

// serve answers requests until the connection ends or is handed over.
func (c *conn) serve() {
	defer c.owner.remove(c)
	defer func() { // what call.crashed passes on, and what went wrong outside of it
		caught := recover()
		if caught == nil {
			return
		}
		_ = c.Close()
		if err, ok := caught.(error); !ok || !errors.Is(err, http.ErrAbortHandler) {
			c.owner.server.log.Error("connection failed", "error", fmt.Errorf("panic: %v\n%s", caught, debug.Stack()))
		}
	}()
	for first := phaseNew; ; first = phaseIdle {
		a, err := c.next(first)
		if errors.Is(err, errHandOver) {
			c.owner.handOver(c)
			return
		}
		if err != nil {
			break
		}
		if !c.answer(a) {
			break
		}
	}
	_ = c.Close()
}

// next waits for a request and reads its head.
func (c *conn) next(wait phase) (asked, error) {
	if c.from == c.to {
		c.from, c.to = 0, 0
		// Whoever stops the server looks at the phase after it has said so; one
		// of the two notices the other.
		if wait != phaseNew && (!c.enter(wait) || c.owner.stopping.Load()) {
			return asked{}, errCut
		}
		n, err := c.Read(c.buf[:])
		if n == 0 {
			return asked{}, err
		}
		c.to = n
	}
	unread := c.buf[c.from:c.to]
	if c.owner.server.opts.FrontDoor != nil && !beginsLikeAPI(unread) {
		return asked{}, errHandOver
	}
	end := bytes.Index(unread, headerFinish)
	if end < 0 {
		return asked{}, errHandOver
	}
	end += len(headerFinish)
	a, ok := readHead(string(unread[:end]))
	if !ok || a.length > c.owner.server.opts.MaxBodyBytes || a.urlBytes > maxURLBytes {
		return asked{}, errHandOver
	}
	c.from += end
	c.rest = max(a.length, 0)
	return a, nil
}

// answer answers one request; false ends the connection.
func (c *conn) answer(a asked) bool {
	if !c.enter(phaseAnswer) {
		return false
	}
	call := c.owner.server.calls.Get().(*call)
	call.conn, call.asked = c, a
	c.owner.server.answer(call)
	return !c.broken && c.passOver() && !c.owner.stopping.Load() && !c.gone.Load()
}

// passOver skips a body that nobody wanted, such as one without a credential.
func (c *conn) passOver() bool {
	n := min(int64(c.to-c.from), c.rest)
	c.from += int(n)
	if c.rest -= n; c.rest == 0 {
		return true
	}
	if !c.enter(phaseBody) {
		return false
	}
	_, err := io.CopyN(io.Discard, c.Conn, c.rest)
	c.rest = 0
	return err == nil
}

// readBody fills dst from the request's body, which has at least as many bytes.
func (c *conn) readBody(dst []byte) (int, error) {
	n := copy(dst, c.buf[c.from:c.to])
	c.from += n
	c.rest -= int64(n)
	if n == len(dst) {
		return n, nil
	}
	if !c.enter(phaseBody) {
		return n, errCut
	}
	more, err := io.ReadFull(c.Conn, dst[n:])
	c.rest -= int64(more)
	if err != nil || !c.enter(phaseAnswer) {
		// The client is told, and that is all that happens here.
		c.broken = true
		c.state.Store(c.owner.looks.Load()*uint64(phaseCount) + uint64(phaseAnswer))
		return n + more, cmp.Or(err, errCut)
	}
	return n + more, nil
}

// decide is the context of one decision, which ends in time and, unless it
// stays, with the client.
func (c *conn) decide(stays bool) (context.Context, context.CancelFunc) {
	d := &decision{deadline: time.Now().Add(c.owner.server.opts.RequestTimeout), stays: stays}
	c.deciding.Store(d)
	c.owner.wake()
	return d, func() {
		c.deciding.Store(nil)
		d.end(context.Canceled)
	}
}

// look is the watch's look at a decision that takes long.
func (c *conn) look(d *decision, now time.Time) {
	if !now.Before(d.deadline) {
		d.end(context.DeadlineExceeded)
		return
	}
	if d.looks++; !d.stays && d.looks%2 == 0 && c.left() {
		c.gone.Store(true)
		d.end(context.Canceled)
	}
}

// left says whether the client has closed its side. It reads nothing.
func (c *conn) left() bool {
	raw, ok := c.Conn.(syscall.Conn)
	if !ok {
		return false
	}
	access, err := raw.SyscallConn()
	if err != nil {
		return true
	}
	left := false
	err = access.Control(func(fd uintptr) {
		var one [1]byte
		n, _, err := syscall.Recvfrom(int(fd), one[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		left = n <= 0 && !errors.Is(err, syscall.EAGAIN) && !errors.Is(err, syscall.EINTR)
	})
	return left || err != nil
}

// Read gives net/http, once the connection is its, what was read before.
func (c *handed) Read(dst []byte) (int, error) {
	if len(c.first) > 0 {
		n := copy(dst, c.first)
		if c.first = c.first[n:]; len(c.first) == 0 {
			c.first = nil // a stream may keep the connection for long
		}
		return n, nil
	}
	return c.Conn.Read(dst)
}

// handed is a connection that is net/http's now.
type handed struct {
	net.Conn
	first []byte
}

// statusLines are those of the statuses that the API has.
var statusLines = func() (lines [600]string) {
	for status := range lines {
		if text := http.StatusText(status); text != "" {
			lines[status] = "HTTP/1.1 " + strconv.Itoa(status) + " " + text + "\r\n"
		}
	}
	return lines
}()

// sendWire writes the answer as it goes over the connection.
func (c *call) sendWire(contentType string) {
	w := append(c.wire[:0], statusLines[c.status]...)
	w = append(w, "Content-Type: "...)
	w = append(w, contentType...)
	w = append(w, "\r\nCache-Control: no-store\r\n"...)
	w = append(w, c.head...)
	w = append(w, *c.conn.owner.date.Load()...)
	if c.conn.broken || c.conn.owner.stopping.Load() {
		w = append(w, "Connection: close\r\n"...)
	}
	w = strconv.AppendInt(append(w, "Content-Length: "...), int64(len(c.out)), 10)
	w = append(w, "\r\n\r\n"...)
	c.wire = append(w, c.out...)
	if !c.conn.enter(phaseWrite) {
		return
	}
	// An error means that the client is gone; the next read finds out.
	_, _ = c.conn.Write(c.wire)
}
