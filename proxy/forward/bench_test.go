package forward

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"tollgate/admission"
	"tollgate/events"
	"tollgate/tenancy"
)

// memory is a store that admits everything and keeps nothing: what remains is
// the front door's own cost.
type memory struct{ admission.Store }

func (memory) Reserve(_ context.Context, req *admission.ReserveRequest) (*admission.Reservation, error) {
	left := make([]admission.Left, len(req.Limits))
	for i := range left {
		left[i] = admission.Left{Constraint: req.Limits[i], Used: 12345, Held: 678, Remaining: 1000000, Reset: time.Minute}
	}
	return &admission.Reservation{ID: "rsv_0123456789abcdefghijklmn1772600767008", RequestID: req.RequestID, State: events.StateHeld, Left: left}, nil
}

func (memory) Report(context.Context, *admission.UsageReport) (*admission.Reservation, error) {
	return &admission.Reservation{}, nil
}

func (memory) Settle(context.Context, *admission.UsageReport) (*admission.Reservation, error) {
	return &admission.Reservation{}, nil
}

func (memory) Cancel(context.Context, *admission.UsageReport) (*admission.Reservation, error) {
	return &admission.Reservation{}, nil
}

// canned answers without a network.
type canned struct {
	contentType string
	pieces      []string
	length      int64
}

func (c *canned) RoundTrip(r *http.Request) (*http.Response, error) {
	var buf [8 << 10]byte
	for _, err := r.Body.Read(buf[:]); err == nil; _, err = r.Body.Read(buf[:]) {
		continue
	}
	_ = r.Body.Close()
	return &http.Response{
		StatusCode: 200, Status: "200 OK", Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, ContentLength: c.length, Request: r,
		Header: http.Header{"Content-Type": {c.contentType}, "Date": {"x"}, "X-Request-Id": {"req_1"}, "Openai-Processing-Ms": {"10"}},
		Body:   &cannedBody{pieces: c.pieces},
	}, nil
}

// cannedBody gives a piece a read.
type cannedBody struct {
	pieces []string
	at     int // in the first one
}

func (b *cannedBody) Read(p []byte) (int, error) {
	if len(b.pieces) == 0 {
		return 0, io.EOF
	}
	n := copy(p, b.pieces[0][b.at:])
	if b.at += n; b.at == len(b.pieces[0]) {
		b.pieces, b.at = b.pieces[1:], 0
	}
	return n, nil
}

func (*cannedBody) Close() error { return nil }

// sink takes an answer and keeps nothing.
type sink struct {
	header http.Header
	status int
	bytes  int
}

func (s *sink) Header() http.Header              { return s.header }
func (s *sink) WriteHeader(status int)           { s.status = status }
func (s *sink) Write(p []byte) (int, error)      { s.bytes += len(p); return len(p), nil }
func (s *sink) Flush()                           {}
func (s *sink) SetReadDeadline(time.Time) error  { return nil }
func (s *sink) SetWriteDeadline(time.Time) error { return nil }

func benchWorld(b *testing.B, transport http.RoundTripper) *world {
	w := &world{t: b}
	w.build(setup{
		limits: tenancy.DefaultQuota().Limits, platform: tenancy.DefaultPlatform(),
		change: func(o *Options) { o.Observer, o.Counters = nil, nil },
		client: &http.Client{Transport: transport},
	}, memory{})
	b.Cleanup(w.close)
	return w
}

func benchmark(b *testing.B, transport *canned, extra string) {
	w := benchWorld(b, transport)
	body := `{"model":"alias","messages":[{"role":"system","content":"You are helpful."},{"role":"user","content":"` +
		strings.Repeat("What is the answer? ", 50) + `"}],"temperature":0.7,"max_tokens":200` + extra + `}`
	reader := bytes.NewReader(nil)
	template := w.request(context.Background(), "")
	b.ReportAllocs()
	for b.Loop() {
		reader.Reset([]byte(body))
		r := template.Clone(context.Background())
		r.Body, r.ContentLength = io.NopCloser(reader), int64(len(body))
		s := &sink{header: http.Header{}}
		w.handler.ServeHTTP(s, r)
		if s.status != 200 || s.bytes == 0 {
			b.Fatalf("status %d, %d bytes", s.status, s.bytes)
		}
	}
}

// BenchmarkWhole is a request and its whole answer, without network and store.
func BenchmarkWhole(b *testing.B) {
	text := chatAnswer(strings.Repeat("word ", 200), usageText)
	benchmark(b, &canned{contentType: "application/json", pieces: []string{text}, length: int64(len(text))}, "")
}

// BenchmarkStream40 is a request and a stream of 40 pieces, likewise.
func BenchmarkStream40(b *testing.B) {
	var pieces []string
	for range 40 {
		pieces = append(pieces, delta("word "))
	}
	pieces = append(pieces, stopEvent+usageEvent(usageText)+doneEvent)
	benchmark(b, &canned{contentType: "text/event-stream", pieces: pieces, length: -1}, `,"stream":true`)
}

// raceEnabled says that the race detector watches.
var raceEnabled bool
