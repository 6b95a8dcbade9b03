package fakeprovider

import "strings"

// finish is why an answer ended, in no dialect's words.
type finish uint8

const (
	finishStop finish = iota
	finishLength
	finishTools
	finishStopSequence
)

// reply is one whole answer, planned before its first token is sent. Tokens are
// pieces of its texts, as tokenEnd cuts them.
type reply struct {
	thinking string // reasoning, whether it is shown or not
	text     string
	calls    []toolCall
	finish   finish
	stop     string // the stop sequence that ended it

	reasoning, output int64 // tokens; output includes reasoning
}

// toolCall is a call of a tool. Its id carries no dialect's prefix.
type toolCall struct {
	id, name, arguments string
}

// maxOutput bounds the tokens of a reply, which is planned in memory.
const maxOutput = 1 << 20

// reply plans the answer of one choice. An output cap cuts it short and changes
// nothing before the cut.
func (x *exchange) reply(a *ask, choice int) *reply {
	r := a.seed(choice)
	p := &reply{}
	room := a.max
	if room < 0 {
		room = 1 << 40
	}
	length := x.orders.tokens
	switch {
	case length >= 0:
	case x.server.opts.OutputTokens > 0:
		length = x.server.opts.OutputTokens
	default:
		length = 16 + int64(r.below(33))
	}
	length = min(length, maxOutput)
	reasoning := a.reason
	if x.orders.reasoning >= 0 {
		reasoning = x.orders.reasoning
	}
	if reasoning = min(reasoning, maxOutput); reasoning > 0 {
		p.reasoning = min(reasoning, room)
		p.thinking = prose(r, reasoning, p.reasoning)
		room -= p.reasoning
		r.next()
	}
	p.output = p.reasoning
	spend := func(text string) string {
		text, n := firstTokens(text, room)
		p.output += n
		room -= n
		return text
	}
	called := a.called(x.orders.tool)
	switch {
	case len(called) > 0:
		p.finish = finishTools
		for _, t := range called {
			call := toolCall{id: r.id("", 24), name: t.name}
			full := string(appendExample(nil, t.schema, &r))
			call.arguments = spend(full)
			p.calls = append(p.calls, call)
			if len(call.arguments) < len(full) {
				p.finish = finishLength
				break
			}
		}
		return p
	case a.format.Exists() || a.object:
		full := `{"answer": "` + words[r.below(len(words))] + `"}`
		if a.format.Exists() {
			full = string(appendExample(nil, a.format, &r))
		}
		if p.text = spend(full); len(p.text) < len(full) {
			p.finish = finishLength
		}
	default:
		p.text = prose(r, length, room)
		p.output += min(length, room)
		if room < length {
			p.finish = finishLength
		}
	}
	p.obeyStops(a.stops)
	return p
}

// obeyStops ends the text before the first stop sequence in it.
func (p *reply) obeyStops(stops []string) {
	cut := len(p.text)
	for _, stop := range stops {
		if at := strings.Index(p.text[:cut], stop); stop != "" && at >= 0 {
			cut, p.stop = at, stop
		}
	}
	if p.stop != "" {
		p.text = p.text[:cut]
		p.finish = finishStopSequence
		p.output = p.reasoning + CountTokens(p.text)
	}
}

// Usage is what an exchange came to.
type Usage struct {
	Input     int64 `json:"input_tokens"`
	Cached    int64 `json:"cached_tokens"` // part of Input
	Written   int64 `json:"cache_written_tokens"`
	Output    int64 `json:"output_tokens"`
	Reasoning int64 `json:"reasoning_tokens"` // part of Output
	ToolCalls int64 `json:"tool_calls"`
	Images    int64 `json:"images"`
	AudioMS   int64 `json:"audio_ms"`
	GPUMS     int64 `json:"gpu_ms"`
}

// GPU time is a sum that a test can do: a millisecond for every 50 input tokens
// that were not cached (begun ones count), 2 for every output token.
const (
	inputTokensAGPUMilli  = 50
	gpuMillisAOutputToken = 2
)

func gpuMillis(input, cached, output int64) int64 {
	return (input-cached+inputTokensAGPUMilli-1)/inputTokensAGPUMilli + output*gpuMillisAOutputToken
}
