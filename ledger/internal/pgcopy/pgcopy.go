// Package pgcopy writes and reads the tuples of PostgreSQL's COPY BINARY
// format (documentation of COPY, "Binary Format"). The values are those of the
// types that the ledger uses; none is null.
package pgcopy

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Epoch is 2000-01-01, from which PostgreSQL counts, in µs since the Unix
// epoch; EpochDays is the same in days.
const (
	Epoch     = 946_684_800_000_000
	EpochDays = 10_957
)

// Int64 appends a bigint.
func Int64(b []byte, v int64) []byte {
	return binary.BigEndian.AppendUint64(append(b, 0, 0, 0, 8), uint64(v))
}

// Int32 appends an integer.
func Int32(b []byte, v int32) []byte {
	return binary.BigEndian.AppendUint32(append(b, 0, 0, 0, 4), uint32(v))
}

// Date appends a date given in days since the Unix epoch.
func Date(b []byte, days int64) []byte { return Int32(b, int32(days-EpochDays)) }

// Time appends a timestamptz given in µs since the Unix epoch.
func Time(b []byte, micros int64) []byte { return Int64(b, micros-Epoch) }

// Text appends a text.
func Text(b []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint32(b, uint32(len(s))), s...)
}

// Bytes appends a bytea, or a value that is encoded already.
func Bytes(b, v []byte) []byte {
	return append(binary.BigEndian.AppendUint32(b, uint32(len(v))), v...)
}

// Bool appends a boolean.
func Bool(b []byte, v bool) []byte {
	if v {
		return append(b, 0, 0, 0, 1, 1)
	}
	return append(b, 0, 0, 0, 1, 0)
}

// Tuple appends the column count that begins a tuple.
func Tuple(b []byte, columns int) []byte { return binary.BigEndian.AppendUint16(b, uint16(columns)) }

// Next splits the first column's value off a tuple. A null is not ok.
func Next(row []byte) (value, rest []byte, ok bool) {
	if len(row) < 4 {
		return nil, nil, false
	}
	n := int64(int32(binary.BigEndian.Uint32(row)))
	if n < 0 || int64(len(row)-4) < n {
		return nil, nil, false
	}
	return row[4 : 4+n], row[4+n:], true
}

// The format's signature with flags and extension length, both zero, and its
// trailer.
var (
	signature = []byte("PGCOPY\n\xff\r\n\x00")
	start     = append(bytes.Clone(signature), 0, 0, 0, 0, 0, 0, 0, 0)
	end       = []byte{0xff, 0xff}
)

// Reader returns the whole format around tuples.
func Reader(tuples []byte) io.Reader {
	return io.MultiReader(bytes.NewReader(start), bytes.NewReader(tuples), bytes.NewReader(end))
}

// Sink receives what COPY … TO STDOUT BINARY sends and calls Row for each
// tuple, with the columns after the column count. The row is valid during the
// call only.
type Sink struct {
	Row     func(row []byte) error
	Columns int

	buf     []byte
	started bool
	ended   bool
}

// Write implements io.Writer.
func (s *Sink) Write(p []byte) (int, error) {
	rest := p // the server sends each tuple by itself
	if len(s.buf) > 0 {
		s.buf = append(s.buf, p...)
		rest = s.buf
	}
	for {
		used, err := s.parse(rest)
		if err != nil {
			return 0, err
		}
		if used == 0 {
			break
		}
		rest = rest[used:]
	}
	s.buf = append(s.buf[:0], rest...)
	return len(p), nil
}

// parse takes the header or one tuple off b and returns its length, 0 when it
// is not whole yet.
func (s *Sink) parse(b []byte) (int, error) {
	if !s.started {
		if len(b) < len(start) {
			return 0, nil
		}
		if !bytes.Equal(b[:len(signature)], signature) {
			return 0, errors.New("not COPY BINARY")
		}
		s.started = true
		return len(start) + int(binary.BigEndian.Uint32(b[len(start)-4:])), nil
	}
	if s.ended || len(b) < 2 {
		return 0, nil
	}
	n := int(int16(binary.BigEndian.Uint16(b)))
	if n == -1 {
		s.ended = true
		return 2, nil
	}
	if n != s.Columns {
		return 0, fmt.Errorf("tuple of %d columns, want %d", n, s.Columns)
	}
	rest := b[2:]
	for range n {
		if len(rest) < 4 {
			return 0, nil
		}
		size := int32(binary.BigEndian.Uint32(rest))
		if size < 0 {
			return 0, errors.New("null in a column that has none")
		}
		if len(rest)-4 < int(size) {
			return 0, nil
		}
		rest = rest[4+size:]
	}
	used := len(b) - len(rest)
	return used, s.Row(b[2:used])
}

// Done returns an error when the end of the data was not seen.
func (s *Sink) Done() error {
	if !s.ended || len(s.buf) > 0 {
		return errors.New("COPY ended early")
	}
	return nil
}
