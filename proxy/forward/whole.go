package forward

import (
	"errors"
	"io"
	"net/http"
	"strconv"
	"sync"

	"tollgate/proxy"
	"tollgate/proxy/route"
)

// whole reads a complete answer, looks at it, and passes it on. The client gets
// nothing before all of it is there, so that another upstream can still be tried.
func (t *try) whole(resp *http.Response) *failure {
	c := t.c
	body, more, err := t.readWhole(resp)
	if err != nil {
		return t.broken(err)
	}
	if more {
		return t.overlong(resp, body)
	}
	if !c.endpoint.Free() {
		tally := c.endpoint.Answer(body, resp.Header.Get("Content-Type"), c.ask, c.counter)
		c.ending.Tally, c.ex.ResponseModel = tally, tally.Model
		if tally.Garbage {
			return garbage()
		}
	}
	c.head(resp)
	c.w.Header()["Content-Length"] = []string{strconv.Itoa(len(body))}
	c.w.WriteHeader(resp.StatusCode)
	c.ended(c.write(body))
	return nil
}

func garbage() *failure {
	return &failure{err: errors.New("the upstream's answer is not what its dialect answers"), kind: "upstream_garbage", outcome: route.Bad}
}

// head sets the answer's header. The status is still to be written.
func (c *call) head(resp *http.Response) {
	c.ex.Status, c.wrote = resp.StatusCode, true
	answerHeader(c.w.Header(), resp.Header)
	for _, name := range keptFromSuccess {
		delete(c.w.Header(), name)
	}
	c.ownHeader()
}

// ended notes how an answer ended that the upstream ended in order.
func (c *call) ended(err error) {
	c.ending.Cause = proxy.CauseUpstreamEnd
	if err != nil {
		c.clientGone()
	}
}

// clientGone notes that the client cannot be written to.
func (c *call) clientGone() {
	c.ending.Cause = proxy.CauseClientGone
	if c.ctx.Err() != nil {
		var why *cut
		if c.ending.Cause, why = c.whyOver(); why != nil {
			c.cutReason(why)
			return
		}
	}
	c.ex.ErrorType = "client_gone"
}

// readWhole reads the answer; more says that there is more than is kept.
func (t *try) readWhole(resp *http.Response) (body []byte, more bool, err error) {
	limit := t.c.h.opts.MaxAnswerBytes
	size := int64(4 << 10)
	if n := resp.ContentLength; n >= 0 {
		size = min(n, limit) + 1 // one to meet the end without growing
	}
	body = make([]byte, 0, size)
	for {
		if len(body) == cap(body) {
			body = append(body, 0)[:len(body)]
		}
		t.watch.Reset(t.idle)
		n, err := resp.Body.Read(body[len(body):cap(body)])
		t.watch.Stop()
		body = body[:len(body)+n]
		switch {
		case errors.Is(err, io.EOF):
			return body, false, nil
		case err != nil:
			return nil, false, err
		case int64(len(body)) > limit:
			return body, true, nil
		}
	}
}

// overlong passes on an answer that is too large to be read. What it holds is
// estimated by its length, up to the output that was held for.
func (t *try) overlong(resp *http.Response, begun []byte) *failure {
	c := t.c
	total := int64(len(begun))
	c.head(resp)
	if resp.ContentLength >= 0 {
		c.w.Header()["Content-Length"] = []string{strconv.FormatInt(resp.ContentLength, 10)}
	}
	c.w.WriteHeader(resp.StatusCode)
	err := c.write(begun)
	if err == nil {
		err = t.pour(resp.Body, &total)
	} else {
		c.clientGone()
	}
	c.ending.Tally = proxy.Tally{Content: true, Complete: err == nil}
	c.ending.Tally.Delivered.OutputTokens = min(total/4, c.hold.OutputTokens)
	c.ending.Tally.Delivered.Images = c.ask.Images
	return nil
}

var copyBuffers = sync.Pool{New: func() any { return new([32 << 10]byte) }}

// pour passes the rest of a body on as it comes and notes how that ended.
func (t *try) pour(from io.Reader, total *int64) error {
	c := t.c
	buf := copyBuffers.Get().(*[32 << 10]byte)
	defer copyBuffers.Put(buf)
	for {
		t.watch.Reset(t.idle)
		n, err := from.Read(buf[:])
		t.watch.Stop()
		*total += int64(n)
		if n > 0 {
			if err := c.write(buf[:n]); err != nil {
				c.clientGone()
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			c.ending.Cause = proxy.CauseUpstreamEnd
			return nil
		case err != nil:
			t.brokeOff(err)
			c.abort = true // the client must not take it for whole
			return err
		}
	}
}

// brokeOff notes why an answer that the client has a part of did not end.
func (t *try) brokeOff(err error) {
	c := t.c
	if c.ctx.Err() != nil {
		c.clientGone()
		return
	}
	c.ending.Cause = proxy.CauseUpstreamGone
	c.ex.ErrorType = t.broken(err).kind
}

// binary passes on an answer that nobody here reads.
func (t *try) binary(resp *http.Response, outcome *route.Outcome) *failure {
	c := t.c
	var first [4 << 10]byte
	t.watch.Reset(t.idle)
	n, err := io.ReadAtLeast(resp.Body, first[:], 1)
	t.watch.Stop()
	if err != nil && !errors.Is(err, io.EOF) {
		return t.broken(err)
	}
	*outcome = route.Good
	total := int64(n)
	c.head(resp)
	if resp.ContentLength >= 0 {
		c.w.Header()["Content-Length"] = []string{strconv.FormatInt(resp.ContentLength, 10)}
	}
	c.w.WriteHeader(resp.StatusCode)
	c.ending.Tally = proxy.Tally{Content: n > 0}
	if err = c.write(first[:n]); err != nil {
		c.clientGone()
	} else if err = t.pour(resp.Body, &total); err == nil {
		c.ending.Tally.Complete = true
		return nil
	} else if c.ending.Cause == proxy.CauseUpstreamGone {
		*outcome = route.Bad
	}
	// What was asked for is estimated by its text; of a part, no more than came.
	c.ending.AudioMillis = min(c.ending.AudioMillis, total*1000/audioRate)
	return nil
}

// audioRate is for audio that is not looked at: 64 kbit/s, in bytes a second.
const audioRate = 8_000
