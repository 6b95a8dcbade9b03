// Package load drives a gateway with a trace, as a fleet of clients and a model
// server would: it reserves, reports, settles and cancels over HTTP, repeats
// what real clients repeat, loses what real clients lose, and knows to the
// token what must be on the bill in the end.
//
// Everything that it does is decided beforehand by a Plan, a pure function of
// trace, seed and mix. The Driver only carries it out, and asks again until
// each call has an answer: a gateway that is killed in the middle costs time,
// never a token.
package load

import (
	"fmt"
	"math/rand/v2"

	"tollgate/internal/trace"
)

// Outcome is how a request ends.
type Outcome string

// Outcomes. A lost request is reserved and served, but its settle never
// arrives: the model server's meter is all that is known of it.
const (
	Completed Outcome = "completed"
	Cancelled Outcome = "cancelled"
	Lost      Outcome = "lost"
)

// Mix says how many of a thousand requests go wrong, and how.
type Mix struct {
	Cancel          int // cancelled part way; what was generated so far is charged
	LoseSettle      int // settle never sent
	DuplicateStart  int // reserve sent twice with the same request id
	DuplicateSettle int // settle or cancel sent twice
	Progress        int // report cumulative usage on the way
}

// DefaultMix is what a busy day looks like, exaggerated.
var DefaultMix = Mix{Cancel: 30, LoseSettle: 10, DuplicateStart: 50, DuplicateSettle: 50, Progress: 100}

// Step is the plan for one request.
type Step struct {
	RequestID       string
	Tenant          int // index of the tenant
	Request         trace.Request
	Outcome         Outcome
	OutputTokens    int64 // generated before the request ended
	Progress        int64 // output tokens of the report on the way; 0: no report
	DuplicateStart  bool
	DuplicateSettle bool
}

// Plan is what will be done and what must come of it.
type Plan struct {
	Run     string // prefix of request ids
	Seed    uint64
	Tenants int
	Steps   []Step
	// Trace is the sum of the rows; NotGenerated is what of it never came to be
	// because a request was cancelled; Expected = Trace − NotGenerated.
	Trace        trace.Totals
	NotGenerated trace.Totals
	Expected     trace.Totals
	// ByTenant is Expected by tenant index.
	ByTenant   []trace.Totals
	Cancelled  int
	Lost       int
	Duplicates int
}

// NewPlan assigns each row of a trace to a tenant and decides how it ends. The
// traces have no tenant column: row i belongs to a tenant drawn from the seed,
// where tenant k has weight 1/(k+1), so that a few tenants make most of the
// traffic. The same arguments give the same plan.
func NewPlan(run string, seed uint64, tenants int, mix Mix, requests []trace.Request) *Plan {
	rng := rand.New(rand.NewPCG(seed, 0x746f6c6c67617465))
	p := &Plan{Run: run, Seed: seed, Tenants: tenants, Trace: trace.Sum(requests), ByTenant: make([]trace.Totals, tenants)}
	pick := zipf(tenants)
	in1000 := func(n int) bool { return rng.IntN(1000) < n }
	for i, r := range requests {
		s := Step{
			RequestID:       fmt.Sprintf("%s-%06d", run, i),
			Tenant:          pick(rng),
			Request:         r,
			Outcome:         Completed,
			OutputTokens:    r.OutputTokens,
			DuplicateStart:  in1000(mix.DuplicateStart),
			DuplicateSettle: in1000(mix.DuplicateSettle),
		}
		switch {
		case in1000(mix.Cancel):
			s.Outcome = Cancelled
			s.OutputTokens = rng.Int64N(r.OutputTokens + 1)
		case in1000(mix.LoseSettle):
			s.Outcome = Lost
		}
		if s.OutputTokens > 1 && in1000(mix.Progress) {
			s.Progress = 1 + rng.Int64N(s.OutputTokens-1)
		}
		p.add(s)
	}
	return p
}

func (p *Plan) add(s Step) {
	p.Steps = append(p.Steps, s)
	p.NotGenerated.OutputTokens += s.Request.OutputTokens - s.OutputTokens
	got := trace.Totals{Requests: 1, InputTokens: s.Request.InputTokens, OutputTokens: s.OutputTokens}
	p.Expected = sum(p.Expected, got)
	p.ByTenant[s.Tenant] = sum(p.ByTenant[s.Tenant], got)
	switch s.Outcome {
	case Completed:
	case Cancelled:
		p.Cancelled++
	case Lost:
		p.Lost++
	}
	if s.DuplicateStart {
		p.Duplicates++
	}
	if s.DuplicateSettle && s.Outcome != Lost {
		p.Duplicates++
	}
}

func sum(a, b trace.Totals) trace.Totals {
	return trace.Totals{
		Requests:     a.Requests + b.Requests,
		InputTokens:  a.InputTokens + b.InputTokens,
		OutputTokens: a.OutputTokens + b.OutputTokens,
	}
}

// zipf draws 0..n-1 with weights proportional to 1, 1/2, 1/3 …, in whole
// numbers so that every machine draws the same.
func zipf(n int) func(*rand.Rand) int {
	const scale = 1_000_000
	cumulative := make([]int, n)
	total := 0
	for k := range n {
		total += scale / (k + 1)
		cumulative[k] = total
	}
	return func(rng *rand.Rand) int {
		x := rng.IntN(total)
		for k, c := range cumulative {
			if x < c {
				return k
			}
		}
		return n - 1
	}
}
