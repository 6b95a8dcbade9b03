package forward

import (
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"tollgate/events"
	"tollgate/tenancy"
)

// What is refused before anything goes upstream, and how.
func TestRefusals(t *testing.T) {
	t.Parallel()
	budget := tenancy.Limit{
		Name: "budget", Layer: "L1", Kind: tenancy.KindCounter, Scope: tenancy.ScopeTenant, Metric: tenancy.MetricTokens, Limit: 20,
		Period: tenancy.PeriodNone, Budget: true,
	}
	oneSlot := concurrency(0)
	for name, c := range map[string]struct {
		limits  []tenancy.Limit
		prepare func(w *world, r *http.Request)
		extra   string
		status  int
		code    string
		header  map[string]string
	}{
		"no credential": {
			prepare: func(_ *world, r *http.Request) { r.Header.Del("Authorization") }, status: 401, code: "invalid_api_key",
		},
		"unknown key": {
			prepare: func(_ *world, r *http.Request) { r.Header.Set("Authorization", "Bearer tgk_x") }, status: 401, code: "invalid_api_key",
			header: map[string]string{"Www-Authenticate": `Bearer realm="tollgate"`},
		},
		"two keys": {
			prepare: func(_ *world, r *http.Request) { r.Header.Set("X-Api-Key", "another") }, status: 401, code: "invalid_api_key",
		},
		"suspended": {prepare: func(w *world, _ *http.Request) { w.tenant.Suspended = true }, status: 403, code: "tenant_suspended"},
		"operator's key": {prepare: func(w *world, _ *http.Request) {
			p := w.dir.keys[w.key]
			p.Key.Role, p.Tenant = tenancy.RoleOperator, nil
			w.dir.keys[w.key] = p
		}, status: 403, code: "role_not_allowed", header: map[string]string{"X-Should-Retry": "false"}},
		"too large": {
			prepare: func(w *world, _ *http.Request) { w.handler.opts.MaxBodyBytes = 10 }, status: 413, code: "body_too_large",
		},
		"too large without a length": {prepare: func(w *world, r *http.Request) {
			w.handler.opts.MaxBodyBytes = 10
			r.Body, r.ContentLength = io.NopCloser(strings.NewReader(strings.Repeat("x", 1000))), -1
		}, status: 413, code: "body_too_large"},
		"no room for large bodies": {prepare: func(w *world, r *http.Request) {
			w.handler.opts.MaxBodiesBytes = 100_000
			r.Body, r.ContentLength = io.NopCloser(strings.NewReader(strings.Repeat(" ", 100_001))), 100_001
		}, status: 503, code: "too_many_large_bodies", header: map[string]string{"Retry-After": "1"}},
		"compressed": {
			prepare: func(_ *world, r *http.Request) { r.Header.Set("Content-Encoding", "gzip") }, status: 415, code: "encoding_not_supported",
		},
		"a key twice": {extra: `,"model":"m"`, status: 400, code: "invalid_request"},
		"a model that cannot be recorded": {prepare: func(_ *world, r *http.Request) {
			body := `{"model":"a|b","messages":[]}`
			r.Body, r.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
		}, status: 400, code: "invalid_request"},
		"unknown model": {prepare: func(_ *world, r *http.Request) {
			body := `{"model":"nobody's","messages":[{"role":"user","content":"x"}]}`
			r.Body, r.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
		}, status: 404, code: "model_not_found"},
		"unknown region": {
			prepare: func(_ *world, r *http.Request) { r.Header.Set("X-Tollgate-Region", "moon") }, status: 404, code: "model_not_found",
		},
		"the budget is spent": {
			limits: []tenancy.Limit{budget}, extra: `,"max_tokens":1000`, status: 402, code: "insufficient_quota",
			header: map[string]string{"X-Should-Retry": "false", "Retry-After": "", "Ratelimit": `"budget";r=20`},
		},
		"no slot": {
			limits: []tenancy.Limit{oneSlot}, status: 429, code: "rate_limit_exceeded",
			header: map[string]string{"Retry-After": "5", "X-Should-Retry": "", "Ratelimit-Policy": `"concurrency";q=0`},
		},
		"larger than the window": {
			limits: []tenancy.Limit{perMinute(20)}, extra: `,"max_tokens":1000`, status: 429, code: "rate_limit_exceeded",
			header: map[string]string{"X-Should-Retry": "false"},
		},
		"more than can be counted": {extra: `,"max_tokens":9000000000000000`, status: 400, code: "invalid_request"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, setup{limits: c.limits})
			r := w.request(t.Context(), c.extra)
			if c.prepare != nil {
				c.prepare(w, r)
			}
			a := w.do(r)
			if a.status != c.status || !strings.Contains(a.body, c.code) || a.header.Get("X-Tollgate-Error-Source") != "tollgate" ||
				a.header.Get("X-Request-Id") == "" || a.header.Get("Content-Type") != "application/json" {
				t.Errorf("answer %d %v %s", a.status, a.header, a.body)
			}
			for name, want := range c.header {
				if got := a.header.Get(name); got != want {
					t.Errorf("%s is %q, want %q", name, got, want)
				}
			}
			if n := w.upstreams[0].calls.Load(); n != 0 {
				t.Errorf("%d calls upstream", n)
			}
			if list := w.finals(); len(list) != 0 {
				t.Errorf("left in the log: %+v", list)
			}
		})
	}
}

