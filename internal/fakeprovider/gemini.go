package fakeprovider

import (
	"net/http"

	"github.com/tidwall/gjson"
)

var gemini = &dialect{
	name:      "gemini",
	requestID: "X-Request-Id",
	errorBody: func(b []byte, status int, detail *badRequest, _ string) []byte {
		b = appendInt(b, `{"error":{"code":`, int64(status))
		b = appendText(b, `,"message":`, detail.message())
		return append(append(append(b, `,"status":"`...), geminiStatus(status)...), `"}}`...)
	},
	errorEvent: func(int64) (string, []byte) {
		return "", []byte(`{"error":{"code":503,"message":"The model is overloaded.","status":"UNAVAILABLE"}}`)
	},
}

func geminiStatus(status int) string {
	switch status {
	case http.StatusBadRequest:
		return "INVALID_ARGUMENT"
	case http.StatusUnauthorized:
		return "UNAUTHENTICATED"
	case http.StatusForbidden:
		return "PERMISSION_DENIED"
	case http.StatusNotFound:
		return "NOT_FOUND"
	case http.StatusTooManyRequests:
		return "RESOURCE_EXHAUSTED"
	case http.StatusServiceUnavailable:
		return "UNAVAILABLE"
	case http.StatusGatewayTimeout:
		return "DEADLINE_EXCEEDED"
	}
	return "INTERNAL"
}

// readGemini reads a request of :generateContent.
func (a *ask) readGemini(root gjson.Result) *badRequest {
	if a.model == "" {
		return bad("model", "is missing in the path")
	}
	contents := root.Get("contents")
	if !contents.IsArray() || len(contents.Raw) < 3 {
		return bad("contents", "contents is not specified")
	}
	a.choices, a.parallel = 1, true
	a.tag(a.model)
	root.Get("tools").ForEach(func(_, t gjson.Result) bool {
		t.Get("functionDeclarations").ForEach(func(_, f gjson.Result) bool {
			schema := f.Get("parameters")
			if !schema.Exists() {
				schema = f.Get("parametersJsonSchema")
			}
			a.addTool(f.Get("name").Str, f.Get("description").Str, schema)
			return true
		})
		return true
	})
	a.tag("system")
	a.geminiParts(root.Get("systemInstruction.parts"))
	a.mark()
	contents.ForEach(func(_, c gjson.Result) bool {
		role := c.Get("role").Str
		a.tag(role)
		prompt, result := a.geminiParts(c.Get("parts"))
		a.answered = result
		if (role == "user" || role == "") && !result {
			a.prompt = prompt
		}
		a.mark()
		return true
	})
	calling := root.Get("toolConfig.functionCallingConfig")
	switch calling.Get("mode").Str {
	case "ANY":
		a.force = "any"
		if names := calling.Get("allowedFunctionNames").Array(); len(names) == 1 {
			a.force = "=" + names[0].Str
		}
	case "NONE":
		a.force = "none"
	}
	config := root.Get("generationConfig")
	a.readStops(config.Get("stopSequences"))
	if a.format = config.Get("responseJsonSchema"); !a.format.Exists() {
		a.format = config.Get("responseSchema")
	}
	a.object = config.Get("responseMimeType").Str == "application/json"
	a.reason = min(16, max(0, config.Get("thinkingConfig.thinkingBudget").Int()))
	n, wrong := limit(config.Get("candidateCount"), "candidateCount", 1, 8)
	if wrong != nil {
		return wrong
	}
	a.choices = int(max(1, n))
	a.max, wrong = limit(config.Get("maxOutputTokens"), "maxOutputTokens", 1, 1<<31)
	return wrong
}

func (a *ask) geminiParts(parts gjson.Result) (prompt string, result bool) {
	parts.ForEach(func(_, part gjson.Result) bool {
		switch {
		case part.Get("text").Exists():
			text := part.Get("text").Str
			a.text(text)
			prompt += text
		case part.Get("inlineData").Exists():
			a.picture(part.Get("inlineData.data").Str)
		case part.Get("fileData").Exists():
			a.file(part.Get("fileData.fileUri").Str)
		case part.Get("functionCall").Exists():
			a.text(part.Get("functionCall.name").Str)
			a.text(part.Get("functionCall.args").Raw)
		case part.Get("functionResponse").Exists():
			result = true
			a.text(part.Get("functionResponse.response").Raw)
		}
		return true
	})
	return prompt, result
}

func geminiFinish(p *reply) string {
	if p.finish == finishLength {
		return "MAX_TOKENS"
	}
	return "STOP"
}

