package upstream

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"
)

// conn is a connection. It has one request at a time, and belongs to whoever
// does that.
type conn struct {
	raw  net.Conn
	pool *pool
	r    *bufio.Reader // reads through Read
	used int           // requests so far
	// reused says that the server may have closed it for being idle.
	reused    bool
	idleSince time.Time

	// access and look look at an idle connection's socket; nil where there is none.
	access syscall.RawConn
	look   func(fd uintptr)
	silent bool // what look has found

	cut  func()      // closes the connection
	stop func() bool // ends the watch of the request's context
	got  int64       // bytes of the answer
	// failed is what the last read came to: who reads a head may call it malformed
	// when it is only cut.
	failed error
	// left is how many bytes may be read; with bound unset, it means nothing.
	left  int64
	bound bool
	// writing gets the outcome where the body is written beside the reading; else
	// it is nil.
	writing chan error

	mu       sync.Mutex
	headRead bool // the deadline of reads is not the writer's to set any more
}

// maxInterim is how many interim answers (1xx) a request may have.
const maxInterim = 5

var (
	errHeadTooLong = errors.New("upstream: the answer's head is too long")
	errNotHere     = errors.New("upstream: not read so far")
)

func newConn(p *pool, raw net.Conn) *conn {
	c := &conn{raw: raw, pool: p}
	c.r = bufio.NewReaderSize(c, 4<<10)
	c.cut = func() { _ = c.raw.Close() }
	if socket, ok := raw.(syscall.Conn); ok {
		if access, err := socket.SyscallConn(); err == nil {
			c.access, c.look = access, c.lookAt
		}
	}
	return c
}

// Read implements io.Reader for the buffered reader, within the bound.
func (c *conn) Read(dst []byte) (int, error) {
	if c.bound {
		if c.left <= 0 {
			c.failed = errNotHere
			return 0, errNotHere
		}
		dst = dst[:min(int64(len(dst)), c.left)]
	}
	n, err := c.raw.Read(dst)
	c.failed = err
	c.got += int64(n)
	c.left -= int64(n)
	return n, err
}

// exchange does one request. With an error the connection is closed, and the
// body, too, in any case. The answer's body gives the connection back.
func (c *conn) exchange(req *http.Request, body io.ReadCloser) (*http.Response, error) {
	ctx := req.Context()
	c.used++
	c.got, c.failed, c.writing, c.headRead = 0, nil, nil, false
	// Closed connections end every wait, whatever deadline is set at that moment.
	c.stop = context.AfterFunc(ctx, c.cut)
	resp, whole, err := c.writeAndRead(req, body)
	if err != nil {
		if !c.end(false) {
			err = context.Cause(ctx)
		}
		return nil, err
	}
	keep := whole && !resp.Close && !req.Close && len(req.Header["Connection"]) == 0
	if resp.Body == nil || resp.Body == http.NoBody {
		if !c.end(keep) {
			return nil, context.Cause(ctx)
		}
		return resp, nil
	}
	resp.Body = &answerBody{from: resp.Body, conn: c, ctx: ctx, keep: keep}
	return resp, nil
}

// writeAndRead writes the request and reads the answer's head. Unless the
// request was written whole, the connection is good for nothing after it.
func (c *conn) writeAndRead(req *http.Request, body io.ReadCloser) (resp *http.Response, whole bool, err error) {
	wait := c.pool.opts.ResponseTimeout
	if wait > 0 {
		if err := c.raw.SetDeadline(time.Now().Add(wait)); err != nil {
			closeBody(body)
			return nil, false, err
		}
	}
	written, failed := c.write(req, body)
	if !written {
		return nil, false, failed
	}
	resp, err = c.readHead(req)
	if err != nil {
		return nil, false, c.whyBroken(err, failed)
	}
	if wait > 0 {
		c.mu.Lock()
		c.headRead = true
		if c.writing == nil {
			err = c.raw.SetDeadline(time.Time{})
		} else {
			err = c.raw.SetReadDeadline(time.Time{})
		}
		c.mu.Unlock()
	}
	return resp, failed == nil, err
}

// whyBroken prefers the writing's error where it explains the reading's.
func (c *conn) whyBroken(read, write error) error {
	if c.writing != nil {
		select {
		case write = <-c.writing:
			c.writing <- write
		default:
		}
	}
	switch {
	case write == nil:
		return read
	case closedByServer(write) && c.got == 0:
		return write // and the reading's is the same, or nearly
	case closedByServer(write):
		return read
	default:
		return write
	}
}

// readHead reads the final answer's head.
func (c *conn) readHead(req *http.Request) (*http.Response, error) {
	c.bound, c.left = true, c.pool.opts.MaxHeaderBytes
	for range maxInterim + 1 {
		if _, err := c.r.Peek(1); err != nil {
			return nil, c.headError(err)
		}
		resp, err := http.ReadResponse(c.r, req)
		if err != nil {
			return nil, c.headError(err)
		}
		switch code := resp.StatusCode; {
		case code == http.StatusSwitchingProtocols:
			return nil, errors.New("upstream: the server changed the protocol without being asked")
		case code < 100 || code > 199:
			c.bound = false
			return resp, nil
		}
	}
	return nil, fmt.Errorf("upstream: more than %d interim answers", maxInterim)
}

func (c *conn) headError(err error) error {
	switch {
	case errors.Is(c.failed, errNotHere):
		return errHeadTooLong
	case c.failed != nil && !errors.Is(c.failed, io.EOF):
		return c.failed
	}
	return err
}

// stale says that the connection was closed by the server before the request
// that failed with err came to it.
func (c *conn) stale(err error) bool { return c.reused && c.got == 0 && closedByServer(err) }

// end gives the connection back if it may be kept, else closes it; false when
// the request's context has closed it.
func (c *conn) end(keep bool) bool {
	own := c.stop()
	if c.writing != nil {
		select {
		case err := <-c.writing:
			keep = keep && err == nil
		default:
			keep = false // the server did not want all of it
		}
	}
	// What comes after an answer answers nothing that was asked.
	if own && keep && c.r.Buffered() == 0 {
		c.pool.put(c)
		return true
	}
	_ = c.raw.Close()
	c.pool.gone()
	return own
}

// quiet says that an idle connection is as it was left: neither closed by the
// server nor with bytes that nobody asked for. It reads nothing.
func (c *conn) quiet() bool {
	if c.access == nil {
		return true
	}
	c.silent = false
	return c.access.Control(c.look) == nil && c.silent
}

func (c *conn) lookAt(fd uintptr) {
	var one [1]byte
	for {
		_, _, err := syscall.Recvfrom(int(fd), one[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		c.silent = errors.Is(err, syscall.EAGAIN)
		return
	}
}
