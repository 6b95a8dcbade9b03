// Package openai is the dialect of OpenAI's API, which vLLM, SGLang, Ollama,
// llama.cpp and Azure OpenAI speak too: chat completions, responses, completions,
// embeddings, images, speech and transcriptions, and the list of models.
//
// Bodies are read where they matter for routing and metering, and changed by
// splicing bytes: the model's name, the usage asked for in a stream, an output cap
// where none was given. Everything else passes as it came.
//
// What is not served, because it cannot be metered or shared: background
// responses (their usage is known after the answer), and stored responses by id
// (all tenants share the upstream's account). Context that an upstream keeps
// (previous_response_id, conversation, prompt templates, file ids) is not visible
// here: holds see what the request shows, the upstream's usage says the rest.
//
// Usage is asked for in every stream. The chunk that carries nothing else is
// hidden from clients that did not ask for it, and so is the null that OpenAI sends
// in every other chunk; usage beside choices, which some servers send in each
// chunk, passes as it is.
package openai

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"tollgate/admission/answer"
	"tollgate/proxy"
)

// New gives the dialect.
func New() proxy.Dialect { return dialect{} }

type dialect struct{}

// Name implements proxy.Dialect.
func (dialect) Name() string { return "openai" }

// kind is what every endpoint has: a name that is also its path, and what it
// does.
type kind struct {
	name string
	op   proxy.Operation
	// deployed: Azure serves it below a deployment, whose name is the model's.
	deployed bool
}

// Name implements proxy.Endpoint.
func (k kind) Name() string { return k.name }

// Operation implements proxy.Endpoint.
func (k kind) Operation() proxy.Operation { return k.op }

// Free implements proxy.Endpoint.
func (k kind) Free() bool { return k.op == proxy.OperationModels }

// endpoints are those that are asked with POST, by path.
var endpoints = map[string]interface {
	proxy.Endpoint
	azureDeployed() bool
}{
	"chat/completions":     chat{kind{"chat/completions", proxy.OperationChat, true}},
	"completions":          completions{kind{"completions", proxy.OperationCompletion, true}},
	"responses":            responses{kind{"responses", proxy.OperationChat, false}},
	"embeddings":           embeddings{kind{"embeddings", proxy.OperationEmbeddings, true}},
	"images/generations":   images{kind{"images/generations", proxy.OperationImages, true}},
	"images/edits":         images{kind{"images/edits", proxy.OperationImages, true}},
	"audio/transcriptions": transcription{kind{"audio/transcriptions", proxy.OperationTranscribe, true}},
	"audio/translations":   transcription{kind{"audio/translations", proxy.OperationTranscribe, true}},
	"audio/speech":         speech{kind{"audio/speech", proxy.OperationSpeech, true}},
}

func (k kind) azureDeployed() bool { return k.deployed }

// Endpoint implements proxy.Dialect. Paths are those of OpenAI's clients (/v1/…)
// and of Azure's (/openai/deployments/{model}/…, /openai/v1/…, /openai/…). A
// deployment's name may hold slashes.
func (dialect) Endpoint(method, path string, header http.Header) (e proxy.Endpoint, model string, ok bool) {
	rest, ok := strings.CutPrefix(path, "/v1/")
	if !ok {
		if rest, ok = strings.CutPrefix(path, "/openai/"); !ok {
			return nil, "", false
		}
		rest = strings.TrimPrefix(rest, "v1/")
		if below, found := strings.CutPrefix(rest, "deployments/"); found && method == http.MethodPost {
			return deployment(below)
		}
	}
	switch {
	case method == http.MethodPost:
		if found, exists := endpoints[rest]; exists {
			return found, "", true
		}
	case method == http.MethodGet && (rest == "models" || strings.HasPrefix(rest, "models/")):
		// Anthropic's clients list models at the same path, and say their version.
		if header.Get("Anthropic-Version") != "" {
			return nil, "", false
		}
		only := strings.TrimPrefix(strings.TrimPrefix(rest, "models"), "/")
		return list{kind{"models", proxy.OperationModels, false}}, only, rest != "models/"
	}
	if strings.HasPrefix(rest, "responses/") {
		return stored{list{kind{"responses/stored", proxy.OperationModels, false}}}, "", true
	}
	return nil, "", false
}

