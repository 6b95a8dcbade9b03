package kafka

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	kafkago "github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/compress"

	"tollgate/events"
)

// buildBatch writes a record batch as the protocol's guide describes it,
// without the code that it tests.
func buildBatch(base int64, codec, attributes byte, count int) []byte {
	var body []byte
	for i := range count {
		var r []byte
		r = append(r, 0)
		r = binary.AppendVarint(r, int64(i)) // time delta
		r = binary.AppendVarint(r, int64(i)) // offset delta
		r = binary.AppendVarint(r, 4)
		r = append(r, "acme"...)
		if i == 1 {
			r = binary.AppendVarint(r, -1) // null value
		} else {
			r = binary.AppendVarint(r, 2)
			r = append(r, '{', '}')
		}
		r = binary.AppendVarint(r, 2)
		r = binary.AppendVarint(r, 5)
		r = append(r, "ce_id"...)
		r = binary.AppendVarint(r, 1)
		r = append(r, byte('a'+i))
		r = binary.AppendVarint(r, 4)
		r = append(r, "null"...)
		r = binary.AppendVarint(r, -1)
		body = binary.AppendVarint(body, int64(len(r)))
		body = append(body, r...)
	}
	if codec != 0 {
		var buf bytes.Buffer
		w := compress.Compression(codec).Codec().NewWriter(&buf)
		_, _ = w.Write(body)
		_ = w.Close()
		body = buf.Bytes()
	}
	be := binary.BigEndian
	b := be.AppendUint64(nil, uint64(base))
	b = be.AppendUint32(b, uint32(49+len(body)))
	b = be.AppendUint32(b, 7) // leader epoch
	b = append(b, 2)
	b = be.AppendUint32(b, 0) // checksum, below
	b = append(b, 0, codec|attributes)
	b = be.AppendUint32(b, uint32(count-1))
	b = be.AppendUint64(b, 1_787_155_200_000)
	b = be.AppendUint64(b, 1_787_155_299_000)
	b = be.AppendUint64(b, ^uint64(0))
	b = be.AppendUint16(b, ^uint16(0))
	b = be.AppendUint32(b, ^uint32(0))
	b = be.AppendUint32(b, uint32(count))
	b = append(b, body...)
	be.PutUint32(b[17:], crc32.Checksum(b[21:], crc32.MakeTable(crc32.Castagnoli)))
	return b
}

func TestBatchesAreDecoded(t *testing.T) {
	for codec := range byte(5) {
		raw := append(buildBatch(10, codec, 0, 3), buildBatch(20, codec, attributeAppendTime, 2)...)
		raw = append(raw, buildBatch(30, 0, attributeControl, 1)...)
		cut := buildBatch(40, codec, 0, 3)
		raw = append(raw, cut[:len(cut)-1]...)
		got, next, err := decodeBatches(nil, "t", 5, 11, raw)
		if err != nil || next != 31 {
			t.Fatalf("codec %d: next %d, %v; want 31 after the control batch", codec, next, err)
		}
		record := func(offset, ms int64, value []byte, id string) events.Record {
			return events.Record{
				Topic: "t", Partition: 5, Offset: offset, Key: []byte("acme"), Value: value, Time: time.UnixMilli(ms).UTC(),
				Headers: []events.Header{{Key: "ce_id", Value: []byte(id)}, {Key: "null"}},
			}
		}
		want := []events.Record{
			record(11, 1_787_155_200_001, nil, "b"), record(12, 1_787_155_200_002, []byte("{}"), "c"),
			record(20, 1_787_155_299_000, []byte("{}"), "a"), record(21, 1_787_155_299_000, nil, "b"),
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("codec %d (-want +got):\n%s", codec, diff)
		}
	}
}

func TestDamagedBatchIsNeverSkipped(t *testing.T) {
	good := buildBatch(0, 0, 0, 3)
	bad := buildBatch(3, 0, 0, 3)
	for i := batchMagicAt; i < len(bad); i++ {
		changed := bytes.Clone(bad)
		changed[i] ^= 0x40
		got, next, err := decodeBatches(nil, "t", 0, 0, append(bytes.Clone(good), changed...))
		if err == nil || next != 3 || len(got) != 3 {
			t.Fatalf("byte %d changed: %d records, next %d, %v; want the first batch and an error", i, len(got), next, err)
		}
	}
	old := bytes.Clone(good)
	old[batchMagicAt] = 1
	if _, _, err := decodeBatches(nil, "t", 0, 0, old); !errors.Is(err, errBatchFormat) {
		t.Errorf("old magic: %v", err)
	}
}

func FuzzDecodeBatches(f *testing.F) {
	for codec := range byte(5) {
		f.Add(buildBatch(10, codec, 0, 3), true)
	}
	f.Fuzz(func(t *testing.T, raw []byte, fix bool) {
		if fix && len(raw) > batchHeaderBytes { // let the fuzzer past the checksum
			binary.BigEndian.PutUint32(raw[batchLengthAt:], uint32(len(raw)-batchLengthBase))
			binary.BigEndian.PutUint32(raw[batchCRCAt:], crc32.Checksum(raw[batchAttributesAt:], castagnoli))
		}
		got, next, err := decodeBatches(nil, "t", 0, 0, raw)
		if err != nil {
			return
		}
		for _, r := range got {
			if r.Offset < 0 {
				t.Fatalf("offset %d", r.Offset)
			}
		}
		if next < 0 {
			t.Fatalf("next %d", next)
		}
	})
}

func FuzzDecodeFetch(f *testing.F) {
	f.Add(make([]byte, 60))
	f.Fuzz(func(_ *testing.T, body []byte) { _, _ = decodeFetch(body) })
}

// The record's time is the broker's, whatever clock the producer has: what
// CheckTime compares with must not be the sender's to choose. The embedded
// stand-in does not mark its batches so; there the producer's time stands.
func TestRecordTimeIsTheBrokers(t *testing.T) {
	onEach(t, func(t *testing.T, c *Client) {
		ctx := testContext(t)
		want := func(at time.Time) bool { return time.Since(at).Abs() < time.Hour }
		if strings.HasSuffix(t.Name(), "kfake") {
			want = at.AddDate(-1, 0, 0).Equal
		}
		ensure(t, c, 1)
		e := makeEvent("acme", 1)
		m := message{record: events.ToRecord(events.TopicEvents, &e)}
		res, err := c.raw.Produce(ctx, &kafkago.ProduceRequest{
			Topic: c.wire(events.TopicEvents), RequiredAcks: kafkago.RequireAll,
			Records: &recordReader{ms: []message{m}, now: at.AddDate(-1, 0, 0)}, // a year ago
		})
		if err != nil || res.Error != nil {
			t.Fatal(err, res)
		}
		got := readTopic(t, c, events.TopicEvents)[0]
		if len(got) != 1 || !want(got[0].Time) {
			t.Errorf("record time is %v", got[0].Time)
		}
	})
}
