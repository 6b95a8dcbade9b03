package anthropic_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"

	"tollgate/admission"
	"tollgate/admission/answer"
	"tollgate/proxy"
	"tollgate/proxy/anthropic"
	"tollgate/proxy/sse"
	"tollgate/tenancy"
)

// words counts words. Inexact, it is a tokenizer that was made for another
// model.
type words struct{ inexact bool }

func (words) Count(text []byte) int64 { return int64(len(bytes.Fields(text))) }
func (w words) Exact() bool           { return !w.inexact }

// endpoint finds the endpoint of a path.
func endpoint(t testing.TB, path string) proxy.Endpoint {
	t.Helper()
	e, _, ok := anthropic.New().Endpoint("POST", path, nil)
	if !ok {
		t.Fatalf("no endpoint at %s", path)
	}
	return e
}

func read(t testing.TB, body string) (proxy.Endpoint, *proxy.Ask) {
	t.Helper()
	e := endpoint(t, "/v1/messages")
	ask, err := e.Read([]byte(body), "application/json", "")
	if err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return e, ask
}

func TestEndpoints(t *testing.T) {
	speaks := http.Header{"Anthropic-Version": {"2023-06-01"}}
	for _, tt := range []struct {
		method, path string
		header       http.Header
		name, model  string
		free         bool
	}{
		{"POST", "/v1/messages", nil, "messages", "", false},
		{"POST", "/v1/messages/count_tokens", nil, "messages/count_tokens", "", true},
		{"GET", "/v1/models", speaks, "models", "", true},
		{"GET", "/v1/models/claude-sonnet-5", speaks, "models", "claude-sonnet-5", true},
		{"GET", "/v1/models/meta/llama", speaks, "models", "meta/llama", true},
		{"GET", "/v1/models", nil, "", "", false},
		{"GET", "/v1/models/gpt-5", http.Header{}, "", "", false},
		{"GET", "/v1/modelsx", speaks, "", "", false},
		{"GET", "/v1/models/", speaks, "", "", false},
		{"GET", "/v1/messages", speaks, "", "", false},
		{"POST", "/v1/messages/batches", nil, "", "", false},
		{"POST", "/v1/messages/", nil, "", "", false},
		{"POST", "/v1/chat/completions", speaks, "", "", false},
		{"POST", "/v1/models", speaks, "", "", false},
	} {
		e, model, ok := anthropic.New().Endpoint(tt.method, tt.path, tt.header)
		if ok != (tt.name != "") {
			t.Errorf("%s %s: found %v", tt.method, tt.path, ok)
			continue
		}
		if ok && (e.Name() != tt.name || model != tt.model || e.Free() != tt.free) {
			t.Errorf("%s %s: %s %q free %v", tt.method, tt.path, e.Name(), model, e.Free())
		}
	}
}

