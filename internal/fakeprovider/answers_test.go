package fakeprovider

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"image/png"
	"math"
	"mime/multipart"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tidwall/gjson"
)

// A dialect's chat, for tests that hold for all.
type chatCase struct {
	name, path     string
	body           string // %s is the prompt; streams are asked for by streamed
	streamed       string
	text, delta    string // where the text is, plain and in events
	input, output  string // usage, plain
	lastInput      string // usage in events; the last that has it
	lastOutput     string
	capField       string
	finish, length string
	finishPath     string
}

var chats = []chatCase{
	{
		name: "chat", path: "/v1/chat/completions",
		body:     `{"model":"m","messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"%s"}]CAP}`,
		streamed: `{"stream":true,"stream_options":{"include_usage":true},"messages":[{"content":"Be brief.","role":"system"},{"role":"user","content":[{"type":"text","text":"%s"}]}],"model":"\u006d"CAP}`,
		text:     "choices.0.message.content", delta: "choices.0.delta.content",
		input: "usage.prompt_tokens", output: "usage.completion_tokens",
		lastInput: "usage.prompt_tokens", lastOutput: "usage.completion_tokens", capField: "max_tokens",
		finishPath: "choices.0.finish_reason", finish: "stop", length: "length",
	},
	{
		name: "responses", path: "/v1/responses",
		body:     `{"model":"m","instructions":"Be brief.","input":"%s"CAP}`,
		streamed: `{"stream":true,"input":[{"role":"user","content":[{"type":"input_text","text":"%s"}]}],"model":"m","instructions":"Be brief."CAP}`,
		text:     "output.0.content.0.text", delta: "delta",
		input: "usage.input_tokens", output: "usage.output_tokens",
		lastInput: "response.usage.input_tokens", lastOutput: "response.usage.output_tokens", capField: "max_output_tokens",
		finishPath: "status", finish: "completed", length: "incomplete",
	},
	{
		name: "completions", path: "/v1/completions",
		body:     `{"model":"m","prompt":"%s"CAP}`,
		streamed: `{"model":"m","prompt":["%s"],"stream":true,"stream_options":{"include_usage":true}CAP}`,
		text:     "choices.0.text", delta: "choices.0.text",
		input: "usage.prompt_tokens", output: "usage.completion_tokens",
		lastInput: "usage.prompt_tokens", lastOutput: "usage.completion_tokens", capField: "max_tokens",
		finishPath: "choices.0.finish_reason", finish: "stop", length: "length",
	},
	{
		name: "messages", path: "/v1/messages",
		body:     `{"model":"m","max_tokens":1000,"system":"Be brief.","messages":[{"role":"user","content":"%s"}]CAP}`,
		streamed: `{"stream":true,"messages":[{"content":[{"type":"text","text":"%s"}],"role":"user"}],"max_tokens":1000,"system":[{"type":"text","text":"Be brief."}],"model":"m"CAP}`,
		text:     "content.0.text", delta: "delta.text",
		input: "usage.input_tokens", output: "usage.output_tokens",
		lastInput: "usage.input_tokens", lastOutput: "usage.output_tokens", capField: "max_tokens",
		finishPath: "stop_reason", finish: "end_turn", length: "max_tokens",
	},
	{
		name: "gemini", path: "/v1beta/models/m:generateContent",
		body:     `{"systemInstruction":{"parts":[{"text":"Be brief."}]},"contents":[{"role":"user","parts":[{"text":"%s"}]}]CAP}`,
		streamed: `{"contents":[{"parts":[{"text":"%s"}],"role":"user"}],"systemInstruction":{"parts":[{"text":"Be brief."}]}CAP}`,
		text:     "candidates.0.content.parts.0.text", delta: "candidates.0.content.parts.0.text",
		input: "usageMetadata.promptTokenCount", output: "usageMetadata.candidatesTokenCount",
		lastInput: "usageMetadata.promptTokenCount", lastOutput: "usageMetadata.candidatesTokenCount",
		finishPath: "candidates.0.finishReason", finish: "STOP", length: "MAX_TOKENS",
	},
}

