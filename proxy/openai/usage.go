package openai

import (
	"strings"

	"tollgate/events"
	"tollgate/proxy"
	"tollgate/proxy/jsonbody"
)

// readUsage reads the usage object of any endpoint: prompt_tokens and
// completion_tokens with their details, or input_tokens and output_tokens with
// theirs, or seconds of audio; and gpu_ms, which servers of one's own add. It is
// false for an object without figures, and for one with a figure that cannot be
// believed: then the others are not to be trusted either.
//
// Where the total shows that reasoning is counted beside the completion, as some
// servers do, it is added: output tokens hold the reasoning here.
func readUsage(raw []byte) (u events.Usage, ok bool) {
	r := usageReader{total: -1}
	r.object(raw)
	u = r.usage
	if !r.said || r.bad {
		return events.Usage{}, false
	}
	if u.ReasoningTokens > 0 && r.total == u.InputTokens+u.OutputTokens+u.ReasoningTokens {
		u.OutputTokens += u.ReasoningTokens
	}
	return u, true
}

type usageReader struct {
	usage     events.Usage
	total     int64
	said, bad bool
	details   bool // what is read is an object in the usage, and has none in it
}

func (r *usageReader) object(raw []byte) {
	w := jsonbody.Over(raw)
	for {
		key, v, ok := w.Next()
		if !ok {
			return
		}
		switch string(key) {
		case "prompt_tokens", "input_tokens":
			r.said = r.figure(v, &r.usage.InputTokens) || r.said
		case "completion_tokens", "output_tokens":
			r.said = r.figure(v, &r.usage.OutputTokens) || r.said
		case "total_tokens":
			r.figure(v, &r.total)
		case "prompt_cache_hit_tokens", "cached_tokens":
			r.figure(v, &r.usage.CachedInputTokens)
		case "reasoning_tokens":
			r.figure(v, &r.usage.ReasoningTokens)
		case "gpu_ms":
			r.said = r.figure(v, &r.usage.GPUMillis) || r.said
		case "seconds":
			ms := millis(jsonbody.View(v))
			r.bad = r.bad || ms < 0
			r.said, r.usage.AudioMillis = true, ms
		case "prompt_tokens_details", "input_tokens_details", "completion_tokens_details", "output_tokens_details":
			if r.details {
				continue // each level would be gone over once more for each above it
			}
			said := r.said
			r.details = true
			r.object(v)
			r.details, r.said = false, said
		}
	}
}

// figure reads one figure; null is none.
func (r *usageReader) figure(raw []byte, to *int64) bool {
	if string(raw) == "null" {
		return false
	}
	n := proxy.Figure(jsonbody.View(raw))
	r.bad = r.bad || n < 0
	*to = max(*to, n)
	return true
}

// silent says that nothing is said of the output: there is no report, or one of
// the input alone, or of zeros. A report of the length of audio alone needs no
// tokens.
func silent(u *events.Usage) bool {
	return u == nil || u.OutputTokens == 0 && (u.InputTokens > 0 || u.AudioMillis == 0)
}

// millis reads seconds as a decimal number, rounded up to milliseconds; −1 is no
// length of audio.
func millis(raw string) int64 {
	whole, part, point := strings.Cut(raw, ".")
	ms := proxy.Figure(whole)
	if ms < 0 || ms > proxy.MaxFigure/1000 || point && part == "" {
		return -1
	}
	ms *= 1000
	more, unit := false, int64(100)
	for _, c := range []byte(part) {
		if c < '0' || c > '9' {
			return -1
		}
		ms += int64(c-'0') * unit
		more = more || unit == 0 && c != '0'
		unit /= 10
	}
	if more {
		ms++
	}
	return ms
}
