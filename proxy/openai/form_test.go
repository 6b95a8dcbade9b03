package openai_test

import (
	"bytes"
	"errors"
	"mime/multipart"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"tollgate/proxy"
)

// transcription is a form as clients send it.
func transcription(t *testing.T, fields [][2]string, file []byte) (body []byte, contentType string) {
	t.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	for _, f := range fields {
		if err := w.WriteField(f[0], f[1]); err != nil {
			t.Fatal(err)
		}
	}
	if file != nil {
		part, err := w.CreateFormFile("file", "a.b.wav")
		if err != nil {
			t.Fatal(err)
		}
		if _, err = part.Write(file); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes(), w.FormDataContentType()
}

func TestTranscriptionForm(t *testing.T) {
	e := endpoint(t, "/v1/audio/transcriptions")
	body, contentType := transcription(t, [][2]string{{"model", "m"}, {"prompt", "abc"}, {"stream", "true"}, {"x", "--\r\n--"}}, wav(2))
	ask, err := e.Read(body, contentType, "")
	if err != nil {
		t.Fatal(err)
	}
	want := proxy.Ask{Model: "m", Stream: true, UsageAsked: true, Choices: 1, AudioMillis: 2000, MaxOutputTokens: -1}
	if diff := cmp.Diff(&want, ask, onlyFigures); diff != "" {
		t.Error(diff)
	}
	if got := ask.InputTokens(byteCounter{}); got != 20+3 {
		t.Errorf("%d input tokens", got)
	}
	same, _, err := e.Upstream(body, ask, proxy.Change{Model: "m", OutputCap: 5, AskUsage: true})
	if err != nil || &same[0] != &body[0] {
		t.Error("changed for nothing", err)
	}
	got, gotType, err := e.Upstream(body, ask, proxy.Change{Model: "upstream-model"})
	wantBody := bytes.Replace(body, []byte("\r\n\r\nm\r\n"), []byte("\r\n\r\nupstream-model\r\n"), 1)
	if err != nil || gotType != contentType || !bytes.Equal(got, wantBody) {
		t.Errorf("%v %s %q", err, gotType, got[:200])
	}
	if _, _, err = e.Upstream(body, ask, proxy.Change{Model: "a\r\nb"}); err == nil {
		t.Error("a name with a line's end was written into a form")
	}
}

// Azure's clients name the model in the path alone.
func TestTranscriptionModelOfThePath(t *testing.T) {
	e := endpoint(t, "/v1/audio/transcriptions")
	body, contentType := transcription(t, [][2]string{{"prompt", "abc"}}, wav(1))
	ask, err := e.Read(body, contentType, "deployment")
	if err != nil || ask.Model != "deployment" || ask.MaxOutputTokens != 6+16 {
		t.Fatalf("%v %+v", err, ask)
	}
	got, _, err := e.Upstream(body, ask, proxy.Change{Model: "up"})
	if err != nil {
		t.Fatal(err)
	}
	again, err := e.Read(got, contentType, "")
	if err != nil || again.Model != "up" || again.AudioMillis != ask.AudioMillis || again.InputTokens(byteCounter{}) != ask.InputTokens(byteCounter{}) {
		t.Errorf("%v %+v", err, again)
	}
	if len(got)-len(body) != len("--")+len(contentType)-len("multipart/form-data; boundary=")+len("\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nup\r\n") {
		t.Errorf("%q", got[:300])
	}
}

func TestImageEditForm(t *testing.T) {
	e := endpoint(t, "/v1/images/edits")
	body, contentType := transcription(t, [][2]string{{"model", "m"}, {"prompt", "abc"}, {"n", "2"}, {"size", "1024x1024"}, {"quality", "low"}}, []byte("png"))
	ask, err := e.Read(body, contentType, "")
	if err != nil {
		t.Fatal(err)
	}
	want := proxy.Ask{Model: "m", UsageAsked: true, Choices: 2, Images: 2, MaxOutputTokens: 272}
	if diff := cmp.Diff(&want, ask, onlyFigures); diff != "" {
		t.Error(diff)
	}
	if got := ask.InputTokens(byteCounter{}); got != 3+85+8*170 {
		t.Errorf("%d input tokens", got)
	}
}

func TestFormsThatAreRefused(t *testing.T) {
	e := endpoint(t, "/v1/audio/transcriptions")
	const kind = "multipart/form-data; boundary=B"
	field := func(header, value string) string { return "--B\r\n" + header + "\r\n\r\n" + value + "\r\n" }
	named := func(name, value string) string {
		return field(`Content-Disposition: form-data; name="`+name+`"`, value)
	}
	file := field(`Content-Disposition: form-data; name="file"; filename="a.mp3"`, "x")
	if _, err := e.Read([]byte(named("model", "m")+file+"--B--\r\n"), kind, ""); err != nil {
		t.Fatal("a form in order:", err)
	}
	unicode := field(`Content-Disposition: form-data; name="file"; filename="a.mp3"; filename*=UTF-8''%c3%a9.mp3`, "x")
	if _, err := e.Read([]byte(field(`Content-Disposition: form-data; name=model`, "m")+unicode+"--B--\r\n"), kind, ""); err != nil {
		t.Error("names without quotes, names of files in other scripts:", err)
	}
	for name, tt := range map[string]struct{ contentType, body, field string }{
		"no boundary":        {"multipart/form-data", named("model", "m") + file + "--B--", ""},
		"a preamble":         {kind, "x\r\n" + named("model", "m") + file + "--B--", ""},
		"cut":                {kind, named("model", "m") + file, ""},
		"no end of header":   {kind, "--B\r\nContent-Disposition: form-data", ""},
		"bare newlines":      {kind, strings.ReplaceAll(named("model", "m")+file+"--B--", "\r\n", "\n"), ""},
		"two models":         {kind, named("model", "m") + named("model", "n") + file + "--B--", "model"},
		"another case":       {kind, named("Model", "m") + file + "--B--", "model"},
		"two dispositions":   {kind, field("Content-Disposition: form-data; name=\"x\"\r\nContent-Disposition: form-data; name=\"model\"", "m") + file + "--B--", ""},
		"an escaped name":    {kind, field(`Content-Disposition: form-data; name="mode\l"`, "m") + file + "--B--", ""},
		"an encoded name":    {kind, field(`Content-Disposition: form-data; name*=UTF-8''model`, "m") + file + "--B--", ""},
		"a name given twice": {kind, field(`Content-Disposition: form-data; name="x"; name*=UTF-8''model`, "m") + file + "--B--", ""},
		"a folded header":    {kind, field("Content-Disposition: form-data; name=\"x\"\r\n ; name=\"model\"", "m") + file + "--B--", ""},
		"an encoding":        {kind, field("Content-Disposition: form-data; name=\"model\"\r\nContent-Transfer-Encoding: base64", "bQ==") + file + "--B--", ""},
		"no disposition":     {kind, field("Content-Type: text/plain", "m") + file + "--B--", ""},
		"no model":           {kind, file + "--B--", "model"},
		"no file":            {kind, named("model", "m") + "--B--", "file"},
		"a stream of maybes": {kind, named("model", "m") + named("stream", "maybe") + file + "--B--", "stream"},
		"too many parts":     {kind, strings.Repeat(named("x", "y"), 300) + "--B--", ""},
		"no text at all":     {kind, "", ""},
	} {
		_, err := e.Read([]byte(tt.body), tt.contentType, "")
		var bad *proxy.BadRequest
		if !errors.As(err, &bad) || bad.Field != tt.field {
			t.Errorf("%s: %v, want a bad request of %q", name, err, tt.field)
		}
	}
	edits := endpoint(t, "/v1/images/edits")
	if _, err := edits.Read([]byte("--B--"), kind, "deployment"); err == nil {
		t.Error("a form without parts")
	}
	for _, n := range []string{"0", "x", "9999", "1.5", strconv.Itoa(1 << 40)} {
		if _, err := edits.Read([]byte(named("model", "m")+named("n", n)+"--B--"), kind, ""); err == nil {
			t.Errorf("n = %s", n)
		}
	}
}
