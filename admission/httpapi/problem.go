package httpapi

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"tollgate/admission"
	"tollgate/tenancy"
)

// problem is an answer that is not a success: an RFC 9457 body and the headers
// that go with it.
type problem struct {
	status int
	kind   string // type; empty is about:blank
	title  string // only with a kind
	reason string
	detail string
	field  string // of a body that is refused
	allow  string // of a 405

	// limit is set on a refusal by quota.
	limit *limitFacts
	// retryAfter is in whole seconds; 0 leaves the header out.
	retryAfter int64
	// giveUp tells clients that retry by status alone not to.
	giveUp bool
	// stored is what a reservation became, when that is why it is refused.
	stored *admission.Reservation
	// cause is what to log; it is never shown.
	cause error
}

// limitFacts are the figures of the limit that refused.
type limitFacts struct {
	constraint                *admission.Constraint
	used, reserved, requested int64
}

// Types of problems that IANA lists, from draft-ietf-httpapi-ratelimit-headers.
const (
	typeQuotaExceeded   = "https://iana.org/assignments/http-problem-types#quota-exceeded"
	typeReducedCapacity = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"

	titleQuotaExceeded   = "The quota does not allow this request"
	titleReducedCapacity = "Capacity is reduced for a while"
)

// errorTable maps errors of the store and the directory to answers. Order does
// not matter: an error is at most one of them.
var errorTable = []struct {
	err error
	problem
}{
	{admission.ErrUnavailable, problem{
		status: 503, reason: "state_unavailable", retryAfter: 1,
		detail: "Whether this was recorded is not known. Repeat the same request: it counts once.",
	}},
	{admission.ErrNotRebuilt, problem{
		status: 503, reason: "state_not_rebuilt", retryAfter: 5,
		detail: "The quota state is being rebuilt. Nothing was recorded; repeat the request.",
	}},
	{admission.ErrBacklogFull, problem{
		status: 503, reason: "event_backlog_full", retryAfter: 5,
		kind: typeReducedCapacity, title: titleReducedCapacity,
		detail: "New reservations wait until recorded events are delivered. Open ones can be settled. Repeat the request.",
	}},
	{tenancy.ErrNotReady, problem{
		status: 503, reason: "directory_not_loaded", retryAfter: 1,
		detail: "This gateway is starting. Repeat the request.",
	}},
	{context.DeadlineExceeded, problem{
		status: 503, reason: "timeout", retryAfter: 1,
		detail: "Whether this was recorded is not known. Repeat the same request: it counts once.",
	}},
	{admission.ErrInFlight, problem{
		status: 409, reason: "in_flight", retryAfter: 1,
		detail: "The same request id is being decided. Repeat the request to learn the outcome.",
	}},
	{admission.ErrAlreadyFinal, problem{
		status: 409, reason: "already_settled", giveUp: true,
		detail: "The reservation ended before with other figures, which stand; see reservation. A correction is an operator's to make.",
	}},
	{admission.ErrTombstone, problem{
		status: 409, reason: "cancelled_before_reserve", giveUp: true,
		detail: "This request id was cancelled. Use another one for new work.",
	}},
	{admission.ErrBodyMismatch, problem{
		status: 422, reason: "request_id_reused", field: "request_id",
		detail: "was used with another body; use an id of its own for each request",
	}},
	{admission.ErrNotFound, problem{
		status: 404, reason: "reservation_not_found",
		detail: "There is no such reservation of this tenant, or it ended so long ago that its record is gone.",
	}},
	{admission.ErrInvalid, problem{
		status: 422, reason: reasonRange,
		detail: "The request's worst case is larger than can be counted. Ask for less.",
	}},
	{tenancy.ErrNotFound, problem{status: 404, reason: "tenant_not_found", detail: "There is no such tenant."}},
	{tenancy.ErrBadKey, badCredential},
	{tenancy.ErrKeyRevoked, badCredential},
	{tenancy.ErrSuspended, problem{
		status: 403, reason: "tenant_suspended", giveUp: true,
		detail: "The tenant is suspended. Ask its administrator.",
	}},
}

// badCredential does not say whether the key was unknown, malformed, revoked
// or expired: who holds a bad key need not learn which.
var badCredential = problem{
	status: 401, reason: "invalid_credential",
	detail: "Send a valid API key as Authorization: Bearer tgk_… or as x-api-key.",
}

// problemOf maps an error to its answer. An error that the table does not know
// is 500 and says nothing of itself.
func problemOf(err error) *problem {
	var refusal *admission.Refusal
	if errors.As(err, &refusal) {
		return problemOfRefusal(refusal)
	}
	for i := range errorTable {
		if errors.Is(err, errorTable[i].err) {
			p := errorTable[i].problem
			p.cause = err
			return &p
		}
	}
	return &problem{
		status: 500, reason: "internal", cause: err,
		detail: "Something failed on our side. Repeat the same request: it counts once. If it stays, report the request id.",
	}
}

func problemOfBody(bad *invalid) *problem {
	return &problem{status: bad.status, reason: bad.reason, field: bad.field, detail: bad.detail}
}

// problemOfRefusal is the matrix of refusals: which status a refusal by quota
// has, and when to come back.
//
//	budget really spent          402, never
//	GPU slots (L4)               503, predicted wait or 30 s
//	tokens, rate, concurrency    429, when the same request would pass
func problemOfRefusal(r *admission.Refusal) *problem {
	limit := &r.Constraint.Limit
	p := &problem{
		status: http.StatusTooManyRequests, kind: typeQuotaExceeded, title: titleQuotaExceeded,
		reason: r.Reason, limit: &limitFacts{&r.Constraint, r.Used, r.Held, r.Requested},
	}
	switch {
	case spent(r):
		p.status, p.giveUp = http.StatusPaymentRequired, true
	case limit.Layer == "L4":
		p.status, p.kind, p.title = http.StatusServiceUnavailable, typeReducedCapacity, titleReducedCapacity
		p.retryAfter = secondsOr(r.RetryAfter, 30)
	default:
		p.giveUp = r.Reason == admission.ReasonTooLarge
		p.retryAfter = secondsOr(r.RetryAfter, defaultWait(r))
	}
	p.detail = advice(r, p)
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
		return min(seconds(time.Duration(r.Constraint.Limit.Window)), 60)
	}
	return 60
}

// seconds rounds up to whole seconds, and to at least one.
func seconds(d time.Duration) int64 {
	return max(int64((d+time.Second-1)/time.Second), 1)
}

func secondsOr(d time.Duration, otherwise int64) int64 {
	if d <= 0 {
		return otherwise
	}
	return seconds(d)
}

// advice says in a sentence what happened and what to do.
func advice(r *admission.Refusal, p *problem) string {
	name := r.Constraint.Limit.Name
	wait := strconv.FormatInt(p.retryAfter, 10) + " s"
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
