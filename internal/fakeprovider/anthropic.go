package fakeprovider

import (
	"net/http"

	"github.com/tidwall/gjson"
)

var anthropic = &dialect{
	name:      "anthropic",
	requestID: "Request-Id",
	errorBody: func(b []byte, status int, detail *badRequest, requestID string) []byte {
		b = append(append(append(b, `{"type":"error","error":{"type":"`...), anthropicType(status)...), `","message":`...)
		b = appendString(b, detail.message())
		b = appendText(b, `},"request_id":`, requestID)
		return append(b, '}')
	},
	errorEvent: func(int64) (string, []byte) {
		return "error", []byte(`{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}`)
	},
}

func anthropicType(status int) string {
	switch status {
	case http.StatusBadRequest:
		return "invalid_request_error"
	case http.StatusUnauthorized:
		return "authentication_error"
	case http.StatusForbidden:
		return "permission_error"
	case http.StatusNotFound:
		return "not_found_error"
	case http.StatusRequestEntityTooLarge:
		return "request_too_large"
	case http.StatusTooManyRequests:
		return "rate_limit_error"
	case http.StatusServiceUnavailable, 529:
		return "overloaded_error"
	case http.StatusGatewayTimeout:
		return "timeout_error"
	}
	return "api_error"
}

// readMessages reads a request of /v1/messages.
func (a *ask) readMessages(root gjson.Result) *badRequest {
	var messages, system, tools, choice, maxTokens, stops, thinking, format gjson.Result
	a.parallel, a.choices = true, 1
	root.ForEach(func(key, v gjson.Result) bool {
		switch key.Str {
		case "model":
			a.model = v.String()
		case "messages":
			messages = v
		case "system":
			system = v
		case "stream":
			a.stream = v.Bool()
		case "max_tokens":
			maxTokens = v
		case "stop_sequences":
			stops = v
		case "tools":
			tools = v
		case "tool_choice":
			choice = v
		case "thinking":
			thinking = v
		case "output_format":
			format = v
		case "output_config":
			format = v.Get("format")
		}
		return true
	})
	if a.model == "" {
		return bad("model", "Field required")
	}
	if !messages.IsArray() || len(messages.Raw) < 3 {
		return bad("messages", "at least one message is required")
	}
	a.readStops(stops)
	a.tag(a.model)
	tools.ForEach(func(_, t gjson.Result) bool {
		if schema := t.Get("input_schema"); schema.Exists() {
			a.addTool(t.Get("name").Str, t.Get("description").Str, schema)
		}
		return true
	})
	a.mark()
	a.tag("system")
	a.anthropicContent(system)
	a.mark()
	messages.ForEach(func(_, m gjson.Result) bool {
		role := m.Get("role").Str
		a.tag(role)
		prompt, result := a.anthropicContent(m.Get("content"))
		a.answered = result
		if role == "user" && !result {
			a.prompt = prompt
		}
		a.mark()
		return true
	})
	switch choice.Get("type").Str {
	case "any":
		a.force = "any"
	case "none":
		a.force = "none"
	case "tool":
		a.force = "=" + choice.Get("name").Str
	}
	if choice.Get("disable_parallel_tool_use").Bool() {
		a.parallel = false
	}
	switch thinking.Get("type").Str {
	case "enabled":
		a.reason = min(16, max(0, thinking.Get("budget_tokens").Int()))
	case "adaptive":
		a.reason = 16
	}
	if format.Get("type").Str == "json_schema" {
		a.format = format.Get("schema")
	}
	var wrong *badRequest
	a.max, wrong = limit(maxTokens, "max_tokens", 1, 1<<31)
	return wrong
}

