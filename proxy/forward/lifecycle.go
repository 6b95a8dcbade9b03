package forward

import (
	"context"
	"errors"
	"time"

	"tollgate/proxy"
)

// tickEvery is how often silent calls are looked at. Whoever wants reports more
// often than that gets them with the stream's pieces.
const tickEvery = 250 * time.Millisecond

// Start starts the ticker that keeps the holds of silent calls alive. The
// handler answers before, too, but such calls would lose their holds.
func (h *Handler) Start() error {
	h.started.Do(func() { go h.tick() })
	return nil
}

// Stop refuses new requests and those whose bodies do not come now, waits for those under way until ctx or the drain's
// time-out, ends the rest in their dialect, and returns when every reservation
// has ended, or ctx has. It may be called twice.
func (h *Handler) Stop(ctx context.Context) error {
	h.stopped.Do(func() { h.stopErr = h.stop(ctx) })
	return h.stopErr
}

func (h *Handler) stop(ctx context.Context) error {
	h.mu.Lock()
	h.draining = true
	if len(h.calls) == 0 {
		close(h.idle)
	}
	h.mu.Unlock()
	// Whose body is not here yet has cost nobody anything: another gateway takes it.
	for _, c := range h.list(nil) {
		c.hurry(time.Now().Add(lastWords))
	}

	patience, cancel := context.WithTimeout(ctx, h.opts.DrainTimeout)
	defer cancel()
	select {
	case <-h.idle:
	case <-patience.Done():
		h.endAll()
		// What is left are last words and settlements, which have bounds of their own.
		limit := time.NewTimer(lastWords + 3*h.opts.DecideTimeout)
		defer limit.Stop()
		select {
		case <-h.idle:
		case <-limit.C:
			h.log.Error("requests do not end", "requests", h.underWay())
		}
	}
	h.started.Do(func() { close(h.ticked) }) // never started: nothing to wait for
	close(h.quit)
	<-h.ticked
	h.reports.Wait()
	if lost := h.settler.wait(ctx); lost > 0 {
		h.log.Error("reservations are left to the reconciler", "reservations", lost)
		return errors.New("proxy/forward: some reservations were not settled before the time was up")
	}
	return nil
}

// enter counts a call in; false while draining.
func (h *Handler) enter(c *call) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.draining {
		return false
	}
	h.calls[c] = struct{}{}
	h.metrics.underWay.Inc()
	return true
}

func (h *Handler) leave(c *call) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.calls, c)
	h.metrics.underWay.Dec()
	if h.draining && len(h.calls) == 0 {
		close(h.idle)
	}
}

func (h *Handler) underWay() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.calls)
}

func (h *Handler) isDraining() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.draining
}

func (h *Handler) endAll() {
	why := &cut{reason: proxy.EndShutdown, detail: "The gateway is shutting down.", answer: shuttingDown()}
	for _, c := range h.list(nil) {
		c.interrupt(why)
	}
}

// list appends the calls under way.
func (h *Handler) list(to []*call) []*call {
	h.mu.Lock()
	defer h.mu.Unlock()
	for c := range h.calls {
		to = append(to, c)
	}
	return to
}

// tick looks at all calls again and again: one goroutine for all of them.
func (h *Handler) tick() {
	defer close(h.ticked)
	ticker := time.NewTicker(tickEvery)
	defer ticker.Stop()
	var calls []*call
	for {
		select {
		case <-h.quit:
			return
		case <-ticker.C:
		}
		calls = h.list(calls[:0])
		now := h.opts.Now()
		for _, c := range calls {
			c.look(now)
		}
		clear(calls)
	}
}
