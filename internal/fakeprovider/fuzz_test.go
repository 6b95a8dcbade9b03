package fakeprovider

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// FuzzRequest sends any body to any endpoint: the server answers with JSON of
// its dialect, with a stream, or with sound, and neither breaks nor counts
// something negative.
func FuzzRequest(f *testing.F) {
	paths := []string{
		"/v1/chat/completions", "/v1/responses", "/v1/completions", "/v1/embeddings", "/v1/images/generations",
		"/v1/audio/speech", "/v1/messages", "/v1/messages/count_tokens", "/v1beta/models/m:generateContent",
		"/v1beta/models/m:streamGenerateContent?alt=sse", "/openai/deployments/d/chat/completions",
	}
	for i, c := range chats {
		f.Add(uint8(i), c.plain("one two [fake:crlf]", "7"))
		_, body := c.stream("what is the weather", "3")
		f.Add(uint8(i), body)
	}
	f.Add(uint8(0), `{"model":"m","messages":[{"role":"user","content":"x"}],"tools":[{"function":{"name":"t","parameters":`+weather+`}}],"tool_choice":"required"}`)
	f.Add(uint8(0), `{"model":"m","messages":[{"role":"user","content":[{"type":"image_url"}]}],"n":2,"logprobs":true,"stop":["a",1]}`)
	f.Add(uint8(3), `{"model":"m","input":[[1,2],[3]],"encoding_format":"base64"}`)
	f.Add(uint8(5), `{"model":"m","input":"x","response_format":"wav"}`)
	f.Add(uint8(1), strings.Repeat("[", 200))
	s := New(Options{PrefixCache: true, OutputTokens: 20, LogLimit: 1})
	f.Fuzz(func(t *testing.T, path uint8, body string) {
		if strings.Contains(body, "fake:") && strings.ContainsAny(body, "hsr") {
			body = strings.ReplaceAll(body, "fake:", "fake;") // no orders to hang, to be slow or to reset
		}
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, paths[int(path)%len(paths)], strings.NewReader(body))
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		kind := w.Header().Get("Content-Type")
		if w.Code == http.StatusOK && (strings.HasPrefix(kind, "audio/") || strings.HasPrefix(kind, "text/event-stream")) {
			for _, data := range events(w.Body.String()) {
				if data != "[DONE]" && !json.Valid([]byte(data)) {
					t.Errorf("event %q", data)
				}
			}
			return
		}
		if w.Code != 200 && w.Code != 400 && w.Code != 404 || !json.Valid(w.Body.Bytes()) {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		all := s.Records()
		if r := all[len(all)-1]; r.Input < 0 || r.Output < 0 || r.Cached > r.Input || r.Cached < 0 || r.Reasoning > r.Output || r.GPUMS < 0 {
			t.Errorf("logged: %+v", r)
		}
	})
}

func FuzzRule(f *testing.F) {
	f.Add("model=m skip=1 every=2 permille=3 times=4: cut=1..9,crlf")
	f.Add("503=1")
	f.Fuzz(func(t *testing.T, text string) {
		rule, err := ParseRule(text)
		if err != nil {
			return
		}
		if err := rule.check(); err != nil {
			t.Errorf("%q was taken, and is wrong: %v", text, err)
		}
	})
}
