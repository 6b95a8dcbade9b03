package fakeprovider

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// client opens a connection for each request, so that none is left over and a
// broken one is not tried again.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// start runs a server for one test.
func start(t testing.TB, opts Options) *Server {
	t.Helper()
	s := New(opts)
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := s.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
	return s
}

// reply is what a client saw.
type seen struct {
	status int
	header http.Header
	body   string
	err    error // of reading the body, or of the request where status is 0
}

func request(t testing.TB, ctx context.Context, method, url, body string, header ...string) (*http.Response, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	return client.Do(req)
}

// post sends a body and reads the answer as far as it comes.
func send(t testing.TB, url, body string, header ...string) seen {
	t.Helper()
	res, err := request(t, t.Context(), http.MethodPost, url, body, header...)
	if err != nil {
		return seen{err: err}
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	return seen{res.StatusCode, res.Header, string(data), err}
}

func get(t testing.TB, url string, header ...string) seen {
	t.Helper()
	res, err := request(t, t.Context(), http.MethodGet, url, "", header...)
	if err != nil {
		return seen{err: err}
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	return seen{res.StatusCode, res.Header, string(data), err}
}

// events are the data of a stream's events.
func events(body string) []string {
	var all []string
	scanner := bufio.NewScanner(strings.NewReader(body))
	scanner.Buffer(nil, 8<<20)
	for scanner.Scan() {
		if data, ok := strings.CutPrefix(strings.TrimRight(scanner.Text(), "\r"), "data: "); ok {
			all = append(all, data)
		}
	}
	return all
}

// joined is the text at path of all events.
func joined(body, path string) string {
	var b strings.Builder
	for _, data := range events(body) {
		b.WriteString(gjson.Get(data, path).String())
	}
	return b.String()
}

// eventually waits until check is true.
func eventually(t testing.TB, what string, check func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !check(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it never came: %s", what)
		}
	}
}

// last is the record of the exchange that ended last; a client may see the end
// of an answer before the server has written it down.
func last(t testing.TB, s *Server, n int) Record {
	t.Helper()
	eventually(t, "the record", func() bool { return len(s.Records()) >= n })
	return s.Records()[n-1]
}