func (c chatCase) plain(prompt, limit string) string {
	return strings.Replace(strings.Replace(c.body, "%s", prompt, 1), "CAP", c.cap(limit), 1)
}

func (c chatCase) stream(prompt, limit string) (path, body string) {
	path = strings.Replace(c.path, ":generateContent", ":streamGenerateContent?alt=sse", 1)
	return path, strings.Replace(strings.Replace(c.streamed, "%s", prompt, 1), "CAP", c.cap(limit), 1)
}

func (c chatCase) cap(limit string) string {
	switch {
	case limit == "":
		return ""
	case c.capField == "":
		return `,"generationConfig":{"maxOutputTokens":` + limit + `}`
	}
	return `,"` + c.capField + `":` + limit
}

// The same question gets the same answer whether it streams or not, however it
// is spelled; usage is what the tokenizer counts, in the answer, in the stream
// and in the log.
func TestAnswersFollowFromTheRequest(t *testing.T) {
	t.Parallel()
	for _, c := range chats {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := start(t, Options{Seed: 7})
			const prompt = "Tell me of the sea, [fake:tokens=30] please!"
			input := CountTokens(prompt)
			if c.name != "completions" {
				input += CountTokens("Be brief.")
			}
			first := send(t, s.URL()+c.path, c.plain(prompt, ""))
			again := send(t, s.URL()+c.path, c.plain(prompt, ""), "Authorization", "Bearer other", "X-Request-Id", "other")
			if first.status != http.StatusOK || first.body != again.body {
				t.Fatalf("%d: the same request had two answers:\n%s\n%s", first.status, first.body, again.body)
			}
			text := gjson.Get(first.body, c.text).String()
			if got := CountTokens(text); got != 30 {
				t.Errorf("the text has %d tokens, want 30: %q", got, text)
			}
			if got := gjson.Get(first.body, c.input).Int(); got != input {
				t.Errorf("input is given as %d, want %d", got, input)
			}
			if got := gjson.Get(first.body, c.output).Int(); got != 30 {
				t.Errorf("output is given as %d, want 30", got)
			}
			if got := gjson.Get(first.body, c.finishPath).String(); got != c.finish {
				t.Errorf("it ended with %q, want %q", got, c.finish)
			}
			path, body := c.stream(prompt, "")
			streamed := send(t, s.URL()+path, body)
			if got := joined(streamed.body, c.delta); got != text {
				t.Errorf("streamed text differs:\n%q\n%q\n%s", got, text, streamed.body)
			}
			gotInput, gotOutput := int64(-1), int64(-1)
			for _, data := range events(streamed.body) {
				if v := gjson.Get(data, c.lastInput); v.Exists() {
					gotInput, gotOutput = v.Int(), gjson.Get(data, c.lastOutput).Int()
				}
			}
			if gotInput != input || gotOutput != 30 {
				t.Errorf("the stream's usage is %d and %d, want %d and 30", gotInput, gotOutput, input)
			}
			for n := range 3 {
				r := last(t, s, n+1)
				if r.Input != input || r.Output != 30 || r.End != EndComplete || r.Status != http.StatusOK || r.Model != "m" {
					t.Errorf("logged: %+v", r)
				}
				if want := (input+49)/50 + 60; r.GPUMS != want {
					t.Errorf("GPU time %d ms, want %d", r.GPUMS, want)
				}
			}
			other := start(t, Options{Seed: 8})
			if other := send(t, other.URL()+c.path, c.plain(prompt, "")); gjson.Get(other.body, c.text).String() == text {
				t.Error("another seed gave the same text")
			}
		})
	}
}

