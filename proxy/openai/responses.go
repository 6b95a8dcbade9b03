package openai

import (
	"strings"

	"github.com/tidwall/gjson"

	"tollgate/proxy"
	"tollgate/proxy/jsonbody"
)

// responses is POST /v1/responses.
type responses struct{ kind }

// What is read of a request for a response.
const (
	respModel = iota
	respInput
	respInstructions
	respStream
	respMaxOutputTokens
	respTools
	respText
	respPrompt
	respBackground
)

var respNames = []string{
	"model", "input", "instructions", "stream", "max_output_tokens", "tools", "text", "prompt", "background",
}

// Read implements proxy.Endpoint. Usage is part of each stream's last event, so a
// client has always asked for it.
func (responses) Read(body []byte, _, model string) (*proxy.Ask, error) {
	o, err := readObject(body, respNames)
	if err != nil {
		return nil, err
	}
	ask := &proxy.Ask{Choices: 1}
	if ask.Model, err = o.model(respModel, model); err != nil {
		return nil, err
	}
	if in := o.found[respInput]; o.given(respInput) && in.Type != gjson.String && !in.IsArray() {
		return nil, o.bad(respInput, "must be a string or an array of items.")
	}
	background, err := o.flag(respBackground)
	if err != nil {
		return nil, err
	}
	if background {
		return nil, o.bad(respBackground, "is not served: what such a response uses is known after its answer. Ask for a stream instead.")
	}
	req, err := newRequest(o, respModel, respStream, -1, ask)
	if err != nil {
		return nil, err
	}
	if ask.MaxOutputTokens, err = req.outputCap(o, 1, respMaxOutputTokens); err != nil {
		return nil, err
	}
	ask.UsageAsked = true
	ask.InputTokens = func(counter proxy.Counter) int64 {
		c := inputCount{counter: counter, total: priming}
		c.conversation(o.found[respInput])
		if s := o.found[respInstructions]; s.Type == gjson.String {
			c.total += perMessage + 1
			c.text(s.Str)
		} else {
			c.conversation(s)
		}
		c.schema(o.found[respTools])
		c.format(o.found[respText].Get("format"), "schema")
		c.schema(o.found[respPrompt].Get("variables"))
		return c.total
	}
	ask.Private = req
	return ask, nil
}

// Upstream implements proxy.Endpoint.
func (responses) Upstream(body []byte, ask *proxy.Ask, change proxy.Change) ([]byte, string, error) {
	return upstream(body, ask, change, "max_output_tokens", false)
}

// Answer implements proxy.Endpoint.
func (responses) Answer(raw []byte, _ string, _ *proxy.Ask, count proxy.Counter) proxy.Tally {
	b, ok := readBody(raw)
	if !ok {
		return b.tally
	}
	status := b.root.Get("status")
	output := b.root.Get("output")
	switch status.Str {
	case "completed", "incomplete":
		b.tally.Complete = true
	case "failed", "cancelled":
		b.tally.Failed = true
	}
	if !output.IsArray() && !b.tally.Failed {
		b.tally.Garbage, b.tally.Complete = true, false
		return b.tally
	}
	b.tally.FinishReason = name(status)
	if reason := b.root.Get("incomplete_details.reason"); reason.Type == gjson.String {
		b.tally.FinishReason = name(reason)
	}
	output.ForEach(func(_, item gjson.Result) bool {
		b.item(item)
		return true
	})
	return b.done(count)
}

// item reads an item of a response's output.
func (b *whole) item(item gjson.Result) {
	kind := item.Get("type").Str
	reasoning := kind == "reasoning"
	if toolCall(kind) {
		b.tally.Delivered.ToolCalls++
		b.tally.Content = true
	}
	if kind == imageCall && item.Get("result").Str != "" {
		b.tally.Delivered.Images++
		b.tally.Content = true
	}
	item.ForEach(func(key, v gjson.Result) bool {
		switch key.Str {
		case "name", "arguments", "input", "code":
			b.say(v)
		case "content", "summary":
			v.ForEach(func(_, part gjson.Result) bool {
				if reasoning {
					b.think(part.Get("text"))
					return true
				}
				b.say(part.Get("text"))
				b.say(part.Get("refusal"))
				return true
			})
		}
		return true
	})
}

// imageCall is an item that holds a generated image.
const imageCall = "image_generation_call"

// toolCall says that an item's type is a call of a tool, hosted ones included.
func toolCall(kind string) bool { return strings.HasSuffix(kind, "_call") && kind != imageCall }

// Stream implements proxy.Endpoint.
func (responses) Stream(ask *proxy.Ask, count proxy.Counter) proxy.Stream {
	return newResponseStream(ask, count)
}

// stored are the paths below /v1/responses.
type stored struct{ list }

// Read implements proxy.Endpoint.
func (stored) Read([]byte, string, string) (*proxy.Ask, error) {
	return nil, &proxy.BadRequest{
		Status: 404,
		Detail: "Stored responses are not served by id: all tenants share the upstream's account. Keep what the answer returned, and send it as input.",
	}
}

// text is a string's text as JSON has it, without its quotes; nil for what is no
// string.
func text(raw []byte) []byte {
	if len(raw) < 2 || raw[0] != '"' {
		return nil
	}
	return raw[1 : len(raw)-1]
}

// number reads a count; what is none is 0.
func number(raw []byte) int64 {
	n, _ := jsonbody.Count(jsonbody.View(raw))
	return n
}
