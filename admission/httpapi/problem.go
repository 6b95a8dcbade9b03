package httpapi

import (
	"tollgate/admission"
	"tollgate/admission/answer"
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
	limit *answer.Facts
	// retryAfter is in whole seconds; 0 leaves the header out.
	retryAfter int64
	// giveUp tells clients that retry by status alone not to.
	giveUp bool
	// stored is what a reservation became, when that is why it is refused.
	stored *admission.Reservation
	// cause is what to log; it is never shown.
	cause error
}

// badCredential does not say whether the key was unknown, malformed, revoked
// or expired: who holds a bad key need not learn which.
var badCredential = *problemFrom(&answer.BadCredential)

// problemOf is the problem that answers an error.
func problemOf(err error) *problem { return problemFrom(answer.Of(err)) }

func problemOfRefusal(r *admission.Refusal) *problem { return problemFrom(answer.OfRefusal(r)) }

func problemFrom(a *answer.Answer) *problem {
	return &problem{
		status: a.Status, kind: a.Type, title: a.Title, reason: a.Reason, detail: a.Detail, field: a.Field,
		retryAfter: a.RetryAfter, giveUp: a.GiveUp, cause: a.Cause, limit: a.Limit,
	}
}

func problemOfBody(bad *invalid) *problem {
	return &problem{status: bad.status, reason: bad.reason, field: bad.field, detail: bad.detail}
}
