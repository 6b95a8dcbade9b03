package openai

import (
	"strings"

	"github.com/tidwall/gjson"

	"tollgate/proxy"
	"tollgate/proxy/jsonbody"
)

// Tokens of a conversation's frame, as OpenAI publishes them for the encodings
// cl100k and o200k ("How to count tokens with tiktoken", OpenAI cookbook).
const (
	perMessage = 3
	perName    = 1
	priming    = 3 // each answer begins with the assistant's role
)

// shortValue is how long an id or a word of the dialect's own may be and count
// nothing.
const shortValue = 80

// inputCount counts what a model reads of a request. What it does not know counts
// as the JSON that it is, so that nothing goes upstream for free.
type inputCount struct {
	counter proxy.Counter
	total   int64
	depth   int // of the value being read
}

// maxRead is how deep in a message contents are told apart. The dialect's own
// are shallower; what is deeper counts as JSON, since each level of reading goes
// over all that is below it.
const maxRead = 8

func (c *inputCount) text(s string) {
	if s != "" {
		c.total += c.counter.Count(jsonbody.Bytes(s))
	}
}

// schema counts tools and schemas. How a server writes them for the model is not
// published; their JSON is an upper estimate.
func (c *inputCount) schema(r gjson.Result) {
	if r.Exists() && r.Type != gjson.Null {
		c.text(r.Raw)
	}
}

// conversation counts messages: an array of them, or one string.
func (c *inputCount) conversation(r gjson.Result) {
	if r.Type == gjson.String {
		c.total += perMessage + 1
		c.text(r.Str)
		return
	}
	r.ForEach(func(_, m gjson.Result) bool {
		c.total += perMessage
		c.part(m)
		return true
	})
}

// part counts a message, an item of a conversation or a part of one, by its
// members rather than by the type that it gives itself: a member that a server
// might read counts.
func (c *inputCount) part(r gjson.Result) {
	if !r.IsObject() {
		c.walk(r)
		return
	}
	detail := ""
	r.ForEach(func(key, v gjson.Result) bool {
		switch key.Str {
		case "role":
			c.word(v)
		case "type", "id", "status", "call_id", "tool_call_id", "format", "filename", "phase", "index":
			c.short(v)
		case "detail":
			detail = v.Str
			c.short(v)
		case "name":
			c.total += perName
			c.walk(v)
		case "content", "output", "summary", "tool_calls", "function_call", "function", "custom":
			c.walk(v)
		case "image_url":
			if detail == "" {
				detail = r.Get("detail").Str
			}
			c.image(v, detail)
		case "input_audio":
			c.audio(v)
		case "file", "file_data", "file_id", "file_url":
			c.file(key.Str, v)
		case "encrypted_content": // reasoning of an earlier turn, about 4 bytes of text a token
			c.total += int64(len(v.Raw)) * 3 / 16
		default:
			c.walk(v)
		}
		return true
	})
}

// walk counts whatever stands where content is expected.
func (c *inputCount) walk(r gjson.Result) {
	if c.depth >= maxRead {
		c.schema(r)
		return
	}
	c.depth++
	defer func() { c.depth-- }()
	switch {
	case r.Type == gjson.String:
		c.text(r.Str)
	case r.IsArray():
		r.ForEach(func(_, v gjson.Result) bool {
			c.part(v)
			return true
		})
	case r.IsObject():
		if meant(r) {
			c.part(r)
			return
		}
		c.text(r.Raw)
	case r.Type != gjson.Null:
		c.total++
	}
}

// meant says that an object has a member with a meaning here. Others are counted
// as JSON.
func meant(r gjson.Result) (is bool) {
	r.ForEach(func(key, _ gjson.Result) bool {
		switch key.Str {
		case "text", "arguments", "content", "image_url", "file_id", "id":
			is = true
		}
		return !is
	})
	return is
}

// word is a role, which is one token.
func (c *inputCount) word(r gjson.Result) {
	switch r.Str {
	case "system", "developer", "user", "assistant", "tool", "function":
		if r.Type == gjson.String && !strings.Contains(r.Raw, "\\") {
			c.total++
			return
		}
	}
	c.short(r)
}

// short is an id or a setting: the model does not read it. A long one is something
// else.
func (c *inputCount) short(r gjson.Result) {
	if len(r.Raw) > shortValue {
		c.text(r.Raw)
	}
}

func (c *inputCount) image(r gjson.Result, detail string) {
	address := r.Str
	if r.IsObject() {
		address = r.Get("url").Str
		if d := r.Get("detail"); d.Exists() {
			detail = d.Str
		}
		r.ForEach(func(key, v gjson.Result) bool {
			if key.Str != "url" {
				c.short(v)
			}
			return true
		})
	}
	c.total += imageTokens(address, detail)
}

// Audio in a conversation is 10 tokens a second, a file's page about 1,700.
const (
	audioTokensPerSecond = 10
	pageTokens           = 1700
	pageBytes            = 50 << 10
	unknownPages         = 8 // of a file that is not in the request
)

func (c *inputCount) audio(r gjson.Result) {
	data, format := r.Str, ""
	if r.IsObject() {
		data, format = r.Get("data").Str, r.Get("format").Str
	}
	ms := audioMillisBase64(data, format)
	c.total += (ms*audioTokensPerSecond + 999) / 1000
}

// file estimates a file: text at four bytes a token, anything else by pages.
func (c *inputCount) file(key string, r gjson.Result) {
	if r.IsObject() { // {"file": {"file_data": …}}
		r.ForEach(func(key, v gjson.Result) bool {
			switch key.Str {
			case "file_data", "file_id", "file_url":
				c.file(key.Str, v)
			default:
				c.short(v)
			}
			return true
		})
		return
	}
	if key != "file_data" {
		c.total += unknownPages * pageTokens
		c.short(r)
		return
	}
	header, data, found := strings.Cut(r.Str, ",")
	if !found {
		header, data = "", r.Str
	}
	size := decodedSize(data)
	if strings.HasPrefix(header, "data:text/") {
		c.total += size / 4
		return
	}
	c.total += (size + pageBytes - 1) / pageBytes * pageTokens
}
