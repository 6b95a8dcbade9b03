package benchupstream

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

type kind uint8

const (
	kindAnswer kind = iota
	kindStream
	kindStats
)

// order is what a request asks for.
type order struct {
	kind         kind
	delay, every time.Duration
	chunks       int
	usage        bool // in the stream
	close        bool // the connection, after the answer
}

// What a path that says nothing asks for.
const (
	defaultChunks = 40
	defaultEvery  = 2 * time.Millisecond
)

// maxChunks bounds a stream, maxRequest a request.
const (
	maxChunks  = 1 << 20
	maxRequest = 16 << 20
)

// errMore: the request is not whole yet.
var errMore = errors.New("request ends early")

// readRequest reads the request that in begins with, and how long it is.
func readRequest(in []byte) (size int, o order, err error) {
	head, rest, whole := bytes.Cut(in, []byte("\r\n\r\n"))
	if !whole {
		if len(in) > maxRequest {
			return 0, o, errors.New("a head without end")
		}
		return 0, o, errMore
	}
	size = len(in) - len(rest)
	line, fields, _ := strings.Cut(string(head), "\r\n")
	method, path, _ := strings.Cut(line, " ")
	path, _, _ = strings.Cut(path, " ")
	length, chunked := 0, false
	for field := range strings.SplitSeq(fields, "\r\n") {
		name, value, _ := strings.Cut(field, ":")
		switch value = strings.TrimSpace(value); strings.ToLower(name) {
		case "content-length":
			if length, err = strconv.Atoi(value); err != nil || length < 0 || length > maxRequest {
				return 0, o, fmt.Errorf("content length %q", value)
			}
		case "transfer-encoding":
			chunked = strings.EqualFold(value, "chunked")
		case "connection":
			o.close = strings.EqualFold(value, "close")
		}
	}
	var body []byte
	if chunked {
		var taken int
		if body, taken, err = joinChunks(rest); err != nil {
			return 0, o, err
		}
		size += taken
	} else {
		if len(rest) < length {
			return 0, o, errMore
		}
		body = rest[:length]
		size += length
	}
	if method == "GET" && path == "/stats" {
		o.kind = kindStats
		return size, o, nil
	}
	if o, err = pace(o, path); err != nil || method != "POST" {
		return 0, o, errors.Join(err, fmt.Errorf("%s %s: there is POST …/chat/completions and GET /stats", method, path))
	}
	if saysTrue(body, `"stream"`) {
		o.kind, o.usage = kindStream, saysTrue(body, `"include_usage"`)
	}
	return size, o, nil
}

// joinChunks joins a body in chunks, and says how long it is with its framing.
func joinChunks(in []byte) (body []byte, taken int, err error) {
	for {
		line, _, whole := bytes.Cut(in[taken:], []byte("\r\n"))
		if !whole {
			return nil, 0, errMore
		}
		digits, _, _ := bytes.Cut(line, []byte(";"))
		n, err := strconv.ParseUint(string(digits), 16, 32)
		if err != nil || len(body)+int(n) > maxRequest {
			return nil, 0, fmt.Errorf("chunk size %q", line)
		}
		taken += len(line) + 2
		if len(in)-taken < int(n)+2 {
			return nil, 0, errMore
		}
		body = append(body, in[taken:taken+int(n)]...)
		taken += int(n) + 2 // there are no trailers: the last chunk ends like the others
		if n == 0 {
			return body, taken, nil
		}
	}
}

// pace reads what the path says of the answer's speed.
func pace(o order, path string) (order, error) {
	o.chunks, o.every = defaultChunks, defaultEvery
	path, ok := strings.CutSuffix(path, "/chat/completions")
	if !ok {
		return o, errors.New("unknown path")
	}
	for segment := range strings.SplitSeq(path, "/") {
		name, value, _ := strings.Cut(segment, "-")
		var err error
		switch name {
		case "delay":
			o.delay, err = time.ParseDuration(value)
		case "every":
			o.every, err = time.ParseDuration(value)
		case "chunks":
			o.chunks, err = strconv.Atoi(value)
		}
		if err != nil || o.delay < 0 || o.every < 0 || o.chunks < 1 || o.chunks > maxChunks {
			return o, fmt.Errorf("%q is no pace", segment)
		}
	}
	return o, nil
}

