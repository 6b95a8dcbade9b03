package forward

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"tollgate/admission"
	"tollgate/events"
	"tollgate/tenancy"
)

// M1: usage in several chunks and again in the last counts once.
func TestCaseM1_RepeatedUsageCountsOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{limits: []tenancy.Limit{perMinute(10_000)}})
	partial := strings.Replace(delta("four "), `"choices"`, `"usage":{"prompt_tokens":13,"completion_tokens":12,"total_tokens":25},"choices"`, 1)
	w.upstreams[0].script(stream(partial, partial, usageEvent(usageText), usageEvent(usageText), stopEvent, usageEvent(usageText), doneEvent))
	if a := w.chat(`,"stream":true,"stream_options":{"include_usage":true}`); !strings.HasSuffix(a.body, doneEvent) {
		t.Fatalf("answer %s", a.body)
	}
	wantRecord(t, w.ended(1)[0], events.StateSettled, 13, 33, false)
	w.wantStanding("tokens-60s", 46, 0)
}

// M2: a client that leaves after k chunks is charged the prompt and what was
// delivered, estimated; the upstream is cancelled.
func TestCaseM2_ClientLeavesAStream(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{limits: []tenancy.Limit{perMinute(10_000), concurrency(1)}})
	gone := make(chan struct{})
	w.upstreams[0].script(func(rw http.ResponseWriter, r *http.Request, _ []byte) {
		writeStream(rw, delta("four "), delta("five "), delta("six "))
		<-r.Context().Done()
		close(gone)
	})
	ctx, cancel := context.WithCancel(t.Context())
	resp, err := w.client.Do(w.request(ctx, `,"stream":true,"max_tokens":1000`))
	if err != nil {
		t.Fatal(err)
	}
	want := delta("four ") + delta("five ") + delta("six ")
	if _, err := io.ReadFull(resp.Body, make([]byte, len(want))); err != nil {
		t.Fatal(err)
	}
	cancel()
	resp.Body.Close()
	<-gone
	r := w.ended(1)[0]
	wantRecord(t, r, events.StateCancelled, promptTokens, 3, true)
	if r.Reason != "client_gone" {
		t.Errorf("reason %q", r.Reason)
	}
	w.wantStanding("concurrency", 0, 0)
	w.wantStanding("tokens-60s", promptTokens+3, 0)
}

// M3: a cancel with the upstream's usage 0/0/0 costs nothing.
func TestCaseM3_CancelWithZeroUsage(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{limits: []tenancy.Limit{perMinute(10_000)}})
	w.upstreams[0].script(func(rw http.ResponseWriter, r *http.Request, _ []byte) {
		writeStream(rw, ": ping\n\n", usageEvent(`{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0}`))
		<-r.Context().Done()
	})
	ctx, cancel := context.WithCancel(t.Context())
	resp, err := w.client.Do(w.request(ctx, `,"stream":true,"stream_options":{"include_usage":true}`))
	if err != nil {
		t.Fatal(err)
	}
	firstLine(t, resp.Body)
	cancel()
	resp.Body.Close()
	wantRecord(t, w.ended(1)[0], events.StateCancelled, 0, 0, false)
	w.wantStanding("tokens-60s", 0, 0)
}

// M4: an answer without usage, or with zeros although it has content, is
// charged by the own count, and never refunded.
func TestCaseM4_AnswersWithoutUsage(t *testing.T) {
	t.Parallel()
	zeros := `{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0}`
	for name, c := range map[string]struct {
		script func(http.ResponseWriter, *http.Request, []byte)
		extra  string
	}{
		"stream":              {stream(delta("four "), delta("five"), stopEvent, doneEvent), `,"stream":true`},
		"stream without DONE": {stream(delta("four "), delta("five"), stopEvent), `,"stream":true`},
		"stream with zeros":   {stream(delta("four "), delta("five"), stopEvent, usageEvent(zeros), doneEvent), `,"stream":true`},
		"stream with absurd":  {stream(delta("four "), delta("five"), stopEvent, usageEvent(`{"prompt_tokens":-1,"completion_tokens":1e30}`), doneEvent), `,"stream":true`},
		"whole":               {whole("four five", ""), ""},
		"whole with zeros":    {whole("four five", zeros), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, setup{limits: []tenancy.Limit{perMinute(10_000)}})
			w.upstreams[0].script(c.script)
			if a := w.chat(c.extra); a.status != http.StatusOK || a.err != nil {
				t.Fatalf("answer %d %v", a.status, a.err)
			}
			wantRecord(t, w.ended(1)[0], events.StateSettled, promptTokens, 2, true)
			w.wantStanding("tokens-60s", promptTokens+2, 0)
		})
	}
}

