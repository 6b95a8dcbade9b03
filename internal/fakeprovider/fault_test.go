package fakeprovider

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tidwall/gjson"
)

const (
	chatPlain    = `{"model":"m","messages":[{"role":"user","content":"x [fake:tokens=20]"}]}`
	chatStreamed = `{"model":"m","stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"x [fake:tokens=20]"}]}`
	chatPath     = "/v1/chat/completions"
	msgStream    = `{"model":"m","stream":true,"max_tokens":99,"messages":[{"role":"user","content":"x [fake:tokens=20]"}]}`
	msgPath      = "/v1/messages"
	respStream   = `{"model":"m","stream":true,"input":"x [fake:tokens=20]"}`
)

// Each fault does what it says, to the client and in the log.
func TestFaults(t *testing.T) {
	t.Parallel()
	content := func(s seen) int {
		n := 0
		for _, data := range events(s.body) {
			if gjson.Get(data, "choices.0.delta.content").Str != "" || gjson.Get(data, "delta.text").Str != "" ||
				gjson.Get(data, "type").Str == "response.output_text.delta" {
				n++
			}
		}
		return n
	}
	for _, c := range []struct {
		name, fault, path, body string
		output                  int64 // tokens generated, as logged
		end                     string
		check                   func(t *testing.T, s seen)
	}{
		{"cut", "cut=300", chatPath, chatPlain, 20, "fault:cut", func(t *testing.T, s seen) {
			if len(s.body) != 300 || !errors.Is(s.err, io.ErrUnexpectedEOF) {
				t.Errorf("%d bytes, then %v", len(s.body), s.err)
			}
		}},
		{"cut a stream", "cut=700", chatPath, chatStreamed, 2, "fault:cut", func(t *testing.T, s seen) {
			if len(s.body) != 700 || !errors.Is(s.err, io.ErrUnexpectedEOF) {
				t.Errorf("%d bytes, then %v", len(s.body), s.err)
			}
		}},
		{"cut at nothing", "cut=0", chatPath, chatStreamed, 0, "fault:cut", func(t *testing.T, s seen) {
			if s.status != 200 || s.body != "" || s.err == nil {
				t.Errorf("%d %q %v", s.status, s.body, s.err)
			}
		}},
		{"cut after chunks", "cut-after=3", chatPath, chatStreamed, 3, "fault:cut-after", func(t *testing.T, s seen) {
			if content(s) != 3 || !errors.Is(s.err, io.ErrUnexpectedEOF) {
				t.Errorf("%d chunks, then %v", content(s), s.err)
			}
		}},
		{"cut after more chunks than there are", "cut-after=300", msgPath, msgStream, 20, "fault:cut-after", func(t *testing.T, s seen) {
			if content(s) != 20 || s.err == nil || strings.Contains(s.body, "message_stop") {
				t.Errorf("%d chunks, then %v", content(s), s.err)
			}
		}},
		{"close clean", "close-clean=2", msgPath, msgStream, 2, "fault:close-clean", func(t *testing.T, s seen) {
			if content(s) != 2 || s.err != nil || strings.Contains(s.body, "stop_reason\":\"") {
				t.Errorf("%d chunks, %v: %s", content(s), s.err, s.body)
			}
		}},
		{"a plain answer that ends early in good order", "close-clean", chatPath, chatPlain, 20, "fault:close-clean", func(t *testing.T, s seen) {
			if s.status != 200 || s.err != nil || s.body == "" || gjson.Valid(s.body) {
				t.Errorf("%d %v %s", s.status, s.err, s.body)
			}
		}},
		{"error event of OpenAI", "error-event=2", chatPath, chatStreamed, 2, "fault:error-event", func(t *testing.T, s seen) {
			all := events(s.body)
			if content(s) != 2 || s.err != nil || gjson.Get(all[len(all)-1], "error.code").Str != "server_error" {
				t.Errorf("%v %s", s.err, s.body)
			}
		}},
		{"error event of Anthropic", "error-event=2", msgPath, msgStream, 2, "fault:error-event", func(t *testing.T, s seen) {
			if content(s) != 2 || !strings.Contains(s.body, "event: error\n") || !strings.Contains(s.body, "overloaded_error") {
				t.Errorf("%s", s.body)
			}
		}},
		{"error event of Responses", "error-event=2", "/v1/responses", respStream, 2, "fault:error-event", func(t *testing.T, s seen) {
			all := events(s.body)
			if content(s) != 2 || gjson.Get(all[len(all)-1], "type").Str != "error" || gjson.Get(all[len(all)-1], "sequence_number").Int() != 6 {
				t.Errorf("%s", s.body)
			}
		}},
		{"garbage", "garbage", chatPath, chatPlain, 0, "fault:garbage", func(t *testing.T, s seen) {
			if s.status != 200 || gjson.Valid(s.body) || s.header.Get("Content-Type") != "text/html" {
				t.Errorf("%+v", s)
			}
		}},
		{"garbage stream", "garbage-stream=1", chatPath, chatStreamed, 1, "fault:garbage-stream", func(t *testing.T, s seen) {
			if content(s) != 1 || !strings.Contains(s.body, "\xff\xfe") || strings.Contains(s.body, "[DONE]") {
				t.Errorf("%q", s.body)
			}
		}},
		{"429", "429=7", msgPath, msgStream, 0, EndRefused, func(t *testing.T, s seen) {
			if s.status != 429 || s.header.Get("Retry-After") != "7" || gjson.Get(s.body, "error.type").Str != "rate_limit_error" {
				t.Errorf("%+v", s)
			}
		}},
		{"503", "503", chatPath, chatPlain, 0, EndRefused, func(t *testing.T, s seen) {
			if s.status != 503 || s.header.Get("Retry-After") != "" || gjson.Get(s.body, "error.type").Str != "server_error" {
				t.Errorf("%+v", s)
			}
		}},
		{"reset", "reset", chatPath, chatPlain, 0, "fault:reset", func(t *testing.T, s seen) {
			if s.status != 0 || !errors.Is(s.err, syscall.ECONNRESET) && !errors.Is(s.err, io.EOF) {
				t.Errorf("%d %v", s.status, s.err)
			}
		}},
		{"no usage", "no-usage", chatPath, chatStreamed, 20, EndComplete, func(t *testing.T, s seen) {
			if strings.Contains(s.body, "usage") || !strings.Contains(s.body, "[DONE]") || content(s) != 20 {
				t.Errorf("%s", s.body)
			}
		}},
		{"zero usage", "zero-usage", chatPath, chatPlain, 20, EndComplete, func(t *testing.T, s seen) {
			if gjson.Get(s.body, "usage.total_tokens").Raw != "0" || gjson.Get(s.body, "usage.prompt_tokens").Raw != "0" {
				t.Errorf("%s", s.body)
			}
		}},
		{"wrong usage", "wrong-usage=-5.5e3", chatPath, chatPlain, 20, EndComplete, func(t *testing.T, s seen) {
			if gjson.Get(s.body, "usage.completion_tokens").Raw != "-5.5e3" || gjson.Get(s.body, "usage.prompt_tokens").Int() != 8 {
				t.Errorf("%s", s.body)
			}
		}},
		{"repeated usage", "repeat-usage", chatPath, chatStreamed, 20, EndComplete, func(t *testing.T, s seen) {
			want := int64(0)
			for _, data := range events(s.body) {
				if gjson.Get(data, "choices.0.delta.content").Str != "" {
					want++
				}
				if u := gjson.Get(data, "usage.completion_tokens"); data != "[DONE]" && u.Int() != want {
					t.Fatalf("after %d tokens usage says %s", want, u.Raw)
				}
			}
			if want != 20 {
				t.Errorf("%d chunks", want)
			}
		}},
		{"no done", "no-done", chatPath, chatStreamed, 20, EndComplete, func(t *testing.T, s seen) {
			if strings.Contains(s.body, "[DONE]") || !strings.Contains(s.body, `"finish_reason":"stop"`) {
				t.Errorf("%s", s.body)
			}
		}},
		{"unusual framing", "crlf,comments,keepalive,multi-line,split=3", chatPath, chatStreamed, 20, EndComplete, func(t *testing.T, s seen) {
			if !strings.Contains(s.body, ": keep-alive\r\n\r\n") || !strings.Contains(s.body, ": event ") || !strings.Contains(s.body, "data: {\r\ndata: \"id\"") {
				t.Errorf("%q", s.body)
			}
			if strings.Count(s.body, "\n") != strings.Count(s.body, "\r\n") {
				t.Error("a line ends without CR")
			}
		}},
		{"huge line", "huge-line=100000", chatPath, chatStreamed, 20, EndComplete, func(t *testing.T, s seen) {
			if content(s) != 20 || len(gjson.Get(events(s.body)[1], "padding").Str) != 100000 {
				t.Errorf("%d bytes, %d chunks", len(s.body), content(s))
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := start(t, Options{})
			got := send(t, s.URL()+c.path, c.body, HeaderFault, c.fault)
			c.check(t, got)
			if r := last(t, s, 1); r.Output != c.output || r.End != c.end || !strings.Contains(r.Orders, c.fault) {
				t.Errorf("logged: %+v", r)
			}
		})
	}
}

// A server that hangs does so until the client leaves, and sees it leave.
func TestHanging(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ fault, body, wantEnd string }{
		{"hang-before-header", chatPlain, "fault:hang-before-header"},
		{"hang=2", chatStreamed, "fault:hang"},
		{"hang", chatPlain, "fault:hang"},
	} {
		t.Run(c.fault, func(t *testing.T) {
			t.Parallel()
			s := start(t, Options{})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if c.fault == "hang-before-header" {
				left := make(chan struct{})
				go func() {
					defer close(left)
					for s.count.Load() == 0 { // its orders were not read yet
						time.Sleep(time.Millisecond)
					}
					cancel()
				}()
				if _, err := request(t, ctx, http.MethodPost, s.URL()+chatPath, c.body, HeaderFault, c.fault); !errors.Is(err, context.Canceled) { //nolint:bodyclose // there is none
					t.Fatalf("got %v", err)
				}
				<-left
			} else {
				res, err := request(t, ctx, http.MethodPost, s.URL()+chatPath, c.body, HeaderFault, c.fault)
				if err != nil {
					t.Fatal(err)
				}
				defer res.Body.Close()
				if _, err := io.ReadFull(res.Body, make([]byte, 200)); err != nil {
					t.Fatalf("nothing came before the silence: %v", err)
				}
				if s.Running() != 1 {
					t.Error("it is not running any more")
				}
				cancel()
			}
			if r := last(t, s, 1); r.End != c.wantEnd || r.AbortedAt == nil || s.Running() > 1 {
				t.Errorf("logged: %+v", r)
			}
		})
	}
}

