package gemini_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"tollgate/admission"
	"tollgate/admission/answer"
	"tollgate/proxy"
	"tollgate/proxy/gemini"
	"tollgate/tenancy"
)

// words counts words. Inexact, it is a tokenizer that was made for another
// model.
type words struct{ inexact bool }

func (words) Count(text []byte) int64 { return int64(len(bytes.Fields(text))) }
func (w words) Exact() bool           { return !w.inexact }

// verb finds the endpoint of a method of the API.
func verb(t testing.TB, name string) proxy.Endpoint {
	t.Helper()
	e, _, ok := gemini.New().Endpoint("POST", "/v1beta/models/g:"+name, nil)
	if !ok {
		t.Fatalf("no endpoint %s", name)
	}
	return e
}

func TestEndpoints(t *testing.T) {
	for _, tt := range []struct {
		method, path string
		name, model  string
		free         bool
	}{
		{"POST", "/v1beta/models/gemini-3:generateContent", "generate_content", "gemini-3", false},
		{"POST", "/v1beta/models/gemini-3:streamGenerateContent", "generate_content", "gemini-3", false},
		{"POST", "/v1/models/gemini-3:generateContent", "generate_content", "gemini-3", false},
		{"POST", "/v1/models/gemini-3:streamGenerateContent", "generate_content", "gemini-3", false},
		{"POST", "/v1beta/models/gemini-3:countTokens", "count_tokens", "gemini-3", true},
		{"GET", "/v1beta/models", "models", "", true},
		{"GET", "/v1beta/models/gemini-3", "models", "gemini-3", true},
		{"GET", "/v1/models", "", "", false},
		{"GET", "/v1/models/gpt-5", "", "", false},
		{"GET", "/v1beta/models/", "", "", false},
		{"GET", "/v1beta/models/a:generateContent", "", "", false},
		{"GET", "/v1beta/modelsx", "", "", false},
		{"POST", "/v1beta/models", "", "", false},
		{"POST", "/v1beta/models/gemini-3", "", "", false},
		{"POST", "/v1beta/models/:generateContent", "", "", false},
		{"POST", "/v1beta/models/a/b:generateContent", "", "", false},
		{"POST", "/v1beta/models/a:batchEmbedContents", "", "", false},
		{"POST", "/v1beta/models/a:generateContent:generateContent", "", "", false},
		{"POST", "/v2/models/a:generateContent", "", "", false},
		{"POST", "/v1/messages", "", "", false},
		{"POST", "/", "", "", false},
	} {
		e, model, ok := gemini.New().Endpoint(tt.method, tt.path, nil)
		if ok != (tt.name != "") {
			t.Errorf("%s %s: found %v", tt.method, tt.path, ok)
			continue
		}
		if ok && (e.Name() != tt.name || model != tt.model || e.Free() != tt.free) {
			t.Errorf("%s %s: %s %q free %v", tt.method, tt.path, e.Name(), model, e.Free())
		}
	}
}

// /v1/models belongs to those who bring their key as Gemini's clients do.
func TestModelsOfTheStableVersion(t *testing.T) {
	header := http.Header{"X-Goog-Api-Key": {"tgk_a"}}
	for path, want := range map[string]string{"/v1/models": "", "/v1/models/gemini-3": "gemini-3"} {
		e, model, ok := gemini.New().Endpoint("GET", path, header)
		if !ok || e.Name() != "models" || model != want {
			t.Errorf("%s: %q %v", path, model, ok)
		}
		if url, _ := gemini.New().Address(e, proxy.Upstream{Base: "http://up"}, model, ""); url != "http://up"+path {
			t.Error(url)
		}
	}
}

