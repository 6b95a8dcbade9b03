package forward

import (
	"errors"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"tollgate/admission/answer"
)

const (
	// smallBody is a body that is not worth counting, and how much room is made for
	// any before it has come.
	smallBody = 64 << 10
	// sendingOn is how long a client may go on sending what is refused, so that it
	// comes to read why.
	sendingOn = 5 * time.Second
)

// readBody reads the request's body whole: where it goes and what it may cost
// is in it. The server's own time-outs, which are for short requests, end here.
func (c *call) readBody() *answer.Answer {
	limit := c.h.opts.MaxBodyBytes
	if c.r.ContentLength > limit {
		return bodyTooLarge(limit)
	}
	if encoding := c.r.Header.Get("Content-Encoding"); encoding != "" && !strings.EqualFold(encoding, "identity") {
		return &answer.Answer{
			Status: http.StatusUnsupportedMediaType, Reason: "encoding_not_supported",
			Detail: "Send the body without Content-Encoding.",
		}
	}
	a := arrival{c: c, began: time.Now()}
	c.receiveBody()
	refused, err := a.read(limit)
	defer func() { c.received(refused == nil && err == nil) }()
	c.body = a.data
	if c.r.ContentLength >= 0 && err == nil && int64(len(c.body)) < c.r.ContentLength {
		err = io.ErrUnexpectedEOF
	}
	switch {
	case refused != nil:
		c.body, a.data = nil, nil
		c.giveRoom()
		if !a.pour(limit) {
			c.w.Header().Set("Connection", "close")
		}
		return refused
	case err == nil:
		return nil
	case c.ctx.Err() != nil && !errors.Is(err, os.ErrDeadlineExceeded): // at which net/http ends the context, too
		return c.overBefore()
	}
	c.w.Header().Set("Connection", "close")
	if _, why := c.whyOver(); why != nil {
		return why.answer
	}
	if c.h.isDraining() {
		return shuttingDown()
	}
	return &answer.Answer{
		Status: http.StatusBadRequest, Reason: "body_unreadable", Cause: err,
		Detail: "The body ended early or came too slowly.",
	}
}

// arrival is a body that comes.
type arrival struct {
	c     *call
	began time.Time
	data  []byte
	got   int64 // poured away included
	renew int64 // bytes at which there is more time
}

// read reads to the end into a buffer that grows with what has come: who
// announces much has not sent it yet.
func (a *arrival) read(limit int64) (*answer.Answer, error) {
	c := a.c
	expected := min(max(c.r.ContentLength+1, 512), limit+1) // one to meet the end without growing
	a.data = make([]byte, 0, min(expected, smallBody))
	for {
		a.await(c.h.opts.BodyTimeout)
		n, err := c.r.Body.Read(a.data[len(a.data):cap(a.data)])
		a.data, a.got = a.data[:len(a.data)+n], a.got+int64(n)
		switch size := int64(len(a.data)); {
		case errors.Is(err, io.EOF):
			return nil, nil
		case err != nil:
			return nil, err
		case size > limit:
			return bodyTooLarge(limit), nil
		case len(a.data) == cap(a.data):
			next := min(2*size, limit+1)
			if size < expected {
				next = min(next, expected)
			}
			if refused := c.takeRoom(next); refused != nil {
				return refused, nil
			}
			grown := make([]byte, size, next)
			copy(grown, a.data)
			a.data = grown
		}
	}
}

// await gives the client time for the next bytes: some at first, and then as
// long as it keeps the least rate, but never longer than timeout in all.
func (a *arrival) await(timeout time.Duration) {
	if a.got < a.renew {
		return
	}
	o := &a.c.h.opts
	a.renew = a.got + o.BodyRate
	a.c.readUntil(a.began.Add(min(timeout, o.BodyGrace+time.Duration(a.got/o.BodyRate)*time.Second)))
}

// pour reads the rest of a body and forgets it; true: that was all.
func (a *arrival) pour(limit int64) bool {
	buf := copyBuffers.Get().(*[32 << 10]byte)
	defer copyBuffers.Put(buf)
	timeout := time.Since(a.began) + sendingOn
	for a.got <= limit {
		a.await(timeout)
		n, err := a.c.r.Body.Read(buf[:])
		a.got += int64(n)
		if err != nil {
			return errors.Is(err, io.EOF)
		}
	}
	return false
}

// readUntil sets the deadline of reads, which is not later than the call's own.
// net/http ends it with the body.
func (c *call) readUntil(deadline time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.readLimit.IsZero() && deadline.After(c.readLimit) {
		deadline = c.readLimit
	}
	// What serves without connections, such as a test's recorder, has no deadlines.
	_ = c.rc.SetReadDeadline(deadline)
}

// receiveBody notes that the body is being read.
func (c *call) receiveBody() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.receiving = true
}

// received notes that the body is not read any more; whole, that it is here.
func (c *call) received(whole bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.receiving = false; whole && !c.readLimit.IsZero() && !c.cutting {
		// The limit may have been set right after net/http had ended the deadline,
		// and it looks out for the client's leaving by a read of its own.
		_ = c.rc.SetReadDeadline(time.Time{})
	}
}

// takeRoom counts a large body's buffer, up to n bytes: limits on concurrency
// come after a body is read, so what is read at one time has a bound of its own,
// and each tenant a share of it.
func (c *call) takeRoom(n int64) *answer.Answer {
	if n <= smallBody {
		return nil
	}
	o := &c.h.opts
	most := min(max(o.MaxBodiesBytes/4, o.MaxBodyBytes+1), o.MaxBodiesBytes)
	if c.h.room.take(c.principal.Tenant.ID, n-c.room, most, o.MaxBodiesBytes) {
		c.room = n
		return nil
	}
	return &answer.Answer{
		Status: http.StatusServiceUnavailable, Reason: "too_many_large_bodies", RetryAfter: 1,
		Type: answer.TypeReducedCapacity, Title: answer.TitleReducedCapacity,
		Detail: "This gateway holds as many large requests as it may, or as one tenant may. Repeat after Retry-After.",
	}
}

func (c *call) giveRoom() {
	if c.room > 0 {
		c.h.room.give(c.principal.Tenant.ID, c.room)
		c.room = 0
	}
}

func bodyTooLarge(limit int64) *answer.Answer {
	return &answer.Answer{
		Status: http.StatusRequestEntityTooLarge, Reason: "body_too_large", GiveUp: true,
		Detail: "The body has more than " + strconv.FormatInt(limit, 10) + " bytes.",
	}
}
