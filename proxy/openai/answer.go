package openai

import (
	"strings"

	"github.com/tidwall/gjson"

	"tollgate/proxy"
	"tollgate/proxy/jsonbody"
)

// whole is an answer on its way to a tally.
type whole struct {
	root  gjson.Result
	tally proxy.Tally
	// text and thought are the answer's strings, still to be counted: only when
	// the upstream says no usage.
	text, thought []string
}

// readBody gives the root object of an answer; false where it is none.
func readBody(raw []byte) (b *whole, ok bool) {
	b = &whole{}
	if !jsonbody.Valid(raw) {
		b.tally.Garbage = true
		return b, false
	}
	b.root = gjson.Parse(jsonbody.View(raw))
	if !b.root.IsObject() {
		b.tally.Garbage = true
		return b, false
	}
	if e := b.root.Get("error"); e.IsObject() {
		b.tally.Failed = true
	}
	b.tally.Model = name(b.root.Get("model"))
	b.report(b.root.Get("usage"))
	return b, true
}

// name keeps a name that goes to metrics and traces short, and apart from the
// answer's memory.
func name(r gjson.Result) string {
	if r.Type != gjson.String || len(r.Str) > maxModel {
		return ""
	}
	return strings.Clone(r.Str)
}

func (b *whole) say(r gjson.Result) {
	if r.Type == gjson.String && r.Str != "" {
		b.text = append(b.text, r.Str)
		b.tally.Content = true
	}
}

func (b *whole) think(r gjson.Result) {
	if r.Type == gjson.String && r.Str != "" {
		b.thought = append(b.thought, r.Str)
		b.tally.Content = true
	}
}

// done counts what was delivered, unless the upstream's own figures stand.
func (b *whole) done(count proxy.Counter) proxy.Tally {
	d := &b.tally.Delivered
	if b.tally.Content && silent(b.tally.Usage) {
		for _, s := range b.thought {
			d.ReasoningTokens += count.Count(jsonbody.Bytes(s))
		}
		d.OutputTokens += d.ReasoningTokens
		for _, s := range b.text {
			d.OutputTokens += count.Count(jsonbody.Bytes(s))
		}
	}
	return b.tally
}

func (b *whole) report(usage gjson.Result) {
	if !usage.IsObject() {
		return
	}
	if u, ok := readUsage(jsonbody.Bytes(usage.Raw)); ok {
		b.tally.Usage = proxy.Merge(b.tally.Usage, u)
	}
}

// Answer implements proxy.Endpoint.
func (chat) Answer(raw []byte, _ string, _ *proxy.Ask, count proxy.Counter) proxy.Tally {
	b, ok := readBody(raw)
	if !ok {
		return b.tally
	}
	b.choices(func(choice gjson.Result) { b.message(choice.Get("message")) })
	return b.done(count)
}

// choices reads the answers, of which each must have a finish reason for the whole
// to be complete.
func (b *whole) choices(read func(gjson.Result)) {
	list := b.root.Get("choices")
	if !list.IsArray() {
		b.tally.Garbage = !b.tally.Failed
		return
	}
	n, finished := 0, 0
	list.ForEach(func(_, choice gjson.Result) bool {
		n++
		if reason := choice.Get("finish_reason"); reason.Type == gjson.String {
			finished++
			b.tally.FinishReason = name(reason)
		}
		read(choice)
		return true
	})
	b.tally.Complete = n > 0 && finished == n
}

// message reads a choice's message, or its delta.
func (b *whole) message(m gjson.Result) {
	var thought []byte
	m.ForEach(func(key, v gjson.Result) bool {
		switch key.Str {
		case "content":
			if v.IsArray() { // parts, as some servers answer
				v.ForEach(func(_, part gjson.Result) bool {
					b.say(part.Get("text"))
					b.reason(jsonbody.Bytes(part.Get("thinking").Raw))
					return true
				})
				break
			}
			b.say(v)
		case "refusal":
			b.say(v)
		case "reasoning_content", "reasoning", "reasoning_details":
			thought = longer(thought, jsonbody.Bytes(v.Raw))
		case "audio":
			if data := v.Get("data").Str; data != "" {
				b.tally.Content = true
				b.tally.Delivered.OutputTokens += spokenTokens(int64(len(data)))
			}
		case "tool_calls":
			v.ForEach(func(_, call gjson.Result) bool {
				b.call(call.Get("function"))
				b.call(call.Get("custom"))
				return true
			})
		case "function_call":
			b.call(v)
		}
		return true
	})
	b.reason(thought)
}

// reason takes a thought, however it is written.
func (b *whole) reason(raw []byte) {
	eachThought(raw, 0, func(text []byte) { b.think(gjson.Parse(jsonbody.View(text))) })
}

func (b *whole) call(function gjson.Result) {
	if !function.IsObject() {
		return
	}
	b.tally.Delivered.ToolCalls++
	b.tally.Content = true
	b.say(function.Get("name"))
	b.say(function.Get("arguments"))
	b.say(function.Get("input"))
}

// spokenTokens are the tokens of speech that is held in so many bytes of base64:
// 20 a second, of PCM at 24 kHz. Compressed speech is underestimated.
func spokenTokens(encoded int64) int64 {
	return (encoded*3/4*20 + pcmRate - 1) / pcmRate
}

// Answer implements proxy.Endpoint.
func (completions) Answer(raw []byte, _ string, ask *proxy.Ask, count proxy.Counter) proxy.Tally {
	b, ok := readBody(raw)
	if !ok {
		return b.tally
	}
	at, echoed := int64(0), requestOf(ask).echo
	b.choices(func(choice gjson.Result) {
		index := at
		if given := choice.Get("index"); given.Exists() {
			index, _ = jsonbody.Count(given.Raw)
		}
		at++
		b.sayAfter(echoed.of(index), choice.Get("text"))
		b.think(choice.Get("reasoning_content"))
	})
	return b.done(count)
}
