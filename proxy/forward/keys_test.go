package forward

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tollgate/admission"
	"tollgate/events"
	"tollgate/tenancy"
)

// A retry with the client's own key: refused while the first is under way and
// after it was answered, a new attempt after it was given up.
func TestKeyedRetries(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{limits: []tenancy.Limit{perMinute(10_000), concurrency(5)}})
	u := w.upstreams[0]

	u.script(refusal(500))
	if a := w.chat("", "Idempotency-Key", "k1"); a.status != 500 {
		t.Fatalf("first attempt %d", a.status)
	}
	u.script(refusal(429))
	w.chat("", "Idempotency-Key", "k1")

	arrived, proceed := make(chan struct{}), make(chan struct{})
	u.script(func(rw http.ResponseWriter, r *http.Request, body []byte) {
		close(arrived)
		<-proceed
		whole("four five", usageText)(rw, r, body)
	})
	third := make(chan answered, 1)
	go func() { third <- w.chat("", "Idempotency-Key", "k1") }()
	<-arrived
	a := w.chat("", "Idempotency-Key", "k1")
	if a.status != 409 || a.header.Get("Retry-After") != "1" || a.header.Get("X-Should-Retry") == "false" || !strings.Contains(a.body, "in_flight") {
		t.Errorf("while under way: %d %v %s", a.status, a.header, a.body)
	}
	close(proceed)
	if a := <-third; a.status != http.StatusOK {
		t.Errorf("third attempt %d %s", a.status, a.body)
	}
	w.ended(3)
	a = w.chat("", "Idempotency-Key", "k1")
	if a.status != 409 || a.header.Get("X-Should-Retry") != "false" || !strings.Contains(a.body, "idempotency_key_used") {
		t.Errorf("after the answer: %d %v %s", a.status, a.header, a.body)
	}
	if a := w.chat(`,"temperature":1`, "Idempotency-Key", "k1"); a.status != 422 || !strings.Contains(a.body, "request_id_reused") {
		t.Errorf("another body: %d %s", a.status, a.body)
	}
	list := w.ended(3)
	for i, want := range []string{"k1~1", "k1~2", "k1~3"} {
		if list[i].RequestID != want {
			t.Errorf("attempt %d is %q, want %q", i+1, list[i].RequestID, want)
		}
	}
	wantRecord(t, list[2], events.StateSettled, 13, 33, false)
	w.wantStanding("tokens-60s", 46, 0)
	if n := u.calls.Load(); n != 3 {
		t.Errorf("%d calls upstream, want 3", n)
	}

	t.Run("a request cancelled before it came", func(t *testing.T) {
		if _, err := w.redis.Cancel(t.Context(), &admission.UsageReport{Tenant: w.tenant, RequestID: "k2", Author: "client"}); err != nil {
			t.Fatal(err)
		}
		u.script(whole("four", usageText))
		if a := w.chat("", "Idempotency-Key", "k2"); a.status != http.StatusOK {
			t.Errorf("answer %d %s", a.status, a.body)
		}
	})
	t.Run("the other header, and a key that must be hashed", func(t *testing.T) {
		key := strings.Repeat("ä|", 300)
		if a := w.chat("", "X-Client-Request-Id", key); a.status != http.StatusOK {
			t.Errorf("answer %d %s", a.status, a.body)
		}
		if a := w.chat("", "X-Client-Request-Id", key); a.status != 409 {
			t.Errorf("the retry: %d %s", a.status, a.body)
		}
	})
	t.Run("an id that names a conversation", func(t *testing.T) {
		for _, turn := range []string{"", `,"temperature":1`, `,"temperature":0.5`} {
			if a := w.chat(turn, "X-Client-Request-Id", "conversation"); a.status != http.StatusOK {
				t.Errorf("turn %q: %d %s", turn, a.status, a.body)
			}
		}
	})
}

// An upstream that breaks off after its answer's end has answered: a retry does
// not run again.
func TestBreakOffAfterTheEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{limits: []tenancy.Limit{perMinute(10_000)}})
	w.upstreams[0].script(func(rw http.ResponseWriter, _ *http.Request, _ []byte) {
		writeStream(rw, delta("four "), stopEvent, usageEvent(usageText))
		breakOff(rw)
	})
	if a := w.chat(`,"stream":true`, "Idempotency-Key", "k"); a.status != http.StatusOK || strings.Contains(a.body, "error") {
		t.Errorf("answer %d %s", a.status, a.body)
	}
	wantRecord(t, w.ended(1)[0], events.StateSettled, 13, 33, false)
	if a := w.chat(`,"stream":true`, "Idempotency-Key", "k"); a.status != http.StatusConflict {
		t.Errorf("the retry: %d %s", a.status, a.body)
	}
}