// A client that leaves ends the work at once, and what was generated until then
// is what the log has.
func TestClientLeaves(t *testing.T) {
	t.Parallel()
	s := start(t, Options{DecodePerSecond: 500})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	res, err := request(t, ctx, http.MethodPost, s.URL()+chatPath, strings.Replace(chatStreamed, "=20", "=1000000", 1))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	read := make([]byte, 0, 4096)
	for strings.Count(string(read), `"content":"`) < 6 { // the first is empty
		n, err := res.Body.Read(read[len(read):cap(read)])
		if err != nil {
			t.Fatal(err)
		}
		read = read[:len(read)+n]
	}
	cancel()
	r := last(t, s, 1)
	if r.End != EndClientGone || r.AbortedAt == nil || r.Output < 5 || r.Output > 100_000 || r.Output != r.Chunks {
		t.Errorf("logged: %+v", r)
	}
	if r.Input != 8 || r.GPUMS != 1+2*r.Output {
		t.Errorf("logged: %+v", r)
	}
	eventually(t, "the end", func() bool { return s.Running() == 0 })
}

// A client that leaves is seen to leave also while nothing is to be sent.
func TestClientLeavesWhileNothingComes(t *testing.T) {
	t.Parallel()
	s := start(t, Options{FirstToken: time.Hour})
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan struct{})
	go func() {
		defer close(left)
		for s.count.Load() == 0 {
			time.Sleep(time.Millisecond)
		}
		cancel()
	}()
	if _, err := request(t, ctx, http.MethodPost, s.URL()+chatPath, chatPlain); !errors.Is(err, context.Canceled) { //nolint:bodyclose // there is none
		t.Fatalf("got %v", err)
	}
	<-left
	if r := last(t, s, 1); r.End != EndClientGone || r.AbortedAt == nil || r.Output != 0 || r.Input != 8 {
		t.Errorf("logged: %+v", r)
	}
}

