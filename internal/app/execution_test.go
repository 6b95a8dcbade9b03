package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"tollgate/reconcile"
)

func TestExecutionClientAsksAndReadsTheAnswer(t *testing.T) {
	t.Parallel()
	var asked []string
	answer := ""
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Method+" "+r.URL.Path+"?"+r.URL.Query().Encode())
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		io.WriteString(w, answer)
	}))
	defer server.Close()
	c, err := newExecutionClient(server.URL + "/status?cluster=a%26b#part")
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	for _, want := range []reconcile.Execution{reconcile.ExecutionRunning, reconcile.ExecutionEnded, reconcile.ExecutionUnknown} {
		answer = fmt.Sprintf(`{"status":%q,"node":"n7"}`, want)
		got, err := c.Status(t.Context(), "acme", "r&1=ü")
		if err != nil || got != want {
			t.Errorf("answer %s: got %q, %v", answer, got, err)
		}
	}
	for _, got := range asked {
		if want := "GET /status?cluster=a%26b&request_id=r%261%3D%C3%BC&tenant_id=acme"; got != want {
			t.Errorf("asked %s\nwant  %s", got, want)
		}
	}
}

func TestExecutionClientTakesEverythingElseForUnknown(t *testing.T) {
	t.Parallel()
	elsewhere := false
	mux := http.NewServeMux()
	reply := func(path string, status int, contentType, body string) {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", contentType)
			w.WriteHeader(status)
			io.WriteString(w, body)
		})
	}
	const js, ended = "application/json", `{"status":"ended"}`
	reply("/404", 404, js, ended)
	reply("/500", 500, js, ended)
	reply("/201", 201, js, ended)
	reply("/html", 200, "text/html", ended)
	reply("/no-type", 200, "", ended)
	reply("/empty", 200, js, "")
	reply("/cut", 200, js, `{"status":"ended"`)
	reply("/two", 200, js, ended+ended)
	reply("/array", 200, js, `["ended"]`)
	reply("/number", 200, js, `{"status":2}`)
	reply("/other-word", 200, js, `{"status":"finished"}`)
	reply("/no-status", 200, js, `{}`)
	reply("/long", 200, js, ended+strings.Repeat(" ", executionMaxBody))
	mux.HandleFunc("/redirect", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", http.StatusFound) })
	mux.HandleFunc("/elsewhere", func(w http.ResponseWriter, _ *http.Request) {
		elsewhere = true
		w.Header().Set("Content-Type", js)
		io.WriteString(w, ended)
	})
	mux.HandleFunc("/dies", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	server := httptest.NewServer(mux)
	defer server.Close()
	for _, path := range []string{
		"/404", "/500", "/201", "/html", "/no-type", "/empty", "/cut", "/two", "/array", "/number", "/other-word",
		"/no-status", "/long", "/redirect", "/dies",
	} {
		c, err := newExecutionClient(server.URL + path + "?token=secret")
		if err != nil {
			t.Fatal(err)
		}
		got, err := c.Status(t.Context(), "acme", "r-1")
		if err == nil || got != reconcile.ExecutionUnknown {
			t.Errorf("%s: got %q, %v; want unknown and an error", path, got, err)
		} else if strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: the error tells the URL's token: %v", path, err)
		}
		c.close()
	}
	if elsewhere {
		t.Error("the client followed a redirect to a URL that nobody configured")
	}
}

// A service that accepts and never answers holds nobody up longer than its
// caller allows.
func TestExecutionClientStopsWaiting(t *testing.T) {
	t.Parallel()
	reached, release := make(chan struct{}), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		close(reached)
		<-release
	}))
	defer server.Close()
	defer close(release)
	c, err := newExecutionClient(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	if c.client.Timeout != executionTimeout {
		t.Errorf("a question may take %s, want %s", c.client.Timeout, executionTimeout)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-reached; cancel() }()
	got, err := c.Status(ctx, "acme", "r-1")
	if !errors.Is(err, context.Canceled) || got != reconcile.ExecutionUnknown {
		t.Errorf("got %q, %v; want unknown and the caller's end", got, err)
	}
}
