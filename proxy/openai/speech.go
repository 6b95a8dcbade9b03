package openai

import (
	"mime"
	"strings"
	"unicode/utf8"

	"github.com/tidwall/gjson"

	"tollgate/events"
	"tollgate/proxy"
	"tollgate/proxy/jsonbody"
)

// speech is POST /v1/audio/speech.
type speech struct{ kind }

const (
	speechModel = iota
	speechInput
	speechInstructions
	speechStreamFormat
)

var speechNames = []string{"model", "input", "instructions", "stream_format"}

// charactersPerSecond is how fast speech is.
const charactersPerSecond = 15

// Read implements proxy.Endpoint. The audio asked for is estimated from the text,
// for those who price it by its length: an answer of plain audio says nothing.
func (speech) Read(body []byte, _, model string) (*proxy.Ask, error) {
	o, err := readObject(body, speechNames)
	if err != nil {
		return nil, err
	}
	ask := &proxy.Ask{Choices: 1, UsageAsked: true}
	if ask.Model, err = o.model(speechModel, model); err != nil {
		return nil, err
	}
	input := o.found[speechInput]
	if input.Type != gjson.String {
		return nil, o.bad(speechInput, "must be the text to speak.")
	}
	format, err := o.str(speechStreamFormat)
	if err != nil {
		return nil, err
	}
	ask.AudioMillis = (int64(utf8.RuneCountInString(input.Str))*1000 + charactersPerSecond - 1) / charactersPerSecond
	if ask.Stream = format == "sse"; ask.Stream {
		ask.MaxOutputTokens = -1 // the estimate is no cap that a stream may be cut at
	} else {
		ask.Binary = true
	}
	ask.InputTokens = func(counter proxy.Counter) int64 {
		c := inputCount{counter: counter}
		c.text(input.Str)
		c.walk(o.found[speechInstructions])
		return c.total
	}
	ask.Private = &request{root: o.root, model: o.found[speechModel]}
	return ask, nil
}

// Upstream implements proxy.Endpoint.
func (speech) Upstream(body []byte, ask *proxy.Ask, change proxy.Change) ([]byte, string, error) {
	return upstream(body, ask, change, "", false)
}

// Answer implements proxy.Endpoint. Audio is not read.
func (speech) Answer(raw []byte, contentType string, _ *proxy.Ask, _ proxy.Counter) proxy.Tally {
	if isJSON(contentType) {
		b, ok := readBody(raw)
		if ok {
			b.tally.Garbage = !b.tally.Failed // speech is no JSON
		}
		return b.tally
	}
	return proxy.Tally{Content: len(raw) > 0, Complete: true}
}

// transcription is POST /v1/audio/transcriptions and /v1/audio/translations.
type transcription struct{ kind }

const (
	transcribeModel = iota
	transcribeFile
	transcribePrompt
	transcribeStream
)

var transcribeNames = []string{"model", "file", "prompt", "stream"}

// transcriptTokensPerSecond is an upper estimate of text in speech.
const transcriptTokensPerSecond = 6

// Read implements proxy.Endpoint.
func (transcription) Read(body []byte, contentType, model string) (*proxy.Ask, error) {
	if !isForm(contentType) {
		return nil, &proxy.BadRequest{Detail: "The body must be multipart/form-data with the audio as field file."}
	}
	f, err := readForm(body, contentType, transcribeNames)
	if err != nil {
		return nil, err
	}
	ask := &proxy.Ask{Choices: 1, UsageAsked: true}
	if ask.Model, err = f.model(model); err != nil {
		return nil, err
	}
	if ask.Stream, err = f.flag(transcribeStream); err != nil {
		return nil, err
	}
	if f.parts[transcribeFile].end == 0 {
		return nil, &proxy.BadRequest{Field: "file", Detail: "is missing. Send the audio as a part of that name."}
	}
	file := f.value(transcribeFile)
	name := f.parts[transcribeFile].filename
	ask.AudioMillis = audioMillis(file, int64(len(file)), name[strings.LastIndexByte(name, '.')+1:])
	// The estimate sizes the hold of an answer that comes whole. A stream grows its
	// hold, and must not be cut at an estimate.
	ask.MaxOutputTokens = min((ask.AudioMillis*transcriptTokensPerSecond+999)/1000+16, maxFigure)
	if ask.Stream {
		ask.MaxOutputTokens = -1
	}
	ask.InputTokens = func(counter proxy.Counter) int64 {
		c := inputCount{counter: counter, total: (ask.AudioMillis*audioTokensPerSecond + 999) / 1000}
		c.text(jsonbody.View(f.value(transcribePrompt)))
		return c.total
	}
	ask.Private = &request{form: f}
	return ask, nil
}

// Upstream implements proxy.Endpoint.
func (transcription) Upstream(body []byte, ask *proxy.Ask, change proxy.Change) ([]byte, string, error) {
	if f := requestOf(ask).form; f != nil {
		return f.upstream(body, change.Model)
	}
	return body, "", nil
}

// Answer implements proxy.Endpoint. An answer that is no JSON is the text
// itself, or subtitles. The audio's length is the server's where it says one:
// usage in seconds, or a verbose answer's duration.
func (transcription) Answer(raw []byte, contentType string, _ *proxy.Ask, count proxy.Counter) proxy.Tally {
	if !isJSON(contentType) {
		t := proxy.Tally{Content: len(raw) > 0, Complete: true}
		t.Delivered.OutputTokens = count.Count(raw)
		return t
	}
	b, ok := readBody(raw)
	if !ok {
		return b.tally
	}
	said := b.root.Get("text")
	if said.Type != gjson.String {
		b.tally.Garbage = !b.tally.Failed
		return b.tally
	}
	b.say(said)
	if length := b.root.Get("duration"); b.tally.Usage == nil && length.Exists() {
		if ms := millis(strings.Trim(length.Raw, `"`)); ms > 0 { // some servers write it as a string
			b.tally.Usage = proxy.Merge(nil, events.Usage{AudioMillis: ms})
		}
	}
	b.tally.Complete = !b.tally.Failed
	return b.done(count)
}

func isJSON(contentType string) bool {
	media, _, err := mime.ParseMediaType(contentType)
	return err == nil && (media == "application/json" || strings.HasSuffix(media, "+json"))
}
