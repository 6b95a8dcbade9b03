package anthropic_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"tollgate/events"
	"tollgate/proxy"
)

func answered(t testing.TB, body string) proxy.Tally {
	t.Helper()
	return endpoint(t, "/v1/messages").Answer([]byte(body), "application/json", nil, words{})
}

func TestAnswer(t *testing.T) {
	for name, tt := range map[string]struct {
		body string
		want proxy.Tally
	}{
		"text": {
			`{"id":"msg_1","type":"message","role":"assistant","model":"claude-x","content":[{"type":"text","text":"one two\nthree"}],"stop_reason":"end_turn","stop_sequence":null,"usage":{"input_tokens":10,"output_tokens":5}}`,
			proxy.Tally{
				Usage:   &events.Usage{InputTokens: 10, OutputTokens: 5},
				Content: true, Complete: true, Model: "claude-x", FinishReason: "end_turn",
			},
		},
		"cached, thinking, tools, GPU": {
			`{"usage":{"input_tokens":10,"cache_creation_input_tokens":200,"cache_read_input_tokens":3000,"cache_creation":{"ephemeral_5m_input_tokens":200},` +
				`"output_tokens":50,"output_tokens_details":{"thinking_tokens":20},"server_tool_use":{"web_search_requests":3},"service_tier":"standard","gpu_ms":1234},` +
				`"content":[{"type":"thinking","thinking":"a b","signature":"xxx"},{"type":"redacted_thinking","data":"QUJDREVGR0hJSktM"},{"type":"tool_use","id":"t1","name":"weather","input":{"city": "Paris"}},` +
				`{"type":"server_tool_use","id":"s1","name":"web_search","input":{}},{"type":"web_search_tool_result","content":[{"title":"not output"}]},{"type":"text","text":"c"}],` +
				`"stop_reason":"tool_use","type":"message","model":"claude-x"}`,
			proxy.Tally{
				Usage:     &events.Usage{InputTokens: 3210, CachedInputTokens: 3000, OutputTokens: 50, ReasoningTokens: 20, ToolCalls: 1, GPUMillis: 1234},
				Delivered: events.Usage{OutputTokens: 3, ReasoningTokens: 3, ToolCalls: 1}, // what is no text
				Content:   true, Complete: true, Model: "claude-x", FinishReason: "tool_use",
			},
		},
		"no usage": {
			`{"type":"message","content":[{"type":"text","text":"one two"}],"stop_reason":"end_turn"}`,
			proxy.Tally{Delivered: events.Usage{OutputTokens: 2}, Content: true, Complete: true, FinishReason: "end_turn"},
		},
		"no usage, all kinds": {
			`{"content":[{"type":"thinking","thinking":"a b","signature":"xxx"},{"type":"redacted_thinking","data":"QUJDREVGR0hJSktM"},{"type":"tool_use","id":"t1","name":"weather","input":{"city": "Paris"}},` +
				`{"type":"server_tool_use","id":"s1","name":"web_search","input":{}},{"type":"web_search_tool_result","content":[{"title":"not output"}]},{"type":"text","text":"c"}],"type":"message"}`,
			proxy.Tally{
				Delivered: events.Usage{OutputTokens: 2 + 3 + 3 + 1, ReasoningTokens: 2 + 3, ToolCalls: 1},
				Content:   true, Complete: true,
			},
		},
		"zeros": {
			`{"type":"message","content":[],"usage":{"input_tokens":0,"output_tokens":0}}`,
			proxy.Tally{Usage: &events.Usage{}, Complete: true},
		},
		"usage null":     {`{"type":"message","usage":null}`, proxy.Tally{Complete: true}},
		"usage negative": {`{"type":"message","usage":{"input_tokens":-1,"output_tokens":5}}`, proxy.Tally{Complete: true}},
		"usage absurd":   {`{"type":"message","usage":{"input_tokens":9007199254740992,"output_tokens":5}}`, proxy.Tally{Complete: true}},
		"usage broken":   {`{"type":"message","usage":{"input_tokens":1.5,"output_tokens":5}}`, proxy.Tally{Complete: true}},
		"usage in words": {`{"type":"message","usage":{"input_tokens":"10","output_tokens":5}}`, proxy.Tally{Complete: true}},
		"cache negative": {`{"type":"message","usage":{"input_tokens":1,"output_tokens":5,"cache_read_input_tokens":-1}}`, proxy.Tally{Complete: true}},
		"sum absurd":     {`{"type":"message","usage":{"input_tokens":4294967296,"output_tokens":5,"cache_read_input_tokens":4294967296}}`, proxy.Tally{Complete: true}},
		"usage empty":    {`{"type":"message","usage":{}}`, proxy.Tally{Complete: true}},
		"GPU absurd": {
			`{"type":"message","usage":{"input_tokens":1,"output_tokens":2,"gpu_ms":-4}}`,
			proxy.Tally{Usage: &events.Usage{InputTokens: 1, OutputTokens: 2}, Complete: true},
		},
		"thinking beyond the output": {
			`{"type":"message","usage":{"input_tokens":1,"output_tokens":2,"output_tokens_details":{"thinking_tokens":9}}}`,
			proxy.Tally{Usage: &events.Usage{InputTokens: 1, OutputTokens: 2, ReasoningTokens: 2}, Complete: true},
		},
		"an error with 200": {`{"type":"error","error":{"type":"api_error","message":"x"}}`, proxy.Tally{Failed: true}},
		"another dialect":   {`{"object":"chat.completion","choices":[]}`, proxy.Tally{Garbage: true}},
		"no JSON":           {`<html>`, proxy.Tally{Garbage: true}},
		"cut":               {`{"type":"message","content":[{"type":"text","text":"one`, proxy.Tally{Garbage: true}},
		"empty":             {``, proxy.Tally{Garbage: true}},
		"an abyss":          {`{"type":"message","content":` + strings.Repeat("[", 1<<20), proxy.Tally{Garbage: true}},
	} {
		if diff := cmp.Diff(tt.want, answered(t, tt.body)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	if got := endpoint(t, "/v1/messages/count_tokens").Answer([]byte(`{"input_tokens":7}`), "", nil, words{}); got.Usage != nil || !got.Complete {
		t.Errorf("counting tokens is no use: %+v", got)
	}
}

// A stream and a whole answer that hold the same count the same.
func TestStreamedAndWholeCountTheSame(t *testing.T) {
	whole := answered(t, `{"type":"message","model":"m","content":[{"type":"thinking","thinking":"let me think"},{"type":"text","text":"one two three"},{"type":"tool_use","name":"f","input":{"a": 1}}],"stop_reason":"tool_use"}`)
	s := newStream(t)
	feed(t, s, `
{"type":"message_start","message":{"model":"m"}}
{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":""}}
{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"let me"}}
{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":" think"}}
{"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"a b c d"}}
{"type":"content_block_stop","index":0}
{"type":"content_block_start","index":1,"content_block":{"type":"text","text":"one "}}
{"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"two th"}}
{"type":"content_block_delta","index":1,"delta":{"type":"citations_delta","citation":{"cited_text":"not output"}}}
{"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"ree"}}
{"type":"content_block_stop","index":1}
{"type":"content_block_start","index":2,"content_block":{"type":"tool_use","name":"f","input":{}}}
{"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":""}}
{"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":"{\"a\": "}}
{"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":"1}"}}
{"type":"content_block_stop","index":2}
{"type":"message_delta","delta":{"stop_reason":"tool_use"}}
{"type":"message_stop"}`)
	if diff := cmp.Diff(whole, s.Tally(true)); diff != "" {
		t.Error(diff)
	}
}

func FuzzAnswer(f *testing.F) {
	for _, seed := range []string{
		`{"type":"message","model":"m","content":[{"type":"text","text":"a\u00e9"},{"type":"tool_use","name":"x","input":{"a":1}}],"usage":{"input_tokens":1,"output_tokens":2}}`,
		`{"type":"error"}`, `{"usage":{"input_tokens":-1}}`, `[]`, `{"content":[[]],"usage":[]}`, `{"usage":{"output_tokens_details":{"thinking_tokens":3},"output_tokens":1}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		checkTally(t, endpoint(t, "/v1/messages").Answer(body, "", nil, words{}))
	})
}

// checkTally holds whatever an upstream sends.
func checkTally(t *testing.T, tally proxy.Tally) {
	t.Helper()
	check := func(u *events.Usage) {
		if u == nil {
			return
		}
		if u.InputTokens < 0 || u.OutputTokens < 0 || u.CachedInputTokens > u.InputTokens || u.ReasoningTokens > u.OutputTokens ||
			u.CachedInputTokens < 0 || u.ReasoningTokens < 0 || u.ToolCalls < 0 || u.GPUMillis < 0 || u.InputTokens > proxy.MaxFigure {
			t.Fatalf("impossible figures: %+v", u)
		}
	}
	check(tally.Usage)
	check(&tally.Delivered)
	if tally.Delivered.OutputTokens > 0 && !tally.Content {
		t.Fatalf("counted without content: %+v", tally)
	}
}
