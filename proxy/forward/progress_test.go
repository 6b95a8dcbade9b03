package forward

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"tollgate/admission"
	"tollgate/events"
	"tollgate/proxy"
	"tollgate/tenancy"
)

// manyWords streams words until it is told to stop, then ends in order.
func manyWords(n int) func(http.ResponseWriter, *http.Request, []byte) {
	return func(rw http.ResponseWriter, r *http.Request, _ []byte) {
		for i := range n {
			if r.Context().Err() != nil {
				return
			}
			writeStream(rw, delta(fmt.Sprintf("w%d ", i)))
		}
		writeStream(rw, stopEvent, usageEvent(fmt.Sprintf(`{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":0}`, promptTokens, n)), doneEvent)
	}
}

// A stream that outgrows its hold asks for more and gets it where the limit has
// room.
func TestStreamOutgrowsItsHold(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{
		limits: []tenancy.Limit{perMinute(1000)}, platform: tenancy.Platform{DefaultMaxOutputTokens: 50},
		change: func(o *Options) { o.ProgressTokens = 20 },
	})
	w.upstreams[0].script(manyWords(300))
	a := w.chat(`,"stream":true`)
	if !strings.HasSuffix(a.body, doneEvent) || !strings.Contains(a.body, "w299 ") {
		t.Fatalf("the answer was cut: …%s", a.body[max(0, len(a.body)-500):])
	}
	wantRecord(t, w.ended(1)[0], events.StateSettled, promptTokens, 300, false)
	w.wantStanding("tokens-60s", promptTokens+300, 0)
}

// One that the limit has no room for is ended cleanly, at what was delivered,
// and within the limit.
func TestStreamEndsAtTheQuota(t *testing.T) {
	t.Parallel()
	const limit = 100
	w := newWorld(t, setup{limits: []tenancy.Limit{perMinute(limit)}, change: func(o *Options) { o.ProgressTokens = 20 }})
	w.upstreams[0].script(manyWords(3000))
	a := w.chat(`,"stream":true,"stream_options":{"include_usage":true}`)
	if a.err != nil || !strings.HasSuffix(a.body, doneEvent) || !strings.Contains(a.body, `"finish_reason":"length"`) || !strings.Contains(a.body, `"quota"`) {
		t.Fatalf("the end is not clean: …%s %v", a.body[max(0, len(a.body)-700):], a.err)
	}
	delivered := int64(strings.Count(a.body, `"content":"w`))
	r := w.ended(1)[0]
	if r.State != events.StateCancelled || r.Reason != "quota" || !r.Estimated || r.Total.InputTokens != promptTokens {
		t.Errorf("ended as %+v", r.Reservation)
	}
	if out := r.Total.OutputTokens; out < delivered || out > limit-promptTokens {
		t.Errorf("charged %d, delivered %d, held for %d", out, delivered, limit-promptTokens)
	}
	if l := w.standing("tokens-60s"); l.Used > limit || l.Held != 0 {
		t.Errorf("used %d of %d, held %d", l.Used, limit, l.Held)
	}
	w.eventually("the upstream to be let go", func() bool { return w.handler.underWay() == 0 })
}

