package openai_test

import (
	"testing"

	"tollgate/proxy"
	"tollgate/proxy/sse"
)

const smallChat = `{"model":"alias","messages":[{"role":"system","content":"You are a helpful assistant."},{"role":"user","content":"What is the capital of France? Answer in one word."}],"temperature":0.2,"max_tokens":64,"stream":true}`

// BenchmarkRequest is what a small chat request costs but for its tokens.
func BenchmarkRequest(b *testing.B) {
	e, body := endpoint(b, "/v1/chat/completions"), []byte(smallChat)
	b.ReportAllocs()
	for b.Loop() {
		ask, err := e.Read(body, "application/json", "")
		if err != nil {
			b.Fatal(err)
		}
		ask.InputTokens(byteCounter{})
		if _, _, err = e.Upstream(body, ask, proxy.Change{Model: "upstream", AskUsage: true}); err != nil {
			b.Fatal(err)
		}
	}
}

func benchmarkEvent(b *testing.B, path, request, data string) {
	e := endpoint(b, path)
	s := e.Stream(read(b, e, request), byteCounter{})
	ev := sse.Event{Raw: []byte("data: " + data + "\n\n"), Data: []byte(data), HasData: true}
	b.ReportAllocs()
	for b.Loop() {
		s.Event(ev)
	}
}

func BenchmarkChatEvent(b *testing.B) {
	benchmarkEvent(b, "/v1/chat/completions", plainChat, chunk(0, `{"content":" word"}`, "null"))
}

func BenchmarkResponseEvent(b *testing.B) {
	benchmarkEvent(b, "/v1/responses", `{"model":"m","input":"a","stream":true}`,
		`{"type":"response.output_text.delta","item_id":"msg_68a1b2c3d4e5f60718293a4b5c6d7e8f","output_index":0,"content_index":0,"delta":" word","logprobs":[],"obfuscation":"abcdefgh","sequence_number":42}`)
}

func BenchmarkAnswer(b *testing.B) {
	e := endpoint(b, "/v1/chat/completions")
	body := []byte(`{"id":"chatcmpl-1","object":"chat.completion","created":1700000000,"model":"m-1","choices":[{"index":0,"message":{"role":"assistant","content":"Paris","refusal":null,"annotations":[]},"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":31,"completion_tokens":1,"total_tokens":32,"prompt_tokens_details":{"cached_tokens":0,"audio_tokens":0},"completion_tokens_details":{"reasoning_tokens":0,"audio_tokens":0}},"service_tier":"default"}`)
	b.ReportAllocs()
	for b.Loop() {
		e.Answer(body, "application/json", &proxy.Ask{Choices: 1}, byteCounter{})
	}
}

// A chunk with text costs no memory of its own.
func TestEventsAllocateNothing(t *testing.T) {
	s := chatStream(t, plainChat)
	data := chunk(0, `{"content":" word\n"}`, "null")
	ev := sse.Event{Raw: []byte("data: " + data + "\n\n"), Data: []byte(data), HasData: true}
	for range 2000 { // until what is kept has grown to its bound
		s.Event(ev)
	}
	if n := testing.AllocsPerRun(1000, func() { s.Event(ev) }); n != 0 {
		t.Errorf("%v allocations a chunk", n)
	}
}
