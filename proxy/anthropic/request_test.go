package anthropic_test

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"image/gif"
	"image/jpeg"
	"image/png"
	"io"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"tollgate/proxy"
)

func TestRead(t *testing.T) {
	for name, tt := range map[string]struct {
		body   string
		model  string
		stream bool
		cap    int64
	}{
		"plain":             {`{"model":"claude","max_tokens":64,"messages":[]}`, "claude", false, 64},
		"stream":            {`{"stream":true,"model":"claude","max_tokens":64}`, "claude", true, 64},
		"no cap":            {`{"model":"claude","messages":[]}`, "claude", false, -1},
		"null cap":          {`{"model":"claude","max_tokens":null,"stream":null,"tools":null,"system":null}`, "claude", false, -1},
		"cap of 0":          {`{"model":"claude","max_tokens":0,"stream":false}`, "claude", false, 0},
		"escaped":           {`{"mod\u0065l":"cl\u0061ude\n","max_tokens":1}`, "claude\n", false, 1},
		"unknown members":   {`{"Modell":"x","thinking":{"model":1,"model":2},"model":"claude","temperature":"hot"}`, "claude", false, -1},
		"unknown, repeated": {`{"model":"claude","extra":1,"extra":2,"EXTRA":3}`, "claude", false, -1},
	} {
		_, ask := read(t, tt.body)
		if ask.Model != tt.model || ask.Stream != tt.stream || ask.MaxOutputTokens != tt.cap || ask.Choices != 1 || !ask.UsageAsked {
			t.Errorf("%s: %+v", name, ask)
		}
	}
}

func TestReadRefuses(t *testing.T) {
	for name, tt := range map[string]struct{ body, field string }{
		"no JSON":           {`model=claude`, ""},
		"array":             {`[]`, ""},
		"no model":          {`{"max_tokens":1}`, "model"},
		"empty model":       {`{"model":""}`, "model"},
		"model a number":    {`{"model":7}`, "model"},
		"model null":        {`{"model":null}`, "model"},
		"two models":        {`{"model":"cheap","model":"dear"}`, "model"},
		"Model":             {`{"model":"cheap","Model":"dear"}`, "model"},
		"escaped second":    {`{"model":"cheap","\u006dodel":"dear"}`, "model"},
		"two caps":          {`{"model":"a","max_tokens":1,"max_tokens":100000}`, "max_tokens"},
		"MAX_TOKENS":        {`{"model":"a","MAX_TOKENS":1}`, "max_tokens"},
		"two messages":      {`{"model":"a","messages":[],"messages":[]}`, "messages"},
		"stream a word":     {`{"model":"a","stream":"true"}`, "stream"},
		"stream a number":   {`{"model":"a","stream":1}`, "stream"},
		"cap negative":      {`{"model":"a","max_tokens":-1}`, "max_tokens"},
		"cap a fraction":    {`{"model":"a","max_tokens":1.5}`, "max_tokens"},
		"cap a word":        {`{"model":"a","max_tokens":"64"}`, "max_tokens"},
		"cap beyond counts": {`{"model":"a","max_tokens":9007199254740993}`, "max_tokens"},
		"messages a word":   {`{"model":"a","messages":"hi"}`, "messages"},
		"system a number":   {`{"model":"a","system":1}`, "system"},
		"tools an object":   {`{"model":"a","tools":{}}`, "tools"},
		"too deep":          {`{"model":"a","messages":` + strings.Repeat(`[`, 200) + strings.Repeat(`]`, 200) + `}`, ""},
		"deep and cut":      {`{"model":"a","messages":` + strings.Repeat(`[{"content":`, 1<<18), ""},
	} {
		_, err := endpoint(t, "/v1/messages").Read([]byte(tt.body), "", "")
		var bad *proxy.BadRequest
		if !errors.As(err, &bad) || bad.Field != tt.field || bad.Detail == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestUpstream(t *testing.T) {
	for name, tt := range map[string]struct {
		body   string
		change proxy.Change
		want   string // "" is the body itself
	}{
		"nothing":             {`{"model":"claude","max_tokens":1}`, proxy.Change{}, ""},
		"the same model":      {`{"model":"cl\u0061ude"}`, proxy.Change{Model: "claude"}, ""},
		"usage needs no ask":  {`{"model":"claude","stream":true}`, proxy.Change{AskUsage: true}, ""},
		"model":               {"{ \"model\" :\t\"claude\" , \"x\":1}", proxy.Change{Model: "c-5\""}, "{ \"model\" :\t\"c-5\\\"\" , \"x\":1}"},
		"cap":                 {`{"model":"claude"}`, proxy.Change{OutputCap: 99}, `{"max_tokens":99,"model":"claude"}`},
		"cap in null's place": {`{"max_tokens" : null,"model":"claude"}`, proxy.Change{OutputCap: 99}, `{"max_tokens" : 99,"model":"claude"}`},
		"a cap was given":     {`{"model":"claude","max_tokens":7}`, proxy.Change{OutputCap: 99}, ""},
		"both":                {`{"model":"claude","messages":[{"model":"x"}]}`, proxy.Change{Model: "b", OutputCap: 5}, `{"max_tokens":5,"model":"b","messages":[{"model":"x"}]}`},
		"other field":         {`{"model":"claude"}`, proxy.Change{OutputCap: 5, OutputCapField: "max_new"}, `{"max_new":5,"model":"claude"}`},
		"other field, there":  {`{"model":"claude","max_new":1000}`, proxy.Change{OutputCap: 5, OutputCapField: "max_new"}, `{"model":"claude","max_new":5}`},
	} {
		e, ask := read(t, tt.body)
		body := []byte(tt.body)
		got, contentType, err := e.Upstream(body, ask, tt.change)
		if err != nil || contentType != "application/json" {
			t.Errorf("%s: %v %s", name, err, contentType)
		}
		switch {
		case tt.want != "" && string(got) != tt.want:
			t.Errorf("%s: got %s, want %s", name, got, tt.want)
		case tt.want == "" && &got[0] != &body[0]:
			t.Errorf("%s: not the body itself: %s", name, got)
		}
		if string(body) != tt.body {
			t.Errorf("%s: the client's body was changed", name)
		}
	}

	count := endpoint(t, "/v1/messages/count_tokens")
	body := []byte(`{"model":"claude","messages":[]}`)
	ask, err := count.Read(body, "", "")
	if err != nil {
		t.Fatal(err)
	}
	got, _, _ := count.Upstream(body, ask, proxy.Change{Model: "b", OutputCap: 5})
	if string(got) != `{"model":"b","messages":[]}` {
		t.Errorf("counting has no cap: %s", got)
	}
}

// Whatever stands beside model and max_tokens goes upstream byte for byte.
func TestUpstreamKeepsAllOtherBytes(t *testing.T) {
	value := rapid.SampledFrom([]string{
		`"\u00e9\/é\n"`, `[ 1.0 , -0, 1E5, {"model":"a","max_tokens":null} ]`, `{}`, `12345678901234567890.5`, `"\ud83d"`, `null`,
	})
	messages := endpoint(t, "/v1/messages")
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
		body := []byte("{" + a + `"model": "alias" ,` + b + `"max_tokens": null,` + c + `"messages":[]}`)
		e := messages
		ask, err := e.Read(body, "", "")
		if err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		got, _, err := e.Upstream(body, ask, proxy.Change{Model: "real", OutputCap: 77})
		want := "{" + a + `"model": "real" ,` + b + `"max_tokens": 77,` + c + `"messages":[]}`
		if err != nil || string(got) != want {
			t.Fatalf("got  %s\nwant %s (%v)", got, want, err)
		}
	})
}

