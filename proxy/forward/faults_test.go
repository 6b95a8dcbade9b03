package forward

import (
	"compress/gzip"
	"context"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"tollgate/events"
	"tollgate/tenancy"
)

// Every way in which an upstream can fail, and what it costs.
func TestUpstreamFaults(t *testing.T) {
	t.Parallel()
	hang := func(pieces ...string) func(http.ResponseWriter, *http.Request, []byte) {
		return func(rw http.ResponseWriter, r *http.Request, _ []byte) {
			if len(pieces) > 0 {
				writeStream(rw, pieces...)
			}
			<-r.Context().Done()
		}
	}
	cut := func(pieces ...string) func(http.ResponseWriter, *http.Request, []byte) {
		return func(rw http.ResponseWriter, _ *http.Request, _ []byte) {
			writeStream(rw, pieces...)
			breakOff(rw)
		}
	}
	for name, c := range map[string]struct {
		script    func(http.ResponseWriter, *http.Request, []byte)
		extra     string
		status    int
		source    string
		contains  string
		state     events.State
		reason    string
		in, out   int64
		estimated bool
	}{
		"429": {
			script: refusal(429, "Retry-After", "7"), status: 429, source: "upstream", contains: "upstream says 429",
			state: events.StateCancelled, reason: "upstream_refused",
		},
		"500": {
			script: refusal(500), status: 500, source: "upstream", contains: "upstream says 500",
			state: events.StateCancelled, reason: "upstream_refused",
		},
		"400 passes": {
			script: refusal(400), status: 400, source: "upstream", contains: "upstream says 400",
			state: events.StateCancelled, reason: "upstream_refused",
		},
		"401 is the operator's": {
			script: refusal(401), status: 502, source: "upstream", contains: "upstream_misconfigured",
			state: events.StateCancelled, reason: "upstream_refused",
		},
		"403 may be about the request's content": {
			script: refusal(403), status: 403, source: "upstream",
			state: events.StateCancelled, reason: "upstream_refused",
		},
		"redirect": {
			script: refusal(302, "Location", "http://127.0.0.1:1/"), status: 502, source: "upstream", contains: "upstream_misconfigured",
			state: events.StateCancelled, reason: "upstream_refused",
		},
		"reset before the head": {
			script: func(http.ResponseWriter, *http.Request, []byte) { panic(http.ErrAbortHandler) },
			status: 502, source: "upstream", contains: "upstream_broken", state: events.StateCancelled, reason: "upstream_failed",
		},
		"hang before the head": {
			script: hang(), status: 504, source: "upstream", contains: "upstream_timeout", state: events.StateCancelled, reason: "upstream_failed",
		},
		"hang after the head": {
			script: hang(": ping\n\n"), extra: `,"stream":true`, status: 504, source: "upstream", contains: "upstream_timeout",
			state: events.StateCancelled, reason: "upstream_broke_off",
		},
		"broken body": {
			script: func(rw http.ResponseWriter, _ *http.Request, _ []byte) {
				rw.Header().Set("Content-Length", "1000")
				_, _ = io.WriteString(rw, `{"id":"c1","choices":[{"message":{"content":"four`)
				breakOff(rw)
			},
			status: 502, source: "upstream", contains: "upstream_broken", state: events.StateCancelled, reason: "upstream_broke_off",
		},
		"garbage": {
			script: func(rw http.ResponseWriter, _ *http.Request, _ []byte) { _, _ = io.WriteString(rw, "<html>") },
			status: 502, source: "upstream", contains: "upstream_garbage", state: events.StateCancelled, reason: "upstream_garbage",
		},
		"garbage in a stream": {
			script: stream("data: <html>\n\n"), extra: `,"stream":true`,
			status: 502, source: "upstream", contains: "upstream_garbage", state: events.StateCancelled, reason: "upstream_garbage",
		},
		"empty stream": {
			script: stream(), extra: `,"stream":true`,
			status: 502, source: "upstream", contains: "upstream_broken", state: events.StateCancelled, reason: "upstream_broke_off",
		},
		"200 then break": {
			script: cut(delta("four "), delta("five ")), extra: `,"stream":true`,
			status: 200, contains: "upstream_broken", state: events.StateCancelled, reason: "upstream_broke_off", in: promptTokens, out: 2, estimated: true,
		},
		"200 then break with usage": {
			script: cut(delta("four "), usageEvent(usageText)), extra: `,"stream":true`,
			status: 200, contains: "upstream_broken", state: events.StateCancelled, reason: "upstream_broke_off", in: 13, out: 33,
		},
		"200 then hang": {
			script: hang(delta("four "), delta("five ")), extra: `,"stream":true`,
			status: 200, contains: "upstream_timeout", state: events.StateCancelled, reason: "upstream_broke_off", in: promptTokens, out: 2, estimated: true,
		},
		"error event after content": {
			script: stream(delta("four "), `data: {"error":{"message":"overloaded","type":"server_error","code":503}}`+"\n\n"), extra: `,"stream":true`,
			status: 200, contains: "overloaded", state: events.StateCancelled, reason: "upstream_failed", in: promptTokens, out: 1, estimated: true,
		},
		"error event first": {
			script: stream(`data: {"error":{"message":"overloaded","type":"server_error","code":503}}` + "\n\n"), extra: `,"stream":true`,
			status: 200, contains: "overloaded", state: events.StateCancelled, reason: "upstream_failed",
		},
		"hang after the end": {
			script: func(rw http.ResponseWriter, r *http.Request, _ []byte) {
				writeStream(rw, delta("four "), stopEvent, usageEvent(usageText), doneEvent)
				<-r.Context().Done()
			},
			extra: `,"stream":true`, status: 200, contains: "[DONE]", state: events.StateSettled, in: 13, out: 33,
		},
		"compressed without being asked": {
			script: func(rw http.ResponseWriter, _ *http.Request, _ []byte) {
				rw.Header().Set("Content-Encoding", "gzip")
				rw.Header().Set("Content-Type", "application/json")
				z := gzip.NewWriter(rw)
				_, _ = io.WriteString(z, chatAnswer("four five", usageText))
				z.Close()
			},
			status: 200, contains: chatAnswer("four five", usageText), state: events.StateSettled, in: 13, out: 33,
		},
		"a stream whose type is written badly": {
			script: func(rw http.ResponseWriter, _ *http.Request, _ []byte) {
				rw.Header().Set("Content-Type", "text/event-stream; charset")
				_, _ = io.WriteString(rw, delta("four ")+stopEvent+usageEvent(usageText)+doneEvent)
			},
			extra: `,"stream":true`, status: 200, contains: "four", state: events.StateSettled, in: 13, out: 33,
		},
		"garbage that costs nothing": {
			script: func(rw http.ResponseWriter, _ *http.Request, _ []byte) { _, _ = io.WriteString(rw, `{"id":"c1"}`) },
			status: 502, source: "upstream", contains: "Nothing was charged.", state: events.StateCancelled, reason: "upstream_garbage",
		},
		"garbage that says what it used": {
			script: func(rw http.ResponseWriter, _ *http.Request, _ []byte) {
				_, _ = io.WriteString(rw, `{"id":"c1","usage":`+usageText+`}`)
			},
			status: 502, source: "upstream", contains: "Nothing was charged.", state: events.StateCancelled, reason: "upstream_garbage",
		},
		"compressed in another way": {
			script: func(rw http.ResponseWriter, _ *http.Request, _ []byte) {
				rw.Header().Set("Content-Encoding", "br")
				_, _ = io.WriteString(rw, "x")
			},
			status: 502, source: "upstream", contains: "upstream_garbage", state: events.StateCancelled, reason: "upstream_broke_off",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, setup{
				limits: []tenancy.Limit{perMinute(100_000), concurrency(1)}, idle: 250 * time.Millisecond, response: 250 * time.Millisecond,
			})
			w.upstreams[0].script(c.script)
			a := w.chat(c.extra)
			if a.status != c.status || !strings.Contains(a.body, c.contains) || a.header.Get("X-Tollgate-Error-Source") != c.source || a.err != nil {
				t.Errorf("answer %d from %q: %s %v", a.status, a.header.Get("X-Tollgate-Error-Source"), a.body, a.err)
			}
			r := w.ended(1)[0]
			wantRecord(t, r, c.state, c.in, c.out, c.estimated)
			if r.Reason != c.reason {
				t.Errorf("reason %q, want %q", r.Reason, c.reason)
			}
			w.wantStanding("concurrency", 0, 0)
			w.wantStanding("tokens-60s", c.in+c.out, 0)
			if ex := w.observed.last(); ex.Status != c.status || !ex.Ended || (ex.ErrorType == "") != (c.state == events.StateSettled) {
				t.Errorf("observed %+v", ex)
			}
		})
	}
}

