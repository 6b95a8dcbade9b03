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