// A body is not read for who is not known.
func TestNobodysBodyIsNotRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	conn, err := net.Dial("tcp", w.server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\nContent-Type: application/json\r\n\r\n{")
	if line := firstLine(t, conn); !strings.Contains(line, "401") {
		t.Errorf("answered %q", line)
	}
}

// A body that comes without its length takes as much room as it has, once it is
// there: small ones take none.
func TestRoomOfBodiesWithoutLength(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{change: func(o *Options) { o.MaxBodyBytes, o.MaxBodiesBytes = 1<<20, 1<<20 }})
	taken := make(chan int64, 2)
	w.upstreams[0].script(func(rw http.ResponseWriter, r *http.Request, body []byte) {
		taken <- w.handler.room.taken()
		whole("four", usageText)(rw, r, body)
	})
	for _, size := range []int{0, 100_000} {
		r := w.request(t.Context(), strings.Repeat(" ", size))
		r.ContentLength = -1
		if a := w.do(r); a.status != http.StatusOK {
			t.Fatalf("answer %d %s", a.status, a.body)
		}
		if n := <-taken; n < int64(size) || n > int64(size)*2 {
			t.Errorf("a body of about %d bytes takes room for %d", size, n)
		}
	}
}

// What passes and what does not, in both directions.
func TestHeaders(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{limits: []tenancy.Limit{perMinute(1000)}, change: func(o *Options) { o.ShowUpstream = true }})
	w.upstreams[0].script(func(rw http.ResponseWriter, r *http.Request, body []byte) {
		h := rw.Header()
		for _, name := range []string{"Set-Cookie", "Openai-Organization", "X-Ratelimit-Remaining-Tokens", "Server", "Alt-Svc", "X-Tollgate-Reservation", "X-Hop", "Retry-After", "X-Should-Retry", "Location", "Content-Location", "Refresh"} {
			h.Set(name, "the upstream's")
		}
		h.Set("Connection", "X-Hop")
		h.Set("X-Request-Id", "req_upstream")
		h.Set("Openai-Processing-Ms", "12")
		h.Set("X-Unknown", "passes")
		whole("four", usageText)(rw, r, body)
	})
	a := w.chat(`,"max_tokens":10`,
		"Cookie", "c", "Api-Key", w.key, "Openai-Organization", "org", "X-Forwarded-For", "1.2.3.4", "Forwarded", "for=1.2.3.4",
		"X-Tollgate-Tenant", "other", "Connection", "X-Drop", "X-Drop", "x", "Idempotency-Key", "k", "Openai-Beta", "b",
		"X-Custom", "passes", "User-Agent", "ua/1", "X-Request-Id", "mine", "Accept-Encoding", "gzip",
		"Cf-Access-Jwt-Assertion", "who", "X-Amzn-Oidc-Data", "who", "Cf-Connecting-Ip", "1.2.3.4", "X-Goog-User-Project", "theirs",
		"X_tollgate_tenant", "other", "Azureml-Model-Deployment", "other", "X-HTTP-Method-Override", "DELETE", "X-Original-URL", "/admin",
		"X-Rewrite-URL", "/admin", "Range", "bytes=0-5", "If-None-Match", "*", "Cf-Ray", "1")
	got := w.upstreams[0].lastHeader()
	for name, want := range map[string]string{
		"Cookie": "", "Api-Key": "", "X-Api-Key": "", "Openai-Organization": "", "X-Forwarded-For": "", "Forwarded": "", "X-Drop": "",
		"Cf-Access-Jwt-Assertion": "", "X-Amzn-Oidc-Data": "", "Cf-Connecting-Ip": "", "X-Goog-User-Project": "",
		"X_tollgate_tenant": "", "Azureml-Model-Deployment": "", "X-HTTP-Method-Override": "", "X-Original-URL": "", "X-Rewrite-URL": "",
		"Range": "", "If-None-Match": "", "Cf-Ray": "",
		"X-Tollgate-Tenant": "acme", "Idempotency-Key": "", "Openai-Beta": "b", "X-Custom": "passes", "User-Agent": "ua/1",
		"Accept-Encoding": "identity", "Authorization": "Bearer upstream-secret", "X-Request-Id": a.header.Get("X-Request-Id"),
		"X-Idempotency-Key": "", "Content-Type": "application/json",
	} {
		if got.Get(name) != want {
			t.Errorf("upstream got %s %q, want %q", name, got.Get(name), want)
		}
	}
	reservation := w.ended(1)[0].ReservationID
	for name, want := range map[string]string{
		"Set-Cookie": "", "Openai-Organization": "", "Server": "", "Alt-Svc": "", "X-Hop": "", "Retry-After": "", "X-Should-Retry": "", "Location": "", "Content-Location": "", "Refresh": "",
		"Openai-Processing-Ms": "12", "X-Unknown": "passes", "X-Tollgate-Upstream-Request-Id": "req_upstream",
		"X-Tollgate-Reservation": reservation, "X-Ratelimit-Remaining-Tokens": itoa(1000 - promptTokens - 10), "X-Tollgate-Upstream": "openai0",
	} {
		if a.header.Get(name) != want {
			t.Errorf("the client got %s %q, want %q", name, a.header.Get(name), want)
		}
	}
	if id := a.header.Get("X-Request-Id"); !strings.HasPrefix(id, "gw-") {
		t.Errorf("request id %q", id)
	}
}

