package anthropic

import (
	"slices"
	"strconv"

	"tollgate/admission/answer"
	"tollgate/events"
	"tollgate/proxy"
	"tollgate/proxy/jsonbody"
	"tollgate/proxy/sse"
)

// stream follows the events of a streamed message.
//
// A report of usage covers the content before it. message_start says the input's
// figures and only how the output began, so its output figure holds as long as no
// content came; what is said of the input holds always.
type stream struct {
	content content
	said    usage
	current bool    // no content came since the last report
	open    []int64 // indexes of content blocks that were begun and not ended
	pieces  int64   // bytes of an event that is still coming
	started bool    // message_start was seen
	stopped bool    // message_stop was seen
	tally   proxy.Tally
}

func (e *endpoint) Stream(_ *proxy.Ask, count proxy.Counter) proxy.Stream {
	return &stream{content: newContent(count)}
}

// Event never hides an event: usage is part of every stream in this dialect.
func (s *stream) Event(ev sse.Event) proxy.Action {
	if ev.Cut {
		s.pieces += int64(len(ev.Raw))
		if ev.Lost {
			s.content.unread += s.pieces
			s.content.seen, s.current, s.pieces = true, false, 0
		}
		return proxy.Forward
	}
	s.pieces = 0
	if len(ev.Data) > 0 {
		s.read(ev)
	}
	return proxy.Forward
}

// message is what is read of an event's data.
type message struct {
	kind, index, delta, block, message, usage []byte
}

func (s *stream) read(ev sse.Event) {
	var m message
	w := jsonbody.Over(ev.Data)
	for {
		key, value, ok := w.Next()
		if !ok {
			break
		}
		switch string(key) {
		case "type":
			m.kind = value
		case "index":
			m.index = value
		case "delta":
			m.delta = value
		case "content_block":
			m.block = value
		case "message":
			m.message = value
		case "usage":
			m.usage = value
		}
	}
	if !w.Whole() {
		s.tally.Garbage = s.tally.Garbage || string(ev.Data) != "[DONE]" // which some servers add
		return
	}
	name := ev.Name
	if len(m.kind) > 2 {
		name = m.kind[1 : len(m.kind)-1]
	}
	switch string(name) {
	case "content_block_delta":
		s.delta(m.delta)
	case "content_block_start":
		s.blockStart(&m)
	case "content_block_stop":
		s.blockStop(&m)
	case "message_start":
		s.messageStart(m.message)
	case "message_delta":
		s.messageDelta(&m)
	case "message_stop":
		s.stopped, s.tally.Complete = true, true
	case "error":
		s.tally.Failed = true
	case "":
		s.tally.Garbage = true
	}
}

// delta tells deltas by their members, so that new types of delta that carry
// text count as well. Signatures and citations are no output tokens.
func (s *stream) delta(raw []byte) {
	w := jsonbody.Over(raw)
	for {
		key, value, ok := w.Next()
		if !ok {
			return
		}
		added := false
		switch string(key) {
		case "text":
			added = s.content.add(&s.content.text, value)
		case "partial_json":
			added = s.content.add(&s.content.tools, value)
		case "thinking":
			added = s.content.add(&s.content.thinking, value)
		}
		if added {
			s.current = false
		}
	}
}

func (s *stream) blockStart(m *message) {
	if index, ok := jsonbody.Count(jsonbody.View(m.index)); ok && len(s.open) < maxOpen && !slices.Contains(s.open, index) {
		s.open = append(s.open, index)
	}
	if s.content.block(m.block) {
		s.current = false
	}
}

// maxOpen bounds the blocks that are remembered; there is one at a time.
const maxOpen = 64

func (s *stream) blockStop(m *message) {
	if index, ok := jsonbody.Count(jsonbody.View(m.index)); ok {
		if at := slices.Index(s.open, index); at >= 0 {
			s.open = slices.Delete(s.open, at, at+1)
		}
	}
}

func (s *stream) messageStart(raw []byte) {
	s.started = true
	w := jsonbody.Over(raw)
	for {
		key, value, ok := w.Next()
		if !ok {
			return
		}
		switch string(key) {
		case "model":
			s.tally.Model = jsonbody.Text(value)
		case "usage":
			s.report(value)
		}
	}
}

func (s *stream) messageDelta(m *message) {
	w := jsonbody.Over(m.delta)
	for {
		key, value, ok := w.Next()
		if !ok {
			break
		}
		if reason := jsonbody.Text(value); string(key) == "stop_reason" && reason != "" {
			s.tally.FinishReason, s.tally.Complete = reason, true
		}
	}
	s.report(m.usage)
}

func (s *stream) report(raw []byte) {
	if s.said.report(raw) {
		s.current = true
	}
}

// Tally says so where content came after the last report: the output figure
// does not cover it. Of an event that is still coming, what came is content.
func (s *stream) Tally(exact bool) proxy.Tally {
	t := s.tally
	t.Content = s.content.seen || s.pieces > 0
	t.Delivered = s.content.delivered(exact)
	t.Delivered.OutputTokens += (s.pieces + 3) / 4
	if s.said.reported {
		t.Usage = s.said.events(s.content.toolCalls)
		t.OutputUnsaid = !s.current || s.pieces > 0
	}
	return t
}

// Finish ends the message as one that reached max_tokens where a cap or a quota
// cut it: clients keep what came and see that it is not all. One that lacks only
// its end marker gets it. Anything else ends with an error event, which clients
// raise.
func (s *stream) Finish(end proxy.End) []byte {
	switch {
	case s.stopped, s.tally.Failed:
		return nil
	case !s.started, !s.tally.Complete && !end.Capped():
		return errorEvent(answerOf(end), "")
	}
	var out []byte
	slices.Sort(s.open)
	for _, index := range s.open {
		out = append(out, "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":"...)
		out = append(strconv.AppendInt(out, index, 10), "}\n\n"...)
	}
	s.open = nil
	if !s.tally.Complete {
		out = append(out, "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"max_tokens\",\"stop_sequence\":null},\"usage\":"...)
		out = append(s.appendUsage(out, end.Usage), "}\n\n"...)
	}
	return append(out, "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"...)
}

// appendUsage writes figures as a message_delta repeats them: cached input apart
// from the rest.
func (s *stream) appendUsage(out []byte, u events.Usage) []byte {
	out = append(out, '{')
	if u.InputTokens > 0 {
		out = strconv.AppendInt(append(out, `"input_tokens":`...), max(u.InputTokens-s.said.creation-u.CachedInputTokens, 0), 10)
		out = strconv.AppendInt(append(out, `,"cache_creation_input_tokens":`...), s.said.creation, 10)
		out = strconv.AppendInt(append(out, `,"cache_read_input_tokens":`...), u.CachedInputTokens, 10)
		out = append(out, ',')
	}
	out = strconv.AppendInt(append(out, `"output_tokens":`...), max(u.OutputTokens, 0), 10)
	return append(out, '}')
}

// answerOf is the error that ends a stream.
func answerOf(end proxy.End) *answer.Answer {
	a := &answer.Answer{Status: 500, Reason: end.Reason, Detail: end.Detail}
	switch end.Reason {
	case proxy.EndShutdown:
		a.Status = 529
	case proxy.EndQuota, proxy.EndOutputCap:
		a.Status = 429
	}
	return a
}

// errorEvent is an error as an event. Its body has no line ends: they are
// escaped in strings, and it has no others.
func errorEvent(a *answer.Answer, requestID string) []byte {
	body := appendError(append([]byte(nil), "event: error\ndata: "...), a, requestID)
	return append(body, "\n\n"...)
}
