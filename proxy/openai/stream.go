package openai

import (
	"bytes"

	"tollgate/events"
	"tollgate/proxy"
	"tollgate/proxy/jsonbody"
	"tollgate/proxy/sse"
)

// maxTracked bounds the choices of a stream that are told apart. Those beyond
// are counted together as one.
const maxTracked = 128

// chunks follows a stream of chat or completion chunks. It keeps nothing of the
// request but what it was given here.
type chunks struct {
	object     string // what the chunks call themselves
	asked      string // the model, as the client named it
	usageAsked bool
	wanted     int64 // choices
	echo       *echo
	most       int64 // output tokens of a choice, as the request caps it; −1
	counter    proxy.Counter

	id, model, created string // of the stream, as JSON
	choices            []choice
	thought            proxy.TextTally
	usage              *events.Usage
	current            bool // no content came since the last report of usage
	tally              proxy.Tally
	speech             int64 // base64 bytes of spoken answers
	pieces             int64 // bytes of an event that has not ended
	ended              bool  // [DONE] was seen
}

// choice is one of a stream's answers.
type choice struct {
	index    int64
	text     proxy.TextTally // and tool calls
	prompt   string          // what is to come of it, while the text is its beginning
	lastTool int64           // the highest index of a tool call; −1
	deltas   bool            // it comes in deltas
	finished bool
}

// Stream implements proxy.Endpoint.
func (chat) Stream(ask *proxy.Ask, count proxy.Counter) proxy.Stream {
	return newChunks(ask, count, "chat.completion.chunk")
}

// Stream implements proxy.Endpoint.
func (completions) Stream(ask *proxy.Ask, count proxy.Counter) proxy.Stream {
	return newChunks(ask, count, "text_completion")
}

func newChunks(ask *proxy.Ask, count proxy.Counter, object string) *chunks {
	return &chunks{
		object: object, asked: ask.Model, usageAsked: ask.UsageAsked, wanted: ask.Choices,
		echo: requestOf(ask).echo, most: ask.MaxOutputTokens,
		counter: count, thought: proxy.NewTextTally(count),
	}
}

// Event implements proxy.Stream.
func (s *chunks) Event(ev sse.Event) proxy.Action {
	switch {
	case ev.Lost: // megabytes in one event are speech
		s.speech += s.pieces + int64(len(ev.Raw))
		s.pieces = 0
		s.delivered()
		return proxy.Forward
	case ev.Cut:
		s.pieces += int64(len(ev.Raw))
		return proxy.Forward
	}
	s.pieces = 0
	data := bytes.TrimSpace(ev.Data)
	if string(data) == "[DONE]" {
		s.ended = true
		return proxy.Forward
	}
	if len(data) == 0 {
		return proxy.Forward
	}
	if string(ev.Name) == "error" {
		s.tally.Failed = true
	}
	return s.chunk(data)
}

// chunk reads one chunk. It is lenient inside of values: what matters is that
// the same text counts once.
func (s *chunks) chunk(data []byte) proxy.Action {
	known, answers, usage := false, false, false
	var nullKey, null []byte
	w := jsonbody.Over(data)
	for {
		key, v, ok := w.Next()
		if !ok {
			break
		}
		switch string(key) {
		case "id":
			keep(&s.id, v)
		case "model":
			if s.model == "" {
				keep(&s.model, v)
				s.tally.Model = plain(v)
			}
		case "created":
			keep(&s.created, v)
		case "choices":
			known = v[0] == '['
			answers = s.each(v) || answers
		case "usage":
			usage = s.report(v) || usage
			if string(v) == "null" {
				nullKey, null = key, v
			}
		case "error":
			s.tally.Failed = s.tally.Failed || string(v) != "null"
		}
	}
	if !w.Whole() || data[0] != '{' || !known && !usage && !s.tally.Failed {
		s.tally.Garbage = true
		return proxy.Forward
	}
	s.current = s.current || usage // which covers what stands beside it
	if usage && !answers && !s.usageAsked {
		return proxy.Hide
	}
	if null != nil && !s.usageAsked {
		blank(data, nullKey, null)
	}
	return proxy.Forward
}