// anthropicContent reads a content, which is text or a list of blocks. result
// says that it holds a tool's result.
func (a *ask) anthropicContent(content gjson.Result) (prompt string, result bool) {
	if content.Type == gjson.String {
		a.text(content.Str)
		return content.Str, false
	}
	content.ForEach(func(_, block gjson.Result) bool {
		switch block.Get("type").Str {
		case "text":
			text := block.Get("text").Str
			a.text(text)
			prompt += text
		case "image":
			a.picture(block.Get("source").Raw)
		case "document":
			a.file(block.Get("source").Raw)
		case "tool_use":
			a.text(block.Get("name").Str)
			a.text(block.Get("input").Raw)
		case "tool_result":
			result = true
			a.anthropicContent(block.Get("content"))
		case "thinking":
			a.text(block.Get("thinking").Str)
		}
		return true
	})
	return prompt, result
}

func anthropicStop(p *reply) string {
	switch p.finish {
	case finishLength:
		return "max_tokens"
	case finishTools:
		return "tool_use"
	case finishStopSequence:
		return "stop_sequence"
	}
	return "end_turn"
}

// countTokens answers /v1/messages/count_tokens.
func (x *exchange) countTokens(a *ask, _ gjson.Result) {
	b := appendInt(x.spare(), `{"input_tokens":`, max(1, a.input))
	x.usage = Usage{} // counting generates nothing
	x.send(http.StatusOK, jsonType, append(b, '}'))
}

// messages answers /v1/messages.
func (x *exchange) messages(a *ask, _ gjson.Result) {
	r := a.seed(0)
	id := r.id("msg_01", 22)
	p := x.reply(a, 0)
	if a.stream {
		s := messageStream{exchange: x, ask: a}
		s.run(id, p)
		return
	}
	if !x.whole(p) {
		return
	}
	b := appendMessageHead(x.spare(), id, a.model)
	b = append(b, `[`...)
	comma := ""
	if p.reasoning > 0 {
		b = appendText(b, `{"type":"thinking","thinking":`, p.thinking)
		b = append(b, `,"signature":"`+signature+`"}`...)
		comma = ","
	}
	if p.text != "" || len(p.calls) == 0 && p.reasoning == 0 {
		b = appendText(append(b, comma...), `{"type":"text","text":`, p.text)
		b = append(b, '}')
		comma = ","
	}
	for _, call := range p.calls {
		b = append(append(b, comma...), `{"type":"tool_use","id":"toolu_01`...)
		b = appendText(append(b, call.id[2:]...), `","name":`, call.name)
		b = append(b, `,"input":`...)
		if gjson.Valid(call.arguments) {
			b = append(b, call.arguments...)
		} else {
			b = append(b, `{}`...) // cut short by max_tokens
		}
		b = append(b, `,"caller":{"type":"direct"}}`...)
		comma = ","
	}
	b = append(append(append(b, `],"stop_reason":"`...), anthropicStop(p)...), `","stop_sequence":`...)
	b = appendStop(b, p)
	b = x.appendMessageUsage(b, `,"usage":`, x.meter())
	x.send(http.StatusOK, jsonType, append(b, '}'))
}

// signature stands for the seal on thinking, which this server does not check.
const signature = "ZmFrZS1zaWduYXR1cmU="

func appendMessageHead(b []byte, id, model string) []byte {
	b = append(append(append(b, `{"id":"`...), id...), `","type":"message","role":"assistant","model":`...)
	return append(appendString(b, model), `,"content":`...)
}

func appendStop(b []byte, p *reply) []byte {
	if p.stop == "" {
		return append(b, "null"...)
	}
	return appendString(b, p.stop)
}

// appendMessageUsage appends a usage. In this dialect input_tokens leaves out
// what came from the cache or was written to it.
func (x *exchange) appendMessageUsage(b []byte, prefix string, u Usage) []byte {
	if x.orders.noUsage {
		return b
	}
	u = x.shown(u)
	b = appendInt(append(b, prefix...), `{"input_tokens":`, u.Input-u.Cached-u.Written)
	b = appendInt(b, `,"cache_creation_input_tokens":`, u.Written)
	b = appendInt(b, `,"cache_read_input_tokens":`, u.Cached)
	b = appendInt(b, `,"cache_creation":{"ephemeral_5m_input_tokens":`, u.Written)
	b = append(b, `,"ephemeral_1h_input_tokens":0}`...)
	b = x.appendOutput(b, `,"output_tokens":`, u.Output)
	if u.Reasoning > 0 {
		b = append(appendInt(b, `,"output_tokens_details":{"thinking_tokens":`, u.Reasoning), '}')
	}
	b = append(b, `,"server_tool_use":null,"service_tier":"standard"`...)
	return append(x.appendGPU(b, u), '}')
}

