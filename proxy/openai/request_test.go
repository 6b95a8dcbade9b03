package openai_test

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"image"
	"image/png"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"tollgate/proxy"
	"tollgate/proxy/tokens"
)

var onlyFigures = cmpopts.IgnoreFields(proxy.Ask{}, "InputTokens", "Private")

// pngURL is an image of that size as a data URL.
func pngURL(t *testing.T, width, height int) string {
	t.Helper()
	var b bytes.Buffer
	if err := png.Encode(&b, image.NewGray(image.Rect(0, 0, width, height))); err != nil {
		t.Fatal(err)
	}
	return "data:image/png;base64," + base64.StdEncoding.EncodeToString(b.Bytes())
}

// wav is a file of silence, one channel of 16 bits at 16 kHz.
func wav(seconds int) []byte {
	size := seconds * 32000
	b := append([]byte("RIFF"), binary.LittleEndian.AppendUint32(nil, uint32(36+size))...)
	b = append(b, "WAVEfmt \x10\x00\x00\x00\x01\x00\x01\x00"...)
	b = binary.LittleEndian.AppendUint32(b, 16000)
	b = binary.LittleEndian.AppendUint32(b, 32000)
	b = append(b, "\x02\x00\x10\x00data"...)
	b = binary.LittleEndian.AppendUint32(b, uint32(size))
	return append(b, make([]byte, size)...)
}

