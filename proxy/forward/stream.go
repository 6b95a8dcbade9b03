package forward

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"tollgate/admission/answer"
	"tollgate/events"
	"tollgate/proxy"
	"tollgate/proxy/route"
	"tollgate/proxy/sse"
)

const (
	// afterEnd is how long an upstream may take after its answer's end to end the
	// stream as well.
	afterEnd = 10 * time.Second
	// afterMarker is how long it may take after its dialect's end marker.
	afterMarker = 250 * time.Millisecond
	// Comments before the first event are held back so that another upstream can
	// still be tried, but not for longer than a client waits for a head, and no more
	// of them than this.
	heldFor   = 5 * time.Second
	heldBytes = 4 << 10
)

// Reads of a stream are small: they hold a buffer for as long as the stream is
// open.
var readBuffers = sync.Pool{New: func() any { return new([2 << 10]byte) }}

// outBuffers hold what one read lets through.
var outBuffers = sync.Pool{New: func() any { b := make([]byte, 0, 4<<10); return &b }}

const keepOut = 64 << 10

// streamer passes one stream on.
type streamer struct {
	t      *try
	c      *call
	resp   *http.Response
	follow proxy.Stream
	parser *sse.Parser
	each   func(sse.Event) error

	out    *[]byte // what the read that is looked at lets through; nil: nothing
	held   []byte  // comments before the first event
	event  bool    // an event that is no comment was seen
	head   bool    // the answer's head was written
	marked bool    // its dialect's end marker was seen
	began  time.Time

	meter meter
}

// stream passes a streamed answer on, event by event.
func (t *try) stream(resp *http.Response, outcome *route.Outcome) *failure {
	c := t.c
	s := &streamer{
		t: t, c: c, resp: resp, follow: c.endpoint.Stream(c.ask, c.counter), parser: sse.New(c.h.opts.MaxEventBytes), began: c.h.opts.Now(),
	}
	s.each = s.take
	s.meter.init(c)
	buf := readBuffers.Get().(*[2 << 10]byte)
	defer readBuffers.Put(buf)
	idle, last := t.idle, false // last: the end marker has passed, and what is read is not
	for {
		t.watch.Reset(idle)
		n, err := resp.Body.Read(buf[:])
		t.watch.Stop()
		var why *cut
		if n > 0 {
			_ = s.parser.Feed(buf[:n], s.each) // take gives no error
		}
		if errors.Is(err, io.EOF) {
			_ = s.parser.End(s.each)
		}
		tally := s.follow.Tally(false)
		if f := s.early(&tally, err); f != nil {
			return f
		}
		if why = s.pass(&tally); why != nil {
			*outcome = route.Good
			s.end(why)
			return nil
		}
		if s.marked {
			// Nothing that follows is of the answer, but the end of the stream itself is
			// worth a moment: with it the connection can be kept.
			if err == nil && !last {
				last, idle = true, min(idle, afterMarker)
				continue
			}
			*outcome = s.over(io.EOF, &tally)
			return nil
		}
		if err != nil {
			*outcome = s.over(err, &tally)
			return nil
		}
		if tally.Complete {
			idle = min(idle, afterEnd)
		}
	}
}

// take looks at an event and lets it through or not.
func (s *streamer) take(ev sse.Event) error {
	if s.marked {
		return nil
	}
	action := s.follow.Event(ev)
	s.marked = endMarker(ev)
	s.event = s.event || ev.HasData || ev.Cut || len(ev.Name) > 0
	if action == proxy.Forward || ev.Begun {
		if s.out == nil {
			s.out = outBuffers.Get().(*[]byte)
		}
		*s.out = append(*s.out, ev.Raw...)
	}
	return nil
}

// endMarker says that an event is the last of its stream in its dialect: OpenAI's
// [DONE], Anthropic's message_stop.
func endMarker(ev sse.Event) bool {
	return string(bytes.TrimSpace(ev.Data)) == "[DONE]" || string(ev.Name) == "message_stop"
}

