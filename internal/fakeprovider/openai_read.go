package fakeprovider

import (
	"strings"

	"github.com/tidwall/gjson"
)

// readChat reads a request of /v1/chat/completions.
func (a *ask) readChat(root gjson.Result) *badRequest {
	var messages, n, maxOld, maxNew, stop, tools, choice, format, streamOptions gjson.Result
	a.parallel = true
	effort := ""
	root.ForEach(func(key, v gjson.Result) bool {
		switch key.Str {
		case "model":
			a.model = v.String()
		case "messages":
			messages = v
		case "stream":
			a.stream = v.Bool()
		case "stream_options":
			streamOptions = v
		case "n":
			n = v
		case "max_tokens":
			maxOld = v
		case "max_completion_tokens":
			maxNew = v
		case "stop":
			stop = v
		case "tools":
			tools = v
		case "tool_choice":
			choice = v
		case "parallel_tool_calls":
			a.parallel = flag(v, true)
		case "response_format":
			format = v
		case "reasoning_effort":
			effort = v.Str
		case "logprobs":
			a.logprobs = v.Bool()
		case "top_logprobs":
			a.top = int(min(max(v.Int(), 0), 20))
		}
		return true
	})
	if a.model == "" {
		return bad("model", "is missing: you must provide a model parameter")
	}
	if !messages.IsArray() || len(messages.Raw) < 3 {
		return bad("messages", "must be a list with at least one message")
	}
	a.usage = streamOptions.Get("include_usage").Bool()
	a.readStops(stop)
	a.reason = effortTokens(effort)
	a.tag(a.model)
	tools.ForEach(func(_, t gjson.Result) bool {
		if f := t.Get("function"); f.Exists() {
			a.addTool(f.Get("name").String(), f.Get("description").String(), f.Get("parameters"))
		}
		return true
	})
	a.mark()
	messages.ForEach(func(_, m gjson.Result) bool {
		a.chatMessage(m)
		return true
	})
	a.force = forced(choice)
	switch format.Get("type").Str {
	case "json_schema":
		a.format = format.Get("json_schema.schema")
	case "json_object":
		a.object = true
	}
	choices, wrong := limit(n, "n", 1, 128)
	if wrong != nil {
		return wrong
	}
	a.choices = int(max(1, choices))
	if a.max, wrong = limit(maxOld, "max_tokens", 1, 1<<31); wrong == nil && maxNew.Exists() {
		a.max, wrong = limit(maxNew, "max_completion_tokens", 1, 1<<31)
	}
	return wrong
}

func (a *ask) chatMessage(m gjson.Result) {
	role, content := m.Get("role").Str, m.Get("content")
	a.tag(role)
	prompt := ""
	if content.Type == gjson.String {
		prompt = content.Str
		a.text(prompt)
	} else {
		content.ForEach(func(_, part gjson.Result) bool {
			switch part.Get("type").Str {
			case "image_url":
				a.picture(part.Get("image_url.url").Str)
			case "input_audio":
				a.picture(part.Get("input_audio.data").Str)
			case "file":
				a.file(part.Get("file").Raw)
			default:
				text := part.Get("text").Str
				a.text(text)
				prompt += text
			}
			return true
		})
	}
	m.Get("tool_calls").ForEach(func(_, call gjson.Result) bool {
		a.text(call.Get("function.name").Str)
		a.text(call.Get("function.arguments").Str)
		return true
	})
	a.answered = role == "tool" || role == "function"
	if role == "user" {
		a.prompt = prompt
	}
	a.mark()
}

// forced reads OpenAI's tool_choice.
func forced(choice gjson.Result) string {
	if choice.IsObject() {
		name := choice.Get("function.name").Str
		if name == "" {
			name = choice.Get("name").Str
		}
		if name != "" {
			return "=" + name
		}
		choice = choice.Get("allowed_tools.mode")
	}
	switch choice.Str {
	case "required":
		return "any"
	case "none":
		return "none"
	}
	return ""
}

// effortTokens is how long this model reasons.
func effortTokens(effort string) int64 {
	switch strings.ToLower(effort) {
	case "low":
		return 8
	case "medium":
		return 16
	case "high":
		return 32
	case "xhigh", "max":
		return 64
	}
	return 0
}