// blank overwrites an object's member with spaces, and a comma beside it. Servers
// that were asked for usage on a client's behalf say in every chunk but one that
// there is none; the client did not ask.
func blank(data, key, value []byte) {
	// key and value are slices of data, so their capacities tell where they are.
	from := cap(data) - cap(key) - len(`"`)
	to := cap(data) - cap(value) + len(value)
	before := len(bytes.TrimRight(data[:from], " \t\r\n"))
	after := len(data) - len(bytes.TrimLeft(data[to:], " \t\r\n"))
	switch {
	case data[before-1] == ',':
		from = before - 1
	case data[after] == ',':
		to = after + 1
	}
	for i := from; i < to; i++ {
		data[i] = ' '
	}
}

func (s *chunks) report(v []byte) bool {
	u, ok := readUsage(v)
	if ok {
		s.usage = proxy.Merge(s.usage, u)
	}
	return ok
}

// keep remembers a value as JSON, from the first chunk that has it.
func keep(to *string, v []byte) {
	if *to == "" && len(v) <= maxModel && (v[0] == '"' || v[0] >= '0' && v[0] <= '9') && jsonbody.Valid(v) {
		*to = string(v)
	}
}

// plain is a short string's text for metrics and traces; escapes stay.
func plain(v []byte) string {
	if len(v) < 2 || len(v) > maxModel || v[0] != '"' {
		return ""
	}
	return string(v[1 : len(v)-1])
}

// each reads a chunk's choices and says whether there are any.
func (s *chunks) each(list []byte) (found bool) {
	for w := jsonbody.Over(list); ; {
		_, v, ok := w.Next()
		if !ok {
			return found
		}
		found = true
		s.choice(v)
	}
}

// choice reads one choice of a chunk.
func (s *chunks) choice(raw []byte) {
	var index int64
	var reason, delta, message, said, thought []byte
	for w := jsonbody.Over(raw); ; {
		key, v, ok := w.Next()
		if !ok {
			break
		}
		switch string(key) {
		case "index":
			index, _ = jsonbody.Count(jsonbody.View(v))
		case "finish_reason":
			reason = v
		case "delta":
			delta = v
		case "message":
			message = v
		case "text":
			said = v
		case "reasoning_content":
			thought = v
		}
	}
	c := s.at(index)
	if c.prompt != "" {
		s.sayEcho(c, said)
	} else {
		s.say(&c.text, said)
	}
	s.say(&s.thought, thought)
	// Some servers send a message where a delta belongs; others send the whole
	// message so far beside each delta, or after the last.
	if c.deltas = c.deltas || len(delta) > 0 && delta[0] == '{'; !c.deltas {
		delta = message
	}
	s.delta(c, delta)
	if len(reason) > 2 && reason[0] == '"' {
		c.finished = true
		if s.tally.FinishReason != jsonbody.View(reason[1:len(reason)-1]) {
			s.tally.FinishReason = plain(reason)
		}
	}
}

func (s *chunks) delta(c *choice, raw []byte) {
	var thought []byte
	for w := jsonbody.Over(raw); ; {
		key, v, ok := w.Next()
		if !ok {
			eachThought(thought, 0, func(text []byte) { s.say(&s.thought, text) })
			return
		}
		switch string(key) {
		case "content", "refusal":
			s.say(&c.text, v)
		case "reasoning_content", "reasoning", "reasoning_details":
			thought = longer(thought, v)
		case "audio":
			if data := member(v, "data"); len(data) > 2 {
				s.speech += int64(len(data) - 2)
				s.delivered()
			}
		case "tool_calls":
			for calls := jsonbody.Over(v); ; {
				_, call, more := calls.Next()
				if !more {
					break
				}
				s.call(c, call)
			}
		case "function_call":
			if v[0] == '{' {
				s.function(c, 0, v)
			}
		}
	}
}