// Two requests with one key at once: one runs.
func TestKeyedTwins(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{limits: []tenancy.Limit{perMinute(10_000)}})
	var release sync.WaitGroup
	release.Add(1)
	w.upstreams[0].script(func(rw http.ResponseWriter, r *http.Request, body []byte) {
		release.Wait()
		whole("four", usageText)(rw, r, body)
	})
	const twins = 8
	answers := make(chan answered, twins)
	for range twins {
		go func() { answers <- w.chat("", "Idempotency-Key", "k") }()
	}
	for range twins - 1 {
		if a := <-answers; a.status != 409 {
			t.Errorf("a twin got %d %s", a.status, a.body)
		}
	}
	release.Done()
	if a := <-answers; a.status != http.StatusOK {
		t.Errorf("the one that runs got %d %s", a.status, a.body)
	}
	wantRecord(t, w.ended(1)[0], events.StateSettled, 13, 33, false)
}

// flaky is a store whose calls fail as a test says, before or after they took
// effect.
type flaky struct {
	admission.Store
	mu     sync.Mutex
	before func(op string) error
	after  func(op string) error
}

func (f *flaky) fail(before, after func(op string) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.before, f.after = before, after
}

func (f *flaky) call(op string, do func() (*admission.Reservation, error)) (*admission.Reservation, error) {
	f.mu.Lock()
	before, after := f.before, f.after
	f.mu.Unlock()
	if before != nil {
		if err := before(op); err != nil {
			return nil, err
		}
	}
	res, err := do()
	if after != nil {
		if lost := after(op); lost != nil {
			return nil, lost
		}
	}
	return res, err
}

func (f *flaky) Reserve(ctx context.Context, req *admission.ReserveRequest) (*admission.Reservation, error) {
	return f.call("reserve", func() (*admission.Reservation, error) { return f.Store.Reserve(ctx, req) })
}

func (f *flaky) Report(ctx context.Context, rep *admission.UsageReport) (*admission.Reservation, error) {
	return f.call("report", func() (*admission.Reservation, error) { return f.Store.Report(ctx, rep) })
}

func (f *flaky) Settle(ctx context.Context, rep *admission.UsageReport) (*admission.Reservation, error) {
	return f.call("end", func() (*admission.Reservation, error) { return f.Store.Settle(ctx, rep) })
}

func (f *flaky) Cancel(ctx context.Context, rep *admission.UsageReport) (*admission.Reservation, error) {
	return f.call("end", func() (*admission.Reservation, error) { return f.Store.Cancel(ctx, rep) })
}

// times returns a hook that fails the first n calls of an operation.
func failing(n int, op string) func(string) error {
	var mu sync.Mutex
	return func(of string) error {
		mu.Lock()
		defer mu.Unlock()
		if of == op && n > 0 {
			n--
			return admission.ErrUnavailable
		}
		return nil
	}
}

// A store that is away while requests end and begin.
func TestStoreAway(t *testing.T) {
	t.Parallel()
	var f *flaky
	w := newWorld(t, setup{
		limits: []tenancy.Limit{perMinute(10_000), concurrency(1)},
		store:  func(s admission.Store) admission.Store { f = &flaky{Store: s}; return f },
	})
	w.upstreams[0].script(whole("four", usageText))
	t.Run("a settlement is tried again until it is recorded", func(t *testing.T) {
		f.fail(failing(3, "end"), nil)
		if a := w.chat(""); a.status != http.StatusOK {
			t.Fatalf("answer %d", a.status)
		}
		wantRecord(t, w.ended(1)[0], events.StateSettled, 13, 33, false)
	})
	t.Run("a settlement whose answer was lost counts once", func(t *testing.T) {
		f.fail(nil, failing(2, "end"))
		if a := w.chat(""); a.status != http.StatusOK {
			t.Fatalf("answer %d", a.status)
		}
		w.ended(2)
		w.wantStanding("tokens-60s", 92, 0)
	})
	t.Run("a reserve whose answer was lost is met again", func(t *testing.T) {
		f.fail(nil, failing(1, "reserve"))
		if a := w.chat(""); a.status != http.StatusOK {
			t.Fatalf("answer %d %s", a.status, a.body)
		}
		w.ended(3)
		w.wantStanding("tokens-60s", 138, 0)
	})
	t.Run("a reserve that is never known is given up, and leaves no hold", func(t *testing.T) {
		f.fail(nil, failing(2, "reserve"))
		a := w.chat("")
		if a.status != 503 || a.header.Get("Retry-After") != "1" || a.header.Get("X-Tollgate-Error-Source") != "tollgate" {
			t.Fatalf("answer %d %s", a.status, a.body)
		}
		r := w.ended(4)[3]
		wantRecord(t, r, events.StateCancelled, 0, 0, false)
		w.wantStanding("concurrency", 0, 0)
		w.wantStanding("tokens-60s", 138, 0)
	})
	f.fail(nil, nil)
}

