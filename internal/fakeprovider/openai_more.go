package fakeprovider

import (
	"bytes"
	"encoding/base64"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"
)

func appendFloat(b []byte, f float32) []byte { return strconv.AppendFloat(b, float64(f), 'g', -1, 32) }

// readCompletion reads a request of /v1/completions.
func (a *ask) readCompletion(root gjson.Result) *badRequest {
	if wrong := a.readModel(root); wrong != nil {
		return wrong
	}
	prompts := int64(a.readInput(root.Get("prompt")))
	if prompts == 0 {
		return bad("prompt", "must be text or tokens")
	}
	a.stream = root.Get("stream").Bool()
	a.usage = root.Get("stream_options.include_usage").Bool()
	a.readStops(root.Get("stop"))
	n, wrong := limit(root.Get("n"), "n", 1, 128)
	if wrong != nil {
		return wrong
	}
	if a.choices = int(max(1, n) * prompts); a.choices > 2048 {
		return bad("prompt", "has too many texts")
	}
	a.max, wrong = limit(root.Get("max_tokens"), "max_tokens", 0, 1<<31)
	return wrong
}

func (a *ask) readModel(root gjson.Result) *badRequest {
	if v := root.Get("model"); v.Exists() {
		a.model = v.String()
	}
	if a.model == "" {
		return bad("model", "is missing: you must provide a model parameter")
	}
	a.tag(a.model)
	return nil
}

// readInput reads text, tokens, or a list of either, and returns how many inputs
// it found. A token given by its number is a token.
func (a *ask) readInput(v gjson.Result) int {
	if v.Type == gjson.String {
		a.text(v.Str)
		a.prompt = v.Str
		a.mark()
		return 1
	}
	items := v.Array()
	if !v.IsArray() || len(items) == 0 {
		return 0
	}
	if items[0].Type == gjson.Number {
		a.tag(v.Raw)
		a.input += int64(len(items))
		return 1
	}
	n := 0
	for _, item := range items {
		if item.IsArray() && len(item.Array()) > 0 && item.Array()[0].IsArray() {
			return 0
		}
		n += a.readInput(item)
	}
	return n
}

// completion answers /v1/completions.
func (x *exchange) completion(a *ask, _ gjson.Result) {
	r := a.seed(0)
	head := chatHead{id: r.id("cmpl-", 29), created: createdAt(&r), model: a.model}
	replies := make([]*reply, a.choices)
	for i := range replies {
		replies[i] = x.reply(a, i)
	}
	choice := func(b []byte, i int, text, finish string) []byte {
		b = appendText(b, `{"text":`, text)
		b = appendInt(b, `,"index":`, int64(i))
		b = append(b, `,"logprobs":null,"finish_reason":`...)
		if finish == "" {
			return append(b, `null}`...)
		}
		return append(appendString(b, finish), '}')
	}
	if !a.stream {
		b := append(head.append(x.spare(), "text_completion"), `,"choices":[`...)
		for i, p := range replies {
			if !x.whole(p) {
				return
			}
			if i > 0 {
				b = append(b, ',')
			}
			b = choice(b, i, p.text, openAIFinish(p.finish))
		}
		b = x.appendChatUsage(append(b, ']'), x.meter())
		x.send(http.StatusOK, jsonType, append(b, '}'))
		return
	}
	if !x.wait(x.due) {
		return
	}
	x.openStream()
	var buf []byte
	send := func(n int64, i int, text, finish string) bool {
		b := append(head.append(buf[:0], "text_completion"), `,"choices":[`...)
		b = append(choice(b, i, text, finish), ']')
		if x.orders.repeatUsage {
			u := x.usage
			u.Output += n
			b = x.appendChatUsage(b, u)
		} else if a.usage && !x.orders.noUsage {
			b = append(b, `,"usage":null`...)
		}
		buf = append(b, '}')
		if n > 0 {
			return x.content(n, "", buf)
		}
		return x.event("", buf)
	}
	for i, p := range replies {
		for from := 0; from < len(p.text); {
			to, n := x.piece(p.text, from)
			if !send(n, i, p.text[from:to], "") {
				return
			}
			from = to
		}
	}
	if !x.last() {
		return
	}
	for i, p := range replies {
		if !send(0, i, "", openAIFinish(p.finish)) {
			return
		}
	}
	if a.usage && !x.orders.noUsage {
		b := append(head.append(buf[:0], "text_completion"), `,"choices":[]`...)
		if !x.event("", append(x.appendChatUsage(b, x.meter()), '}')) {
			return
		}
	}
	if !x.orders.noDone {
		x.event("", []byte("[DONE]"))
	}
}