// picture draws one of a size.
func picture(t *testing.T, width, height int, encode func(io.Writer, image.Image) error) string {
	t.Helper()
	var b bytes.Buffer
	if err := encode(&b, image.NewGray(image.Rect(0, 0, width, height))); err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(b.Bytes())
}

func webp(form string, at int, size ...byte) string {
	head := make([]byte, 40)
	copy(head, "RIFF\x00\x00\x00\x00WEBP"+form)
	copy(head[at:], size)
	return base64.StdEncoding.EncodeToString(head)
}

func TestImagesCountByTheirSize(t *testing.T) {
	jpegs := func(w io.Writer, m image.Image) error { return jpeg.Encode(w, m, nil) }
	gifs := func(w io.Writer, m image.Image) error { return gif.Encode(w, m, nil) }
	lossless := binary.LittleEndian.AppendUint32(nil, 749|99<<14)
	for name, tt := range map[string]struct {
		source string
		want   int64
	}{
		"200 × 200 PNG":       {picture(t, 200, 200, png.Encode), 54},
		"1000 × 1000 JPEG":    {picture(t, 1000, 1000, jpegs), 1334},
		"75 × 10 GIF":         {picture(t, 75, 10, gifs), 1},
		"scaled to its edge":  {picture(t, 3136, 300, png.Encode), 314}, // 1568 × 150
		"large":               {picture(t, 2000, 2000, png.Encode), 1600},
		"WebP, extended":      {webp("VP8X", 24, 0xed, 2, 0, 0x63, 0, 0), 100}, // 750 × 100
		"WebP, lossless":      {webp("VP8L", 21, lossless...), 100},
		"WebP, lossy":         {webp("VP8 ", 26, 0xee, 2, 0x64, 0), 100},
		"WebP, unknown":       {webp("VP9 ", 26, 0xee, 2, 0x64, 0), 1600},
		"no image":            {"aGVsbG8gd29ybGQ=", 1600},
		"no base64":           {"%%%%", 1600},
		"a PNG's header only": {picture(t, 200, 200, png.Encode)[:48], 54},
	} {
		body := `{"model":"a","messages":[{"role":"user","content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"` + tt.source + `"}}]}]}`
		if _, ask := read(t, body); ask.InputTokens(words{}) != tt.want {
			t.Errorf("%s: %d, want %d", name, ask.InputTokens(words{}), tt.want)
		}
	}
}

