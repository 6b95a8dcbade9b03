package openai

import (
	"strconv"

	"github.com/tidwall/gjson"

	"tollgate/proxy"
)

// chat is POST /v1/chat/completions.
type chat struct{ kind }

// What is read of a chat request. n_predict is llama.cpp's cap and best_of
// vLLM's count of answers: a request must not ask for more by another name.
const (
	chatModel = iota
	chatMessages
	chatStream
	chatStreamOptions
	chatN
	chatBestOf
	chatMaxCompletionTokens
	chatMaxTokens
	chatNPredict
	chatTools
	chatFunctions
	chatResponseFormat
)

var chatNames = []string{
	"model", "messages", "stream", "stream_options", "n", "best_of", "max_completion_tokens", "max_tokens",
	"n_predict", "tools", "functions", "response_format",
}

// maxChoices bounds n, best_of and images: what a provider allows is less.
const maxChoices = 1024

// Read implements proxy.Endpoint.
func (chat) Read(body []byte, _, model string) (*proxy.Ask, error) {
	o, err := readObject(body, chatNames)
	if err != nil {
		return nil, err
	}
	ask := &proxy.Ask{}
	if ask.Model, err = o.model(chatModel, model); err != nil {
		return nil, err
	}
	if !o.found[chatMessages].IsArray() {
		return nil, &proxy.BadRequest{Field: "messages", Detail: "must be an array of messages."}
	}
	req, err := newRequest(o, chatModel, chatStream, chatStreamOptions, ask)
	if err != nil {
		return nil, err
	}
	if ask.Choices, err = choices(o, chatN, chatBestOf); err != nil {
		return nil, err
	}
	if ask.MaxOutputTokens, err = req.outputCap(o, 1, chatMaxCompletionTokens, chatMaxTokens, chatNPredict); err != nil {
		return nil, err
	}
	ask.InputTokens = func(counter proxy.Counter) int64 {
		c := inputCount{counter: counter, total: priming}
		c.conversation(o.found[chatMessages])
		c.schema(o.found[chatTools])
		c.schema(o.found[chatFunctions])
		c.format(o.found[chatResponseFormat], "json_schema")
		return c.total
	}
	ask.Private = req
	return ask, nil
}

// Upstream implements proxy.Endpoint.
func (chat) Upstream(body []byte, ask *proxy.Ask, change proxy.Change) ([]byte, string, error) {
	return upstream(body, ask, change, "max_completion_tokens", true)
}

// choices is the larger of n and best_of: a server makes as many answers.
func choices(o *object, n, bestOf int) (int64, error) {
	asked, err := o.figure(n, 1, maxChoices, 1)
	if err != nil {
		return 0, err
	}
	best, err := o.figure(bestOf, 1, maxChoices, 1)
	return max(asked, best), err
}

// unlimited is how llama.cpp, LM Studio and Ollama write that there is no cap.
const unlimited = "-1"

// outputCap is the largest of the caps that were given by any name, or −1. What
// says that there is none is as good as not given, and is remembered.
func (r *request) outputCap(o *object, least int64, names ...int) (int64, error) {
	most := int64(-1)
	for _, name := range names {
		if o.found[name].Raw == unlimited {
			r.uncapped = append(r.uncapped, named{o.names[name], o.found[name]})
			continue
		}
		n, err := o.figure(name, least, maxFigure, -1)
		if err != nil {
			return 0, err
		}
		most = max(most, n)
	}
	return most, nil
}

// format counts the schema of a structured answer.
func (c *inputCount) format(r gjson.Result, member string) {
	if r.IsObject() && r.Get(member).Exists() {
		c.schema(r)
	}
}

// newRequest reads what endpoints that stream have in common: the model, whether
// a stream is asked for, and usage in it. options is −1 where there are no
// stream options to read.
func newRequest(o *object, model, stream, options int, ask *proxy.Ask) (req *request, err error) {
	req = &request{root: o.root, model: o.found[model]}
	if ask.Stream, err = o.flag(stream); err != nil || options < 0 {
		return req, err
	}
	req.options = o.found[options]
	if !o.given(options) {
		return req, nil
	}
	if !req.options.IsObject() {
		return nil, o.bad(options, "must be an object.")
	}
	inner, err := pick(req.options, "stream_options.", usageNames)
	if err != nil {
		return nil, err
	}
	req.include = inner.found[0]
	if ask.UsageAsked, err = inner.flag(0); err != nil {
		return nil, &proxy.BadRequest{Field: "stream_options.include_usage", Detail: "must be true or false."}
	}
	return req, nil
}

