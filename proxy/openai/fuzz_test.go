package openai_test

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"tollgate/proxy"
	"tollgate/proxy/sse"
)

var posts = []string{
	"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings", "/v1/images/generations",
	"/v1/images/edits", "/v1/audio/speech", "/v1/audio/transcriptions", "/openai/v1/chat/completions",
}

// changed is what the front door may change at the top of a body.
var changed = map[string]bool{
	"model": true, "stream_options": true, "max_completion_tokens": true, "max_tokens": true, "max_output_tokens": true, "n_predict": true,
}

func FuzzRequest(f *testing.F) {
	for _, seed := range []string{
		`{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true,"stream_options":{"include_usage":false}}`,
		`{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBORw0KGgo=","detail":"high"}},{"type":"input_audio","input_audio":{"data":"UklGRg==","format":"wav"}},{"type":"file","file":{"file_data":"x,y"}}]}],"tools":[{}],"n":2}`,
		`{"model":"m","prompt":[[1,2],[3]],"max_tokens":null,"echo":true}`,
		`{"model":"m","input":[{"role":"user","content":[{"type":"input_text","text":"a"}]}],"instructions":"x","text":{"format":{"schema":{}}},"stream":true}`,
		`{"model":"m","prompt":"cat","n":2,"size":"99999x1","quality":"low","partial_images":3}`,
		`{"model":"m","input":"a","stream_format":"sse"}`,
		`{"model":"m","messages":[],"prompt":"a","input":"a","max_tokens":-1,"n_predict":-1,"max_completion_tokens":5,"max_output_tokens":-1}`,
		`{}`, `{"":{}}`, "{\"model\":\"\xff\",\"messages\":[]}",
		"--B\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\nRIFF\r\n--B--\r\n",
	} {
		for i := range posts {
			f.Add(byte(i), []byte(seed), "")
		}
	}
	f.Fuzz(func(t *testing.T, at byte, body []byte, model string) {
		e := endpoint(t, posts[int(at)%len(posts)])
		for _, contentType := range []string{"application/json", "multipart/form-data; boundary=B"} {
			kept := bytes.Clone(body)
			ask, err := e.Read(body, contentType, model)
			if err != nil {
				continue
			}
			if n := ask.InputTokens(byteCounter{}); n < 0 || ask.Choices < 1 || ask.MaxOutputTokens < -1 || ask.AudioMillis < 0 {
				t.Fatalf("%d input tokens, %+v", n, ask)
			}
			got, gotType, err := e.Upstream(body, ask, proxy.Change{Model: "up", OutputCap: 9, AskUsage: true})
			if err != nil || !bytes.Equal(kept, body) {
				t.Fatalf("%v, or the client's body was changed", err)
			}
			again, err := e.Read(got, gotType, "")
			if err != nil || again.Model != "up" || again.Stream != ask.Stream || again.Images != ask.Images {
				t.Fatalf("what goes upstream is refused or reads differently: %v\n%s\n%s", err, body, got)
			}
			if gotType != "application/json" {
				continue
			}
			if ask.Stream && strings.HasSuffix(e.Name(), "completions") && !again.UsageAsked {
				t.Fatalf("usage is not asked for: %s", got)
			}
			if before, after := members(body), members(got); before != after {
				t.Fatalf("more was changed than may be:\n%s\n%s", before, after)
			}
		}
	})
}

// members is what stands at the top of a body, but for what may be changed.
func members(body []byte) string {
	var b strings.Builder
	gjson.ParseBytes(body).ForEach(func(key, value gjson.Result) bool {
		if !changed[key.Str] {
			b.WriteString(key.Raw + ":" + value.Raw + "\n")
		}
		return true
	})
	return b.String()
}

func FuzzAnswer(f *testing.F) {
	for _, seed := range []string{
		`{"choices":[{"message":{"content":"a","tool_calls":[{"function":{"name":"f"}}],"audio":{"data":"AA"}},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":9,"completion_tokens_details":{"reasoning_tokens":6}}}`,
		`{"status":"completed","output":[{"type":"message","content":[{"text":"a"}]}],"usage":{"input_tokens":1,"output_tokens":2}}`,
		`{"data":[{}],"usage":{"prompt_tokens":1,"total_tokens":1}}`,
		`{"text":"a","duration":"1.5","usage":{"type":"duration","seconds":1.0005}}`,
		`{"usage":{"prompt_tokens":-1}}`, `{"error":{}}`, `[`, ``,
	} {
		for i := range posts {
			f.Add(byte(i), []byte(seed))
		}
	}
	f.Fuzz(func(t *testing.T, at byte, body []byte) {
		e := endpoint(t, posts[int(at)%len(posts)])
		for _, contentType := range []string{"application/json", "text/plain"} {
			sane(t, e.Answer(body, contentType, &proxy.Ask{Choices: 1}, byteCounter{}))
		}
	})
}

