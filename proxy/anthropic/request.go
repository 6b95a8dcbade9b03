package anthropic

import (
	"strconv"
	"strings"

	"github.com/tidwall/gjson"

	"tollgate/admission/answer"
	"tollgate/proxy"
	"tollgate/proxy/jsonbody"
)

// endpoint is one operation. The address of each is its identity.
type endpoint struct {
	name      string
	operation proxy.Operation
	path      string
	free      bool
}

func (e *endpoint) Name() string               { return e.name }
func (e *endpoint) Operation() proxy.Operation { return e.operation }
func (e *endpoint) Free() bool                 { return e.free }

// interpreted are the members that must be understood as the upstream
// understands them; the constants are their places.
var interpreted = []string{"model", "stream", "max_tokens", "messages", "system", "tools"}

const (
	atModel = iota
	atStream
	atMaxTokens
	atMessages
	atSystem
	atTools
	members
)

// capField is where the output cap stands.
const capField = "max_tokens"

// request is what was found in a body.
type request struct {
	root  gjson.Result
	found [members]gjson.Result
}

// Read leaves to the upstream what only it can judge. A request without
// max_tokens, which Anthropic itself refuses, is one without an output cap.
func (e *endpoint) Read(body []byte, _, model string) (*proxy.Ask, error) {
	if e == models {
		return &proxy.Ask{Model: model, MaxOutputTokens: -1, Choices: 1, InputTokens: nothing}, nil
	}
	root, bad := jsonbody.Parse(body)
	if bad != nil {
		return nil, bad
	}
	r := &request{root: root}
	if bad := jsonbody.Pick(root, "", interpreted, r.found[:]); bad != nil {
		return nil, bad
	}
	ask := &proxy.Ask{MaxOutputTokens: -1, Choices: 1, UsageAsked: true, InputTokens: r.inputTokens, Private: r}
	if bad := r.fill(ask); bad != nil {
		return nil, bad
	}
	if e.free {
		ask.InputTokens = nothing
	}
	return ask, nil
}

// fill checks the types of what is interpreted. null is as good as absent but
// for the model.
func (r *request) fill(ask *proxy.Ask) *proxy.BadRequest {
	if m := r.found[atModel]; m.Type != gjson.String || m.Str == "" {
		return &proxy.BadRequest{Field: "model", Detail: "must name a model; GET /v1/models lists them"}
	}
	ask.Model = strings.Clone(r.found[atModel].Str) // a part of the body would keep all of it
	switch s := r.found[atStream]; s.Type {
	case gjson.Null, gjson.False:
	case gjson.True:
		ask.Stream = true
	default:
		return &proxy.BadRequest{Field: "stream", Detail: "must be true or false"}
	}
	if m := r.found[atMaxTokens]; m.Type != gjson.Null {
		n, ok := jsonbody.Count(m.Raw)
		if !ok {
			return &proxy.BadRequest{Field: capField, Detail: "must be a whole number from 0 to 4503599627370496"}
		}
		ask.MaxOutputTokens = n
	}
	if m := r.found[atMessages]; m.Type != gjson.Null && !m.IsArray() {
		return &proxy.BadRequest{Field: "messages", Detail: "must be an array of messages"}
	}
	if s := r.found[atSystem]; s.Type != gjson.Null && s.Type != gjson.String && !s.IsArray() {
		return &proxy.BadRequest{Field: "system", Detail: "must be a string or an array of blocks"}
	}
	if t := r.found[atTools]; t.Type != gjson.Null && !t.IsArray() {
		return &proxy.BadRequest{Field: "tools", Detail: "must be an array of tools"}
	}
	return nil
}

func nothing(proxy.Counter) int64 { return 0 }

// Upstream changes the model's name, and writes the output cap of a request
// without one. Usage need not be asked for: it is part of every answer.
func (e *endpoint) Upstream(body []byte, ask *proxy.Ask, change proxy.Change) ([]byte, string, error) {
	const contentType = "application/json"
	r, ok := ask.Private.(*request)
	if !ok {
		return body, contentType, nil
	}
	var edits [2]jsonbody.Edit
	n := 0
	if change.Model != "" && change.Model != ask.Model {
		edits[n] = jsonbody.Replace(r.found[atModel], answer.AppendString(nil, change.Model))
		n++
	}
	if !e.free && change.OutputCap > 0 && ask.MaxOutputTokens < 0 {
		edit, bad := r.writeCap(change)
		if bad != nil {
			return nil, "", bad
		}
		edits[n] = edit
		n++
	}
	return jsonbody.Splice(body, edits[:n]...), contentType, nil
}

// writeCap takes the place of a null, or adds the member.
func (r *request) writeCap(change proxy.Change) (jsonbody.Edit, *proxy.BadRequest) {
	text := strconv.AppendInt(nil, change.OutputCap, 10)
	name, there := capField, r.found[atMaxTokens:atMaxTokens+1]
	if change.OutputCapField != "" && change.OutputCapField != capField {
		name, there = change.OutputCapField, make([]gjson.Result, 1)
		if bad := jsonbody.Pick(r.root, "", []string{name}, there); bad != nil {
			return jsonbody.Edit{}, bad
		}
	}
	if there[0].Exists() {
		return jsonbody.Replace(there[0], text), nil
	}
	return jsonbody.Insert(r.root, name, text), nil
}