var usageNames = []string{"include_usage"}

// completions is POST /v1/completions.
type completions struct{ kind }

// What is read of a completion request.
const (
	complModel = iota
	complPrompt
	complStream
	complStreamOptions
	complN
	complBestOf
	complMaxTokens
	complMaxCompletionTokens
	complNPredict
	complSuffix
	complEcho
	complResponseFormat
)

var complNames = []string{
	"model", "prompt", "stream", "stream_options", "n", "best_of", "max_tokens", "max_completion_tokens",
	"n_predict", "suffix", "echo", "response_format",
}

// Read implements proxy.Endpoint.
func (completions) Read(body []byte, _, model string) (*proxy.Ask, error) {
	o, err := readObject(body, complNames)
	if err != nil {
		return nil, err
	}
	ask := &proxy.Ask{}
	if ask.Model, err = o.model(complModel, model); err != nil {
		return nil, err
	}
	req, err := newRequest(o, complModel, complStream, complStreamOptions, ask)
	if err != nil {
		return nil, err
	}
	if ask.Choices, err = choices(o, complN, complBestOf); err != nil {
		return nil, err
	}
	if ask.MaxOutputTokens, err = req.outputCap(o, 0, complMaxTokens, complMaxCompletionTokens, complNPredict); err != nil {
		return nil, err
	}
	echoed, err := o.flag(complEcho)
	if err != nil {
		return nil, err
	}
	prompts := int64(1)
	if o.given(complPrompt) {
		if prompts, err = promptsOf(o.found[complPrompt], "prompt"); err != nil {
			return nil, err
		}
	}
	if prompts > maxPrompts {
		return nil, &proxy.BadRequest{Field: "prompt", Detail: "holds more than " + strconv.Itoa(maxPrompts) + " prompts. Send them in several requests."}
	}
	ask.Choices *= prompts
	if echoed {
		each, _ := o.figure(complN, 1, maxChoices, 1) // choices has checked it
		req.echo = readEcho(o.found[complPrompt], each)
	}
	ask.InputTokens = func(counter proxy.Counter) int64 {
		c := inputCount{counter: counter}
		c.prompts(o.found[complPrompt])
		c.walk(o.found[complSuffix])
		c.format(o.found[complResponseFormat], "json_schema")
		return c.total
	}
	ask.Private = req
	return ask, nil
}

// maxPrompts bounds the prompts of one completion request; each has answers of
// its own.
const maxPrompts = 2048

// Upstream implements proxy.Endpoint.
func (completions) Upstream(body []byte, ask *proxy.Ask, change proxy.Change) ([]byte, string, error) {
	return upstream(body, ask, change, "max_tokens", true)
}

// promptsOf says how many inputs there are: one string, strings, tokens, or
// arrays of tokens.
func promptsOf(r gjson.Result, field string) (int64, error) {
	bad := &proxy.BadRequest{Field: field, Detail: "must be a string, an array of strings, an array of token numbers, or an array of such arrays."}
	if r.Type == gjson.String {
		return 1, nil
	}
	if !r.IsArray() {
		return 0, bad
	}
	n, kind, same := int64(0), byte(0), true
	r.ForEach(func(_, v gjson.Result) bool {
		is := v.Raw[0]
		if v.Type == gjson.Number {
			is = '0'
		}
		if n == 0 {
			kind = is
		}
		n++
		same = same && is == kind
		if is == '[' {
			v.ForEach(func(_, token gjson.Result) bool {
				same = same && token.Type == gjson.Number
				return same
			})
		}
		return same
	})
	if !same || kind != '"' && kind != '0' && kind != '[' {
		return 0, bad
	}
	if kind == '0' {
		return 1, nil
	}
	return n, nil
}

// prompts counts inputs: text by the counter, token numbers exactly.
func (c *inputCount) prompts(r gjson.Result) {
	switch {
	case r.Type == gjson.String:
		c.text(r.Str)
	case r.Type == gjson.Number:
		c.total++
	case r.IsArray():
		r.ForEach(func(_, v gjson.Result) bool {
			c.prompts(v)
			return true
		})
	}
}
