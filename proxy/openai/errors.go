package openai

import (
	"net/http"
	"strings"

	"tollgate/admission/answer"
	"tollgate/proxy"
)

// Error implements proxy.Dialect. Types and codes are those that OpenAI's clients
// branch on; what else there is to know stands in the member tollgate.
func (dialect) Error(a *answer.Answer, requestID string) []byte {
	return errorBody(a, requestID)
}

func errorBody(a *answer.Answer, requestID string) []byte {
	out := appendError(append(make([]byte, 0, 512), `{"error":`...), a)
	out = append(out, `,"tollgate":`...)
	return append(proxy.AppendTollgate(out, a, requestID), '}')
}

func appendError(out []byte, a *answer.Answer) []byte {
	kind, code := classify(a)
	out = answer.AppendString(append(out, `{"message":`...), message(a))
	out = answer.AppendString(append(out, `,"type":`...), kind)
	out = appendParam(append(out, `,"param":`...), a.Field)
	out = answer.AppendString(append(out, `,"code":`...), code)
	return append(out, '}')
}

func appendParam(out []byte, field string) []byte {
	if field == "" {
		return append(out, "null"...)
	}
	return answer.AppendString(out, field)
}

// message is the sentence, which the field begins that it is about.
func message(a *answer.Answer) string {
	if a.Field == "" || strings.HasPrefix(a.Detail, a.Field) {
		return a.Detail
	}
	return a.Field + " " + a.Detail
}

// classify gives an error's type and code.
func classify(a *answer.Answer) (kind, code string) {
	switch {
	case a.Status == http.StatusUnauthorized:
		return "invalid_request_error", "invalid_api_key"
	case a.Status == http.StatusPaymentRequired:
		return "insufficient_quota", "insufficient_quota"
	case a.Status == http.StatusForbidden:
		return "permission_error", or(a.Reason, "permission_denied")
	case a.Status == http.StatusTooManyRequests:
		return limited(a), "rate_limit_exceeded"
	case a.Status >= 500:
		return "server_error", or(a.Reason, "server_error")
	}
	return "invalid_request_error", or(a.Reason, "invalid_request_error")
}

// limited says what there was too much of, as OpenAI's rate limits do.
func limited(a *answer.Answer) string {
	if a.Limit == nil || a.Limit.Constraint == nil {
		return "requests"
	}
	switch answer.UnitOf(&a.Limit.Constraint.Limit) {
	case "reservations", "requests":
		return "requests"
	}
	return "tokens"
}

// ErrorEvent implements proxy.Dialect.
func (dialect) ErrorEvent(e proxy.Endpoint, a *answer.Answer, requestID string) []byte {
	switch e.Name() {
	case "chat/completions", "completions":
		out := append([]byte("data: "), errorBody(a, requestID)...)
		return append(out, "\n\ndata: [DONE]\n\n"...)
	}
	return errorEvent(a, requestID, 0)
}

// errorEvent is an event of type error, as the streams have it whose events carry
// a type. The error stands in it twice: flat as the API documents it, and as the
// member that clients look for in every event.
func errorEvent(a *answer.Answer, requestID string, sequence int64) []byte {
	_, code := classify(a)
	out := append([]byte("event: error\ndata: "), `{"type":"error","code":`...)
	out = answer.AppendString(out, code)
	out = answer.AppendString(append(out, `,"message":`...), message(a))
	out = appendParam(append(out, `,"param":`...), a.Field)
	out = appendInt(out, `,"sequence_number":`, sequence)
	out = appendError(append(out, `,"error":`...), a)
	out = proxy.AppendTollgate(append(out, `,"tollgate":`...), a, requestID)
	return append(out, "}\n\n"...)
}
