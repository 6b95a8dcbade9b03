package anthropic

import (
	"tollgate/events"
	"tollgate/proxy"
	"tollgate/proxy/jsonbody"
)

// usage gathers an answer's reports. They are cumulative and repeat figures
// (message_start, then each message_delta), so the largest of each figure counts,
// once.
type usage struct {
	reported bool
	// input leaves out what was written to the cache and what was read from it.
	input, creation, read int64
	output, thinking      int64
	gpuMillis             int64
}

// report takes one usage object. A report with a figure that is no count (see
// proxy.Figure) is garbage, and is as good as none.
func (u *usage) report(raw []byte) (taken bool) {
	next := *u
	w := jsonbody.Over(raw)
	for {
		key, value, ok := w.Next()
		if !ok {
			break
		}
		switch string(key) {
		case "input_tokens":
			ok = take(&next.input, value, &taken)
		case "output_tokens":
			ok = take(&next.output, value, &taken)
		case "cache_creation_input_tokens":
			ok = take(&next.creation, value, nil)
		case "cache_read_input_tokens":
			ok = take(&next.read, value, nil)
		case "output_tokens_details":
			ok = next.details(value)
		case "gpu_ms": // our extension; not worth losing the rest for
			take(&next.gpuMillis, value, nil)
		}
		if !ok {
			return false
		}
	}
	if !w.Whole() || !taken || next.input+next.creation+next.read > proxy.MaxFigure {
		return false
	}
	next.reported = true
	*u = next
	return true
}

// details says how many of the output tokens were thinking.
func (u *usage) details(raw []byte) bool {
	w := jsonbody.Over(raw)
	for {
		key, value, ok := w.Next()
		if !ok {
			return true
		}
		if string(key) == "thinking_tokens" && !take(&u.thinking, value, nil) {
			return false
		}
	}
}

// take raises *figure to the count that raw is; null says nothing.
func take(figure *int64, raw []byte, taken *bool) bool {
	if string(raw) == "null" {
		return true
	}
	n := proxy.Figure(jsonbody.View(raw))
	if n < 0 {
		return false
	}
	*figure = max(*figure, n)
	if taken != nil {
		*taken = true
	}
	return true
}

// events is the usage as events carry it.
func (u *usage) events(toolCalls int64) *events.Usage {
	return &events.Usage{
		InputTokens:       u.input + u.creation + u.read,
		CachedInputTokens: u.read,
		OutputTokens:      u.output,
		ReasoningTokens:   min(u.thinking, u.output),
		ToolCalls:         toolCalls,
		GPUMillis:         u.gpuMillis,
	}
}
