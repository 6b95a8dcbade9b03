package loadclient

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
)

var (
	errCut       = errors.New("a stream ended before its end marker")
	errFailed    = errors.New("a stream carried an error")
	errNoStream  = errors.New("an answer 200 that is no stream in chunks")
	doneMarker   = []byte("[DONE]")
	dataField    = []byte("data:")
	errorPayload = []byte(`{"error"`)
)

// stream follows a body of server-sent events that comes in chunks (RFC 9112,
// 7.1), piece by piece: nothing of it is kept but the start of a line.
type stream struct {
	open    bool // its head is read
	close   bool // its connection closes after it
	left    int  // bytes of the current chunk that are to come
	ending  bool // the chunk's line end is to come
	trailer bool // the last chunk was read

	line   [16]byte // how the current line begins
	length int      // of it
	events int64    // with data, the end marker not counted
	done   bool     // the end marker came
	failed bool     // an event carried an error
}

// feed takes what came, and says how much of it the stream took, and whether
// the stream is over.
func (s *stream) feed(in []byte) (taken int, over bool, err error) {
	for {
		if s.left > 0 {
			n := min(s.left, len(in)-taken)
			s.scan(in[taken : taken+n])
			taken += n
			if s.left -= n; s.left > 0 {
				return taken, false, nil
			}
			s.ending = true
		}
		end := bytes.IndexByte(in[taken:], '\n')
		if end < 0 {
			if len(in)-taken > maxHead {
				err = fmt.Errorf("%w: a chunk's size without end", errFraming)
			}
			return taken, false, err
		}
		line := bytes.TrimSpace(in[taken : taken+end])
		taken += end + 1
		switch {
		case s.ending:
			if s.ending = false; len(line) > 0 {
				return taken, false, fmt.Errorf("%w: %q after a chunk", errFraming, line)
			}
		case s.trailer:
			if len(line) == 0 {
				return taken, true, nil
			}
		default:
			size, _, _ := bytes.Cut(line, []byte(";"))
			n, err := strconv.ParseUint(string(size), 16, 31)
			if err != nil {
				return taken, false, fmt.Errorf("%w: chunk size %q", errFraming, size)
			}
			s.left, s.trailer = int(n), n == 0
		}
	}
}

// scan looks at how each line begins.
func (s *stream) scan(in []byte) {
	for {
		end := bytes.IndexByte(in, '\n')
		part := in
		if end >= 0 {
			part = in[:end]
		}
		s.length += copy(s.line[s.length:], part)
		if end < 0 {
			return
		}
		value, data := bytes.CutPrefix(s.line[:s.length], dataField)
		switch value = bytes.TrimSpace(value); {
		case !data:
		case bytes.Equal(value, doneMarker):
			s.done = true
		default:
			s.events++
			s.failed = s.failed || bytes.HasPrefix(value, errorPayload)
		}
		s.length = 0
		in = in[end+1:]
	}
}

// outcome is nil for a stream that came whole.
func (s *stream) outcome() error {
	switch {
	case s.failed:
		return errFailed
	case !s.done:
		return errCut
	default:
		return nil
	}
}
