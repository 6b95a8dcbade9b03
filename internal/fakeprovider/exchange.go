package fakeprovider

import (
	"context"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/tidwall/gjson"
)

// exchange is one request and its answer. It belongs to the request's goroutine.
type exchange struct {
	server  *Server
	dialect *dialect
	w       http.ResponseWriter
	r       *http.Request
	ctx     context.Context // it lives as long as the request
	orders  orders
	rec     Record
	usage   Usage

	body     []byte      // of the request
	out      []byte      // what is about to be written
	timer    *time.Timer // made when something first waits; not kept for others, which may live in another bubble of testing/synctest
	due      time.Time   // when the next token is ready
	jitter   random
	per      time.Duration // between two tokens
	begun    bool          // the header is on its way
	chunks   int64         // content events sent
	sent     int64         // bytes of the body sent
	abort    bool          // the connection is to be broken off
	admitted int64         // tokens held in the KV cache, plus one; 0 is not admitted
	sequence int64         // events of a response so far, where they are numbered
	form     string        // response_format of a form
}

var exchanges = sync.Pool{New: func() any { return new(exchange) }}

// Header values that every answer shares; net/http does not change them.
var (
	jsonType   = []string{"application/json"}
	streamType = []string{"text/event-stream; charset=utf-8"}
	noCache    = []string{"no-cache"}
)

// wait pauses until the clock says due. False: the client left.
func (x *exchange) wait(due time.Time) bool {
	pause := time.Until(due)
	if pause <= 0 {
		if x.ctx.Err() != nil {
			x.left()
			return false
		}
		return true
	}
	if x.timer == nil {
		x.timer = time.NewTimer(pause)
	} else {
		x.timer.Reset(pause)
	}
	select {
	case <-x.timer.C:
		return true
	case <-x.ctx.Done():
		x.timer.Stop()
		x.left()
		return false
	}
}

// silence waits until the client leaves or the server stops.
func (x *exchange) silence(what string) {
	x.rec.End = what
	select {
	case <-x.ctx.Done():
		x.left()
	case <-x.server.quit:
		x.abort = true
	}
}

// left notes that the client is gone. A fault that came first stays the cause.
func (x *exchange) left() {
	if x.rec.AbortedAt == nil {
		now := time.Now().UTC()
		x.rec.AbortedAt = &now
	}
	if x.rec.End == "" {
		x.rec.End = EndClientGone
	}
}

// begin starts the model's clock: the prompt is being read.
func (x *exchange) begin(a *ask) {
	o := &x.server.opts
	now := x.rec.Started
	first := o.FirstToken + x.orders.slow
	if o.PrefillPerSecond > 0 {
		first += time.Duration(x.usage.Input-x.usage.Cached) * time.Second / time.Duration(o.PrefillPerSecond)
	}
	if o.DecodePerSecond > 0 {
		x.per = time.Second / time.Duration(o.DecodePerSecond)
	}
	x.jitter = a.seed(-1)
	x.due = now.Add(first)
}

// decode waits until n more tokens are there. The first comes with the end of
// the prompt. False: the client left.
func (x *exchange) decode(n int64) bool {
	if x.usage.Output > 0 || x.chunks > 0 {
		step := x.per * time.Duration(n)
		if p := x.server.opts.JitterPercent; p > 0 && step > 0 {
			step += step * time.Duration(x.jitter.between(int64(-p), int64(p))) / 100
		}
		x.due = x.due.Add(step + x.orders.slow)
	} else if n > 1 {
		x.due = x.due.Add(x.per * time.Duration(n-1))
	}
	if !x.wait(x.due) {
		return false
	}
	x.usage.Output += n
	return true
}

// think decodes tokens that no event carries.
func (x *exchange) think(n int64) bool {
	if n == 0 {
		return true
	}
	if !x.decode(n) {
		return false
	}
	x.usage.Reasoning += n
	return true
}