// deployment finds an endpoint below a model's name.
func deployment(path string) (e proxy.Endpoint, model string, ok bool) {
	for name, found := range endpoints {
		if model, ok = strings.CutSuffix(path, "/"+name); ok && found.azureDeployed() && model != "" {
			// "chat/completions" ends in "completions": the longer name is meant.
			if name == "completions" && strings.HasSuffix(model, "/chat") {
				continue
			}
			return found, model, true
		}
	}
	return nil, "", false
}

// Credential implements proxy.Dialect: Authorization: Bearer as OpenAI's clients
// send it, api-key as Azure's, or x-api-key.
func (dialect) Credential(header http.Header, _ string) string {
	var key string
	for _, value := range header["Authorization"] {
		scheme, token, _ := strings.Cut(value, " ")
		if strings.EqualFold(scheme, "Bearer") && !proxy.Agree(&key, token) {
			return ""
		}
	}
	for _, name := range [...]string{"Api-Key", "X-Api-Key"} {
		for _, value := range header[name] {
			if !proxy.Agree(&key, value) {
				return ""
			}
		}
	}
	return key
}

// Address implements proxy.Dialect. The URL is whole: the upstream's base, then
// the endpoint. OpenAI's base ends in /v1. Azure's is the resource; with an API
// version, models are deployments in the path, and without one its v1 API is
// called.
func (dialect) Address(e proxy.Endpoint, up proxy.Upstream, model, query string) (string, http.Header) {
	header := make(http.Header, 1)
	if !up.Azure {
		if up.Key != "" {
			header["Authorization"] = []string{"Bearer " + up.Key}
		}
		return withQuery(up.Base+"/"+e.Name(), dropVersion(query)), header
	}
	if up.Key != "" {
		header["Api-Key"] = []string{up.Key}
	}
	base := strings.TrimSuffix(up.Base, "/openai")
	if strings.HasSuffix(base, "/openai/v1") {
		return withQuery(base+"/"+e.Name(), dropVersion(query)), header
	}
	if up.APIVersion == "" {
		return withQuery(base+"/openai/v1/"+e.Name(), dropVersion(query)), header
	}
	path := base + "/openai/"
	if found, exists := endpoints[e.Name()]; exists && found.azureDeployed() {
		path += "deployments/" + url.PathEscape(model) + "/"
	}
	query = dropVersion(query)
	if query != "" {
		query = "&" + query
	}
	return path + e.Name() + "?api-version=" + url.QueryEscape(up.APIVersion) + query, header
}

func withQuery(address, query string) string {
	if query == "" {
		return address
	}
	return address + "?" + query
}

// dropVersion takes Azure's api-version out of a query: which one is spoken with
// an upstream is the operator's to say.
func dropVersion(query string) string {
	if !strings.Contains(query, "version") {
		return query
	}
	var kept []string
	for pair := range strings.SplitSeq(query, "&") {
		name, _, _ := strings.Cut(pair, "=")
		if plain, err := url.QueryUnescape(name); err != nil || !strings.EqualFold(plain, "api-version") {
			kept = append(kept, pair)
		}
	}
	return strings.Join(kept, "&")
}

// Models implements proxy.Dialect.
func (dialect) Models(ids []string, only string) (body []byte, ok bool) {
	if only != "" {
		if !slices.Contains(ids, only) {
			return nil, false
		}
		return appendModel(nil, only), true
	}
	return append(proxy.AppendEach([]byte(`{"object":"list","data":[`), ids, appendModel), `]}`...), true
}

func appendModel(dst []byte, id string) []byte {
	dst = answer.AppendString(append(dst, `{"id":`...), id)
	return append(dst, `,"object":"model","created":0,"owned_by":"tollgate"}`...)
}
