package route

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"tollgate/proxy"
	"tollgate/proxy/upstream"
)

// TestTransports: the lean one serves what it can, net/http's the rest.
func TestTransports(t *testing.T) {
	for base, lean := range map[string]bool{
		"http://10.0.0.1:8000/v1": true, "http://vllm/v1": true, "https://api.example/v1": false, "http://bücher.example/v1": false, "": false,
	} {
		up := &Upstream{Server: proxy.Upstream{Base: base}, ConnectTimeout: time.Second}
		if _, ok := newTransport(up).(*upstream.Transport); ok != lean {
			t.Errorf("%q: lean %v", base, ok)
		}
		up.EnvironmentProxy = true
		if _, ok := newTransport(up).(*http.Transport); !ok {
			t.Errorf("%q goes past the environment's proxy", base)
		}
	}
}

// TestTimeoutOfALeanTransport: a table's response_timeout bounds the wait for an
// answer there, too, and its redirects are not followed.
func TestTimeoutOfALeanTransport(t *testing.T) {
	block := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			<-block
		}
		http.Redirect(w, r, "/elsewhere", http.StatusFound)
	}))
	defer server.Close()
	defer close(block)
	client := newClient(&Upstream{
		Server: proxy.Upstream{Base: server.URL}, ConnectTimeout: time.Second, ResponseTimeout: 50 * time.Millisecond,
	})
	defer client.CloseIdleConnections()
	res, err := client.Get(server.URL + "/x")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		t.Error(err)
	}
	_ = res.Body.Close()
	if res.StatusCode != http.StatusFound {
		t.Errorf("status %d", res.StatusCode)
	}
	if res, err = client.Get(server.URL + "/slow"); err == nil {
		_ = res.Body.Close()
		t.Error("an answer that does not begin was waited for")
	}
}
