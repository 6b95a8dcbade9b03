package openai

import (
	"strconv"

	"tollgate/admission/answer"
	"tollgate/events"
	"tollgate/proxy"
)

// Finish implements proxy.Stream. At a cap, every answer that is open ends with
// finish reason "length"; the member tollgate says why. For any other reason an
// error follows. Tool calls that are being streamed end where they are.
func (s *chunks) Finish(end proxy.End) []byte {
	if s.ended {
		return nil
	}
	var out []byte
	if end.Capped() {
		begun := len(s.choices)
		for i := range s.choices {
			if !s.choices[i].finished {
				out = s.last(out, s.choices[i].index, end)
			}
		}
		// Answers that were asked for and have not begun are told of, too.
		for i := int64(0); begun < int(min(s.wanted, maxTracked)) && i < maxTracked; i++ {
			if !s.began(i) {
				out = s.last(out, i, end)
				begun++
			}
		}
	}
	if s.usageAsked {
		out = append(s.frame(out), `,"choices":[],"usage":`...)
		out = append(appendUsage(out, &end.Usage), "}\n\n"...)
	}
	if !end.Capped() {
		out = append(append(out, "data: "...), errorBody(&answer.Answer{Status: 503, Reason: end.Reason, Detail: end.Detail}, "")...)
		out = append(out, "\n\n"...)
	}
	return append(out, "data: [DONE]\n\n"...)
}

func (s *chunks) began(index int64) bool {
	for i := range s.choices {
		if s.choices[i].index == index {
			return true
		}
	}
	return false
}

// last is the chunk that ends one answer.
func (s *chunks) last(out []byte, index int64, end proxy.End) []byte {
	out = append(s.frame(out), `,"choices":[{"index":`...)
	out = strconv.AppendInt(out, index, 10)
	if s.object == "text_completion" {
		out = append(out, `,"text":""`...)
	} else {
		out = append(out, `,"delta":{}`...)
	}
	out = append(out, `,"logprobs":null,"finish_reason":"length"}],"tollgate":`...)
	return append(appendEnd(out, end), "}\n\n"...)
}

// frame begins a chunk like the stream's own.
func (s *chunks) frame(out []byte) []byte {
	out = append(out, `data: {"id":`...)
	out = append(out, or(s.id, `"chatcmpl-tollgate"`)...)
	out = append(append(out, `,"object":"`...), s.object...)
	out = append(out, `","created":`...)
	out = append(out, or(s.created, "0")...)
	out = append(out, `,"model":`...)
	if s.model == "" {
		return answer.AppendString(out, s.asked)
	}
	return append(out, s.model...)
}

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// appendEnd says why a stream was ended.
func appendEnd(out []byte, end proxy.End) []byte {
	out = answer.AppendString(append(out, `{"reason":`...), end.Reason)
	out = answer.AppendString(append(out, `,"detail":`...), end.Detail)
	return append(out, '}')
}

// appendUsage writes usage as chat and completions give it.
func appendUsage(out []byte, u *events.Usage) []byte {
	out = appendInt(out, `{"prompt_tokens":`, u.InputTokens)
	out = appendInt(out, `,"completion_tokens":`, u.OutputTokens)
	out = appendInt(out, `,"total_tokens":`, u.InputTokens+u.OutputTokens)
	out = appendInt(out, `,"prompt_tokens_details":{"cached_tokens":`, u.CachedInputTokens)
	out = appendInt(out, `},"completion_tokens_details":{"reasoning_tokens":`, u.ReasoningTokens)
	return append(out, "}}"...)
}

func appendInt(out []byte, before string, n int64) []byte {
	return strconv.AppendInt(append(out, before...), n, 10)
}
