package loadclient

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// streamer answers with the given events, each flushed as a chunk of its own.
func streamer(w http.ResponseWriter, events ...string) {
	w.Header().Set("Content-Type", "text/event-stream")
	for _, e := range events {
		_, _ = io.WriteString(w, e)
		w.(http.Flusher).Flush()
	}
}

func TestStreamsAreCountedOnce(t *testing.T) {
	var n, began, done atomic.Int64
	addr := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		switch n.Add(1) % 4 {
		case 0: // comments and other fields are no events; a chunk may cut a line anywhere
			streamer(w, ": hello\n\n", "data: {\"a\":1}\n\nda", "ta: {\"a\":2}\r\n\r\n", "event: x\ndata:3\n\n", "data: [DO", "NE]\n\n")
		case 1: // without its end marker
			streamer(w, "data: 1\n\n")
		case 2:
			w.WriteHeader(http.StatusTooManyRequests)
		case 3:
			streamer(w, "data: 1\n\n", "data: {\"error\":{\"message\":\"x\"}}\n\n", "data: [DONE]\n\n")
		}
	})
	res, err := Run(context.Background(), Options{
		Addr: addr, Conns: 3, Requests: 200, Next: next("/"), Streams: true,
		Began: func(int) { began.Add(1) },
		Done: func(_, status int, body []byte) {
			if status == http.StatusOK && body == nil {
				done.Add(1)
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if res.ByStatus[200] != 50 || res.ByStatus[429] != 50 || res.Errors != 100 || res.LastErr == nil {
		t.Errorf("answers %v, %d errors (%v); want 50 whole streams, 50 refusals, 100 errors", res.ByStatus, res.Errors, res.LastErr)
	}
	if res.Events != 50*3+50+50*2 || began.Load() != 150 || res.FirstEvent.Count() != 150 || done.Load() != 50 {
		t.Errorf("%d events, %d began, %d timed, %d done; want 300, 150, 150, 50", res.Events, began.Load(), res.FirstEvent.Count(), done.Load())
	}
}

func TestAStreamWhoseConnectionBreaksIsAnError(t *testing.T) {
	addr := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		streamer(w, "data: 1\n\n", "data: [DONE]\n\n")
		panic(http.ErrAbortHandler) // before the last chunk
	})
	res, err := Run(context.Background(), Options{Addr: addr, Conns: 1, Requests: 5, Next: next("/"), Streams: true})
	if err != nil || res.Errors != 5 || res.Answers() != 0 || res.Events != 5 {
		t.Fatalf("%d errors, %d answers, %d events, %v; want 5, 0, 5", res.Errors, res.Answers(), res.Events, err)
	}
}

func TestAnAnswerThatIsNoStreamIsAnError(t *testing.T) {
	addr := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}") })
	res, err := Run(context.Background(), Options{Addr: addr, Conns: 1, Requests: 5, Next: next("/"), Streams: true})
	if err != nil || res.Errors != 5 || res.Answers() != 0 {
		t.Fatalf("%d errors, %d answers, %v; want 5, 0", res.Errors, res.Answers(), err)
	}
}

// A stream that hangs after its first event ends at the time-out.
func TestAStreamThatHangsIsAnError(t *testing.T) {
	release := make(chan struct{})
	addr := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		streamer(w, "data: 1\n\n")
		<-release
	})
	res, err := Run(context.Background(), Options{
		Addr: addr, Conns: 1, Requests: 1, Next: next("/"), Streams: true, Timeout: 50 * time.Millisecond,
	})
	close(release)
	if err != nil || res.Errors != 1 || res.Answers() != 0 || res.FirstEvent.Count() != 1 {
		t.Fatalf("%d errors, %d answers, %d began, %v; want 1, 0, 1", res.Errors, res.Answers(), res.FirstEvent.Count(), err)
	}
}

// The same body gives the same counts, wherever chunks and reads are cut.
func TestStreamsInPieces(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		events := rapid.IntRange(0, 20).Draw(t, "events")
		var body strings.Builder
		for range events {
			fmt.Fprintf(&body, "data: %s\n\n", strings.Repeat("x", rapid.IntRange(0, 40).Draw(t, "length")))
		}
		body.WriteString("data: [DONE]\n\n")
		var wire []byte
		for rest := body.String(); rest != ""; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "chunk")
			wire = fmt.Appendf(wire, "%x\r\n%s\r\n", n, rest[:n])
			rest = rest[n:]
		}
		wire = append(wire, "0\r\n\r\n"...)

		var s stream
		var held []byte
		for at := 0; ; {
			n := rapid.IntRange(1, len(wire)-at).Draw(t, "read")
			held = append(held, wire[at:at+n]...)
			at += n
			taken, over, err := s.feed(held)
			if err != nil {
				t.Fatal(err)
			}
			held = held[taken:]
			if over != (at == len(wire)) {
				t.Fatalf("over = %v after %d of %d bytes", over, at, len(wire))
			}
			if over {
				break
			}
		}
		if len(held) != 0 || s.events != int64(events) || s.outcome() != nil {
			t.Fatalf("%d events, %d bytes left, %v; want %d, 0, nil", s.events, len(held), s.outcome(), events)
		}
	})
}

func TestStreamsWithBadFramingAreErrors(t *testing.T) {
	for _, in := range []string{"zz\r\n", "2\r\nabcd\r\n", "-1\r\n"} {
		var s stream
		if _, _, err := s.feed([]byte(in)); err == nil {
			t.Errorf("%q: no error", in)
		}
	}
}
