package forward

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"tollgate/admission"
	"tollgate/proxy"
)

// maxPending bounds the settlements that wait for the store to come back.
const maxPending = 50_000

// Waits between tries of one settlement.
const (
	firstWait   = 100 * time.Millisecond
	longestWait = 5 * time.Second
)

// final is a reservation's end on its way to the store.
type final struct {
	report admission.UsageReport
	cancel bool
	attrs  []any
}

// unknown says that a call of the store may have taken effect or not, and may be
// repeated.
func unknown(err error) bool {
	return errors.Is(err, admission.ErrUnavailable) || errors.Is(err, admission.ErrNotRebuilt) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// settle ends the call's reservation at what its ending costs. It is called
// once for each way out and does nothing the second time.
func (c *call) settle() {
	if c.reserved == nil || c.ex.Ended {
		return
	}
	charged := proxy.Judge(c.ending)
	if charged.Verb == proxy.Cancel && c.reason != "" {
		charged.Reason = c.reason
	}
	c.ex.Charged, c.ex.Ended = charged, true
	c.mu.Lock()
	c.over = true // no report after the final figures
	c.mu.Unlock()
	f := &final{
		cancel: charged.Verb == proxy.Cancel,
		report: admission.UsageReport{
			Tenant: c.principal.Tenant, ReservationID: c.reserved.ID, Total: charged.Usage, Estimated: charged.Estimated,
			Author: author, Reason: charged.Reason,
		},
	}
	ctx := c.h.patience.get()
	if err := c.h.settler.do(ctx, f); err != nil {
		f.attrs = c.attrs()
		if unknown(err) {
			c.h.settler.later(f, err)
			return
		}
		c.h.settler.failed(f, err)
		return
	}
	c.h.metrics.settled.Inc()
}

// settler records figures that could not be recorded at once.
type settler struct {
	h   *Handler
	ctx context.Context // ends when nobody waits any more
	end context.CancelFunc

	mu      sync.Mutex
	pending int
	closed  bool
	lost    int
	idle    chan struct{} // closed when closed and nothing is pending
}

func (s *settler) init(h *Handler) {
	s.h, s.idle = h, make(chan struct{})
	s.ctx, s.end = context.WithCancel(context.Background())
}

func (s *settler) do(ctx context.Context, f *final) error {
	var err error
	if f.cancel {
		_, err = s.h.opts.Store.Cancel(ctx, &f.report)
	} else {
		_, err = s.h.opts.Store.Settle(ctx, &f.report)
	}
	return err
}

// failed notes figures that no repeat will record.
func (s *settler) failed(f *final, err error) {
	s.h.metrics.unsettled.WithLabelValues(unsettledWord(err)).Inc()
	s.h.log.Error("reservation was not settled with its figures", append(f.attrs, "figures", f.report.Total, "cancel", f.cancel, "error", err)...)
	s.mu.Lock()
	s.lost++
	s.mu.Unlock()
}

func unsettledWord(err error) string {
	switch {
	case errors.Is(err, admission.ErrAlreadyFinal):
		return "already_final" // somebody else ended it: the tenant, or the reconciler
	case errors.Is(err, admission.ErrNotFound):
		return "not_found"
	case unknown(err):
		return "gave_up"
	}
	return "refused"
}

// later tries in the background until it is recorded, the time is up, or nobody
// waits any more.
func (s *settler) later(f *final, cause error) {
	s.mu.Lock()
	full := s.pending >= maxPending || s.closed && s.pending == 0
	if !full {
		s.pending++
	}
	s.mu.Unlock()
	if full {
		s.failed(f, cause)
		return
	}
	s.h.metrics.waiting.Inc()
	s.h.log.Warn("settlement is tried again", append(f.attrs, "error", cause)...)
	go func() {
		defer func() {
			s.h.metrics.waiting.Dec()
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.pending--; s.closed && s.pending == 0 {
				close(s.idle)
			}
		}()
		if err := s.persist(f); err != nil {
			s.failed(f, err)
			return
		}
		s.h.metrics.settled.Inc()
	}()
}

func (s *settler) persist(f *final) error {
	ctx, cancel := context.WithTimeout(s.ctx, s.h.opts.SettleTimeout)
	defer cancel()
	wait := firstWait
	for {
		timer := time.NewTimer(wait/2 + rand.N(wait/2))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
		once, done := context.WithTimeout(ctx, s.h.opts.DecideTimeout)
		err := s.do(once, f)
		done()
		if err == nil || !unknown(err) {
			return err
		}
		wait = min(2*wait, longestWait)
	}
}

// wait returns when everything is recorded or given up, and how much was given
// up. When ctx ends everything is.
func (s *settler) wait(ctx context.Context) (lost int) {
	s.mu.Lock()
	s.closed = true
	if s.pending == 0 {
		close(s.idle)
	}
	before := s.lost
	s.mu.Unlock()
	select {
	case <-s.idle:
	case <-ctx.Done():
		s.end()
		<-s.idle
	}
	s.end()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lost - before
}
