package route

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// clock is a router's time and randomness, as a test says.
type clock struct {
	now    time.Time
	random uint64
	news   []string // of breakers
}

func newTestRouter(t *testing.T, text, region string) (*Router, *clock) {
	t.Helper()
	table, err := parse(text)
	if err != nil {
		t.Fatal(err)
	}
	c := &clock{now: time.Unix(1e9, 0)}
	r := NewRouter(table, RouterOptions{
		Region: region, Now: func() time.Time { return c.now }, Random: func() uint64 { return c.random },
		OnBreaker: func(upstream, model string, aside bool) {
			c.news = append(c.news, fmt.Sprintf("%s/%s %v", upstream, model, aside))
		},
	})
	t.Cleanup(r.Close)
	return r, c
}

const routes = `
upstreams:
  - {name: eu1, dialect: openai, url: "http://127.0.0.1:1/v1", region: eu}
  - {name: eu2, dialect: openai, url: "http://127.0.0.1:2/v1", region: eu}
  - {name: us1, dialect: openai, url: "http://127.0.0.1:3/v1", region: us}
  - {name: ant, dialect: anthropic, url: "http://127.0.0.1:4"}
models:
  - name: big
    aliases: [huge]
    tokenizer: estimate
    deployments: [{upstream: eu1, weight: 2}, {upstream: us1, weight: 5}, {upstream: eu2, model: big-2}]
    backup: [{upstream: us1, model: spare}, {upstream: eu1, model: spare, weight: 9}]
  - name: both
    deployments: [{upstream: eu1}, {upstream: ant, model: claude}]
  - name: llama-*
    deployments: [{upstream: eu1}]
  - name: llama-3-*
    deployments: [{upstream: us1}]
  - name: drained
    deployments: [{upstream: eu1, weight: 0}]
  - name: "*"
    aliases: [default]
    deployments: [{upstream: ant}]
`

// tried writes a plan as "upstream/model …".
func tried(p *Plan, err error) string {
	if err != nil {
		return err.Error()
	}
	var names []string
	for _, d := range p.Deployments {
		names = append(names, d.Upstream.Name+"/"+d.Model)
	}
	return p.Model + ": " + strings.Join(names, " ")
}

func TestPlan(t *testing.T) {
	for _, test := range []struct {
		gateway, model, dialect, region string
		random                          uint64
		want                            string
	}{
		// The primaries' weights are 2, 5 and 1, the backups' 1 and 9.
		{"", "big", "openai", "", 0, "big: eu1/big us1/big eu2/big-2 us1/spare eu1/spare"},
		{"", "big", "openai", "", 2, "big: us1/big eu1/big eu2/big-2 eu1/spare us1/spare"},
		{"", "big", "openai", "", 15, "big: eu2/big-2 us1/big eu1/big eu1/spare us1/spare"},
		{"", "huge", "openai", "", 0, "big: eu1/big us1/big eu2/big-2 us1/spare eu1/spare"},
		{"us", "big", "openai", "", 0, "big: us1/big eu1/big eu2/big-2 us1/spare eu1/spare"},
		{"us", "big", "openai", "eu", 0, "big: eu1/big eu2/big-2 eu1/spare"},
		{"", "big", "openai", "mars", 0, `no deployment of "big" in region "mars"`},
		{"", "big", "anthropic", "", 0, `no deployment of "big" in this dialect; it is served in: openai`},
		{"", "both", "anthropic", "", 0, "both: ant/claude"},
		{"", "both", "gemini", "eu", 0, `no deployment of "both" in this dialect; it is served in: anthropic, openai`},
		{"", "llama-2", "openai", "", 0, "llama-*: eu1/llama-2"},
		{"", "llama-3-8b", "openai", "", 0, "llama-3-*: us1/llama-3-8b"},
		{"", "any", "anthropic", "", 0, "*: ant/any"},
		{"", "default", "anthropic", "", 0, "*: ant/default"},
		{"", "", "anthropic", "", 0, "unknown model"},
		{"", "drained", "openai", "", 0, "no deployment is available; the next is tried in 30s"},
	} {
		r, c := newTestRouter(t, routes, test.gateway)
		c.random = test.random
		if got := tried(r.Plan(test.model, test.dialect, test.region)); got != test.want {
			t.Errorf("%+v\n got %s", test, got)
		}
	}
	r, _ := newTestRouter(t, minimal, "")
	if _, err := r.Plan("other", "openai", ""); !errors.Is(err, ErrUnknownModel) {
		t.Error(err)
	}
	r, _ = newTestRouter(t, routes, "")
	_, err := r.Plan("both", "gemini", "")
	var none *NoDeploymentError
	if !errors.Is(err, ErrNoDeployment) || !errors.As(err, &none) || !slices.Equal(none.Dialects, []string{"anthropic", "openai"}) {
		t.Error(err)
	}
	plan, err := r.Plan("huge", "openai", "")
	if err != nil || plan.Tokenizer != "estimate" {
		t.Errorf("%+v %v", plan, err)
	}
	// What is counted and priced has one name, however it is asked for.
	for asked, want := range map[string]string{"huge": "big", "big": "big", "llama-3-8b": "llama-3-8b"} {
		if plan, err := r.Plan(asked, "openai", ""); err != nil || plan.Name != want {
			t.Errorf("%s counts as %q, want %q (%v)", asked, plan.Name, want, err)
		}
	}
	if diff := cmp.Diff([]string{"big", "both", "drained", "huge"}, r.Models("openai")); diff != "" {
		t.Errorf("listed (-want +got)\n%s", diff)
	}
	if diff := cmp.Diff([]string{"both", "default"}, r.Models("anthropic")); diff != "" {
		t.Errorf("listed (-want +got)\n%s", diff)
	}
}

