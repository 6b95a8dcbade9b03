package dialecttest

import (
	"bytes"
	"net/http"
	"strings"
	"testing"

	"tollgate/events"
	"tollgate/proxy"
	"tollgate/proxy/anthropic"
	"tollgate/proxy/gemini"
	"tollgate/proxy/openai"
)

// dialects are all of them, in the order in which the front door asks them.
var dialects = []proxy.Dialect{anthropic.New(), gemini.New(), openai.New()}

// sample is an endpoint that answers plainly and in a stream, with one answer in
// both forms.
type sample struct {
	name    string
	dialect proxy.Dialect
	plain   string // path
	stream  string // path, "" where it is the same
	// request asks for the answer as a whole, streamed for it in a stream. Neither
	// has an output cap.
	request, streamed string
	answer            string
	events            string
	usage             events.Usage // as the upstream says it
}

const openaiUsage = `{"prompt_tokens":13,"completion_tokens":33,"total_tokens":46,"prompt_tokens_details":{"cached_tokens":5},"completion_tokens_details":{"reasoning_tokens":7}}`

var samples = []sample{
	{
		name: "openai chat", dialect: openai.New(), plain: "/v1/chat/completions",
		request:  `{"model":"alias","messages":[{"role":"user","content":"hi"}]}`,
		streamed: `{"model":"alias","messages":[{"role":"user","content":"hi"}],"stream":true,"stream_options":{"include_usage":true}}`,
		answer:   `{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"Grüße,\n\"Welt\" 😀"},"finish_reason":"stop"}],"usage":` + openaiUsage + `}`,
		events: data(
			`{"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}`,
			`{"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"Grüße,\n"},"finish_reason":null}]}`,
			`{"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"\"Welt\" \ud83d\ude00"},"finish_reason":null}]}`,
			`{"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`,
			`{"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[],"usage":`+openaiUsage+`}`,
			`[DONE]`,
		),
		usage: events.Usage{InputTokens: 13, CachedInputTokens: 5, OutputTokens: 33, ReasoningTokens: 7},
	},
	{
		name: "openai completions", dialect: openai.New(), plain: "/v1/completions",
		request:  `{"model":"alias","prompt":"hi"}`,
		streamed: `{"model":"alias","prompt":"hi","stream":true,"stream_options":{"include_usage":true}}`,
		answer:   `{"id":"c","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":"Grüße,\n\"Welt\"","logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":13,"completion_tokens":33,"total_tokens":46}}`,
		events: data(
			`{"id":"c","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":"Grüße,\n","logprobs":null,"finish_reason":null}]}`,
			`{"id":"c","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":"\"Welt\"","logprobs":null,"finish_reason":"stop"}]}`,
			`{"id":"c","object":"text_completion","created":1,"model":"m","choices":[],"usage":{"prompt_tokens":13,"completion_tokens":33,"total_tokens":46}}`,
			`[DONE]`,
		),
		usage: events.Usage{InputTokens: 13, OutputTokens: 33},
	},
	{
		name: "openai responses", dialect: openai.New(), plain: "/v1/responses",
		request:  `{"model":"alias","input":"hi"}`,
		streamed: `{"model":"alias","input":"hi","stream":true}`,
		answer:   `{"id":"resp_1","object":"response","created_at":7,"status":"completed","error":null,"model":"m","output":[{"id":"msg_1","type":"message","status":"completed","role":"assistant","content":[{"type":"output_text","text":"Grüße,\n\"Welt\"","annotations":[]}]}],"usage":{"input_tokens":13,"input_tokens_details":{"cached_tokens":5},"output_tokens":33,"output_tokens_details":{"reasoning_tokens":7},"total_tokens":46}}`,
		events: typed(
			`{"type":"response.created","sequence_number":0,"response":{"id":"resp_1","object":"response","created_at":7,"status":"in_progress","error":null,"model":"m","output":[],"usage":null}}`,
			`{"type":"response.output_item.added","sequence_number":1,"output_index":0,"item":{"id":"msg_1","type":"message","status":"in_progress","role":"assistant","content":[]}}`,
			`{"type":"response.content_part.added","sequence_number":2,"item_id":"msg_1","output_index":0,"content_index":0,"part":{"type":"output_text","text":""}}`,
			`{"type":"response.output_text.delta","sequence_number":3,"item_id":"msg_1","output_index":0,"content_index":0,"delta":"Grüße,\n"}`,
			`{"type":"response.output_text.delta","sequence_number":4,"item_id":"msg_1","output_index":0,"content_index":0,"delta":"\"Welt\""}`,
			`{"type":"response.output_text.done","sequence_number":5,"item_id":"msg_1","output_index":0,"content_index":0,"text":"Grüße,\n\"Welt\""}`,
			`{"type":"response.content_part.done","sequence_number":6,"item_id":"msg_1","output_index":0,"content_index":0,"part":{"type":"output_text","text":"Grüße,\n\"Welt\"","annotations":[]}}`,
			`{"type":"response.output_item.done","sequence_number":7,"output_index":0,"item":{"id":"msg_1","type":"message","status":"completed","role":"assistant","content":[{"type":"output_text","text":"Grüße,\n\"Welt\"","annotations":[]}]}}`,
			`{"type":"response.completed","sequence_number":8,"response":{"id":"resp_1","object":"response","created_at":7,"status":"completed","error":null,"model":"m","output":[{"id":"msg_1","type":"message","status":"completed","role":"assistant","content":[{"type":"output_text","text":"Grüße,\n\"Welt\"","annotations":[]}]}],"usage":{"input_tokens":13,"input_tokens_details":{"cached_tokens":5},"output_tokens":33,"output_tokens_details":{"reasoning_tokens":7},"total_tokens":46}}}`,
		),
		usage: events.Usage{InputTokens: 13, CachedInputTokens: 5, OutputTokens: 33, ReasoningTokens: 7},
	},
	{
		name: "anthropic", dialect: anthropic.New(), plain: "/v1/messages",
		request:  `{"model":"alias","messages":[{"role":"user","content":"hi"}]}`,
		streamed: `{"model":"alias","messages":[{"role":"user","content":"hi"}],"stream":true}`,
		answer:   `{"id":"msg_1","type":"message","role":"assistant","model":"m","content":[{"type":"thinking","thinking":"Hm. ","signature":"s"},{"type":"text","text":"Grüße,\n\"Welt\" 😀"}],"stop_reason":"end_turn","stop_sequence":null,"usage":{"input_tokens":8,"cache_read_input_tokens":5,"output_tokens":33,"output_tokens_details":{"thinking_tokens":7}}}`,
		events: typed(
			`{"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","model":"m","content":[],"stop_reason":null,"usage":{"input_tokens":8,"cache_read_input_tokens":5,"output_tokens":1}}}`,
			`{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}`,
			`{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"Hm. "}}`,
			`{"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"s"}}`,
			`{"type":"content_block_stop","index":0}`,
			`{"type":"ping"}`,
			`{"type":"content_block_start","index":1,"content_block":{"type":"text","text":""}}`,
			`{"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"Grüße,\n"}}`,
			`{"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"\"Welt\" \ud83d\ude00"}}`,
			`{"type":"content_block_stop","index":1}`,
			`{"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":33,"output_tokens_details":{"thinking_tokens":7}}}`,
			`{"type":"message_stop"}`,
		),
		usage: events.Usage{InputTokens: 13, CachedInputTokens: 5, OutputTokens: 33, ReasoningTokens: 7},
	},
	{
		name: "gemini", dialect: gemini.New(), plain: "/v1beta/models/alias:generateContent", stream: "/v1beta/models/alias:streamGenerateContent",
		request:  `{"contents":[{"role":"user","parts":[{"text":"hi"}]}]}`,
		streamed: `{"contents":[{"role":"user","parts":[{"text":"hi"}]}]}`,
		answer:   `{"candidates":[{"content":{"parts":[{"text":"Hm. ","thought":true},{"text":"Grüße,\n\"Welt\" 😀"}],"role":"model"},"finishReason":"STOP","index":0}],"usageMetadata":{"promptTokenCount":13,"cachedContentTokenCount":5,"candidatesTokenCount":26,"thoughtsTokenCount":7,"totalTokenCount":46},"modelVersion":"m"}`,
		events: data(
			`{"candidates":[{"content":{"parts":[{"text":"Hm. ","thought":true}],"role":"model"},"index":0}],"usageMetadata":{"promptTokenCount":13,"cachedContentTokenCount":5,"totalTokenCount":13},"modelVersion":"m"}`,
			`{"candidates":[{"content":{"parts":[{"text":"Grüße,\n"}],"role":"model"},"index":0}],"usageMetadata":{"promptTokenCount":13,"cachedContentTokenCount":5,"totalTokenCount":13},"modelVersion":"m"}`,
			`{"candidates":[{"content":{"parts":[{"text":"\"Welt\" \ud83d\ude00"}],"role":"model"},"finishReason":"STOP","index":0}],"usageMetadata":{"promptTokenCount":13,"cachedContentTokenCount":5,"candidatesTokenCount":26,"thoughtsTokenCount":7,"totalTokenCount":46},"modelVersion":"m"}`,
		),
		usage: events.Usage{InputTokens: 13, CachedInputTokens: 5, OutputTokens: 33, ReasoningTokens: 7},
	},
}