func TestRead(t *testing.T) {
	for _, tt := range []struct {
		name, path, body string
		want             proxy.Ask
		input            int64 // a token a byte
	}{
		{
			"chat", "/v1/chat/completions",
			`{"model":"m","messages":[{"role":"system","content":"ab"},{"role":"user","name":"Jo","content":"c\u00e9\n"}]}`,
			proxy.Ask{Model: "m", MaxOutputTokens: -1, Choices: 1},
			3 + (3 + 1 + 2) + (3 + 1 + 1 + 2 + 4),
		},
		{
			"chat, streamed, with everything", "/v1/chat/completions",
			`{"stream":true,"stream_options":{"include_usage":true},"n":3,"max_tokens":10,"max_completion_tokens":20,"model":"m\u002d1","messages":[{"role":"user","content":"a"}],"tools":[{}],"response_format":{"type":"json_schema","json_schema":{}}}`,
			proxy.Ask{Model: "m-1", Stream: true, UsageAsked: true, MaxOutputTokens: 20, Choices: 3},
			3 + 3 + 1 + 1 + int64(len(`[{}]`)+len(`{"type":"json_schema","json_schema":{}}`)),
		},
		{
			"chat, nulls are nothing", "/v1/chat/completions",
			`{"model":"m","messages":[],"stream":null,"stream_options":null,"n":null,"max_tokens":null,"response_format":{"type":"text"},"tools":null}`,
			proxy.Ask{Model: "m", MaxOutputTokens: -1, Choices: 1},
			3,
		},
		{
			"chat, caps and choices by other names", "/v1/chat/completions",
			`{"model":"m","messages":[],"max_tokens":5,"n_predict":900,"n":2,"best_of":4}`,
			proxy.Ask{Model: "m", MaxOutputTokens: 900, Choices: 4},
			3,
		},
		{
			"chat, caps that say that there is none", "/v1/chat/completions",
			`{"model":"m","messages":[],"max_tokens":-1,"max_completion_tokens":-1,"n_predict":-1}`,
			proxy.Ask{Model: "m", MaxOutputTokens: -1, Choices: 1},
			3,
		},
		{
			"chat, a cap beside one that says that there is none", "/v1/chat/completions",
			`{"model":"m","messages":[],"max_tokens":-1,"max_completion_tokens":20}`,
			proxy.Ask{Model: "m", MaxOutputTokens: 20, Choices: 1},
			3,
		},
		{
			"chat, tool calls and their results", "/v1/chat/completions",
			`{"model":"m","messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"call_1","type":"function","function":{"name":"fn","arguments":"{}"}}]},{"role":"tool","tool_call_id":"call_1","content":"ok"}]}`,
			proxy.Ask{Model: "m", MaxOutputTokens: -1, Choices: 1},
			3 + (3 + 1 + 1 + 2 + 2) + (3 + 1 + 2),
		},
		{
			"chat, what is unknown counts as it is", "/v1/chat/completions",
			`{"model":"m","messages":[{"role":"user","content":[{"type":"new","stuff":{"a":1}}],"extra":"xyz"},"odd"]}`,
			proxy.Ask{Model: "m", MaxOutputTokens: -1, Choices: 1},
			3 + (3 + 1 + int64(len(`{"a":1}`)) + 3) + (3 + 3),
		},
		{
			"chat, what is too deep counts as it is", "/v1/chat/completions",
			`{"model":"m","messages":[{"role":"user","content":` + repeat(`{"content":`, 100) + `"abc"` + repeat(`}`, 100) + `}]}`,
			proxy.Ask{Model: "m", MaxOutputTokens: -1, Choices: 1},
			3 + 3 + 1 + 5 + 92*int64(len(`{"content":}`)),
		},
		{
			"chat, hiding text in what should be short", "/v1/chat/completions",
			`{"model":"m","messages":[{"role":"user","id":"` + strings.Repeat("x", 100) + `"}]}`,
			proxy.Ask{Model: "m", MaxOutputTokens: -1, Choices: 1},
			3 + 3 + 1 + 102,
		},
		{
			"chat, an image at low detail, one of unknown size", "/v1/chat/completions",
			`{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"https://x.example/a.png","detail":"low"}},{"type":"image_url","image_url":{"url":"https://x.example/a.png"}}]}]}`,
			proxy.Ask{Model: "m", MaxOutputTokens: -1, Choices: 1},
			3 + 3 + 1 + 85 + (85 + 8*170),
		},
		{
			"chat, images of known sizes", "/v1/chat/completions",
			`{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"` + pngURL(t, 1024, 1024) + `"}},{"type":"image_url","image_url":{"url":"` + pngURL(t, 200, 513) + `","detail":"high"}}]}]}`,
			proxy.Ask{Model: "m", MaxOutputTokens: -1, Choices: 1},
			3 + 3 + 1 + (85 + 4*170) + (85 + 2*170),
		},
		{
			"chat, an image in WebP", "/v1/chat/completions",
			`{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/webp;base64,` + base64.StdEncoding.EncodeToString([]byte("RIFF\x00\x00\x00\x00WEBPVP8X\x00\x00\x00\x00\x00\x00\x00\x00\xff\x03\x00\xff\x01\x00")) + `"}}]}]}`,
			proxy.Ask{Model: "m", MaxOutputTokens: -1, Choices: 1},
			3 + 3 + 1 + (85 + 2*170), // 1024 × 512
		},
		{
			"chat, two seconds of audio and a file", "/v1/chat/completions",
			`{"model":"m","messages":[{"role":"user","content":[{"type":"input_audio","input_audio":{"format":"wav","data":"` + base64.StdEncoding.EncodeToString(wav(2)) + `"}},{"type":"file","file":{"file_id":"file-1"}},{"type":"file","file":{"file_data":"data:text/plain;base64,` + strings.Repeat("YWFh", 4) + `"}}]}]}`,
			proxy.Ask{Model: "m", MaxOutputTokens: -1, Choices: 1},
			3 + 3 + 1 + 20 + 8*1700 + 3,
		},
		{
			"completion", "/v1/completions", `{"model":"m","prompt":["ab","c"],"n":2,"best_of":3,"max_tokens":0,"suffix":"z"}`,
			proxy.Ask{Model: "m", MaxOutputTokens: 0, Choices: 6},
			4,
		},
		{
			"completion of tokens", "/v1/completions", `{"model":"m","prompt":[[1,2,3],[4]],"stream":true}`,
			proxy.Ask{Model: "m", Stream: true, MaxOutputTokens: -1, Choices: 2},
			4,
		},
		{
			"response", "/v1/responses", `{"model":"m","input":"abc","instructions":"de","stream":true,"max_output_tokens":9,"tools":[{"type":"x"}]}`,
			proxy.Ask{Model: "m", Stream: true, UsageAsked: true, MaxOutputTokens: 9, Choices: 1},
			3 + (4 + 3) + (4 + 2) + int64(len(`[{"type":"x"}]`)),
		},
		{
			"response to items", "/v1/responses",
			`{"model":"m","input":[{"role":"user","content":[{"type":"input_text","text":"abc"},{"type":"input_image","image_url":"https://x.example","detail":"low"}]},{"type":"function_call_output","call_id":"c","output":"out"},{"type":"function_call","call_id":"c","name":"fn","arguments":"{}"}],"text":{"format":{"type":"json_schema","schema":{}}},"previous_response_id":"resp_1"}`,
			proxy.Ask{Model: "m", UsageAsked: true, MaxOutputTokens: -1, Choices: 1},
			3 + (3 + 1 + 3 + 85) + (3 + 3) + (3 + 1 + 2 + 2) + int64(len(`{"type":"json_schema","schema":{}}`)),
		},
		{"embedding", "/v1/embeddings", `{"model":"m","input":["ab","cd"]}`, proxy.Ask{Model: "m", Choices: 1}, 4},
		{"embedding of tokens", "/v1/embeddings", `{"model":"m","input":[1,2,3]}`, proxy.Ask{Model: "m", Choices: 1}, 3},
		{
			"images", "/v1/images/generations", `{"model":"m","prompt":"cat","n":2,"size":"1024x1024","quality":"low","partial_images":1,"stream":true}`,
			proxy.Ask{Model: "m", Stream: true, UsageAsked: true, MaxOutputTokens: -1, Choices: 2, Images: 2},
			3,
		},
		{
			"images at low quality", "/v1/images/generations", `{"model":"m","prompt":"cat","n":2,"size":"1024x1024","quality":"low"}`,
			proxy.Ask{Model: "m", UsageAsked: true, MaxOutputTokens: 272, Choices: 2, Images: 2},
			3,
		},
		{
			"one image", "/v1/images/generations", `{"model":"m","prompt":"cat"}`,
			proxy.Ask{Model: "m", UsageAsked: true, MaxOutputTokens: 6240, Choices: 1, Images: 1},
			3,
		},
		{
			"speech", "/v1/audio/speech", `{"model":"m","input":"fifteen letters","voice":"v","instructions":"slow"}`,
			proxy.Ask{Model: "m", UsageAsked: true, Choices: 1, AudioMillis: 1000, Binary: true},
			19,
		},
		{
			"streamed speech", "/v1/audio/speech", `{"model":"m","input":"fifteen letters","voice":"v","stream_format":"sse"}`,
			proxy.Ask{Model: "m", Stream: true, UsageAsked: true, Choices: 1, AudioMillis: 1000, MaxOutputTokens: -1},
			15,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ask := read(t, endpoint(t, tt.path), tt.body)
			if diff := cmp.Diff(&tt.want, ask, onlyFigures); diff != "" {
				t.Error(diff)
			}
			if got := ask.InputTokens(byteCounter{}); got != tt.input {
				t.Errorf("%d input tokens, want %d", got, tt.input)
			}
		})
	}
}

