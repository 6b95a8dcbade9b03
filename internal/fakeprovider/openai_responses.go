package fakeprovider

import (
	"net/http"

	"github.com/tidwall/gjson"
)

// openAIResponses is OpenAI's dialect with the error event of its Responses API.
var openAIResponses = &dialect{
	name: openAI.name, requestID: openAI.requestID, errorBody: openAI.errorBody,
	errorEvent: func(sequence int64) (string, []byte) {
		b := []byte(`{"type":"error","code":"server_error","message":"The server had an error while processing your request.","param":null`)
		return "error", append(appendInt(b, `,"sequence_number":`, sequence), '}')
	},
}

// readResponse reads a request of /v1/responses.
func (a *ask) readResponse(root gjson.Result) *badRequest {
	if wrong := a.readModel(root); wrong != nil {
		return wrong
	}
	a.choices = 1
	a.stream = root.Get("stream").Bool()
	a.parallel = flag(root.Get("parallel_tool_calls"), true)
	a.reason = effortTokens(root.Get("reasoning.effort").Str)
	root.Get("tools").ForEach(func(_, t gjson.Result) bool {
		if t.Get("type").Str == "function" {
			a.addTool(t.Get("name").Str, t.Get("description").Str, t.Get("parameters"))
		}
		return true
	})
	a.tag("instructions")
	a.text(root.Get("instructions").Str)
	a.mark()
	input := root.Get("input")
	switch {
	case input.Type == gjson.String && input.Str != "":
		a.tag("user")
		a.text(input.Str)
		a.prompt = input.Str
		a.mark()
	case input.IsArray() && len(input.Raw) > 2:
		input.ForEach(func(_, item gjson.Result) bool {
			a.responseItem(item)
			return true
		})
	default:
		return bad("input", "must be text or a list of items")
	}
	a.force = forced(root.Get("tool_choice"))
	switch format := root.Get("text.format"); format.Get("type").Str {
	case "json_schema":
		a.format = format.Get("schema")
	case "json_object":
		a.object = true
	}
	var wrong *badRequest
	a.max, wrong = limit(root.Get("max_output_tokens"), "max_output_tokens", 1, 1<<31)
	return wrong
}

func (a *ask) responseItem(item gjson.Result) {
	a.answered = false
	switch item.Get("type").Str {
	case "", "message":
		role, content := item.Get("role").Str, item.Get("content")
		a.tag(role)
		prompt := ""
		if content.Type == gjson.String {
			prompt = content.Str
			a.text(prompt)
		} else {
			content.ForEach(func(_, part gjson.Result) bool {
				switch part.Get("type").Str {
				case "input_image":
					a.picture(part.Get("image_url").Str + part.Get("file_id").Str)
				case "input_file":
					a.file(part.Raw)
				default:
					text := part.Get("text").Str
					a.text(text)
					prompt += text
				}
				return true
			})
		}
		if role == "user" {
			a.prompt = prompt
		}
	case "function_call":
		a.text(item.Get("name").Str)
		a.text(item.Get("arguments").Str)
	case "function_call_output":
		a.answered = true
		a.text(item.Get("output").String())
	}
	a.mark()
}

// response answers /v1/responses.
func (x *exchange) response(a *ask, root gjson.Result) {
	r := a.seed(0)
	s := responseAnswer{exchange: x, ask: a, root: root, id: r.id("resp_", 48), item: r.id("", 40), created: createdAt(&r), reply: x.reply(a, 0)}
	if a.stream {
		s.stream()
		return
	}
	if !x.whole(s.reply) {
		return
	}
	x.send(http.StatusOK, jsonType, s.append(x.spare(), s.status(), true))
}

// responseAnswer is one answer in the making.
type responseAnswer struct {
	*exchange
	ask      *ask
	root     gjson.Result // what the client asked is repeated in the answer
	id, item string
	created  int64
	reply    *reply
	buf      []byte
	index    int64 // output items so far
}

func (s *responseAnswer) status() string {
	if s.reply.finish == finishLength {
		return "incomplete"
	}
	return "completed"
}

