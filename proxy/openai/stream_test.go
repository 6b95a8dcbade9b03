package openai_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"tollgate/events"
	"tollgate/proxy"
	"tollgate/proxy/sse"
)

// follow feeds a stream and gives what a client gets of it.
func follow(tb testing.TB, s proxy.Stream, stream string) (forwarded string) {
	tb.Helper()
	p := sse.New(0)
	var b strings.Builder
	each := func(ev sse.Event) error {
		if s.Event(ev) == proxy.Forward {
			b.Write(ev.Raw)
		}
		return nil
	}
	if err := p.Feed([]byte(stream), each); err != nil {
		tb.Fatal(err)
	}
	if err := p.End(each); err != nil {
		tb.Fatal(err)
	}
	return b.String()
}

// unasked is how chunks reach a client that did not ask for usage: that there is
// none is not said.
func unasked(stream string) string {
	null := `,"usage":null`
	return strings.ReplaceAll(stream, null, strings.Repeat(" ", len(null)))
}

// lines makes events of data.
func lines(data ...string) string {
	var b strings.Builder
	for _, d := range data {
		b.WriteString("data: " + d + "\n\n")
	}
	return b.String()
}

// chunk is a chat chunk with one choice.
func chunk(index int, delta, finish string) string {
	if finish != "null" {
		finish = `"` + finish + `"`
	}
	return fmt.Sprintf(`{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"m-1","choices":[{"index":%d,"delta":%s,"logprobs":null,"finish_reason":%s}],"usage":null}`, index, delta, finish)
}

func usageChunk(in, out int) string {
	return fmt.Sprintf(`{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"m-1","choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}}`, in, out, in+out)
}

func chatStream(tb testing.TB, body string) proxy.Stream {
	tb.Helper()
	e := endpoint(tb, "/v1/chat/completions")
	return e.Stream(read(tb, e, body), byteCounter{})
}

const plainChat = `{"model":"m","messages":[],"stream":true}`

func TestStreamOfChat(t *testing.T) {
	s := chatStream(t, plainChat)
	shown := lines(
		chunk(0, `{"role":"assistant","content":"","refusal":null}`, "null"),
		chunk(0, `{"reasoning_content":"hm"}`, "null"),
		chunk(0, `{"content":"h\u00e9"}`, "null"),
		chunk(0, `{"tool_calls":[{"index":0,"id":"c1","type":"function","function":{"name":"fn","arguments":""}}]}`, "null"),
		chunk(0, `{"tool_calls":[{"index":0,"id":"c1","function":{"arguments":"{\"a\":1}"}}]}`, "null"),
		chunk(0, `{"tool_calls":[{"index":1,"id":"c2","type":"function","function":{"name":"g","arguments":""}}]}`, "null"),
		chunk(0, `{}`, "tool_calls"),
	)
	got := follow(t, s, ": keep-alive\n\n"+shown+lines(usageChunk(13, 33), "[DONE]"))
	if want := ": keep-alive\n\n" + unasked(shown) + lines("[DONE]"); got != want {
		t.Errorf("the client got\n%s", got)
	}
	want := proxy.Tally{
		Usage:     &events.Usage{InputTokens: 13, OutputTokens: 33},
		Delivered: events.Usage{OutputTokens: 2 + 3 + 2 + 7 + 1, ReasoningTokens: 2, ToolCalls: 2},
		Content:   true, Complete: true, Model: "m-1", FinishReason: "tool_calls",
	}
	if diff := cmp.Diff(want, s.Tally(true)); diff != "" {
		t.Error(diff)
	}
	if rough := s.Tally(false); rough.Delivered.OutputTokens <= 0 || rough.Delivered.ToolCalls != 2 {
		t.Errorf("rough: %+v", rough.Delivered)
	}
}

