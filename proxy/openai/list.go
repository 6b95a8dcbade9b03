package openai

import (
	"tollgate/proxy"
)

// list is GET /v1/models and /v1/models/{id}, answered from the table.
type list struct{ kind }

// Read implements proxy.Endpoint.
func (list) Read(_ []byte, _, model string) (*proxy.Ask, error) {
	return &proxy.Ask{Model: model, Choices: 1, InputTokens: nothing}, nil
}

// Upstream implements proxy.Endpoint.
func (list) Upstream(body []byte, _ *proxy.Ask, _ proxy.Change) ([]byte, string, error) {
	return body, jsonType, nil
}

// Answer implements proxy.Endpoint.
func (list) Answer([]byte, string, *proxy.Ask, proxy.Counter) proxy.Tally { return proxy.Tally{} }

// Stream implements proxy.Endpoint.
func (list) Stream(ask *proxy.Ask, count proxy.Counter) proxy.Stream {
	return newTyped(ask, count)
}

func nothing(proxy.Counter) int64 { return 0 }
