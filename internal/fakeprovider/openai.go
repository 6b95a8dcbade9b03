package fakeprovider

import "net/http"

var openAI = &dialect{
	name:      "openai",
	requestID: "X-Request-Id",
	errorBody: func(b []byte, status int, detail *badRequest, _ string) []byte {
		kind, code := openAIError(status)
		b = appendText(append(b, `{"error":{`...), `"message":`, detail.message())
		b = append(append(append(b, `,"type":"`...), kind...), `","param":`...)
		if detail.field == "" {
			b = append(b, "null"...)
		} else {
			b = appendString(b, detail.field)
		}
		b = append(b, `,"code":`...)
		if code == "" {
			return append(b, `null}}`...)
		}
		return append(appendString(b, code), `}}`...)
	},
	errorEvent: func(int64) (string, []byte) {
		return "", []byte(`{"error":{"message":"The server had an error while processing your request.","type":"server_error","param":null,"code":"server_error"}}`)
	},
}

func openAIError(status int) (kind, code string) {
	switch status {
	case http.StatusUnauthorized:
		return "invalid_request_error", "invalid_api_key"
	case http.StatusNotFound:
		return "invalid_request_error", "model_not_found"
	case http.StatusTooManyRequests:
		return "requests", "rate_limit_exceeded"
	}
	if status < http.StatusInternalServerError {
		return "invalid_request_error", ""
	}
	return "server_error", ""
}
