package proxy

import (
	"strconv"

	"tollgate/admission/answer"
)

// AppendTollgate appends the value of the member tollgate, which an error has in
// every dialect beside what its clients know: the reason as a word, the request's
// id, when to come back in seconds, and the figures of the limit that refused.
func AppendTollgate(dst []byte, a *answer.Answer, requestID string) []byte {
	dst = append(dst, `{"reason":`...)
	dst = answer.AppendString(dst, a.Reason)
	if requestID != "" {
		dst = append(dst, `,"request_id":`...)
		dst = answer.AppendString(dst, requestID)
	}
	if a.Field != "" {
		dst = append(dst, `,"field":`...)
		dst = answer.AppendString(dst, a.Field)
	}
	if a.RetryAfter > 0 {
		dst = append(dst, `,"retry_after":`...)
		dst = strconv.AppendInt(dst, a.RetryAfter, 10)
	}
	if a.Limit != nil {
		dst = answer.AppendFacts(dst, a.Limit)
	}
	return append(dst, '}')
}
