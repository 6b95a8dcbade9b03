package gemini_test

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"image"
	"image/png"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"tollgate/proxy"
)

func read(t testing.TB, body string) *proxy.Ask {
	t.Helper()
	ask, err := verb(t, "generateContent").Read([]byte(body), "application/json", "gemini-3")
	if err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return ask
}

func TestRead(t *testing.T) {
	for name, tt := range map[string]struct {
		body         string
		cap, choices int64
	}{
		"nothing":            {`{}`, -1, 1},
		"no config":          {`{"contents":[{"parts":[{"text":"hi"}]}]}`, -1, 1},
		"config":             {`{"generationConfig":{"maxOutputTokens":64,"candidateCount":3}}`, 64, 3},
		"the other spelling": {`{"generation_config":{"max_output_tokens":64,"candidate_count":3}}`, 64, 3},
		"mixed":              {`{"generation_config":{"maxOutputTokens":64}}`, 64, 1},
		"numbers as strings": {`{"generationConfig":{"maxOutputTokens":"64","candidateCount":"2"}}`, 64, 2},
		"nulls":              {`{"generationConfig":{"maxOutputTokens":null,"candidateCount":null},"tools":null}`, -1, 1},
		"null config":        {`{"generationConfig":null}`, -1, 1},
		"zero candidates":    {`{"generationConfig":{"candidateCount":0}}`, -1, 1},
		"unknown members":    {`{"model":"models/other","extra":1,"extra":2,"generationConfig":{"temperature":"x","topK":1,"topK":2}}`, -1, 1},
	} {
		ask := read(t, tt.body)
		if ask.Model != "gemini-3" || ask.MaxOutputTokens != tt.cap || ask.Choices != tt.choices || ask.Stream || !ask.UsageAsked {
			t.Errorf("%s: %+v", name, ask)
		}
	}
	ask, err := verb(t, "streamGenerateContent").Read([]byte(`{}`), "", "g")
	if err != nil || !ask.Stream {
		t.Errorf("a stream is none: %v", err)
	}
}