func TestModelsAndFreeEndpoints(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{limits: []tenancy.Limit{concurrency(0)}})
	get := func(method, path, body string, header ...string) answered {
		r, err := http.NewRequestWithContext(t.Context(), method, w.server.URL+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i+1 < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		return w.do(r)
	}
	bearer := "Bearer " + w.key
	if a := get("GET", "/v1/models", "", "Authorization", bearer); a.status != 200 || !strings.Contains(a.body, `"id":"alias"`) || !strings.Contains(a.body, `"id":"m"`) {
		t.Errorf("models: %d %s", a.status, a.body)
	}
	if a := get("GET", "/v1/models/m", "", "Authorization", bearer); a.status != 200 || !strings.Contains(a.body, `"id":"m"`) || strings.Contains(a.body, "alias") {
		t.Errorf("one model: %d %s", a.status, a.body)
	}
	if a := get("GET", "/v1/models/none", "", "Authorization", bearer); a.status != 404 || !strings.Contains(a.body, `"message":"model is the name of none`) {
		t.Errorf("no model: %d %s", a.status, a.body)
	}
	if a := get("GET", "/v1/models", ""); a.status != 401 {
		t.Errorf("models without a key: %d %s", a.status, a.body)
	}
	if a := get("GET", "/v1/models", "", "X-Api-Key", w.key, "Anthropic-Version", "2023-06-01"); a.status != 200 || !strings.Contains(a.body, `"has_more":false`) {
		t.Errorf("Anthropic's models: %d %s", a.status, a.body)
	}
	if a := get("GET", "/v2/anything", ""); a.status != 404 {
		t.Errorf("another path: %d", a.status)
	}
	w.upstreams[0].script(func(rw http.ResponseWriter, r *http.Request, _ []byte) {
		if r.URL.Path != "/v1/messages/count_tokens" || r.Header.Get("X-Api-Key") != "upstream-secret" {
			rw.WriteHeader(500)
			return
		}
		_, _ = io.WriteString(rw, `{"input_tokens":7}`)
	})
	a := get("POST", "/v1/messages/count_tokens", `{"model":"m","messages":[{"role":"user","content":"x"}]}`, "X-Api-Key", w.key, "Content-Type", "application/json")
	if a.status != 200 || a.body != `{"input_tokens":7}` || a.header.Get("X-Tollgate-Reservation") != "" {
		t.Errorf("count_tokens: %d %s", a.status, a.body)
	}
	if list := w.finals(); len(list) != 0 {
		t.Errorf("reservations %+v", list)
	}
}