// An upstream that has not even a listener.
func TestNobodyListens(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{limits: []tenancy.Limit{concurrency(1)}})
	w.upstreams[0].server.Listener.Close()
	a := w.chat("")
	if a.status != http.StatusBadGateway || a.header.Get("X-Tollgate-Error-Source") != "upstream" {
		t.Errorf("answer %d %s", a.status, a.body)
	}
	r := w.ended(1)[0]
	if wantRecord(t, r, events.StateCancelled, 0, 0, false); r.Reason != "not_sent" {
		t.Errorf("reason %q", r.Reason)
	}
}

// One reservation, and one charge, however many upstreams are tried; nothing of
// a failed try reaches the client.
func TestFallOver(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]func(http.ResponseWriter, *http.Request, []byte){
		"429":             refusal(429, "Retry-After", "1"),
		"500":             refusal(500),
		"408":             refusal(408),
		"401":             refusal(401),
		"reset":           func(http.ResponseWriter, *http.Request, []byte) { panic(http.ErrAbortHandler) },
		"hang":            func(_ http.ResponseWriter, r *http.Request, _ []byte) { <-r.Context().Done() },
		"garbage":         func(rw http.ResponseWriter, _ *http.Request, _ []byte) { _, _ = io.WriteString(rw, "<html>") },
		"comments, break": func(rw http.ResponseWriter, _ *http.Request, _ []byte) { writeStream(rw, ": ping\n\n"); breakOff(rw) },
		"error event":     stream(`data: {"error":{"message":"overloaded"}}` + "\n\n"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, setup{limits: []tenancy.Limit{perMinute(10_000)}, upstreams: 2, idle: 250 * time.Millisecond, response: 250 * time.Millisecond})
			w.upstreams[0].script(first)
			w.upstreams[1].script(stream(delta("four "), stopEvent, usageEvent(usageText), doneEvent))
			a := w.chat(`,"stream":true`)
			if a.status != http.StatusOK || a.body != delta("four ")+stopEvent+doneEvent {
				t.Errorf("answer %d %s", a.status, a.body)
			}
			wantRecord(t, w.ended(1)[0], events.StateSettled, 13, 33, false)
			if ex := w.observed.last(); ex.Tries != 2 || ex.Upstream != "openai1" {
				t.Errorf("observed %+v", ex)
			}
		})
	}
	t.Run("not after the client has a byte", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, setup{upstreams: 2})
		w.upstreams[0].script(func(rw http.ResponseWriter, _ *http.Request, _ []byte) {
			writeStream(rw, delta("four "))
			breakOff(rw)
		})
		w.upstreams[1].script(stream(delta("other "), stopEvent, doneEvent))
		a := w.chat(`,"stream":true`)
		if strings.Contains(a.body, "other") || w.upstreams[1].calls.Load() != 0 {
			t.Errorf("two answers in one: %s", a.body)
		}
	})
	t.Run("not for the caller's fault", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, setup{upstreams: 2})
		w.upstreams[0].script(refusal(422))
		if a := w.chat(""); a.status != 422 || w.upstreams[1].calls.Load() != 0 {
			t.Errorf("answer %d, %d calls", a.status, w.upstreams[1].calls.Load())
		}
	})
}