// early decides, while the client has nothing, whether another upstream should
// be tried instead.
func (s *streamer) early(tally *proxy.Tally, err error) *failure {
	if s.head {
		return nil
	}
	more := s.c.triesLeft
	s.c.ending.Tally = *tally
	switch {
	case !s.event && err != nil:
		s.giveBack()
		if errors.Is(err, io.EOF) {
			return &failure{err: errors.New("the upstream's stream was empty"), kind: "upstream_broken", outcome: route.Bad}
		}
		return s.t.broken(err)
	case tally.Garbage && !tally.Content:
		s.giveBack()
		return garbage()
	case tally.Failed && !tally.Content && more:
		s.giveBack()
		return &failure{err: errors.New("the upstream's stream began with an error"), kind: "upstream_failed", outcome: route.Bad}
	}
	return nil
}

// giveBack gives the buffer back: an idle stream holds none.
func (s *streamer) giveBack() {
	if s.out != nil && cap(*s.out) <= keepOut {
		*s.out = (*s.out)[:0]
		outBuffers.Put(s.out)
	}
	s.out = nil
}

// pass writes what the last read let through: one write and one flush. It
// returns why the stream must end before that.
func (s *streamer) pass(tally *proxy.Tally) *cut {
	defer s.giveBack()
	c := s.c
	if tally.Content && c.ex.FirstToken == 0 {
		now := c.h.opts.Now()
		c.ex.FirstToken = now.Sub(c.ex.Began)
		s.t.at.Well(now)
	}
	if why := s.meter.allow(s.follow, tally); why != nil {
		return why
	}
	if !s.head {
		if !s.event && len(s.held)+s.waiting() < heldBytes && c.h.opts.Now().Sub(s.began) < heldFor {
			if s.out != nil {
				s.held = append(s.held, *s.out...)
			}
			return nil
		}
		s.begin()
	}
	if s.waiting() > 0 {
		if err := c.write(*s.out); err != nil {
			return errClient
		}
	}
	c.ending.Tally = *tally // what is charged if the next read makes somebody panic
	s.meter.passed(tally)
	return nil
}

func (s *streamer) waiting() int {
	if s.out == nil {
		return 0
	}
	return len(*s.out)
}

// errClient stands for a client that cannot be written to.
var errClient = &cut{reason: "client_gone"}

// begin writes the answer's head.
func (s *streamer) begin() {
	s.head = true
	s.t.release()
	s.c.head(s.resp)
	h := s.c.w.Header()
	if _, given := h["Cache-Control"]; !given {
		h["Cache-Control"] = []string{"no-cache"}
	}
	h["X-Accel-Buffering"] = []string{"no"} // a reverse proxy before the gateway must not collect
	s.c.w.WriteHeader(s.resp.StatusCode)
	if s.c.reserved != nil {
		s.c.reserved.Left = nil // told, and as large as the rest of the call
	}
	if len(s.held) > 0 {
		if s.out == nil {
			s.out = &s.held
		} else {
			*s.out = append(s.held, *s.out...)
		}
		s.held = nil
	}
}

// over ends a stream that the upstream, the client or somebody in Tollgate has
// ended. It says what the upstream is to be thought of.
func (s *streamer) over(err error, tally *proxy.Tally) route.Outcome {
	c := s.c
	done := errors.Is(err, io.EOF) || tally.Complete && errors.Is(context.Cause(s.t.ctx), errIdle)
	if !done && c.ctx.Err() != nil {
		_, why := c.whyOver()
		switch {
		case why != nil:
			s.end(why)
			return route.Good
		case !tally.Complete:
			s.end(errClient)
			return route.Good
		}
		done = true // the client has all of the answer: many leave at its end marker
	}
	c.ending.Tally = s.final()
	c.ex.ResponseModel = c.ending.Tally.Model
	if done {
		c.ending.Cause = proxy.CauseUpstreamEnd
		if !c.ending.Tally.Complete || c.ending.Tally.Failed {
			c.ex.ErrorType = "upstream_broken"
			return route.Bad
		}
		return route.Good
	}
	f := s.t.broken(err)
	c.ending.Cause, c.ex.ErrorType = proxy.CauseUpstreamGone, f.kind
	if c.ending.Tally.Complete { // the client has all of the answer, which a retry need not give again
		c.ending.Cause = proxy.CauseUpstreamEnd
	} else {
		status := http.StatusBadGateway
		if f.kind == "upstream_timeout" {
			status = http.StatusGatewayTimeout
		}
		c.h.log.WarnContext(c.ctx, "upstream broke off", append(c.attrs(), "error", err)...)
		s.last(c.dialect.ErrorEvent(c.endpoint, &answer.Answer{
			Status: status, Reason: f.kind, Detail: "The model's server broke off its answer.",
		}, c.requestID))
	}
	return route.Bad
}