// saysTrue looks for a key whose value is true. It reads no JSON: the bodies
// are a benchmark's own.
func saysTrue(body []byte, key string) bool {
	for {
		i := bytes.Index(body, []byte(key))
		if i < 0 {
			return false
		}
		body = body[i+len(key):]
		value, colon := bytes.CutPrefix(bytes.TrimLeft(body, " \n"), []byte(":"))
		if colon && bytes.HasPrefix(bytes.TrimLeft(value, " \n"), []byte("true")) {
			return true
		}
	}
}

// What is counted in every answer.
const (
	PromptTokens = 16
	// AnswerTokens is of a plain answer; a stream has one for each chunk.
	AnswerTokens = 12
)

const (
	answerBody = `{"id":"chatcmpl-bench","object":"chat.completion","created":1700000000,"model":"bench",` +
		`"choices":[{"index":0,"message":{"role":"assistant","content":"Quota is what you may spend, not what you have spent yet.","refusal":null},"logprobs":null,"finish_reason":"stop"}],` +
		`"usage":{"prompt_tokens":16,"completion_tokens":12,"total_tokens":28}}`
	frame       = `{"id":"chatcmpl-bench","object":"chat.completion.chunk","created":1700000000,"model":"bench","choices":[`
	firstEvent  = "data: " + frame + `{"index":0,"delta":{"role":"assistant","content":"Quota"},"finish_reason":null}]}` + "\n\n"
	middleEvent = "data: " + frame + `{"index":0,"delta":{"content":" token"},"finish_reason":null}]}` + "\n\n"
	finishEvent = "data: " + frame + `{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n"
	doneEvent   = "data: [DONE]\n\n"
)

var (
	plain      = []byte(head200("application/json", "Content-Length: "+strconv.Itoa(len(answerBody))) + answerBody)
	streamHead = []byte(head200("text/event-stream; charset=utf-8", "Cache-Control: no-cache\r\nTransfer-Encoding: chunked"))
	chunk      = appendChunk(nil, middleEvent)
)

func head200(contentType, more string) string {
	return "HTTP/1.1 200 OK\r\nContent-Type: " + contentType + "\r\nx-request-id: bench\r\n" + more + "\r\n\r\n"
}

func appendChunk(dst []byte, content string) []byte {
	dst = strconv.AppendInt(dst, int64(len(content)), 16)
	dst = append(dst, "\r\n"...)
	dst = append(dst, content...)
	return append(dst, "\r\n"...)
}

// edge is a stream's first or last piece. The last one brings the end with it,
// each event as a chunk of its own, as servers send them.
func edge(o order, first, last bool) []byte {
	var out []byte
	if first {
		out = appendChunk(append(out, streamHead...), firstEvent)
	} else {
		out = appendChunk(out, middleEvent)
	}
	if last {
		out = appendChunk(out, finishEvent)
		if o.usage {
			out = appendChunk(out, fmt.Sprintf("data: %s],\"usage\":{\"prompt_tokens\":%d,\"completion_tokens\":%d,\"total_tokens\":%d}}\n\n",
				frame, PromptTokens, o.chunks, PromptTokens+o.chunks))
		}
		out = append(appendChunk(out, doneEvent), "0\r\n\r\n"...)
	}
	return out
}

func (s *Server) stats() []byte {
	body, err := json.Marshal(s.Stats())
	if err != nil {
		panic(err) // numbers only
	}
	return fmt.Appendf(nil, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}

func refusal(err error) []byte {
	body := fmt.Sprintf(`{"error":{"message":%q,"type":"invalid_request_error"}}`, err)
	return fmt.Appendf(nil, "HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}
