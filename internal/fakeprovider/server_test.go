package fakeprovider

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start runs a server for one test.
func start(t *testing.T, opts Options) *Server {
	t.Helper()
	s := New(opts)
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := s.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
	return s
}

// send sends a body and reads the answer as far as it comes.
func send(t *testing.T, url, body string, header ...string) (*http.Response, string, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, "", err
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	return res, string(data), err
}

func TestSmoke(t *testing.T) {
	s := start(t, Options{})
	for _, c := range []string{
		`/v1/chat/completions {"model":"m","messages":[{"role":"user","content":"Say hello, please."}]}`,
		`/v1/chat/completions {"model":"m","messages":[{"role":"user","content":"Say hello, please."}],"stream":true,"stream_options":{"include_usage":true},"max_tokens":4}`,
		`/v1/messages {"model":"m","max_tokens":100,"messages":[{"role":"user","content":"Say hello, please."}]}`,
		`/v1/messages {"model":"m","max_tokens":5,"stream":true,"messages":[{"role":"user","content":"Say hello, please."}]}`,
		`/v1/messages {"model":"m","max_tokens":50,"stream":true,"tools":[{"name":"get_weather","input_schema":{"type":"object","properties":{"city":{"type":"string"}}}}],"messages":[{"role":"user","content":"weather"}]}`,
	} {
		path, body, _ := strings.Cut(c, " ")
		res, text, err := send(t, s.URL()+path, body)
		t.Log(res.Status, text, err)
	}
	for _, r := range s.Records() {
		t.Logf("%+v", r)
	}
}
