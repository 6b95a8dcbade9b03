package fakeprovider

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/tidwall/gjson"
)

// held starts n answers that hang after their first token, and returns what
// ends them.
func held(t *testing.T, s *Server, n int, body string) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wait sync.WaitGroup
	for range n {
		res, err := request(t, ctx, http.MethodPost, s.URL()+chatPath, body, HeaderFault, "hang=1")
		if err != nil {
			t.Fatal(err)
		}
		if res.StatusCode != http.StatusOK {
			t.Fatalf("status %d", res.StatusCode)
		}
		wait.Go(func() {
			<-ctx.Done()
			res.Body.Close()
		})
	}
	return func() { cancel(); wait.Wait() }
}

func TestSlots(t *testing.T) {
	t.Parallel()
	s := start(t, Options{Slots: 2, Queue: 1})
	end := held(t, s, 2, chatStreamed)
	queued := make(chan seen, 1)
	go func() { queued <- send(t, s.URL()+chatPath, chatPlain) }()
	eventually(t, "the queue", func() bool {
		s.seats.mu.Lock()
		defer s.seats.mu.Unlock()
		return len(s.seats.line) == 1
	})
	if got := send(t, s.URL()+chatPath, chatPlain); got.status != 429 || got.header.Get("Retry-After") != "1" {
		t.Errorf("the queue is full: %+v", got)
	}
	end()
	if got := <-queued; got.status != 200 {
		t.Errorf("the one that waited: %+v", got)
	}
	eventually(t, "free seats", func() bool {
		s.seats.mu.Lock()
		defer s.seats.mu.Unlock()
		return s.seats.running == 0 && s.seats.held == 0 && len(s.seats.line) == 0
	})
}

// Who leaves the queue takes no seat, also when it is let in at that moment.
func TestLeavingTheQueue(t *testing.T) {
	t.Parallel()
	s := newSeats(1, 0, 1)
	both := 0
	for range 300 {
		if s.enter(t.Context(), 5) != 0 {
			t.Fatal("the only seat is not free")
		}
		ctx, cancel := context.WithCancel(t.Context())
		got := make(chan int)
		go func() { got <- s.enter(ctx, 7) }()
		eventually(t, "the queue", func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return len(s.line) == 1
		})
		cancel()
		s.leave(5)
		if <-got == 0 { // it may be either; both are ready
			both++
			s.leave(7)
		}
		if s.running != 0 || s.held != 0 || len(s.line) != 0 {
			t.Fatalf("%d running, %d tokens, %d in line", s.running, s.held, len(s.line))
		}
	}
	t.Logf("%d of 300 were let in", both)
}

func TestKVCache(t *testing.T) {
	t.Parallel()
	s := start(t, Options{KVTokens: 60})
	end := held(t, s, 1, chatStreamed) // 8 + 20 tokens
	end2 := held(t, s, 1, chatStreamed)
	if got := send(t, s.URL()+chatPath, chatPlain); got.status != 503 {
		t.Errorf("no room: %+v", got)
	}
	if got := send(t, s.URL()+chatPath, strings.Replace(chatPlain, "20", "53", 1)); got.status != 400 {
		t.Errorf("more than there is: %+v", got)
	}
	end()
	end2()
	eventually(t, "room", func() bool { return send(t, s.URL()+chatPath, strings.Replace(chatPlain, "20", "52", 1)).status == 200 })
}

func TestPrefixCache(t *testing.T) {
	t.Parallel()
	s := start(t, Options{PrefixCache: true})
	const system = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
	cached := func(path, body, field string) int64 {
		return gjson.Get(send(t, s.URL()+path, body).body, field).Int()
	}
	openai := func(question string) int64 {
		return cached(chatPath, `{"model":"m","messages":[{"role":"system","content":"`+system+`"},{"role":"user","content":"`+question+`"}]}`,
			"usage.prompt_tokens_details.cached_tokens")
	}
	for _, want := range []struct {
		question string
		cached   int64
	}{{"a b c", 0}, {"d e f", 16}, {"a b c", 18}, {"a b c", 18}} {
		if got := openai(want.question); got != want.cached {
			t.Errorf("%q: %d tokens cached, want %d", want.question, got, want.cached)
		}
	}
	anthropic := func(control string) string {
		return send(t, s.URL()+msgPath, `{"model":"m","max_tokens":9,"system":[{"type":"text","text":"`+system+`"`+control+`}],"messages":[{"role":"user","content":"a b c"}]}`).body
	}
	const control = `,"cache_control":{"type":"ephemeral"}`
	for i, want := range [][3]int64{{0, 0, 19}, {0, 19, 0}, {18, 0, 1}} {
		got := anthropic([]string{"", control, control}[i])
		u := gjson.Get(got, "usage")
		if read, written, input := u.Get("cache_read_input_tokens").Int(), u.Get("cache_creation_input_tokens").Int(), u.Get("input_tokens").Int(); [3]int64{read, written, input} != want {
			t.Errorf("request %d: read %d, written %d, input %d; want %v", i, read, written, input, want)
		}
	}
	fresh := start(t, Options{})
	if got := send(t, fresh.URL()+chatPath, strings.Replace(chatPlain, "tokens=20", "cached=3", 1)).body; gjson.Get(got, "usage.prompt_tokens_details.cached_tokens").Int() != 3 {
		t.Errorf("ordered: %s", got)
	}
	if r := last(t, fresh, 1); r.Cached != 3 || r.Input != 8 || r.GPUMS != 1+2*r.Output {
		t.Errorf("logged: %+v", r)
	}
}

func TestCountTokens(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{
		"": 0, "  \n": 0, "one": 1, "one two": 2, "It's 3.5 m.": 8, "snake_case-9": 3, "größe": 4, "日本": 2, " a  b ": 2, "\xff\xfe": 2,
	} {
		if got := CountTokens(text); got != want {
			t.Errorf("%q has %d tokens, want %d", text, got, want)
		}
		pieces := ""
		for at := 0; at < len(text); {
			next := tokenEnd(text, at)
			if next <= at {
				t.Fatalf("%q: no progress at %d", text, at)
			}
			pieces += text[at:next]
			at = next
		}
		if pieces != text {
			t.Errorf("%q in pieces is %q", text, pieces)
		}
	}
}
