package load

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"tollgate/internal/trace"
)

func drawTrace(t *rapid.T) []trace.Request {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) trace.Request {
		return trace.Request{At: at, InputTokens: rapid.Int64Range(0, 5000).Draw(t, "in"), OutputTokens: rapid.Int64Range(0, 900).Draw(t, "out")}
	}), 1, 300).Draw(t, "trace")
}

func TestPlanAccountsForEveryToken(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		requests := drawTrace(t)
		seed := rapid.Uint64().Draw(t, "seed")
		mix := Mix{Cancel: 300, LoseSettle: 300, DuplicateStart: 300, DuplicateSettle: 300, Progress: 500}
		p := NewPlan("r", seed, 4, mix, requests)

		if diff := cmp.Diff(trace.Sum(requests), sum(p.Expected, trace.Totals{OutputTokens: p.NotGenerated.OutputTokens})); diff != "" {
			t.Fatalf("trace and expected plus not generated differ: %s", diff)
		}
		var byTenant trace.Totals
		for _, b := range p.ByTenant {
			byTenant = sum(byTenant, b)
		}
		if diff := cmp.Diff(p.Expected, byTenant); diff != "" {
			t.Fatalf("tenants do not add up: %s", diff)
		}
		ids := map[string]bool{}
		for _, s := range p.Steps {
			if ids[s.RequestID] {
				t.Fatalf("request id %s is used twice", s.RequestID)
			}
			ids[s.RequestID] = true
			if s.OutputTokens > s.Request.OutputTokens || s.Progress > s.OutputTokens {
				t.Fatalf("step generates more than the trace has: %+v", s)
			}
			if s.Outcome != Cancelled && s.OutputTokens != s.Request.OutputTokens {
				t.Fatalf("only a cancelled request stops early: %+v", s)
			}
		}
		if diff := cmp.Diff(p, NewPlan("r", seed, 4, mix, requests)); diff != "" {
			t.Fatalf("the same seed gave another plan: %s", diff)
		}
	})
}

func TestPlanWithoutMixIsTheTrace(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		requests := drawTrace(t)
		p := NewPlan("r", 1, 3, Mix{}, requests)
		if diff := cmp.Diff(trace.Sum(requests), p.Expected); diff != "" {
			t.Fatal(diff)
		}
		if p.Cancelled+p.Lost+p.Duplicates != 0 {
			t.Fatalf("an empty mix changed something: %+v", p)
		}
	})
}
