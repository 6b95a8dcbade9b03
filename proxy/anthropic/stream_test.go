package anthropic_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"tollgate/events"
	"tollgate/proxy"
	"tollgate/proxy/sse"
)

func newStream(t testing.TB) proxy.Stream {
	t.Helper()
	return endpoint(t, "/v1/messages").Stream(nil, words{})
}

// frame makes a stream's bytes of its events' data, one a line.
func frame(lines string) []byte {
	var b bytes.Buffer
	for line := range strings.SplitSeq(strings.TrimSpace(lines), "\n") {
		var head struct{ Type string }
		if json.Unmarshal([]byte(line), &head) == nil && head.Type != "" {
			fmt.Fprintf(&b, "event: %s\n", head.Type)
		}
		fmt.Fprintf(&b, "data: %s\n\n", line)
	}
	return b.Bytes()
}

// feed follows the events and expects that all are forwarded.
func feed(t testing.TB, s proxy.Stream, lines string) {
	t.Helper()
	feedBytes(t, s, frame(lines))
}

func feedBytes(t testing.TB, s proxy.Stream, stream []byte) {
	t.Helper()
	each := func(ev sse.Event) error {
		if s.Event(ev) != proxy.Forward {
			t.Fatalf("%s is hidden", ev.Raw)
		}
		return nil
	}
	p := sse.New(0)
	if err := p.Feed(stream, each); err != nil {
		t.Fatal(err)
	}
	if err := p.End(each); err != nil {
		t.Fatal(err)
	}
}

const (
	start = `{"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","model":"claude-x","content":[],"stop_reason":null,"usage":{"input_tokens":13,"output_tokens":1}}}`
	hello = start + `
{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}
{"type":"ping"}
{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"one two"}}
{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":" three\nfour"}}`
)

// charged judges a stream whose own count of the input is 12.
func charged(s proxy.Stream, cause proxy.Cause) proxy.Charged {
	return proxy.Judge(proxy.Ending{Phase: proxy.PhaseAnswered, Cause: cause, Tally: s.Tally(true), InputTokens: 12})
}

func TestCaseM1_CumulativeUsageCountsOnce(t *testing.T) {
	s := newStream(t)
	feed(t, s, hello+`
{"type":"content_block_stop","index":0}
{"type":"message_delta","delta":{"stop_reason":null},"usage":{"input_tokens":13,"output_tokens":20}}
{"type":"message_delta","delta":{"stop_reason":null},"usage":{"input_tokens":13,"output_tokens":33}}
{"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"input_tokens":13,"output_tokens":33}}
{"type":"message_stop"}`)
	want := proxy.Charged{Verb: proxy.Settle, Usage: events.Usage{InputTokens: 13, OutputTokens: 33}}
	if diff := cmp.Diff(want, charged(s, proxy.CauseUpstreamEnd)); diff != "" {
		t.Error(diff)
	}
	if tally := s.Tally(false); tally.Model != "claude-x" || tally.FinishReason != "end_turn" || !tally.Complete || tally.Failed || tally.Garbage {
		t.Errorf("%+v", tally)
	}
}

// The input is what message_start said; the output is what was delivered, since
// message_start said only how it began.
func TestCaseM2_ClientLeavesBeforeTheOutputIsSaid(t *testing.T) {
	s := newStream(t)
	feed(t, s, hello)
	want := proxy.Charged{
		Verb: proxy.Cancel, Usage: events.Usage{InputTokens: 13, OutputTokens: 4}, Estimated: true, Reason: proxy.ReasonClientGone,
	}
	if diff := cmp.Diff(want, charged(s, proxy.CauseClientGone)); diff != "" {
		t.Error(diff)
	}
}

func TestCaseM3_ZerosAndNothingDelivered(t *testing.T) {
	s := newStream(t)
	feed(t, s, `
{"type":"message_start","message":{"usage":{"input_tokens":0,"output_tokens":0}}}
{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}
{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":""}}`)
	want := proxy.Charged{Verb: proxy.Cancel, Reason: proxy.ReasonClientGone}
	if diff := cmp.Diff(want, charged(s, proxy.CauseClientGone)); diff != "" {
		t.Error(diff)
	}
}