// readEmbeddings reads a request of /v1/embeddings.
func (a *ask) readEmbeddings(root gjson.Result) *badRequest {
	if wrong := a.readModel(root); wrong != nil {
		return wrong
	}
	if a.choices = a.readInput(root.Get("input")); a.choices == 0 || a.choices > 2048 {
		return bad("input", "must be 1 to 2,048 texts or lists of tokens")
	}
	a.max = 0
	_, wrong := limit(root.Get("dimensions"), "dimensions", 1, 4096)
	return wrong
}

// defaultDimensions keeps answers small; a client may ask for others.
const defaultDimensions = 64

// embeddings answers /v1/embeddings. Equal inputs have equal vectors.
func (x *exchange) embeddings(a *ask, root gjson.Result) {
	if !x.wait(x.due) {
		return
	}
	dimensions, _ := limit(root.Get("dimensions"), "dimensions", 1, 4096) // was checked
	if dimensions < 0 {
		dimensions = defaultDimensions
	}
	inBase64 := root.Get("encoding_format").Str == "base64"
	b := append(x.spare(), `{"object":"list","data":[`...)
	one := func(i int, input gjson.Result) {
		d := reader{hash: fnvOffset ^ x.server.opts.Seed}
		d.tag(a.model)
		if input.Type == gjson.String {
			d.tag(input.Str)
		} else {
			d.tag(input.Raw)
		}
		if i > 0 {
			b = append(b, ',')
		}
		b = appendInt(b, `{"object":"embedding","index":`, int64(i))
		r := random(d.hash)
		b = append(appendVector(append(b, `,"embedding":`...), vector(&r, dimensions), inBase64), '}')
	}
	input := root.Get("input")
	if items := input.Array(); input.IsArray() && items[0].Type != gjson.Number {
		for i, item := range items {
			one(i, item)
		}
	} else {
		one(0, input)
	}
	b = appendText(append(b, ']'), `,"model":`, a.model)
	if !x.orders.noUsage {
		u := x.shown(x.meter())
		b = appendInt(b, `,"usage":{"prompt_tokens":`, u.Input)
		b = appendInt(b, `,"total_tokens":`, u.Input)
		b = append(x.appendGPU(b, u), '}')
	}
	x.send(http.StatusOK, jsonType, append(b, '}'))
}

// readImages reads a request of /v1/images/generations.
func (a *ask) readImages(root gjson.Result) *badRequest {
	if wrong := a.readModel(root); wrong != nil {
		return wrong
	}
	prompt := root.Get("prompt")
	if prompt.Type != gjson.String || prompt.Str == "" {
		return bad("prompt", "must be text")
	}
	a.readInput(prompt)
	n, wrong := limit(root.Get("n"), "n", 1, 10)
	a.choices = int(max(1, n))
	a.stream = root.Get("stream").Bool()
	return wrong
}

// imageOutputTokens is what one picture costs.
const imageOutputTokens = 272

