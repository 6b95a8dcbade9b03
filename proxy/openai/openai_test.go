package openai_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tidwall/gjson"

	"tollgate/admission"
	"tollgate/admission/answer"
	"tollgate/proxy"
	"tollgate/proxy/openai"
	"tollgate/tenancy"
)

// byteCounter counts a token a byte, so that every piece of text that is counted
// shows, and where it is cut does not.
type byteCounter struct{}

func (byteCounter) Count(text []byte) int64 { return int64(len(text)) }
func (byteCounter) Exact() bool             { return true }

// endpoint is the one at a path, which must exist.
func endpoint(tb testing.TB, path string) proxy.Endpoint {
	tb.Helper()
	e, _, ok := openai.New().Endpoint(http.MethodPost, path, nil)
	if !ok {
		tb.Fatalf("no endpoint at %s", path)
	}
	return e
}

// read reads a request that must be understood.
func read(tb testing.TB, e proxy.Endpoint, body string) *proxy.Ask {
	tb.Helper()
	ask, err := e.Read([]byte(body), "application/json", "")
	if err != nil {
		tb.Fatalf("%s: %v", body, err)
	}
	return ask
}

func TestEndpoints(t *testing.T) {
	azureModel := "org/llama-3"
	for _, tt := range []struct{ method, path, name, model string }{
		{"POST", "/v1/chat/completions", "chat/completions", ""},
		{"POST", "/v1/completions", "completions", ""},
		{"POST", "/v1/responses", "responses", ""},
		{"POST", "/v1/embeddings", "embeddings", ""},
		{"POST", "/v1/images/generations", "images/generations", ""},
		{"POST", "/v1/images/edits", "images/edits", ""},
		{"POST", "/v1/audio/speech", "audio/speech", ""},
		{"POST", "/v1/audio/transcriptions", "audio/transcriptions", ""},
		{"POST", "/v1/audio/translations", "audio/translations", ""},
		{"GET", "/v1/models", "models", ""},
		{"GET", "/v1/models/org/llama-3", "models", azureModel},
		{"GET", "/v1/models/", "", ""},
		{"GET", "/openai/models", "models", ""},
		{"POST", "/openai/v1/chat/completions", "chat/completions", ""},
		{"POST", "/openai/responses", "responses", ""},
		{"POST", "/openai/deployments/gpt/chat/completions", "chat/completions", "gpt"},
		{"POST", "/openai/deployments/gpt/completions", "completions", "gpt"},
		{"POST", "/openai/deployments/" + azureModel + "/embeddings", "embeddings", azureModel},
		{"POST", "/openai/deployments/gpt/responses", "", ""},
		{"POST", "/openai/deployments//completions", "", ""},
		{"GET", "/v1/responses/resp_1", "responses/stored", ""},
		{"DELETE", "/v1/responses/resp_1", "responses/stored", ""},
		{"POST", "/v1/responses/resp_1/cancel", "responses/stored", ""},
		{"GET", "/v1/chat/completions", "", ""},
		{"POST", "/v1/models", "", ""},
		{"POST", "/v1/fine_tuning/jobs", "", ""},
		{"POST", "/v2/chat/completions", "", ""},
		{"POST", "/v1/chat/completions/", "", ""},
		{"POST", "/v1/v1/chat/completions", "", ""},
	} {
		for range 8 { // maps are walked in another order each time
			e, model, ok := openai.New().Endpoint(tt.method, tt.path, http.Header{})
			if ok != (tt.name != "") || ok && (e.Name() != tt.name || model != tt.model) {
				t.Fatalf("%s %s: %v %q %v, want %q of %q", tt.method, tt.path, e, model, ok, tt.name, tt.model)
			}
		}
	}
	header := http.Header{"Anthropic-Version": {"2023-06-01"}}
	if _, _, ok := openai.New().Endpoint("GET", "/v1/models", header); ok {
		t.Error("Anthropic's clients list their models at the same path")
	}
	e, _, _ := openai.New().Endpoint("GET", "/v1/responses/resp_1", nil)
	var bad *proxy.BadRequest
	if _, err := e.Read(nil, "", ""); !errors.As(err, &bad) || bad.Status != 404 {
		t.Errorf("a stored response: %v, want a 404", err)
	}
}

