package openai

import (
	"bytes"

	"tollgate/proxy"
	"tollgate/proxy/jsonbody"
	"tollgate/proxy/sse"
)

// keptResponse bounds what a stream of a response keeps, so that it can be ended
// as the API ends one: the response's frame, finished items, and the text of open
// ones. Of a longer answer the end repeats only what was kept; its events have
// passed already.
const keptResponse = 256 << 10

// responseStream follows the stream of a response.
type responseStream struct {
	typed
	asked string
	frame []byte // the response as it was first told of
	items []item
	kept  int
	last  bool // the final event was seen
}

// item is an item of the output. raw is its latest form, with the quotes and
// escapes that it came with.
type item struct {
	index int64
	raw   []byte
	done  bool
	runs  []run
}

// run is a text that is still growing, in one of an item's parts.
type run struct {
	kind  *runKind
	index int64
	text  []byte // as JSON has it, without quotes
	done  bool
}

// runKind is one kind of text: which event brings it, which ends it, and where
// it stands in its item.
type runKind struct {
	delta, done string
	member      string // that holds the text in the event that ends it
	index       string // that numbers it; "" where an item has one
	partDone    string // the event that ends the part; "" where there are no parts
	part        string // the part's type
	list        string // the item's member that lists the parts, or is the text
}

var runKinds = []*runKind{
	{"response.output_text.delta", "response.output_text.done", "text", "content_index", "response.content_part.done", "output_text", "content"},
	{"response.refusal.delta", "response.refusal.done", "refusal", "content_index", "response.content_part.done", "refusal", "content"},
	{"response.function_call_arguments.delta", "response.function_call_arguments.done", "arguments", "", "", "", "arguments"},
	{"response.custom_tool_call_input.delta", "response.custom_tool_call_input.done", "input", "", "", "", "input"},
	{"response.mcp_call_arguments.delta", "response.mcp_call_arguments.done", "arguments", "", "", "", "arguments"},
	{"response.code_interpreter_call_code.delta", "response.code_interpreter_call_code.done", "code", "", "", "", "code"},
	{"response.reasoning_summary_text.delta", "response.reasoning_summary_text.done", "text", "summary_index", "response.reasoning_summary_part.done", "summary_text", "summary"},
	{"response.reasoning_text.delta", "response.reasoning_text.done", "text", "content_index", "response.content_part.done", "reasoning_text", "content"},
}

func newResponseStream(ask *proxy.Ask, count proxy.Counter) *responseStream {
	return &responseStream{typed: *newTyped(ask, count), asked: ask.Model}
}

// Event implements proxy.Stream.
func (s *responseStream) Event(ev sse.Event) proxy.Action {
	var e event
	if !s.read(ev, &e) {
		return proxy.Forward
	}
	s.follow(&e)
	switch e.kind {
	case "response.created", "response.in_progress", "response.queued":
		s.begin(e.response)
	case "response.completed", "response.incomplete":
		s.end(e.response)
		s.tally.Complete = true
	case "response.failed":
		s.end(e.response)
		s.tally.Failed = true
	case "response.output_item.added":
		s.added(&e)
	case "response.output_item.done":
		s.done(&e)
	default:
		s.grow(&e)
	}
	return proxy.Forward
}

func (s *responseStream) begin(response []byte) {
	if s.frame == nil && len(response) > 0 && response[0] == '{' {
		s.tally.Model = plain(member(response, "model"))
		s.frame = s.keep(response)
	}
}

// end reads the last event's response.
func (s *responseStream) end(response []byte) {
	s.last = true
	s.report(member(response, "usage"))
	s.tally.FinishReason = plain(member(response, "status"))
	if reason := plain(member(member(response, "incomplete_details"), "reason")); reason != "" {
		s.tally.FinishReason = reason
	}
	if s.tally.Model == "" {
		s.tally.Model = plain(member(response, "model"))
	}
	s.frame, s.items = nil, nil
}

// keep copies what the end may need, as far as there is room.
func (s *responseStream) keep(raw []byte) []byte {
	if s.kept+len(raw) > keptResponse {
		return nil
	}
	s.kept += len(raw)
	return bytes.Clone(raw)
}

func (s *responseStream) added(e *event) {
	kind := plain(member(e.item, "type"))
	if toolCall(kind) {
		s.tally.Delivered.ToolCalls++
		s.tally.Content = true
		if name := member(e.item, "name"); len(text(name)) > 0 {
			s.words.AddJSONString(name)
		}
	}
	if len(s.items) < maxTracked {
		s.items = append(s.items, item{index: number(e.output), raw: s.keep(e.item)})
	}
}

func (s *responseStream) done(e *event) {
	if plain(member(e.item, "type")) == imageCall && len(text(member(e.item, "result"))) > 0 {
		s.tally.Delivered.Images++
		s.tally.Content = true
	}
	at := s.at(e)
	if at == nil {
		return
	}
	s.kept -= len(at.raw)
	for i := range at.runs {
		s.kept -= len(at.runs[i].text)
	}
	at.raw, at.runs, at.done = s.keep(e.item), nil, true
}

// at finds the item that an event is about.
func (s *responseStream) at(e *event) *item {
	index := number(e.output)
	for i := range s.items {
		if s.items[i].index == index {
			return &s.items[i]
		}
	}
	return nil
}

// grow takes a text's growth or end.
func (s *responseStream) grow(e *event) {
	for _, kind := range runKinds {
		switch e.kind {
		case kind.delta:
			if r := s.run(e, kind); r != nil {
				more := text(e.delta)
				if s.kept+len(more) <= keptResponse && jsonbody.Valid(e.delta) {
					s.kept += len(more)
					r.text = append(r.text, more...)
				}
			}
			return
		case kind.done:
			if r := s.run(e, kind); r != nil {
				r.done = true
			}
			return
		}
	}
}

// run finds the text that an event is about, in an item that is open.
func (s *responseStream) run(e *event, kind *runKind) *run {
	at := s.at(e)
	if at == nil || at.done {
		return nil
	}
	index := int64(0)
	switch kind.index {
	case "content_index":
		index = number(e.content)
	case "summary_index":
		index = number(e.summary)
	}
	for i := range at.runs {
		if r := &at.runs[i]; r.kind == kind && r.index == index {
			return r
		}
	}
	if len(at.runs) == maxTracked {
		return nil
	}
	at.runs = append(at.runs, run{kind: kind, index: index})
	return &at.runs[len(at.runs)-1]
}

// itemID is an item's id as JSON.
func (i *item) id() []byte {
	if id := member(i.raw, "id"); len(id) > 0 && jsonbody.Valid(id) {
		return id
	}
	return []byte(`""`)
}
