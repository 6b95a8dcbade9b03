package openai

import (
	"bytes"
	"strings"

	"tollgate/admission/answer"
	"tollgate/events"
	"tollgate/proxy"
	"tollgate/proxy/jsonbody"
	"tollgate/proxy/sse"
)

// typed follows a stream whose events say their type: responses, images, speech,
// transcriptions. Text is in the events whose type ends in ".delta"; those that
// end in ".done" repeat it.
type typed struct {
	words, thought proxy.TextTally
	usage          *events.Usage
	tally          proxy.Tally
	speech         int64 // base64 bytes
	pieces         int64 // bytes of an event that has not ended
	images         int64 // wanted
	imageTokens    int64 // of each
	sequence       int64 // of the last event that has one
}

// Stream implements proxy.Endpoint.
func (images) Stream(ask *proxy.Ask, count proxy.Counter) proxy.Stream { return newTyped(ask, count) }

// Stream implements proxy.Endpoint.
func (speech) Stream(ask *proxy.Ask, count proxy.Counter) proxy.Stream { return newTyped(ask, count) }

// Stream implements proxy.Endpoint.
func (transcription) Stream(ask *proxy.Ask, count proxy.Counter) proxy.Stream {
	return newTyped(ask, count)
}

// Stream implements proxy.Endpoint. Embeddings are not streamed; what comes as
// one is read as far as it can be.
func (embeddings) Stream(ask *proxy.Ask, count proxy.Counter) proxy.Stream {
	return newTyped(ask, count)
}

func newTyped(ask *proxy.Ask, count proxy.Counter) *typed {
	return &typed{words: proxy.NewTextTally(count), thought: proxy.NewTextTally(count), images: max(ask.Images, 1), imageTokens: requestOf(ask).imageTokens, sequence: -1}
}

// event is what is read of an event's data.
type event struct {
	kind  string // of the event's own bytes
	delta []byte
	// What else is looked at, of responses.
	response, item, itemID   []byte
	output, content, summary []byte // indexes
	audio, image, usage, err []byte
}

// Event implements proxy.Stream.
func (s *typed) Event(ev sse.Event) proxy.Action {
	var e event
	if s.read(ev, &e) {
		s.follow(&e)
	}
	return proxy.Forward
}

// read reads an event's members; false where there is nothing to follow.
func (s *typed) read(ev sse.Event, e *event) bool {
	switch {
	case ev.Lost: // megabytes in one event are images or speech
		s.speech += s.pieces + int64(len(ev.Raw))
		s.pieces, s.tally.Content = 0, true
		return false
	case ev.Cut:
		s.pieces += int64(len(ev.Raw))
		return false
	}
	s.pieces = 0
	data := bytes.TrimSpace(ev.Data)
	if len(data) == 0 || string(data) == "[DONE]" {
		return false
	}
	w := jsonbody.Over(data)
	for {
		key, v, ok := w.Next()
		if !ok {
			break
		}
		switch string(key) {
		case "type":
			e.kind = jsonbody.View(text(v))
		case "delta":
			e.delta = v
		case "response":
			e.response = v
		case "item":
			e.item = v
		case "item_id":
			e.itemID = v
		case "output_index":
			e.output = v
		case "content_index":
			e.content = v
		case "summary_index":
			e.summary = v
		case "audio":
			e.audio = v
		case "b64_json", "partial_image_b64":
			e.image = v
		case "usage":
			e.usage = v
		case "error":
			e.err = v
		case "sequence_number":
			s.sequence = max(s.sequence, number(v))
		}
	}
	if !w.Whole() || data[0] != '{' {
		s.tally.Garbage = true
		return false
	}
	if e.kind == "" {
		e.kind = jsonbody.View(ev.Name)
	}
	if e.kind == "" && e.err == nil {
		s.tally.Garbage = true
		return false
	}
	return true
}

// follow takes an event of any of these streams.
func (s *typed) follow(e *event) {
	if e.err != nil && string(e.err) != "null" || e.kind == "error" {
		s.tally.Failed = true
	}
	s.report(e.usage)
	switch {
	case len(text(e.audio)) > 0:
		s.speech += int64(len(e.audio) - 2)
		s.tally.Content = true
	case len(text(e.image)) > 0:
		s.tally.Content = true
	case strings.HasSuffix(e.kind, ".delta"):
		s.add(e)
	}
	switch e.kind {
	case "image_generation.completed", "image_edit.completed":
		s.tally.Delivered.Images++
		s.tally.Complete = s.tally.Delivered.Images >= s.images
	case "speech.audio.done", "transcript.text.done":
		s.tally.Complete = true
	}
}

func (s *typed) add(e *event) {
	if len(text(e.delta)) == 0 {
		return
	}
	s.tally.Content = true
	switch {
	case strings.HasPrefix(e.kind, "response.reasoning"):
		s.thought.AddJSONString(e.delta)
	case e.kind == "response.audio.delta":
		s.speech += int64(len(e.delta) - 2)
	default:
		s.words.AddJSONString(e.delta)
	}
}

func (s *typed) report(raw []byte) {
	if u, ok := readUsage(raw); ok {
		s.usage = proxy.Merge(s.usage, u)
	}
}

// Tally implements proxy.Stream. Its usage is valid until the next event.
func (s *typed) Tally(exact bool) proxy.Tally {
	t := s.tally
	t.Usage = s.usage
	t.Delivered.ReasoningTokens = counted(&s.thought, exact)
	t.Delivered.OutputTokens = t.Delivered.ReasoningTokens + counted(&s.words, exact) + spokenTokens(s.speech) + drawn(&t, s.imageTokens)
	return t
}

// Finish implements proxy.Stream. These streams have no end for an answer that
// is cut short, so it is an error.
func (s *typed) Finish(end proxy.End) []byte {
	return errorEvent(endAnswer(end), "", s.sequence+1)
}

// endAnswer tells an end as an error.
func endAnswer(end proxy.End) *answer.Answer {
	a := &answer.Answer{Status: 503, Reason: end.Reason, Detail: end.Detail}
	if end.Capped() {
		a.Status = 429
	}
	return a
}
