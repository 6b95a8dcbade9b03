package openai

import (
	"strings"

	"github.com/tidwall/gjson"

	"tollgate/proxy"
	"tollgate/proxy/jsonbody"
)

// echo is a completion request's wish that each answer begins with its prompt.
// Not every server heeds it, so what an answer begins with is only taken for the
// prompt where it is the prompt, whole. Prompts of token numbers cannot be told in
// an answer, and are counted as a part of it.
type echo struct {
	prompts []string // "" where it is no text
	each    int64    // answers to each
}

func readEcho(prompt gjson.Result, each int64) *echo {
	e := &echo{each: each}
	if !prompt.IsArray() {
		e.prompts = []string{prompt.Str}
		return e
	}
	prompt.ForEach(func(_, v gjson.Result) bool {
		e.prompts = append(e.prompts, v.Str)
		return true
	})
	return e
}

// of is the prompt that the answer of this index is to; answers come in the order
// of their prompts.
func (e *echo) of(index int64) string {
	if e == nil || index/e.each >= int64(len(e.prompts)) {
		return ""
	}
	return e.prompts[index/e.each]
}

// sayAfter takes an answer's text without the prompt that it may begin with.
func (b *whole) sayAfter(prompt string, r gjson.Result) {
	rest, found := strings.CutPrefix(r.Str, prompt)
	if prompt == "" || !found || r.Type != gjson.String {
		b.say(r)
		return
	}
	b.tally.Content = true
	b.text = append(b.text, rest)
}

// sayEcho takes a piece of an answer that has been its prompt's beginning so far.
// All of it is counted, and the count begins anew where the prompt was whole.
func (s *chunks) sayEcho(c *choice, v []byte) {
	if len(v) <= 2 || v[0] != '"' {
		return
	}
	s.delivered()
	piece := gjson.Parse(jsonbody.View(v)).Str
	if more, whole := strings.CutPrefix(piece, c.prompt); whole {
		c.prompt = ""
		c.text = proxy.NewTextTally(s.counter)
		c.text.Add(jsonbody.Bytes(more))
		return
	}
	c.text.AddJSONString(v)
	var same bool
	if c.prompt, same = strings.CutPrefix(c.prompt, piece); !same {
		c.prompt = ""
	}
}
