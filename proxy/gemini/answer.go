package gemini

import (
	"github.com/tidwall/gjson"

	"tollgate/events"
	"tollgate/proxy"
	"tollgate/proxy/jsonbody"
)

// imageOutput is what a generated image is in output tokens (docs: pricing of the
// models that draw).
const imageOutput = 1290

// maxIndex bounds the candidates that are told apart.
const maxIndex = 64

// reader gathers what an answer holds: one object, or one an event of a stream.
type reader struct {
	text, calls, thoughts proxy.TextTally
	toolCalls, images     int64
	unread                int64 // bytes of events that were too long to be read
	content               bool
	grew                  bool // content came since it was last set to false

	reported                  bool
	current                   bool // what was said last covers all content
	prompt, toolPrompt        int64
	candidates, thoughtTokens int64
	cached, gpuMillis         int64

	seen, finished uint64 // candidates, by their index
	blocked        bool   // the prompt was refused: there are no candidates
	tally          proxy.Tally
}

func newReader(count proxy.Counter) reader {
	return reader{text: proxy.NewTextTally(count), calls: proxy.NewTextTally(count), thoughts: proxy.NewTextTally(count)}
}

// read takes one GenerateContentResponse. False: it is none.
func (r *reader) read(data []byte) bool {
	var usage []byte
	known := false
	w := jsonbody.Over(data)
	for {
		key, value, ok := w.Next()
		if !ok {
			break
		}
		switch string(key) {
		case "candidates":
			known = true
			for all := jsonbody.Over(value); ; {
				_, candidate, ok := all.Next()
				if !ok {
					break
				}
				r.candidate(candidate)
			}
		case "usageMetadata":
			known, usage = true, value
		case "promptFeedback":
			known = true
			r.blocked = r.blocked || gjson.Get(jsonbody.View(value), "blockReason").Str != ""
		case "modelVersion":
			known = true
			if r.tally.Model == "" {
				r.tally.Model = jsonbody.Text(value)
			}
		case "responseId":
			known = true
		case "error":
			if string(value) != "null" {
				known, r.tally.Failed = true, true
			}
		}
	}
	r.report(usage) // after the content that it covers
	return known && w.Whole() && data[0] == '{'
}

func (r *reader) candidate(raw []byte) {
	var content, finish []byte
	var index int64
	w := jsonbody.Over(raw)
	for {
		key, value, ok := w.Next()
		if !ok {
			break
		}
		switch string(key) {
		case "content":
			content = value
		case "finishReason":
			finish = value
		case "index":
			index, _ = jsonbody.Count(jsonbody.View(value))
		}
	}
	bit := uint64(1) << min(index, maxIndex-1)
	r.seen |= bit
	r.grew = false
	r.parts(content)
	// Older servers say a finish reason in every event: it ends the candidate unless
	// more of it comes.
	if reason := jsonbody.Text(finish); reason != "" && reason != "FINISH_REASON_UNSPECIFIED" {
		r.finished |= bit
		r.tally.FinishReason = reason
	} else if r.grew {
		r.finished &^= bit
	}
}

func (r *reader) parts(content []byte) {
	w := jsonbody.Over(content)
	for {
		key, value, ok := w.Next()
		if !ok {
			return
		}
		if string(key) == "parts" {
			for parts := jsonbody.Over(value); ; {
				_, part, ok := parts.Next()
				if !ok {
					break
				}
				r.part(part)
			}
		}
	}
}

// part is text, a thought, a call of a function, or an image.
func (r *reader) part(raw []byte) {
	var words, call, file []byte
	thought := false
	w := jsonbody.Over(raw)
	for {
		key, value, ok := w.Next()
		if !ok {
			break
		}
		switch string(key) {
		case "text":
			words = value
		case "thought":
			thought = string(value) == "true"
		case "functionCall":
			r.toolCalls++
			call = value
		case "executableCode": // written by the model; its result is input
			call = value
		case "inlineData":
			file = value
		}
	}
	if len(words) > 2 && words[0] == '"' {
		if thought {
			r.thoughts.AddJSONString(words)
		} else {
			r.text.AddJSONString(words)
		}
		r.delivered()
	}
	if call != nil {
		r.calls.Add(between)
		r.calls.Add(call)
		r.delivered()
	}
	if file != nil {
		if len(gjson.Get(jsonbody.View(file), "data").Str) > 0 {
			r.images++
		}
		r.delivered()
	}
}