// The upstream learns within moments that the client has left, also before it
// has answered anything.
func TestClientLeavesBeforeTheAnswer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{limits: []tenancy.Limit{perMinute(10_000), concurrency(1)}})
	arrived, gone := make(chan struct{}), make(chan time.Time, 1)
	w.upstreams[0].script(func(_ http.ResponseWriter, r *http.Request, _ []byte) {
		close(arrived)
		<-r.Context().Done()
		gone <- time.Now()
	})
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() {
		resp, err := w.client.Do(w.request(ctx, ""))
		if err == nil {
			resp.Body.Close()
		}
		failed <- err
	}()
	<-arrived
	cancel()
	<-gone
	if err := <-failed; err == nil {
		t.Error("the client has an answer")
	}
	// The prompt was being worked on.
	wantRecord(t, w.ended(1)[0], events.StateCancelled, promptTokens, 0, true)
	w.wantStanding("concurrency", 0, 0)
	if ex := w.observed.last(); ex.Status != 499 {
		t.Errorf("observed %+v", ex)
	}
}

// An upstream breaks off within an event so long that its client has a part of
// it: the error is an event of its own all the same.
func TestBreakOffWithinALongEvent(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	part := strings.TrimSuffix(delta(strings.Repeat("word ", 40_000)), "\n\n")
	w.upstreams[0].script(func(rw http.ResponseWriter, _ *http.Request, _ []byte) {
		writeStream(rw, delta("four "), part[:len(part)/2], part[len(part)/2:len(part)-50])
		breakOff(rw)
	})
	a := w.chat(`,"stream":true`)
	if a.err != nil || len(a.body) < len(part)/2 || !strings.Contains(a.body, "\n\ndata: {\"error\"") {
		t.Errorf("the stream ends with …%s, %v", a.body[max(0, len(a.body)-300):], a.err)
	}
	if r := w.ended(1)[0]; r.Reason != "upstream_broke_off" || !r.Estimated || r.Total.OutputTokens == 0 {
		t.Errorf("ended as %+v", r.Reservation)
	}
}

