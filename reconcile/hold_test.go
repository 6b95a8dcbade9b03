package reconcile

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"tollgate/events"
)

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func TestDecide(t *testing.T) {
	p := DefaultPolicy()
	hold := Hold{
		TenantID: "acme", ReservationID: "rsv_1", State: events.StateExpired, ExpiresAt: t0,
		Reported: events.Usage{InputTokens: 100, OutputTokens: 40, CachedInputTokens: 90, ReasoningTokens: 30, GPUMillis: 5},
	}
	final := Reading{HasModel: true, Final: true, InputTokens: 80, OutputTokens: 60}
	partial := Reading{HasModel: true, InputTokens: 100, OutputTokens: 55}
	deadline := t0.Add(p.PendingDeadline)

	tests := []struct {
		name    string
		state   events.State
		reading Reading
		status  Execution
		now     time.Time
		want    ActionKind
		total   events.Usage
		est     bool
		reason  string
	}{
		{name: "settled already", state: events.StateSettled, reading: final, now: deadline, want: ActionKeep},
		{name: "cancelled already", state: events.StateCancelled, now: deadline, want: ActionKeep},
		{name: "before its TTL, final reading", reading: final, now: t0.Add(-time.Second), want: ActionKeep},
		{name: "within grace, final reading", reading: final, now: t0.Add(p.HoldGrace - 1), want: ActionKeep},
		{
			name: "final reading replaces the report, also by less", reading: final, now: t0.Add(p.HoldGrace), want: ActionSettle,
			total:  events.Usage{InputTokens: 80, OutputTokens: 60, CachedInputTokens: 80, ReasoningTokens: 30, GPUMillis: 5},
			reason: "final reading",
		},
		{
			name: "a hold that no sweeper marked expired", state: events.StateHeld, reading: final, now: t0.Add(p.HoldGrace), want: ActionSettle,
			total:  events.Usage{InputTokens: 80, OutputTokens: 60, CachedInputTokens: 80, ReasoningTokens: 30, GPUMillis: 5},
			reason: "final reading",
		},
		{name: "nothing known", now: t0.Add(time.Hour), want: ActionPending},
		{name: "reading not final", reading: partial, now: t0.Add(time.Hour), want: ActionPending},
		{name: "work runs", status: ExecutionRunning, now: t0.Add(time.Hour), want: ActionExtend},
		{name: "work ended just now", status: ExecutionEnded, now: t0.Add(p.EndedWait - 1), want: ActionPending},
		{
			name: "work ended, no reading came", status: ExecutionEnded, now: t0.Add(p.EndedWait), want: ActionCancel,
			total: hold.Reported, est: true, reason: "ended",
		},
		{
			name: "work ended, last reading", status: ExecutionEnded, reading: partial, now: t0.Add(p.EndedWait), want: ActionSettle,
			total: events.Usage{InputTokens: 100, OutputTokens: 55, CachedInputTokens: 90, ReasoningTokens: 30, GPUMillis: 5},
			est:   true, reason: "ended",
		},
		{name: "just before the deadline", now: deadline.Add(-1), want: ActionPending},
		{name: "deadline, nothing known", now: deadline, want: ActionCancel, total: hold.Reported, est: true, reason: "deadline"},
		{name: "deadline, work runs", status: ExecutionRunning, now: deadline, want: ActionCancel, total: hold.Reported, est: true, reason: "deadline"},
		{
			name: "deadline, reading below the report", reading: Reading{HasModel: true, InputTokens: 1, OutputTokens: 1}, now: deadline,
			want: ActionSettle, total: hold.Reported, est: true, reason: "deadline",
		},
		{
			name: "GPU meter alone", reading: Reading{HasGPU: true, GPUMillis: 700}, now: deadline, want: ActionCancel,
			total: events.Usage{InputTokens: 100, OutputTokens: 40, CachedInputTokens: 90, ReasoningTokens: 30, GPUMillis: 700},
			est:   true, reason: "deadline",
		},
		{
			name: "impossible reading is none", reading: Reading{HasModel: true, Final: true, InputTokens: 1 << 60}, now: t0.Add(time.Hour),
			want: ActionPending,
		},
		{
			name: "impossible reading at the deadline", reading: Reading{HasModel: true, Final: true, OutputTokens: -1}, now: deadline,
			want: ActionCancel, total: hold.Reported, est: true, reason: "deadline",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := hold
			if tt.state != "" {
				h.State = tt.state
			}
			got := Decide(h, tt.reading, tt.status, tt.now, p)
			if got.Kind != tt.want || got.Total != tt.total || got.Estimated != tt.est {
				t.Errorf("Decide = %+v; want %s of %+v, estimated %t", got, tt.want, tt.total, tt.est)
			}
			if !strings.Contains(got.Reason, tt.reason) || (got.Ends() && got.Reason == "") {
				t.Errorf("reason %q; want one with %q", got.Reason, tt.reason)
			}
		})
	}
}