// append appends the response object; done says that its output is there.
func (s *responseAnswer) append(b []byte, status string, done bool) []byte {
	b = appendText(b, `{"id":`, s.id)
	b = appendInt(b, `,"object":"response","created_at":`, s.created)
	b = append(append(append(b, `,"status":"`...), status...), `","background":false,"error":null,"incomplete_details":`...)
	if status == "incomplete" {
		b = append(b, `{"reason":"max_output_tokens"}`...)
	} else {
		b = append(b, "null"...)
	}
	raw := func(name, otherwise string) {
		b = appendRaw(append(append(append(b, `,"`...), name...), '"'), ":", s.root.Get(name).Raw, otherwise)
	}
	raw("instructions", "null")
	raw("max_output_tokens", "null")
	raw("metadata", "{}")
	b = appendText(b, `,"model":`, s.ask.model)
	b = append(b, `,"output":[`...)
	if done {
		b = s.appendOutput(b)
	}
	b = append(b, ']')
	raw("parallel_tool_calls", "true")
	raw("previous_response_id", "null")
	b = appendRaw(b, `,"reasoning":{"effort":`, s.root.Get("reasoning.effort").Raw, "null")
	b = append(b, `,"summary":null},"service_tier":"default"`...)
	raw("store", "true")
	raw("temperature", "1.0")
	b = appendRaw(b, `,"text":{"format":`, s.root.Get("text.format").Raw, `{"type":"text"}`)
	b = append(b, `,"verbosity":"medium"}`...)
	raw("tool_choice", `"auto"`)
	raw("tools", "[]")
	raw("top_p", "1.0")
	b = append(b, `,"truncation":"disabled","usage":`...)
	if done && !s.orders.noUsage {
		u := s.shown(s.meter())
		b = appendInt(b, `{"input_tokens":`, u.Input)
		b = appendInt(b, `,"input_tokens_details":{"cached_tokens":`, u.Cached)
		b = s.exchange.appendOutput(b, `,"cache_write_tokens":0},"output_tokens":`, u.Output)
		b = appendInt(b, `,"output_tokens_details":{"reasoning_tokens":`, u.Reasoning)
		b = s.exchange.appendOutput(b, `},"total_tokens":`, u.Input+u.Output)
		b = append(s.appendGPU(b, u), '}')
	} else {
		b = append(b, "null"...)
	}
	raw("user", "null")
	return append(b, '}')
}

func (s *responseAnswer) appendOutput(b []byte) []byte {
	comma := ""
	if s.reply.reasoning > 0 {
		b = s.appendReasoning(b)
		comma = ","
	}
	for _, call := range s.reply.calls {
		b = s.appendCall(append(b, comma...), call, s.status(), call.arguments)
		comma = ","
	}
	if len(s.reply.calls) == 0 && (s.reply.text != "" || s.reply.reasoning == 0) {
		b = s.appendMessage(append(b, comma...), s.status(), s.reply.text, true)
	}
	return b
}

func (s *responseAnswer) appendReasoning(b []byte) []byte {
	return append(appendText(b, `{"id":`, "rs_"+s.item), `,"type":"reasoning","summary":[]}`...)
}

func (s *responseAnswer) appendCall(b []byte, call toolCall, status, arguments string) []byte {
	b = appendText(b, `{"id":`, "fc_"+call.id)
	b = append(append(append(b, `,"type":"function_call","status":"`...), status...), '"')
	b = appendText(b, `,"arguments":`, arguments)
	b = appendText(b, `,"call_id":`, "call_"+call.id)
	return append(appendText(b, `,"name":`, call.name), '}')
}

func (s *responseAnswer) appendMessage(b []byte, status, text string, done bool) []byte {
	b = appendText(b, `{"id":`, "msg_"+s.item)
	b = append(append(append(b, `,"type":"message","status":"`...), status...), `","role":"assistant","content":[`...)
	if done {
		b = appendPart(b, text)
	}
	return append(b, `]}`...)
}

func appendPart(b []byte, text string) []byte {
	return append(appendText(b, `{"type":"output_text","annotations":[],"logprobs":[],"text":`, text), '}')
}

