package gemini

import (
	"strconv"

	"github.com/tidwall/gjson"

	"tollgate/proxy"
	"tollgate/proxy/jsonbody"
)

// interpreted are the members that are read. The first come in two spellings,
// which stand side by side.
var interpreted = []string{
	"systemInstruction", "system_instruction",
	"generationConfig", "generation_config",
	"contents", "tools",
}

const (
	atSystem   = 0
	atConfig   = 2
	atContents = 4
	atTools    = 5
	members    = 6
)

var configured = []string{
	"maxOutputTokens", "max_output_tokens",
	"candidateCount", "candidate_count",
}

const (
	atCap        = 0
	atCandidates = 2
	settings     = 4
)

// maxCandidates is far more than the API gives.
const maxCandidates = 1024

// request is what was found in a body.
type request struct {
	root   gjson.Result
	found  [members]gjson.Result
	config gjson.Result
	cap    gjson.Result
}

// Read takes the model from the path. A body to count tokens of is not looked
// into: it passes as it is, for free.
func (e *endpoint) Read(body []byte, _, model string) (*proxy.Ask, error) {
	ask := &proxy.Ask{
		Model: model, MaxOutputTokens: -1, Choices: 1, Stream: e.kind == stream, UsageAsked: true,
		InputTokens: func(proxy.Counter) int64 { return 0 },
	}
	if e.kind == list {
		return ask, nil
	}
	root, bad := jsonbody.Parse(body)
	if bad != nil {
		return nil, bad
	}
	if e.kind == count {
		return ask, nil
	}
	r := &request{root: root}
	if bad := r.fill(ask); bad != nil {
		return nil, bad
	}
	ask.InputTokens, ask.Private = r.inputTokens, r
	return ask, nil
}

func (r *request) fill(ask *proxy.Ask) *proxy.BadRequest {
	if bad := pick(r.root, "", interpreted, r.found[:]); bad != nil {
		return bad
	}
	for _, at := range []int{atContents, atTools} {
		if v := r.found[at]; v.Type != gjson.Null && !v.IsArray() {
			return &proxy.BadRequest{Field: interpreted[at], Detail: "must be an array"}
		}
	}
	r.config = r.found[atConfig]
	if r.config.Type == gjson.Null {
		return nil
	}
	if !r.config.IsObject() {
		return &proxy.BadRequest{Field: "generationConfig", Detail: "must be an object"}
	}
	var found [settings]gjson.Result
	if bad := pick(r.config, "generationConfig.", configured, found[:]); bad != nil {
		return bad
	}
	if r.cap = found[atCap]; r.cap.Type != gjson.Null {
		n, ok := number(r.cap)
		if !ok || n == 0 { // ProtoJSON's 0 is as good as none
			return &proxy.BadRequest{Field: "generationConfig.maxOutputTokens", Detail: "must be a whole number, at least 1"}
		}
		ask.MaxOutputTokens = n
	}
	if c := found[atCandidates]; c.Type != gjson.Null {
		n, ok := number(c)
		if !ok || n > maxCandidates {
			return &proxy.BadRequest{Field: "generationConfig.candidateCount", Detail: "must be a whole number, at most " + strconv.Itoa(maxCandidates)}
		}
		ask.Choices = max(n, 1)
	}
	return nil
}

// pairs is how many of each list of names come in two spellings, at its start.
const pairs = 2

// pick finds names. What was found of a pair stands at its first place.
func pick(object gjson.Result, prefix string, names []string, found []gjson.Result) *proxy.BadRequest {
	if bad := jsonbody.Pick(object, prefix, names, found); bad != nil {
		return bad
	}
	for i := 0; i < 2*pairs; i += 2 {
		switch {
		case found[i].Exists() && found[i+1].Exists():
			return &proxy.BadRequest{Field: prefix + names[i], Detail: "occurs twice, also as " + names[i+1] + "; send it once"}
		case found[i+1].Exists():
			found[i] = found[i+1]
		}
	}
	return nil
}

// number reads a count as ProtoJSON has it: 64, or "64".
func number(r gjson.Result) (int64, bool) {
	switch r.Type {
	case gjson.Number:
		return jsonbody.Count(r.Raw)
	case gjson.String:
		return jsonbody.Count(r.Str)
	}
	return 0, false
}

// Upstream writes an output cap where none was given. The model is not in the
// body.
func (e *endpoint) Upstream(body []byte, ask *proxy.Ask, change proxy.Change) ([]byte, string, error) {
	const contentType = "application/json"
	r, ok := ask.Private.(*request)
	if !ok || change.OutputCap <= 0 || ask.MaxOutputTokens >= 0 {
		return body, contentType, nil
	}
	name := change.OutputCapField
	if name == "" {
		name = configured[atCap]
	}
	limit := strconv.AppendInt(nil, change.OutputCap, 10)
	var edit jsonbody.Edit
	switch {
	case r.cap.Exists():
		edit = jsonbody.Replace(r.cap, limit)
	case r.config.IsObject():
		edit = jsonbody.Insert(r.config, name, limit)
	default:
		config := append(append(append([]byte(`{"`), name...), `":`...), limit...)
		config = append(config, '}')
		if r.config.Exists() {
			edit = jsonbody.Replace(r.config, config)
		} else {
			edit = jsonbody.Insert(r.root, interpreted[atConfig], config)
		}
	}
	return jsonbody.Splice(body, edit), contentType, nil
}
