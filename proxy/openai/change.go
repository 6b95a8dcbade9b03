package openai

import (
	"strconv"

	"github.com/tidwall/gjson"

	"tollgate/admission/answer"
	"tollgate/proxy"
	"tollgate/proxy/jsonbody"
)

// request is what Read leaves for Upstream and Stream: where the body can be
// changed.
type request struct {
	root    gjson.Result
	model   gjson.Result
	options gjson.Result // stream_options
	include gjson.Result // include_usage, in it
	echo    *echo        // of a completion; nil: its answers do not begin with the prompt
	form    *form        // of a multipart body
	// uncapped are the caps by any name that say that there is none.
	uncapped []named
	// imageTokens is what one generated image is taken for where the server counts
	// the input by tokens, and not its images.
	imageTokens int64
}

// named is a member of the body.
type named struct {
	name  string
	value gjson.Result
}

func requestOf(ask *proxy.Ask) *request {
	if req, ok := ask.Private.(*request); ok {
		return req
	}
	return &request{}
}

const jsonType = "application/json"

// upstream makes the changes that apply to an endpoint: capField is its output
// cap's name, "" where it has none; streams says that usage must be asked for.
func upstream(body []byte, ask *proxy.Ask, change proxy.Change, capField string, streams bool) ([]byte, string, error) {
	req := requestOf(ask)
	var room [3]jsonbody.Edit
	edits := req.setModel(room[:0], change.Model)
	if streams && ask.Stream && change.AskUsage && !ask.UsageAsked {
		edits = append(edits, req.askUsage())
	}
	if capField != "" {
		edits = req.setCap(edits, ask, change, capField)
	}
	return jsonbody.Splice(body, edits...), jsonType, nil
}

// setModel writes the upstream's name for the model.
func (r *request) setModel(edits []jsonbody.Edit, model string) []jsonbody.Edit {
	switch {
	case model == "" || r.model.Type == gjson.String && r.model.Str == model:
		return edits
	case r.model.Exists():
		return append(edits, jsonbody.Replace(r.model, answer.AppendString(nil, model)))
	}
	return append(edits, jsonbody.Insert(r.root, "model", answer.AppendString(nil, model)))
}

// askUsage asks for usage in the stream, leaving other stream options alone.
func (r *request) askUsage() jsonbody.Edit {
	switch {
	case r.include.Exists():
		return jsonbody.Replace(r.include, []byte("true"))
	case r.options.IsObject():
		return jsonbody.Insert(r.options, "include_usage", []byte("true"))
	case r.options.Exists(): // null
		return jsonbody.Replace(r.options, []byte(`{"include_usage":true}`))
	}
	return jsonbody.Insert(r.root, "stream_options", []byte(`{"include_usage":true}`))
}

// setCap writes an output cap where the request gave none. Its field may stand
// there as null. A cap that says that there is none takes the figure, too: which
// name a server heeds is not known, and one that another name gives is the
// request's.
func (r *request) setCap(edits []jsonbody.Edit, ask *proxy.Ask, change proxy.Change, field string) []jsonbody.Edit {
	if change.OutputCapField != "" {
		field = change.OutputCapField
	}
	switch field {
	case "none":
		return edits
	case "model", "stream", "stream_options": // a mistake in the table must not break the others
		return edits
	}
	limit, given := ask.MaxOutputTokens, ask.MaxOutputTokens >= 0
	if !given {
		limit = change.OutputCap
	}
	if !given && limit <= 0 || given && len(r.uncapped) == 0 {
		return edits
	}
	raw := strconv.AppendInt(nil, limit, 10)
	written := given
	for _, at := range r.uncapped {
		edits = append(edits, jsonbody.Replace(at.value, raw))
		// OpenAI refuses a request that has both of its names for the cap.
		written = written || at.name == field || change.OutputCapField == "" && at.name != "n_predict"
	}
	if written {
		return edits
	}
	var there gjson.Result
	r.root.ForEach(func(key, v gjson.Result) bool {
		if key.Str == field {
			there = v
		}
		return !there.Exists()
	})
	if there.Exists() {
		return append(edits, jsonbody.Replace(there, raw))
	}
	return append(edits, jsonbody.Insert(r.root, field, raw))
}