func TestCaseM4_EndWithoutUsage(t *testing.T) {
	for name, usage := range map[string][2]string{
		"none":         {``, ``},
		"null":         {`,"usage":null`, `,"usage":null`},
		"zeros":        {`,"usage":{"input_tokens":0,"output_tokens":0}`, `,"usage":{"input_tokens":0,"output_tokens":0}`},
		"garbage":      {`,"usage":{"input_tokens":-3,"output_tokens":1}`, `,"usage":{"output_tokens":1e99}`},
		"another type": {`,"usage":[]`, `,"usage":"many"`},
	} {
		s := newStream(t)
		feed(t, s, `{"type":"message_start","message":{"model":"m"`+usage[0]+`}}
{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"one two three"}}
{"type":"message_delta","delta":{"stop_reason":"end_turn"}`+usage[1]+`}
{"type":"message_stop"}`)
		want := proxy.Charged{Verb: proxy.Settle, Usage: events.Usage{InputTokens: 12, OutputTokens: 3}, Estimated: true}
		if diff := cmp.Diff(want, charged(s, proxy.CauseUpstreamEnd)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestStreamWithCacheAndThinking(t *testing.T) {
	s := newStream(t)
	feed(t, s, `
{"type":"message_start","message":{"model":"m","usage":{"input_tokens":4,"cache_creation_input_tokens":100,"cache_read_input_tokens":2000,"output_tokens":2}}}
{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"a b"}}
{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":30,"output_tokens_details":{"thinking_tokens":11},"gpu_ms":55}}`)
	want := proxy.Tally{
		Usage:     &events.Usage{InputTokens: 2104, CachedInputTokens: 2000, OutputTokens: 30, ReasoningTokens: 11, GPUMillis: 55},
		Delivered: events.Usage{OutputTokens: 2, ReasoningTokens: 2},
		Content:   true, Complete: true, Model: "m", FinishReason: "end_turn",
	}
	if diff := cmp.Diff(want, s.Tally(true)); diff != "" {
		t.Error(diff)
	}
}

func TestStreamFailsInItsDialect(t *testing.T) {
	s := newStream(t)
	feed(t, s, hello+"\n"+`{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}`)
	if tally := s.Tally(true); !tally.Failed || tally.Complete || tally.Garbage {
		t.Errorf("%+v", tally)
	}
	if out := s.Finish(proxy.End{Reason: "upstream"}); len(out) != 0 {
		t.Errorf("a second error: %s", out)
	}
}

func TestStreamGarbage(t *testing.T) {
	for name, tt := range map[string]struct {
		stream  string
		garbage bool
	}{
		"no JSON":          {"data: hello\n\n", true},
		"cut":              {"data: {\"type\":\"message_st\n\n", true},
		"no type":          {"data: {\"choices\":[]}\n\n", true},
		"a number":         {"data: 7\n\n", true},
		"comments":         {": hi\n\n:\n\n", false},
		"empty data":       {"data:\n\ndata\n\n", false},
		"type by name":     {"event: ping\ndata: {}\n\n", false},
		"OpenAI's end":     {"data: [DONE]\n\n", false},
		"unknown type":     {"data: {\"type\":\"message_future\"}\n\n", false},
		"CRLF":             {"event: ping\r\ndata: {\"type\":\"ping\"}\r\n\r\n", false},
		"data in two":      {"data: {\"type\":\ndata: \"ping\"}\n\n", false},
		"types out of man": {"data: {\"type\":\"content_block_delta\",\"delta\":[1]}\n\n", false},
	} {
		s := newStream(t)
		feedBytes(t, s, []byte(tt.stream))
		if tally := s.Tally(true); tally.Garbage != tt.garbage || tally.Content || tally.Complete {
			t.Errorf("%s: %+v", name, tally)
		}
	}
}

// What is too long to be read is not free.
func TestStreamEventTooLongToRead(t *testing.T) {
	s := newStream(t)
	s.Event(sse.Event{Raw: make([]byte, 3000), Cut: true})
	s.Event(sse.Event{Raw: make([]byte, 1000), Cut: true, Begun: true, Lost: true})
	if tally := s.Tally(true); !tally.Content || tally.Delivered.OutputTokens != 1000 {
		t.Errorf("%+v", tally)
	}
}

// A long event comes in pieces before it is whole; it counts once. While it is
// coming, what came of it is content.
func TestStreamEventInPieces(t *testing.T) {
	s := newStream(t)
	feed(t, s, start)
	long := frame(`{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"` + strings.Repeat("word ", 40_000) + `"}}`)
	p, pieces := sse.New(0), 0
	each := func(ev sse.Event) error {
		if ev.Cut {
			pieces++
		}
		s.Event(ev)
		return nil
	}
	if err := p.Feed(long[:150_000], each); err != nil || pieces == 0 {
		t.Fatal(err, pieces)
	}
	if tally := s.Tally(true); !tally.Content || !tally.OutputUnsaid || tally.Delivered.OutputTokens != 37_500 {
		t.Errorf("while it comes: %+v", tally)
	}
	if err := p.Feed(long[150_000:], each); err != nil {
		t.Fatal(err)
	}
	if tally := s.Tally(true); !tally.OutputUnsaid || tally.Delivered.OutputTokens != 40_000 {
		t.Errorf("whole: %+v", tally)
	}
}

// written reads what Finish wrote and follows it with the stream that wrote it.
func written(t *testing.T, s proxy.Stream, end proxy.End) string {
	t.Helper()
	out := s.Finish(end)
	feedBytes(t, s, out)
	var got strings.Builder
	if err := sse.New(0).Feed(out, func(ev sse.Event) error {
		if !json.Valid(ev.Data) {
			t.Errorf("not JSON: %s", ev.Data)
		}
		var head struct{ Type string }
		if err := json.Unmarshal(ev.Data, &head); err != nil || head.Type != string(ev.Name) {
			t.Errorf("event %s has type %s", ev.Name, head.Type)
		}
		got.Write(ev.Data)
		got.WriteByte('\n')
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return got.String()
}

const (
	blockStop = `{"type":"content_block_stop","index":0}` + "\n"
	stop      = `{"type":"message_stop"}` + "\n"
)

func TestFinishEndsAMessageAtItsCap(t *testing.T) {
	used := events.Usage{InputTokens: 13, OutputTokens: 4}
	delta := `{"type":"message_delta","delta":{"stop_reason":"max_tokens","stop_sequence":null},"usage":{"input_tokens":13,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":4}}` + "\n"
	for name, tt := range map[string]struct{ seen, want string }{
		"in a block":       {hello, blockStop + delta + stop},
		"after a block":    {hello + "\n" + blockStop, delta + stop},
		"before a block":   {start, delta + stop},
		"after its end":    {hello + "\n" + blockStop + `{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":4}}`, stop},
		"after all":        {hello + "\n" + blockStop + stop, ""},
		"in two blocks":    {hello + "\n" + `{"type":"content_block_start","index":1,"content_block":{"type":"tool_use","name":"f","input":{}}}`, blockStop + `{"type":"content_block_stop","index":1}` + "\n" + delta + stop},
		"begun once again": {hello + "\n" + `{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`, blockStop + delta + stop},
	} {
		for _, reason := range []string{"output_cap", "quota"} {
			s := newStream(t)
			feed(t, s, tt.seen)
			if diff := cmp.Diff(tt.want, written(t, s, proxy.End{Reason: reason, Detail: "d", Usage: used})); diff != "" {
				t.Errorf("%s, %s: %s", name, reason, diff)
			}
			if tally := s.Tally(true); !tally.Complete || tally.Failed {
				t.Errorf("%s: %+v", name, tally)
			}
		}
	}
}

func TestFinishAddsAMissingEnd(t *testing.T) {
	s := newStream(t)
	feed(t, s, hello+"\n"+blockStop+`{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":4}}`)
	if got := written(t, s, proxy.End{Reason: "upstream_broke_off"}); got != stop {
		t.Error(got)
	}
}

func TestFinishGivesCachedInputApart(t *testing.T) {
	s := newStream(t)
	feed(t, s, `{"type":"message_start","message":{"usage":{"input_tokens":4,"cache_creation_input_tokens":100,"cache_read_input_tokens":2000,"output_tokens":0}}}`)
	got := written(t, s, proxy.End{Reason: "quota", Usage: events.Usage{InputTokens: 2104, CachedInputTokens: 2000, OutputTokens: 9}})
	if !strings.Contains(got, `"usage":{"input_tokens":4,"cache_creation_input_tokens":100,"cache_read_input_tokens":2000,"output_tokens":9}`) {
		t.Error(got)
	}
}

func TestFinishFailsWhereTheMessageIsLost(t *testing.T) {
	for name, tt := range map[string]struct{ seen, reason, kind string }{
		"shutdown":                {hello, "shutdown", "overloaded_error"},
		"broken off":              {hello, "upstream_broke_off", "api_error"},
		"cap before the message":  {`{"type":"ping"}`, "output_cap", "rate_limit_error"},
		"fault before an event":   {`{"type":"ping"}`, "upstream_gone", "api_error"},
		"shutdown, nothing known": {`{"type":"ping"}`, "shutdown", "overloaded_error"},
	} {
		s := newStream(t)
		feed(t, s, tt.seen)
		got := written(t, s, proxy.End{Reason: tt.reason, Detail: "Say \"it\".\n"})
		want := `{"type":"error","error":{"type":"` + tt.kind + `","message":"Say \"it\".\u000a","details":{"error_code":"` + tt.reason + `"}},"request_id":null,"tollgate":{"reason":"` + tt.reason + `"}}` + "\n"
		if got != want {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
		if tally := s.Tally(true); !tally.Failed {
			t.Errorf("%s: %+v", name, tally)
		}
	}
}

func FuzzStream(f *testing.F) {
	for _, seed := range []string{hello, start, `{"type":"error"}`, `{"type":"message_delta","usage":{"output_tokens":-1}}`, `{"delta":{"text":"\ud83d"}}`} {
		f.Add(frame(seed), uint16(7), true)
		f.Add([]byte(seed), uint16(0), false)
	}
	f.Fuzz(func(t *testing.T, stream []byte, cut uint16, capped bool) {
		s := newStream(t)
		p := sse.New(1 << 12)
		each := func(ev sse.Event) error {
			if s.Event(ev) != proxy.Forward {
				t.Fatal("hidden")
			}
			return nil
		}
		at := min(int(cut), len(stream))
		if p.Feed(stream[:at], each) != nil || p.Feed(stream[at:], each) != nil || p.End(each) != nil {
			t.Fatal("refused")
		}
		tally := s.Tally(true)
		checkTally(t, tally)
		end := proxy.End{Reason: "shutdown", Detail: "d"}
		if capped {
			end.Reason = "quota"
		}
		feedBytes(t, s, s.Finish(end))
		if after := s.Tally(true); !after.Complete && !after.Failed {
			t.Fatalf("not ended: %+v", after)
		}
	})
}

func BenchmarkStreamDelta(b *testing.B) {
	s := endpoint(b, "/v1/messages").Stream(nil, constant{})
	feed(b, s, start)
	data := []byte(`{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":" some\nwords"}}`)
	ev := sse.Event{Name: []byte("content_block_delta"), Data: data, HasData: true}
	b.ReportAllocs()
	for b.Loop() {
		s.Event(ev)
	}
}
