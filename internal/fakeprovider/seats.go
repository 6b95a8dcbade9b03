package fakeprovider

import (
	"context"
	"net/http"
	"slices"
	"sync"
)

// seats is how much a server of models takes at once: so many answers, and so
// many tokens in the KV cache. Who comes when it is full waits in line, and is
// turned away when the line is long enough.
type seats struct {
	slots, queue int
	room         int64
	mu           sync.Mutex
	running      int
	held         int64
	line         []*waiter
}

type waiter struct {
	need  int64
	ready chan struct{} // closed when it is in
}

func newSeats(slots int, room int64, queue int) *seats {
	return &seats{slots: slots, room: room, queue: queue}
}

func (s *seats) slotFree() bool { return s.slots == 0 || s.running < s.slots }

func (s *seats) fits(need int64) bool {
	return s.slotFree() && (s.room == 0 || s.held+need <= s.room)
}

// enter takes a seat of need tokens. The status is 0 when it is in, that of a
// refusal when it is full, and −1 when ctx ended first.
func (s *seats) enter(ctx context.Context, need int64) int {
	if s.slots == 0 && s.room == 0 {
		return 0
	}
	s.mu.Lock()
	if len(s.line) == 0 && s.fits(need) {
		s.take(need)
		s.mu.Unlock()
		return 0
	}
	if len(s.line) >= s.queue {
		defer s.mu.Unlock()
		if !s.slotFree() {
			return http.StatusTooManyRequests
		}
		return http.StatusServiceUnavailable
	}
	w := &waiter{need, make(chan struct{})}
	s.line = append(s.line, w)
	s.mu.Unlock()
	select {
	case <-w.ready:
		return 0
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if at := slices.Index(s.line, w); at >= 0 {
		s.line = slices.Delete(s.line, at, at+1)
	} else { // it was let in at the same moment
		s.give(need)
	}
	s.admit() // those behind it may be smaller
	return -1
}

// leave gives a seat back.
func (s *seats) leave(need int64) {
	if s.slots == 0 && s.room == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.give(need)
	s.admit()
}

func (s *seats) take(need int64) { s.running++; s.held += need }
func (s *seats) give(need int64) { s.running--; s.held -= need }

// admit lets in whoever is first in line, as long as there is room for it.
func (s *seats) admit() {
	for len(s.line) > 0 && s.fits(s.line[0].need) {
		s.take(s.line[0].need)
		close(s.line[0].ready)
		s.line = slices.Delete(s.line, 0, 1)
	}
}

// admit takes a seat for a request, or refuses it. False: it is over.
func (x *exchange) admit(a *ask) bool {
	s := x.server.seats
	output := int64(48)
	switch {
	case x.orders.tokens >= 0:
		output = x.orders.tokens
	case x.server.opts.OutputTokens > 0:
		output = x.server.opts.OutputTokens
	}
	if output += a.reason; a.max >= 0 {
		output = min(output, a.max)
	}
	need := a.input + output*int64(a.choices)
	if s.room > 0 && need > s.room {
		x.fail(http.StatusBadRequest, bad("messages", "This model's maximum context length is exceeded."))
		return false
	}
	switch status := s.enter(x.ctx, need); status {
	case 0:
		x.admitted = need + 1
		return true
	case -1:
		x.left()
	default:
		x.w.Header().Set("Retry-After", "1")
		x.fail(status, bad("", "The server is full. Try again later."))
	}
	return false
}
