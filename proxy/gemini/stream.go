package gemini

import (
	"strconv"

	"tollgate/admission/answer"
	"tollgate/proxy"
	"tollgate/proxy/sse"
)

// follower follows a stream. Each event is a response of its own, with the next
// pieces of each candidate; the stream ends without a mark.
type follower struct {
	reader
	pieces int64 // bytes of an event that is still coming
}

func (e *endpoint) Stream(_ *proxy.Ask, count proxy.Counter) proxy.Stream {
	return &follower{reader: newReader(count)}
}

// Event never hides an event: usage is part of every stream in this dialect.
func (f *follower) Event(ev sse.Event) proxy.Action {
	if ev.Cut {
		f.pieces += int64(len(ev.Raw))
		if ev.Lost {
			f.unread += f.pieces
			f.pieces = 0
			f.delivered()
		}
		return proxy.Forward
	}
	f.pieces = 0
	if len(ev.Data) > 0 && !f.read(ev.Data) {
		f.tally.Garbage = true
	}
	return proxy.Forward
}

// Tally takes what came of an event that is still coming for content.
func (f *follower) Tally(exact bool) proxy.Tally {
	t := f.result(exact)
	if f.pieces > 0 {
		t.Content, t.OutputUnsaid = true, t.Usage != nil
		t.Delivered.OutputTokens += (f.pieces + 3) / 4
	}
	return t
}

// Finish ends every candidate that is open as one that reached its cap, where a
// cap or a quota cut the stream; anything else is an error.
func (f *follower) Finish(end proxy.End) []byte {
	switch {
	case f.tally.Failed, f.result(false).Complete:
		return nil
	case !end.Capped():
		a := &answer.Answer{Status: 500, Reason: end.Reason, Detail: end.Detail}
		if end.Reason == proxy.EndShutdown {
			a.Status = 503
		}
		return errorEvent(a, "")
	}
	open := f.seen &^ f.finished
	if f.seen == 0 {
		open = 1
	}
	out := []byte(`data: {"candidates":[`)
	for index, first := 0, true; index < maxIndex; index++ {
		if open>>index&1 == 0 {
			continue
		}
		if !first {
			out = append(out, ',')
		}
		first = false
		out = append(out, `{"content":{"parts":[{"text":""}],"role":"model"},"finishReason":"MAX_TOKENS","index":`...)
		out = append(strconv.AppendInt(out, int64(index), 10), '}')
	}
	u := end.Usage
	out = strconv.AppendInt(append(out, `],"usageMetadata":{"promptTokenCount":`...), u.InputTokens, 10)
	out = strconv.AppendInt(append(out, `,"candidatesTokenCount":`...), max(u.OutputTokens-u.ReasoningTokens, 0), 10)
	if u.ReasoningTokens > 0 {
		out = strconv.AppendInt(append(out, `,"thoughtsTokenCount":`...), u.ReasoningTokens, 10)
	}
	if u.CachedInputTokens > 0 {
		out = strconv.AppendInt(append(out, `,"cachedContentTokenCount":`...), u.CachedInputTokens, 10)
	}
	out = strconv.AppendInt(append(out, `,"totalTokenCount":`...), u.InputTokens+u.OutputTokens, 10)
	return append(out, "}}\n\n"...)
}