// Every deployment is first as often as its weight says, over all remainders.
func TestChooseIsProportional(t *testing.T) {
	list := []*Deployment{{Weight: 2}, {Weight: 5}, {Weight: 1}}
	var first [3]int
	for r := range uint64(800) {
		first[choose(list, r)]++
	}
	if first != [3]int{200, 500, 100} {
		t.Errorf("first %v times", first)
	}
}

// The breaker of a deployment, step by step.
func TestBreaker(t *testing.T) {
	r, c := newTestRouter(t, minimal, "")
	plan, err := r.Plan("m", "openai", "")
	if err != nil {
		t.Fatal(err)
	}
	d := plan.Deployments[0]
	left := func() time.Duration {
		_, err := r.Plan("m", "openai", "")
		var no *Unavailable
		if err != nil && !errors.As(err, &no) {
			t.Fatal(err)
		}
		if no == nil {
			return 0
		}
		return no.RetryAfter
	}
	done := func(outcomes ...Outcome) {
		for _, o := range outcomes {
			d.Done(o, 0, c.now)
		}
	}
	expect := func(step string, want time.Duration) {
		t.Helper()
		if got := left(); got != want {
			t.Errorf("%s: put aside for %s, want %s", step, got, want)
		}
		if may := d.Try(c.now); may != (want == 0) {
			t.Errorf("%s: may be tried: %v", step, may)
		} else if may {
			d.Done(Abandoned, 0, c.now)
		}
	}
	done(Bad, Bad, Bad, Bad, Abandoned)
	expect("four failures", 0)
	done(Good, Bad, Bad, Overload, Bad)
	expect("a good one in between, and an overload without a word", 0)
	done(Bad)
	expect("five in a row", 10*time.Second)
	done(Good, Bad, Bad, Bad, Bad, Bad, Overload)
	expect("late ones change nothing", 10*time.Second)
	c.now = c.now.Add(10 * time.Second)
	expect("half open", 0)
	if !d.Try(c.now) || d.Try(c.now) {
		t.Error("not one at a time")
	}
	if left() != 10*time.Second {
		t.Errorf("while one finds out, others are told %s", left())
	}
	done(Bad)
	expect("once more", 20*time.Second)
	for _, want := range []time.Duration{40, 80, 160, 300, 300} {
		c.now = c.now.Add(left())
		done(Bad)
		expect("again", want*time.Second)
	}
	c.now = c.now.Add(left())
	if !d.Try(c.now) {
		t.Fatal("not tried")
	}
	c.now = c.now.Add(10 * time.Second)
	if !d.Try(c.now) {
		t.Error("one that never came back blocks for ever")
	}
	done(Good)
	expect("back", 0)
	d.Done(Overload, 7*time.Second, c.now)
	expect("overload says how long", 7*time.Second)
	c.now = c.now.Add(7 * time.Second)
	d.Done(Overload, time.Hour, c.now)
	expect("at most", 5*time.Minute)
	c.now = c.now.Add(5 * time.Minute)
	done(Overload)
	expect("overload without a word", 40*time.Second)
	want := []string{"a/m true", "a/m false", "a/m true"}
	if !slices.Equal(c.news, want) {
		t.Errorf("told %v, want %v", c.news, want)
	}
}

// One that is put aside is left out, and the next takes its place.
func TestPlanLeavesOutWhatFails(t *testing.T) {
	r, c := newTestRouter(t, routes, "")
	plan, err := r.Plan("big", "openai", "")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range plan.Deployments[:3] {
		d.Done(Overload, 30*time.Second, c.now)
		c.now = c.now.Add(time.Second)
	}
	if got := tried(r.Plan("big", "openai", "")); got != "big: us1/spare eu1/spare" {
		t.Error(got)
	}
	for _, d := range plan.Deployments[3:] {
		d.Done(Overload, time.Minute, c.now)
	}
	_, err = r.Plan("big", "openai", "")
	var no *Unavailable
	if !errors.As(err, &no) || no.RetryAfter != 27*time.Second {
		t.Errorf("%v, want to come back when the first one may be back", err)
	}
	// The same upstream's other models are not touched.
	if got := tried(r.Plan("llama-x", "openai", "")); got != "llama-*: eu1/llama-x" {
		t.Error(got)
	}
}