// M5: settling what is settled changes nothing, whoever does it.
func TestCaseM5_SettledTwice(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{limits: []tenancy.Limit{perMinute(10_000)}})
	w.upstreams[0].script(whole("four five", usageText))
	w.chat("")
	r := w.ended(1)[0]
	rep := &admission.UsageReport{Tenant: w.tenant, ReservationID: r.ReservationID, Total: r.Total, Author: author}
	if again, err := w.redis.Settle(t.Context(), rep); err != nil || !again.Replayed {
		t.Errorf("the same figures gave %+v, %v", again, err)
	}
	rep.Total.OutputTokens++
	if _, err := w.redis.Settle(t.Context(), rep); !errors.Is(err, admission.ErrAlreadyFinal) {
		t.Errorf("other figures gave %v", err)
	}
	w.wantStanding("tokens-60s", 46, 0)
}

// A5: ten slots; failing upstreams and clients that leave at any moment give
// every slot back, without a pause in the traffic.
func TestCaseA5_EverySlotComesBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{
		limits: []tenancy.Limit{concurrency(10), perMinute(100_000_000)}, idle: 300 * time.Millisecond, response: 300 * time.Millisecond,
		fresh: true,
	})
	u := w.upstreams[0]
	for i, script := range []func(http.ResponseWriter, *http.Request, []byte){
		refusal(502), refusal(504), refusal(500), refusal(502), refusal(504),
		func(_ http.ResponseWriter, r *http.Request, _ []byte) { <-r.Context().Done() }, // never answers
		func(rw http.ResponseWriter, r *http.Request, _ []byte) { // answers with a head alone
			writeStream(rw, ": ping\n\n")
			<-r.Context().Done()
		},
		func(rw http.ResponseWriter, _ *http.Request, _ []byte) { breakOff(rw) },
		func(rw http.ResponseWriter, _ *http.Request, _ []byte) {
			writeStream(rw, delta("four "))
			breakOff(rw)
		},
		func(rw http.ResponseWriter, _ *http.Request, _ []byte) { _, _ = io.WriteString(rw, "<html>") },
	} {
		u.script(script)
		if a := w.chat(`,"stream":true`); a.status == http.StatusTooManyRequests {
			t.Fatalf("call %d was refused: %s", i, a.body)
		}
	}
	w.ended(10)
	w.wantStanding("concurrency", 0, 0)

	u.script(func(rw http.ResponseWriter, r *http.Request, _ []byte) {
		for range 20 {
			writeStream(rw, delta("four "))
			if r.Context().Err() != nil {
				return
			}
			time.Sleep(200 * time.Microsecond) // an upstream's pace, not a wait for something
		}
		writeStream(rw, stopEvent, usageEvent(usageText), doneEvent)
	})
	leave := 1000
	if testing.Short() {
		leave = 100
	}
	var wg sync.WaitGroup
	for worker := range 10 {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(uint64(worker), 5))
			for range leave / 10 {
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration(random.IntN(12_000))*time.Microsecond)
				if resp, err := w.client.Do(w.request(ctx, `,"stream":true`)); err == nil {
					_, _ = io.CopyN(io.Discard, resp.Body, int64(random.IntN(4000)))
					resp.Body.Close()
				}
				cancel()
			}
		})
	}
	wg.Wait()
	w.eventually("no request under way", func() bool { return w.handler.underWay() == 0 })
	w.wantStanding("concurrency", 0, 0)
	w.wantStanding("tokens-60s", w.standing("tokens-60s").Used, 0)
	u.script(whole("four", usageText))
	if a := w.chat(""); a.status != http.StatusOK {
		t.Errorf("the next call: %d %s", a.status, a.body)
	}
}

