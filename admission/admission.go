// Package admission decides whether a request may spend tokens, rate,
// concurrency and GPU time, and keeps the reservation until it ends.
//
// The root holds the nouns and the pure rules: how a request and a tenant's
// quota become a list of constraints, what a refusal means, and how long to
// wait. The decision itself is one Lua script in admission/redis, which is
// given the constraints as data. The HTTP API is in admission/httpapi.
//
// All times that matter for a decision are Redis's; gateway clocks only choose
// which calendar boundaries to send.
package admission

import (
	"context"
	"errors"
	"fmt"
	"time"

	"tollgate/events"
	"tollgate/tenancy"
)

// Errors that callers branch on. A refusal is a *Refusal.
var (
	// ErrUnavailable: Redis is out of reach; nothing is known to have happened.
	ErrUnavailable = errors.New("admission state is out of reach")
	// ErrNotRebuilt: Redis answers but its state has not been rebuilt.
	ErrNotRebuilt = errors.New("admission state is not rebuilt yet")
	// ErrBacklogFull: the outbox is at its bound; only reserves are refused.
	ErrBacklogFull = errors.New("event backlog is full")
	// ErrNotFound: no such reservation, or its record has passed retention.
	ErrNotFound = errors.New("reservation not found")
	// ErrBodyMismatch: the request id was used with another body.
	ErrBodyMismatch = errors.New("request id was used with another body")
	// ErrTombstone: the request was cancelled before it was reserved.
	ErrTombstone = errors.New("request was cancelled before it was reserved")
	// ErrAlreadyFinal: settled or cancelled before, with other figures.
	ErrAlreadyFinal = errors.New("reservation is already final with other figures")
	// ErrInvalid: an argument is outside what the store can keep. The caller
	// validates bodies before; this is the last line.
	ErrInvalid = errors.New("invalid argument")
	// ErrInFlight: the same request id is being decided elsewhere.
	ErrInFlight = errors.New("the same request id is being decided")
)

// MaxUnits bounds every count that reaches the script: Lua numbers are doubles.
const MaxUnits = int64(1) << 52

// ReserveRequest asks for a hold. The caller fills it from a verified
// principal and a validated body.
type ReserveRequest struct {
	Tenant    *tenancy.Tenant
	Key       *tenancy.Key
	RequestID string // 1..128 of [A-Za-z0-9._:@/+=-]
	Endpoint  string // 1..64 of [a-z0-9._/-]
	Model     string // 1..128 printable ASCII without '|' and control characters
	// Hold is the worst case: input tokens, output cap, images, GPU ms.
	Hold        events.Usage
	WeightMilli int64
	ImageTokens int64    // quota tokens of one image (equivalent × 30)
	BodyHash    [16]byte // of the request's canonical form
	TTL         time.Duration
	MaxHold     time.Duration
	Limits      []Constraint // narrow to wide, from Constraints
	Author      string
}

// Constraint is a limit applied to one request: what the script is given.
type Constraint struct {
	Limit tenancy.Limit
	// Field names the counter in the tenant's or the pool's state: stable over
	// quota changes for the same limit name, scope and match.
	Field string
	// Pool is set for limits over all tenants.
	Pool bool
	// Units is the limit in the script's unit (milli-units for tokens, leases
	// after BurstPercent, else as given).
	Units int64
}

// Left is the standing of one constraint after a decision.
type Left struct {
	Constraint Constraint
	Used       int64         // in the limit's own unit, rounded up
	Held       int64         // as Used
	Remaining  int64         // max(0, limit − used − held)
	Reset      time.Duration // until the window or period is new; 0 for leases and budgets without period
}

// Reservation is a hold or what became of it.
type Reservation struct {
	ID            string
	RequestID     string
	State         events.State
	AdmittedUnits int64 // milli-units held at admission
	Total         events.Usage
	TotalUnits    int64 // milli-units used so far
	CreatedAt     time.Time
	ExpiresAt     time.Time
	Replayed      bool // the answer repeats an earlier one
	Left          []Left
	// Stop is set on a usage report when the reservation has outgrown what its
	// limits allow: the report is recorded and the work should end.
	Stop *Refusal
}

// UsageReport is cumulative progress of a reservation, or its final figures.
type UsageReport struct {
	Tenant        *tenancy.Tenant
	ReservationID string
	// RequestID may stand in for ReservationID in a cancel.
	RequestID string
	Total     events.Usage
	Estimated bool
	Author    string
	Reason    string
	TTL       time.Duration // usage: how far to extend the hold
	// SoFar, in a settle or a cancel, charges what was reported before; Total
	// is ignored. For whoever ends a reservation without figures of its own.
	SoFar bool
}

// Reasons of a refusal.
const (
	ReasonWindow      = "window_exhausted" // used tokens or requests fill the window
	ReasonRate        = "rate_exceeded"
	ReasonConcurrency = "concurrency_exhausted"
	ReasonHeld        = "held_by_others" // would fit if the open holds ended at zero
	ReasonSpent       = "budget_spent"
	ReasonTooLarge    = "request_exceeds_limit" // would not fit an empty window
	ReasonExpired     = "hold_expired"          // a usage report came after its hold's deadline
)

// Refusal says which constraint binds and when the same request would pass.
type Refusal struct {
	Constraint Constraint
	Reason     string
	Used       int64 // limit's own unit
	Held       int64
	Requested  int64
	RetryAfter time.Duration // 0: not retryable
}

// Error implements error.
func (r *Refusal) Error() string {
	return fmt.Sprintf("refused by %s (%s): used %d, held %d, requested %d of %d",
		r.Constraint.Limit.Name, r.Reason, r.Used, r.Held, r.Requested, r.Constraint.Limit.Limit)
}

// Store keeps reservations and counters. All methods may be called again with
// the same arguments: a repeat changes nothing and returns the first answer
// with Replayed set.
//
// Errors: *Refusal (Reserve), the sentinels above, and the context's error. On
// ErrUnavailable the caller does not know whether the call took effect and may
// repeat it.
type Store interface {
	Reserve(ctx context.Context, req *ReserveRequest) (*Reservation, error)
	// Report records cumulative progress and extends the hold.
	Report(ctx context.Context, rep *UsageReport) (*Reservation, error)
	Settle(ctx context.Context, rep *UsageReport) (*Reservation, error)
	// Cancel charges rep.Total (what was consumed so far) and ends the hold.
	// With RequestID of an unknown request it leaves a tombstone.
	Cancel(ctx context.Context, rep *UsageReport) (*Reservation, error)
	Get(ctx context.Context, tenant *tenancy.Tenant, reservationID string) (*Reservation, error)
	// Standing returns every constraint's standing, without changing any, and
	// the last refusals by limit name.
	Standing(ctx context.Context, tenant *tenancy.Tenant, limits []Constraint) (*Standing, error)
	// Ready returns nil when reserves can be decided, else ErrUnavailable or
	// ErrNotRebuilt.
	Ready(ctx context.Context) error
}

// Standing answers the usage query.
type Standing struct {
	At           time.Time
	Left         []Left
	LastRefusals map[string]LastRefusal // by limit name
}

// LastRefusal is the most recent refusal by a limit. It is an observation, not
// a counter: it is written after the decision and may lag or be dropped.
type LastRefusal struct {
	At     time.Time `json:"at"`
	Reason string    `json:"reason"`
}
