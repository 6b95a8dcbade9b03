package openai

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"tollgate/proxy"
	"tollgate/proxy/sse"
)

// A client that did not ask for usage does not see that there is none yet.
func TestNullUsageIsBlankedOut(t *testing.T) {
	t.Parallel()
	const choices = `"choices":[{"index":0,"delta":{"content":"a,\"usage\":null"}}]`
	for name, c := range map[string]struct {
		chunk string
		asked bool
		want  string
	}{
		"last":      {`{` + choices + `,"usage":null}`, false, `{` + choices + `}`},
		"first":     {`{"usage":null,` + choices + `}`, false, `{` + choices + `}`},
		"between":   {`{"id":"x" , "usage" : null , ` + choices + `}`, false, `{"id":"x",` + choices + `}`},
		"asked for": {`{` + choices + `,"usage":null}`, true, `{` + choices + `,"usage":null}`},
		"figures":   {`{` + choices + `,"usage":{"prompt_tokens":1}}`, false, `{` + choices + `,"usage":{"prompt_tokens":1}}`},
	} {
		raw := []byte("data: " + c.chunk + "\n\n")
		follow := newChunks(&proxy.Ask{UsageAsked: c.asked, Choices: 1, Private: &request{}}, nil, "chat.completion.chunk")
		event := sse.Event{Raw: raw, Data: raw[6 : len(raw)-2], HasData: true}
		if got := follow.Event(event); got != proxy.Forward {
			t.Errorf("%s: not forwarded", name)
		}
		var got, want any
		if err := json.Unmarshal(raw[6:], &got); err != nil {
			t.Errorf("%s: %v: %s", name, err, raw)
		}
		if err := json.Unmarshal([]byte(c.want), &want); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}
