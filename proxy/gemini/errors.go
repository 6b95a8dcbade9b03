package gemini

import (
	"strconv"
	"strings"

	"tollgate/admission/answer"
	"tollgate/proxy"
)

// status is the google.rpc.Code that Google's HTTP mapping has for a status.
// The official client retries 408, 429, 500, 502, 503 and 504 where it was told
// to, by the number alone.
func status(code int) string {
	switch code {
	case 401:
		return "UNAUTHENTICATED"
	case 402:
		return "FAILED_PRECONDITION"
	case 403:
		return "PERMISSION_DENIED"
	case 404:
		return "NOT_FOUND"
	case 409:
		return "ABORTED"
	case 429:
		return "RESOURCE_EXHAUSTED"
	case 499:
		return "CANCELLED"
	case 501:
		return "UNIMPLEMENTED"
	case 502, 503:
		return "UNAVAILABLE"
	case 408, 504:
		return "DEADLINE_EXCEEDED"
	}
	if code >= 500 {
		return "INTERNAL"
	}
	return "INVALID_ARGUMENT"
}

func (dialect) Error(a *answer.Answer, requestID string) []byte {
	return appendError(nil, a, requestID)
}

func (dialect) ErrorEvent(_ proxy.Endpoint, a *answer.Answer, requestID string) []byte {
	return errorEvent(a, requestID)
}

func errorEvent(a *answer.Answer, requestID string) []byte {
	return append(appendError([]byte("data: "), a, requestID), "\n\n"...)
}

// appendError writes an error as google.rpc.Status, with the details that
// Google's own errors have. It must begin with {"error": for clients to know it
// in a stream.
func appendError(dst []byte, a *answer.Answer, requestID string) []byte {
	message := a.Detail
	if !strings.HasPrefix(message, a.Field) {
		message = a.Field + " " + a.Detail
	}
	dst = append(dst, `{"error":{"code":`...)
	dst = strconv.AppendInt(dst, int64(a.Status), 10)
	dst = append(dst, `,"message":`...)
	dst = answer.AppendString(dst, message)
	dst = append(dst, `,"status":"`...)
	dst = append(dst, status(a.Status)...)
	dst = append(dst, `","details":[{"@type":"type.googleapis.com/google.rpc.ErrorInfo","reason":`...)
	dst = answer.AppendString(dst, strings.ToUpper(a.Reason))
	dst = append(dst, `,"domain":"tollgate"}`...)
	if a.RetryAfter > 0 {
		dst = append(dst, `,{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"`...)
		dst = append(strconv.AppendInt(dst, a.RetryAfter, 10), `s"}`...)
	}
	if requestID != "" {
		dst = append(dst, `,{"@type":"type.googleapis.com/google.rpc.RequestInfo","requestId":`...)
		dst = append(answer.AppendString(dst, requestID), '}')
	}
	dst = append(dst, `]},"tollgate":`...)
	dst = proxy.AppendTollgate(dst, a, requestID)
	return append(dst, '}')
}
