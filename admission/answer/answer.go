// Package answer says what a caller is told when a request is not admitted or
// cannot be decided: the status, the reason, and when to come back.
//
// It is one table and the matrix of refusals, so that every interface gives the
// same answer for the same outcome, each in its own form: the HTTP API as RFC
// 9457 problems, the front door in the caller's dialect.
package answer

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"tollgate/admission"
	"tollgate/tenancy"
)

// Answer is an outcome that is not a success.
type Answer struct {
	Status int    // HTTP
	Type   string // of an RFC 9457 problem; empty is about:blank
	Title  string // only with a type
	Reason string // a word for programs, such as "budget_spent"
	Detail string // a sentence for people: what happened and what to do
	Field  string // of a body that is refused

	// Limit is set on a refusal by quota.
	Limit *Facts
	// RetryAfter is in whole seconds; 0: there is nothing to wait for.
	RetryAfter int64
	// GiveUp tells clients that retry by status alone not to.
	GiveUp bool
	// Cause is what to log; it is never shown.
	Cause error
}

// Facts are the figures of the limit that refused, in the limit's own unit.
type Facts struct {
	Constraint                *admission.Constraint
	Used, Reserved, Requested int64
}

// ReasonRange is the reason of figures that cannot be counted.
const ReasonRange = "out_of_range"

// Types of problems that IANA lists, from draft-ietf-httpapi-ratelimit-headers.
const (
	TypeQuotaExceeded   = "https://iana.org/assignments/http-problem-types#quota-exceeded"
	TypeReducedCapacity = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"

	TitleQuotaExceeded   = "The quota does not allow this request"
	TitleReducedCapacity = "Capacity is reduced for a while"
)

// errorTable maps errors of the store and the directory to answers. Order does
// not matter: an error is at most one of them.
var errorTable = []struct {
	err error
	Answer
}{
	{admission.ErrUnavailable, Answer{
		Status: 503, Reason: "state_unavailable", RetryAfter: 1,
		Detail: "Whether this was recorded is not known. Repeat the same request: it counts once.",
	}},
	{admission.ErrNotRebuilt, Answer{
		Status: 503, Reason: "state_not_rebuilt", RetryAfter: 5,
		Detail: "The quota state is being rebuilt. Nothing was recorded; repeat the request.",
	}},
	{admission.ErrBacklogFull, Answer{
		Status: 503, Reason: "event_backlog_full", RetryAfter: 5,
		Type: TypeReducedCapacity, Title: TitleReducedCapacity,
		Detail: "New reservations wait until recorded events are delivered. Open ones can be settled. Repeat the request.",
	}},
	{tenancy.ErrNotReady, Answer{
		Status: 503, Reason: "directory_not_loaded", RetryAfter: 1,
		Detail: "This gateway is starting. Repeat the request.",
	}},
	{context.DeadlineExceeded, Answer{
		Status: 503, Reason: "timeout", RetryAfter: 1,
		Detail: "Whether this was recorded is not known. Repeat the same request: it counts once.",
	}},
	{admission.ErrInFlight, Answer{
		Status: 409, Reason: "in_flight", RetryAfter: 1,
		Detail: "The same request id is being decided. Repeat the request to learn the outcome.",
	}},
	{admission.ErrAlreadyFinal, Answer{
		Status: 409, Reason: "already_settled", GiveUp: true,
		Detail: "The reservation ended before with other figures, which stand; see reservation. A correction is an operator's to make.",
	}},
	{admission.ErrTombstone, Answer{
		Status: 409, Reason: "cancelled_before_reserve", GiveUp: true,
		Detail: "This request id was cancelled. Use another one for new work.",
	}},
	{admission.ErrBodyMismatch, Answer{
		Status: 422, Reason: "request_id_reused", Field: "request_id",
		Detail: "was used with another body; use an id of its own for each request",
	}},
	{admission.ErrNotFound, Answer{
		Status: 404, Reason: "reservation_not_found",
		Detail: "There is no such reservation of this tenant, or it ended so long ago that its record is gone.",
	}},
	{admission.ErrInvalid, Answer{
		Status: 422, Reason: ReasonRange,
		Detail: "The request's worst case is larger than can be counted. Ask for less.",
	}},
	{tenancy.ErrNotFound, Answer{Status: 404, Reason: "tenant_not_found", Detail: "There is no such tenant."}},
	{tenancy.ErrBadKey, BadCredential},
	{tenancy.ErrKeyRevoked, BadCredential},
	{tenancy.ErrSuspended, Answer{
		Status: 403, Reason: "tenant_suspended", GiveUp: true,
		Detail: "The tenant is suspended. Ask its administrator.",
	}},
}