func TestReadRefuses(t *testing.T) {
	chat, compl, resp, embed := "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings"
	image, speech, transcribe := "/v1/images/generations", "/v1/audio/speech", "/v1/audio/transcriptions"
	for _, tt := range []struct{ path, body, field string }{
		{chat, ``, ""},
		{chat, `[]`, ""},
		{compl, ` { } `, ""},
		{chat, `{"model":"m","messages":[]} {}`, ""},
		{chat, `{"model":"m","messages":[` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + `]}`, ""},
		{chat, strings.Repeat(`{"a":`, 1<<20), ""},
		{chat, `{"messages":[]}`, "model"},
		{chat, `{"model":"","messages":[]}`, "model"},
		{chat, `{"model":7,"messages":[]}`, "model"},
		{chat, `{"model":"` + strings.Repeat("m", 300) + `","messages":[]}`, "model"},
		{chat, `{"model":"m"}`, "messages"},
		{chat, `{"model":"m","messages":"hi"}`, "messages"},
		{chat, `{"model":"m","messages":[],"stream":"true"}`, "stream"},
		{chat, `{"model":"m","messages":[],"stream":1}`, "stream"},
		{chat, `{"model":"m","messages":[],"stream_options":[]}`, "stream_options"},
		{chat, `{"model":"m","messages":[],"stream_options":{"include_usage":1}}`, "stream_options.include_usage"},
		{chat, `{"model":"m","messages":[],"stream_options":{"include_usage":false,"include_usage":true}}`, "stream_options.include_usage"},
		{chat, `{"model":"m","messages":[],"stream_options":{"Include_usage":false}}`, "stream_options.include_usage"},
		{chat, `{"model":"m","messages":[],"n":0}`, "n"},
		{chat, `{"model":"m","messages":[],"n":1.0}`, "n"},
		{chat, `{"model":"m","messages":[],"n":"1"}`, "n"},
		{chat, `{"model":"m","messages":[],"n":100000}`, "n"},
		{chat, `{"model":"m","messages":[],"max_tokens":-2}`, "max_tokens"},
		{chat, `{"model":"m","messages":[],"n_predict":-1.0}`, "n_predict"},
		{chat, `{"model":"m","messages":[],"max_completion_tokens":"-1"}`, "max_completion_tokens"},
		{chat, `{"model":"m","messages":[],"n":-1}`, "n"},
		{compl, `{"model":"m","prompt":"a","max_tokens":-10}`, "max_tokens"},
		{chat, `{"model":"m","messages":[],"max_tokens":0}`, "max_tokens"},
		{chat, `{"model":"m","messages":[],"max_completion_tokens":1e3}`, "max_completion_tokens"},
		{chat, `{"model":"m","messages":[],"max_completion_tokens":9007199254740993}`, "max_completion_tokens"},
		{chat, `{"model":"m","model":"m","messages":[]}`, "model"},
		{chat, `{"model":"m","mod\u0065l":"m","messages":[]}`, "model"},
		{chat, `{"Model":"m","messages":[]}`, "model"},
		{chat, `{"model":"m","messages":[],"Messages":[]}`, "messages"},
		{chat, `{"model":"m","messages":[],"Max_Tokens":9}`, "max_tokens"},
		{chat, `{"model":"m","messages":[],"ſtream":true}`, "stream"},
		{compl, `{"model":"m","prompt":[1,"a"]}`, "prompt"},
		{compl, `{"model":"m","prompt":[[1,"a"]]}`, "prompt"},
		{compl, `{"model":"m","prompt":{}}`, "prompt"},
		{compl, `{"model":"m","prompt":["` + strings.Repeat(`a","`, 3000) + `"]}`, "prompt"},
		{compl, `{"model":"m","prompt":"a","best_of":5000}`, "best_of"},
		{resp, `{"model":"m","input":{}}`, "input"},
		{resp, `{"model":"m","input":"a","background":true}`, "background"},
		{resp, `{"model":"m","input":"a","max_output_tokens":0}`, "max_output_tokens"},
		{embed, `{"model":"m"}`, "input"},
		{embed, `{"model":"m","input":[]}`, "input"},
		{embed, `{"model":"m","input":[true]}`, "input"},
		{image, `{"model":"m"}`, "prompt"},
		{image, `{"model":"m","prompt":"a","n":-1}`, "n"},
		{image, `{"model":"m","prompt":"a","size":1024}`, "size"},
		{speech, `{"model":"m"}`, "input"},
		{speech, `{"model":"m","input":"a","stream_format":1}`, "stream_format"},
		{transcribe, `{"model":"m"}`, ""},
	} {
		_, err := endpoint(t, tt.path).Read([]byte(tt.body), "application/json", "")
		var bad *proxy.BadRequest
		if !errors.As(err, &bad) || bad.Field != tt.field || bad.Status != 0 {
			t.Errorf("%s %.80s: %v, want a bad request of %q", tt.path, tt.body, err, tt.field)
		}
	}
}