// Word by word the end is exact: all of the hold is delivered, nothing beyond it,
// and what was delivered is charged.
func TestQuotaIsExactToTheWord(t *testing.T) {
	t.Parallel()
	const limit = 100
	w := newWorld(t, setup{limits: []tenancy.Limit{perMinute(limit)}, change: func(o *Options) { o.ProgressTokens = 1000 }})
	next := make(chan struct{})
	w.upstreams[0].script(func(rw http.ResponseWriter, r *http.Request, _ []byte) {
		for i := 0; ; i++ {
			writeStream(rw, delta(fmt.Sprintf("w%d ", i)))
			select {
			case <-next:
			case <-r.Context().Done():
				return
			}
		}
	})
	resp, err := w.client.Do(w.request(t.Context(), `,"stream":true`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	var delivered int64
	for lines.Scan() {
		if strings.Contains(lines.Text(), `"content":"w`) {
			delivered++
			next <- struct{}{}
		}
	}
	if err := lines.Err(); err != nil {
		t.Error(err)
	}
	r := w.ended(1)[0]
	if wantRecord(t, r, events.StateCancelled, promptTokens, limit-promptTokens, true); delivered != limit-promptTokens || r.Reason != "quota" {
		t.Errorf("delivered %d words, reason %q", delivered, r.Reason)
	}
	w.wantStanding("tokens-60s", limit, 0)
}

// An upstream that does not heed the client's cap is stopped.
func TestStreamEndsAtTheClientsCap(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{limits: []tenancy.Limit{concurrency(5)}})
	w.upstreams[0].script(manyWords(3000))
	a := w.chat(`,"stream":true,"max_tokens":10`)
	if !strings.HasSuffix(a.body, doneEvent) || !strings.Contains(a.body, `"output_cap"`) {
		t.Fatalf("…%s", a.body[max(0, len(a.body)-700):])
	}
	r := w.ended(1)[0]
	if r.Reason != "output_cap" || r.Total.OutputTokens < 10 || r.Total.OutputTokens > 1000 {
		t.Errorf("ended as %+v", r.Reservation)
	}
}

// Where the model's tokenizer is not known, a count is an estimate.
func TestEstimatesDoNotCutAnAnswerWithinItsCap(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{limits: []tenancy.Limit{perMinute(1100)}, change: func(o *Options) {
		o.Counters = func(string, string) proxy.Counter { return fourBytes{} }
	}})
	w.upstreams[0].script(func(rw http.ResponseWriter, _ *http.Request, _ []byte) {
		for range 900 {
			writeStream(rw, delta("announced "))
		}
		writeStream(rw, stopEvent, usageEvent(`{"prompt_tokens":13,"completion_tokens":900,"total_tokens":913}`), doneEvent)
	})
	if a := w.chat(`,"stream":true,"max_tokens":1000`); strings.Count(a.body, "announced") != 900 {
		t.Errorf("%d of 900 words came", strings.Count(a.body, "announced"))
	}
	wantRecord(t, w.ended(1)[0], events.StateSettled, 13, 900, false)

	t.Run("nor is it charged beyond it", func(t *testing.T) {
		w.upstreams[0].script(func(rw http.ResponseWriter, _ *http.Request, _ []byte) {
			for range 30 {
				writeStream(rw, delta("announced "))
			}
			breakOff(rw)
		})
		w.chat(`,"stream":true,"max_tokens":40`)
		wantRecord(t, w.ended(2)[1], events.StateCancelled, 11, 40, true)
	})
}

// Silent calls keep their holds: without reports these would have expired
// several times over.
func TestSilentCallsKeepTheirHolds(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{
		limits: []tenancy.Limit{perMinute(100_000), concurrency(2)}, platform: tenancy.Platform{HoldTTL: tenancy.Duration(1500 * time.Millisecond)},
	})
	arrived, proceed := make(chan struct{}, 2), make(chan struct{})
	w.upstreams[0].script(func(rw http.ResponseWriter, r *http.Request, body []byte) {
		streaming := strings.Contains(string(body), `"stream":true`)
		if streaming {
			writeStream(rw, delta("four "))
		}
		arrived <- struct{}{}
		<-proceed
		if streaming {
			writeStream(rw, stopEvent, usageEvent(usageText), doneEvent)
			return
		}
		whole("four", usageText)(rw, r, body)
	})
	answers := make(chan answered, 2)
	go func() { answers <- w.chat("") }()
	go func() { answers <- w.chat(`,"stream":true`) }()
	<-arrived
	<-arrived
	reports := func() map[string]int {
		seen := map[string]int{}
		entries, err := w.redis.Read(context.Background(), 0, "", 1000)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			for i := range e.Events {
				r, err := e.Events[i].Reservation()
				if err != nil {
					t.Fatal(err)
				}
				if r.State == events.StateExpired {
					t.Fatal("a hold expired")
				}
				if r.Seq > 1 {
					seen[r.ReservationID]++
				}
			}
		}
		return seen
	}
	w.eventually("six reports of each", func() bool {
		seen := reports()
		for _, n := range seen {
			if n < 6 {
				return false
			}
		}
		return len(seen) == 2
	})
	w.wantStanding("concurrency", 2, 0)
	close(proceed)
	for range 2 {
		if a := <-answers; a.status != http.StatusOK || a.err != nil {
			t.Errorf("answer %d %s", a.status, a.body)
		}
	}
	for _, r := range w.ended(2) {
		wantRecord(t, r, events.StateSettled, 13, 33, false)
	}
}

