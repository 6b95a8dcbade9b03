package anthropic

import (
	"strings"

	"tollgate/admission/answer"
	"tollgate/proxy"
)

// errorType is the type that Anthropic has for a status (docs: errors; ErrorType
// of its clients). Clients retry 408, 409, 429 and 5xx by their status, after
// retry-after-ms or else Retry-After, and obey x-should-retry before that.
func errorType(status int) string {
	switch status {
	case 401:
		return "authentication_error"
	case 402:
		return "billing_error"
	case 403:
		return "permission_error"
	case 404:
		return "not_found_error"
	case 409:
		return "conflict_error"
	case 413:
		return "request_too_large"
	case 429:
		return "rate_limit_error"
	case 408, 504:
		return "timeout_error"
	case 503, 529:
		return "overloaded_error"
	}
	if status >= 500 {
		return "api_error"
	}
	return "invalid_request_error"
}

func (dialect) Error(a *answer.Answer, requestID string) []byte {
	return appendError(nil, a, requestID)
}

func (dialect) ErrorEvent(_ proxy.Endpoint, a *answer.Answer, requestID string) []byte {
	return errorEvent(a, requestID)
}

// appendError writes an error. Clients show error.message and read
// error.details.error_code as the stable name of the cause; the figures of a
// limit that refused stand under tollgate.
func appendError(dst []byte, a *answer.Answer, requestID string) []byte {
	message := a.Detail
	if !strings.HasPrefix(message, a.Field) {
		message = a.Field + " " + a.Detail
	}
	dst = append(dst, `{"type":"error","error":{"type":"`...)
	dst = append(dst, errorType(a.Status)...)
	dst = append(dst, `","message":`...)
	dst = answer.AppendString(dst, message)
	if a.Reason != "" {
		dst = append(dst, `,"details":{"error_code":`...)
		dst = append(answer.AppendString(dst, a.Reason), '}')
	}
	dst = append(dst, `},"request_id":`...)
	if requestID == "" {
		dst = append(dst, "null"...)
	} else {
		dst = answer.AppendString(dst, requestID)
	}
	dst = append(dst, `,"tollgate":`...)
	dst = proxy.AppendTollgate(dst, a, requestID)
	return append(dst, '}')
}
