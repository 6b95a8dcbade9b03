package gemini

import (
	"strings"

	"github.com/tidwall/gjson"

	"tollgate/proxy"
	"tollgate/proxy/jsonbody"
	"tollgate/proxy/media"
)

// What files cost (docs: token counting, media). An image of at most 384 pixels
// each way is 258 tokens; a larger one is cut into tiles of 258 each, whose edge
// is the shorter side ÷ 1.5, within 256 and 768. A page of a document is 258
// tokens, a second of audio 32, a second of video 263. What has no size that we
// know is taken for six tiles or ten pages; a page is assumed for each 64 KiB, a
// second of audio for each 8 KiB, a second of video for each 128 KiB.
const (
	tileTokens   = 258
	smallImage   = 384
	unknownTiles = 6
	unknownPages = 10
	pageBytes    = 64 << 10
	audioBytes   = 8 << 10
	audioTokens  = 32
	videoBytes   = 128 << 10
	videoTokens  = 263
)

// contentOverhead is an upper estimate of what stands around each content, where
// the tokenizer is not the model's own.
const contentOverhead = 4

// longRaw is from which length on JSON that is not understood is estimated at
// four bytes a token.
const longRaw = 64 << 10

func (r *request) inputTokens(count proxy.Counter) int64 {
	in := input{count: count}
	in.content(r.found[atSystem])
	contents := int64(0)
	r.found[atContents].ForEach(func(_, c gjson.Result) bool {
		contents++
		in.content(c)
		return true
	})
	if tools := r.found[atTools]; tools.IsArray() && len(tools.Raw) > 2 {
		in.raw(tools.Raw)
	}
	if !count.Exact() {
		in.tokens += contents * contentOverhead
	}
	return in.tokens
}

type input struct {
	count  proxy.Counter
	tokens int64
}

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

// content is {"role", "parts": […]}.
func (in *input) content(r gjson.Result) {
	if !r.IsObject() {
		in.text(r.Str)
		return
	}
	r.ForEach(func(key, value gjson.Result) bool {
		switch {
		case key.Str != "parts":
		case value.IsArray():
			value.ForEach(func(_, part gjson.Result) bool {
				in.part(part)
				return true
			})
		case value.IsObject():
			in.part(value)
		}
		return true
	})
}

func (in *input) part(r gjson.Result) {
	r.ForEach(func(key, value gjson.Result) bool {
		switch key.Str {
		case "text":
			in.text(value.Str)
		case "inlineData", "inline_data", "fileData", "file_data":
			in.tokens += fileTokens(value)
		case "thought", "thoughtSignature", "thought_signature", "videoMetadata", "video_metadata":
		default: // functionCall, functionResponse, executableCode and what is new
			if value.Type == gjson.JSON {
				in.raw(value.Raw)
			}
		}
		return true
	})
}

// fileTokens estimates {"mimeType", "data"} or {"mimeType", "fileUri"}.
func fileTokens(file gjson.Result) int64 {
	var mime, data string
	file.ForEach(func(key, value gjson.Result) bool {
		switch key.Str {
		case "mimeType", "mime_type":
			mime = value.Str
		case "data":
			data = value.Str
		}
		return true
	})
	size := int64(len(data)) * 3 / 4
	switch family, _, _ := strings.Cut(mime, "/"); {
	case family == "image":
		return imageTokens(data)
	case size == 0:
		return unknownPages * tileTokens
	case family == "audio":
		return (size/audioBytes + 1) * audioTokens
	case family == "video":
		return (size/videoBytes + 1) * videoTokens
	case family == "text":
		return size/4 + 1
	}
	return (size/pageBytes + 1) * tileTokens
}

func imageTokens(data string) int64 {
	width, height, ok := media.ImageSize(data)
	switch {
	case !ok:
		return unknownTiles * tileTokens
	case width <= smallImage && height <= smallImage:
		return tileTokens
	}
	edge := min(max(min(width, height)*2/3, 256), 768)
	return ((width + edge - 1) / edge) * ((height + edge - 1) / edge) * tileTokens
}
