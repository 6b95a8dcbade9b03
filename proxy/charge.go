package proxy

import "tollgate/events"

// Phase is how far a request came.
type Phase uint8

// Phases. Each is true of everything before it, too.
const (
	PhaseReserved Phase = iota // nothing was sent to any upstream that took it
	PhaseSent                  // sent; no answer began
	PhaseRefused               // the upstream answered with an error status
	PhaseAnswered              // a successful answer began
)

// Cause is why a request ended.
type Cause uint8

// Causes.
const (
	CauseUpstreamEnd  Cause = iota // the upstream ended its answer in order
	CauseUpstreamGone              // refused, reset, broke off, sent garbage or hung
	CauseClientGone                // the client left or stopped reading
	CauseCut                       // Tollgate ended it: a cap, a quota, the shutdown
)

// Verb is how a reservation ends.
type Verb uint8

// Verbs. Settled means answered: a retry with the same idempotency key is told
// so. Cancelled means that it did not come to its end: a retry is a new attempt.
const (
	Settle Verb = iota
	Cancel
)

// Ending is what became of a request.
type Ending struct {
	Phase Phase
	Cause Cause
	Tally Tally
	// InputTokens is the gateway's own count of the input.
	InputTokens int64
	AudioMillis int64 // of the input
}

// Charged is what is recorded of an ending.
type Charged struct {
	Verb      Verb
	Usage     events.Usage
	Estimated bool
	Reason    string // of a cancel; a word for the event
}

// Words of Charged.Reason that Judge gives. A caller that knows better why it
// cut a request says so instead.
const (
	ReasonNotSent          = "not_sent"
	ReasonClientGone       = "client_gone"
	ReasonCut              = "cut"
	ReasonUpstreamRefused  = "upstream_refused"
	ReasonUpstreamFailed   = "upstream_failed"
	ReasonUpstreamGarbage  = "upstream_garbage"
	ReasonUpstreamBrokeOff = "upstream_broke_off"
)

// Judge says what is charged for a request that ended, and how its reservation
// ends. What the upstream says it used is charged as it says, however the
// request ended; else what was delivered, and the prompt with it, where the work
// was done or may have been done through no fault of the upstream's:
//
//   - Nothing is charged, unless the upstream states usage, where the request
//     never reached it, or it refused, or it failed by its own fault before it
//     delivered anything. Nothing is charged either where it says that it used
//     nothing and it did deliver nothing.
//   - Else, without usage, or with zeros although something was delivered, the
//     gateway's own count of the prompt and of what was delivered is charged and
//     marked as estimated.
//   - A report that has one of input and output and lacks the other, though it
//     was there, is completed with the own count and marked as estimated. Columns
//     beside the tokens (tool calls, images, audio) are the larger of what was
//     said and what was seen; they do not mark it.
//
// The hold is no figure here: it is never what is charged.
func Judge(e Ending) Charged {
	c := Charged{Verb: Cancel, Reason: reason(e)}
	if c.Reason == "" {
		c.Verb = Settle
	}
	if e.Phase == PhaseReserved {
		return c
	}
	said := usageSaid(e.Tally.Usage)
	switch {
	case said != nil && spoke(said):
		c.Usage, c.Estimated = complete(*said, e)
	case refunded(e, said != nil):
	default:
		c.Usage, c.Estimated = own(e), true
		if said != nil {
			c.Usage.GPUMillis = said.GPUMillis
		}
	}
	return c
}

// reason is why a reservation is cancelled, or "" where it is settled: the
// answer came to its end, and the upstream ended it.
func reason(e Ending) string {
	switch {
	case e.Cause == CauseClientGone:
		return ReasonClientGone
	case e.Cause == CauseCut:
		return ReasonCut
	case e.Phase == PhaseReserved:
		return ReasonNotSent
	case e.Phase == PhaseRefused:
		return ReasonUpstreamRefused
	case e.Phase == PhaseSent || e.Tally.Failed:
		return ReasonUpstreamFailed
	case e.Tally.Garbage:
		return ReasonUpstreamGarbage
	case e.Cause != CauseUpstreamEnd || !e.Tally.Complete:
		return ReasonUpstreamBrokeOff
	}
	return ""
}

// refunded says that an ending without figures costs nothing.
func refunded(e Ending, saidZero bool) bool {
	switch {
	case e.Phase == PhaseRefused:
		return true
	case e.Tally.Content:
		return false
	case saidZero || e.Tally.Failed || e.Tally.Garbage:
		return true
	case e.Cause == CauseClientGone || e.Cause == CauseCut:
		return false // the prompt was being worked on
	}
	return reason(e) != "" // its own fault; a complete answer may be empty
}

// own is the gateway's count of the prompt and of what was delivered.
func own(e Ending) events.Usage {
	d := &e.Tally.Delivered
	u := events.Usage{
		InputTokens:     figure(e.InputTokens),
		OutputTokens:    figure(d.OutputTokens),
		ReasoningTokens: figure(d.ReasoningTokens),
		ToolCalls:       figure(d.ToolCalls),
		Images:          figure(d.Images),
		AudioMillis:     figure(figure(e.AudioMillis) + figure(d.AudioMillis)),
	}
	u.ReasoningTokens = min(u.ReasoningTokens, u.OutputTokens)
	return u
}

// complete fills in what the upstream's report lacks.
func complete(u events.Usage, e Ending) (_ events.Usage, estimated bool) {
	mine := own(e)
	noTokens := u.InputTokens == 0 && u.OutputTokens == 0
	if noTokens && u.AudioMillis == 0 && u.Images == 0 && e.Tally.Content {
		mine.GPUMillis = u.GPUMillis // which alone says nothing of tokens
		return mine, true
	}
	u.ToolCalls = max(u.ToolCalls, mine.ToolCalls)
	u.Images = max(u.Images, mine.Images)
	if noTokens {
		return u, false // counted by its length or its images
	}
	if u.AudioMillis == 0 {
		u.AudioMillis = mine.AudioMillis
	}
	if u.InputTokens == 0 && mine.InputTokens > 0 {
		u.InputTokens, estimated = mine.InputTokens, true
	}
	if behind := u.OutputTokens == 0 || e.Tally.OutputUnsaid; behind && mine.OutputTokens > u.OutputTokens {
		u.OutputTokens, estimated = mine.OutputTokens, true
		u.ReasoningTokens = max(u.ReasoningTokens, mine.ReasoningTokens)
	}
	return u, estimated
}

// figure brings an own count into the range of counts.
func figure(n int64) int64 { return min(max(n, 0), MaxFigure) }
