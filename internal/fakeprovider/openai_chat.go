package fakeprovider

import (
	"net/http"

	"github.com/tidwall/gjson"
)

// chat answers /v1/chat/completions.
func (x *exchange) chat(a *ask, _ gjson.Result) {
	r := a.seed(0)
	head := chatHead{id: r.id("chatcmpl-", 29), created: createdAt(&r), model: a.model}
	replies := make([]*reply, a.choices)
	for i := range replies {
		replies[i] = x.reply(a, i)
	}
	if a.stream {
		x.chatStream(a, &head, replies)
		return
	}
	for _, p := range replies {
		if !x.whole(p) {
			return
		}
	}
	b := head.append(x.spare(), "chat.completion")
	b = append(b, `,"choices":[`...)
	for i, p := range replies {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendInt(b, `{"index":`, int64(i))
		b = append(b, `,"message":{"role":"assistant","content":`...)
		if len(p.calls) > 0 {
			b = append(b, `null,"refusal":null,"annotations":[],"tool_calls":[`...)
			for k, call := range p.calls {
				if k > 0 {
					b = append(b, ',')
				}
				b = appendChatCall(b, call)
			}
			b = append(b, ']')
		} else {
			b = appendString(b, p.text)
			b = append(b, `,"refusal":null,"annotations":[]`...)
		}
		b = append(b, `},"logprobs":`...)
		b = appendLogprobs(b, a, p.text)
		b = append(b, `,"finish_reason":"`...)
		b = append(b, openAIFinish(p.finish)...)
		b = append(b, `"}`...)
	}
	b = append(b, ']')
	b = x.appendChatUsage(b, x.meter())
	x.send(http.StatusOK, jsonType, append(b, `,"service_tier":"default"}`...))
}

// chatHead is what the pieces of one answer share.
type chatHead struct {
	id, model string
	created   int64
}

func (h *chatHead) append(b []byte, object string) []byte {
	b = append(append(append(b, `{"id":"`...), h.id...), `","object":"`...)
	b = append(append(b, object...), `","created":`...)
	b = appendInt(b, "", h.created)
	b = appendText(b, `,"model":`, h.model)
	return append(b, `,"system_fingerprint":"fp_fake"`...)
}

// createdAt is a time that follows from the request, like everything else of an
// answer: within a quarter of a year of a fixed day.
func createdAt(r *random) int64 { return 1_770_000_000 + int64(r.below(7_776_000)) }

func appendChatCall(b []byte, call toolCall) []byte {
	b = append(append(append(b, `{"id":"call_`...), call.id...), `","type":"function","function":{"name":`...)
	b = appendString(b, call.name)
	b = appendText(b, `,"arguments":`, call.arguments)
	return append(b, `}}`...)
}

func openAIFinish(f finish) string {
	switch f {
	case finishLength:
		return "length"
	case finishTools:
		return "tool_calls"
	}
	return "stop"
}

// appendLogprobs gives each token of text the same likelihood.
func appendLogprobs(b []byte, a *ask, text string) []byte {
	if !a.logprobs {
		return append(b, "null"...)
	}
	b = append(b, `{"content":[`...)
	for at := 0; at < len(text); {
		next := tokenEnd(text, at)
		if at > 0 {
			b = append(b, ',')
		}
		b = append(b, '{')
		b = appendLogprob(b, text[at:next])
		b = append(b, `,"top_logprobs":[`...)
		for i := range a.top {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(b, '{')
			if i == 0 {
				b = appendLogprob(b, text[at:next])
			} else {
				b = appendLogprob(b, " "+words[i])
			}
			b = append(b, '}')
		}
		b = append(b, `]}`...)
		at = next
	}
	return append(b, `],"refusal":null}`...)
}

func appendLogprob(b []byte, token string) []byte {
	b = appendText(b, `"token":`, token)
	b = append(b, `,"logprob":-0.25,"bytes":[`...)
	for i := range len(token) {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendInt(b, "", int64(token[i]))
	}
	return append(b, ']')
}

// appendChatUsage appends the usage as a field, unless it is to be left out.
func (x *exchange) appendChatUsage(b []byte, u Usage) []byte {
	if x.orders.noUsage {
		return b
	}
	u = x.shown(u)
	b = appendInt(b, `,"usage":{"prompt_tokens":`, u.Input)
	b = x.appendOutput(b, `,"completion_tokens":`, u.Output)
	b = x.appendOutput(b, `,"total_tokens":`, u.Input+u.Output)
	b = appendInt(b, `,"prompt_tokens_details":{"cached_tokens":`, u.Cached)
	b = appendInt(b, `,"audio_tokens":0},"completion_tokens_details":{"reasoning_tokens":`, u.Reasoning)
	b = append(b, `,"audio_tokens":0,"accepted_prediction_tokens":0,"rejected_prediction_tokens":0}`...)
	return append(x.appendGPU(b, u), '}')
}

