package anthropic

import (
	"github.com/tidwall/gjson"

	"tollgate/proxy"
	"tollgate/proxy/jsonbody"
)

// What stands around the text is not published but for the tools; these are
// upper estimates, used where no tokenizer is exact. (An exact one is the
// operator's, of a server whose input is its text.)
const (
	messageOverhead = 4
	// toolsOverhead is the system prompt that comes with tools
	// (docs: tool use, pricing; 346 for tool_choice auto on the models of 2025).
	toolsOverhead = 346
)

// longRaw is from which length on JSON that is not understood is estimated at
// four bytes a token: tokenizing it, which may be a file, would take long.
const longRaw = 64 << 10

// inputTokens counts system, messages and tools.
func (r *request) inputTokens(count proxy.Counter) int64 {
	in := input{count: count}
	in.content(r.found[atSystem])
	r.found[atMessages].ForEach(func(_, message gjson.Result) bool {
		in.messages++
		if !message.IsObject() {
			in.raw(message.Raw)
			return true
		}
		message.ForEach(func(key, value gjson.Result) bool {
			if key.Str == "content" {
				in.content(value)
			}
			return true
		})
		return true
	})
	if tools := r.found[atTools]; tools.Type == gjson.JSON && len(tools.Raw) > 2 {
		in.raw(tools.Raw)
		if !count.Exact() {
			in.tokens += toolsOverhead
		}
	}
	if !count.Exact() {
		in.tokens += messageOverhead * in.messages
	}
	return in.tokens
}

// input adds up tokens.
type input struct {
	count    proxy.Counter
	tokens   int64
	messages int64
	depth    int // of the content being read
}

// maxRead is how deep content in content is told apart. The dialect's own goes
// down to four: a document in the result of a tool. What is deeper counts as JSON,
// since each level of reading goes over all that is below it.
const maxRead = 8

func (in *input) text(s string) {
	if s != "" {
		in.tokens += in.count.Count(jsonbody.Bytes(s))
	}
}

func (in *input) raw(json string) {
	if len(json) > longRaw {
		in.tokens += int64(len(json) / 4)
		return
	}
	in.text(json)
}

// content is a string or an array of blocks.
func (in *input) content(r gjson.Result) {
	in.depth++
	defer func() { in.depth-- }()
	switch {
	case r.Type == gjson.String:
		in.text(r.Str)
	case in.depth > maxRead:
		in.raw(r.Raw)
	case r.IsArray():
		r.ForEach(func(_, b gjson.Result) bool {
			in.block(b)
			return true
		})
	case r.IsObject():
		in.block(r)
	}
}

// block is one block of content.
func (in *input) block(r gjson.Result) {
	if !r.IsObject() {
		in.raw(r.Raw)
		return
	}
	var b struct{ kind, text, thinking, data, name, title, context, input, content, source gjson.Result }
	r.ForEach(func(key, value gjson.Result) bool {
		switch key.Str {
		case "type":
			b.kind = value
		case "text":
			b.text = value
		case "thinking":
			b.thinking = value
		case "data":
			b.data = value
		case "name":
			b.name = value
		case "title":
			b.title = value
		case "context":
			b.context = value
		case "input":
			b.input = value
		case "content":
			b.content = value
		case "source":
			b.source = value
		}
		return true
	})
	switch b.kind.Str {
	case "text":
		in.text(b.text.Str)
	case "thinking":
		in.text(b.thinking.Str)
	case "redacted_thinking":
		in.tokens += redactedTokens(len(b.data.Str))
	case "tool_use", "server_tool_use", "mcp_tool_use":
		in.text(b.name.Str)
		in.raw(b.input.Raw)
	case "tool_result", "mcp_tool_result":
		in.content(b.content)
	case "search_result":
		in.text(b.title.Str)
		in.text(b.source.Str)
		in.content(b.content)
	case "image":
		in.tokens += imageTokens(b.source)
	case "document":
		in.text(b.title.Str)
		in.text(b.context.Str)
		in.document(b.source)
	default:
		in.raw(r.Raw)
	}
}

// document is text, blocks, or pages.
func (in *input) document(source gjson.Result) {
	switch source.Get("type").Str {
	case "text":
		in.text(source.Get("data").Str)
	case "content":
		in.content(source.Get("content"))
	default:
		in.tokens += documentTokens(len(source.Get("data").Str))
	}
}

// redactedTokens estimates thinking that came encrypted: four characters of
// base64 are three bytes, and a token is about four bytes.
func redactedTokens(base64 int) int64 { return int64(base64+5) / 6 }
