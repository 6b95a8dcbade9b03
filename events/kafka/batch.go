package kafka

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"time"

	"github.com/segmentio/kafka-go/compress"

	"tollgate/events"
)

// Errors of the record decoder. A batch that fails them is never skipped: the
// reader stops, since skipping would lose what the batch holds.
var (
	errBatchFormat = errors.New("record batch is malformed")
	errBatchCRC    = errors.New("record batch has a wrong checksum")
)

// maxBatchBytes bounds a batch after decompression.
const maxBatchBytes = 256 << 20

// batchHeader is the fixed part of a record batch, magic 2 (Kafka protocol
// guide, "Record Batch").
const (
	batchHeaderBytes  = 61
	batchLengthAt     = 8
	batchMagicAt      = 16
	batchCRCAt        = 17
	batchAttributesAt = 21
	batchLastDeltaAt  = 23
	batchFirstTimeAt  = 27
	batchMaxTimeAt    = 35
	batchCountAt      = 57
	batchLengthBase   = 12 // what the length does not count

	attributeCodec      = 0x07
	attributeAppendTime = 0x08
	attributeControl    = 0x20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// decodeBatches appends the records of the batches in raw at or after offset
// from to dst, and returns the offset after the last whole batch. A batch that
// the broker cut off at the end is left out and will be fetched again. Control
// batches advance the offset only. Records share raw's memory where it is not
// compressed.
func decodeBatches(dst []events.Record, topic string, partition int, from int64, raw []byte) ([]events.Record, int64, error) {
	next := from
	for len(raw) >= batchHeaderBytes {
		length := int64(binary.BigEndian.Uint32(raw[batchLengthAt:]))
		if length < batchHeaderBytes-batchLengthBase {
			return dst, next, fmt.Errorf("%w: length %d", errBatchFormat, length)
		}
		if batchLengthBase+length > int64(len(raw)) {
			break
		}
		batch := raw[:batchLengthBase+length]
		raw = raw[batchLengthBase+length:]
		if magic := batch[batchMagicAt]; magic != 2 {
			return dst, next, fmt.Errorf("%w: magic %d is not supported", errBatchFormat, magic)
		}
		if crc32.Checksum(batch[batchAttributesAt:], castagnoli) != binary.BigEndian.Uint32(batch[batchCRCAt:]) {
			return dst, next, errBatchCRC
		}
		base := int64(binary.BigEndian.Uint64(batch))
		after := base + int64(int32(binary.BigEndian.Uint32(batch[batchLastDeltaAt:]))) + 1
		if base < 0 || after <= base {
			return dst, next, fmt.Errorf("%w: base offset %d, next %d", errBatchFormat, base, after)
		}
		if after <= next {
			continue
		}
		if batch[batchAttributesAt+1]&attributeControl == 0 {
			var err error
			if dst, err = decodeBatch(dst, topic, partition, next, base, batch); err != nil {
				return dst, next, err
			}
		}
		next = after
	}
	return dst, next, nil
}

func decodeBatch(dst []events.Record, topic string, partition int, from, base int64, batch []byte) ([]events.Record, error) {
	attributes := batch[batchAttributesAt+1]
	firstTime := int64(binary.BigEndian.Uint64(batch[batchFirstTimeAt:]))
	maxTime := int64(binary.BigEndian.Uint64(batch[batchMaxTimeAt:]))
	count := int64(int32(binary.BigEndian.Uint32(batch[batchCountAt:])))
	body := batch[batchHeaderBytes:]
	if codec := attributes & attributeCodec; codec != 0 {
		var err error
		if body, err = decompress(codec, body); err != nil {
			return dst, err
		}
	}
	// The least a record takes is 7 bytes.
	if count < 0 || count > int64(len(body)/7)+1 {
		return dst, fmt.Errorf("%w: %d records in %d bytes", errBatchFormat, count, len(body))
	}
	r := varReader{b: body}
	headers := make([]events.Header, 0, count*7)
	for range count {
		size := r.varint()
		if r.bad || size < 0 || size > int64(len(r.b)) {
			return dst, errBatchFormat
		}
		rest := r.b[size:]
		r.b = r.b[:size]
		r.bytes(1) // attributes, unused
		timeDelta := r.varint()
		offset := base + r.varint()
		key := r.bytes(r.varint())
		value := r.bytes(r.varint())
		n := r.varint()
		if r.bad || n < 0 || n > int64(len(r.b)/2) {
			return dst, errBatchFormat
		}
		start := len(headers)
		for range n {
			name := r.bytes(r.varint())
			headers = append(headers, events.Header{Key: headerName(name), Value: r.bytes(r.varint())})
		}
		if r.bad {
			return dst, errBatchFormat
		}
		r.b = rest
		if offset < from {
			continue
		}
		ms := firstTime + timeDelta
		if attributes&attributeAppendTime != 0 {
			ms = maxTime
		}
		dst = append(dst, events.Record{
			Topic: topic, Partition: partition, Offset: offset, Key: key, Value: value,
			Headers: headers[start:len(headers):len(headers)], Time: time.UnixMilli(ms).UTC(),
		})
	}
	return dst, nil
}

func decompress(code byte, body []byte) ([]byte, error) {
	codec := compress.Compression(code).Codec()
	if codec == nil {
		return nil, fmt.Errorf("%w: compression %d is not supported", errBatchFormat, code)
	}
	r := codec.NewReader(bytes.NewReader(body))
	defer func() { _ = r.Close() }()
	out := bytes.NewBuffer(make([]byte, 0, 5*len(body)))
	n, err := io.Copy(out, io.LimitReader(r, maxBatchBytes+1))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errBatchFormat, err)
	}
	if n > maxBatchBytes {
		return nil, fmt.Errorf("%w: larger than %d bytes", errBatchFormat, maxBatchBytes)
	}
	return out.Bytes(), nil
}

// headerNames are the names that every event carries; they cost no allocation.
var headerNames = [...]string{
	"ce_specversion", "ce_id", "ce_source", "ce_type", "ce_subject", "ce_time", "content-type",
}

func headerName(b []byte) string {
	for _, n := range headerNames {
		if n == string(b) {
			return n
		}
	}
	return string(b)
}

// varReader reads zigzag varints and the byte strings they measure.
type varReader struct {
	b   []byte
	bad bool
}

func (r *varReader) varint() int64 {
	if len(r.b) > 0 && r.b[0] < 0x80 {
		v := r.b[0]
		r.b = r.b[1:]
		return int64(v>>1) ^ -int64(v&1)
	}
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.bad = true
		r.b = nil
		return 0
	}
	r.b = r.b[n:]
	return v
}

// bytes returns the next n bytes; nil where n is -1 (null).
func (r *varReader) bytes(n int64) []byte {
	if n == -1 {
		return nil
	}
	if n < 0 || n > int64(len(r.b)) {
		r.bad = true
		r.b = nil
		return nil
	}
	v := r.b[:n:n]
	r.b = r.b[n:]
	return v
}