// geminiCount answers :countTokens.
func (x *exchange) geminiCount(a *ask, _ gjson.Result) {
	b := appendInt(x.spare(), `{"totalTokens":`, max(1, a.input))
	x.usage = Usage{} // counting generates nothing
	x.send(http.StatusOK, jsonType, append(b, '}'))
}

// generate answers :generateContent and :streamGenerateContent?alt=sse.
func (x *exchange) generate(a *ask, _ gjson.Result) {
	r := a.seed(0)
	id := r.id("", 22)
	replies := make([]*reply, a.choices)
	for i := range replies {
		replies[i] = x.reply(a, i)
	}
	if a.stream {
		x.generateStream(a, id, replies)
		return
	}
	b := append(x.spare(), `{"candidates":[`...)
	for i, p := range replies {
		if !x.whole(p) {
			return
		}
		if i > 0 {
			b = append(b, ',')
		}
		parts := []byte(nil)
		if len(p.calls) == 0 {
			parts = append(appendText(parts, `{"text":`, p.text), '}')
		}
		for k, call := range p.calls {
			if k > 0 {
				parts = append(parts, ',')
			}
			parts = appendGeminiCall(parts, call)
		}
		b = appendCandidate(b, i, parts, geminiFinish(p))
	}
	b = x.appendGeminiEnd(append(b, ']'), a, id, x.meter())
	x.send(http.StatusOK, jsonType, b)
}

func appendGeminiCall(b []byte, call toolCall) []byte {
	arguments := call.arguments
	if !gjson.Valid(arguments) {
		arguments = `{}` // cut short
	}
	b = appendText(b, `{"functionCall":{"name":`, call.name)
	return append(append(append(b, `,"args":`...), arguments...), `}}`...)
}

func appendCandidate(b []byte, i int, parts []byte, finish string) []byte {
	b = append(append(b, `{"content":{"parts":[`...), parts...)
	b = append(b, `],"role":"model"}`...)
	if finish != "" {
		b = appendText(b, `,"finishReason":`, finish)
	}
	return append(appendInt(b, `,"index":`, int64(i)), '}')
}

// appendGeminiEnd appends what follows the candidates. In this dialect thoughts
// are counted beside the candidates, not among them.
func (x *exchange) appendGeminiEnd(b []byte, a *ask, id string, u Usage) []byte {
	if !x.orders.noUsage {
		u = x.shown(u)
		b = appendInt(b, `,"usageMetadata":{"promptTokenCount":`, u.Input)
		b = x.appendOutput(b, `,"candidatesTokenCount":`, u.Output-u.Reasoning)
		b = x.appendOutput(b, `,"totalTokenCount":`, u.Input+u.Output)
		b = appendInt(b, `,"promptTokensDetails":[{"modality":"TEXT","tokenCount":`, u.Input)
		b = append(b, `}]`...)
		if u.Cached > 0 {
			b = appendInt(b, `,"cachedContentTokenCount":`, u.Cached)
		}
		if u.Reasoning > 0 {
			b = appendInt(b, `,"thoughtsTokenCount":`, u.Reasoning)
		}
		b = append(x.appendGPU(b, u), '}')
	}
	b = appendText(b, `,"modelVersion":`, a.model)
	return append(appendText(b, `,"responseId":`, id), '}')
}

// generateStream sends an event for each piece, with the usage so far in each,
// as Gemini does. A call of a function comes whole.
func (x *exchange) generateStream(a *ask, id string, replies []*reply) {
	if !x.wait(x.due) {
		return
	}
	x.openStream()
	var buf, parts []byte
	event := func(n int64, i int, parts []byte, finish string) bool {
		b := appendCandidate(append(buf[:0], `{"candidates":[`...), i, parts, finish)
		u := x.usage
		u.Output += n
		u.GPUMS = gpuMillis(u.Input, u.Cached, u.Output)
		buf = x.appendGeminiEnd(append(b, ']'), a, id, u)
		if n > 0 {
			return x.content(n, "", buf)
		}
		return x.event("", buf)
	}
	for i, p := range replies {
		if !x.think(p.reasoning) {
			return
		}
		for from := 0; from < len(p.text); {
			to, n := x.piece(p.text, from)
			parts = append(appendText(parts[:0], `{"text":`, p.text[from:to]), '}')
			if !event(n, i, parts, "") {
				return
			}
			from = to
		}
		for _, call := range p.calls {
			if !event(CountTokens(call.arguments), i, appendGeminiCall(parts[:0], call), "") {
				return
			}
			x.usage.ToolCalls++
		}
	}
	if !x.last() || x.orders.noDone {
		return
	}
	for i, p := range replies {
		if !event(0, i, append(parts[:0], `{"text":""}`...), geminiFinish(p)) {
			return
		}
	}
}
