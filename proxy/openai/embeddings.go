package openai

import (
	"github.com/tidwall/gjson"

	"tollgate/proxy"
)

// embeddings is POST /v1/embeddings.
type embeddings struct{ kind }

const (
	embedModel = iota
	embedInput
)

var embedNames = []string{"model", "input"}

// Read implements proxy.Endpoint. An embedding has no output tokens.
func (embeddings) Read(body []byte, _, model string) (*proxy.Ask, error) {
	o, err := readObject(body, embedNames)
	if err != nil {
		return nil, err
	}
	ask := &proxy.Ask{Choices: 1}
	if ask.Model, err = o.model(embedModel, model); err != nil {
		return nil, err
	}
	if _, err = promptsOf(o.found[embedInput], "input"); err != nil {
		return nil, err
	}
	ask.InputTokens = func(counter proxy.Counter) int64 {
		c := inputCount{counter: counter}
		c.prompts(o.found[embedInput])
		return c.total
	}
	ask.Private = &request{root: o.root, model: o.found[embedModel]}
	return ask, nil
}

// Upstream implements proxy.Endpoint.
func (embeddings) Upstream(body []byte, ask *proxy.Ask, change proxy.Change) ([]byte, string, error) {
	return upstream(body, ask, change, "", false)
}

// Answer implements proxy.Endpoint.
func (embeddings) Answer(raw []byte, _ string, _ *proxy.Ask, _ proxy.Counter) proxy.Tally {
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
		b.tally.Content = true
		return false
	})
	if u := b.tally.Usage; u != nil {
		u.OutputTokens = 0 // whatever a server calls its total
	}
	return b.tally
}