// final is the tally that is charged by.
func (s *streamer) final() proxy.Tally {
	t := s.follow.Tally(true)
	if d := &t.Delivered; s.c.bound > 0 && d.OutputTokens > s.c.bound {
		d.OutputTokens, d.ReasoningTokens = s.c.bound, min(d.ReasoningTokens, s.c.bound)
	}
	return t
}

// end ends the stream before the upstream does.
func (s *streamer) end(why *cut) {
	c := s.c
	s.t.cancel(why)
	c.ending.Tally = s.final()
	c.ex.ResponseModel = c.ending.Tally.Model
	if why == errClient {
		c.clientGone()
		return
	}
	c.ending.Cause = proxy.CauseCut
	s.meter.clip(&c.ending.Tally)
	c.cutReason(why)
	if !s.head {
		c.refuse(why.answer)
		return
	}
	s.last(s.follow.Finish(proxy.End{Reason: why.reason, Detail: why.detail, Usage: proxy.Judge(c.ending).Usage}))
}

// last writes Tollgate's own events at the stream's end.
func (s *streamer) last(own []byte) {
	if s.parser.Open() {
		own = append([]byte("\n\n"), own...) // ends the event that the client has a part of
	}
	_ = s.c.write(own) // a client that is gone misses nothing
}

// cutReason notes why Tollgate ended the answer.
func (c *call) cutReason(why *cut) {
	c.reason, c.ex.ErrorType = why.reason, why.reason
	c.h.metrics.cuts.WithLabelValues(why.reason).Inc()
}

// writePiece is how much is written before the time-out begins anew.
const writePiece = 256 << 10

// write writes to the client and flushes. It waits as long as the client takes
// something, up to the time-out.
func (c *call) write(b []byte) error {
	for {
		c.extendWrite()
		piece := b[:min(len(b), writePiece)]
		if len(piece) == 0 {
			break
		}
		if _, err := c.w.Write(piece); err != nil {
			return err
		}
		b = b[len(piece):]
	}
	if err := c.rc.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

// extendWrite moves the deadline of writes when a quarter of it has passed: not
// with each write, since each moves a timer.
func (c *call) extendWrite() {
	now := time.Now()
	limit := c.h.opts.ClientWriteTimeout
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cutting || now.Before(c.writeUntil.Add(-limit*3/4)) {
		return
	}
	c.writeUntil = now.Add(limit)
	_ = c.rc.SetWriteDeadline(c.writeUntil) // some writers have none
}

// figures are what a tally says so far, for a report: the prompt counts once
// there is an answer to it.
func (c *call) figures(tally *proxy.Tally) events.Usage {
	if !tally.Content {
		return events.Usage{}
	}
	u := tally.Delivered
	u.InputTokens = c.ending.InputTokens
	if c.bound > 0 {
		u.OutputTokens = min(u.OutputTokens, c.bound)
	}
	if said := tally.Usage; said != nil {
		u.OutputTokens = max(u.OutputTokens, said.OutputTokens)
		if said.InputTokens > 0 {
			u.InputTokens, u.CachedInputTokens = said.InputTokens, said.CachedInputTokens
		}
	}
	u.ReasoningTokens = min(u.ReasoningTokens, u.OutputTokens)
	return u
}