// BadCredential does not say whether the key was unknown, malformed, revoked
// or expired: who holds a bad key need not learn which.
var BadCredential = Answer{
	Status: 401, Reason: "invalid_credential",
	Detail: "Send a valid API key as Authorization: Bearer tgk_… or as x-api-key.",
}

// Of maps an error to its answer. An error that the table does not know is 500
// and says nothing of itself.
func Of(err error) *Answer {
	var refusal *admission.Refusal
	if errors.As(err, &refusal) {
		return OfRefusal(refusal)
	}
	for i := range errorTable {
		if errors.Is(err, errorTable[i].err) {
			a := errorTable[i].Answer
			a.Cause = err
			return &a
		}
	}
	return &Answer{
		Status: 500, Reason: "internal", Cause: err,
		Detail: "Something failed on our side. Repeat the same request: it counts once. If it stays, report the request id.",
	}
}

// OfRefusal is the matrix of refusals: which status a refusal by quota
// has, and when to come back.
//
//	budget really spent          402, never
//	GPU slots (L4)               503, predicted wait or 30 s
//	tokens, rate, concurrency    429, when the same request would pass
func OfRefusal(r *admission.Refusal) *Answer {
	limit := &r.Constraint.Limit
	p := &Answer{
		Status: http.StatusTooManyRequests, Type: TypeQuotaExceeded, Title: TitleQuotaExceeded,
		Reason: r.Reason, Limit: &Facts{&r.Constraint, r.Used, r.Held, r.Requested},
	}
	switch {
	case spent(r):
		p.Status, p.GiveUp = http.StatusPaymentRequired, true
	case limit.Layer == "L4":
		p.Status, p.Type, p.Title = http.StatusServiceUnavailable, TypeReducedCapacity, TitleReducedCapacity
		p.RetryAfter = secondsOr(r.RetryAfter, 30)
	default:
		p.GiveUp = r.Reason == admission.ReasonTooLarge
		p.RetryAfter = secondsOr(r.RetryAfter, defaultWait(r))
	}
	p.Detail = advice(r, p)
	return p
}

// spent: a budget is a limit on money or on the month. A request larger than
// the whole budget will not pass by waiting either.
func spent(r *admission.Refusal) bool {
	return r.Constraint.Limit.Budget && (r.Reason == admission.ReasonSpent || r.Reason == admission.ReasonTooLarge)
}

// defaultWait is for refusals that come without a prediction, in seconds.
func defaultWait(r *admission.Refusal) int64 {
	switch {
	case r.Reason == admission.ReasonHeld, r.Constraint.Limit.Kind == tenancy.KindLease:
		return 5
	case r.Constraint.Limit.Kind == tenancy.KindRate:
		return 1
	case r.Constraint.Limit.Kind == tenancy.KindRing:
		return min(Seconds(time.Duration(r.Constraint.Limit.Window)), 60)
	}
	return 60
}

// Seconds rounds up to whole seconds, and to at least one.
func Seconds(d time.Duration) int64 {
	return max(int64((d+time.Second-1)/time.Second), 1)
}

func secondsOr(d time.Duration, otherwise int64) int64 {
	if d <= 0 {
		return otherwise
	}
	return Seconds(d)
}

// advice says in a sentence what happened and what to do.
func advice(r *admission.Refusal, p *Answer) string {
	name := r.Constraint.Limit.Name
	wait := strconv.FormatInt(p.RetryAfter, 10) + " s"
	switch {
	case spent(r) && r.Reason == admission.ReasonTooLarge:
		return "The request is larger than the whole budget " + name + ". Ask for fewer tokens, or have the budget raised."
	case spent(r):
		return "The budget " + name + " is spent. Waiting will not help; have it raised or wait for its next period."
	case r.Reason == admission.ReasonTooLarge:
		return "The request alone is larger than the limit " + name + ". Ask for fewer tokens; waiting will not help."
	case r.Reason == admission.ReasonHeld:
		return "Open reservations hold what is left of " + name + ". Repeat after " + wait + ", when some may have ended below their hold."
	case r.Reason == admission.ReasonConcurrency:
		return "All places of " + name + " are taken. Repeat after " + wait + "."
	case r.Reason == admission.ReasonRate:
		return "Requests come faster than " + name + " allows. Repeat after " + wait + "."
	}
	return "The limit " + name + " is used up for now. Repeat after " + wait + ", or ask for fewer tokens."
}
