package forward

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"tollgate/events"
	"tollgate/tenancy"
)

// An answer that is too large to be read passes whole, and is charged by its
// length within the hold.
func TestOverlongAnswer(t *testing.T) {
	t.Parallel()
	text := chatAnswer(strings.Repeat("word ", 50_000), usageText)
	for name, c := range map[string]struct {
		script http.HandlerFunc
		broken bool
		state  events.State
	}{
		"whole": {
			script: func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }, state: events.StateSettled,
		},
		"broken": {script: func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, text[:len(text)/2])
			breakOff(w)
		}, broken: true, state: events.StateCancelled},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, setup{limits: []tenancy.Limit{perMinute(100_000)}, change: func(o *Options) { o.MaxAnswerBytes = 10_000 }})
			w.upstreams[0].script(func(rw http.ResponseWriter, r *http.Request, _ []byte) { c.script(rw, r) })
			a := w.chat(`,"max_tokens":500`)
			if a.status != http.StatusOK || c.broken != (a.err != nil) || !c.broken && a.body != text {
				t.Errorf("answer %d, %d bytes, %v", a.status, len(a.body), a.err)
			}
			wantRecord(t, w.ended(1)[0], c.state, promptTokens, 500, true)
		})
	}
}

// Speech passes as it comes; a client notices when it is not whole.
func TestBinaryAnswer(t *testing.T) {
	t.Parallel()
	sound := strings.Repeat("\x00\xffsound", 40_000)
	for name, c := range map[string]struct {
		send   string
		broken bool
		state  events.State
	}{
		"whole":  {send: sound, state: events.StateSettled},
		"broken": {send: sound[:100_000], broken: true, state: events.StateCancelled},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, setup{limits: []tenancy.Limit{perMinute(100_000)}})
			w.upstreams[0].script(func(rw http.ResponseWriter, _ *http.Request, _ []byte) {
				rw.Header().Set("Content-Type", "audio/mpeg")
				_, _ = io.WriteString(rw, c.send)
				if c.broken {
					breakOff(rw)
				}
			})
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.server.URL+"/v1/audio/speech", strings.NewReader(`{"model":"m","voice":"alloy","input":"one two three"}`))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Authorization", "Bearer "+w.key)
			r.Header.Set("Content-Type", "application/json")
			a := w.do(r)
			if a.status != http.StatusOK || a.body != c.send || c.broken != (a.err != nil) || a.header.Get("Content-Type") != "audio/mpeg" {
				t.Errorf("answer %d, %d bytes of %q, %v", a.status, len(a.body), a.header.Get("Content-Type"), a.err)
			}
			if got := w.ended(1)[0]; got.State != c.state || got.Total.InputTokens == 0 || !got.Estimated {
				t.Errorf("ended as %+v", got.Reservation)
			}
		})
	}
}

// The server's time-outs are for short requests. Those that last end by rules of
// their own.
func TestServerTimeoutsDoNotEndLongRequests(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{
		limits: []tenancy.Limit{concurrency(5)}, patience: 150 * time.Millisecond,
		change: func(o *Options) { o.BodyTimeout = 150 * time.Millisecond },
	})
	const longer = 400 * time.Millisecond // time itself is what is tested
	w.upstreams[0].script(func(rw http.ResponseWriter, r *http.Request, body []byte) {
		if !strings.Contains(string(body), `"stream":true`) {
			time.Sleep(longer)
			whole("four", usageText)(rw, r, body)
			return
		}
		writeStream(rw, delta("four "))
		time.Sleep(longer)
		writeStream(rw, delta("five "), stopEvent, usageEvent(usageText), doneEvent)
	})
	if a := w.chat(""); a.status != http.StatusOK || a.err != nil {
		t.Errorf("whole: %d %v", a.status, a.err)
	}
	if a := w.chat(`,"stream":true`); a.err != nil || !strings.HasSuffix(a.body, doneEvent) {
		t.Errorf("stream: %d %s %v", a.status, a.body, a.err)
	}
	for _, r := range w.ended(2) {
		wantRecord(t, r, events.StateSettled, 13, 33, false)
	}
	for status, script := range map[int]func(http.ResponseWriter, *http.Request, []byte){500: refusal(500), 502: refusal(401)} {
		w.upstreams[0].script(func(rw http.ResponseWriter, r *http.Request, body []byte) {
			time.Sleep(longer)
			script(rw, r, body)
		})
		if a := w.chat(""); a.status != status || a.err != nil {
			t.Errorf("an error that comes late: %d %v, want %d", a.status, a.err, status)
		}
	}
}

// A handler that was never started, or is stopped twice, stops all the same.
func TestStopWithoutStart(t *testing.T) {
	t.Parallel()
	w := &world{t: t}
	w.build(setup{}, memory{})
	defer w.close() // stops again
	h, err := New(w.handler.opts)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := h.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	}
	if _, err := New(Options{}); err == nil {
		t.Error("options without anything were taken")
	}
}