// images answers /v1/images/generations.
func (x *exchange) images(a *ask, root gjson.Result) {
	r := a.seed(0)
	created := createdAt(&r)
	size := root.Get("size").Str
	if size == "" || size == "auto" {
		size = "1024x1024"
	}
	const kind = `,"background":"opaque","output_format":"png","quality":"low","size":`
	usage := func(b []byte) []byte {
		if x.orders.noUsage {
			return b
		}
		u := x.shown(x.meter())
		b = appendInt(b, `,"usage":{"input_tokens":`, u.Input)
		b = appendInt(b, `,"input_tokens_details":{"image_tokens":0,"text_tokens":`, u.Input)
		b = x.appendOutput(b, `},"output_tokens":`, u.Output)
		b = x.appendOutput(b, `,"total_tokens":`, u.Input+u.Output)
		return append(x.appendGPU(b, u), '}')
	}
	if a.stream {
		if !x.wait(x.due) {
			return
		}
		x.openStream()
		b := append([]byte(`{"type":"image_generation.completed","b64_json":"`), base64.StdEncoding.EncodeToString(picture(&r))...)
		b = appendInt(b, `","created_at":`, created)
		b = appendText(append(b, kind...), "", size)
		x.usage.Output, x.usage.Images = imageOutputTokens, 1
		b = append(usage(b), '}')
		x.usage.Output = 0
		if x.content(imageOutputTokens, "image_generation.completed", b) {
			x.last()
		} else if x.usage.Output == 0 {
			x.usage.Images = 0
		}
		return
	}
	b := append(appendInt(x.spare(), `{"created":`, created), `,"data":[`...)
	for i := range a.choices {
		if !x.decode(imageOutputTokens) {
			return
		}
		x.usage.Images++
		if i > 0 {
			b = append(b, ',')
		}
		file := base64.StdEncoding.EncodeToString(picture(&r))
		if root.Get("response_format").Str == "url" {
			b = append(append(append(b, `{"url":"data:image/png;base64,`...), file...), `"}`...)
		} else {
			b = append(append(append(b, `{"b64_json":"`...), file...), `"}`...)
		}
	}
	b = appendText(append(append(b, ']'), kind...), "", size)
	x.send(http.StatusOK, jsonType, append(usage(b), '}'))
}

// readSpeech reads a request of /v1/audio/speech.
func (a *ask) readSpeech(root gjson.Result) *badRequest {
	if wrong := a.readModel(root); wrong != nil {
		return wrong
	}
	input := root.Get("input")
	if input.Type != gjson.String || input.Str == "" {
		return bad("input", "must be text")
	}
	a.readInput(input)
	a.tag(root.Get("voice").String())
	switch root.Get("response_format").Str {
	case "", "mp3", "wav", "pcm":
		return nil
	}
	return bad("response_format", "can only be wav, pcm or mp3 here")
}

// speech answers /v1/audio/speech with sound, or with sound in events.
func (x *exchange) speech(a *ask, root gjson.Result) {
	millis := a.input * speechMillisToken
	tokens := audioTokens(millis)
	if !x.decode(tokens) {
		return
	}
	x.usage.AudioMS = millis
	kind, data := "audio/mpeg", []byte(nil)
	switch root.Get("response_format").Str {
	case "wav":
		kind, data = "audio/wav", wav(samples(millis))
	case "pcm":
		kind, data = "audio/pcm", samples(millis)
	default:
		data = mp3(millis)
	}
	if root.Get("stream_format").Str != "sse" {
		x.send(http.StatusOK, []string{kind}, data)
		return
	}
	x.openStream()
	b := append([]byte(`{"type":"speech.audio.delta","audio":"`), base64.StdEncoding.EncodeToString(data)...)
	if !x.content(0, "", append(b, `"}`...)) || !x.last() {
		return
	}
	b = append([]byte{}, `{"type":"speech.audio.done"`...)
	if !x.orders.noUsage {
		u := x.shown(x.meter())
		b = appendInt(b, `,"usage":{"input_tokens":`, u.Input)
		b = x.appendOutput(b, `,"output_tokens":`, u.Output)
		b = append(x.appendOutput(b, `,"total_tokens":`, u.Input+u.Output), '}')
	}
	x.event("", append(b, '}'))
}