func TestCredential(t *testing.T) {
	for name, tt := range map[string]struct {
		header http.Header
		want   string
	}{
		"none":               {http.Header{}, ""},
		"api_key":            {http.Header{"X-Api-Key": {"tgk_a"}}, "tgk_a"},
		"auth_token":         {http.Header{"Authorization": {"Bearer tgk_a"}}, "tgk_a"},
		"scheme's case":      {http.Header{"Authorization": {"bearer  tgk_a "}}, "tgk_a"},
		"both, the same":     {http.Header{"X-Api-Key": {"tgk_a"}, "Authorization": {"Bearer tgk_a"}}, "tgk_a"},
		"both, not the same": {http.Header{"X-Api-Key": {"tgk_a"}, "Authorization": {"Bearer tgk_b"}}, ""},
		"two keys":           {http.Header{"X-Api-Key": {"tgk_a", "tgk_b"}}, ""},
		"two tokens":         {http.Header{"Authorization": {"Bearer tgk_a", "Bearer tgk_b"}}, ""},
		"not a bearer":       {http.Header{"Authorization": {"Basic dTpw"}}, ""},
		"empty key":          {http.Header{"X-Api-Key": {""}, "Authorization": {"Bearer tgk_a"}}, "tgk_a"},
	} {
		if got := anthropic.New().Credential(tt.header, "key=tgk_query"); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

func TestAddress(t *testing.T) {
	up := proxy.Upstream{Base: "https://api.anthropic.com", Key: "sk-ant-x"}
	d := anthropic.New()
	url, header := d.Address(endpoint(t, "/v1/messages"), up, "claude", "beta=true")
	if url != "https://api.anthropic.com/v1/messages?beta=true" {
		t.Error(url)
	}
	if diff := cmp.Diff(http.Header{"X-Api-Key": {"sk-ant-x"}, "Anthropic-Version": {"2023-06-01"}}, header); diff != "" {
		t.Error(diff)
	}
	url, header = d.Address(endpoint(t, "/v1/messages/count_tokens"), proxy.Upstream{Base: "http://127.0.0.1:1/anthropic"}, "claude", "")
	if url != "http://127.0.0.1:1/anthropic/v1/messages/count_tokens" || len(header["X-Api-Key"]) != 0 {
		t.Error(url, header)
	}
	models, _, _ := d.Endpoint("GET", "/v1/models", http.Header{"Anthropic-Version": {"x"}})
	if url, _ = d.Address(models, up, "../../admin?x", ""); url != "https://api.anthropic.com/v1/models/..%2F..%2Fadmin%3Fx" {
		t.Error(url)
	}
}

func TestModels(t *testing.T) {
	d := anthropic.New()
	for name, tt := range map[string]struct {
		ids  []string
		only string
		want string
	}{
		"none": {nil, "", `{"data":[],"has_more":false,"first_id":null,"last_id":null}`},
		"two": {
			[]string{"a", "b\"c"},
			"",
			`{"data":[{"type":"model","id":"a","display_name":"a","created_at":"1970-01-01T00:00:00Z"},` +
				`{"type":"model","id":"b\"c","display_name":"b\"c","created_at":"1970-01-01T00:00:00Z"}],` +
				`"has_more":false,"first_id":"a","last_id":"b\"c"}`,
		},
		"one":     {[]string{"a", "b"}, "b", `{"type":"model","id":"b","display_name":"b","created_at":"1970-01-01T00:00:00Z"}`},
		"missing": {[]string{"a"}, "b", ""},
	} {
		body, ok := d.Models(tt.ids, tt.only)
		if ok != (tt.want != "") || string(body) != tt.want {
			t.Errorf("%s: %s", name, body)
		}
		if ok && !json.Valid(body) {
			t.Errorf("%s: not JSON: %s", name, body)
		}
	}
}

// errorBody is how the official clients read an error.
type errorBody struct {
	Type  string
	Error struct {
		Type, Message string
		Details       struct {
			Code string `json:"error_code"`
		}
	}
	RequestID string `json:"request_id"`
	Tollgate  map[string]any
}

func TestErrorTypesByStatus(t *testing.T) {
	for status, want := range map[int]string{
		400: "invalid_request_error", 401: "authentication_error", 402: "billing_error", 403: "permission_error",
		404: "not_found_error", 405: "invalid_request_error", 408: "timeout_error", 409: "conflict_error",
		413: "request_too_large", 415: "invalid_request_error", 422: "invalid_request_error",
		429: "rate_limit_error", 500: "api_error", 502: "api_error", 503: "overloaded_error",
		504: "timeout_error", 529: "overloaded_error",
	} {
		a := &answer.Answer{Status: status, Reason: "why", Detail: "What \"to\" do.\n", RetryAfter: 7}
		var body errorBody
		if err := json.Unmarshal(anthropic.New().Error(a, "gw-1"), &body); err != nil {
			t.Fatal(err)
		}
		if body.Type != "error" || body.Error.Type != want || body.Error.Message != a.Detail || body.RequestID != "gw-1" ||
			body.Error.Details.Code != "why" || body.Tollgate["reason"] != "why" || body.Tollgate["retry_after"] != 7.0 {
			t.Errorf("%d: %+v", status, body)
		}
	}
}

func TestErrorCarriesTheLimitsFacts(t *testing.T) {
	a := answer.OfRefusal(&admission.Refusal{
		Constraint: admission.Constraint{Limit: tenancy.Limit{Name: "month", Layer: "L1", Limit: 100, Budget: true, Metric: "tokens", Scope: "tenant"}},
		Reason:     admission.ReasonSpent, Used: 90, Held: 5, Requested: 10,
	})
	got := string(anthropic.New().Error(a, "gw-2"))
	want := `{"type":"error","error":{"type":"billing_error","message":"The budget month is spent. Waiting will not help; have it raised or wait for its next period.",` +
		`"details":{"error_code":"budget_spent"}},"request_id":"gw-2",` +
		`"tollgate":{"reason":"budget_spent","request_id":"gw-2","name":"month","layer":"L1","scope":"tenant","unit":"tokens","limit":100,"used":90,"reserved":5,"requested":10}}`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestErrorNamesTheFieldOnce(t *testing.T) {
	for _, detail := range []string{"must name a model", "model must name a model"} {
		var body errorBody
		a := &answer.Answer{Status: 400, Field: "model", Detail: detail, Cause: http.ErrBodyNotAllowed}
		if err := json.Unmarshal(anthropic.New().Error(a, ""), &body); err != nil {
			t.Fatal(err)
		}
		if body.Error.Message != "model must name a model" || body.Tollgate["field"] != "model" {
			t.Errorf("%+v", body)
		}
	}
}

func TestErrorEvent(t *testing.T) {
	event := anthropic.New().ErrorEvent(endpoint(t, "/v1/messages"), &answer.Answer{Status: 529, Reason: "x", Detail: "a\nb"}, "gw-3")
	var got []string
	each := func(ev sse.Event) error {
		got = append(got, string(ev.Name)+" "+string(ev.Data))
		return nil
	}
	if err := sse.New(0).Feed(event, each); err != nil {
		t.Fatal(err)
	}
	want := []string{`error {"type":"error","error":{"type":"overloaded_error","message":"a\u000ab","details":{"error_code":"x"}},"request_id":"gw-3","tollgate":{"reason":"x","request_id":"gw-3"}}`}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