// Cumulative usage in several chunks and again in the last is 46 tokens once.
func TestCaseM1_RepeatedUsageCountsOnce(t *testing.T) {
	with := func(in, out int) string {
		return strings.Replace(chunk(0, `{"content":"x"}`, "null"), `"usage":null`, fmt.Sprintf(`"usage":{"prompt_tokens":%d,"completion_tokens":%d}`, in, out), 1)
	}
	s := chatStream(t, plainChat)
	stream := lines(with(13, 1), with(13, 12), with(13, 33), chunk(0, `{}`, "stop"))
	got := follow(t, s, stream+lines(usageChunk(13, 33), usageChunk(13, 33), "[DONE]"))
	if got != unasked(stream)+lines("[DONE]") {
		t.Errorf("usage beside choices passes, usage alone is hidden: %s", got)
	}
	if diff := cmp.Diff(&events.Usage{InputTokens: 13, OutputTokens: 33}, s.Tally(true).Usage); diff != "" {
		t.Error(diff)
	}
}

// A stream that the client cut after a few chunks is counted by what was
// delivered.
func TestCaseM2_CutStreamCountsWhatWasDelivered(t *testing.T) {
	s := chatStream(t, plainChat)
	follow(t, s, lines(chunk(0, `{"content":"abc"}`, "null"), chunk(0, `{"content":"de"}`, "null")))
	got := s.Tally(true)
	if got.Usage != nil || got.Complete || !got.Content || got.Delivered.OutputTokens != 5 {
		t.Errorf("%+v", got)
	}
}