// event sends an event with n tokens; rest is what follows its number.
func (s *responseAnswer) event(n int64, name string, rest func(b []byte) []byte) bool {
	b := append(append(append(s.buf[:0], `{"type":"`...), name...), `","sequence_number":`...)
	s.buf = append(rest(appendInt(b, "", s.sequence)), '}')
	ok := false
	if n > 0 {
		ok = s.content(n, name, s.buf)
	} else {
		ok = s.exchange.event(name, s.buf)
	}
	s.sequence++
	return ok
}

func (s *responseAnswer) stream() {
	if !s.wait(s.due) {
		return
	}
	s.openStream()
	for _, name := range []string{"response.created", "response.in_progress"} {
		if !s.event(0, name, func(b []byte) []byte {
			return s.append(append(b, `,"response":`...), "in_progress", false)
		}) {
			return
		}
	}
	if s.reply.reasoning > 0 {
		if !s.outputItem("added", s.appendReasoning) || !s.think(s.reply.reasoning) || !s.outputItem("done", s.appendReasoning) {
			return
		}
	}
	for _, call := range s.reply.calls {
		if !s.call(call) {
			return
		}
	}
	if len(s.reply.calls) == 0 && (s.reply.text != "" || s.reply.reasoning == 0) && !s.message() {
		return
	}
	if !s.last() || s.orders.noDone {
		return
	}
	s.event(0, "response."+s.status(), func(b []byte) []byte {
		return s.append(append(b, `,"response":`...), s.status(), true)
	})
}

// outputItem announces an output item, or says that it is done and counts it.
func (s *responseAnswer) outputItem(what string, item func(b []byte) []byte) bool {
	ok := s.event(0, "response.output_item."+what, func(b []byte) []byte {
		return item(append(appendInt(b, `,"output_index":`, s.index), `,"item":`...))
	})
	if what == "done" {
		s.index++
	}
	return ok
}

func (s *responseAnswer) call(call toolCall) bool {
	where := func(b []byte) []byte {
		return appendInt(appendText(b, `,"item_id":`, "fc_"+call.id), `,"output_index":`, s.index)
	}
	if !s.outputItem("added", func(b []byte) []byte { return s.appendCall(b, call, "in_progress", "") }) {
		return false
	}
	for from := 0; from < len(call.arguments); {
		to, n := s.piece(call.arguments, from)
		if !s.event(n, "response.function_call_arguments.delta", func(b []byte) []byte {
			return appendText(where(b), `,"delta":`, call.arguments[from:to])
		}) {
			return false
		}
		from = to
	}
	s.usage.ToolCalls++
	return s.event(0, "response.function_call_arguments.done", func(b []byte) []byte {
		return appendText(appendText(where(b), `,"name":`, call.name), `,"arguments":`, call.arguments)
	}) && s.outputItem("done", func(b []byte) []byte { return s.appendCall(b, call, s.status(), call.arguments) })
}

func (s *responseAnswer) message() bool {
	text := s.reply.text
	where := func(b []byte) []byte {
		b = appendInt(appendText(b, `,"item_id":`, "msg_"+s.item), `,"output_index":`, s.index)
		return append(b, `,"content_index":0`...)
	}
	part := func(text string) func(b []byte) []byte {
		return func(b []byte) []byte { return appendPart(append(where(b), `,"part":`...), text) }
	}
	if !s.outputItem("added", func(b []byte) []byte { return s.appendMessage(b, "in_progress", "", false) }) ||
		!s.event(0, "response.content_part.added", part("")) {
		return false
	}
	for from := 0; from < len(text); {
		to, n := s.piece(text, from)
		if !s.event(n, "response.output_text.delta", func(b []byte) []byte {
			return append(appendText(where(b), `,"delta":`, text[from:to]), `,"logprobs":[]`...)
		}) {
			return false
		}
		from = to
	}
	return s.event(0, "response.output_text.done", func(b []byte) []byte {
		return append(appendText(where(b), `,"text":`, text), `,"logprobs":[]`...)
	}) && s.event(0, "response.content_part.done", part(text)) &&
		s.outputItem("done", func(b []byte) []byte { return s.appendMessage(b, s.status(), text, true) })
}