func sane(t *testing.T, tally proxy.Tally) {
	t.Helper()
	if u := tally.Usage; u != nil {
		if u.InputTokens < 0 || u.OutputTokens < 0 || u.CachedInputTokens < 0 || u.CachedInputTokens > u.InputTokens ||
			u.ReasoningTokens < 0 || u.ReasoningTokens > u.OutputTokens || u.AudioMillis < 0 || u.GPUMillis < 0 {
			t.Fatalf("usage %+v", *u)
		}
	}
	d := &tally.Delivered
	if d.OutputTokens < 0 || d.ReasoningTokens < 0 || d.ReasoningTokens > d.OutputTokens || d.ToolCalls < 0 || d.Images < 0 {
		t.Fatalf("delivered %+v", *d)
	}
	if d.OutputTokens > 0 && !tally.Content && !tally.Complete {
		t.Fatalf("tokens of no content: %+v", tally)
	}
}

// A stream means the same however it is cut, and its end is in order wherever it
// is ended.
func FuzzStream(f *testing.F) {
	for i, stream := range []string{
		lines(chunk(0, `{"content":"a\ud83d\ude00"}`, "null"), chunk(1, `{"tool_calls":[{"index":0,"function":{"name":"f","arguments":"{}"}}]}`, "stop"), usageChunk(1, 2), "[DONE]"),
		typedEvents(responseEvents...),
		lines(`{"type":"transcript.text.delta","delta":"ab"}`, `{"type":"speech.audio.delta","audio":"AA"}`),
		"event: error\r\ndata: {\"error\":{\r\ndata: }}\r\n\r\n: x\n\ndata\n\n",
	} {
		for at := range posts {
			f.Add(byte(at), []byte(stream), uint64(i))
		}
	}
	f.Fuzz(func(t *testing.T, at byte, stream []byte, seed uint64) {
		e := endpoint(t, posts[int(at)%len(posts)])
		ask := &proxy.Ask{Model: "m", Choices: 2, Stream: true, UsageAsked: seed%2 == 0}
		whole, wholeOut := e.Stream(ask, byteCounter{}), ""
		wholeOut = follow(t, whole, string(stream))
		want := whole.Tally(true)
		sane(t, want)

		cut, p, out := e.Stream(ask, byteCounter{}), sse.New(0), ""
		each := func(ev sse.Event) error {
			if cut.Event(ev) == proxy.Forward {
				out += string(ev.Raw)
			}
			return nil
		}
		random := rand.New(rand.NewPCG(seed, 1))
		for rest := stream; len(rest) > 0; {
			n := 1 + random.IntN(min(len(rest), 40))
			if err := p.Feed(bytes.Clone(rest[:n]), each); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		if err := p.End(each); err != nil {
			t.Fatal(err)
		}
		got := cut.Tally(true)
		sane(t, got)
		if out != wholeOut {
			t.Fatalf("cut, the client gets\n%s\nwhole\n%s", out, wholeOut)
		}
		if got.Delivered != want.Delivered || got.Complete != want.Complete || got.Garbage != want.Garbage || got.Failed != want.Failed || (got.Usage == nil) != (want.Usage == nil) {
			t.Fatalf("cut   %+v\nwhole %+v", got, want)
		}
		for _, reason := range []string{"output_cap", "shutdown"} {
			s := e.Stream(ask, byteCounter{})
			follow(t, s, string(stream))
			end, q := s.Finish(proxy.End{Reason: reason, Detail: "why"}), sse.New(0)
			if err := q.Feed(end, func(ev sse.Event) error {
				if !gjson.ValidBytes(ev.Data) && string(ev.Data) != "[DONE]" {
					t.Fatalf("the end is no JSON: %s", ev.Data)
				}
				return nil
			}); err != nil || q.Pending() {
				t.Fatalf("the end is not whole: %v %s", err, end)
			}
		}
	})
}