// member is an object's member, nil where it has none.
func member(raw []byte, name string) []byte {
	for w := jsonbody.Over(raw); ; {
		key, v, ok := w.Next()
		if !ok {
			return nil
		}
		if string(key) == name {
			return v
		}
	}
}

// at finds a choice by its index.
func (s *chunks) at(index int64) *choice {
	for i := range s.choices {
		if s.choices[i].index == index {
			return &s.choices[i]
		}
	}
	if len(s.choices) == maxTracked {
		return &s.choices[maxTracked-1]
	}
	s.choices = append(s.choices, choice{index: index, text: proxy.NewTextTally(s.counter), prompt: s.echo.of(index), lastTool: -1})
	return &s.choices[len(s.choices)-1]
}

// say counts a string of the answer. Parts of text, as some servers send them
// instead, are counted too.
func (s *chunks) say(to *proxy.TextTally, v []byte) {
	switch {
	case len(v) <= 2:
	case v[0] == '"':
		to.AddJSONString(v)
		s.delivered()
	case v[0] == '[':
		for w := jsonbody.Over(v); ; {
			_, part, ok := w.Next()
			if !ok {
				return
			}
			if said := member(part, "text"); len(said) > 2 && said[0] == '"' {
				s.say(to, said)
			}
			eachThought(member(part, "thinking"), 0, func(text []byte) { s.say(&s.thought, text) })
		}
	}
}

// delivered notes that content came, which no report of usage covers yet.
func (s *chunks) delivered() { s.tally.Content, s.current = true, false }

// call reads a piece of a tool call.
func (s *chunks) call(c *choice, raw []byte) {
	index, _ := jsonbody.Count(jsonbody.View(member(raw, "index")))
	for w := jsonbody.Over(raw); ; {
		key, v, ok := w.Next()
		if !ok {
			return
		}
		if name := string(key); (name == "function" || name == "custom") && v[0] == '{' {
			s.function(c, index, v)
		}
	}
}

// function reads a piece of a call. The call counts when its index first appears:
// some servers repeat its id in every piece.
func (s *chunks) function(c *choice, index int64, raw []byte) {
	if index > c.lastTool {
		c.lastTool = index
		s.tally.Delivered.ToolCalls++
	}
	s.delivered()
	for w := jsonbody.Over(raw); ; {
		key, v, ok := w.Next()
		if !ok {
			return
		}
		switch string(key) {
		case "name", "arguments", "input":
			s.say(&c.text, v)
		}
	}
}

// Tally implements proxy.Stream. Its usage is valid until the next event.
func (s *chunks) Tally(exact bool) proxy.Tally {
	t := s.tally
	t.Usage = s.usage
	t.OutputUnsaid = s.usage != nil && !s.current
	t.Complete = s.complete()
	d := &t.Delivered
	d.ReasoningTokens = counted(&s.thought, exact)
	d.OutputTokens = d.ReasoningTokens + spokenTokens(s.speech)
	for i := range s.choices {
		c := &s.choices[i]
		n := counted(&c.text, exact)
		if c.prompt != "" && s.most >= 0 {
			// What may yet turn out to be the prompt is no more than was asked for: an echo
			// in pieces must not end a stream at its cap.
			n = min(n, s.most)
		}
		d.OutputTokens += n
	}
	return t
}

func counted(t *proxy.TextTally, exact bool) int64 {
	if exact {
		return t.Exact()
	}
	return t.Rough()
}

// complete says that every answer that was asked for has ended. A server that
// ends its stream in order without finish reasons, or gives fewer answers, has
// ended it, too.
func (s *chunks) complete() bool {
	if len(s.choices) == 0 {
		return false
	}
	if int64(len(s.choices)) < min(s.wanted, maxTracked) {
		return s.ended
	}
	for i := range s.choices {
		if !s.choices[i].finished {
			return s.ended
		}
	}
	return true
}
