package anthropic

import (
	"bytes"

	"tollgate/events"
	"tollgate/proxy"
	"tollgate/proxy/jsonbody"
)

// content counts what an answer holds, whether it comes whole or in pieces.
type content struct {
	text, tools, thinking proxy.TextTally
	redacted              int64 // tokens of thinking that came encrypted
	unread                int64 // bytes of events that were too long to be read
	toolCalls             int64
	seen                  bool
}

func newContent(count proxy.Counter) content {
	return content{text: proxy.NewTextTally(count), tools: proxy.NewTextTally(count), thinking: proxy.NewTextTally(count)}
}

// add takes a piece of text as JSON; what is no string, or empty, adds nothing.
func (c *content) add(tally *proxy.TextTally, raw []byte) bool {
	if len(raw) <= 2 || raw[0] != '"' {
		return false
	}
	tally.AddJSONString(raw)
	c.seen = true
	return true
}

// block takes a content block, whole or as a stream begins it, and says whether
// there was something in it. Results of tools that ran at the provider are input.
func (c *content) block(raw []byte) bool {
	var kind, text, thinking, data, name, input []byte
	w := jsonbody.Over(raw)
	for {
		key, value, ok := w.Next()
		if !ok {
			break
		}
		switch string(key) {
		case "type":
			kind = value
		case "text":
			text = value
		case "thinking":
			thinking = value
		case "data":
			data = value
		case "name":
			name = value
		case "input":
			input = value
		}
	}
	switch string(kind) {
	case `"text"`:
		return c.add(&c.text, text)
	case `"thinking"`:
		return c.add(&c.thinking, thinking)
	case `"redacted_thinking"`:
		c.redacted += redactedTokens(len(data))
		c.seen = true
		return true
	case `"tool_use"`:
		c.toolCalls++
		c.call(name, input)
		return true
	case `"server_tool_use"`, `"mcp_tool_use"`: // the provider's own calls
		c.call(name, input)
		return true
	}
	return false
}

// call counts a call's name and arguments. A stream begins them as {}, and sends
// them in pieces. No token reaches from one call to the next.
func (c *content) call(name, input []byte) {
	c.seen = true
	c.tools.Add(between)
	c.tools.AddJSONString(name)
	if !bytes.Equal(input, []byte("{}")) {
		c.tools.Add(input)
	}
}

var between = []byte{'\n'}

// delivered is what was counted.
func (c *content) delivered(exact bool) events.Usage {
	count := (*proxy.TextTally).Rough
	if exact {
		count = (*proxy.TextTally).Exact
	}
	reasoning := count(&c.thinking) + c.redacted
	return events.Usage{
		OutputTokens:    count(&c.text) + count(&c.tools) + reasoning + (c.unread+3)/4,
		ReasoningTokens: reasoning,
		ToolCalls:       c.toolCalls,
	}
}

// Answer reads a message. Its text is not counted where the upstream says what it
// used: that is charged.
func (e *endpoint) Answer(body []byte, _ string, _ *proxy.Ask, count proxy.Counter) proxy.Tally {
	if !jsonbody.Valid(body) {
		return proxy.Tally{Garbage: true}
	}
	if e.free {
		return proxy.Tally{Complete: true}
	}
	var (
		t      proxy.Tally
		said   usage
		kind   string
		blocks []byte
	)
	w := jsonbody.Over(body)
	for {
		key, value, ok := w.Next()
		if !ok {
			break
		}
		switch string(key) {
		case "type":
			kind = string(value)
		case "model":
			t.Model = jsonbody.Text(value)
		case "stop_reason":
			t.FinishReason = jsonbody.Text(value)
		case "usage":
			said.report(value)
		case "content":
			blocks = value
		}
	}
	if said.input+said.creation+said.read > 0 && said.output > 0 {
		count = proxy.Uncounted{}
	}
	content := newContent(count)
	for each := jsonbody.Over(blocks); ; {
		_, block, ok := each.Next()
		if !ok {
			break
		}
		content.block(block)
	}
	t.Failed = kind == `"error"`
	t.Garbage = !t.Failed && kind != `"message"`
	t.Complete = kind == `"message"`
	t.Content = content.seen
	t.Delivered = content.delivered(true)
	if said.reported {
		t.Usage = said.events(content.toolCalls)
	}
	return t
}