func TestUpstream(t *testing.T) {
	chat := "/v1/chat/completions"
	for _, tt := range []struct {
		name, path, model, body string
		change                  proxy.Change
		want                    string
	}{
		{"nothing", chat, "", `{"model":"m","messages":[]}`, proxy.Change{Model: "m", AskUsage: true}, `{"model":"m","messages":[]}`},
		{"an alias", chat, "", ` { "model" : "m" , "x":1.50, "messages":[] } `, proxy.Change{Model: `up"`}, ` { "model" : "up\"" , "x":1.50, "messages":[] } `},
		{"escapes that mean the same", chat, "", `{"model":"\u006d","messages":[]}`, proxy.Change{Model: "m"}, `{"model":"\u006d","messages":[]}`},
		{"a model of the path", chat, "m", `{"messages":[]}`, proxy.Change{Model: "up"}, `{"model":"up","messages":[]}`},
		{"the path's counts", chat, "m", `{"model":"gpt","messages":[]}`, proxy.Change{Model: "up"}, `{"model":"up","messages":[]}`},
		{"usage asked", chat, "", `{"model":"m","stream":true,"messages":[]}`, proxy.Change{AskUsage: true}, `{"stream_options":{"include_usage":true},"model":"m","stream":true,"messages":[]}`},
		{"usage asked of no stream", chat, "", `{"model":"m","messages":[]}`, proxy.Change{AskUsage: true}, `{"model":"m","messages":[]}`},
		{"usage instead of null", chat, "", `{"stream_options":null,"model":"m","stream":true,"messages":[]}`, proxy.Change{AskUsage: true}, `{"stream_options":{"include_usage":true},"model":"m","stream":true,"messages":[]}`},
		{"usage beside other options", chat, "", `{"stream_options":{"x":1},"model":"m","stream":true,"messages":[]}`, proxy.Change{AskUsage: true}, `{"stream_options":{"include_usage":true,"x":1},"model":"m","stream":true,"messages":[]}`},
		{"usage in no options", chat, "", `{"stream_options":{ },"model":"m","stream":true,"messages":[]}`, proxy.Change{AskUsage: true}, `{"stream_options":{"include_usage":true },"model":"m","stream":true,"messages":[]}`},
		{"usage that was declined", chat, "", `{"stream_options":{"x":1,"include_usage": false},"model":"m","stream":true,"messages":[]}`, proxy.Change{AskUsage: true}, `{"stream_options":{"x":1,"include_usage": true},"model":"m","stream":true,"messages":[]}`},
		{"a cap", chat, "", `{"model":"m","messages":[]}`, proxy.Change{OutputCap: 7}, `{"max_completion_tokens":7,"model":"m","messages":[]}`},
		{"a cap instead of null", chat, "", `{"model":"m","max_completion_tokens":null,"messages":[]}`, proxy.Change{OutputCap: 7}, `{"model":"m","max_completion_tokens":7,"messages":[]}`},
		{"a cap by another name", chat, "", `{"model":"m","max_tokens":null,"messages":[]}`, proxy.Change{OutputCap: 7, OutputCapField: "max_tokens"}, `{"model":"m","max_tokens":7,"messages":[]}`},
		{"no cap where one is given", chat, "", `{"model":"m","max_tokens":5,"messages":[]}`, proxy.Change{OutputCap: 7}, `{"model":"m","max_tokens":5,"messages":[]}`},
		{"a cap instead of none", chat, "", `{"model":"m","max_tokens":-1,"messages":[]}`, proxy.Change{OutputCap: 7}, `{"model":"m","max_tokens":7,"messages":[]}`},
		{"a cap instead of none, where its name is known", chat, "", `{"model":"m","max_tokens":-1,"messages":[]}`, proxy.Change{OutputCap: 7, OutputCapField: "max_tokens"}, `{"model":"m","max_tokens":7,"messages":[]}`},
		{"a cap instead of none, where another name is known", chat, "", `{"max_completion_tokens":-1,"model":"m","messages":[]}`, proxy.Change{OutputCap: 7, OutputCapField: "max_tokens"}, `{"max_tokens":7,"max_completion_tokens":7,"model":"m","messages":[]}`},
		{"a cap instead of none by a name that few know", chat, "", `{"model":"m","n_predict":-1,"messages":[]}`, proxy.Change{OutputCap: 7}, `{"max_completion_tokens":7,"model":"m","n_predict":7,"messages":[]}`},
		{"none, where no cap is told", chat, "", `{"model":"m","max_tokens":-1,"messages":[]}`, proxy.Change{Model: "m"}, `{"model":"m","max_tokens":-1,"messages":[]}`},
		{"none, for an upstream that takes none", chat, "", `{"model":"m","max_tokens":-1,"messages":[]}`, proxy.Change{OutputCap: 7, OutputCapField: "none"}, `{"model":"m","max_tokens":-1,"messages":[]}`},
		{"none beside one", chat, "", `{"model":"m","max_tokens":-1,"max_completion_tokens":5,"messages":[]}`, proxy.Change{OutputCap: 7}, `{"model":"m","max_tokens":5,"max_completion_tokens":5,"messages":[]}`},
		{"none by a name that few know beside one", chat, "", `{"model":"m","n_predict":-1,"max_tokens":5,"messages":[]}`, proxy.Change{OutputCap: 7}, `{"model":"m","n_predict":5,"max_tokens":5,"messages":[]}`},
		{"none beside a completion's cap of 0", "/v1/completions", "", `{"model":"m","prompt":"a","n_predict":-1,"max_tokens":0}`, proxy.Change{}, `{"model":"m","prompt":"a","n_predict":0,"max_tokens":0}`},
		{"a completion's cap instead of none", "/v1/completions", "", `{"model":"m","prompt":"a","max_tokens":-1}`, proxy.Change{OutputCap: 7}, `{"model":"m","prompt":"a","max_tokens":7}`},
		{"a response's cap instead of none", "/v1/responses", "", `{"model":"m","input":"a","max_output_tokens":-1}`, proxy.Change{OutputCap: 7}, `{"model":"m","input":"a","max_output_tokens":7}`},
		{"no cap for an upstream that takes none", chat, "", `{"model":"m","messages":[]}`, proxy.Change{OutputCap: 7, OutputCapField: "none"}, `{"model":"m","messages":[]}`},
		{"no cap by a name that means something else", chat, "", `{"model":"m","messages":[]}`, proxy.Change{Model: "up", OutputCap: 7, OutputCapField: "model"}, `{"model":"up","messages":[]}`},
		{"a completion's cap", "/v1/completions", "", `{"model":"m","prompt":"a"}`, proxy.Change{OutputCap: 7}, `{"max_tokens":7,"model":"m","prompt":"a"}`},
		{"a response's cap", "/v1/responses", "", `{"model":"m","input":"a","stream":true}`, proxy.Change{OutputCap: 7, AskUsage: true}, `{"max_output_tokens":7,"model":"m","input":"a","stream":true}`},
		{"no cap of an embedding", "/v1/embeddings", "", `{"model":"m","input":"a"}`, proxy.Change{OutputCap: 7}, `{"model":"m","input":"a"}`},
		{"no cap of speech", "/v1/audio/speech", "", `{"model":"m","input":"a"}`, proxy.Change{Model: "up", OutputCap: 7}, `{"model":"up","input":"a"}`},
		{"all at once", chat, "", `{"messages":[],"stream":true,"model":"m"}`, proxy.Change{Model: "up", OutputCap: 7, AskUsage: true}, `{"stream_options":{"include_usage":true},"max_completion_tokens":7,"messages":[],"stream":true,"model":"up"}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e, body := endpoint(t, tt.path), []byte(tt.body)
			ask, err := e.Read(body, "application/json", tt.model)
			if err != nil {
				t.Fatal(err)
			}
			got, contentType, err := e.Upstream(body, ask, tt.change)
			if err != nil || contentType != "application/json" || string(got) != tt.want {
				t.Errorf("%s %v\ngot  %s\nwant %s", contentType, err, got, tt.want)
			}
			if string(body) != tt.body {
				t.Error("the client's body was changed")
			}
			if tt.body == tt.want && &got[0] != &body[0] {
				t.Error("copied, though nothing changes")
			}
		})
	}
}

// Whatever else stands in a request, and however it is written, passes byte for
// byte.
func TestUpstreamKeepsAllOtherBytes(t *testing.T) {
	e := endpoint(t, "/v1/chat/completions")
	rapid.Check(t, func(t *rapid.T) {
		space := rapid.StringMatching(`[ \t\r\n]{0,2}`)
		junk := rapid.SampledFrom([]string{
			`"x":"é\u00e9\ud83d\n"`, `"y" : -1.50E+3`, `"models":[1 , {"model":"inner","stream":false}]`, `"x":{"stream_options":null}`,
			`"":null`, `"z":12345678901234567890123`, `"temperature":0.0`, `"user":"\"model\":"`,
		})
		some := func() string {
			var b strings.Builder
			for range rapid.IntRange(0, 3).Draw(t, "n") {
				b.WriteString(space.Draw(t, "s") + junk.Draw(t, "junk") + space.Draw(t, "s") + ",")
			}
			return b.String()
		}
		a, b, c, d := some(), some(), some(), some()
		build := func(first, model, options string) string {
			return "{" + first + a + `"model":` + model + "," + b + `"stream" : true,` + c + options + d + `"messages":[ ]}`
		}
		options, wantOptions, first := "", "", `"stream_options":{"include_usage":true},`
		if rapid.Bool().Draw(t, "options") {
			options, wantOptions, first = `"stream_options":{"include_obfuscation":true},`, `"stream_options":{"include_usage":true,"include_obfuscation":true},`, ""
		}
		body := []byte(build("", `"alias"`, options))
		ask, err := e.Read(body, "", "")
		if err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		got, _, err := e.Upstream(body, ask, proxy.Change{Model: "up", AskUsage: true})
		if want := build(first, `"up"`, wantOptions); err != nil || string(got) != want {
			t.Fatalf("%v\ngot  %s\nwant %s", err, got, want)
		}
	})
}

// With a real tokenizer: 3 a message, its role, its text, and 3 for the answer's
// beginning.
func TestInputTokensOfAnEncoding(t *testing.T) {
	ask := read(t, endpoint(t, "/v1/chat/completions"), `{"model":"m","messages":[{"role":"user","content":"hello world"}]}`)
	for _, name := range []string{tokens.Cl100kBase, tokens.O200kBase} {
		counter, ok := tokens.For(name)
		if !ok {
			t.Fatal(name)
		}
		if got := ask.InputTokens(counter); got != 3+1+2+3 {
			t.Errorf("%s: %d tokens", name, got)
		}
	}
}
