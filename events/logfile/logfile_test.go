package logfile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"tollgate/events"
)

var at = time.Date(2026, 8, 19, 16, 0, 0, 123e6, time.UTC)

func sample(n int) []events.Record {
	records := make([]events.Record, n)
	for i := range records {
		records[i] = events.Record{
			Topic: events.TopicEvents, Partition: i % 3, Offset: int64(i / 3), Time: at.Add(time.Duration(i) * time.Millisecond),
			Key: []byte("acme"), Value: []byte(fmt.Sprintf(`{"tenant_id":"acme","n":%d,"html":"<&>"}`, i)),
			Headers: []events.Header{{Key: "ce_id", Value: []byte(fmt.Sprint(i))}, {Key: "raw", Value: []byte{0xff, 0}}, {Key: "null"}},
		}
	}
	return records
}

func write(t testing.TB, records []events.Record) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := NewWriter(&buf)
	for len(records) > 0 {
		n := min(7, len(records))
		if err := w.Write(records[:n]); err != nil {
			t.Fatal(err)
		}
		records = records[n:]
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func read(data []byte) ([]events.Record, int64, error) {
	var got []events.Record
	n, err := Read(context.Background(), bytes.NewReader(data), func(topic string, partition int, records []events.Record) error {
		for _, r := range records {
			if r.Topic != topic || r.Partition != partition {
				return fmt.Errorf("record of %s %d in a chunk of %s %d", r.Topic, r.Partition, topic, partition)
			}
		}
		got = append(got, records...)
		return nil
	})
	return got, n, err
}

func TestFileHoldsTheRecordsAsTheyWere(t *testing.T) {
	want := sample(5000)
	want[3].Value = nil             // null
	want[4].Value = []byte{}        // empty
	want[5].Value = []byte{0, 0xff} // not UTF-8
	want[6].Key = []byte("\u2028\x00\"\\")
	want[7].Value = bytes.Repeat([]byte("x"), 3<<20) // longer than the reader's buffer
	got, n, err := read(write(t, want))
	if err != nil || n != 5000 {
		t.Fatalf("read %d, %v", n, err)
	}
	for i := range want {
		if !reflect.DeepEqual(want[i], got[i]) { // cmp takes seconds for the long one
			t.Errorf("record %d is read back different", i)
		}
	}
	if got, n, err := read(write(t, nil)); err != nil || n != 0 || got != nil {
		t.Errorf("an empty log reads as %d records, %v", n, err)
	}
}

// Every single changed byte and every cut is found.
func TestDamageIsFound(t *testing.T) {
	data := write(t, sample(4))
	for i := range data {
		changed := bytes.Clone(data)
		changed[i] ^= 1
		if _, _, err := read(changed); err == nil {
			t.Errorf("byte %d (%q) changed to %q is not found", i, data[i], changed[i])
		}
		if _, _, err := read(data[:i]); err == nil {
			t.Errorf("file cut at byte %d is not found", i)
		}
	}
	lastLine := bytes.LastIndexByte(data[:len(data)-1], '\n') + 1
	if _, _, err := read(data[:lastLine]); !errors.Is(err, ErrTruncated) {
		t.Errorf("file without its last line: %v", err)
	}
	secondLine := bytes.IndexByte(data, '\n') + 1
	if _, _, err := read(data[secondLine:]); !errors.Is(err, ErrChecksum) {
		t.Errorf("file without its first line: %v", err)
	}
}

func TestBadFilesAreRefusedWithTheirLine(t *testing.T) {
	good := string(write(t, sample(2)))
	first, rest, _ := strings.Cut(good, "\n")
	for name, c := range map[string]struct{ data, want string }{
		"empty":         {"", "no last line"},
		"no JSON":       {"hello\n" + good, "line 1 is no record"},
		"unknown field": {strings.Replace(good, `"topic"`, `"more":1,"topic"`, 1), "line 1 is no record"},
		"no offset":     {first + "\n" + `{"topic":"t","partition":0,"time":"2026-08-19T16:00:00Z"}` + "\n", "line 2 is no record"},
		"same offset":   {first + "\n" + first + "\n" + rest, "line 2 has offset 0"},
		"after the end": {good + first + "\n", "line 4 follows the last line"},
		"too long":      {strings.Repeat(" ", MaxLineBytes+1), "line 1 is longer"},
		"two objects":   {first + first + "\n" + rest, "line 1 is no record"},
	} {
		if _, _, err := read([]byte(c.data)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func TestReadEndsWithItsFunctionAndContext(t *testing.T) {
	data := write(t, sample(3000))
	full := errors.New("disk is full")
	if _, err := Read(t.Context(), bytes.NewReader(data), func(string, int, []events.Record) error { return full }); !errors.Is(err, full) {
		t.Errorf("Read = %v, want its function's error", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Read(ctx, bytes.NewReader(data), func(string, int, []events.Record) error { return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("Read = %v, want the context's error", err)
	}
}

func TestAnyRecordIsReadBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		blob := rapid.OneOf(rapid.Just([]byte(nil)), rapid.SliceOf(rapid.Byte()), rapid.Map(rapid.String(), func(s string) []byte { return []byte(s) }))
		want := make([]events.Record, rapid.IntRange(1, 5).Draw(t, "records"))
		for i := range want {
			want[i] = events.Record{Topic: "t", Offset: int64(i), Time: at, Key: blob.Draw(t, "key"), Value: blob.Draw(t, "value")}
			for range rapid.IntRange(0, 3).Draw(t, "headers") {
				want[i].Headers = append(want[i].Headers, events.Header{Key: rapid.StringMatching(`[a-z_]{1,8}`).Draw(t, "name"), Value: blob.Draw(t, "header")})
			}
		}
		var buf bytes.Buffer
		w := NewWriter(&buf)
		if err := errors.Join(w.Write(want), w.Close()); err != nil {
			t.Fatal(err)
		}
		got, _, err := read(buf.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("records (-want +got):\n%s", diff)
		}
	})
}

func FuzzRead(f *testing.F) {
	f.Add(write(f, sample(4)))
	f.Add([]byte(`{"end":true}` + "\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		got, n, err := read(data)
		if err == nil && int64(len(got)) != n {
			t.Fatalf("%d records, but says %d", len(got), n)
		}
	})
}

func benchRecords() []events.Record {
	r := events.Reservation{
		TenantID: "acme", ReservationID: "rsv_0123456789abcdefghijkl001", RequestID: "req-2026-08-19-000123", KeyID: "tgk_abcdefghijklmnop",
		Endpoint: "chat/completions", Model: "gpt-4o-mini", Seq: 3, State: events.StateSettled, WeightMilli: 1000, ExpiresAt: at, Author: "client",
	}
	e := events.Event{ID: "e1-s07-1787155200123-0.0", Source: "tollgate/admission/e1/7", Type: events.TypeSettled, Subject: "acme", Time: at, Data: events.AppendReservation(nil, &r)}
	records := make([]events.Record, 1000)
	for i := range records {
		records[i] = events.ToRecord(events.TopicEvents, &e)
		records[i].Offset, records[i].Time = int64(i), at
	}
	return records
}

func BenchmarkWrite(b *testing.B) {
	records := benchRecords()
	w := NewWriter(&bytes.Buffer{})
	for b.Loop() {
		w.w.Reset(&bytes.Buffer{})
		if err := w.Write(records); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)*1000/b.Elapsed().Seconds(), "records/s")
}

func BenchmarkRead(b *testing.B) {
	data := write(b, benchRecords())
	for b.Loop() {
		if _, _, err := read(data); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)*1000/b.Elapsed().Seconds(), "records/s")
}