func TestReadRefuses(t *testing.T) {
	for name, tt := range map[string]struct{ body, field string }{
		"no JSON":              {`hi`, ""},
		"array":                {`[]`, ""},
		"too deep":             {strings.Repeat(`{"contents":`, 200) + `1` + strings.Repeat(`}`, 200), ""},
		"two configs":          {`{"generationConfig":{"maxOutputTokens":1},"generationConfig":{}}`, "generationConfig"},
		"both spellings":       {`{"generationConfig":{"maxOutputTokens":1},"generation_config":{"maxOutputTokens":9999}}`, "generationConfig"},
		"case":                 {`{"GenerationConfig":{}}`, "generationConfig"},
		"two caps":             {`{"generationConfig":{"maxOutputTokens":1,"max_output_tokens":9999}}`, "generationConfig.maxOutputTokens"},
		"two caps, escaped":    {`{"generationConfig":{"maxOutputTokens":1,"m\u0061xOutputTokens":9999}}`, "generationConfig.maxOutputTokens"},
		"cap's case":           {`{"generationConfig":{"maxoutputtokens":1}}`, "generationConfig.maxOutputTokens"},
		"cap 0 is none":        {`{"generationConfig":{"maxOutputTokens":0}}`, "generationConfig.maxOutputTokens"},
		"cap negative":         {`{"generationConfig":{"maxOutputTokens":-5}}`, "generationConfig.maxOutputTokens"},
		"cap a fraction":       {`{"generationConfig":{"maxOutputTokens":1.5}}`, "generationConfig.maxOutputTokens"},
		"cap an object":        {`{"generationConfig":{"maxOutputTokens":{}}}`, "generationConfig.maxOutputTokens"},
		"many candidates":      {`{"generationConfig":{"candidateCount":1000000}}`, "generationConfig.candidateCount"},
		"config an array":      {`{"generationConfig":[]}`, "generationConfig"},
		"contents an object":   {`{"contents":{}}`, "contents"},
		"contents twice":       {`{"contents":[],"contents":[]}`, "contents"},
		"instructions, both":   {`{"systemInstruction":{},"system_instruction":{}}`, "systemInstruction"},
		"tools a word":         {`{"tools":"x"}`, "tools"},
		"candidates as a word": {`{"generationConfig":{"candidate_count":"many"}}`, "generationConfig.candidateCount"},
	} {
		_, err := verb(t, "generateContent").Read([]byte(tt.body), "", "g")
		var bad *proxy.BadRequest
		if !errors.As(err, &bad) || bad.Field != tt.field || bad.Detail == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestUpstream(t *testing.T) {
	cap9 := proxy.Change{Model: "upstream", OutputCap: 9, AskUsage: true}
	for name, tt := range map[string]struct {
		body   string
		change proxy.Change
		want   string // "" is the body itself
	}{
		"the model is in the path": {`{"model":"models/x"}`, proxy.Change{Model: "upstream", AskUsage: true}, ""},
		"a cap was given":          {`{"generationConfig":{"maxOutputTokens":7}}`, cap9, ""},
		"no config":                {`{"contents":[]}`, cap9, `{"generationConfig":{"maxOutputTokens":9},"contents":[]}`},
		"empty body":               {`{}`, cap9, `{"generationConfig":{"maxOutputTokens":9}}`},
		"config":                   {`{ "generationConfig" : { "temperature":1 } }`, cap9, `{ "generationConfig" : {"maxOutputTokens":9, "temperature":1 } }`},
		"the other spelling":       {`{"generation_config":{}}`, cap9, `{"generation_config":{"maxOutputTokens":9}}`},
		"null cap":                 {`{"generation_config":{"max_output_tokens":null}}`, cap9, `{"generation_config":{"max_output_tokens":9}}`},
		"null config":              {`{"generationConfig":null}`, cap9, `{"generationConfig":{"maxOutputTokens":9}}`},
		"another field":            {`{}`, proxy.Change{OutputCap: 9, OutputCapField: "cap"}, `{"generationConfig":{"cap":9}}`},
	} {
		body := []byte(tt.body)
		got, contentType, err := verb(t, "generateContent").Upstream(body, read(t, tt.body), tt.change)
		if err != nil || contentType != "application/json" || string(body) != tt.body {
			t.Errorf("%s: %v %s %s", name, err, contentType, body)
		}
		switch {
		case tt.want != "" && string(got) != tt.want:
			t.Errorf("%s: got %s, want %s", name, got, tt.want)
		case tt.want == "" && &got[0] != &body[0]:
			t.Errorf("%s: not the body itself: %s", name, got)
		}
	}
	count := verb(t, "countTokens")
	body := []byte(`{"generateContentRequest":{"model":"models/x"}}`)
	ask, err := count.Read(body, "", "g")
	if err != nil {
		t.Fatal(err)
	}
	if got, _, err := count.Upstream(body, ask, cap9); err != nil || &got[0] != &body[0] {
		t.Errorf("counting tokens: %s %v", got, err)
	}
}

// Whatever stands beside the cap goes upstream byte for byte.
func TestUpstreamKeepsAllOtherBytes(t *testing.T) {
	e := verb(t, "generateContent")
	value := rapid.SampledFrom([]string{`"\u00e9\/é\n"`, `[ 1.0 , -0, 1E5, {"maxOutputTokens":1} ]`, `{}`, `12345678901234567890.5`, `"\ud83d"`, `null`})
	rapid.Check(t, func(t *rapid.T) {
		space := rapid.StringMatching(`[ \t\r\n]{0,2}`)
		part := func() string {
			s := ""
			for i := range rapid.IntRange(0, 3).Draw(t, "members") {
				s += fmt.Sprintf(`%s"x%d"%s:%s%s,`, space.Draw(t, "s"), i, space.Draw(t, "s"), value.Draw(t, "v"), space.Draw(t, "s"))
			}
			return s
		}
		a, b, c := part(), part(), part()
		body := []byte("{" + a + `"generationConfig": {` + b + `"maxOutputTokens": null, ` + c + `"topP":0.50},"contents":[]}`)
		ask, err := e.Read(body, "", "g")
		if err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		got, _, err := e.Upstream(body, ask, proxy.Change{OutputCap: 77})
		want := "{" + a + `"generationConfig": {` + b + `"maxOutputTokens": 77, ` + c + `"topP":0.50},"contents":[]}`
		if err != nil || string(got) != want {
			t.Fatalf("got  %s\nwant %s (%v)", got, want, err)
		}
	})
}

func TestInputTokens(t *testing.T) {
	picture := func(width, height int) string {
		var b bytes.Buffer
		if err := png.Encode(&b, image.NewGray(image.Rect(0, 0, width, height))); err != nil {
			t.Fatal(err)
		}
		return base64.StdEncoding.EncodeToString(b.Bytes())
	}
	parts := func(parts string) string { return `{"contents":[{"role":"user","parts":[` + parts + `]}]}` }
	file := func(mime string, base64 int) string {
		return parts(`{"inlineData":{"mimeType":"` + mime + `","data":"` + strings.Repeat("A", base64) + `"}}`)
	}
	for name, tt := range map[string]struct {
		body string
		want int64
	}{
		"nothing":             {`{}`, 0},
		"text":                {parts(`{"text":"one two\nthree"},{"text":"four"}`), 4},
		"system":              {`{"systemInstruction":{"parts":[{"text":"be brief"}]},"contents":[{"parts":[{"text":"hi"}]}]}`, 3},
		"system, one part":    {`{"system_instruction":{"parts":{"text":"be brief"}}}`, 2},
		"calls":               {parts(`{"functionCall":{"name":"f","args":{"a": 1}},"thoughtSignature":"x y z"},{"functionResponse":{"name":"f", "response":{}}}`), 4},
		"tools":               {`{"tools":[{"functionDeclarations": []}]}`, 2},
		"no tools":            {`{"tools":[]}`, 0},
		"small image":         {parts(`{"inline_data":{"mime_type":"image/png","data":"` + picture(384, 10) + `"}}`), 258},
		"960 × 540":           {parts(`{"inlineData":{"mimeType":"image/png","data":"` + picture(960, 540) + `"}}`), 6 * 258},
		"2000 × 1000":         {parts(`{"inlineData":{"mimeType":"image/png","data":"` + picture(2000, 1000) + `"}}`), 4 * 2 * 258},
		"a long strip":        {parts(`{"inlineData":{"mimeType":"image/png","data":"` + picture(1024, 64) + `"}}`), 4 * 258},
		"an image by address": {parts(`{"fileData":{"mimeType":"image/png","fileUri":"gs://x"}}`), 6 * 258},
		"a file by address":   {parts(`{"file_data":{"mimeType":"application/pdf","fileUri":"gs://x"}}`), 2580},
		"PDF, 96 KiB":         {file("application/pdf", 128<<10), 516},
		"audio, 96 KiB":       {file("audio/mp3", 128<<10), 13 * 32},
		"video, 96 KiB":       {file("video/mp4", 128<<10), 263},
		"text file":           {file("text/plain", 128<<10), 24577},
	} {
		if got := read(t, tt.body).InputTokens(words{}); got != tt.want {
			t.Errorf("%s: %d, want %d", name, got, tt.want)
		}
	}
	if got := read(t, parts(`{"text":"a b"}`)).InputTokens(words{inexact: true}); got != 2+4 {
		t.Errorf("with an estimate: %d", got)
	}
}

func FuzzRequest(f *testing.F) {
	for _, seed := range []string{
		`{"contents":[{"role":"user","parts":[{"text":"hi"},{"inlineData":{"mimeType":"image/png","data":"iVBORw0KGgo="}}]}],"generationConfig":{"maxOutputTokens":5}}`,
		`{"generation_config":{"max_output_tokens":null,"candidate_count":"2"},"system_instruction":{"parts":{"text":"x"}}}`,
		`{"generationConfig":null}`, `{}`, `[`, `{"generationConfig":{},"generation_config":{}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		e := verb(t, "generateContent")
		ask, err := e.Read(body, "", "g")
		if err != nil {
			return
		}
		if ask.InputTokens(words{inexact: true}) < 0 || ask.Choices < 1 {
			t.Fatalf("%+v", ask)
		}
		changed, _, err := e.Upstream(body, ask, proxy.Change{Model: "upstream", OutputCap: 42})
		if err != nil {
			t.Fatal(err)
		}
		if ask.MaxOutputTokens >= 0 && &changed[0] != &body[0] {
			t.Fatal("changed without need")
		}
		again, err := e.Read(changed, "", "g")
		if err != nil {
			t.Fatalf("%s became %s: %v", body, changed, err)
		}
		want := ask.MaxOutputTokens
		if want < 0 {
			want = 42
		}
		if again.MaxOutputTokens != want || again.Choices != ask.Choices {
			t.Fatalf("%s became %s", body, changed)
		}
	})
}

func BenchmarkRequest(b *testing.B) {
	body := []byte(`{"contents":[{"role":"user","parts":[{"text":"` + strings.Repeat("What is the answer to it all? ", 60) + `"}]}],"generationConfig":{"temperature":0.5}}`)
	e := verb(b, "generateContent")
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		ask, err := e.Read(body, "application/json", "g")
		if err != nil {
			b.Fatal(err)
		}
		ask.InputTokens(constant{})
		if _, _, err := e.Upstream(body, ask, proxy.Change{OutputCap: 100}); err != nil {
			b.Fatal(err)
		}
	}
}

// constant is a counter without a cost.
type constant struct{}

func (constant) Count([]byte) int64 { return 1 }
func (constant) Exact() bool        { return true }