// Anthropic's dialect from end to end: its usage is cumulative and comes in
// pieces.
func TestAnthropicStream(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{limits: []tenancy.Limit{perMinute(10_000)}})
	pieces := []string{
		"event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"msg_1\",\"type\":\"message\",\"role\":\"assistant\",\"model\":\"real-m\",\"content\":[],\"stop_reason\":null,\"usage\":{\"input_tokens\":13,\"output_tokens\":1}}}\n\n",
		"event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n",
		"event: ping\ndata: {\"type\":\"ping\"}\n\n",
		"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"four five\"}}\n\n",
		"event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n",
		"event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\",\"stop_sequence\":null},\"usage\":{\"output_tokens\":33}}\n\n",
		"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
	}
	w.upstreams[0].script(stream(pieces...))
	r, err := http.NewRequestWithContext(t.Context(), "POST", w.server.URL+"/v1/messages", strings.NewReader(`{"model":"m","max_tokens":100,"stream":true,"messages":[{"role":"user","content":"one two three"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Api-Key", w.key)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Anthropic-Version", "2023-06-01")
	if a := w.do(r); a.status != 200 || a.body != strings.Join(pieces, "") {
		t.Errorf("answer %d %s", a.status, a.body)
	}
	wantRecord(t, w.ended(1)[0], events.StateSettled, 13, 33, false)
}

// What a dialect asks of the query is checked before anything is reserved, and
// each dialect's clients find the request's id where they look for it.
func TestQueryAndRequestIDOfTheDialect(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	post := func(path, body string) (status int, header http.Header) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.server.URL+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-Goog-Api-Key", w.key)
		r.Header.Set("X-Api-Key", w.key)
		r.Header.Set("Content-Type", "application/json")
		resp, err := w.client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		return resp.StatusCode, resp.Header
	}
	gemini := `{"contents":[{"parts":[{"text":"hello"}]}]}`
	if got, _ := post("/v1beta/models/alias:streamGenerateContent", gemini); got != http.StatusBadRequest {
		t.Errorf("a stream that is not asked for as events: %d, want 400", got)
	}
	if got, _ := post("/v1beta/models/alias:streamGenerateContent?alt=sse", gemini); got != http.StatusNotFound {
		t.Errorf("as events, of a model without such an upstream: %d, want 404", got)
	}
	_, header := post("/v1/messages", `{"model":"none","max_tokens":9,"messages":[{"role":"user","content":"hello"}]}`)
	if id := header.Get("Request-Id"); id == "" || id != header.Get("X-Request-Id") {
		t.Errorf("Request-Id is %q, X-Request-Id %q", id, header.Get("X-Request-Id"))
	}
}