func TestDecideNegativeReportIsZero(t *testing.T) {
	// Deltas may be folded in any order, so a sum can be below 0 for a while.
	h := Hold{State: events.StateExpired, ExpiresAt: t0, Reported: events.Usage{InputTokens: -5, OutputTokens: 3}}
	got := Decide(h, Reading{}, ExecutionUnknown, t0.Add(48*time.Hour), DefaultPolicy())
	if want := (events.Usage{OutputTokens: 3}); got.Kind != ActionCancel || got.Total != want {
		t.Errorf("Decide = %+v; want cancel of %+v", got, want)
	}
}

// TestDecideEveryHoldEnds: whatever the meters and the status say, a hold ends
// by its deadline, at figures that admission can take, and never before its
// grace; and once it is ended for a reason, waiting longer ends it too.
func TestDecideEveryHoldEnds(t *testing.T) {
	figure := rapid.OneOf(rapid.Int64Range(-10, 1_000_000), rapid.Int64())
	rapid.Check(t, func(t *rapid.T) {
		p := DefaultPolicy()
		p.HoldGrace = time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "grace"))
		p.PendingDeadline = p.HoldGrace + time.Duration(rapid.Int64Range(1, int64(48*time.Hour)).Draw(t, "deadline"))
		p.EndedWait = time.Duration(rapid.Int64Range(0, int64(72*time.Hour)).Draw(t, "ended wait"))
		h := Hold{
			State:     rapid.SampledFrom([]events.State{events.StateHeld, events.StateExpired}).Draw(t, "state"),
			ExpiresAt: t0,
			Reported: events.Usage{
				InputTokens: figure.Draw(t, "in"), OutputTokens: figure.Draw(t, "out"),
				CachedInputTokens: figure.Draw(t, "cached"), ReasoningTokens: figure.Draw(t, "reasoning"), GPUMillis: figure.Draw(t, "gpu"),
			},
		}
		r := Reading{
			HasModel: rapid.Bool().Draw(t, "has model"), HasGPU: rapid.Bool().Draw(t, "has gpu"),
			InputTokens: figure.Draw(t, "read in"), OutputTokens: figure.Draw(t, "read out"), GPUMillis: figure.Draw(t, "read gpu"),
		}
		r.Final = r.HasModel && rapid.Bool().Draw(t, "final")
		status := rapid.SampledFrom([]Execution{"", ExecutionUnknown, ExecutionRunning, ExecutionEnded, "nonsense"}).Draw(t, "status")
		now := t0.Add(time.Duration(rapid.Int64Range(-int64(time.Hour), int64(200*time.Hour)).Draw(t, "now")))

		a := Decide(h, r, status, now, p)
		if !now.Before(p.Deadline(h)) && !a.Ends() {
			t.Fatalf("not ended at its deadline: %+v", a)
		}
		if now.Before(h.ExpiresAt.Add(p.HoldGrace)) && a.Kind != ActionKeep {
			t.Fatalf("%s before its grace", a.Kind)
		}
		if !a.Ends() {
			return
		}
		for _, n := range []int64{a.Total.InputTokens, a.Total.OutputTokens, a.Total.CachedInputTokens, a.Total.ReasoningTokens, a.Total.GPUMillis} {
			if n < 0 || n >= maxCount {
				t.Fatalf("figure %d cannot be settled: %+v", n, a)
			}
		}
		if a.Reason == "" {
			t.Fatal("ended without a reason")
		}
		if a.Kind == ActionSettle && (a.Total.CachedInputTokens > a.Total.InputTokens || a.Total.ReasoningTokens > a.Total.OutputTokens) {
			t.Fatalf("a part is more than its whole: %+v", a.Total)
		}
		if !a.Estimated && !r.Final {
			t.Fatalf("exact without a final reading: %+v", a)
		}
		later := Decide(h, r, status, now.Add(time.Hour), p)
		if !later.Ends() || later.Total != a.Total {
			t.Fatalf("decided %+v, an hour later %+v", a, later)
		}
	})
}

func TestPolicyValidate(t *testing.T) {
	if err := DefaultPolicy().Validate(); err != nil {
		t.Fatalf("the default policy is refused: %v", err)
	}
	tests := map[string]func(*Policy){
		"hold grace":       func(p *Policy) { p.HoldGrace = -1 },
		"pending deadline": func(p *Policy) { p.PendingDeadline = 0 },
		"must not exceed":  func(p *Policy) { p.HoldGrace = 25 * time.Hour },
		"ended wait":       func(p *Policy) { p.EndedWait = -1 },
		"drift threshold":  func(p *Policy) { p.ThresholdPPM = 1_000_001 },
		"least token":      func(p *Policy) { p.MinTokens = -1 },
		"least GPU":        func(p *Policy) { p.MinGPUMillis = -1 },
		"window grace":     func(p *Policy) { p.WindowGrace = time.Hour },
		"confirm after":    func(p *Policy) { p.ConfirmAfter = -1 },
		"lookback":         func(p *Policy) { p.Lookback = p.ConfirmAfter + time.Hour },
	}
	for want, spoil := range tests {
		p := DefaultPolicy()
		spoil(&p)
		if err := p.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Validate = %v; want an error that names %q", err, want)
		}
	}
}