// data frames events without names.
func data(lines ...string) string {
	return "data: " + strings.Join(lines, "\n\ndata: ") + "\n\n"
}

// typed frames events whose name is the type that their data begins with.
func typed(lines ...string) string {
	var b strings.Builder
	for _, line := range lines {
		name, _, _ := strings.Cut(strings.TrimPrefix(line, `{"type":"`), `"`)
		b.WriteString("event: " + name + "\ndata: " + line + "\n\n")
	}
	return b.String()
}

// letters counts a token for each byte that is no space, so that what is counted
// in pieces and as a whole is the same.
type letters struct{}

func (letters) Count(text []byte) int64 {
	return int64(len(text) - bytes.Count(text, []byte(" ")) - bytes.Count(text, []byte("\n")))
}
func (letters) Exact() bool { return true }

// endpoint finds a sample's endpoint and the model that its path names.
func (s *sample) endpoint(t testing.TB, streamed bool) (proxy.Endpoint, string) {
	t.Helper()
	path := s.plain
	if streamed && s.stream != "" {
		path = s.stream
	}
	e, model, ok := s.dialect.Endpoint(http.MethodPost, path, http.Header{"Anthropic-Version": {"2023-06-01"}})
	if !ok {
		t.Fatalf("%s: no endpoint", path)
	}
	return e, model
}

// ask reads a sample's request.
func (s *sample) ask(t testing.TB, streamed bool) (proxy.Endpoint, *proxy.Ask, []byte) {
	t.Helper()
	e, model := s.endpoint(t, streamed)
	body := []byte(s.request)
	if streamed {
		body = []byte(s.streamed)
	}
	ask, err := e.Read(body, "application/json", model)
	if err != nil {
		t.Fatal(err)
	}
	return e, ask, body
}

// forEach runs a test on every sample, all at once: dialects are shared.
func forEach(t *testing.T, test func(t *testing.T, s *sample)) {
	t.Helper()
	for i := range samples {
		t.Run(samples[i].name, func(t *testing.T) {
			t.Parallel()
			test(t, &samples[i])
		})
	}
}
