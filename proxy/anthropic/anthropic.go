// Package anthropic is the dialect of Anthropic's Messages API and its clients.
//
// It reads requests to /v1/messages strictly where routing and metering need it,
// follows answers and streams, and writes errors and the ends of streams as
// Anthropic's own clients expect them. /v1/messages/count_tokens is passed on and
// free; /v1/models is answered when the client says that it speaks this dialect,
// with the header anthropic-version.
//
// Sources: the API reference at docs.anthropic.com and the types and the retry
// rules of the official clients for Python (anthropic 2.14) and Node
// (@anthropic-ai/sdk 1.14).
package anthropic

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"tollgate/admission/answer"
	"tollgate/proxy"
)

// version is the API version that is sent where the client names none. There has
// been no other since.
const version = "2023-06-01"

const (
	pathMessages = "/v1/messages"
	pathCount    = "/v1/messages/count_tokens"
	pathModels   = "/v1/models"
)

// The endpoints.
var (
	messages    = &endpoint{name: "messages", operation: proxy.OperationChat, path: pathMessages}
	countTokens = &endpoint{name: "messages/count_tokens", operation: proxy.OperationCount, path: pathCount, free: true}
	models      = &endpoint{name: "models", operation: proxy.OperationModels, path: pathModels, free: true}
)

type dialect struct{}

// New gives the dialect.
func New() proxy.Dialect { return dialect{} }

func (dialect) Name() string { return "anthropic" }

func (dialect) Endpoint(method, path string, header http.Header) (proxy.Endpoint, string, bool) {
	switch method {
	case http.MethodPost:
		switch path {
		case pathMessages:
			return messages, "", true
		case pathCount:
			return countTokens, "", true
		}
	case http.MethodGet, http.MethodHead:
		rest, ok := strings.CutPrefix(path, pathModels)
		if !ok || header.Get("Anthropic-Version") == "" {
			return nil, "", false
		}
		if rest == "" {
			return models, "", true
		}
		if id, ok := strings.CutPrefix(rest, "/"); ok && id != "" {
			return models, id, true
		}
	}
	return nil, "", false
}

// Credential reads x-api-key and Authorization: Bearer, which clients call
// api_key and auth_token.
func (dialect) Credential(header http.Header, _ string) string {
	credential := ""
	for _, key := range header["X-Api-Key"] {
		if !proxy.Agree(&credential, key) {
			return ""
		}
	}
	for _, value := range header["Authorization"] {
		scheme, token, _ := strings.Cut(strings.TrimSpace(value), " ")
		if strings.EqualFold(scheme, "Bearer") && !proxy.Agree(&credential, token) {
			return ""
		}
	}
	return credential
}

func (dialect) Address(e proxy.Endpoint, up proxy.Upstream, model, query string) (string, http.Header) {
	address := up.Base + e.(*endpoint).path
	if e == models && model != "" {
		address += "/" + url.PathEscape(model)
	}
	if query != "" {
		address += "?" + query
	}
	header := http.Header{"Anthropic-Version": {version}}
	if up.Key != "" {
		header["X-Api-Key"] = []string{up.Key}
	}
	return address, header
}

// Models lists models as GET /v1/models does, or shows one. When a model was made
// is not known here; the Unix epoch stands for it, as clients read a time.
func (dialect) Models(ids []string, only string) ([]byte, bool) {
	if only != "" {
		if !slices.Contains(ids, only) {
			return nil, false
		}
		return appendModel(nil, only), true
	}
	body := proxy.AppendEach([]byte(`{"data":[`), ids, appendModel)
	body = append(body, `],"has_more":false,"first_id":`...)
	if len(ids) == 0 {
		return append(body, `null,"last_id":null}`...), true
	}
	body = answer.AppendString(body, ids[0])
	body = append(body, `,"last_id":`...)
	return append(answer.AppendString(body, ids[len(ids)-1]), '}'), true
}

func appendModel(dst []byte, id string) []byte {
	dst = append(dst, `{"type":"model","id":`...)
	dst = answer.AppendString(dst, id)
	dst = append(dst, `,"display_name":`...)
	dst = answer.AppendString(dst, id)
	return append(dst, `,"created_at":"1970-01-01T00:00:00Z"}`...)
}