func TestCredential(t *testing.T) {
	for _, tt := range []struct {
		header http.Header
		want   string
	}{
		{http.Header{"Authorization": {"Bearer tgk_a"}}, "tgk_a"},
		{http.Header{"Authorization": {"bearer  tgk_a "}}, "tgk_a"},
		{http.Header{"Api-Key": {"tgk_a"}}, "tgk_a"},
		{http.Header{"X-Api-Key": {"tgk_a"}}, "tgk_a"},
		{http.Header{"Authorization": {"Bearer tgk_a"}, "Api-Key": {"tgk_a"}}, "tgk_a"},
		{http.Header{"Authorization": {"Bearer tgk_a"}, "Api-Key": {"tgk_b"}}, ""},
		{http.Header{"Authorization": {"Bearer tgk_a", "Bearer tgk_b"}}, ""},
		{http.Header{"Authorization": {"Basic dGdrX2E6"}}, ""},
		{http.Header{}, ""},
	} {
		if got := openai.New().Credential(tt.header, "api-key=tgk_q"); got != tt.want {
			t.Errorf("%v: %q, want %q", tt.header, got, tt.want)
		}
	}
}

func TestAddress(t *testing.T) {
	for _, tt := range []struct {
		path, query string
		up          proxy.Upstream
		url         string
		header      http.Header
	}{
		{
			"/v1/chat/completions", "api-version=2024-10-21&a=1",
			proxy.Upstream{Base: "https://api.example/v1", Key: "k"},
			"https://api.example/v1/chat/completions?a=1",
			http.Header{"Authorization": {"Bearer k"}},
		},
		{"/v1/responses", "", proxy.Upstream{Base: "http://gpu:8000/v1"}, "http://gpu:8000/v1/responses", http.Header{}},
		{
			"/v1/chat/completions", "api-version=9&a=1",
			proxy.Upstream{Base: "https://r.example", Key: "k", Azure: true, APIVersion: "2024-10-21"},
			"https://r.example/openai/deployments/up%2Fstream/chat/completions?api-version=2024-10-21&a=1",
			http.Header{"Api-Key": {"k"}},
		},
		{
			"/v1/responses", "",
			proxy.Upstream{Base: "https://r.example/openai", Key: "k", Azure: true, APIVersion: "v"},
			"https://r.example/openai/responses?api-version=v",
			http.Header{"Api-Key": {"k"}},
		},
		{
			"/v1/embeddings", "",
			proxy.Upstream{Base: "https://r.example", Key: "k", Azure: true},
			"https://r.example/openai/v1/embeddings",
			http.Header{"Api-Key": {"k"}},
		},
		{
			"/v1/embeddings", "",
			proxy.Upstream{Base: "https://r.example/openai/v1", Key: "k", Azure: true, APIVersion: "v"},
			"https://r.example/openai/v1/embeddings",
			http.Header{"Api-Key": {"k"}},
		},
	} {
		url, header := openai.New().Address(endpoint(t, tt.path), tt.up, "up/stream", tt.query)
		if url != tt.url {
			t.Errorf("%s\nwant %s", url, tt.url)
		}
		if diff := cmp.Diff(tt.header, header); diff != "" {
			t.Errorf("%s: %s", tt.url, diff)
		}
	}
}

func TestModels(t *testing.T) {
	d := openai.New()
	body, ok := d.Models([]string{"a", `b"`}, "")
	want := `{"object":"list","data":[{"id":"a","object":"model","created":0,"owned_by":"tollgate"},{"id":"b\"","object":"model","created":0,"owned_by":"tollgate"}]}`
	if !ok || string(body) != want {
		t.Errorf("%s", body)
	}
	body, ok = d.Models([]string{"a", "b"}, "b")
	if !ok || string(body) != `{"id":"b","object":"model","created":0,"owned_by":"tollgate"}` {
		t.Errorf("%s", body)
	}
	if _, ok = d.Models([]string{"a"}, "c"); ok {
		t.Error("c is not among them")
	}
	if body, ok = d.Models(nil, ""); !ok || string(body) != `{"object":"list","data":[]}` {
		t.Errorf("%s", body)
	}
}