// A10: a small limit never demands max_tokens: the hold is what it leaves. A
// tenant without token limits has its requests left as they are.
func TestCaseA10_NoMaxTokensGiven(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{limits: []tenancy.Limit{perMinute(100)}})
	w.upstreams[0].script(whole("four five", usageText))
	if a := w.chat(""); a.status != http.StatusOK {
		t.Fatalf("answer %d %s", a.status, a.body)
	}
	r := w.ended(1)[0]
	if r.HeldMilliUnits != 0 {
		t.Errorf("held %d", r.HeldMilliUnits)
	}
	if body := w.upstreams[0].lastBody(); !strings.Contains(body, `tokens":`+itoa(100-promptTokens)) {
		t.Errorf("the answer is not capped at its hold: %s", body)
	}
	if a := w.chat(`,"n":1000`); a.status != http.StatusTooManyRequests || !strings.Contains(a.body, `"request_exceeds_limit"`) {
		t.Errorf("1000 answers of a token each where 100 may be: %d %s", a.status, a.body)
	}
	unlimited := newWorld(t, setup{limits: []tenancy.Limit{concurrency(3)}})
	unlimited.upstreams[0].script(whole("four five", usageText))
	unlimited.chat("")
	if body := unlimited.upstreams[0].lastBody(); strings.Contains(body, "tokens") {
		t.Errorf("a cap was written where no limit counts tokens: %s", body)
	}
}

// A11's kind: handlers that panic are charged for what was delivered, and their
// reservations end.
func TestCaseA11_PanicsEndTheirReservations(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{limits: []tenancy.Limit{perMinute(10_000), concurrency(8)}, change: func(o *Options) {
		o.Dialects[0] = panicking{o.Dialects[0]}
	}})
	read := make(chan struct{})
	w.upstreams[0].script(func(rw http.ResponseWriter, _ *http.Request, _ []byte) {
		writeStream(rw, delta("four "), delta("five "))
		<-read
		writeStream(rw, delta("panic "), stopEvent, doneEvent)
	})
	resp, err := w.client.Do(w.request(t.Context(), `,"stream":true`))
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.ReadFull(resp.Body, make([]byte, len(delta("four ")+delta("five "))))
	close(read)
	if err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(resp.Body); err == nil {
		t.Errorf("the client took a broken answer for whole: %s", rest)
	}
	resp.Body.Close()
	r := w.ended(1)[0]
	// The stream that panicked is not asked again: its last rough count is ten
	// bytes, four a token.
	wantRecord(t, r, events.StateCancelled, promptTokens, 3, true)
	if r.Reason != "panic" {
		t.Errorf("reason %q", r.Reason)
	}
	w.upstreams[0].script(whole("panic", usageText))
	if a := w.chat(""); a.status != http.StatusInternalServerError || !strings.Contains(a.body, `"error"`) {
		t.Errorf("a panic before the answer: %d %s", a.status, a.body)
	}
	w.ended(2)
	w.wantStanding("concurrency", 0, 0)
}

// A13: many streams are cancelled with large holds; what stays used is what was
// consumed, and the next request is admitted.
func TestCaseA13_CancelledHoldsComeBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{limits: []tenancy.Limit{perMinute(800)}})
	w.upstreams[0].script(func(rw http.ResponseWriter, r *http.Request, _ []byte) {
		writeStream(rw, delta("four "), delta("five "))
		<-r.Context().Done()
	})
	const streams = 20
	for range streams {
		ctx, cancel := context.WithCancel(t.Context())
		resp, err := w.client.Do(w.request(ctx, `,"stream":true,"max_tokens":400`))
		if err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("status %d", resp.StatusCode)
		}
		if _, err := io.ReadFull(resp.Body, make([]byte, len(delta("four ")+delta("five ")))); err != nil {
			t.Fatal(err)
		}
		cancel()
		resp.Body.Close()
		w.eventually("no request under way", func() bool { return w.handler.underWay() == 0 })
	}
	w.ended(streams)
	w.wantStanding("tokens-60s", streams*(promptTokens+2), 0)
	w.upstreams[0].script(whole("four", usageText))
	if a := w.chat(`,"max_tokens":400`); a.status != http.StatusOK {
		t.Errorf("the next request: %d %s", a.status, a.body)
	}
}