// What cannot be recorded while there is time is left to the reconciler, and
// Stop says so; the hold is still there for it to find.
func TestStopGivesUp(t *testing.T) {
	t.Parallel()
	var f *flaky
	w := newWorld(t, setup{
		limits: []tenancy.Limit{perMinute(10_000)},
		store:  func(s admission.Store) admission.Store { f = &flaky{Store: s}; return f },
	})
	w.lost = true
	w.upstreams[0].script(whole("four", usageText))
	f.fail(failing(1<<30, "end"), nil)
	if a := w.chat(`,"max_tokens":100`); a.status != http.StatusOK {
		t.Fatalf("answer %d", a.status)
	}
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	go func() { stopped <- w.handler.Stop(ctx) }()
	w.eventually("the drain", w.handler.isDraining)
	cancel()
	if err := <-stopped; err == nil {
		t.Error("Stop says that all was settled")
	}
	w.wantStanding("tokens-60s", 0, promptTokens+100)
}

// What Stop does with requests under way: it waits, then ends them in their
// dialect; and every reservation has ended when it returns.
func TestDrain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{
		limits: []tenancy.Limit{perMinute(10_000), concurrency(10)},
		change: func(o *Options) { o.DrainTimeout = 200 * time.Millisecond },
	})
	w.upstreams[0].script(func(rw http.ResponseWriter, r *http.Request, body []byte) {
		if strings.Contains(string(body), `"stream":true`) {
			writeStream(rw, delta("four "), delta("five "))
		}
		<-r.Context().Done()
	})
	streaming, err := w.client.Do(w.request(t.Context(), `,"stream":true,"stream_options":{"include_usage":true}`))
	if err != nil {
		t.Fatal(err)
	}
	defer streaming.Body.Close()
	head := delta("four ") + delta("five ")
	if _, err := io.ReadFull(streaming.Body, make([]byte, len(head))); err != nil {
		t.Fatal(err)
	}
	waiting := make(chan answered, 1)
	go func() { waiting <- w.chat("") }()
	w.eventually("both under way", func() bool { return w.upstreams[0].calls.Load() == 2 })

	stopped := make(chan error, 1)
	go func() { stopped <- w.handler.Stop(context.Background()) }()
	w.eventually("the drain", w.handler.isDraining)
	if a := w.chat(""); a.status != 503 || a.header.Get("Retry-After") != "1" || !strings.Contains(a.body, "shutting_down") {
		t.Errorf("a new request: %d %s", a.status, a.body)
	}
	rest, err := io.ReadAll(streaming.Body)
	if err != nil || !strings.Contains(string(rest), "shutdown") || !strings.HasSuffix(string(rest), doneEvent) ||
		!strings.Contains(string(rest), `"prompt_tokens":`+itoa(promptTokens)+`,"completion_tokens":2`) {
		t.Errorf("the stream ends with %s, %v", rest, err)
	}
	if a := <-waiting; a.status != 503 || !strings.Contains(a.body, "shutting_down") {
		t.Errorf("the waiting request: %d %s", a.status, a.body)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	for _, r := range w.finals() {
		if r.State != events.StateCancelled || r.Reason != "shutdown" || !r.Estimated || r.Total.InputTokens != promptTokens {
			t.Errorf("ended as %+v", r.Reservation)
		}
	}
	w.wantStanding("concurrency", 0, 0)
	w.wantStanding("tokens-60s", 2*promptTokens+2, 0)
}

// A client that does not read does not hold the shutdown up.
func TestDrainDoesNotWaitForAStuckClient(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{
		limits: []tenancy.Limit{concurrency(1)}, change: func(o *Options) { o.DrainTimeout = 100 * time.Millisecond },
	})
	var pieces atomic.Int64
	w.upstreams[0].script(func(rw http.ResponseWriter, r *http.Request, _ []byte) {
		for piece := delta(strings.Repeat("word ", 2000)); r.Context().Err() == nil; pieces.Add(1) {
			writeStream(rw, piece)
		}
	})
	resp, err := w.client.Do(w.request(t.Context(), `,"stream":true`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	last, since := int64(-1), 0
	w.eventually("the upstream to be held up", func() bool {
		if n := pieces.Load(); n != last {
			last, since = n, 0
		}
		since++
		return since > 100 // looks without a change
	})
	if err := w.handler.Stop(context.Background()); err != nil {
		t.Error(err)
	}
	if list := w.finals(); len(list) != 1 || list[0].Reason != "shutdown" {
		t.Errorf("ended %+v", list)
	}
	w.wantStanding("concurrency", 0, 0)
}

// A drain waits for what ends by itself.
func TestDrainWaits(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{limits: []tenancy.Limit{concurrency(10)}})
	arrived, proceed := make(chan struct{}), make(chan struct{})
	w.upstreams[0].script(func(rw http.ResponseWriter, r *http.Request, body []byte) {
		close(arrived)
		<-proceed
		whole("four", usageText)(rw, r, body)
	})
	waiting := make(chan answered, 1)
	go func() { waiting <- w.chat("") }()
	<-arrived
	stopped := make(chan error, 1)
	go func() { stopped <- w.handler.Stop(context.Background()) }()
	w.eventually("the drain", w.handler.isDraining)
	close(proceed)
	if a := <-waiting; a.status != http.StatusOK || a.err != nil {
		t.Errorf("answer %d %s", a.status, a.body)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	if list := w.finals(); len(list) != 1 || list[0].State != events.StateSettled {
		t.Errorf("ended %+v", list)
	}
}
