package upstream

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// inOne is how much of a request is written on the caller's goroutine, in one
// write. Systems take as much from a writer though nobody reads at the other
// end. What is left of a longer request is written beside the reading: a server
// may answer before it has all, and read no more.
const inOne = 64 << 10

// buffers are for requests on their way out.
var buffers = sync.Pool{New: func() any {
	b := make([]byte, 0, 8<<10)
	return &b
}}

// write writes the request, or its first part, and closes the body in any case.
// Written means that there may be an answer; with an error besides, that there
// may be one though the server took not all.
func (c *conn) write(req *http.Request, body io.ReadCloser) (written bool, err error) {
	buffer := buffers.Get().(*[]byte)
	ours := true
	defer func() {
		if ours {
			closeBody(body)
			giveBuffer(buffer)
		}
	}()
	b, err := appendHead((*buffer)[:0], req)
	*buffer = b
	if err != nil {
		return false, err
	}
	rest := int64(0)
	if hasBody(req) {
		first := min(req.ContentLength, int64(max(inOne-len(b), 4<<10)))
		rest = req.ContentLength - first
		head := len(b)
		if free := cap(b) - head; int64(free) < first {
			b = append(make([]byte, 0, head+int(first)), b...)
		}
		b = b[:head+int(first)]
		*buffer = b
		if _, err = io.ReadFull(body, b[head:]); err == nil && rest == 0 {
			err = mustEnd(body)
		}
		if err != nil {
			return false, fmt.Errorf("upstream: the request's body: %w", err)
		}
	}
	if _, err = c.raw.Write(b); err != nil {
		return closedByServer(err), err
	}
	if rest > 0 {
		ours = false
		return true, c.writeRest(body, rest, buffer)
	}
	return true, nil
}

func giveBuffer(buffer *[]byte) {
	if cap(*buffer) <= 2*inOne {
		buffers.Put(buffer)
	}
}

// writeRest writes the rest of a body beside the reading.
func (c *conn) writeRest(body io.ReadCloser, rest int64, buffer *[]byte) error {
	wait := c.pool.opts.ResponseTimeout
	if wait > 0 {
		// The wait for an answer begins when all is written.
		if err := c.raw.SetReadDeadline(time.Time{}); err != nil {
			closeBody(body)
			return err
		}
	}
	writing := make(chan error, 1)
	c.writing = writing
	go func() {
		defer giveBuffer(buffer)
		err := c.copyRest(body, rest, (*buffer)[:cap(*buffer)])
		closeBody(body)
		if err == nil && wait > 0 {
			c.mu.Lock()
			_ = c.raw.SetWriteDeadline(time.Time{}) // fails if the connection is closed: so will the reading
			if !c.headRead {
				_ = c.raw.SetReadDeadline(time.Now().Add(wait))
			}
			c.mu.Unlock()
		}
		writing <- err
		if err != nil && !closedByServer(err) {
			_ = c.raw.Close() // no answer is waited for
		}
	}()
	return nil
}

func (c *conn) copyRest(body io.Reader, rest int64, b []byte) error {
	for rest > 0 {
		n, err := io.ReadFull(body, b[:min(int64(len(b)), rest)])
		if err != nil {
			return fmt.Errorf("upstream: the request's body: %w", err)
		}
		rest -= int64(n)
		if rest == 0 {
			if err := mustEnd(body); err != nil {
				return err
			}
		}
		if wait := c.pool.opts.ResponseTimeout; wait > 0 {
			if err := c.raw.SetWriteDeadline(time.Now().Add(wait)); err != nil {
				return err
			}
		}
		if _, err := c.raw.Write(b[:n]); err != nil {
			return err
		}
	}
	return nil
}

// mustEnd says that a body is longer than it should be: the server would take
// the rest for another request.
func mustEnd(body io.Reader) error {
	var one [1]byte
	for range 100 {
		n, err := body.Read(one[:])
		switch {
		case n > 0:
			return errors.New("upstream: the request's body is longer than was said")
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
	return io.ErrNoProgress
}

// appendHead appends a request's head. Names and values have been checked.
func appendHead(b []byte, req *http.Request) ([]byte, error) {
	method := req.Method
	if method == "" {
		method = http.MethodGet
	}
	target := req.URL.RequestURI()
	if !allIn(target, &targetBytes) {
		return b, errors.New("upstream: the request's URL has a space or a control character")
	}
	host := req.Host
	if host == "" {
		host = req.URL.Host
	}
	b = append(b, method...)
	b = append(b, ' ')
	b = append(b, target...)
	b = append(b, " HTTP/1.1\r\nHost: "...)
	b = append(b, host...)
	b = append(b, '\r', '\n')
	if hasBody(req) || method == http.MethodPost || method == http.MethodPut || method == http.MethodPatch {
		b = append(b, "Content-Length: "...)
		b = strconv.AppendInt(b, req.ContentLength, 10)
		b = append(b, '\r', '\n')
	}
	if req.Close {
		b = append(b, "Connection: close\r\n"...)
	}
	for name, values := range req.Header {
		if isFraming(name) {
			continue // said above, or not at all
		}
		for _, value := range values {
			b = append(b, name...)
			b = append(b, ':', ' ')
			b = append(b, value...)
			b = append(b, '\r', '\n')
		}
	}
	return append(b, '\r', '\n'), nil
}

// isFraming says that a header field, however it is spelled, is for this package
// to set.
func isFraming(name string) bool {
	switch len(name) {
	case len("Host"):
		return strings.EqualFold(name, "Host")
	case len("Trailer"):
		return strings.EqualFold(name, "Trailer")
	case len("Content-Length"):
		return strings.EqualFold(name, "Content-Length")
	case len("Transfer-Encoding"):
		return strings.EqualFold(name, "Transfer-Encoding")
	}
	return false
}
