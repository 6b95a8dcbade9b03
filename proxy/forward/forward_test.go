package forward

import (
	"net/http"
	"strings"
	"testing"

	"tollgate/events"
	"tollgate/tenancy"
)

func TestChatThroughRedis(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{limits: []tenancy.Limit{perMinute(10_000), concurrency(5)}})
	w.upstreams[0].script(whole("four five", usageText))
	a := w.chat(`,"max_tokens":100`)
	if a.status != http.StatusOK || a.body != chatAnswer("four five", usageText) {
		t.Fatalf("answer %d %s", a.status, a.body)
	}
	wantRecord(t, w.ended(1)[0], events.StateSettled, 13, 33, false)
	w.wantStanding("tokens-60s", 46, 0)
	w.wantStanding("concurrency", 0, 0)
	body := w.upstreams[0].lastBody()
	if !strings.Contains(body, `"model":"real-m"`) || !strings.Contains(body, `"max_tokens":100`) {
		t.Errorf("upstream got %s", body)
	}
	h := w.upstreams[0].lastHeader()
	if h.Get("Authorization") != "Bearer upstream-secret" || h.Get("X-Tollgate-Tenant") != "acme" || h.Get("X-Tollgate-Reservation") != a.header.Get("X-Tollgate-Reservation") {
		t.Errorf("upstream got header %v", h)
	}
	for name, want := range map[string]string{
		"X-Ratelimit-Limit-Tokens": "10000", "Ratelimit-Policy": `"tokens-60s";q=10000;w=60, "concurrency";q=5`, "X-Ratelimit-Reset-Tokens": "0s",
	} {
		if a.header.Get(name) != want {
			t.Errorf("%s is %q, want %q", name, a.header.Get(name), want)
		}
	}
}

func TestStreamThroughRedis(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{limits: []tenancy.Limit{perMinute(10_000), concurrency(5)}})
	w.upstreams[0].script(stream(delta("four "), delta("five"), stopEvent, usageEvent(usageText), doneEvent))
	a := w.chat(`,"max_tokens":100,"stream":true`)
	if a.status != http.StatusOK || a.body != delta("four ")+delta("five")+stopEvent+doneEvent {
		t.Fatalf("answer %d %s", a.status, a.body)
	}
	if ct := a.header.Get("Content-Type"); ct != "text/event-stream" {
		t.Errorf("content type %q", ct)
	}
	wantRecord(t, w.ended(1)[0], events.StateSettled, 13, 33, false)
	w.wantStanding("tokens-60s", 46, 0)
	if body := w.upstreams[0].lastBody(); !strings.Contains(body, `"include_usage":true`) {
		t.Errorf("usage was not asked for: %s", body)
	}
}
