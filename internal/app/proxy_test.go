package app

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tollgate/internal/fakeprovider"
	"tollgate/proxy/route"
	"tollgate/proxy/tokens"
	"tollgate/tenancy"
)

// modelServer is a model server with the table that names it.
func modelServer(t *testing.T, opts fakeprovider.Options) (server *fakeprovider.Server, table string) {
	t.Helper()
	server = fakeprovider.New(opts)
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := server.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
	table = filepath.Join(t.TempDir(), "upstreams.yaml")
	writeTable(t, table, server.URL(), "")
	return server, table
}

func writeTable(t *testing.T, path, url, more string) {
	t.Helper()
	text := fmt.Sprintf(`
upstreams:
  - {name: o, dialect: openai, url: "%[1]s/v1", identify: true}
  - {name: a, dialect: anthropic, url: "%[1]s", identify: true}
  - {name: g, dialect: gemini, url: "%[1]s", identify: true}
models:
  - {name: gem, deployments: [{upstream: g, model: fake-small}]}
  - {name: small, deployments: [{upstream: o, model: fake-small}]}
  - {name: claude, deployments: [{upstream: a, model: fake-large}]}
%[2]s`, url, more)
	// The second name is another file with another time, as editors write one.
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// totals is a tenant whose use is counted without a bound worth the name.
func totals(id string) tenancy.Tenant {
	counter := func(name string, metric tenancy.Metric) tenancy.Limit {
		return tenancy.Limit{
			Name: name, Layer: "L1", Kind: tenancy.KindCounter, Scope: tenancy.ScopeTenant, Metric: metric,
			Limit: 1_000_000_000, Period: tenancy.PeriodNone,
		}
	}
	return tenancy.Tenant{ID: id, Name: id, TimeZone: "UTC", Currency: "USD", Quota: tenancy.Quota{Limits: []tenancy.Limit{
		counter("input", tenancy.MetricInputTokens), counter("output", tenancy.MetricOutputTokens), counter("requests", tenancy.MetricRequests),
	}}}
}

// counted is what the usage query says of those counters.
func counted(t *testing.T, a *App, key string) (used map[string]int64, held int64) {
	t.Helper()
	var u struct {
		Limits []struct {
			Name           string
			Used, Reserved int64
		}
	}
	ask(t, "GET", "http://"+a.Addr+"/v1/quota/usage", key, nil).decode(t, &u)
	used = map[string]int64{}
	for _, l := range u.Limits {
		used[l.Name] = l.Used
		held += l.Reserved
	}
	return used, held
}

func chat(model string, stream bool) map[string]any {
	return map[string]any{"model": model, "stream": stream, "messages": []map[string]string{{"role": "user", "content": "Tell me of tolls and gates."}}}
}

// What clients of both dialects get through the gateway is counted as the model
// server counted it, and the gateway's own API is there as before.
func TestFrontDoor(t *testing.T) {
	t.Parallel()
	server, table := modelServer(t, fakeprovider.Options{Seed: 1})
	s := newSite(t)
	key := s.tenant(totals("acme"))
	a := New(s.config("proxy.upstreams_file", table), quiet())
	s.start(a, a.Gateway)
	untilReady(t, a)
	untilKnown(t, a, key)

	base := "http://" + a.Addr
	for _, stream := range []bool{false, true} {
		if got := ask(t, "POST", base+"/v1/chat/completions", key, chat("small", stream)); got.status != 200 {
			t.Errorf("chat, stream %v: %+v", stream, got)
		}
		body := chat("claude", stream)
		body["max_tokens"] = 50
		if got := ask(t, "POST", base+"/v1/messages", key, body); got.status != 200 {
			t.Errorf("messages, stream %v: %+v", stream, got)
		}
	}
	gemini := map[string]any{"contents": []any{map[string]any{"role": "user", "parts": []any{map[string]string{"text": "Tell me of tolls."}}}}}
	if got := ask(t, "POST", base+"/v1beta/models/gem:generateContent?key="+key, "", gemini); got.status != 200 {
		t.Errorf("generateContent: %+v", got)
	}
	var list struct{ Data []struct{ ID string } }
	ask(t, "GET", base+"/v1/models", key, nil).decode(t, &list)
	if len(list.Data) != 1 || list.Data[0].ID != "small" {
		t.Errorf("models: %+v", list)
	}
	if got := ask(t, "POST", base+"/v1/chat/completions", key, chat("unheard-of", false)); got.status != 404 || !strings.Contains(got.body, "model_not_found") {
		t.Errorf("a model that is not there: %+v", got)
	}
	if got := ask(t, "POST", base+"/v1/chat/completions", "tgk_bad.bad", chat("small", false)); got.status != 401 {
		t.Errorf("a bad key: %+v", got)
	}
	want := server.Totals()
	if want.Requests != 5 || want.Complete != 5 {
		t.Fatalf("the model server saw %+v", want)
	}
	until(t, func() string {
		used, held := counted(t, a, key)
		if used["input"] != want.Input || used["output"] != want.Output || used["requests"] != 5 || held != 0 {
			return fmt.Sprintf("counted %v, held %d; the model server %+v", used, held, want.Totals)
		}
		return ""
	})
	// The last request's figures are recorded before it has left the handler.
	until(t, func() string {
		metrics := ask(t, "GET", "http://"+a.AdminAddr+"/metrics", "", nil).body
		if !strings.Contains(metrics, "\ngen_ai_client_token_usage_count{") {
			return "no metric of the semantic conventions"
		}
		for _, name := range []string{"tollgate_proxy_settlements_total 5", "tollgate_proxy_upstreams_stale 0", "tollgate_proxy_requests_under_way 0"} {
			if !strings.Contains(metrics, "\n"+name+"\n") {
				return "no " + name + " in the metrics"
			}
		}
		return ""
	})
}

// A changed table is in force without a restart; one with a mistake changes
// nothing, and says so.
func TestFrontDoorReadsItsTableAgain(t *testing.T) {
	t.Parallel()
	server, table := modelServer(t, fakeprovider.Options{Seed: 1})
	s := newSite(t)
	key := s.tenant(totals("acme"))
	a := New(s.config("proxy.upstreams_file", table), quiet())
	s.start(a, a.Gateway)
	untilReady(t, a)
	untilKnown(t, a, key)
	status := func(model string) int {
		return ask(t, "POST", "http://"+a.Addr+"/v1/chat/completions", key, chat(model, false)).status
	}
	if got := status("late"); got != 404 {
		t.Fatalf("before: %d", got)
	}
	writeTable(t, table, server.URL(), "  - {name: late, deployments: [{upstream: o, model: fake-small}]}\n")
	until(t, func() string {
		if got := status("late"); got != 200 {
			return fmt.Sprint("a new model: ", got)
		}
		return ""
	})
	writeTable(t, table, server.URL(), "  - {name: late, deployments: [{upstream: nowhere}]}\n")
	until(t, func() string {
		if !strings.Contains(ask(t, "GET", "http://"+a.AdminAddr+"/metrics", "", nil).body, "\ntollgate_proxy_upstreams_stale 1\n") {
			return "the mistake shows in no metric"
		}
		return ""
	})
	if got := status("late"); got != 200 {
		t.Errorf("after a mistake: %d", got)
	}
}

func TestFrontDoorWithoutATable(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	a := New(s.config("proxy.upstreams_file", filepath.Join(t.TempDir(), "none.yaml")), quiet())
	defer a.close()
	if err := a.Gateway(); err == nil || !strings.Contains(err.Error(), "none.yaml") {
		t.Errorf("got %v", err)
	}
}

// A gateway that stops lets streams go on for the drain's time, ends what is left
// in its dialect, and charges what was delivered; new connections are refused.
func TestFrontDoorDrains(t *testing.T) {
	t.Parallel()
	_, table := modelServer(t, fakeprovider.Options{Seed: 1, OutputTokens: 100_000, DecodePerSecond: 200})
	s := newSite(t)
	key := s.tenant(totals("acme"))
	a := New(s.config("proxy.upstreams_file", table, "proxy.drain_timeout", "300ms"), quiet())
	stop := s.start(a, a.Gateway)
	untilReady(t, a)
	untilKnown(t, a, key)

	body, err := json.Marshal(chat("small", true))
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+a.Addr+"/v1/chat/completions", strings.NewReader(string(body)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+key)
	req.Header.Set("Content-Type", "application/json")
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	for range 5 {
		if !lines.Scan() {
			t.Fatalf("the stream, %s, ended with %q: %v", res.Status, lines.Text(), lines.Err())
		}
	}
	began := time.Now()
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < 300*time.Millisecond {
		t.Errorf("stopped after %s, before the drain's time", took)
	}
	last := ""
	for lines.Scan() {
		if lines.Text() != "" {
			last = lines.Text()
		}
	}
	if last != "data: [DONE]" || lines.Err() != nil {
		t.Errorf("the stream ended with %q, %v", last, lines.Err())
	}
	again := New(s.config(), quiet())
	s.start(again, again.Gateway)
	untilReady(t, again)
	untilKnown(t, again, key)
	used, held := counted(t, again, key)
	if used["output"] == 0 || used["input"] == 0 || held != 0 {
		t.Errorf("counted %v, held %d", used, held)
	}
}

// Every tokenizer that a table may name is one.
func TestTokenizersAreKnown(t *testing.T) {
	for _, name := range route.Tokenizers {
		if _, known := tokens.For(name); !known {
			t.Errorf("%s", name)
		}
	}
}
