package openai_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tidwall/gjson"

	"tollgate/events"
	"tollgate/proxy"
)

// typedEvents makes events that name their type, numbered from 0.
func typedEvents(data ...string) string {
	var b strings.Builder
	for i, d := range data {
		d = fmt.Sprintf(`%s,"sequence_number":%d}`, strings.TrimSuffix(d, "}"), i)
		b.WriteString("event: " + gjson.Get(d, "type").Str + "\ndata: " + d + "\n\n")
	}
	return b.String()
}

func responseStream(t *testing.T) proxy.Stream {
	t.Helper()
	e := endpoint(t, "/v1/responses")
	return e.Stream(read(t, e, `{"model":"alias","input":"a","stream":true}`), byteCounter{})
}

var responseEvents = []string{
	`{"type":"response.created","response":{"id":"resp_1","object":"response","created_at":7,"status":"in_progress","error":null,"incomplete_details":null,"model":"m-1","output":[],"tools":[],"usage":null,"x":1.50}}`,
	`{"type":"response.in_progress","response":{"id":"resp_1"}}`,
	`{"type":"response.output_item.added","output_index":0,"item":{"id":"rs_1","type":"reasoning","summary":[]}}`,
	`{"type":"response.reasoning_summary_text.delta","item_id":"rs_1","output_index":0,"summary_index":0,"delta":"hm"}`,
	`{"type":"response.reasoning_summary_text.done","item_id":"rs_1","output_index":0,"summary_index":0,"text":"hm"}`,
	`{"type":"response.output_item.done","output_index":0,"item":{"id":"rs_1","type":"reasoning","summary":[{"type":"summary_text","text":"hm"}]}}`,
	`{"type":"response.output_item.added","output_index":1,"item":{"id":"msg_1","type":"message","status":"in_progress","role":"assistant","content":[]}}`,
	`{"type":"response.content_part.added","item_id":"msg_1","output_index":1,"content_index":0,"part":{"type":"output_text","text":""}}`,
	`{"type":"response.output_text.delta","item_id":"msg_1","output_index":1,"content_index":0,"delta":"a\n"}`,
	`{"type":"response.output_text.delta","item_id":"msg_1","output_index":1,"content_index":0,"delta":"b"}`,
	`{"type":"response.output_item.added","output_index":2,"item":{"id":"fc_1","type":"function_call","status":"in_progress","call_id":"call_1","name":"fn","arguments":""}}`,
	`{"type":"response.function_call_arguments.delta","item_id":"fc_1","output_index":2,"delta":"{\"a"}`,
}

func TestStreamOfAResponse(t *testing.T) {
	s := responseStream(t)
	stream := typedEvents(append(responseEvents[:len(responseEvents):len(responseEvents)],
		`{"type":"response.output_text.done","item_id":"msg_1","output_index":1,"content_index":0,"text":"a\nb"}`,
		`{"type":"response.completed","response":{"id":"resp_1","status":"completed","model":"m-1","output":[],"usage":{"input_tokens":3,"input_tokens_details":{"cached_tokens":1},"output_tokens":9,"output_tokens_details":{"reasoning_tokens":4},"total_tokens":12}}}`)...)
	if got := follow(t, s, stream); got != stream {
		t.Error("a response's stream passes whole")
	}
	want := proxy.Tally{
		Usage:     &events.Usage{InputTokens: 3, OutputTokens: 9, CachedInputTokens: 1, ReasoningTokens: 4},
		Delivered: events.Usage{OutputTokens: 2 + 3 + 2 + 3, ReasoningTokens: 2, ToolCalls: 1},
		Content:   true, Complete: true, Model: "m-1", FinishReason: "completed",
	}
	if diff := cmp.Diff(want, s.Tally(true)); diff != "" {
		t.Error(diff)
	}
	if got := s.Finish(proxy.End{Reason: "output_cap"}); len(got) != 0 {
		t.Errorf("ended twice: %s", got)
	}
}