// readTranscription reads a form of /v1/audio/transcriptions.
func (a *ask) readTranscription(x *exchange) *badRequest {
	kind, params, err := mime.ParseMediaType(x.r.Header.Get("Content-Type"))
	if err != nil || kind != "multipart/form-data" || params["boundary"] == "" {
		return bad("", "must be multipart/form-data")
	}
	form := multipart.NewReader(bytes.NewReader(x.body), params["boundary"])
	found := false
	for {
		part, err := form.NextPart()
		if err == io.EOF { //nolint:errorlint // the reader gives it as it is
			break
		}
		if err != nil {
			return bad("", "is not multipart/form-data")
		}
		data, err := io.ReadAll(part)
		if err != nil {
			return bad("", "is not multipart/form-data")
		}
		switch part.FormName() {
		case "file":
			found = true
			x.usage.AudioMS = soundMillis(data)
			a.tag(string(data))
		case "model":
			a.model = string(data)
		case "prompt":
			a.text(string(data))
			a.prompt = string(data)
		case "response_format":
			x.form = string(data)
		case "stream":
			a.stream = string(data) == "true"
		}
	}
	if a.model == "" {
		return bad("model", "is missing")
	}
	if !found {
		return bad("file", "is missing")
	}
	a.tag(a.model)
	a.input += audioTokens(x.usage.AudioMS)
	return nil
}

// transcription answers /v1/audio/transcriptions: 3 words a second.
func (x *exchange) transcription(a *ask, _ gjson.Result) {
	millis := x.usage.AudioMS
	if x.orders.tokens < 0 && x.server.opts.OutputTokens == 0 {
		x.orders.tokens = max(1, millis*3/1000)
	}
	p := x.reply(a, 0)
	usage := func(b []byte) []byte {
		switch {
		case x.orders.noUsage:
			return b
		case strings.Contains(a.model, "whisper"):
			return append(appendInt(b, `,"usage":{"type":"duration","seconds":`, (millis+999)/1000), '}')
		}
		u := x.shown(x.meter())
		sound := min(u.Input, audioTokens(millis))
		b = appendInt(b, `,"usage":{"type":"tokens","input_tokens":`, u.Input)
		b = appendInt(b, `,"input_token_details":{"text_tokens":`, u.Input-sound)
		b = appendInt(b, `,"audio_tokens":`, sound)
		b = x.appendOutput(b, `},"output_tokens":`, u.Output)
		b = x.appendOutput(b, `,"total_tokens":`, u.Input+u.Output)
		return append(x.appendGPU(b, u), '}')
	}
	if a.stream {
		x.openStream()
		for from := 0; from < len(p.text); {
			to, n := x.piece(p.text, from)
			b := appendText(nil, `{"type":"transcript.text.delta","delta":`, p.text[from:to])
			if !x.content(n, "", append(b, '}')) {
				return
			}
			from = to
		}
		if x.last() {
			x.event("", append(usage(appendText(nil, `{"type":"transcript.text.done","text":`, p.text)), '}'))
		}
		return
	}
	if !x.whole(p) {
		return
	}
	seconds := strconv.FormatFloat(float64(millis)/1000, 'f', -1, 64)
	switch x.form {
	case "text":
		x.send(http.StatusOK, []string{"text/plain; charset=utf-8"}, append([]byte(p.text), '\n'))
	case "srt":
		x.send(http.StatusOK, []string{"text/plain; charset=utf-8"}, []byte("1\n00:00:00,000 --> 00:00:01,000\n"+p.text+"\n"))
	case "vtt":
		x.send(http.StatusOK, []string{"text/plain; charset=utf-8"}, []byte("WEBVTT\n\n00:00.000 --> 00:01.000\n"+p.text+"\n"))
	case "verbose_json":
		b := appendText(x.spare(), `{"task":"transcribe","language":"english","duration":`+seconds+`,"text":`, p.text)
		b = appendText(b, `,"segments":[{"id":0,"seek":0,"start":0,"end":`+seconds+`,"text":`, p.text)
		b = append(b, `,"tokens":[],"temperature":0,"avg_logprob":-0.25,"compression_ratio":1,"no_speech_prob":0}]`...)
		x.send(http.StatusOK, jsonType, append(usage(b), '}'))
	default:
		x.send(http.StatusOK, jsonType, append(usage(appendText(x.spare(), `{"text":`, p.text)), '}'))
	}
}