func TestOrdersInPromptAndWrongOrders(t *testing.T) {
	t.Parallel()
	s := start(t, Options{})
	body := strings.Replace(chatStreamed, "x ", "x [fake:cut-after=4] and ", 1)
	if got := send(t, s.URL()+chatPath, body); got.err == nil {
		t.Error("the marker in the prompt did nothing")
	}
	if r := last(t, s, 1); r.Output != 4 {
		t.Errorf("logged: %+v", r)
	}
	if got := send(t, s.URL()+chatPath, chatPlain, HeaderOutputTokens, "3").body; gjson.Get(got, "usage.completion_tokens").Int() != 3 {
		t.Errorf("%s of 3: %s", HeaderOutputTokens, got)
	}
	for _, wrong := range []string{"explode", "cut=x", "cut=-1", "399", "600", "wrong-usage=", "wrong-usage=NaN", "wrong-usage=+1", "hang=1..", "hang=a..b"} {
		if got := send(t, s.URL()+chatPath, chatPlain, HeaderFault, wrong); got.status != 400 {
			t.Errorf("%q: %d %s", wrong, got.status, got.body)
		}
		if err := s.SetFault(Rule{Faults: wrong}); err == nil {
			t.Errorf("rule %q was taken", wrong)
		}
	}
}