// messageStream sends a message in events.
type messageStream struct {
	*exchange
	ask   *ask
	buf   []byte
	index int64
}

func (s *messageStream) run(id string, p *reply) {
	if !s.wait(s.due) {
		return
	}
	s.openStream()
	b := append(s.buf[:0], `{"type":"message_start","message":`...)
	b = appendMessageHead(b, id, s.ask.model)
	first := s.usage
	first.Output = min(1, p.output)
	b = append(b, `[],"stop_reason":null,"stop_sequence":null`...)
	b = s.appendMessageUsage(b, `,"usage":`, first)
	s.buf = append(b, `}}`...)
	if !s.event("message_start", s.buf) || !s.event("ping", []byte(`{"type":"ping"}`)) {
		return
	}
	if p.reasoning > 0 && !s.thinking(p) {
		return
	}
	if p.text != "" || len(p.calls) == 0 && p.reasoning == 0 {
		if !s.block(`{"type":"text","text":""}`, `{"type":"text_delta","text":`, p.text, "") {
			return
		}
	}
	for _, call := range p.calls {
		b := append([]byte(`{"type":"tool_use","id":"toolu_01`), call.id[2:]...)
		b = appendText(b, `","name":`, call.name)
		b = append(b, `,"input":{},"caller":{"type":"direct"}}`...)
		if !s.block(string(b), `{"type":"input_json_delta","partial_json":`, call.arguments, "") {
			return
		}
		s.usage.ToolCalls++
	}
	if !s.last() {
		return
	}
	b = append(append(s.buf[:0], `{"type":"message_delta","delta":{"stop_reason":"`...), anthropicStop(p)...)
	b = appendStop(append(b, `","stop_sequence":`...), p)
	b = s.appendMessageUsage(append(b, '}'), `,"usage":`, s.meter())
	s.buf = append(b, '}')
	if !s.event("message_delta", s.buf) || s.orders.noDone {
		return
	}
	s.event("message_stop", []byte(`{"type":"message_stop"}`))
}

// thinking sends the reasoning as a block, sealed at its end.
func (s *messageStream) thinking(p *reply) bool {
	ok := s.block(`{"type":"thinking","thinking":"","signature":""}`, `{"type":"thinking_delta","thinking":`, p.thinking,
		`{"type":"signature_delta","signature":"`+signature+`"}`)
	s.usage.Reasoning = min(s.usage.Output, p.reasoning)
	return ok
}

// block sends one content block. seal is a delta that ends it, or "".
func (s *messageStream) block(start, delta, text, seal string) bool {
	b := appendInt(s.buf[:0], `{"type":"content_block_start","index":`, s.index)
	s.buf = append(append(append(b, `,"content_block":`...), start...), '}')
	if !s.event("content_block_start", s.buf) {
		return false
	}
	head := func() []byte {
		b := appendInt(s.buf[:0], `{"type":"content_block_delta","index":`, s.index)
		return append(b, `,"delta":`...)
	}
	for from := 0; from < len(text); {
		to, n := s.piece(text, from)
		b := appendText(head(), delta, text[from:to])
		b = append(b, '}')
		if s.orders.repeatUsage {
			u := s.usage
			u.Output += n
			b = s.appendMessageUsage(b, `,"usage":`, u)
		}
		s.buf = append(b, '}')
		if !s.content(n, "content_block_delta", s.buf) {
			return false
		}
		from = to
	}
	if seal != "" {
		s.buf = append(append(head(), seal...), '}')
		if !s.event("content_block_delta", s.buf) {
			return false
		}
	}
	b = appendInt(s.buf[:0], `{"type":"content_block_stop","index":`, s.index)
	s.buf = append(b, '}')
	s.index++
	return s.event("content_block_stop", s.buf)
}
