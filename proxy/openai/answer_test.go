package openai_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"tollgate/events"
	"tollgate/proxy"
)

func TestAnswer(t *testing.T) {
	const (
		chat      = "/v1/chat/completions"
		compl     = "/v1/completions"
		responses = "/v1/responses"
		audio     = "/v1/audio/transcriptions"
		pictures  = "/v1/images/generations"
	)
	for _, tt := range []struct {
		name, path, body string
		want             proxy.Tally
	}{
		{
			"chat", chat,
			`{"id":"c","object":"chat.completion","created":1,"model":"m-1","choices":[{"index":0,"message":{"role":"assistant","content":"hello"},"finish_reason":"stop"}],"usage":{"prompt_tokens":13,"completion_tokens":33,"total_tokens":46,"prompt_tokens_details":{"cached_tokens":5,"audio_tokens":0},"completion_tokens_details":{"reasoning_tokens":7},"gpu_ms":120}}`,
			proxy.Tally{
				Usage:   &events.Usage{InputTokens: 13, OutputTokens: 33, CachedInputTokens: 5, ReasoningTokens: 7, GPUMillis: 120},
				Content: true, Complete: true, Model: "m-1", FinishReason: "stop",
			},
		},
		{
			"chat without usage", chat,
			`{"choices":[{"message":{"content":"h\u00e9","reasoning_content":"abc"},"finish_reason":"stop"},{"message":{"content":null,"tool_calls":[{"id":"1","function":{"name":"fn","arguments":"{}"}},{"id":"2","custom":{"name":"c","input":"in"}}]},"finish_reason":"tool_calls"}]}`,
			proxy.Tally{
				Delivered: events.Usage{OutputTokens: 3 + 3 + 2 + 2 + 1 + 2, ReasoningTokens: 3, ToolCalls: 2},
				Content:   true, Complete: true, FinishReason: "tool_calls",
			},
		},
		{
			"chat with zeros", chat,
			`{"choices":[{"message":{"content":"abc"},"finish_reason":"length"}],"usage":{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0}}`,
			proxy.Tally{Usage: &events.Usage{}, Delivered: events.Usage{OutputTokens: 3}, Content: true, Complete: true, FinishReason: "length"},
		},
		{
			"chat that stopped without a reason", chat, `{"choices":[{"message":{"content":"abc"},"finish_reason":null}]}`,
			proxy.Tally{Delivered: events.Usage{OutputTokens: 3}, Content: true},
		},
		{
			"usage that cannot be: negative", chat, `{"choices":[],"usage":{"prompt_tokens":-1,"completion_tokens":3}}`, proxy.Tally{},
		},
		{
			"usage that cannot be: a fraction", chat, `{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":3.5}}`, proxy.Tally{},
		},
		{
			"usage that cannot be: too large", chat, `{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":99999999999999}}}`, proxy.Tally{},
		},
		{"usage of GPU time alone", chat, `{"choices":[],"usage":{"gpu_ms":7}}`, proxy.Tally{Usage: &events.Usage{GPUMillis: 7}}},
		{"usage of no figures", chat, `{"choices":[],"usage":{}}`, proxy.Tally{}},
		{"usage that is null", chat, `{"choices":[],"usage":null}`, proxy.Tally{}},
		{
			"parts are no larger than the whole", chat, `{"choices":[],"usage":{"prompt_tokens":4,"completion_tokens":3,"total_tokens":7,"prompt_tokens_details":{"cached_tokens":9},"completion_tokens_details":{"reasoning_tokens":9}}}`,
			proxy.Tally{Usage: &events.Usage{InputTokens: 4, OutputTokens: 3, CachedInputTokens: 4, ReasoningTokens: 3}},
		},
		{
			"reasoning beside the completion", chat, `{"choices":[],"usage":{"prompt_tokens":4,"completion_tokens":3,"total_tokens":17,"completion_tokens_details":{"reasoning_tokens":10}}}`,
			proxy.Tally{Usage: &events.Usage{InputTokens: 4, OutputTokens: 13, ReasoningTokens: 10}},
		},
		{"an error that came with 200", chat, `{"error":{"message":"no"}}`, proxy.Tally{Failed: true}},
		{"no JSON", chat, `<html>`, proxy.Tally{Garbage: true}},
		{"cut JSON", chat, `{"choices":[`, proxy.Tally{Garbage: true}},
		{"another JSON", chat, `{"hello":1}`, proxy.Tally{Garbage: true}},
		{"an array", chat, `[]`, proxy.Tally{Garbage: true}},
		{
			"spoken chat", chat, `{"choices":[{"message":{"content":null,"audio":{"data":"` + repeat("AAAA", 16000) + `"}},"finish_reason":"stop"}]}`,
			proxy.Tally{Delivered: events.Usage{OutputTokens: 20}, Content: true, Complete: true, FinishReason: "stop"},
		},
		{
			"completion", compl, `{"model":"m","choices":[{"text":"abc","finish_reason":"stop"},{"text":"d","finish_reason":"length"}]}`,
			proxy.Tally{Delivered: events.Usage{OutputTokens: 4}, Content: true, Complete: true, Model: "m", FinishReason: "length"},
		},
		{
			"completion of nothing", compl, `{"choices":[{"text":"","finish_reason":"stop"}]}`,
			proxy.Tally{Complete: true, FinishReason: "stop"},
		},
		{
			"response", responses,
			`{"id":"r","model":"m","status":"completed","output":[{"type":"reasoning","summary":[{"type":"summary_text","text":"th"}]},{"type":"message","content":[{"type":"output_text","text":"abc"}]},{"type":"function_call","name":"fn","arguments":"{}"}],"usage":{"input_tokens":3,"input_tokens_details":{"cached_tokens":1},"output_tokens":9,"output_tokens_details":{"reasoning_tokens":4},"total_tokens":12}}`,
			proxy.Tally{
				Usage:     &events.Usage{InputTokens: 3, OutputTokens: 9, CachedInputTokens: 1, ReasoningTokens: 4},
				Delivered: events.Usage{ToolCalls: 1}, Content: true, Complete: true, Model: "m", FinishReason: "completed",
			},
		},
		{
			"response without usage", responses,
			`{"status":"incomplete","incomplete_details":{"reason":"max_output_tokens"},"output":[{"type":"reasoning","content":[{"text":"th"}]},{"type":"message","content":[{"type":"refusal","refusal":"no"}]},{"type":"image_generation_call","result":"AAAA"},{"type":"web_search_call"}]}`,
			proxy.Tally{
				Delivered: events.Usage{OutputTokens: 4, ReasoningTokens: 2, ToolCalls: 1, Images: 1},
				Content:   true, Complete: true, FinishReason: "max_output_tokens",
			},
		},
		{"failed response", responses, `{"status":"failed","error":{"message":"x"}}`, proxy.Tally{Failed: true, FinishReason: "failed"}},
		{"no response", responses, `{"status":"completed"}`, proxy.Tally{Garbage: true}},
		{
			"embedding", "/v1/embeddings", `{"object":"list","data":[{"embedding":[0.1]}],"model":"m","usage":{"prompt_tokens":8,"total_tokens":8}}`,
			proxy.Tally{Usage: &events.Usage{InputTokens: 8}, Content: true, Complete: true, Model: "m"},
		},
		{
			"images", pictures, `{"created":1,"data":[{"b64_json":"AA"},{"url":"x"}],"usage":{"input_tokens":5,"output_tokens":200,"total_tokens":205,"input_tokens_details":{"text_tokens":5,"image_tokens":0}}}`,
			proxy.Tally{Usage: &events.Usage{InputTokens: 5, OutputTokens: 200}, Delivered: events.Usage{Images: 2}, Content: true, Complete: true},
		},
		{
			"images without usage", pictures, `{"created":1,"data":[{"url":"x"}]}`,
			proxy.Tally{Delivered: events.Usage{Images: 1}, Content: true, Complete: true},
		},
		{
			"transcription by tokens", audio, `{"text":"abc","usage":{"type":"tokens","input_tokens":14,"input_token_details":{"audio_tokens":14},"output_tokens":45,"total_tokens":59}}`,
			proxy.Tally{Usage: &events.Usage{InputTokens: 14, OutputTokens: 45}, Content: true, Complete: true},
		},
		{
			"transcription by its length", audio, `{"text":"abc","usage":{"type":"duration","seconds":12.3456}}`,
			proxy.Tally{Usage: &events.Usage{AudioMillis: 12346}, Content: true, Complete: true},
		},
		{
			"verbose transcription", audio, `{"task":"transcribe","duration":"8.47","text":"abc"}`,
			proxy.Tally{Usage: &events.Usage{AudioMillis: 8470}, Content: true, Complete: true},
		},
		{
			"transcription without usage", audio, `{"text":"abc"}`,
			proxy.Tally{Delivered: events.Usage{OutputTokens: 3}, Content: true, Complete: true},
		},
		{"no transcription", audio, `{"txt":"abc"}`, proxy.Tally{Garbage: true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := endpoint(t, tt.path).Answer([]byte(tt.body), "application/json; charset=utf-8", &proxy.Ask{Choices: 1}, byteCounter{})
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// What is said of the input alone, or of an output of none that was delivered,
// does not make the output free: it is counted here, and marked as estimated.
func TestOutputThatIsSaidToBeNone(t *testing.T) {
	const picture = `{"model":"m","prompt":"cat","n":2,"size":"1024x1024","quality":"low"}`
	for name, tt := range map[string]struct {
		path, request, answer string
		want                  events.Usage
	}{
		"chat": {
			"/v1/chat/completions", `{"model":"m","messages":[]}`,
			`{"choices":[{"message":{"content":"abc"},"finish_reason":"stop"}],"usage":{"prompt_tokens":8,"completion_tokens":0,"total_tokens":8}}`,
			events.Usage{InputTokens: 8, OutputTokens: 3},
		},
		"chat, of its input alone": {
			"/v1/chat/completions", `{"model":"m","messages":[]}`,
			`{"choices":[{"message":{"tool_calls":[{"function":{"name":"fn","arguments":"{}"}}]},"finish_reason":"stop"}],"usage":{"prompt_tokens":8}}`,
			events.Usage{InputTokens: 8, OutputTokens: 4, ToolCalls: 1},
		},
		"completion": {
			"/v1/completions", `{"model":"m","prompt":"a"}`,
			`{"choices":[{"text":"abc","finish_reason":"stop"}],"usage":{"prompt_tokens":8,"completion_tokens":0}}`,
			events.Usage{InputTokens: 8, OutputTokens: 3},
		},
		"response": {
			"/v1/responses", `{"model":"m","input":"a"}`,
			`{"status":"completed","output":[{"type":"message","content":[{"text":"abc"}]}],"usage":{"input_tokens":8,"output_tokens":0}}`,
			events.Usage{InputTokens: 8, OutputTokens: 3},
		},
		"transcription": {
			"/v1/audio/translations", "",
			`{"text":"abc","usage":{"type":"tokens","input_tokens":8,"output_tokens":0}}`,
			events.Usage{InputTokens: 8, OutputTokens: 3, AudioMillis: 1000},
		},
		"images": {
			"/v1/images/generations", picture,
			`{"data":[{"url":"x"},{"url":"y"}],"usage":{"input_tokens":8,"output_tokens":0}}`,
			events.Usage{InputTokens: 8, OutputTokens: 2 * 272, Images: 2},
		},
	} {
		e := endpoint(t, tt.path)
		body, contentType := []byte(tt.request), "application/json"
		if tt.request == "" {
			body, contentType = transcription(t, [][2]string{{"model", "m"}}, wav(1))
		}
		ask, err := e.Read(body, contentType, "")
		if err != nil {
			t.Fatal(name, err)
		}
		got := proxy.Judge(proxy.Ending{
			Phase: proxy.PhaseAnswered, Tally: e.Answer([]byte(tt.answer), "application/json", ask, byteCounter{}), InputTokens: 9, AudioMillis: ask.AudioMillis,
		})
		want := proxy.Charged{Verb: proxy.Settle, Usage: tt.want, Estimated: true}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}

	e := endpoint(t, "/v1/images/generations")
	s := e.Stream(read(t, e, strings.Replace(picture, "{", `{"stream":true,`, 1)), byteCounter{})
	follow(t, s, lines(`{"type":"image_generation.completed","b64_json":"AA","usage":{"input_tokens":8,"output_tokens":0}}`))
	if got := s.Tally(true); got.Delivered.OutputTokens != 272 {
		t.Errorf("a streamed image is free: %+v", got.Delivered)
	}
}

func repeat(s string, n int) string {
	b := make([]byte, 0, len(s)*n)
	for range n {
		b = append(b, s...)
	}
	return string(b)
}

func TestAnswersThatAreNoJSON(t *testing.T) {
	got := endpoint(t, "/v1/audio/transcriptions").Answer([]byte("1\n00:00 --> 00:01\nhi"), "text/plain", &proxy.Ask{}, byteCounter{})
	want := proxy.Tally{Content: true, Complete: true, Delivered: events.Usage{OutputTokens: 20}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error("subtitles:", diff)
	}
	got = endpoint(t, "/v1/audio/speech").Answer([]byte("ID3"), "audio/mpeg", &proxy.Ask{}, byteCounter{})
	if diff := cmp.Diff(proxy.Tally{Content: true, Complete: true}, got); diff != "" {
		t.Error("speech:", diff)
	}
	got = endpoint(t, "/v1/audio/speech").Answer([]byte(`{"hello":1}`), "application/json", &proxy.Ask{}, byteCounter{})
	if !got.Garbage || got.Complete {
		t.Errorf("speech that is JSON: %+v", got)
	}
}
