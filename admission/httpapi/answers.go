package httpapi

import "time"

// The answers that are appended by hand, as types: what the OpenAPI document
// says of them, and what a test compares the encoders with.

// ReservationAnswer is a reservation, or what became of it.
type ReservationAnswer struct {
	ReservationID   string      `json:"reservation_id"`
	RequestID       string      `json:"request_id"`
	State           string      `json:"state" enum:"held,expired,settled,cancelled" doc:"expired: the hold's time passed and what was used is not known yet."`
	AdmittedUnits   int64       `json:"admitted_units" doc:"Milli-units held at admission: tokens × the model's weight × 1000."`
	AdmittedTokens  int64       `json:"admitted_tokens" doc:"The same in weighted tokens, rounded up."`
	MaxOutputTokens *int64      `json:"max_output_tokens,omitempty" doc:"The granted cap; in the answer to a reserve."`
	Used            UsageAnswer `json:"used" doc:"Consumed so far."`
	UsedUnits       int64       `json:"used_units" doc:"Milli-units consumed so far."`
	UsedTokens      int64       `json:"used_tokens" doc:"The same in weighted tokens, rounded up."`
	CreatedAt       *time.Time  `json:"created_at,omitempty"`
	ExpiresAt       *time.Time  `json:"expires_at,omitempty" doc:"Deadline of the hold; a usage report extends it."`
	Limits          []LimitLeft `json:"limits,omitempty" nullable:"false" doc:"Standing of the caller's own limits after this."`
	Stop            *Stop       `json:"stop,omitempty" doc:"Present when the work should end now."`
}

// UsageAnswer counts what was consumed; counts that are absent are zero.
type UsageAnswer struct {
	InputTokens       int64 `json:"input_tokens"`
	OutputTokens      int64 `json:"output_tokens"`
	CachedInputTokens int64 `json:"cached_input_tokens,omitempty"`
	ReasoningTokens   int64 `json:"reasoning_tokens,omitempty"`
	ToolCalls         int64 `json:"tool_calls,omitempty"`
	Images            int64 `json:"images,omitempty"`
	AudioMillis       int64 `json:"audio_ms,omitempty"`
	GPUMillis         int64 `json:"gpu_ms,omitempty"`
}

// LimitLeft is the standing of one limit after a decision.
type LimitLeft struct {
	Name      string `json:"name"`
	Layer     string `json:"layer"`
	Limit     int64  `json:"limit"`
	Used      int64  `json:"used"`
	Held      int64  `json:"held"`
	Remaining int64  `json:"remaining"`
	ResetMS   int64  `json:"reset_ms" doc:"Until the window or period is new; 0 where nothing resets."`
}

// LimitFacts say which limit refused, in its own unit.
type LimitFacts struct {
	Name      string `json:"name,omitempty"`
	Layer     string `json:"layer,omitempty"`
	Scope     string `json:"scope,omitempty"`
	Unit      string `json:"unit,omitempty"`
	Limit     *int64 `json:"limit,omitempty"`
	Used      *int64 `json:"used,omitempty"`
	Reserved  *int64 `json:"reserved,omitempty" doc:"Held by open reservations."`
	Requested *int64 `json:"requested,omitempty"`
}

// Stop tells a caller to end its work.
type Stop struct {
	Reason string `json:"reason"`
	Detail string `json:"detail"`
	LimitFacts
}

// Problem is an RFC 9457 problem.
type Problem struct {
	Type   string `json:"type" doc:"One of IANA's problem types, or about:blank."`
	Title  string `json:"title"`
	Status int64  `json:"status"`
	Detail string `json:"detail" doc:"What happened and what to do."`
	Reason string `json:"reason" doc:"What happened, for programs."`
	Field  string `json:"field,omitempty" doc:"The field of the body that is wrong."`
	LimitFacts
	ViolatedPolicies []string           `json:"violated-policies,omitempty" nullable:"false" doc:"Names of the limits that refused."`
	Reservation      *ReservationAnswer `json:"reservation,omitempty" doc:"What the reservation became, when that is why."`
	RequestID        string             `json:"request_id" doc:"The caller's request id, or one made up here; quote it when asking."`
}

// Status is the answer of the health routes.
type Status struct {
	Status string `json:"status"`
}