// chatStream answers in chunks: the choices take turns, a token each.
func (x *exchange) chatStream(a *ask, head *chatHead, replies []*reply) {
	s := chatStream{exchange: x, ask: a, head: head}
	if !x.wait(x.due) {
		return
	}
	x.openStream()
	for _, p := range replies {
		if !x.think(p.reasoning) {
			return
		}
	}
	for i, p := range replies {
		if !s.chunk(0, i, func(b []byte) []byte {
			if len(p.calls) > 0 {
				return append(b, `"role":"assistant","content":null,"refusal":null`...)
			}
			return append(b, `"role":"assistant","content":"","refusal":null`...)
		}, "", "") {
			return
		}
	}
	at := make([]int, len(replies))
	for busy := true; busy; {
		busy = false
		for i, p := range replies {
			from := at[i]
			if from == len(p.text) {
				continue
			}
			to, n := x.piece(p.text, from)
			at[i] = to
			busy = busy || to < len(p.text)
			if !s.chunk(n, i, func(b []byte) []byte {
				return appendText(b, `"content":`, p.text[from:to])
			}, p.text[from:to], "") {
				return
			}
		}
	}
	for i, p := range replies {
		for k, call := range p.calls {
			if !s.call(i, k, call) {
				return
			}
		}
	}
	s.close(replies)
}

type chatStream struct {
	*exchange
	ask  *ask
	head *chatHead
	buf  []byte
}

// chunk sends one piece of choice i. n is how many tokens it carries; a chunk
// without tokens is a frame of the answer only.
func (s *chatStream) chunk(n int64, i int, delta func([]byte) []byte, text, finish string) bool {
	b := s.head.append(s.buf[:0], "chat.completion.chunk")
	b = appendInt(b, `,"choices":[{"index":`, int64(i))
	b = append(delta(append(b, `,"delta":{`...)), `},"logprobs":`...)
	if n > 0 && text != "" {
		b = appendLogprobs(b, s.ask, text)
	} else {
		b = append(b, "null"...)
	}
	b = append(b, `,"finish_reason":`...)
	if finish == "" {
		b = append(b, "null}]"...)
	} else {
		b = append(appendString(b, finish), `}]`...)
	}
	switch {
	case s.orders.repeatUsage:
		u := s.usage
		u.Output += n
		u.GPUMS = gpuMillis(u.Input, u.Cached, u.Output)
		b = s.appendChatUsage(b, u)
	case s.ask.usage && !s.orders.noUsage:
		b = append(b, `,"usage":null`...)
	}
	s.buf = append(b, '}')
	if n > 0 {
		return s.content(n, "", s.buf)
	}
	return s.event("", s.buf)
}

// call sends a tool call: its name, then its arguments token by token.
func (s *chatStream) call(i, k int, call toolCall) bool {
	if !s.chunk(0, i, func(b []byte) []byte {
		b = appendInt(b, `"tool_calls":[{"index":`, int64(k))
		b = appendText(b, `,"id":`, "call_"+call.id)
		b = appendText(b, `,"type":"function","function":{"name":`, call.name)
		return append(b, `,"arguments":""}}]`...)
	}, "", "") {
		return false
	}
	for from := 0; from < len(call.arguments); {
		to, n := s.piece(call.arguments, from)
		if !s.chunk(n, i, func(b []byte) []byte {
			b = appendInt(b, `"tool_calls":[{"index":`, int64(k))
			b = appendText(b, `,"function":{"arguments":`, call.arguments[from:to])
			return append(b, `}}]`...)
		}, "", "") {
			return false
		}
		from = to
	}
	s.usage.ToolCalls++
	return true
}

func (s *chatStream) close(replies []*reply) {
	if !s.last() {
		return
	}
	for i, p := range replies {
		if !s.chunk(0, i, func(b []byte) []byte { return b }, "", openAIFinish(p.finish)) {
			return
		}
	}
	if s.ask.usage && !s.orders.noUsage {
		b := s.head.append(s.buf[:0], "chat.completion.chunk")
		s.buf = append(s.appendChatUsage(append(b, `,"choices":[]`...), s.meter()), '}')
		if !s.event("", s.buf) {
			return
		}
	}
	if !s.orders.noDone {
		s.event("", []byte("[DONE]"))
	}
}
