package forward

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"tollgate/events"
	"tollgate/tenancy"
)

// hooked is a context that calls a function when somebody asks for its end.
type hooked struct {
	context.Context
	asked func()
}

func (h hooked) Done() <-chan struct{} {
	h.asked()
	return h.Context.Done()
}

// A shutdown that ends all requests meets one that is just beginning.
func TestEndedWhileBeginning(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	w.upstreams[0].script(whole("four", usageText))
	r := w.request(t.Context(), "")
	answer := httptest.NewRecorder()
	w.handler.ServeHTTP(answer, r.WithContext(hooked{t.Context(), w.handler.endAll}))
	if answer.Code != http.StatusOK && answer.Code != http.StatusServiceUnavailable {
		t.Errorf("answer %d %s", answer.Code, answer.Body)
	}
}

// A client that leaves at the answer's end marker has all of it, as OpenAI's for
// Python does: the upstream's own end need not be seen for the answer to be
// settled.
func TestClientLeavesAtTheEndMarker(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{limits: []tenancy.Limit{perMinute(10_000)}})
	w.upstreams[0].script(func(rw http.ResponseWriter, r *http.Request, _ []byte) {
		writeStream(rw, delta("four "), stopEvent, usageEvent(`{"prompt_tokens":13,"completion_tokens":33,"total_tokens":46}`), doneEvent)
		<-r.Context().Done() // the connection stays open
	})
	ctx, cancel := context.WithCancel(t.Context())
	resp, err := w.client.Do(w.request(ctx, `,"stream":true`))
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for one := make([]byte, 1); !strings.HasSuffix(got.String(), doneEvent); {
		if _, err := io.ReadFull(resp.Body, one); err != nil {
			t.Fatal(err)
		}
		got.Write(one)
	}
	cancel()
	resp.Body.Close()
	wantRecord(t, w.ended(1)[0], events.StateSettled, 13, 33, false)
	if ex := w.observed.last(); ex.ErrorType != "" {
		t.Errorf("observed as %q", ex.ErrorType)
	}
}

// A client that ends its side of the connection counts as gone. If it still
// reads, it must not take an empty answer for one.
func TestClientEndsItsSide(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	w.upstreams[0].script(func(_ http.ResponseWriter, r *http.Request, _ []byte) { <-r.Context().Done() })
	body := `{"model":"alias","messages":[{"role":"user","content":"one two three"}]}`
	for _, sent := range []string{body, body[:len(body)-1]} {
		conn := w.half(len(body), sent)
		if sent == body {
			w.eventually("the request to be there", func() bool { return w.upstreams[0].calls.Load() == 1 })
		}
		if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		got, _ := io.ReadAll(conn) // broken off, and how does not matter
		if bytes.Contains(got, []byte("HTTP/1.1 200")) {
			t.Errorf("answered %s", got)
		}
	}
	wantRecord(t, w.ended(1)[0], events.StateCancelled, promptTokens, 0, true)
}

// After the end marker nothing passes, and the upstream is let go.
func TestNothingPassesAfterTheEndMarker(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{limits: []tenancy.Limit{perMinute(10_000)}})
	for name, after := range map[string]string{"in one piece": doneEvent + delta("more "), "later": doneEvent} {
		w.upstreams[0].script(func(rw http.ResponseWriter, r *http.Request, _ []byte) {
			writeStream(rw, delta("four "), stopEvent, usageEvent(usageText), after)
			for r.Context().Err() == nil {
				writeStream(rw, delta("more "))
			}
		})
		if a := w.chat(`,"stream":true`); a.err != nil || !strings.HasSuffix(a.body, doneEvent) {
			t.Errorf("%s: …%s, %v", name, a.body[max(0, len(a.body)-200):], a.err)
		}
	}
	for _, r := range w.ended(2) {
		wantRecord(t, r, events.StateSettled, 13, 33, false)
	}
}