// Usage that was said before more content came does not cover it.
func TestCaseM2_UsageFromBeforeTheContent(t *testing.T) {
	said := func(delta string, out int) string {
		return strings.Replace(chunk(0, delta, "null"), `"usage":null`, fmt.Sprintf(`"usage":{"prompt_tokens":13,"completion_tokens":%d}`, out), 1)
	}
	for name, tt := range map[string]struct {
		stream string
		want   proxy.Charged
	}{
		"said first": {
			lines(said(`{"content":"a"}`, 1), chunk(0, `{"content":"bcdef"}`, "null")),
			proxy.Charged{Verb: proxy.Cancel, Usage: events.Usage{InputTokens: 13, OutputTokens: 6}, Estimated: true, Reason: proxy.ReasonClientGone},
		},
		"said with each": {
			lines(said(`{"content":"a"}`, 1), said(`{"content":"bcdef"}`, 2)),
			proxy.Charged{Verb: proxy.Cancel, Usage: events.Usage{InputTokens: 13, OutputTokens: 2}, Reason: proxy.ReasonClientGone},
		},
		"said ahead": {
			lines(said(`{"content":"a"}`, 9), chunk(0, `{"content":"bcdef"}`, "null")),
			proxy.Charged{Verb: proxy.Cancel, Usage: events.Usage{InputTokens: 13, OutputTokens: 9}, Reason: proxy.ReasonClientGone},
		},
	} {
		s := chatStream(t, plainChat)
		follow(t, s, tt.stream)
		got := proxy.Judge(proxy.Ending{Phase: proxy.PhaseAnswered, Cause: proxy.CauseClientGone, Tally: s.Tally(true), InputTokens: 12})
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestCaseM3_ZerosBeforeContent(t *testing.T) {
	s := chatStream(t, plainChat)
	follow(t, s, lines(usageChunk(0, 0)))
	if got := s.Tally(true); got.Usage == nil || *got.Usage != (events.Usage{}) || got.Content {
		t.Errorf("%+v", got)
	}
}

func TestCaseM4_EndWithoutUsage(t *testing.T) {
	for _, end := range []string{"[DONE]", ""} { // some servers leave it out
		s := chatStream(t, plainChat)
		stream := lines(chunk(0, `{"content":"abc"}`, "null"), chunk(0, `{}`, "stop"))
		if end != "" {
			stream += lines(end)
		}
		follow(t, s, stream)
		if got := s.Tally(true); got.Usage != nil || !got.Complete || got.Delivered.OutputTokens != 3 {
			t.Errorf("%q: %+v", end, got)
		}
	}
}

// A server that gives no finish reasons ends its stream with its marker.
func TestEndWithoutAFinishReason(t *testing.T) {
	s := chatStream(t, plainChat)
	follow(t, s, lines(chunk(0, `{"content":"abc"}`, "null"), "[DONE]"))
	if got := s.Tally(true); !got.Complete || got.FinishReason != "" {
		t.Errorf("%+v", got)
	}
	s = chatStream(t, plainChat)
	follow(t, s, lines("[DONE]"))
	if got := s.Tally(true); got.Complete {
		t.Errorf("no answer at all is none that is complete: %+v", got)
	}
}

func TestUsageThatTheClientAskedForIsShown(t *testing.T) {
	s := chatStream(t, `{"model":"m","messages":[],"stream":true,"stream_options":{"include_usage":true}}`)
	stream := lines(chunk(0, `{"content":"abc"}`, "stop"), usageChunk(1, 2), "[DONE]")
	if got := follow(t, s, stream); got != stream {
		t.Errorf("%s", got)
	}
}

// What has no choices and no usage (a content filter's first chunk, say) passes.
func TestChunksWithoutChoicesPass(t *testing.T) {
	s := chatStream(t, plainChat)
	stream := lines(`{"id":"","object":"","choices":[],"prompt_filter_results":[{"prompt_index":0}]}`, chunk(0, `{"content":"a"}`, "stop"))
	if got := follow(t, s, stream); got != unasked(stream) || s.Tally(true).Garbage {
		t.Errorf("%s", got)
	}
}

func TestStreamOfSeveralChoices(t *testing.T) {
	s := chatStream(t, `{"model":"m","messages":[],"stream":true,"n":3}`)
	follow(t, s, lines(chunk(0, `{"content":"a"}`, "null"), chunk(2, `{"content":"b"}`, "null"), chunk(0, `{}`, "stop")))
	if got := s.Tally(true); got.Complete || got.Delivered.OutputTokens != 2 {
		t.Errorf("%+v", got)
	}
	end := string(s.Finish(proxy.End{Reason: "output_cap", Detail: "The cap was reached."}))
	const frame = `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"m-1","choices":[{"index":%d,"delta":{},"logprobs":null,"finish_reason":"length"}],"tollgate":{"reason":"output_cap","detail":"The cap was reached."}}` + "\n\n"
	if want := fmt.Sprintf(frame, 2) + fmt.Sprintf(frame, 1) + lines("[DONE]"); end != want {
		t.Errorf("got\n%s\nwant\n%s", end, want)
	}
}

func TestStreamsThatGoWrong(t *testing.T) {
	text := chunk(0, `{"content":"abc"}`, "null")
	for name, tt := range map[string]struct {
		stream          string
		failed, garbage bool
	}{
		"error":         {lines(text, `{"error":{"message":"no","type":"server_error"}}`), true, false},
		"error by name": {lines(text) + "event: error\ndata: {\"message\":\"no\"}\n\n", true, false},
		"null error":    {lines(strings.Replace(text, `"usage":null`, `"error":null`, 1)), false, false},
		"text":          {lines(text, "oops"), false, true},
		"cut JSON":      {lines(text, `{"id":"chatcmpl-1","choices":[{"index":0,"del`), false, true},
		"an array":      {lines(text, `[]`), false, true},
		"another":       {lines(text, `{"type":"ping"}`), false, true},
		"empty data":    {lines(text) + "data:\n\n", false, false},
		"deep":          {lines(text, strings.Repeat(`{"choices":[`, 100000)), false, true},
	} {
		s := chatStream(t, plainChat)
		follow(t, s, tt.stream)
		got := s.Tally(true)
		if got.Failed != tt.failed || got.Garbage != tt.garbage || got.Complete || got.Delivered.OutputTokens != 3 {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestStreamOfCompletions(t *testing.T) {
	e := endpoint(t, "/v1/completions")
	s := e.Stream(read(t, e, `{"model":"alias","prompt":"a","stream":true,"stream_options":{"include_usage":true}}`), byteCounter{})
	follow(t, s, lines(`{"id":"cmpl-1","object":"text_completion","created":7,"model":"m","choices":[{"text":"abc","index":0,"logprobs":null,"reasoning_content":"hm","finish_reason":null}]}`))
	if got := s.Tally(true); got.Delivered.OutputTokens != 5 || got.Delivered.ReasoningTokens != 2 || got.Complete {
		t.Errorf("%+v", got)
	}
	got := string(s.Finish(proxy.End{Reason: "quota", Detail: "Spent.", Usage: events.Usage{InputTokens: 1, OutputTokens: 3, CachedInputTokens: 1}}))
	want := lines(
		`{"id":"cmpl-1","object":"text_completion","created":7,"model":"m","choices":[{"index":0,"text":"","logprobs":null,"finish_reason":"length"}],"tollgate":{"reason":"quota","detail":"Spent."}}`,
		`{"id":"cmpl-1","object":"text_completion","created":7,"model":"m","choices":[],"usage":{"prompt_tokens":1,"completion_tokens":3,"total_tokens":4,"prompt_tokens_details":{"cached_tokens":1},"completion_tokens_details":{"reasoning_tokens":0}}}`,
		"[DONE]",
	)
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestFinishOfChat(t *testing.T) {
	s := chatStream(t, plainChat)
	follow(t, s, lines(chunk(0, `{"content":"a"}`, "null")))
	got := string(s.Finish(proxy.End{Reason: "shutdown", Detail: "The gateway stops."}))
	want := lines(`{"error":{"message":"The gateway stops.","type":"server_error","param":null,"code":"shutdown"},"tollgate":{"reason":"shutdown"}}`, "[DONE]")
	if got != want {
		t.Errorf("shutdown: %s", got)
	}

	s = chatStream(t, plainChat)
	got = string(s.Finish(proxy.End{Reason: "output_cap", Detail: "x"}))
	if !strings.HasPrefix(got, `data: {"id":"chatcmpl-tollgate","object":"chat.completion.chunk","created":0,"model":"m","choices":[{"index":0,`) {
		t.Errorf("before anything came: %s", got)
	}

	s = chatStream(t, plainChat)
	follow(t, s, lines(chunk(0, `{"content":"a"}`, "stop")))
	if got = string(s.Finish(proxy.End{Reason: "output_cap", Detail: "x"})); got != lines("[DONE]") {
		t.Errorf("after the last answer's end: %s", got)
	}

	s = chatStream(t, plainChat)
	follow(t, s, lines(chunk(0, `{"content":"a"}`, "stop"), "[DONE]"))
	if got = string(s.Finish(proxy.End{Reason: "output_cap", Detail: "x"})); got != "" {
		t.Errorf("after the stream's end: %s", got)
	}
}

// An event of many megabytes goes by in pieces, unread, and is charged as speech.
func TestEventsThatAreTooLong(t *testing.T) {
	s := chatStream(t, plainChat)
	p := sse.New(1 << 10)
	stream := "data: {\"x\":\"" + strings.Repeat("A", 64000) + "\"}\n\n" + lines(chunk(0, `{"content":"abc"}`, "stop"))
	for _, c := range []byte(stream) {
		if err := p.Feed([]byte{c}, func(ev sse.Event) error { s.Event(ev); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	got := s.Tally(true)
	if got.Garbage || !got.Complete || got.Delivered.OutputTokens != 3+21 {
		t.Errorf("%+v", got)
	}

	s = responseStream(t)
	s.Event(sse.Event{Raw: []byte(strings.Repeat("A", 64000)), Cut: true})
	if got = s.Tally(true); got.Content || got.Delivered.OutputTokens != 0 {
		t.Errorf("a piece of an event that will be whole: %+v", got)
	}
	s.Event(sse.Event{Raw: []byte("\n\n"), Cut: true, Lost: true, Begun: true})
	if got = s.Tally(true); !got.Content || got.Delivered.OutputTokens != 21 {
		t.Errorf("%+v", got)
	}
}

func TestOtherStreams(t *testing.T) {
	for _, tt := range []struct {
		name, path, request, stream string
		want                        proxy.Tally
	}{
		{
			"images", "/v1/images/generations", `{"model":"m","prompt":"a","stream":true}`,
			typedEvents(`{"type":"image_generation.partial_image","b64_json":"AAAA","partial_image_index":0}`,
				`{"type":"image_generation.completed","b64_json":"AAAA","usage":{"input_tokens":5,"output_tokens":100,"total_tokens":105}}`),
			proxy.Tally{Usage: &events.Usage{InputTokens: 5, OutputTokens: 100}, Delivered: events.Usage{Images: 1}, Content: true, Complete: true},
		},
		{
			"one image of two", "/v1/images/generations", `{"model":"m","prompt":"a","stream":true,"n":2}`,
			typedEvents(`{"type":"image_generation.completed","b64_json":"AAAA"}`),
			proxy.Tally{Delivered: events.Usage{Images: 1}, Content: true},
		},
		{
			"speech", "/v1/audio/speech", `{"model":"m","input":"a","stream_format":"sse"}`,
			lines(`{"type":"speech.audio.delta","audio":"`+repeat("AAAA", 16000)+`"}`, `{"type":"speech.audio.done","usage":{"input_tokens":1,"output_tokens":30,"total_tokens":31}}`),
			proxy.Tally{Usage: &events.Usage{InputTokens: 1, OutputTokens: 30}, Delivered: events.Usage{OutputTokens: 20}, Content: true, Complete: true},
		},
		{
			"speech that breaks off", "/v1/audio/speech", `{"model":"m","input":"a","stream_format":"sse"}`,
			lines(`{"type":"speech.audio.delta","audio":"` + repeat("AAAA", 8000) + `"}`),
			proxy.Tally{Delivered: events.Usage{OutputTokens: 10}, Content: true},
		},
		{
			"a failed response", "/v1/responses", `{"model":"m","input":"a","stream":true}`,
			typedEvents(responseEvents[0], `{"type":"response.failed","response":{"id":"resp_1","status":"failed","usage":{"input_tokens":4,"output_tokens":0}}}`),
			proxy.Tally{Usage: &events.Usage{InputTokens: 4}, Failed: true, Model: "m-1", FinishReason: "failed"},
		},
		{
			"an error", "/v1/responses", `{"model":"m","input":"a","stream":true}`,
			typedEvents(`{"type":"error","code":"x","message":"no","param":null}`),
			proxy.Tally{Failed: true},
		},
		{"garbage", "/v1/responses", `{"model":"m","input":"a","stream":true}`, lines(`{"hello":1}`), proxy.Tally{Garbage: true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := endpoint(t, tt.path)
			s := e.Stream(read(t, e, tt.request), byteCounter{})
			if got := follow(t, s, tt.stream); got != tt.stream {
				t.Errorf("the client got\n%s", got)
			}
			if diff := cmp.Diff(tt.want, s.Tally(true)); diff != "" {
				t.Error(diff)
			}
			if tt.want.Failed || tt.want.Complete {
				return
			}
			if end := string(s.Finish(proxy.End{Reason: "quota", Detail: "Spent."})); !strings.HasSuffix(end, "\n\n") || !strings.HasPrefix(end, "event: ") {
				t.Errorf("the end: %s", end)
			}
		})
	}
}

func TestStreamOfATranscription(t *testing.T) {
	e := endpoint(t, "/v1/audio/transcriptions")
	body, contentType := transcription(t, [][2]string{{"model", "m"}, {"stream", "true"}}, wav(1))
	ask, err := e.Read(body, contentType, "")
	if err != nil {
		t.Fatal(err)
	}
	s := e.Stream(ask, byteCounter{})
	follow(t, s, lines(`{"type":"transcript.text.delta","delta":"ab"}`, `{"type":"transcript.text.delta","delta":"c"}`, `{"type":"transcript.text.done","text":"abc","usage":{"type":"tokens","input_tokens":14,"output_tokens":45,"total_tokens":59}}`))
	want := proxy.Tally{Usage: &events.Usage{InputTokens: 14, OutputTokens: 45}, Delivered: events.Usage{OutputTokens: 3}, Content: true, Complete: true}
	if diff := cmp.Diff(want, s.Tally(true)); diff != "" {
		t.Error(diff)
	}
}

// Servers may give one answer after the other: the first one's end is not the
// stream's.
func TestAnswersOneAfterTheOther(t *testing.T) {
	const two = `{"model":"m","messages":[],"stream":true,"n":2}`
	s := chatStream(t, two)
	follow(t, s, lines(chunk(0, `{"content":"a"}`, "stop")))
	if s.Tally(false).Complete {
		t.Error("complete after one of two answers")
	}
	follow(t, s, lines(chunk(1, `{"content":"b"}`, "stop")))
	if !s.Tally(false).Complete {
		t.Error("not complete after both answers")
	}
	s = chatStream(t, two)
	follow(t, s, lines(chunk(0, `{"content":"a"}`, "stop"), "[DONE]"))
	if !s.Tally(false).Complete {
		t.Error("not complete where the server gives one answer only")
	}
}

// Reasoning is counted however it is said, and once where it is said twice.
func TestReasoningByAnyName(t *testing.T) {
	for _, delta := range []string{
		`{"reasoning":"ab","reasoning_content":"ab","content":null}`, `{"reasoning_content":null,"reasoning":"ab"}`, `{"reasoning_content":"ab","reasoning":null}`,
		`{"reasoning_details":[{"type":"reasoning.text","text":"a","format":"x","index":0},{"type":"reasoning.summary","summary":"b"},{"type":"reasoning.encrypted","data":"AAAA"}]}`,
		`{"reasoning":"ab","reasoning_details":[{"type":"reasoning.text","text":"ab"}]}`, `{"reasoning_details":[{"text":"ab"}],"reasoning":""}`,
		`{"reasoning":{"content":"ab"}}`, `{"reasoning":{"summary":[{"text":"a"},{"text":"b"}],"effort":"high"},"reasoning_content":null}`,
		`{"content":[{"type":"thinking","thinking":[{"type":"text","text":"ab"}]}]}`, `{"content":[{"type":"thinking","thinking":"ab"}]}`,
	} {
		s := chatStream(t, plainChat)
		follow(t, s, lines(chunk(0, delta, "null")))
		whole := endpoint(t, "/v1/chat/completions").Answer([]byte(`{"choices":[{"message":`+delta+`}]}`), "application/json", nil, byteCounter{})
		for kind, got := range map[string]proxy.Tally{"stream": s.Tally(true), "answer": whole} {
			if !got.Content || got.Delivered.ReasoningTokens != 2 || got.Delivered.OutputTokens != 2 {
				t.Errorf("%s of %s: %+v", kind, delta, got)
			}
		}
	}
}

// A message where a delta belongs counts. One beside a delta repeats what came, and
// so does one after the last.
func TestMessagesInAStream(t *testing.T) {
	event := func(choice string) string { return lines(`{"choices":[{"index":0,` + choice + `}]}`) }
	for name, tt := range map[string]struct {
		stream string
		want   int64
	}{
		"instead of a delta":   {event(`"message":{"role":"assistant","content":"ab"}`) + event(`"message":{"content":"c"},"delta":null`), 3},
		"beside a delta":       {event(`"message":{"content":"a"},"delta":{"content":"a"}`) + event(`"delta":{"content":"b"},"message":{"content":"ab"}`), 2},
		"beside an empty one":  {event(`"delta":{"content":"ab"}`) + event(`"delta":{},"message":{"content":"ab"}`), 2},
		"after the last delta": {event(`"delta":{"content":"ab"}`) + event(`"message":{"content":"ab"},"finish_reason":"stop"`), 2},
	} {
		s := chatStream(t, plainChat)
		follow(t, s, tt.stream)
		if got := s.Tally(true); !got.Content || got.Delivered.OutputTokens != tt.want {
			t.Errorf("%s: %+v, want %d output tokens", name, got, tt.want)
		}
	}
}

// Usage is read as deep as it is meant to be, in time that is in proportion to
// its size.
func TestUsageIsReadOneLevelDeep(t *testing.T) {
	const levels = 100_000
	s := chatStream(t, plainChat)
	follow(t, s, lines(`{"choices":[],"usage":{"prompt_tokens":7,"prompt_tokens_details":{"cached_tokens":3,"prompt_tokens_details":`+
		strings.Repeat(`{"prompt_tokens_details":`, levels)+`{"cached_tokens":5}`+strings.Repeat("}", levels)+`}}}`))
	if u := s.Tally(true).Usage; u == nil || u.InputTokens != 7 || u.CachedInputTokens != 3 {
		t.Errorf("%+v", u)
	}
}
