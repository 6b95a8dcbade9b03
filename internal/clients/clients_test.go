package clients

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"tollgate/tenancy"
)

// suites are run against the provider and through the gateway.
var suites = []struct {
	name, script string
	cases        int // at least so many, so that a suite cannot pass by not running
}{
	{"python-openai", "python/openai_suite.py", 36},
	{"python-anthropic", "python/anthropic_suite.py", 25},
	{"python-gemini", "python/gemini_suite.py", 11},
	{"python-langchain", "python/langchain_suite.py", 14},
	{"python-agents", "python/agents_suite.py", 6},
	{"node-openai", "node/openai.mjs", 33},
	{"node-anthropic", "node/anthropic.mjs", 20},
	{"node-vercel", "node/vercel.mjs", 19},
}

// refusals are run through the gateway alone.
var refusals = []struct {
	name, script string
	sdks         []string
}{
	{"python-refusals", "python/refusals_suite.py", []string{"python-openai", "python-anthropic"}},
	{"node-refusals", "node/refusals.mjs", []string{"node-openai", "node-anthropic"}},
}

// shared are the models of every suite.
var shared = []string{"fake-embed", "fake-image", "fake-audio"}

func modelsOf(suite string) []string {
	return []string{"fake-chat-" + suite, "fake-claude-" + suite, "fake-gemini-" + suite}
}

func TestSDKsSeeTheSameThroughTheGateway(t *testing.T) {
	t.Parallel()
	models := slices.Clone(shared)
	for _, suite := range suites {
		models = append(models, modelsOf(suite.name)...)
	}
	s := newSite(t, models)
	for _, suite := range suites {
		t.Run(suite.name, func(t *testing.T) {
			t.Parallel()
			door := s.newTenant(t, suite.name)
			direct := decode(t, run(t, suite.script, s.direct().at(suite.name)...))
			through := decode(t, run(t, suite.script, door.at(suite.name)...))
			if len(direct) < suite.cases {
				t.Errorf("the provider alone gave %d cases, want %d or more", len(direct), suite.cases)
			}
			for _, name := range slices.Sorted(maps.Keys(direct)) {
				if diff := cmp.Diff(direct[name], through[name]); diff != "" {
					t.Errorf("%s (- direct, + through the gateway):\n%s", name, diff)
				}
			}
			s.checkMeters(t, suite.name)
		})
	}
}

// limits are the quotas that the refusals' suites run into. Every request of
// theirs holds some 45 tokens and uses at least 10.
var limits = map[string][]tenancy.Limit{
	"free": nil,
	"rate": {{
		Name: "requests", Layer: "L2", Scope: tenancy.ScopeKey, Kind: tenancy.KindRate, Metric: tenancy.MetricRequests,
		Limit: 1, Burst: 1, Window: tenancy.Duration(3 * time.Second),
	}},
	"window": {{
		Name: "tokens", Layer: "L1", Scope: tenancy.ScopeKey, Kind: tenancy.KindRing, Metric: tenancy.MetricTokens,
		Limit: 55, Window: tenancy.Duration(4 * time.Second), Slots: 4,
	}},
	"places": {{Name: "places", Layer: "L3", Scope: tenancy.ScopeKey, Kind: tenancy.KindLease, Limit: 1}},
	"slots":  {{Name: "slots", Layer: "L4", Scope: tenancy.ScopeKey, Kind: tenancy.KindLease, Limit: 1}},
	"budget": {{
		Name: "budget", Layer: "L1", Scope: tenancy.ScopeKey, Kind: tenancy.KindCounter, Metric: tenancy.MetricTokens,
		Limit: 55, Budget: true, Period: tenancy.PeriodNone,
	}},
	"small": {{
		Name: "tokens", Layer: "L1", Scope: tenancy.ScopeKey, Kind: tenancy.KindRing, Metric: tenancy.MetricTokens,
		Limit: 10, Window: tenancy.Duration(time.Minute), Slots: 60,
	}},
}

// raised is what users of the SDKs are given to catch: the class of the error,
// and the code in its body.
var raised = map[string]map[string]string{
	"openai_gives_up_on_a_spent_budget": {
		"python-refusals": "[APIStatusError 402 insufficient_quota]",
		"node-refusals":   "[APIError 402 insufficient_quota]",
	},
	"openai_gives_up_on_what_never_fits":                   both("[RateLimitError rate_limit_exceeded]"),
	"openai_is_told_when_a_slot_may_be_free":               both("[InternalServerError concurrency_exhausted]"),
	"openai_an_answered_idempotency_key_is_not_retried":    both("[ConflictError idempotency_key_used]"),
	"anthropic_gives_up_on_a_spent_budget":                 both("[PaymentRequiredError 402 budget_spent]"),
	"anthropic_gives_up_on_what_never_fits":                both("[RateLimitError request_exceeds_limit]"),
	"anthropic_is_told_when_a_slot_may_be_free":            both("[ServiceUnavailableError concurrency_exhausted]"),
	"anthropic_an_answered_idempotency_key_is_not_retried": both("[ConflictError idempotency_key_used]"),
}

func both(outcome string) map[string]string {
	return map[string]string{"python-refusals": outcome, "node-refusals": outcome}
}

func TestSDKsObeyRefusals(t *testing.T) {
	t.Parallel()
	var models []string
	for _, suite := range refusals {
		models = append(append(models, modelsOf(suite.name)...), modelsOf(suite.name+"-other")...)
	}
	s := newSite(t, models)
	for _, suite := range refusals {
		t.Run(suite.name, func(t *testing.T) {
			t.Parallel()
			s.tenant(t, suite.name)
			keys := map[string]string{}
			for name, lines := range limits {
				for _, sdk := range suite.sdks {
					keys[name+"-"+sdk] = s.key(t, suite.name, lines...)
				}
			}
			for _, key := range keys {
				s.untilKnown(t, key)
			}
			document, err := json.Marshal(keys)
			if err != nil {
				t.Fatal(err)
			}
			environment := append(door{s.url, ""}.at(suite.name), "GATEWAY_KEYS="+string(document))
			cases := decode(t, run(t, suite.script, environment...))
			if len(cases) < 20 {
				t.Errorf("%d cases ran, want 20 or more", len(cases))
			}
			for name, want := range raised {
				if diff := cmp.Diff(want[suite.name], fmt.Sprint(cases[name])); diff != "" {
					t.Errorf("%s (- want, + got):\n%s", name, diff)
				}
			}
			s.checkMeters(t, suite.name)
		})
	}
}