func TestFinishOfAResponse(t *testing.T) {
	s := responseStream(t)
	follow(t, s, typedEvents(responseEvents...))
	got := string(s.Finish(proxy.End{Reason: "output_cap", Detail: "Cap.", Usage: events.Usage{InputTokens: 3, OutputTokens: 9}}))
	want := func() string {
		n := len(responseEvents) - 1
		ev := func(kind, rest string) string {
			n++
			return fmt.Sprintf("event: %s\ndata: {\"type\":%q,\"sequence_number\":%d,%s}\n\n", kind, kind, n, rest)
		}
		const text = `{"type":"output_text","text":"a\nb","annotations":[],"logprobs":[]}`
		const message = `{"id":"msg_1","type":"message","status":"incomplete","role":"assistant","content":[` + text + `]}`
		const call = `{"id":"fc_1","type":"function_call","status":"incomplete","call_id":"call_1","name":"fn","arguments":"{\"a"}`
		const thought = `{"id":"rs_1","type":"reasoning","summary":[{"type":"summary_text","text":"hm"}]}`
		return ev("response.output_text.done", `"item_id":"msg_1","output_index":1,"content_index":0,"text":"a\nb","logprobs":[]`) +
			ev("response.content_part.done", `"item_id":"msg_1","output_index":1,"content_index":0,"part":`+text) +
			ev("response.output_item.done", `"output_index":1,"item":`+message) +
			ev("response.function_call_arguments.done", `"item_id":"fc_1","output_index":2,"arguments":"{\"a"`) +
			ev("response.output_item.done", `"output_index":2,"item":`+call) +
			ev("response.incomplete", `"response":{"id":"resp_1","object":"response","created_at":7,"status":"incomplete","error":null,"incomplete_details":{"reason":"max_output_tokens"},"model":"m-1","output":[`+thought+","+message+","+call+
				`],"tools":[],"usage":{"input_tokens":3,"input_tokens_details":{"cached_tokens":0},"output_tokens":9,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":12},"x":1.50},"tollgate":{"reason":"output_cap","detail":"Cap."}`)
	}()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestFinishOfAResponseThatFails(t *testing.T) {
	for _, events := range [][]string{responseEvents, nil} {
		s := responseStream(t)
		follow(t, s, typedEvents(events...))
		got := string(s.Finish(proxy.End{Reason: "shutdown", Detail: "The gateway stops."}))
		data, ok := strings.CutPrefix(got, "event: response.failed\ndata: ")
		if !ok || !gjson.Valid(data) {
			t.Fatalf("%s", got)
		}
		for path, want := range map[string]string{
			"type": "response.failed", "response.status": "failed", "response.error.code": "server_error", "response.object": "response",
			"response.error.message": "The gateway stops.", "sequence_number": fmt.Sprint(len(events)), "tollgate.reason": "shutdown",
		} {
			if v := gjson.Get(data, path).String(); v != want {
				t.Errorf("%d events: %s is %q, want %q", len(events), path, v, want)
			}
		}
	}
}

// A server's broken strings do not get into what Tollgate writes.
func TestFinishIsValidWhateverCame(t *testing.T) {
	s := responseStream(t)
	follow(t, s, typedEvents(append(responseEvents[:8:8], `{"type":"response.output_text.delta","item_id":"msg_1","output_index":1,"content_index":0,"delta":"a\qb"}`)...))
	for data := range strings.SplitSeq(string(s.Finish(proxy.End{Reason: "quota", Detail: "Spent."})), "\n") {
		if data, ok := strings.CutPrefix(data, "data: "); ok && !gjson.Valid(data) {
			t.Errorf("%s", data)
		}
	}
}

// What is kept of a response to end it is bounded; the text still counts.
func TestLongResponsesAreNotKeptWhole(t *testing.T) {
	s := responseStream(t)
	follow(t, s, typedEvents(responseEvents[:8]...))
	piece := strings.Repeat("x", 1000)
	one := typedEvents(`{"type":"response.output_text.delta","item_id":"msg_1","output_index":1,"content_index":0,"delta":"` + piece + `"}`)
	for range 1000 {
		follow(t, s, one)
	}
	if got := s.Tally(true).Delivered.OutputTokens; got != 1_000_000+2 {
		t.Errorf("%d tokens", got)
	}
	if end := s.Finish(proxy.End{Reason: "output_cap"}); len(end) > 2<<20 {
		t.Errorf("the end has %d bytes", len(end))
	}
}