func TestInputTokens(t *testing.T) {
	user := func(content string) string {
		return `{"model":"a","messages":[{"role":"user","content":` + content + `}]}`
	}
	for name, tt := range map[string]struct {
		body string
		want int64
	}{
		"string":              {user(`"one two\nthree"`), 3},
		"nothing":             {`{"model":"a"}`, 0},
		"system":              {`{"model":"a","system":"be brief","messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"hi there"}]}`, 5},
		"system blocks":       {`{"model":"a","system":[{"type":"text","text":"be brief","cache_control":{"type":"ephemeral"}}]}`, 2},
		"text blocks":         {user(`[{"type":"text","text":"a b"},{"text":"c","type":"text"}]`), 3},
		"thinking":            {user(`[{"type":"thinking","thinking":"a b c","signature":"x y z"},{"type":"redacted_thinking","data":"QUJDREVGR0hJSktM"}]`), 6},
		"tool use":            {user(`[{"type":"tool_use","id":"t","name":"weather","input":{"city": "Paris"}}]`), 3},
		"tool result":         {user(`[{"type":"tool_result","tool_use_id":"t","content":"a b"}]`), 2},
		"nested result":       {user(`[{"type":"tool_result","tool_use_id":"t","content":[{"type":"text","text":"a b"},{"type":"image","source":{"type":"url","url":"https://x/y"}}]}]`), 1602},
		"empty result":        {user(`[{"type":"tool_result","tool_use_id":"t"}]`), 0},
		"image by id":         {user(`[{"type":"image","source":{"type":"file","file_id":"f"}}]`), 1600},
		"document text":       {user(`[{"type":"document","title":"a b","context":"c","source":{"type":"text","data":"d e f"}}]`), 6},
		"document blocks":     {user(`[{"type":"document","source":{"type":"content","content":[{"type":"text","text":"d e f"}]}}]`), 3},
		"document, a URL":     {user(`[{"type":"document","source":{"type":"url","url":"https://x/y.pdf"}}]`), 46000},
		"document, 96 KiB":    {user(`[{"type":"document","source":{"type":"base64","data":"` + strings.Repeat("A", 128<<10) + `"}}]`), 9200},
		"search result":       {user(`[{"type":"search_result","title":"a b","source":"u","content":[{"type":"text","text":"d"}]}]`), 4},
		"unknown block":       {user(`[{"type":"hologram","beams": 7}]`), 2},
		"unknown and large":   {user(`[{"type":"hologram","data":"` + strings.Repeat("A", 100<<10) + `"}]`), 25607},
		"a word, no block":    {user(`["a"]`), 1},
		"a message no object": {`{"model":"a","messages":["a b"]}`, 2},
		"tools":               {`{"model":"a","tools":[{"name": "weather", "input_schema": {}}]}`, 4},
	} {
		if _, ask := read(t, tt.body); ask.InputTokens(words{}) != tt.want {
			t.Errorf("%s: %d, want %d", name, ask.InputTokens(words{}), tt.want)
		}
	}

	// What stands around the text is estimated where the tokenizer is another's.
	_, ask := read(t, `{"model":"a","tools":[{"name":"w"}],"messages":[{"role":"user","content":"a b"},{"role":"user","content":"c"}]}`)
	if got := ask.InputTokens(words{inexact: true}); got != 3+2*4+1+346 {
		t.Errorf("with an estimate: %d", got)
	}
	e := endpoint(t, "/v1/messages/count_tokens")
	free, err := e.Read([]byte(user(`"a b"`)), "", "")
	if err != nil || free.InputTokens(words{}) != 0 {
		t.Error("counting tokens holds tokens")
	}
}

// readCounter notes how many bytes it was given, and knows the text that stands
// deepest.
type readCounter struct{ bytes, calls *int }

func (c readCounter) Count(text []byte) int64 {
	*c.bytes += len(text)
	*c.calls++
	return int64(bytes.Count(text, []byte("deepest")))
}
func (readCounter) Exact() bool { return true }