// A cap ends an answer and changes nothing before its end.
func TestOutputCap(t *testing.T) {
	t.Parallel()
	for _, c := range chats {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := start(t, Options{})
			const prompt = "Count the gulls. [fake:tokens=40]"
			whole := gjson.Get(send(t, s.URL()+c.path, c.plain(prompt, "")).body, c.text).String()
			cut := send(t, s.URL()+c.path, c.plain(prompt, "9"))
			text := gjson.Get(cut.body, c.text).String()
			if !strings.HasPrefix(whole, text) || CountTokens(text) != 9 {
				t.Errorf("%q is not the first 9 tokens of %q", text, whole)
			}
			if got := gjson.Get(cut.body, c.finishPath).String(); got != c.length {
				t.Errorf("it ended with %q, want %q", got, c.length)
			}
			if got := gjson.Get(cut.body, c.output).Int(); got != 9 {
				t.Errorf("output is given as %d, want 9", got)
			}
			path, body := c.stream(prompt, "9")
			if got := joined(send(t, s.URL()+path, body).body, c.delta); got != text {
				t.Errorf("streamed: %q, want %q", got, text)
			}
		})
	}
}

// A cap that is exactly the answer's length does not end it.
func TestOutputCapIsExact(t *testing.T) {
	t.Parallel()
	s := start(t, Options{})
	for limit, want := range map[string]string{"39": "length", "40": "stop", "41": "stop"} {
		got := send(t, s.URL()+chatPath, chats[0].plain("x [fake:tokens=40]", limit)).body
		if finish := gjson.Get(got, "choices.0.finish_reason").Str; finish != want {
			t.Errorf("%s of 40 tokens: %s, want %s", limit, finish, want)
		}
	}
}

// Other questions have other answers.
func TestQuestionsDiffer(t *testing.T) {
	t.Parallel()
	s := start(t, Options{})
	ids := map[string]string{}
	for _, path := range []string{chatPath, msgPath} {
		for _, role := range []string{"user", "assistant"} {
			for _, model := range []string{"a", "b"} {
				for _, prompt := range []string{"a b", "ab", "b a", "a  b", "c", "d", "é", "e"} {
					got := send(t, s.URL()+path, `{"model":"`+model+`","max_tokens":5,"messages":[{"role":"`+role+`","content":"`+prompt+`"}]}`).body
					id := gjson.Get(got, "id").Str
					what := path + role + model + prompt
					if other, same := ids[id]; same || id == "" {
						t.Errorf("%q and %q have the id %q", what, other, id)
					}
					ids[id] = what
				}
			}
		}
	}
}

func TestPlainAnswersAreJSON(t *testing.T) {
	t.Parallel()
	s := start(t, Options{GPUInUsage: true})
	for _, body := range []string{
		`/v1/chat/completions {"model":"m","messages":[{"role":"user","content":"\"quotes\"\n[fake:reasoning=5]"}],"n":3,"logprobs":true,"top_logprobs":2}`,
		`/v1/chat/completions {"model":"m\"<","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:x"}}]}]}`,
		`/v1/messages {"model":"m","max_tokens":50,"thinking":{"type":"enabled","budget_tokens":1024},"messages":[{"role":"user","content":"x"}]}`,
		`/v1/messages/count_tokens {"model":"m","messages":[{"role":"user","content":"one two three"}]}`,
		`/v1/responses {"model":"m","input":"x","reasoning":{"effort":"low"},"metadata":{"a":"b"},"tools":[{"type":"function","name":"t","parameters":{}}]}`,
		`/v1/completions {"model":"m","prompt":[[1,2,3],[4]],"n":2}`,
		`/v1/embeddings {"model":"m","input":["a","b"],"dimensions":3}`,
		`/v1/embeddings {"model":"m","input":[1,2,3]}`,
		`/v1/images/generations {"model":"m","prompt":"a cat","n":2}`,
		`/v1beta/models/m:countTokens {"contents":[{"parts":[{"text":"one two"}]}]}`,
		`/v1/audio/speech {"model":"m","input":""}`,
		`/v1/nothing {}`,
		`/v1/messages {}`,
	} {
		path, body, _ := strings.Cut(body, " ")
		got := send(t, s.URL()+path, body)
		if !json.Valid([]byte(got.body)) {
			t.Errorf("%s %s: %d %s", path, body, got.status, got.body)
		}
		if wrong := strings.Contains(path, "nothing") || body == "{}" || strings.Contains(body, `"input":""`); wrong != (got.status != 200) {
			t.Errorf("%s %s: %d %s", path, body, got.status, got.body)
		}
	}
}