// openStream sends the header of a stream.
func (x *exchange) openStream() {
	h := x.w.Header()
	h["Content-Type"] = streamType
	h["Cache-Control"] = noCache
	x.rec.Status = http.StatusOK
	x.w.WriteHeader(http.StatusOK)
	x.begun = true
}

// content sends an event that carries n tokens, and obeys the orders that count
// such events. False: the answer is over.
func (x *exchange) content(n int64, name string, data []byte) bool {
	if x.stopsHere(false) || !x.decode(n) {
		return false
	}
	x.chunks++
	return x.event(name, data)
}

// last is to be asked before the events that end a stream in order: an order
// that no content event reached comes true here. False: the answer is over.
func (x *exchange) last() bool { return !x.stopsHere(true) }

// stopsHere carries out what was ordered for after so many content events.
func (x *exchange) stopsHere(end bool) bool {
	here := func(after int64) bool { return after >= 0 && (after == x.chunks || end && after > x.chunks) }
	o := &x.orders
	switch {
	case here(o.hang):
		if x.flush() {
			x.silence(EndFault + "hang")
		}
	case here(o.cutAfter):
		x.flush()
		x.abort = true
		x.rec.End = EndFault + "cut-after"
	case here(o.closeClean):
		x.rec.End = EndFault + "close-clean"
	case here(o.errorEvent):
		x.rec.End = EndFault + "error-event"
		name, data := x.dialect.errorEvent(x.sequence)
		x.event(name, data)
	case here(o.garbageStream):
		x.rec.End = EndFault + "garbage-stream"
		x.out = append(x.out[:0], "data: {\"choices\":[{\"delta\":\n\ndata: <html>\x00\xff\xfe\n\nevent\x01: }{\n\n"...)
		x.write()
	default:
		return false
	}
	return true
}

// event sends one event of a stream. False: the answer is over.
func (x *exchange) event(name string, data []byte) bool {
	b := x.out[:0]
	end := "\n"
	if x.orders.crlf {
		end = "\r\n"
	}
	if x.orders.comments {
		b = append(append(append(b, ": event "...), strconv.FormatInt(x.chunks, 10)...), end...)
	}
	if x.orders.keepAlive {
		b = append(append(append(b, ": keep-alive"...), end...), end...)
	}
	if name != "" {
		b = append(append(append(b, "event: "...), name...), end...)
	}
	b = append(b, "data: "...)
	if len(data) > 0 && data[0] == '{' && (x.orders.hugeLine > 0 || x.orders.multiLine) {
		b = append(b, '{')
		data = data[1:]
		if x.orders.hugeLine > 0 && x.chunks == 1 {
			b = append(b, `"padding":"`...)
			for range x.orders.hugeLine {
				b = append(b, 'x')
			}
			b = append(b, `",`...)
			x.orders.hugeLine = 0
		}
		if x.orders.multiLine {
			b = append(append(b, end...), "data: "...)
		}
	}
	b = append(append(append(b, data...), end...), end...)
	x.out = b
	return x.write()
}

// write sends what is in out, at once. False: the answer is over.
func (x *exchange) write() bool {
	piece := x.out
	cut := x.orders.cut >= 0 && x.sent+int64(len(piece)) >= x.orders.cut
	if cut {
		piece = piece[:max(0, x.orders.cut-x.sent)]
	}
	for len(piece) > 0 {
		n := len(piece)
		if x.orders.split > 0 {
			n = min(n, int(x.orders.split))
		}
		if _, err := x.w.Write(piece[:n]); err != nil {
			x.left()
			return false
		}
		x.sent += int64(n)
		piece = piece[n:]
		if !x.flush() {
			return false
		}
	}
	if cut {
		x.flush()
		x.abort = true
		x.rec.End = EndFault + "cut"
		return false
	}
	return true
}