// A whole answer begins when it is ready: it has a time-out of its own, and
// requests that take too long put nobody's deployment aside. A stream that does
// not begin does.
func TestSlowWholeAnswersPutNothingAside(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		extra string
		then  int
	}{"whole": {"", http.StatusOK}, "stream": {`,"stream":true`, http.StatusServiceUnavailable}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, setup{response: 100 * time.Millisecond, answer: 100 * time.Millisecond})
			w.upstreams[0].script(func(_ http.ResponseWriter, r *http.Request, _ []byte) { <-r.Context().Done() })
			for range 5 {
				r := w.request(t.Context(), c.extra)
				if a := w.do(r); a.status != http.StatusGatewayTimeout {
					t.Fatalf("answer %d %s", a.status, a.body)
				}
			}
			w.upstreams[0].script(whole("four", usageText))
			if a := w.chat(""); a.status != c.then {
				t.Errorf("then %d %s", a.status, a.body)
			}
		})
	}
	w := newWorld(t, setup{response: 50 * time.Millisecond, answer: 20 * time.Second})
	w.upstreams[0].script(func(rw http.ResponseWriter, r *http.Request, body []byte) {
		time.Sleep(6 * time.Second) // longer than a stream may take to begin, and to connect
		whole("four", usageText)(rw, r, body)
	})
	if a := w.chat(""); a.status != http.StatusOK {
		t.Errorf("a whole answer that takes long: %d %s", a.status, a.body)
	}
}

// deaf is a body whose reads end only when it is closed.
type deaf struct {
	io.Reader
	closed chan struct{}
	once   sync.Once
}

func (d *deaf) Read(b []byte) (int, error) {
	if n, err := d.Reader.Read(b); err == nil {
		return n, nil
	}
	<-d.closed
	return 0, net.ErrClosed
}

func (d *deaf) Close() error { d.once.Do(func() { close(d.closed) }); return nil }

// answers is a transport that gives the same answer each time.
type answers func(*http.Request) *http.Response

func (a answers) RoundTrip(r *http.Request) (*http.Response, error) {
	_, _ = io.Copy(io.Discard, r.Body)
	return a(r), nil
}

// No read of an upstream outlives its time, whatever the transport's bodies do: a
// protocol that nobody asked for, an error, an answer, a stream that does not end.
func TestBodiesThatIgnoreTheContext(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		code   int
		media  string
		sent   string
		kind   string
		status int
	}{
		"101":    {101, "", "", "upstream_broken", http.StatusBadGateway},
		"103":    {103, "", "", "upstream_broken", http.StatusBadGateway},
		"error":  {500, "application/json", "{", "upstream_timeout", http.StatusGatewayTimeout},
		"whole":  {200, "application/json", "{", "upstream_timeout", http.StatusGatewayTimeout},
		"stream": {200, "text/event-stream", ": x\n\n", "upstream_timeout", http.StatusGatewayTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := &http.Client{Transport: answers(func(r *http.Request) *http.Response {
				return &http.Response{
					StatusCode: c.code, Status: strconv.Itoa(c.code), ProtoMajor: 1, ProtoMinor: 1, Request: r, ContentLength: -1,
					Header: http.Header{"Content-Type": {c.media}}, Body: &deaf{Reader: strings.NewReader(c.sent), closed: make(chan struct{})},
				}
			})}
			w := newWorld(t, setup{idle: 100 * time.Millisecond, client: client})
			if a := w.chat(`,"stream":true`); a.status != c.status || !strings.Contains(a.body, c.kind) {
				t.Errorf("answer %d %s", a.status, a.body)
			}
			w.ended(1)
		})
	}
}
