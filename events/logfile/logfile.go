// Package logfile keeps a copy of the log in a file, for archives, for audits
// away from Kafka, and for replays.
//
// The format is JSON Lines (UTF-8, one object a line, each ended by a newline):
//
//	{"topic":"tollgate.events.v1","partition":0,"offset":17,"time":"2026-08-19T16:00:00.123Z",
//	 "headers":[{"key":"ce_id","value":"…"}],"key":"acme","value":"{…}"}
//	…
//	{"end":true,"records":18,"sha256":"…"}
//
// The record lines (one line each, broken here for reading) hold a record as
// Kafka has it. Bytes that are valid UTF-8 stand as a string; others stand in
// base64 under key_base64 or value_base64; null is left out. Records of one
// partition are in the order of their offsets; partitions may be mixed. The
// last line counts the record lines and has the SHA-256 of all bytes before
// it, so that a file which was cut off or changed is found.
//
// A line has at most MaxLineBytes. Unknown fields, out of order offsets and
// anything after the last line are errors.
package logfile

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"sync"

	"tollgate/events"
)

// MaxLineBytes bounds a line, its newline included.
const MaxLineBytes = 16 << 20

// Errors of a file as a whole.
var (
	ErrTruncated = errors.New("log file has no last line: it was cut off, export it again")
	ErrChecksum  = errors.New("log file's checksum does not fit its content: it was changed or damaged")
)

// end is the last line.
type end struct {
	End     bool   `json:"end"`
	Records int64  `json:"records"`
	SHA256  string `json:"sha256"`
}

// endPrefix tells the last line from a record's.
var endPrefix = []byte(`{"end":`)

// Writer writes a log file. It is safe for concurrent use, as ReadAll of the
// log calls from several partitions.
type Writer struct {
	mu      sync.Mutex
	w       *bufio.Writer
	sum     hash.Hash
	records int64
	failed  error
}

// NewWriter returns a writer to w. The file is whole only after Close.
func NewWriter(w io.Writer) *Writer {
	return &Writer{w: bufio.NewWriterSize(w, 1<<20), sum: sha256.New()}
}

// Write appends records. After an error every call returns it.
func (w *Writer) Write(records []events.Record) error {
	// Encoding is outside the lock, so that partitions share the work.
	var buf []byte
	for i := range records {
		r := &records[i]
		before := len(buf)
		buf = append(events.AppendRecord(buf, r), '\n')
		if n := len(buf) - before; n > MaxLineBytes {
			return fmt.Errorf("record at offset %d of %s partition %d takes a line of %d bytes, more than %d", r.Offset, r.Topic, r.Partition, n, MaxLineBytes)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failed != nil {
		return w.failed
	}
	w.records += int64(len(records))
	w.sum.Write(buf)
	if _, err := w.w.Write(buf); err != nil {
		w.failed = fmt.Errorf("write log file: %w", err)
	}
	return w.failed
}

// Close writes the last line and flushes. It does not close what is below.
func (w *Writer) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failed != nil {
		return w.failed
	}
	last, err := json.Marshal(end{End: true, Records: w.records, SHA256: hex.EncodeToString(w.sum.Sum(nil))})
	if err != nil {
		return err
	}
	if _, err := w.w.Write(append(last, '\n')); err != nil {
		return fmt.Errorf("write log file: %w", err)
	}
	w.failed = errors.New("log file is closed")
	if err := w.w.Flush(); err != nil {
		return fmt.Errorf("write log file: %w", err)
	}
	return nil
}

// chunkRecords is about how many records Read hands over at once.
const chunkRecords = 1000

// Read reads a file and hands over its records in the file's order, in chunks
// of one partition of one topic, and returns how many there were. Records stay
// valid after fn returns. A file without its last line gives ErrTruncated, a
// changed one ErrChecksum, another mistake an error with its line; fn has been
// called with what stood before by then, so a caller must not keep its work
// where Read fails.
func Read(ctx context.Context, r io.Reader, fn func(topic string, partition int, records []events.Record) error) (int64, error) {
	in := reader{br: bufio.NewReaderSize(r, 64<<10), sum: sha256.New(), next: map[place]int64{}}
	var chunk []events.Record
	flush := func() error {
		if len(chunk) == 0 {
			return nil
		}
		full := chunk
		chunk = nil
		return fn(full[0].Topic, full[0].Partition, full)
	}
	for {
		rec, end, err := in.record()
		if err != nil {
			return in.records, err
		}
		if end {
			return in.records, flush()
		}
		if n := len(chunk); n > 0 && (n >= chunkRecords || chunk[0].Partition != rec.Partition || chunk[0].Topic != rec.Topic) {
			if err := ctx.Err(); err != nil {
				return in.records, err
			}
			if err := flush(); err != nil {
				return in.records, err
			}
		}
		chunk = append(chunk, rec)
	}
}

type place struct {
	topic     string
	partition int
}

type reader struct {
	br      *bufio.Reader
	sum     hash.Hash
	lines   int64
	records int64
	next    map[place]int64
	long    []byte // a line that is longer than the buffer
}

// record reads one line; end is true for the last, after it has been checked.
func (in *reader) record() (rec events.Record, end bool, err error) {
	text, err := in.line()
	if err != nil {
		return rec, false, err
	}
	in.lines++
	if bytes.HasPrefix(text, endPrefix) {
		return rec, true, in.checkEnd(text)
	}
	in.sum.Write(text)
	if rec, err = events.ParseRecord(text); err != nil {
		return rec, false, in.fault("is no record: %w", err)
	}
	p := place{rec.Topic, rec.Partition}
	if next, ok := in.next[p]; ok && rec.Offset < next {
		return rec, false, in.fault("has offset %d of %s partition %d behind offset %d", rec.Offset, p.topic, p.partition, next-1)
	}
	in.next[p] = rec.Offset + 1
	in.records++
	return rec, false, nil
}

func (in *reader) fault(format string, args ...any) error {
	return fmt.Errorf("log file line %d "+format, append([]any{in.lines}, args...)...)
}

func (in *reader) checkEnd(text []byte) error {
	var l end
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&l); err != nil {
		return in.fault("is no last line: %w", err)
	}
	if !l.End || d.More() {
		return in.fault("is no last line")
	}
	if l.SHA256 != hex.EncodeToString(in.sum.Sum(nil)) {
		return ErrChecksum
	}
	if l.Records != in.records {
		return in.fault("counts %d records, but there are %d", l.Records, in.records)
	}
	if _, err := in.br.ReadByte(); !errors.Is(err, io.EOF) {
		in.lines++
		return in.fault("follows the last line")
	}
	return nil
}

// line returns the next line with its newline. It is valid until the next call.
func (in *reader) line() ([]byte, error) {
	in.long = in.long[:0]
	for {
		part, err := in.br.ReadSlice('\n')
		if err == nil && len(in.long) == 0 {
			return part, nil
		}
		if len(in.long)+len(part) > MaxLineBytes {
			in.lines++
			return nil, in.fault("is longer than %d bytes", MaxLineBytes)
		}
		in.long = append(in.long, part...)
		switch {
		case err == nil:
			return in.long, nil
		case errors.Is(err, io.EOF):
			return nil, ErrTruncated
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, fmt.Errorf("read log file: %w", err)
		}
	}
}
