package openai

import (
	"github.com/tidwall/gjson"

	"tollgate/proxy"
	"tollgate/proxy/jsonbody"
)

// images is POST /v1/images/generations, as JSON, and /v1/images/edits, as a
// form.
type images struct{ kind }

const (
	imageModel = iota
	imagePrompt
	imageN
	imageSizeAt
	imageQuality
	imageStream
)

var imageNames = []string{"model", "prompt", "n", "size", "quality", "stream"}

// Read implements proxy.Endpoint.
func (e images) Read(body []byte, contentType, model string) (*proxy.Ask, error) {
	if isForm(contentType) {
		return e.readForm(body, contentType, model)
	}
	o, err := readObject(body, imageNames)
	if err != nil {
		return nil, err
	}
	ask := &proxy.Ask{}
	if ask.Model, err = o.model(imageModel, model); err != nil {
		return nil, err
	}
	if !o.given(imagePrompt) || o.found[imagePrompt].Type != gjson.String {
		return nil, o.bad(imagePrompt, "must be a string that says what the image shows.")
	}
	req, err := newRequest(o, imageModel, imageStream, -1, ask)
	if err != nil {
		return nil, err
	}
	var settings imageSettings
	if settings.n, err = o.figure(imageN, 1, maxChoices, 1); err != nil {
		return nil, err
	}
	if settings.size, err = o.str(imageSizeAt); err != nil {
		return nil, err
	}
	if settings.quality, err = o.str(imageQuality); err != nil {
		return nil, err
	}
	settings.ask(ask)
	ask.InputTokens = func(counter proxy.Counter) int64 {
		return counter.Count(jsonbody.Bytes(o.found[imagePrompt].Str))
	}
	req.imageTokens = settings.tokens()
	ask.Private = req
	return ask, nil
}

// imageSettings decide what generated images may use.
type imageSettings struct {
	n             int64
	size, quality string
}

// tokens is what one image may use.
func (s *imageSettings) tokens() int64 { return generatedTokens(s.size, s.quality) }

func (s *imageSettings) ask(ask *proxy.Ask) {
	ask.Images, ask.Choices, ask.UsageAsked = s.n, s.n, true
	ask.MaxOutputTokens = s.tokens()
	if ask.Stream {
		// The table sizes a hold. A stream grows its hold, and must not be cut at what
		// a table says of another model.
		ask.MaxOutputTokens = -1
	}
}

func (images) readForm(body []byte, contentType, model string) (*proxy.Ask, error) {
	f, err := readForm(body, contentType, imageNames)
	if err != nil {
		return nil, err
	}
	ask := &proxy.Ask{}
	if ask.Model, err = f.model(model); err != nil {
		return nil, err
	}
	var settings imageSettings
	if settings.n, err = f.figure(imageN, 1, maxChoices, 1); err != nil {
		return nil, err
	}
	if ask.Stream, err = f.flag(imageStream); err != nil {
		return nil, err
	}
	settings.size, settings.quality = f.str(imageSizeAt), f.str(imageQuality)
	settings.ask(ask)
	pictures := f.files
	ask.InputTokens = func(counter proxy.Counter) int64 {
		return counter.Count(f.value(imagePrompt)) + pictures*unknownImage
	}
	ask.Private = &request{form: f, imageTokens: settings.tokens()}
	return ask, nil
}

// Upstream implements proxy.Endpoint.
func (images) Upstream(body []byte, ask *proxy.Ask, change proxy.Change) ([]byte, string, error) {
	if f := requestOf(ask).form; f != nil {
		return f.upstream(body, change.Model)
	}
	return upstream(body, ask, change, "", false)
}

// Answer implements proxy.Endpoint.
func (images) Answer(raw []byte, _ string, ask *proxy.Ask, _ proxy.Counter) proxy.Tally {
	b, ok := readBody(raw)
	if !ok {
		return b.tally
	}
	data := b.root.Get("data")
	if !data.IsArray() {
		b.tally.Garbage = !b.tally.Failed
		return b.tally
	}
	b.tally.Complete = !b.tally.Failed
	data.ForEach(func(_, _ gjson.Result) bool {
		b.tally.Delivered.Images++
		b.tally.Content = true
		return true
	})
	b.tally.Delivered.OutputTokens = drawn(&b.tally, requestOf(ask).imageTokens)
	return b.tally
}

// drawn are the tokens of the images that were delivered: 0 unless the server
// counts its input by tokens, and says none of its images. One that says no tokens
// at all is paid by the image.
func drawn(t *proxy.Tally, each int64) int64 {
	if u := t.Usage; u == nil || u.InputTokens == 0 || u.OutputTokens > 0 {
		return 0
	}
	return t.Delivered.Images * each
}
