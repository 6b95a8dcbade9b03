package forward

import (
	"errors"
	"math"
	"time"

	"tollgate/admission"
	"tollgate/admission/answer"
	"tollgate/events"
	"tollgate/proxy"
)

const capDetail = "The answer is longer than the request's output cap, which the model's server did not heed."

// meter watches what a stream has delivered against what is held for it.
//
// Up to its hold a stream reports in the background, every so many tokens. Beyond
// it, what comes next is asked for before it is delivered: a report of what there
// will be after the next step, which the final figures replace.
type meter struct {
	c        *call
	granted  int64 // output tokens that are held for or were granted
	reported int64 // of the last report
	check    int64 // rough count at which to count exactly
	most     int64 // output tokens beyond which the upstream ignores the cap
	counted  int64 // the last exact count
}

func (m *meter) init(c *call) {
	m.c, m.granted, m.most = c, c.hold.OutputTokens, math.MaxInt64
	m.check = m.granted / 3
	if c.ask.MaxOutputTokens >= 0 {
		// A count of ours may be larger than the upstream's: by little with its own
		// tokenizer, by much without. An estimate is up to three times the tokens of
		// indented code, tables and long words, and must not cut an answer within its cap.
		asked := times(max(c.ask.MaxOutputTokens, 1), c.ask.Choices)
		slack := times(asked, 3) + 1024
		if c.counter.Exact() {
			slack = asked/16 + 64
		} else {
			c.bound = asked
		}
		if m.most = asked + slack; m.most < asked {
			m.most = math.MaxInt64
		}
	}
}

// allow says whether what the tally has may be delivered.
func (m *meter) allow(follow proxy.Stream, tally *proxy.Tally) *cut {
	rough := max(m.c.figures(tally).OutputTokens, tally.Delivered.OutputTokens)
	if rough < m.check {
		return nil
	}
	exact := follow.Tally(true)
	u := m.c.figures(&exact)
	m.counted = max(u.OutputTokens, exact.Delivered.OutputTokens)
	if m.counted > m.most {
		return &cut{reason: proxy.EndOutputCap, detail: capDetail, answer: &answer.Answer{
			Status: 502, Reason: proxy.EndOutputCap, Detail: capDetail,
		}}
	}
	if m.c.limited && u.OutputTokens > m.granted {
		if why := m.ask(u); why != nil {
			return why
		}
	}
	room := m.granted - u.OutputTokens
	if !m.c.limited || m.c.bound > 0 && u.OutputTokens == m.c.bound {
		room = m.most - m.counted
	}
	m.check = rough + max(room/3, 1)
	return nil
}

// ask reports ahead: what is delivered after the next step.
func (m *meter) ask(u events.Usage) *cut {
	c := m.c
	u.OutputTokens += c.h.opts.ProgressTokens
	res, err := c.send(u)
	if err != nil && unknown(err) {
		res, err = c.send(u)
	}
	if why := stopOf(res, err, true); why != nil {
		return why
	}
	m.granted, m.reported = u.OutputTokens, u.OutputTokens
	return nil
}

// passed notes what was delivered, and reports it when it is time.
func (m *meter) passed(tally *proxy.Tally) {
	c := m.c
	u := c.figures(tally)
	due := u.OutputTokens-m.reported >= c.h.opts.ProgressTokens
	c.mu.Lock()
	c.progress = u
	start := due && !c.reporting && !c.over
	if start {
		c.reporting = true
	}
	c.mu.Unlock()
	if start {
		m.reported = u.OutputTokens
		c.h.reports.Add(1)
		go c.report(u)
	}
}

// clip takes from the tally what came with the read that was not delivered.
func (m *meter) clip(tally *proxy.Tally) {
	if m.c.limited && m.granted > 0 && m.counted > m.granted {
		tally.Delivered.OutputTokens = min(tally.Delivered.OutputTokens, m.granted)
		tally.Delivered.ReasoningTokens = min(tally.Delivered.ReasoningTokens, tally.Delivered.OutputTokens)
	}
}

// send reports progress.
func (c *call) send(u events.Usage) (*admission.Reservation, error) {
	return c.h.opts.Store.Report(c.h.patience.get(), &admission.UsageReport{
		Tenant: c.principal.Tenant, ReservationID: c.reserved.ID, Total: u, Estimated: true, Author: author, TTL: c.ttl,
	})
}

// report reports in the background, one report of a call at a time.
func (c *call) report(u events.Usage) {
	defer c.h.reports.Done()
	res, err := c.send(u)
	wait := c.h.progressEvery(c.ttl)
	if err != nil {
		wait /= 8 // there is time for more tries before the hold ends
	}
	c.mu.Lock()
	c.reporting = false
	c.nextReport = c.h.opts.Now().Add(wait)
	over := c.over
	c.mu.Unlock()
	if over {
		return
	}
	if err != nil {
		c.h.log.WarnContext(c.ctx, "progress was not recorded", "request_id", c.requestID, "reservation", c.reserved.ID, "error", err)
	}
	if why := stopOf(res, err, false); why != nil {
		c.interrupt(why)
	}
}

// stopOf says why work must end after a report. must: without an answer the work
// may not go on.
func stopOf(res *admission.Reservation, err error, must bool) *cut {
	switch {
	case errors.Is(err, admission.ErrAlreadyFinal), errors.Is(err, admission.ErrNotFound):
		return &cut{reason: "reservation_ended", detail: "The request's reservation was ended by somebody else.", answer: answer.Of(err)}
	case err != nil && must:
		return &cut{reason: "quota_unknown", detail: "The answer has outgrown what was reserved for it, and whether more is allowed cannot be asked now.", answer: answer.Of(err)}
	case err != nil || res.Stop == nil:
		return nil
	case res.Stop.Reason == admission.ReasonExpired:
		return &cut{reason: "hold_expired", detail: "The request's hold has expired.", answer: &answer.Answer{
			Status: 503, Reason: "hold_expired", RetryAfter: 1, Detail: "The request's hold expired before its answer. Repeat the request.",
		}}
	}
	a := answer.OfRefusal(res.Stop)
	return &cut{reason: proxy.EndQuota, detail: "The answer has outgrown what the limit " + res.Stop.Constraint.Limit.Name + " allows.", answer: a}
}

func (h *Handler) progressEvery(ttl time.Duration) time.Duration {
	if h.opts.ProgressEvery > 0 {
		return h.opts.ProgressEvery
	}
	return ttl / 3
}

// look is the ticker's look at the call: a silent one is reported so that its
// hold does not expire, and one that has lasted as long as it may is ended.
func (c *call) look(now time.Time) {
	c.mu.Lock()
	if c.over || c.reserved == nil {
		c.mu.Unlock()
		return
	}
	expired := now.After(c.lastsUntil)
	start := !expired && !c.reporting && now.After(c.nextReport)
	if start {
		c.reporting = true
		c.h.reports.Add(1)
	}
	u := c.progress
	c.mu.Unlock()
	switch {
	case expired:
		c.interrupt(&cut{reason: "max_hold", detail: "The request has lasted as long as any may.", answer: &answer.Answer{
			Status: 504, Reason: "max_hold", GiveUp: true, Detail: "The request has lasted as long as any may.",
		}})
	case start:
		go c.report(u)
	}
}