func TestRules(t *testing.T) {
	t.Parallel()
	rule, err := ParseRule("model=m skip=1 every=2 times=2: 503=1")
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, Options{Rules: []Rule{rule}})
	var got []int
	for range 8 {
		got = append(got, send(t, s.URL()+chatPath, chatPlain).status)
		if other := send(t, s.URL()+chatPath, strings.Replace(chatPlain, `"m"`, `"n"`, 1)).status; other != 200 {
			t.Errorf("another model had %d", other)
		}
	}
	for i, want := range []int{200, 200, 503, 200, 503, 200, 200, 200} {
		if got[i] != want {
			t.Fatalf("statuses %v", got)
		}
	}
	if got := send(t, s.URL()+"/fake/faults", "times=1: 502").status; got != 204 {
		t.Fatalf("a line: %d", got)
	}
	if got := send(t, s.URL()+"/fake/faults", `{"faults":"504","times":1}`).status; got != 204 {
		t.Fatalf("JSON: %d", got)
	}
	if got := gjson.Get(get(t, s.URL()+"/fake/faults").body, "#.faults").Raw; got != `["503=1","502","504"]` {
		t.Errorf("the rules are %s", got)
	}
	for _, want := range []int{502, 504, 200} {
		if got := send(t, s.URL()+chatPath, chatPlain).status; got != want {
			t.Errorf("status %d, want %d", got, want)
		}
	}
	s.ClearFaults()
	if got := get(t, s.URL()+"/fake/faults").body; got != "[]\n" {
		t.Errorf("left: %s", got)
	}
	for _, wrong := range []string{"every=x: 503", "often: 503", "permille=1001: 503", "times=-1: 503", "times=1: nonsense", `{"fault":"503"}`} {
		if got := send(t, s.URL()+"/fake/faults", wrong).status; got != 400 {
			t.Errorf("%q: %d", wrong, got)
		}
	}
	half := newRules(1, []Rule{{Permille: 500, Faults: "503"}})
	n := 0
	for range 1000 {
		if half.match("m") != "" {
			n++
		}
	}
	if n < 400 || n > 600 {
		t.Errorf("half of a thousand is %d", n)
	}
	all, err := ParseRules(strings.NewReader("# how it fails\n\nevery=3: 503 # often\ncut=1..9,crlf\n"))
	if err != nil || len(all) != 2 || all[0].Every != 3 || all[0].Faults != "503" || all[1].Faults != "cut=1..9,crlf" {
		t.Errorf("%v %+v", err, all)
	}
	if _, err := ParseRules(strings.NewReader("503\noops\n")); err == nil || !strings.Contains(err.Error(), "line 2") {
		t.Errorf("got %v", err)
	}
}

// A range is drawn anew for each request, from the seed.
func TestRanges(t *testing.T) {
	t.Parallel()
	seen := map[int64]bool{}
	r := random(3)
	for range 200 {
		o := noOrders()
		if err := o.add("cut=5..9", &r); err != nil {
			t.Fatal(err)
		}
		if o.cut < 5 || o.cut > 9 {
			t.Fatalf("cut=5..9 is %d", o.cut)
		}
		seen[o.cut] = true
	}
	if len(seen) != 5 {
		t.Errorf("only %v of 5 to 9", seen)
	}
}
