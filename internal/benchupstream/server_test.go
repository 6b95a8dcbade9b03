package benchupstream

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"tollgate/internal/loadclient"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func start(t *testing.T) *Server {
	t.Helper()
	s, err := New("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		http.DefaultClient.CloseIdleConnections()
	})
	return s
}

const (
	plainBody  = `{"model":"m","messages":[{"role":"user","content":"Hi"}]}`
	streamBody = `{"model":"m","stream": true,"messages":[{"role":"user","content":"Hi"}]}`
	usageBody  = `{"model":"m","stream":true,"stream_options":{"include_usage" : true}}`
)

func post(t *testing.T, s *Server, path string, body io.Reader) (status int, answer string) {
	t.Helper()
	res, err := http.Post("http://"+s.Addr()+path, "application/json", body)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	all, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(all)
}

// stats asks the server, which counts what it sent before it looks at the next
// request.
func stats(t *testing.T, s *Server) (got Stats) {
	t.Helper()
	res, err := http.Get("http://" + s.Addr() + "/stats")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if err := json.NewDecoder(res.Body).Decode(&got); err != nil {
		t.Fatal(err)
	}
	return got
}

func TestAnAnswer(t *testing.T) {
	s := start(t)
	// A reader of unknown length is sent in chunks.
	for _, body := range []io.Reader{strings.NewReader(plainBody), io.MultiReader(strings.NewReader(plainBody))} {
		status, answer := post(t, s, "/delay-1ms/v1/chat/completions", body)
		var got struct {
			Object  string
			Choices []struct{ Message struct{ Content string } }
			Usage   map[string]int
		}
		if err := json.Unmarshal([]byte(answer), &got); err != nil || status != http.StatusOK {
			t.Fatalf("status %d, %v in %s", status, err, answer)
		}
		if got.Object != "chat.completion" || len(got.Choices) != 1 || got.Choices[0].Message.Content == "" ||
			got.Usage["prompt_tokens"] != PromptTokens || got.Usage["completion_tokens"] != AnswerTokens ||
			got.Usage["total_tokens"] != PromptTokens+AnswerTokens {
			t.Fatalf("answer %s", answer)
		}
	}
	if got := stats(t, s); got != (Stats{Answers: 2}) {
		t.Errorf("stats %+v, want 2 answers", got)
	}
}

func TestAStream(t *testing.T) {
	s := start(t)
	for body, wantUsage := range map[string]string{streamBody: "", usageBody: `"usage":{"prompt_tokens":16,"completion_tokens":7,"total_tokens":23}`} {
		status, answer := post(t, s, "/every-1ms/chunks-7/v1/chat/completions", strings.NewReader(body))
		content, end := 0, false
		for event := range strings.SplitSeq(strings.TrimSuffix(answer, "\n\n"), "\n\n") {
			data, ok := strings.CutPrefix(event, "data: ")
			switch {
			case !ok:
				t.Fatalf("event %q", event)
			case data == "[DONE]":
				end = true
			case !json.Valid([]byte(data)):
				t.Fatalf("no JSON: %s", data)
			case strings.Contains(data, `"content"`):
				content++
			}
		}
		if status != http.StatusOK || content != 7 || !end || strings.Contains(answer, "usage") != (wantUsage != "") || !strings.Contains(answer, wantUsage) {
			t.Errorf("%s: status %d, %d chunks, ended %v, want 7 and usage %q: %s", body, status, content, end, wantUsage, answer)
		}
	}
	if got := stats(t, s); got != (Stats{Streams: 2, Chunks: 14}) {
		t.Errorf("stats %+v, want 2 streams of 7 chunks", got)
	}
}

// Client and server count the same, whatever comes at once.
func TestEveryRequestIsCountedOnce(t *testing.T) {
	s := start(t)
	for _, load := range []struct {
		path, body     string
		conns          int
		requests, want int64
	}{
		{"/v1/chat/completions", plainBody, 8, 2000, 0},
		{"/every-1ms/chunks-5/v1/chat/completions", streamBody, 50, 300, 300 * 6}, // the finish is an event, too
		{"/every-0s/chunks-1/v1/chat/completions", streamBody, 3, 300, 300 * 2},
	} {
		res, err := loadclient.Run(t.Context(), loadclient.Options{
			Addr: s.Addr(), Conns: load.conns, Requests: load.requests, Streams: load.body == streamBody,
			Next: func(_ int, buf []byte) []byte {
				return loadclient.AppendRequest(buf, http.MethodPost, load.path, s.Addr(), "", []byte(load.body))
			},
		})
		if err != nil || res.ByStatus[http.StatusOK] != load.requests || res.Errors != 0 || res.Events != load.want {
			t.Errorf("%s: %v answers, %d errors (%v), %d events, %v; want %d, 0, %d",
				load.path, res.ByStatus, res.Errors, res.LastErr, res.Events, err, load.requests, load.want)
		}
	}
	if got := stats(t, s); got != (Stats{Answers: 2000, Streams: 600, Chunks: 1800}) {
		t.Errorf("stats %+v", got)
	}
}

// A client that leaves in the middle is counted, and nothing is left of it.
func TestClientsThatLeave(t *testing.T) {
	s := start(t)
	for _, path := range []string{"/every-10s/v1/chat/completions", "/delay-10s/v1/chat/completions"} {
		conn, err := net.Dial("tcp", s.Addr())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = conn.Write(loadclient.AppendRequest(nil, http.MethodPost, path, "x", "", []byte(streamBody)))
		if strings.HasPrefix(path, "/every") {
			if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || !strings.Contains(line, "200") {
				t.Fatalf("%q, %v", line, err)
			}
		}
		_ = conn.Close()
	}
	for s.Stats().Cut < 2 { // the test's own time-out ends it
		time.Sleep(time.Millisecond)
	}
	if got := s.Stats(); got != (Stats{Cut: 2, Chunks: 1}) {
		t.Errorf("stats %+v, want 2 cut after 1 chunk", got)
	}
}

func TestWhatIsNotUnderstoodIsRefused(t *testing.T) {
	s := start(t)
	for _, path := range []string{"/v1/models", "/delay-x/v1/chat/completions", "/chunks-0/v1/chat/completions"} {
		if status, answer := post(t, s, path, strings.NewReader(plainBody)); status != http.StatusBadRequest || !json.Valid([]byte(answer)) {
			t.Errorf("%s: status %d, %s", path, status, answer)
		}
	}
	if got := stats(t, s); got != (Stats{Refused: 3}) {
		t.Errorf("stats %+v, want 3 refused", got)
	}
	if !Healthy(t.Context(), s.Addr()) {
		t.Error("it is not healthy after that")
	}
}

func FuzzReadRequest(f *testing.F) {
	f.Add([]byte("POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 15\r\n\r\n{\"stream\":true}"))
	f.Add([]byte("POST /every-1ms/chunks-3/chat/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"))
	f.Add([]byte("GET /stats HTTP/1.1\r\nConnection: close\r\n\r\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		size, o, err := readRequest(in)
		if err != nil {
			return
		}
		if size <= 0 || size > len(in) || o.kind != kindStats && o.chunks < 1 {
			t.Fatalf("size %d of %d, %+v", size, len(in), o)
		}
		// What is shorter by a byte is not whole.
		if _, _, err := readRequest(in[:size-1]); !errors.Is(err, errMore) && !bytes.Contains(in, []byte("hunked")) {
			t.Fatalf("without its last byte: %v", err)
		}
	})
}