func TestSeveralChoicesAndReasoning(t *testing.T) {
	t.Parallel()
	s := start(t, Options{})
	const body = `{"model":"m","n":3,"messages":[{"role":"user","content":"x [fake:tokens=5,reasoning=7]"}]`
	plain := send(t, s.URL()+"/v1/chat/completions", body+`}`).body
	streamed := send(t, s.URL()+"/v1/chat/completions", body+`,"stream":true,"stream_options":{"include_usage":true}}`).body
	for i, text := range gjson.Get(plain, "choices.#.message.content").Array() {
		var got strings.Builder
		for _, data := range events(streamed) {
			for _, choice := range gjson.Get(data, "choices").Array() {
				if choice.Get("index").Int() == int64(i) {
					got.WriteString(choice.Get("delta.content").Str)
				}
			}
		}
		if got.String() != text.Str || CountTokens(text.Str) != 5 {
			t.Errorf("choice %d: streamed %q, plain %q", i, got.String(), text.Str)
		}
	}
	if got := gjson.Get(plain, "usage.completion_tokens").Int(); got != 3*(5+7) {
		t.Errorf("%d output tokens, want 36", got)
	}
	if got := gjson.Get(plain, "usage.completion_tokens_details.reasoning_tokens").Int(); got != 3*7 {
		t.Errorf("%d reasoning tokens, want 21", got)
	}
	if r := last(t, s, 2); r.Output != 36 || r.Reasoning != 21 {
		t.Errorf("logged for the stream: %+v", r)
	}
}

func TestStopSequence(t *testing.T) {
	t.Parallel()
	s := start(t, Options{})
	got := send(t, s.URL()+"/v1/messages", `{"model":"m","max_tokens":99,"stop_sequences":["."],"messages":[{"role":"user","content":"x"}]}`).body
	text := gjson.Get(got, "content.0.text").Str
	if strings.Contains(text, ".") || gjson.Get(got, "stop_reason").Str != "stop_sequence" || gjson.Get(got, "stop_sequence").Str != "." {
		t.Errorf("got %s", got)
	}
	if n := gjson.Get(got, "usage.output_tokens").Int(); n != CountTokens(text) {
		t.Errorf("%d tokens for %q", n, text)
	}
}

func TestEmbeddings(t *testing.T) {
	t.Parallel()
	s := start(t, Options{})
	const body = `{"model":"m","input":["one two","three","one two"],"dimensions":16`
	plain := send(t, s.URL()+"/v1/embeddings", body+`}`).body
	packed := send(t, s.URL()+"/v1/embeddings", body+`,"encoding_format":"base64"}`).body
	if got := gjson.Get(plain, "usage.total_tokens").Int(); got != 5 {
		t.Errorf("%d tokens, want 5", got)
	}
	var vectors [][]float32
	for i := range 3 {
		item := gjson.Get(plain, "data").Array()[i]
		var v []float32
		sum := 0.0
		for _, f := range item.Get("embedding").Array() {
			v = append(v, float32(f.Num))
			sum += f.Num * f.Num
		}
		if len(v) != 16 || math.Abs(sum-1) > 1e-5 {
			t.Errorf("vector %d has %d dimensions and the length² %g", i, len(v), sum)
		}
		raw, err := base64.StdEncoding.DecodeString(gjson.Get(packed, "data").Array()[i].Get("embedding").Str)
		if err != nil || len(raw) != 64 {
			t.Fatalf("base64: %v, %d bytes", err, len(raw))
		}
		for k := range v {
			if f := math.Float32frombits(binary.LittleEndian.Uint32(raw[4*k:])); f != v[k] {
				t.Fatalf("number %d is %g in base64, %g in JSON", k, f, v[k])
			}
		}
		vectors = append(vectors, v)
	}
	if !cmp.Equal(vectors[0], vectors[2]) || cmp.Equal(vectors[0], vectors[1]) {
		t.Error("equal inputs must have equal vectors, and others others")
	}
}

