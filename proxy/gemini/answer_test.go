package gemini_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"tollgate/events"
	"tollgate/proxy"
	"tollgate/proxy/sse"
)

func TestAnswer(t *testing.T) {
	for name, tt := range map[string]struct {
		body string
		want proxy.Tally
	}{
		"text": {
			`{"candidates":[{"content":{"parts":[{"text":"one two"},{"text":"\nthree"}],"role":"model"},"finishReason":"STOP","index":0}],"usageMetadata":{"promptTokenCount":10,"candidatesTokenCount":5,"totalTokenCount":15},"modelVersion":"gemini-3-x","responseId":"r"}`,
			proxy.Tally{
				Usage:   &events.Usage{InputTokens: 10, OutputTokens: 5},
				Content: true, Complete: true, Model: "gemini-3-x", FinishReason: "STOP",
			},
		},
		"thoughts are beside the candidates": {
			`{"usageMetadata":{"promptTokenCount":100,"cachedContentTokenCount":60,"toolUsePromptTokenCount":7,"candidatesTokenCount":5,"thoughtsTokenCount":20,"totalTokenCount":132,"gpu_ms":9},` +
				`"candidates":[{"content":{"parts":[{"text":"a b","thought":true,"thoughtSignature":"x"},{"functionCall":{"name":"f","args": {}}},{"executableCode":{"code":"1"}},{"codeExecutionResult":{"output":"not output"}},{"inlineData":{"mimeType":"image/png","data":"QUJD"}}]},"finishReason":"STOP"}]}`,
			proxy.Tally{
				Usage:     &events.Usage{InputTokens: 107, CachedInputTokens: 60, OutputTokens: 25, ReasoningTokens: 20, ToolCalls: 1, Images: 1, GPUMillis: 9},
				Delivered: events.Usage{OutputTokens: 1290, ToolCalls: 1, Images: 1}, // what is no text
				Content:   true, Complete: true, FinishReason: "STOP",
			},
		},
		"blocked prompt": {
			`{"promptFeedback":{"blockReason":"SAFETY"},"usageMetadata":{"promptTokenCount":10}}`,
			proxy.Tally{Usage: &events.Usage{InputTokens: 10}, Complete: true},
		},
		"no usage, all kinds": {
			`{"candidates":[{"content":{"parts":[{"text":"a b","thought":true},{"functionCall":{"name":"f","args": {}}},{"executableCode":{"code":"1"}},{"inlineData":{"data":"QUJD"}},{"inlineData":{"data":""}}]},"finishReason":"STOP"}]}`,
			proxy.Tally{
				Delivered: events.Usage{OutputTokens: 2 + 2 + 1 + 1290, ReasoningTokens: 2, ToolCalls: 1, Images: 1},
				Content:   true, Complete: true, FinishReason: "STOP",
			},
		},
		"error null":     {`{"error":null,"candidates":[]}`, proxy.Tally{}},
		"no usage":       {`{"candidates":[{"content":{"parts":[{"text":"a"}]},"finishReason":"STOP"}]}`, proxy.Tally{Delivered: events.Usage{OutputTokens: 1}, Content: true, Complete: true, FinishReason: "STOP"}},
		"not finished":   {`{"candidates":[{"content":{"parts":[{"text":"a"}]}}]}`, proxy.Tally{Delivered: events.Usage{OutputTokens: 1}, Content: true}},
		"usage negative": {`{"candidates":[],"usageMetadata":{"promptTokenCount":-1,"candidatesTokenCount":5}}`, proxy.Tally{}},
		"usage absurd":   {`{"candidates":[],"usageMetadata":{"promptTokenCount":1,"candidatesTokenCount":4294967296,"thoughtsTokenCount":1}}`, proxy.Tally{}},
		"usage in words": {`{"candidates":[],"usageMetadata":{"promptTokenCount":"1"}}`, proxy.Tally{}},
		"usage empty":    {`{"candidates":[],"usageMetadata":{}}`, proxy.Tally{}},
		"zeros":          {`{"candidates":[],"usageMetadata":{"promptTokenCount":0,"candidatesTokenCount":0}}`, proxy.Tally{Usage: &events.Usage{}}},
		"error":          {`{"error":{"code":500}}`, proxy.Tally{Failed: true}},
		"another's":      {`{"object":"chat.completion"}`, proxy.Tally{Garbage: true}},
		"empty object":   {`{}`, proxy.Tally{Garbage: true}},
		"array":          {`[{"candidates":[]}]`, proxy.Tally{Garbage: true}},
		"no JSON":        {`<html>`, proxy.Tally{Garbage: true}},
		"an abyss":       {`{"candidates":` + strings.Repeat("[", 1<<20), proxy.Tally{Garbage: true}},
	} {
		got := verb(t, "generateContent").Answer([]byte(tt.body), "", nil, words{})
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	if got := verb(t, "countTokens").Answer([]byte(`{"totalTokens":7}`), "", nil, words{}); got.Usage != nil || !got.Complete {
		t.Errorf("counting tokens is no use: %+v", got)
	}
}

func newStream(t testing.TB) proxy.Stream {
	t.Helper()
	return verb(t, "streamGenerateContent").Stream(nil, words{})
}

// feed follows the stream of these responses, one a line.
func feed(t testing.TB, s proxy.Stream, lines string) {
	t.Helper()
	for line := range strings.SplitSeq(strings.TrimSpace(lines), "\n") {
		feedBytes(t, s, []byte("data: "+line+"\r\n\r\n"))
	}
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
	hello = `{"candidates":[{"content":{"parts":[{"text":"one two"}],"role":"model"},"index":0}],"usageMetadata":{"promptTokenCount":13,"totalTokenCount":13},"modelVersion":"g-x"}
{"candidates":[{"content":{"parts":[{"text":" three\nfour"}],"role":"model"},"index":0}],"usageMetadata":{"promptTokenCount":13,"totalTokenCount":13},"modelVersion":"g-x"}`
	last = `{"candidates":[{"content":{"parts":[{"text":""}],"role":"model"},"finishReason":"STOP","index":0}],"usageMetadata":{"promptTokenCount":13,"candidatesTokenCount":33,"totalTokenCount":46},"modelVersion":"g-x"}`
)

func charged(s proxy.Stream, cause proxy.Cause) proxy.Charged {
	return proxy.Judge(proxy.Ending{Phase: proxy.PhaseAnswered, Cause: cause, Tally: s.Tally(true), InputTokens: 12})
}

func TestCaseM1_CumulativeUsageCountsOnce(t *testing.T) {
	s := newStream(t)
	feed(t, s, `
{"candidates":[{"content":{"parts":[{"text":"one"}]}}],"usageMetadata":{"promptTokenCount":13,"candidatesTokenCount":11}}
{"candidates":[{"content":{"parts":[{"text":"two"}]}}],"usageMetadata":{"promptTokenCount":13,"candidatesTokenCount":22}}
`+last+"\n"+last)
	want := proxy.Charged{Verb: proxy.Settle, Usage: events.Usage{InputTokens: 13, OutputTokens: 33}}
	if diff := cmp.Diff(want, charged(s, proxy.CauseUpstreamEnd)); diff != "" {
		t.Error(diff)
	}
	if tally := s.Tally(false); tally.Model != "g-x" || tally.FinishReason != "STOP" || tally.Failed || tally.Garbage || tally.OutputUnsaid {
		t.Errorf("%+v", tally)
	}
}

func TestCaseM2_ClientLeavesBeforeTheOutputIsSaid(t *testing.T) {
	s := newStream(t)
	feed(t, s, hello)
	want := proxy.Charged{Verb: proxy.Cancel, Usage: events.Usage{InputTokens: 13, OutputTokens: 4}, Estimated: true, Reason: proxy.ReasonClientGone}
	if diff := cmp.Diff(want, charged(s, proxy.CauseClientGone)); diff != "" {
		t.Error(diff)
	}
}

func TestCaseM3_ZerosAndNothingDelivered(t *testing.T) {
	s := newStream(t)
	feed(t, s, `{"candidates":[{"content":{"parts":[{"text":""}]}}],"usageMetadata":{"promptTokenCount":0,"candidatesTokenCount":0}}`)
	if diff := cmp.Diff(proxy.Charged{Verb: proxy.Cancel, Reason: proxy.ReasonClientGone}, charged(s, proxy.CauseClientGone)); diff != "" {
		t.Error(diff)
	}
}

func TestCaseM4_EndWithoutUsage(t *testing.T) {
	for name, usage := range map[string]string{
		"none": ``, "null": `,"usageMetadata":null`, "zeros": `,"usageMetadata":{"promptTokenCount":0,"candidatesTokenCount":0}`,
		"garbage": `,"usageMetadata":{"promptTokenCount":5,"candidatesTokenCount":-1}`, "another type": `,"usageMetadata":[1]`,
	} {
		s := newStream(t)
		feed(t, s, `{"candidates":[{"content":{"parts":[{"text":"one two three"}]},"finishReason":"STOP"}]`+usage+`}`)
		want := proxy.Charged{Verb: proxy.Settle, Usage: events.Usage{InputTokens: 12, OutputTokens: 3}, Estimated: true}
		if diff := cmp.Diff(want, charged(s, proxy.CauseUpstreamEnd)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestStreamIsCompleteWhenEachCandidateIs(t *testing.T) {
	s := newStream(t)
	feed(t, s, `{"candidates":[{"content":{"parts":[{"text":"a"}]},"index":0},{"content":{"parts":[{"text":"b"}]},"index":1}]}
{"candidates":[{"finishReason":"STOP","index":1}]}`)
	if s.Tally(true).Complete {
		t.Error("complete with one of two")
	}
	feed(t, s, `{"candidates":[{"finishReason":"MAX_TOKENS"}]}`)
	if !s.Tally(true).Complete {
		t.Error("not complete with both")
	}
}

// A finish reason before more content was not the candidate's end.
func TestContentAfterAFinishReason(t *testing.T) {
	const ended = `{"candidates":[{"content":{"parts":[{"text":"a"}]},"finishReason":"STOP"}]}`
	for name, tt := range map[string]struct {
		stream   string
		complete bool
	}{
		"in every event":       {ended + "\n" + ended, true},
		"and then more":        {ended + "\n" + `{"candidates":[{"content":{"parts":[{"text":"b"}]}}]}`, false},
		"more, then the end":   {ended + "\n" + `{"candidates":[{"content":{"parts":[{"functionCall":{"name":"f"}}]}}]}` + "\n" + ended, true},
		"and then nothing":     {ended + "\n" + `{"candidates":[{"content":{"parts":[{"text":""}]}}],"usageMetadata":{"promptTokenCount":1}}`, true},
		"and then its usage":   {ended + "\n" + `{"usageMetadata":{"promptTokenCount":1,"candidatesTokenCount":1}}`, true},
		"and then another one": {ended + "\n" + `{"candidates":[{"index":1,"content":{"parts":[{"text":"b"}]}}]}`, false},
	} {
		s := newStream(t)
		feed(t, s, tt.stream)
		if got := s.Tally(true); got.Complete != tt.complete {
			t.Errorf("%s: %+v", name, got)
		}
	}
	s := newStream(t)
	feed(t, s, ended+"\n"+`{"candidates":[{"content":{"parts":[{"text":"b"}]}}]}`)
	if got := charged(s, proxy.CauseUpstreamEnd); got.Verb != proxy.Cancel || got.Reason != proxy.ReasonUpstreamBrokeOff {
		t.Errorf("broken off after it: %+v", got)
	}
}

func TestStreamGarbage(t *testing.T) {
	for name, tt := range map[string]struct {
		stream  string
		garbage bool
	}{
		"no JSON":      {"data: hello\n\n", true},
		"cut":          {"data: {\"candidates\":[\n\n", true},
		"another's":    {"data: {\"choices\":[]}\n\n", true},
		"comment":      {": hi\n\n", false},
		"only an id":   {"data: {\"responseId\":\"x\"}\n\n", false},
		"odd types":    {"data: {\"candidates\":{\"a\":1},\"usageMetadata\":7}\n\n", false},
		"odd elements": {"data: {\"candidates\":[7,{\"content\":[{\"parts\":3}]}]}\n\n", false},
	} {
		s := newStream(t)
		feedBytes(t, s, []byte(tt.stream))
		if tally := s.Tally(true); tally.Garbage != tt.garbage || tally.Content || tally.Complete {
			t.Errorf("%s: %+v", name, tally)
		}
	}
	s := newStream(t)
	s.Event(sse.Event{Raw: make([]byte, 3000), Cut: true})
	s.Event(sse.Event{Raw: make([]byte, 1000), Cut: true, Begun: true, Lost: true})
	if tally := s.Tally(true); !tally.Content || tally.Delivered.OutputTokens != 1000 {
		t.Errorf("what is too long to be read is free: %+v", tally)
	}
}

// An output figure that was said before more content came does not cover it.
func TestOutputThatIsNotSaidYet(t *testing.T) {
	s := newStream(t)
	feed(t, s, `{"candidates":[{"content":{"parts":[{"text":"one"}]}}],"usageMetadata":{"promptTokenCount":13,"candidatesTokenCount":1}}`)
	if tally := s.Tally(true); tally.OutputUnsaid {
		t.Errorf("said with its content: %+v", tally)
	}
	feed(t, s, `{"candidates":[{"content":{"parts":[{"text":" two three"}]}}],"usageMetadata":{"promptTokenCount":13}}`)
	want := proxy.Charged{Verb: proxy.Cancel, Usage: events.Usage{InputTokens: 13, OutputTokens: 3}, Estimated: true, Reason: proxy.ReasonClientGone}
	if diff := cmp.Diff(want, charged(s, proxy.CauseClientGone)); diff != "" {
		t.Error(diff)
	}
}

// Thoughts that are said do not make up for an answer that is said to be none.
func TestOutputThatIsSaidToBeNone(t *testing.T) {
	for thoughts, want := range map[string]int64{"0": 3, "20": 23} {
		body := `{"candidates":[{"content":{"parts":[{"text":"one two three"}]},"finishReason":"STOP"}],"usageMetadata":{"promptTokenCount":13,"candidatesTokenCount":0,"thoughtsTokenCount":` + thoughts + `}}`
		s := newStream(t)
		feed(t, s, body)
		whole := verb(t, "generateContent").Answer([]byte(body), "", nil, words{})
		for name, tally := range map[string]proxy.Tally{"stream": s.Tally(true), "answer": whole} {
			got := proxy.Judge(proxy.Ending{Phase: proxy.PhaseAnswered, Tally: tally, InputTokens: 12})
			if got.Usage.InputTokens != 13 || got.Usage.OutputTokens != want || got.Usage.ReasoningTokens != want-3 || !got.Estimated {
				t.Errorf("%s, %s thoughts: %+v", name, thoughts, got)
			}
		}
	}
}

// A long event comes in pieces before it is whole; it counts once. While it is
// coming, what came of it is content.
func TestStreamEventInPieces(t *testing.T) {
	s := newStream(t)
	long := []byte(`data: {"candidates":[{"content":{"parts":[{"text":"` + strings.Repeat("word ", 40_000) + `"}]}}]}` + "\n\n")
	p := sse.New(0)
	each := func(ev sse.Event) error {
		s.Event(ev)
		return nil
	}
	if err := p.Feed(long[:150_000], each); err != nil {
		t.Fatal(err)
	}
	if tally := s.Tally(true); !tally.Content || tally.Delivered.OutputTokens != 37_500 {
		t.Errorf("while it comes: %+v", tally)
	}
	if err := p.Feed(long[150_000:], each); err != nil {
		t.Fatal(err)
	}
	if tally := s.Tally(true); tally.Delivered.OutputTokens != 40_000 {
		t.Errorf("whole: %+v", tally)
	}
}

func TestFinish(t *testing.T) {
	used := events.Usage{InputTokens: 13, CachedInputTokens: 3, OutputTokens: 9, ReasoningTokens: 5}
	open := func(indexes ...string) string {
		var all []string
		for _, index := range indexes {
			all = append(all, `{"content":{"parts":[{"text":""}],"role":"model"},"finishReason":"MAX_TOKENS","index":`+index+`}`)
		}
		return `{"candidates":[` + strings.Join(all, ",") + `],"usageMetadata":{"promptTokenCount":13,"candidatesTokenCount":4,"thoughtsTokenCount":5,"cachedContentTokenCount":3,"totalTokenCount":22}}`
	}
	failed := func(code, status, reason string) string {
		return `{"error":{"code":` + code + `,"message":"d","status":"` + status + `","details":[{"@type":"type.googleapis.com/google.rpc.ErrorInfo","reason":"` + strings.ToUpper(reason) + `","domain":"tollgate"}]},"tollgate":{"reason":"` + reason + `"}}`
	}
	for name, tt := range map[string]struct{ seen, reason, want string }{
		"cap":           {hello, "output_cap", open("0")},
		"quota":         {hello, "quota", open("0")},
		"nothing came":  {`{"responseId":"x"}`, "quota", open("0")},
		"two, one open": {`{"candidates":[{"index":0,"finishReason":"STOP"},{"index":1},{"index":3}]}`, "quota", open("1", "3")},
		"all ended":     {last, "quota", ""},
		"failed":        {`{"error":{}}`, "upstream", ""},
		"shutdown":      {hello, "shutdown", failed("503", "UNAVAILABLE", "shutdown")},
		"broken off":    {hello, "upstream_broke_off", failed("500", "INTERNAL", "upstream_broke_off")},
	} {
		s := newStream(t)
		feed(t, s, tt.seen)
		out := s.Finish(proxy.End{Reason: tt.reason, Detail: "d", Usage: used})
		want := tt.want
		if want != "" {
			want = "data: " + want + "\n\n"
			if !json.Valid([]byte(tt.want)) {
				t.Fatal(tt.want)
			}
		}
		if string(out) != want {
			t.Errorf("%s: got  %s\nwant %s", name, out, want)
		}
		feedBytes(t, s, out)
		if tally := s.Tally(true); !tally.Complete && !tally.Failed {
			t.Errorf("%s: %+v", name, tally)
		}
	}
}

// checkTally holds whatever an upstream sends.
func checkTally(t *testing.T, tally proxy.Tally) {
	t.Helper()
	for _, u := range []*events.Usage{tally.Usage, &tally.Delivered} {
		if u != nil && (u.InputTokens < 0 || u.InputTokens > proxy.MaxFigure || u.OutputTokens < 0 || u.CachedInputTokens < 0 || u.CachedInputTokens > u.InputTokens ||
			u.ReasoningTokens < 0 || u.ReasoningTokens > u.OutputTokens || u.ToolCalls < 0 || u.Images < 0 || u.GPUMillis < 0) {
			t.Fatalf("impossible figures: %+v", u)
		}
	}
	if tally.Delivered.OutputTokens > 0 && !tally.Content {
		t.Fatalf("counted without content: %+v", tally)
	}
}

func FuzzAnswer(f *testing.F) {
	for line := range strings.SplitSeq(hello+"\n"+last, "\n") {
		f.Add([]byte(line))
	}
	f.Add([]byte(`{"candidates":[{"content":{"parts":[{"functionCall":{}},{"inlineData":{"data":"x"}},{"text":"a","thought":true}]}}],"usageMetadata":{"promptTokenCount":1,"cachedContentTokenCount":9}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		checkTally(t, verb(t, "generateContent").Answer(body, "", nil, words{}))
	})
}

func FuzzStream(f *testing.F) {
	f.Add([]byte("data: "+last+"\n\n"), uint16(7), true)
	f.Add([]byte("data: {\"candidates\":[{\"index\":70}]}\n\n: x\n\ndata: 7\n\n"), uint16(40), false)
	f.Add([]byte("data: {\"error\":{}}\n\n"), uint16(0), true)
	f.Fuzz(func(t *testing.T, stream []byte, cut uint16, capped bool) {
		s, p := newStream(t), sse.New(1<<12)
		each := func(ev sse.Event) error {
			s.Event(ev)
			return nil
		}
		at := min(int(cut), len(stream))
		if p.Feed(stream[:at], each) != nil || p.Feed(stream[at:], each) != nil || p.End(each) != nil {
			t.Fatal("refused")
		}
		checkTally(t, s.Tally(true))
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
	s := verb(b, "streamGenerateContent").Stream(nil, constant{})
	ev := sse.Event{HasData: true, Data: []byte(strings.SplitN(hello, "\n", 2)[1])}
	b.ReportAllocs()
	for b.Loop() {
		s.Event(ev)
	}
}