func TestErrors(t *testing.T) {
	limit := func(kind tenancy.Kind, metric tenancy.Metric) *answer.Facts {
		c := &admission.Constraint{Limit: tenancy.Limit{Name: "minute", Layer: "L1", Scope: tenancy.ScopeTenant, Kind: kind, Metric: metric, Limit: 100}}
		return &answer.Facts{Constraint: c, Used: 90, Reserved: 8, Requested: 7}
	}
	for name, tt := range map[string]struct {
		answer answer.Answer
		want   string
	}{
		"key": {
			answer.BadCredential,
			`{"error":{"message":"Send a valid API key as Authorization: Bearer tgk_… or as x-api-key.","type":"invalid_request_error","param":null,"code":"invalid_api_key"},"tollgate":{"reason":"invalid_credential","request_id":"req"}}`,
		},
		"forbidden": {
			answer.Answer{Status: 403, Reason: "tenant_suspended", Detail: "No."},
			`{"error":{"message":"No.","type":"permission_error","param":null,"code":"tenant_suspended"},"tollgate":{"reason":"tenant_suspended","request_id":"req"}}`,
		},
		"model": {
			answer.Answer{Status: 404, Reason: "model_not_found", Field: "model", Detail: "is unknown."},
			`{"error":{"message":"model is unknown.","type":"invalid_request_error","param":"model","code":"model_not_found"},"tollgate":{"reason":"model_not_found","request_id":"req","field":"model"}}`,
		},
		"a field named already": {
			answer.Answer{Status: 400, Reason: "invalid_request", Field: "n", Detail: "n must be a number."},
			`{"error":{"message":"n must be a number.","type":"invalid_request_error","param":"n","code":"invalid_request"},"tollgate":{"reason":"invalid_request","request_id":"req","field":"n"}}`,
		},
		"in flight": {
			answer.Answer{Status: 409, Reason: "in_flight", Detail: "Wait.", RetryAfter: 1},
			`{"error":{"message":"Wait.","type":"invalid_request_error","param":null,"code":"in_flight"},"tollgate":{"reason":"in_flight","request_id":"req","retry_after":1}}`,
		},
		"tokens": {
			answer.Answer{Status: 429, Reason: "used", Detail: "Slow.", RetryAfter: 9, Limit: limit(tenancy.KindRing, tenancy.MetricTokens)},
			`{"error":{"message":"Slow.","type":"tokens","param":null,"code":"rate_limit_exceeded"},"tollgate":{"reason":"used","request_id":"req","retry_after":9,"name":"minute","layer":"L1","scope":"tenant","unit":"tokens","limit":100,"used":90,"reserved":8,"requested":7}}`,
		},
		"requests": {
			answer.Answer{Status: 429, Reason: "rate", Detail: "Slow.", RetryAfter: 1, Limit: limit(tenancy.KindRate, tenancy.MetricRequests)},
			`{"error":{"message":"Slow.","type":"requests","param":null,"code":"rate_limit_exceeded"},"tollgate":{"reason":"rate","request_id":"req","retry_after":1,"name":"minute","layer":"L1","scope":"tenant","unit":"requests","limit":100,"used":90,"reserved":8,"requested":7}}`,
		},
		"spent": {
			answer.Answer{Status: 402, Reason: "budget_spent", Detail: "Spent.", GiveUp: true, Limit: limit(tenancy.KindCounter, tenancy.MetricTokens)},
			`{"error":{"message":"Spent.","type":"insufficient_quota","param":null,"code":"insufficient_quota"},"tollgate":{"reason":"budget_spent","request_id":"req","name":"minute","layer":"L1","scope":"tenant","unit":"tokens","limit":100,"used":90,"reserved":8,"requested":7}}`,
		},
		"ours": {
			answer.Answer{Status: 503, Reason: "state_unavailable", Detail: "Later.", RetryAfter: 1},
			`{"error":{"message":"Later.","type":"server_error","param":null,"code":"state_unavailable"},"tollgate":{"reason":"state_unavailable","request_id":"req","retry_after":1}}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := openai.New().Error(&tt.answer, "req")
			if diff := cmp.Diff(tt.want, string(got)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestErrorEvents(t *testing.T) {
	a := &answer.Answer{Status: 502, Reason: "upstream_broke_off", Detail: "It \"broke\" off."}
	got := string(openai.New().ErrorEvent(endpoint(t, "/v1/chat/completions"), a, "req"))
	want := `data: {"error":{"message":"It \"broke\" off.","type":"server_error","param":null,"code":"upstream_broke_off"},"tollgate":{"reason":"upstream_broke_off","request_id":"req"}}` + "\n\ndata: [DONE]\n\n"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	got = string(openai.New().ErrorEvent(endpoint(t, "/v1/responses"), a, "req"))
	data, ok := strings.CutPrefix(got, "event: error\ndata: ")
	if !ok || !gjson.Valid(data) || !strings.HasSuffix(data, "}\n\n") {
		t.Fatalf("%s", got)
	}
	for path, want := range map[string]string{"type": "error", "code": "upstream_broke_off", "message": `It "broke" off.`, "error.type": "server_error", "tollgate.request_id": "req"} {
		if v := gjson.Get(data, path).String(); v != want {
			t.Errorf("%s is %q, want %q", path, v, want)
		}
	}
}