func TestPicturesAndSound(t *testing.T) {
	t.Parallel()
	s := start(t, Options{})
	got := send(t, s.URL()+"/v1/images/generations", `{"model":"m","prompt":"a grey cat","n":2}`).body
	for _, item := range gjson.Get(got, "data").Array() {
		raw, err := base64.StdEncoding.DecodeString(item.Get("b64_json").Str)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := png.Decode(bytes.NewReader(raw)); err != nil {
			t.Errorf("not a PNG: %v", err)
		}
	}
	if r := last(t, s, 1); r.Images != 2 || r.Output != 2*imageOutputTokens || r.Input != 3 {
		t.Errorf("logged: %+v", r)
	}
	if got := gjson.Get(got, "usage.output_tokens").Int(); got != 2*imageOutputTokens {
		t.Errorf("%d output tokens", got)
	}
	spoken := send(t, s.URL()+"/v1/audio/speech", `{"model":"m","voice":"alloy","response_format":"wav","input":"one two three four five"}`)
	if ms := soundMillis([]byte(spoken.body)); ms != 5*speechMillisToken || spoken.header.Get("Content-Type") != "audio/wav" {
		t.Errorf("%d ms of %s", ms, spoken.header.Get("Content-Type"))
	}
	if r := last(t, s, 2); r.AudioMS != 300 || r.Input != 5 {
		t.Errorf("logged: %+v", r)
	}
	var form bytes.Buffer
	w := multipart.NewWriter(&form)
	part, _ := w.CreateFormFile("file", "x.wav")
	_, _ = part.Write(wav(samples(2500)))
	_ = w.WriteField("model", "m")
	_ = w.Close()
	heard := send(t, s.URL()+"/v1/audio/transcriptions", form.String(), "Content-Type", w.FormDataContentType())
	if got := gjson.Get(heard.body, "usage.input_token_details.audio_tokens").Int(); got != 3*audioTokensASecond {
		t.Errorf("2.5 s are %d tokens: %s", got, heard.body)
	}
	if r := last(t, s, 3); r.AudioMS != 2500 || r.Output != CountTokens(gjson.Get(heard.body, "text").Str) || r.Output != 7 {
		t.Errorf("logged: %+v", r)
	}
}

func TestModels(t *testing.T) {
	t.Parallel()
	s := start(t, Options{Models: []string{"b", "a"}, Key: "secret"})
	auth := []string{"Authorization", "Bearer secret"}
	if got := get(t, s.URL()+"/v1/models", auth...).body; gjson.Get(got, "data.#.id").Raw != `["a","b"]` {
		t.Errorf("openai: %s", got)
	}
	if got := get(t, s.URL()+"/v1/models", "X-Api-Key", "secret", "Anthropic-Version", "2023-06-01").body; gjson.Get(got, "last_id").Str != "b" || gjson.Get(got, "data.0.lifecycle").Str != "active" {
		t.Errorf("anthropic: %s", got)
	}
	if got := get(t, s.URL()+"/v1beta/models", "X-Goog-Api-Key", "secret").body; gjson.Get(got, "models.1.name").Str != "models/b" {
		t.Errorf("gemini: %s", got)
	}
	if got := get(t, s.URL()+"/v1/models/a", auth...).body; gjson.Get(got, "id").Str != "a" {
		t.Errorf("one: %s", got)
	}
	if got := get(t, s.URL()+"/v1/models/c", auth...); got.status != 404 {
		t.Errorf("none: %+v", got)
	}
	if got := get(t, s.URL()+"/v1/models"); got.status != 401 {
		t.Errorf("no key: %+v", got)
	}
	const body = `{"model":"c","messages":[{"role":"user","content":"x"}]}`
	if got := send(t, s.URL()+"/v1/chat/completions", body, auth...); got.status != 404 || gjson.Get(got.body, "error.code").Str != "model_not_found" {
		t.Errorf("no such model: %+v", got)
	}
	if got := send(t, s.URL()+"/v1/messages", body); got.status != 401 || gjson.Get(got.body, "error.type").Str != "authentication_error" {
		t.Errorf("no key: %+v", got)
	}
}