func (x *exchange) flush() bool {
	var err error
	switch w := x.w.(type) {
	case interface{ FlushError() error }:
		err = w.FlushError()
	case http.Flusher:
		w.Flush()
	}
	if err != nil {
		x.left()
		return false
	}
	return true
}

// send answers with a whole body.
func (x *exchange) send(status int, contentType []string, body []byte) {
	x.out = body // a buffer that grew is used again
	x.rec.Status = status
	if x.orders.closeClean >= 0 && status == http.StatusOK {
		x.rec.End = EndFault + "close-clean"
		body = body[:len(body)/2]
	}
	h := x.w.Header()
	h["Content-Type"] = contentType
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	x.w.WriteHeader(status)
	x.begun = true
	o := &x.orders
	switch {
	case status != http.StatusOK:
		x.plain(body)
	case o.cut >= 0 && o.cut < int64(len(body)):
		x.breakOff(body[:o.cut], "cut")
	case o.cutAfter >= 0: // there are no chunks to count
		x.breakOff(body[:len(body)/2], "cut-after")
	case o.hang >= 0:
		x.plain(body[:len(body)/2])
		if x.flush() {
			x.silence(EndFault + "hang")
		}
	case o.split > 0:
		x.write()
	default:
		x.plain(body)
	}
}

// breakOff sends the beginning of a body and drops the connection.
func (x *exchange) breakOff(part []byte, what string) {
	x.plain(part)
	x.flush()
	x.abort = true
	x.rec.End = EndFault + what
}

func (x *exchange) plain(body []byte) {
	n, err := x.w.Write(body)
	x.sent += int64(n)
	if err != nil {
		x.left()
	}
}

// shown is the usage that the answer gives, which the orders may falsify.
func (x *exchange) shown(u Usage) Usage {
	if x.orders.zeroUsage {
		return Usage{}
	}
	return u
}

// appendOutput appends a count of output tokens, or what is to be said instead.
func (x *exchange) appendOutput(b []byte, prefix string, n int64) []byte {
	if x.orders.wrongUsage != "" {
		return append(append(b, prefix...), x.orders.wrongUsage...)
	}
	return appendInt(b, prefix, n)
}

// appendGPU appends the GPU time, where this server is told to give it.
func (x *exchange) appendGPU(b []byte, u Usage) []byte {
	if !x.server.opts.GPUInUsage {
		return b
	}
	return appendInt(b, `,"gpu_ms":`, u.GPUMS)
}

// parse reads a JSON body; nil when it has been refused.
func (x *exchange) parse() (gjson.Result, *badRequest) {
	if tooDeep(x.body) {
		return gjson.Result{}, bad("", "nests too deep")
	}
	if !gjson.ValidBytes(x.body) {
		return gjson.Result{}, bad("", "is not JSON")
	}
	root := gjson.ParseBytes(x.body)
	if !root.IsObject() {
		return gjson.Result{}, bad("", "is not a JSON object")
	}
	return root, nil
}

// whole decodes a reply that is answered in one piece. False: the client left.
func (x *exchange) whole(p *reply) bool {
	if !x.think(p.reasoning) {
		return false
	}
	x.usage.ToolCalls += int64(len(p.calls))
	return p.output == p.reasoning || x.decode(p.output-p.reasoning)
}

// meter is the usage so far, with the GPU time that it took.
func (x *exchange) meter() Usage {
	x.usage.GPUMS = gpuMillis(x.usage.Input, x.usage.Cached, x.usage.Output)
	return x.usage
}

// piece is where the next chunk of text ends, and how many tokens it has.
func (x *exchange) piece(text string, from int) (to int, n int64) {
	to = from
	for range max(1, x.server.opts.TokensPerChunk) {
		next := tokenEnd(text, to)
		if !blank(text[to:next]) {
			n++
		}
		if to = next; to == len(text) {
			break
		}
	}
	return to, n
}

// spare is a buffer to build an answer in.
func (x *exchange) spare() []byte { return x.out[:0] }