// between keeps tokens from reaching from one call to the next.
var between = []byte{'\n'}

func (r *reader) delivered() { r.content, r.grew, r.current = true, true, false }

// report takes usageMetadata. It is cumulative, and each event of a stream
// repeats it; the first ones may leave out the output.
func (r *reader) report(raw []byte) {
	if len(raw) == 0 {
		return
	}
	next, input, output := *r, false, false
	w := jsonbody.Over(raw)
	for {
		key, value, ok := w.Next()
		if !ok {
			break
		}
		switch string(key) {
		case "promptTokenCount":
			input, ok = true, raise(&next.prompt, value)
		case "toolUsePromptTokenCount":
			ok = raise(&next.toolPrompt, value)
		case "cachedContentTokenCount":
			ok = raise(&next.cached, value)
		case "candidatesTokenCount":
			output, ok = true, raise(&next.candidates, value)
		case "thoughtsTokenCount":
			ok = raise(&next.thoughtTokens, value)
		case "gpu_ms": // our extension; not worth losing the rest for
			raise(&next.gpuMillis, value)
		}
		if !ok {
			return
		}
	}
	if !w.Whole() || !input && !output ||
		next.prompt+next.toolPrompt > proxy.MaxFigure || next.candidates+next.thoughtTokens > proxy.MaxFigure {
		return
	}
	next.reported, next.current = true, r.current || output || !r.content
	*r = next
}

// raise takes a cumulative figure; false when it is none.
func raise(figure *int64, raw []byte) bool {
	n := proxy.Figure(jsonbody.View(raw))
	if n < 0 {
		return false
	}
	*figure = max(*figure, n)
	return true
}

// result is the tally. Thoughts are counted beside the candidates' tokens.
func (r *reader) result(exact bool) proxy.Tally {
	count := (*proxy.TextTally).Rough
	if exact {
		count = (*proxy.TextTally).Exact
	}
	t := r.tally
	thoughts := count(&r.thoughts)
	answer := count(&r.text) + count(&r.calls) + r.images*imageOutput + (r.unread+3)/4
	unsaid := r.candidates == 0 && answer > 0
	if unsaid { // thoughts are said beside the answer, and need not have been shown
		thoughts = max(thoughts, r.thoughtTokens)
	}
	t.Content = r.content
	t.Complete = r.blocked || r.seen != 0 && r.seen == r.finished
	t.Delivered = events.Usage{
		OutputTokens:    answer + thoughts,
		ReasoningTokens: thoughts, ToolCalls: r.toolCalls, Images: r.images,
	}
	if r.reported {
		input := r.prompt + r.toolPrompt
		t.OutputUnsaid = unsaid || !r.current
		t.Usage = &events.Usage{
			InputTokens: input, CachedInputTokens: min(r.cached, input),
			OutputTokens: r.candidates + r.thoughtTokens, ReasoningTokens: r.thoughtTokens,
			ToolCalls: r.toolCalls, Images: r.images, GPUMillis: r.gpuMillis,
		}
	}
	return t
}

// Answer counts no text where the upstream says what it used: that is charged.
func (e *endpoint) Answer(body []byte, _ string, _ *proxy.Ask, count proxy.Counter) proxy.Tally {
	if !jsonbody.Valid(body) {
		return proxy.Tally{Garbage: true}
	}
	if e.Free() {
		return proxy.Tally{Complete: true}
	}
	said := reader{}
	said.report(jsonbody.Bytes(gjson.Get(jsonbody.View(body), "usageMetadata").Raw))
	if said.prompt > 0 && said.candidates > 0 {
		count = proxy.Uncounted{}
	}
	r := newReader(count)
	r.tally.Garbage = !r.read(body)
	return r.result(true)
}
