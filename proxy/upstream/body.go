package upstream

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
)

// answerBody is an answer's body, and gives the connection back at its end. It
// may be closed while it is read.
type answerBody struct {
	from io.ReadCloser
	conn *conn
	ctx  context.Context // of the request
	keep bool            // the connection is good for another request

	mu      sync.Mutex
	reading bool
	closed  bool
	ended   error // what Read returns once the connection is not this body's
}

// fewBytes is how much of an answer is read that nobody wants, if it is here
// already, so that the connection can be kept.
const fewBytes = 4 << 10

// Read implements io.Reader.
func (b *answerBody) Read(dst []byte) (int, error) {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return 0, http.ErrBodyReadAfterClose
	}
	if b.ended != nil {
		b.mu.Unlock()
		return 0, b.ended
	}
	b.reading = true
	b.mu.Unlock()
	n, err := b.from.Read(dst)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reading = false
	if err == nil && !b.closed {
		return n, nil
	}
	whole := errors.Is(err, io.EOF)
	own := b.conn.end(whole && b.keep && !b.closed)
	switch {
	case whole:
	case b.closed:
		err = http.ErrBodyReadAfterClose
	case !own:
		err = context.Cause(b.ctx)
	}
	b.ended = err
	return n, err
}

// Close implements io.Closer. Without all of the body read, the connection is
// closed, unless the little that is left has come already.
func (b *answerBody) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil
	}
	b.closed = true
	switch {
	case b.reading:
		_ = b.conn.raw.Close() // the reader returns, and sees to the rest
	case b.ended == nil:
		b.ended = http.ErrBodyReadAfterClose
		b.conn.end(b.keep && b.drain())
	}
	return nil
}

// drain reads what is left of the body, if it is little and here; true: that was
// all.
func (b *answerBody) drain() bool {
	b.conn.bound, b.conn.left = true, 0
	var scratch [512]byte
	for n := 0; n < fewBytes; {
		more, err := b.from.Read(scratch[:])
		n += more
		if err != nil {
			return errors.Is(err, io.EOF)
		}
	}
	return false
}