// A reservation may last so long and no longer.
func TestStreamEndsAtMaxHold(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{
		limits: []tenancy.Limit{concurrency(2)}, platform: tenancy.Platform{HoldTTL: tenancy.Duration(time.Second), MaxHold: tenancy.Duration(2 * time.Second)},
	})
	w.upstreams[0].script(func(rw http.ResponseWriter, r *http.Request, _ []byte) {
		writeStream(rw, delta("four "))
		<-r.Context().Done()
	})
	a := w.chat(`,"stream":true`)
	if !strings.HasSuffix(a.body, doneEvent) || !strings.Contains(a.body, "max_hold") {
		t.Errorf("the stream ends with %s", a.body)
	}
	r := w.ended(1)[0]
	if wantRecord(t, r, events.StateCancelled, promptTokens, 1, true); r.Reason != "max_hold" {
		t.Errorf("reason %q", r.Reason)
	}
	w.wantStanding("concurrency", 0, 0)
}

// A reservation that somebody else ended is noticed with the next report, and
// the answer ends.
func TestReservationEndedByAnother(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{limits: []tenancy.Limit{perMinute(100_000)}, change: func(o *Options) { o.ProgressTokens = 10 }})
	settled := make(chan struct{})
	w.upstreams[0].script(func(rw http.ResponseWriter, r *http.Request, _ []byte) {
		writeStream(rw, delta("four "))
		<-settled
		for i := 0; r.Context().Err() == nil; i++ {
			writeStream(rw, delta(fmt.Sprintf("w%d ", i)))
		}
	})
	resp, err := w.client.Do(w.request(t.Context(), `,"stream":true`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	firstLine(t, resp.Body)
	end := &admission.UsageReport{Tenant: w.tenant, ReservationID: resp.Header.Get("X-Tollgate-Reservation"), Author: "client"}
	if _, err := w.redis.Settle(t.Context(), end); !errors.Is(err, admission.ErrNotFound) {
		t.Errorf("a tenant ended at nothing what runs for it: %v", err)
	}
	end.Author = "reconciler"
	if _, err := w.redis.Settle(t.Context(), end); err != nil {
		t.Fatal(err)
	}
	close(settled)
	rest, err := io.ReadAll(resp.Body)
	if err != nil || !strings.Contains(string(rest), "reservation_ended") {
		t.Errorf("the stream ends with …%s, %v", rest[max(0, len(rest)-500):], err)
	}
}

// A client that does not read stops the upstream, and costs the gateway no
// memory for what it does not take.
func TestSlowClientSlowsTheUpstream(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{limits: []tenancy.Limit{perMinute(100_000_000)}, change: func(o *Options) { o.ClientWriteTimeout = time.Second }})
	written := make(chan int, 1)
	w.upstreams[0].script(func(rw http.ResponseWriter, _ *http.Request, _ []byte) {
		rw.Header().Set("Content-Type", "text/event-stream")
		piece := delta(strings.Repeat("word ", 2000))
		n := 0
		for n < 256<<20 {
			m, err := io.WriteString(rw, piece)
			n += m
			if err != nil {
				break
			}
		}
		written <- n
	})
	resp, err := w.client.Do(w.request(t.Context(), `,"stream":true`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	firstLine(t, resp.Body)
	// The client reads no more. What the upstream got rid of lies in sockets.
	if n := <-written; n > 64<<20 {
		t.Errorf("the upstream wrote %d MiB to a client that does not read", n>>20)
	}
	r := w.ended(1)[0]
	if r.State != events.StateCancelled || r.Reason != "client_gone" || r.Total.OutputTokens < 2000 || !r.Estimated {
		t.Errorf("ended as %+v", r.Reservation)
	}
}

// A stream near a limit's end is capped upstream, where what is thought unseen is
// seen; one with room is extended instead.
func TestStreamsAtTheEdgeAreCapped(t *testing.T) {
	t.Parallel()
	for limit, want := range map[int64]bool{100: true, 50 + 2*promptTokens + 20: true, 1000: false} {
		w := newWorld(t, setup{limits: []tenancy.Limit{perMinute(limit)}, platform: tenancy.Platform{DefaultMaxOutputTokens: 50}})
		w.upstreams[0].script(manyWords(5))
		if a := w.chat(`,"stream":true`); !strings.HasSuffix(a.body, doneEvent) {
			t.Errorf("answer %d %s", a.status, a.body)
		}
		if body := w.upstreams[0].lastBody(); strings.Contains(body, `tokens":50`) != want {
			t.Errorf("limit %d: %s", limit, body)
		}
	}
}