func TestCredential(t *testing.T) {
	key := func(values ...string) http.Header { return http.Header{"X-Goog-Api-Key": values} }
	for name, tt := range map[string]struct {
		header http.Header
		query  string
		want   string
	}{
		"none":                {nil, "alt=sse", ""},
		"header":              {key("tgk_a"), "", "tgk_a"},
		"query":               {nil, "alt=sse&key=tgk_a", "tgk_a"},
		"query, escaped":      {nil, "k%65y=tgk%5fa", "tgk_a"},
		"both, the same":      {key("tgk_a"), "key=tgk_a", "tgk_a"},
		"both, not the same":  {key("tgk_a"), "key=tgk_b", ""},
		"two in the query":    {nil, "key=tgk_a&key=tgk_b", ""},
		"two headers":         {key("tgk_a", "tgk_b"), "", ""},
		"broken escape":       {nil, "key=%zz", ""},
		"another dialect's":   {http.Header{"X-Api-Key": {"tgk_a"}}, "", ""},
		"empty in the header": {key(""), "key=tgk_a", "tgk_a"},
	} {
		if got := gemini.New().Credential(tt.header, tt.query); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

func TestAddress(t *testing.T) {
	up := proxy.Upstream{Base: "https://generativelanguage.googleapis.com", Key: "AIza-x"}
	for name, tt := range map[string]struct{ path, model, query, want string }{
		"generate":         {"/v1beta/models/a:generateContent", "gemini-3", "", "/v1beta/models/gemini-3:generateContent"},
		"v1":               {"/v1/models/a:generateContent", "gemini-3", "x=1&y=%20", "/v1/models/gemini-3:generateContent?x=1&y=%20"},
		"stream":           {"/v1beta/models/a:streamGenerateContent", "gemini-3", "alt=sse", "/v1beta/models/gemini-3:streamGenerateContent?alt=sse"},
		"stream, always":   {"/v1beta/models/a:streamGenerateContent", "gemini-3", "x=1&alt=json", "/v1beta/models/gemini-3:streamGenerateContent?x=1&alt=sse"},
		"a key left in":    {"/v1beta/models/a:generateContent", "gemini-3", "k%65y=tgk_secret&x=1&key=tgk_secret", "/v1beta/models/gemini-3:generateContent?x=1"},
		"count":            {"/v1beta/models/a:countTokens", "gemini-3", "", "/v1beta/models/gemini-3:countTokens"},
		"a model's escape": {"/v1beta/models/a:generateContent", "../x?y", "", "/v1beta/models/..%2Fx%3Fy:generateContent"},
	} {
		e, _, ok := gemini.New().Endpoint("POST", tt.path, nil)
		if !ok {
			t.Fatal(name)
		}
		got, header := gemini.New().Address(e, up, tt.model, tt.query)
		if got != up.Base+tt.want {
			t.Errorf("%s: %s", name, got)
		}
		if diff := cmp.Diff(http.Header{"X-Goog-Api-Key": {"AIza-x"}}, header); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestStreamsAreEventsOnly(t *testing.T) {
	for query, ok := range map[string]bool{
		"alt=sse": true, "x=1&alt=sse&y=2": true, "": false, "alt=json": false, "alt=sse&alt=json": false, "alt=SSE": false, "alt=%zz": false,
	} {
		err := verb(t, "streamGenerateContent").(proxy.QueryReader).ReadQuery(query)
		var bad *proxy.BadRequest
		if (err == nil) != ok || err != nil && (!errors.As(err, &bad) || !strings.Contains(bad.Detail, "?alt=sse")) {
			t.Errorf("%q: %v", query, err)
		}
	}
	if err := verb(t, "generateContent").(proxy.QueryReader).ReadQuery(""); err != nil {
		t.Error(err)
	}
}

func TestModels(t *testing.T) {
	one := `{"name":"models/a","displayName":"a","supportedGenerationMethods":["generateContent","countTokens"]}`
	for name, tt := range map[string]struct {
		ids  []string
		only string
		want string
	}{
		"none":    {nil, "", `{"models":[]}`},
		"two":     {[]string{"a", "b"}, "", `{"models":[` + one + `,` + strings.ReplaceAll(strings.ReplaceAll(one, "/a", "/b"), `"a"`, `"b"`) + `]}`},
		"one":     {[]string{"a", "b"}, "a", one},
		"missing": {[]string{"a"}, "b", ""},
	} {
		body, ok := gemini.New().Models(tt.ids, tt.only)
		if ok != (tt.want != "") || string(body) != tt.want {
			t.Errorf("%s: %s", name, body)
		}
	}
}

func TestErrorStatuses(t *testing.T) {
	for code, want := range map[int]string{
		400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 402: "FAILED_PRECONDITION", 403: "PERMISSION_DENIED", 404: "NOT_FOUND",
		408: "DEADLINE_EXCEEDED", 409: "ABORTED", 413: "INVALID_ARGUMENT", 422: "INVALID_ARGUMENT", 429: "RESOURCE_EXHAUSTED",
		499: "CANCELLED", 500: "INTERNAL", 501: "UNIMPLEMENTED", 502: "UNAVAILABLE", 503: "UNAVAILABLE", 504: "DEADLINE_EXCEEDED", 529: "INTERNAL",
	} {
		var body struct {
			Error struct {
				Code            int
				Message, Status string
			}
		}
		if err := json.Unmarshal(gemini.New().Error(&answer.Answer{Status: code, Detail: "d"}, ""), &body); err != nil {
			t.Fatal(err)
		}
		if body.Error.Code != code || body.Error.Status != want || body.Error.Message != "d" {
			t.Errorf("%d: %+v", code, body)
		}
	}
}

func TestErrorCarriesTheLimitsFacts(t *testing.T) {
	a := answer.OfRefusal(&admission.Refusal{
		Constraint: admission.Constraint{Limit: tenancy.Limit{Name: "minute", Layer: "L1", Limit: 100, Kind: tenancy.KindRing, Metric: "tokens", Scope: "tenant"}},
		Reason:     "window_full", Used: 90, Held: 5, Requested: 10, RetryAfter: 7e9,
	})
	want := `{"error":{"code":429,"message":"The limit minute is used up for now. Repeat after 7 s, or ask for fewer tokens.","status":"RESOURCE_EXHAUSTED","details":[` +
		`{"@type":"type.googleapis.com/google.rpc.ErrorInfo","reason":"WINDOW_FULL","domain":"tollgate"},` +
		`{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"7s"},` +
		`{"@type":"type.googleapis.com/google.rpc.RequestInfo","requestId":"gw-1"}]},` +
		`"tollgate":{"reason":"window_full","request_id":"gw-1","retry_after":7,"name":"minute","layer":"L1","scope":"tenant","unit":"tokens","limit":100,"used":90,"reserved":5,"requested":10}}`
	if got := string(gemini.New().Error(a, "gw-1")); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got := string(gemini.New().ErrorEvent(verb(t, "streamGenerateContent"), a, "gw-1")); got != "data: "+want+"\n\n" {
		t.Errorf("as an event: %s", got)
	}
}
