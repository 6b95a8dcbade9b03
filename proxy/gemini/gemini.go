// Package gemini is the dialect of Google's Gemini API, kept small:
// generateContent, streamGenerateContent as server-sent events, countTokens and
// the list of models.
//
// Its bodies are protocol buffers in JSON (ProtoJSON), which has two spellings of
// each name, generationConfig and generation_config. Both are read, and a request
// that has both is refused.
//
// Sources: the API reference at ai.google.dev and the types and retry rules of
// the official client for Python (google-genai 3.6).
package gemini

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"tollgate/admission/answer"
	"tollgate/proxy"
)

// kind is an endpoint's method, as its path has it.
type kind string

const (
	generate kind = "generateContent"
	stream   kind = "streamGenerateContent"
	count    kind = "countTokens"
	list     kind = ""
)

// endpoint is one operation in one version of the API. Each is made once; its
// address is its identity.
type endpoint struct {
	kind      kind
	version   string
	name      string
	operation proxy.Operation
}

var endpoints = func() (all []*endpoint) {
	for _, version := range []string{"v1beta", "v1"} {
		all = append(
			all,
			&endpoint{generate, version, "generate_content", proxy.OperationGenerate},
			&endpoint{stream, version, "generate_content", proxy.OperationGenerate},
			&endpoint{count, version, "count_tokens", proxy.OperationCount},
		)
	}
	return append(
		all,
		&endpoint{list, "v1beta", "models", proxy.OperationModels},
		&endpoint{list, "v1", "models", proxy.OperationModels},
	)
}()

func (e *endpoint) Name() string               { return e.name }
func (e *endpoint) Operation() proxy.Operation { return e.operation }
func (e *endpoint) Free() bool                 { return e.kind == count || e.kind == list }

type dialect struct{}

// New gives the dialect.
func New() proxy.Dialect { return dialect{} }

func (dialect) Name() string { return "gemini" }

// Endpoint takes /v1/models, where every dialect's clients list models, only from
// those that bring their key as Gemini's do.
func (dialect) Endpoint(method, path string, header http.Header) (proxy.Endpoint, string, bool) {
	version, rest, ok := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	if !ok {
		return nil, "", false
	}
	resource, verb, _ := strings.Cut(rest, ":")
	model, named := strings.CutPrefix(resource, "models/")
	switch {
	case method == http.MethodPost && named && model != "" && verb != "":
	case (method == http.MethodGet || method == http.MethodHead) && verb == "" && (resource == "models" || named && model != ""):
	default:
		return nil, "", false
	}
	if !named {
		model = ""
	}
	if verb == "" && version == "v1" && len(header["X-Goog-Api-Key"]) == 0 {
		return nil, "", false
	}
	for _, e := range endpoints {
		if e.version == version && string(e.kind) == verb && !strings.Contains(model, "/") {
			return e, model, true
		}
	}
	return nil, "", false
}

// Credential reads x-goog-api-key and the parameter key, which older clients
// send.
func (dialect) Credential(header http.Header, query string) string {
	keys := append([]string(nil), header["X-Goog-Api-Key"]...)
	for pair := range strings.SplitSeq(query, "&") {
		name, value, _ := strings.Cut(pair, "=")
		if name, err := url.QueryUnescape(name); err != nil || name != "key" {
			continue
		}
		value, err := url.QueryUnescape(value)
		if err != nil {
			return ""
		}
		keys = append(keys, value)
	}
	credential := ""
	for _, key := range keys {
		if !proxy.Agree(&credential, key) {
			return ""
		}
	}
	return credential
}

// Address never passes the parameter key on, whoever left it in. A stream is
// always asked for as server-sent events: nothing else can be followed.
func (dialect) Address(e proxy.Endpoint, up proxy.Upstream, model, query string) (string, http.Header) {
	own := e.(*endpoint)
	address := up.Base + "/" + own.version + "/models"
	if model != "" {
		address += "/" + url.PathEscape(model)
	}
	if own.kind != list {
		address += ":" + string(own.kind)
	}
	if query = upstreamQuery(query, own.kind == stream); query != "" {
		address += "?" + query
	}
	header := http.Header{}
	if up.Key != "" {
		header["X-Goog-Api-Key"] = []string{up.Key}
	}
	return address, header
}

func upstreamQuery(query string, events bool) string {
	var kept []string
	for pair := range strings.SplitSeq(query, "&") {
		name, _, _ := strings.Cut(pair, "=")
		name, err := url.QueryUnescape(name)
		if pair == "" || err != nil || name == "key" || name == "$.xgafv" || events && name == "alt" {
			continue
		}
		kept = append(kept, pair)
	}
	if events {
		kept = append(kept, "alt=sse")
	}
	return strings.Join(kept, "&")
}

// ReadQuery refuses a stream that shall come as a JSON array, which cannot be
// followed while it comes.
func (e *endpoint) ReadQuery(query string) error {
	if e.kind != stream {
		return nil
	}
	values, err := url.ParseQuery(query)
	if err != nil || len(values["alt"]) != 1 || values.Get("alt") != "sse" {
		return &proxy.BadRequest{Field: "alt", Detail: "must be sse: add ?alt=sse to the address, as streams are passed on as server-sent events only"}
	}
	return nil
}

func (dialect) Models(ids []string, only string) ([]byte, bool) {
	if only != "" {
		if !slices.Contains(ids, only) {
			return nil, false
		}
		return appendModel(nil, only), true
	}
	return append(proxy.AppendEach([]byte(`{"models":[`), ids, appendModel), "]}"...), true
}

func appendModel(dst []byte, id string) []byte {
	dst = append(dst, `{"name":`...)
	dst = answer.AppendString(dst, "models/"+id)
	dst = append(dst, `,"displayName":`...)
	dst = answer.AppendString(dst, id)
	return append(dst, `,"supportedGenerationMethods":["generateContent","countTokens"]}`...)
}