// Large bodies pass whole, with and without a length, and give their room back.
func TestLargeBodies(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{change: func(o *Options) { o.MaxBodyBytes, o.MaxBodiesBytes = 32<<20, 40<<20 }})
	w.upstreams[0].script(whole("four", usageText))
	text := `{"model":"alias","messages":[{"role":"user","content":"` + strings.Repeat("word ", 1<<20) + `"}],"max_tokens":5}`
	for _, length := range []int64{int64(len(text)), -1} {
		for range 10 { // more than fit at one time
			r := w.request(t.Context(), "")
			r.Body, r.ContentLength = io.NopCloser(strings.NewReader(text)), length
			if a := w.do(r); a.status != http.StatusOK {
				t.Fatalf("answer %d %s", a.status, a.body)
			}
		}
		if got, want := w.upstreams[0].lastBody(), strings.Replace(text, "alias", "real-m", 1); got != want {
			t.Errorf("the upstream got %d bytes, want %d", len(got), len(want))
		}
	}
	w.eventually("the room to be given back", func() bool { return w.handler.room.taken() == 0 })
}

func FuzzWithoutCredentials(f *testing.F) {
	for _, query := range []string{"", "alt=sse&key=secret", "KEY=x", "k%65y=secret", "api-key=1&a=b&&c", "%zz=1", "a=%26key%3D1"} {
		f.Add(query)
	}
	f.Fuzz(func(t *testing.T, query string) {
		out := withoutCredentials(query)
		for pair := range strings.SplitSeq(out, "&") {
			name, _, _ := strings.Cut(pair, "=")
			plain, err := url.QueryUnescape(name)
			if _, secret := credentialParameters[strings.ToLower(plain)]; secret || err != nil {
				t.Fatalf("%q leaves %q", query, out)
			}
		}
		if withoutCredentials(out) != out {
			t.Fatalf("%q changes when it is done again", out)
		}
	})
}

// Audio whose client leaves is charged as long as what came may be, not as what
// was asked for.
func TestClientLeavesBinaryAnswer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{limits: []tenancy.Limit{perMinute(100_000)}})
	w.upstreams[0].script(func(rw http.ResponseWriter, r *http.Request, _ []byte) {
		rw.Header().Set("Content-Type", "audio/mpeg")
		_, _ = rw.Write(make([]byte, 2000))
		_ = http.NewResponseController(rw).Flush()
		<-r.Context().Done()
	})
	r := w.request(t.Context(), "")
	body := `{"model":"alias","voice":"v","input":"` + strings.Repeat("hello ", 600) + `"}`
	r.URL.Path, r.Body, r.ContentLength = "/v1/audio/speech", io.NopCloser(strings.NewReader(body)), int64(len(body))
	resp, err := w.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(resp.Body, make([]byte, 2000)); err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	ended := w.ended(1)[0]
	if wantRecord(t, ended, events.StateCancelled, 600, 0, true); ended.Total.AudioMillis != 250 {
		t.Errorf("charged %d ms of audio", ended.Total.AudioMillis)
	}
}

// A client that reads a large answer slowly, but reads, has not left.
func TestSlowReaderOfALargeAnswer(t *testing.T) {
	t.Parallel()
	const timeout = 500 * time.Millisecond
	w := newWorld(t, setup{change: func(o *Options) { o.ClientWriteTimeout = timeout }})
	w.upstreams[0].script(whole(strings.Repeat("four ", 6<<20), usageText))
	resp, err := w.client.Do(w.request(t.Context(), ""))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var n int64
	for began := time.Now(); err == nil; {
		if time.Since(began) < 3*timeout {
			time.Sleep(timeout / 20)
		}
		var read int64
		read, err = io.CopyN(io.Discard, resp.Body, 512<<10)
		n += read
	}
	if !errors.Is(err, io.EOF) || n != resp.ContentLength {
		t.Errorf("read %d of %d bytes: %v", n, resp.ContentLength, err)
	}
	wantRecord(t, w.ended(1)[0], events.StateSettled, 13, 33, false)
}

func TestWithoutCredentials(t *testing.T) {
	t.Parallel()
	for query, want := range map[string]string{
		"": "", "alt=sse": "alt=sse", "alt=sse&key=secret&x=1": "alt=sse&x=1", "K%65Y=s": "", "keys=1&a=%26key%3D1": "keys=1&a=%26key%3D1", "%zz=1&b": "b", "a=b%0D%0aX:y&c=d": "c=d",
	} {
		if got := withoutCredentials(query); got != want {
			t.Errorf("%q gives %q, want %q", query, got, want)
		}
	}
}

func FuzzIdempotencyKey(f *testing.F) {
	for _, key := range []string{"", "k", "stainless-python-retry-1", strings.Repeat("x", 200), "a~2", "ä", "a b"} {
		f.Add(key)
	}
	f.Fuzz(func(t *testing.T, key string) {
		for _, name := range []string{keyHeader, idHeader} {
			got := idempotencyKey(http.Header{name: {key}}, func() [16]byte { return [16]byte{1} })
			if (got == "") != (key == "") || len(got) > 120 || !plainKey(got) {
				t.Fatalf("%s %q gives %q", name, key, got)
			}
		}
	})
}

func TestRetryAfterOfUpstreams(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	for value, want := range map[string]time.Duration{
		"": 0, "7": 7 * time.Second, "-1": 0, "x": 0, "99999999999": 0,
		"Wed, 04 Mar 2026 05:07:07 GMT": time.Minute, "Wed, 04 Mar 2026 05:00:00 GMT": 0,
	} {
		if got := retryAfter(http.Header{"Retry-After": {value}}, now); got != want {
			t.Errorf("%q gives %v, want %v", value, got, want)
		}
	}
}