// All names that a pattern passes on share one breaker.
func TestPatternsShareABreaker(t *testing.T) {
	r, c := newTestRouter(t, routes, "")
	for i := range badInARow {
		plan, err := r.Plan(fmt.Sprint("x", i), "anthropic", "")
		if err != nil {
			t.Fatal(err)
		}
		plan.Deployments[0].Done(Bad, 0, c.now)
	}
	if _, err := r.Plan("y", "anthropic", ""); err == nil {
		t.Error("still tried")
	}
	if !slices.Equal(c.news, []string{"ant/* true"}) {
		t.Errorf("told %v", c.news)
	}
}

func TestReplaceKeepsBreakersAndConnections(t *testing.T) {
	r, c := newTestRouter(t, routes, "")
	plan, _ := r.Plan("big", "openai", "")
	plan.Deployments[0].Done(Overload, time.Minute, c.now) // eu1/big
	eu1 := plan.Deployments[0].Upstream.Client

	table, err := parse(strings.Replace(strings.Replace(routes, "127.0.0.1:3", "127.0.0.1:9", 1), "weight: 5", "weight: 50", 1))
	if err != nil {
		t.Fatal(err)
	}
	us1 := plan.Deployments[1].Upstream.Client
	r.Replace(table)
	if got := tried(r.Plan("big", "openai", "")); got != "big: us1/big eu2/big-2 us1/spare eu1/spare" {
		t.Error(got)
	}
	next, _ := r.Plan("llama-1", "openai", "")
	if next.Deployments[0].Upstream.Client != eu1 {
		t.Error("an upstream that stays loses its connections")
	}
	next, _ = r.Plan("llama-3-1", "openai", "")
	if next.Deployments[0].Upstream.Client == us1 {
		t.Error("an upstream at another address keeps its connections")
	}
	plan.Deployments[0].Done(Good, 0, c.now.Add(time.Minute)) // by the old plan
	if got := tried(r.Plan("big", "openai", "")); !strings.Contains(got, "eu1/big") {
		t.Errorf("what the old plan's try came to is not known: %s", got)
	}
}

// Plans, outcomes and new tables at once; under the race detector.
func TestRouterConcurrently(t *testing.T) {
	table, err := parse(routes)
	if err != nil {
		t.Fatal(err)
	}
	r := NewRouter(table, RouterOptions{})
	defer r.Close()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 500 {
				plan, err := r.Plan("big", "openai", "")
				var no *Unavailable
				if errors.As(err, &no) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				for _, d := range plan.Deployments {
					if d.Try(time.Now()) {
						d.Done(Outcome(rand.IntN(4)), time.Nanosecond, time.Now())
					}
				}
			}
		})
	}
	wg.Go(func() {
		for range 50 {
			again, err := parse(routes)
			if err != nil {
				t.Error(err)
				return
			}
			r.Replace(again)
		}
	})
	wg.Wait()
}

// The client does not follow redirects, does not unpack, and waits no longer for
// an answer to begin than it should.
func TestClient(t *testing.T) {
	block := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			select {
			case <-block:
			case <-time.After(10 * time.Second): // a client that waits fails the test
			}
		}
		if r.Header.Get("Accept-Encoding") != "" {
			t.Errorf("asks for %q", r.Header.Get("Accept-Encoding"))
		}
		http.Redirect(w, r, "/elsewhere", http.StatusFound)
	}))
	defer server.Close()
	defer close(block)
	client := newClient(&Upstream{ConnectTimeout: time.Second, ResponseTimeout: 50 * time.Millisecond})
	defer client.CloseIdleConnections()
	res, err := client.Get(server.URL + "/x")
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if res.StatusCode != http.StatusFound {
		t.Errorf("status %d", res.StatusCode)
	}
	res, err = client.Get(server.URL + "/slow")
	if err == nil {
		_ = res.Body.Close()
		t.Error("an answer that does not begin was waited for")
	}
}

func BenchmarkPlan(b *testing.B) {
	table, err := parse(routes)
	if err != nil {
		b.Fatal(err)
	}
	r := NewRouter(table, RouterOptions{})
	b.ReportAllocs()
	for b.Loop() {
		if _, err := r.Plan("big", "openai", ""); err != nil {
			b.Fatal(err)
		}
	}
}

func TestNothingIsLeftRunning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := newTestRouter(t, minimal, "")
		w, err := NewWatcher(WatcherOptions{File: t.TempDir() + "/none.yaml", Router: r})
		if err != nil {
			t.Fatal(err)
		}
		w.Start()
		w.Stop()
		w.Stop()
	})
}

// A long answer that has begun well brings its deployment back before it ends.
func TestDeploymentIsBackAtAnAnswersBeginning(t *testing.T) {
	b := &breaker{changed: func(bool) {}}
	d, now := &Deployment{breaker: b}, time.Now()
	for range badInARow {
		d.Done(Bad, 0, now)
	}
	if d.Well(now); d.Try(now) {
		t.Error("an answer that began before brings it back")
	}
	now = now.Add(asideFirst)
	if !d.Try(now) || d.Try(now) {
		t.Fatal("not one request finds out")
	}
	if d.Well(now); !d.Try(now) {
		t.Error("it is not back")
	}
}