// Results of tools within results of tools are told apart down to a depth. What is
// below counts as the JSON that it is: not for free, and not once a level.
func TestDeepContentIsReadInBoundedDepth(t *testing.T) {
	nested := func(levels int) string {
		return strings.Repeat(`[{"type":"tool_result","content":`, levels) + `"deepest"` + strings.Repeat(`}]`, levels)
	}
	for levels, want := range map[int]string{
		0: `deepest`, 4: `deepest`, 8: `deepest`, 9: nested(1), 60: nested(52),
	} {
		var sum, calls int
		_, ask := read(t, `{"model":"claude","messages":[{"role":"user","content":`+nested(levels)+`}]}`)
		if got := ask.InputTokens(readCounter{&sum, &calls}); got != 1 || calls != 1 || sum != len(want) {
			t.Errorf("%d levels: the deepest text was counted %d times, %d bytes in %d pieces, want %d", levels, got, sum, calls, len(want))
		}
	}
	wide := `{"model":"claude","messages":[{"role":"user","content":` +
		strings.Repeat(`[{"type":"document","source":{"type":"content","content":`, 40) + `[]` + strings.Repeat(`}}]`, 40) + `}]}`
	var sum, calls int
	if _, ask := read(t, wide); ask.InputTokens(readCounter{&sum, &calls}) != 0 || calls != 1 {
		t.Errorf("documents within documents: %d pieces", calls)
	}
}

func FuzzRequest(f *testing.F) {
	for _, seed := range []string{
		`{"model":"claude","max_tokens":64,"stream":true,"messages":[{"role":"user","content":"hi"}]}`,
		`{"model":"claude","system":[{"type":"text","text":"x"}],"tools":[{}],"messages":[{"role":"user","content":[{"type":"image","source":{"data":"iVBORw0KGgo="}},{"type":"tool_result","content":[{"type":"document","source":{"type":"text","data":"\u00e9"}}]}]}]}`,
		`{"mod\u0065l":"a","max_tokens":null}`, `{"model":"a","Model":"b"}`, `{}`, `[`, ` {"model" : "a"} `,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		e := endpoint(t, "/v1/messages")
		ask, err := e.Read(body, "", "")
		if err != nil {
			return
		}
		if n := ask.InputTokens(words{inexact: true}); n < 0 {
			t.Fatalf("%d input tokens", n)
		}
		same, _, err := e.Upstream(body, ask, proxy.Change{Model: ask.Model, AskUsage: true})
		if err != nil || &same[0] != &body[0] {
			t.Fatal("changed without need")
		}
		changed, _, err := e.Upstream(body, ask, proxy.Change{Model: "upstream", OutputCap: 42})
		if err != nil {
			t.Fatal(err)
		}
		again, err := e.Read(changed, "", "")
		if err != nil {
			t.Fatalf("%s became %s: %v", body, changed, err)
		}
		want := ask.MaxOutputTokens
		if want < 0 {
			want = 42
		}
		if again.Model != "upstream" || again.MaxOutputTokens != want || again.Stream != ask.Stream {
			t.Fatalf("%s became %s", body, changed)
		}
		// Another reader understands the same.
		var other map[string]json.RawMessage
		if json.Unmarshal(changed, &other) == nil && string(other["model"]) != `"upstream"` {
			t.Fatalf("encoding/json reads model %s in %s", other["model"], changed)
		}
	})
}

func BenchmarkRequest(b *testing.B) {
	body := []byte(`{"model":"claude","max_tokens":1024,"stream":true,"system":"You are a helpful assistant.","messages":[{"role":"user","content":[{"type":"text","text":"` +
		strings.Repeat("What is the answer to it all? ", 60) + `"}]}],"metadata":{"user_id":"u"}}`)
	e := endpoint(b, "/v1/messages")
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		ask, err := e.Read(body, "application/json", "")
		if err != nil {
			b.Fatal(err)
		}
		ask.InputTokens(constant{})
		if _, _, err := e.Upstream(body, ask, proxy.Change{Model: "upstream"}); err != nil {
			b.Fatal(err)
		}
	}
}

// constant is a counter without a cost.
type constant struct{}

func (constant) Count([]byte) int64 { return 1 }
func (constant) Exact() bool        { return true }

// The model's name outlives the request; it must not keep a large body alive.
func TestModelIsApartFromBody(t *testing.T) {
	body := []byte(`{"model":"claude","messages":[]}`)
	ask, err := endpoint(t, "/v1/messages").Read(body, "", "")
	if err != nil {
		t.Fatal(err)
	}
	copy(body, bytes.ReplaceAll(body, []byte("claude"), []byte("xxxxxx")))
	if ask.Model != "claude" {
		t.Errorf("the model became %q", ask.Model)
	}
}
