package reconcile

import (
	"time"

	"tollgate/events"
)

// maxCount bounds every figure that admission takes: its counters are doubles.
// A reading beyond it is no reading, since settling at it could never succeed.
const maxCount = int64(1) << 52

// Hold is an open reservation as the ledger knows it.
type Hold struct {
	TenantID      string
	ReservationID string
	RequestID     string
	State         events.State
	Reported      events.Usage // cumulative, as last reported
	ExpiresAt     time.Time    // end of its TTL
}

// Reading is what the meters counted for one reservation: the highest of its
// cumulative readings.
type Reading struct {
	HasModel     bool
	Final        bool // the model server said that the execution has ended
	InputTokens  int64
	OutputTokens int64
	HasGPU       bool
	GPUMillis    int64
}

// ActionKind says what to do with a hold.
type ActionKind string

// Kinds of action. Keep is not due yet; Pending waits for a reading or the
// deadline; Extend is Pending because the work is known to run. Settle and
// Cancel end the hold.
const (
	ActionKeep    ActionKind = "keep"
	ActionPending ActionKind = "pending"
	ActionExtend  ActionKind = "extend"
	ActionSettle  ActionKind = "settle"
	ActionCancel  ActionKind = "cancel"
)

// Action is a decision on a hold. Total, Estimated and Reason are set for
// Settle and Cancel.
type Action struct {
	Kind      ActionKind
	Total     events.Usage
	Estimated bool
	Reason    string
}

// Ends says whether the action ends the hold.
func (a Action) Ends() bool { return a.Kind == ActionSettle || a.Kind == ActionCancel }

// Deadline is when the hold is ended at the latest.
func (p Policy) Deadline(h Hold) time.Time { return h.ExpiresAt.Add(p.PendingDeadline) }

// Decide says what becomes of a hold. now is the time through which the ledger
// has folded the log, so a hold that was extended or ended before now is not
// mistaken for an abandoned one.
//
// A final reading of the model server settles it. Without one it stays pending
// while the work runs or while nothing is known, and is ended at the best
// figures there are once the work is known to have ended (after EndedWait) or
// the deadline has come: by Settle where a model meter counted, else by Cancel
// at what was last reported, which is 0 when nothing was.
func Decide(h Hold, r Reading, status Execution, now time.Time, p Policy) Action {
	if h.State != events.StateHeld && h.State != events.StateExpired {
		return Action{Kind: ActionKeep}
	}
	if now.Before(h.ExpiresAt.Add(p.HoldGrace)) {
		return Action{Kind: ActionKeep}
	}
	r = usable(r)
	switch {
	case r.HasModel && r.Final:
		return settleAt(h, r, "final reading of the model meter")
	case !now.Before(p.Deadline(h)):
		return endAt(h, r, "deadline of the pending hold")
	case status == ExecutionEnded && !now.Before(h.ExpiresAt.Add(p.EndedWait)):
		return endAt(h, r, "execution ended without a final reading")
	case status == ExecutionRunning:
		return Action{Kind: ActionExtend}
	default:
		return Action{Kind: ActionPending}
	}
}

func endAt(h Hold, r Reading, reason string) Action {
	if r.HasModel {
		return settleAt(h, r, reason+"; at the last reading of the model meter")
	}
	return Action{
		Kind: ActionCancel, Total: withGPU(clean(h.Reported), r), Estimated: true,
		Reason: reason + "; at the last reported usage",
	}
}

// settleAt takes tokens from the model meter. A final reading replaces what was
// reported, also by less; one that is not final is a lower bound, as the report
// is, so the higher of both counts.
func settleAt(h Hold, r Reading, reason string) Action {
	total := withGPU(clean(h.Reported), r)
	if r.Final {
		total.InputTokens, total.OutputTokens = r.InputTokens, r.OutputTokens
	} else {
		total.InputTokens = max(total.InputTokens, r.InputTokens)
		total.OutputTokens = max(total.OutputTokens, r.OutputTokens)
	}
	// Cached and reasoning tokens are parts, and a part is not more than its whole.
	total.CachedInputTokens = min(total.CachedInputTokens, total.InputTokens)
	total.ReasoningTokens = min(total.ReasoningTokens, total.OutputTokens)
	return Action{Kind: ActionSettle, Total: total, Estimated: !r.Final, Reason: reason}
}

func withGPU(total events.Usage, r Reading) events.Usage {
	if r.HasGPU {
		total.GPUMillis = max(total.GPUMillis, r.GPUMillis)
	}
	return total
}

// usable drops figures that no settlement could carry.
func usable(r Reading) Reading {
	if !inRange(r.InputTokens) || !inRange(r.OutputTokens) {
		r.HasModel, r.Final, r.InputTokens, r.OutputTokens = false, false, 0, 0
	}
	if !inRange(r.GPUMillis) {
		r.HasGPU, r.GPUMillis = false, 0
	}
	return r
}

// clean bounds a sum of deltas that is not complete yet and may be below 0.
func clean(u events.Usage) events.Usage {
	for _, field := range []*int64{
		&u.InputTokens, &u.OutputTokens, &u.CachedInputTokens, &u.ReasoningTokens,
		&u.ToolCalls, &u.Images, &u.AudioMillis, &u.GPUMillis,
	} {
		*field = min(max(*field, 0), maxCount-1)
	}
	return u
}

func inRange(n int64) bool { return n >= 0 && n < maxCount }
