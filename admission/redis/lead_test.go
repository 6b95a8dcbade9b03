package redis

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"tollgate/admission"
)

// gateHook lets script calls reach Redis and holds up their answers until a test
// lets them go, as what they are or as what the test makes of them.
type gateHook struct {
	came chan struct{}
	open chan func(error) error
}

func newGate(w *world) *gateHook {
	w.left(tenant("any", concurrency(1)), "concurrency") // Redis knows the script from here on
	h := &gateHook{came: make(chan struct{}), open: make(chan func(error) error)}
	w.client.AddHook(h)
	return h
}

func (h *gateHook) DialHook(next goredis.DialHook) goredis.DialHook { return next }
func (h *gateHook) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return next
}

func (h *gateHook) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error {
		if cmd.Name() != "fcall" && !strings.HasPrefix(cmd.Name(), "eval") {
			return next(ctx, cmd)
		}
		err := next(ctx, cmd)
		h.came <- struct{}{}
		if err = (<-h.open)(err); err != nil {
			cmd.SetErr(err)
		}
		return err
	}
}

func pass(err error) error { return err }
func lose(error) error     { return timeoutError{} }

// let waits for a call and lets it go.
func (h *gateHook) let(how func(error) error) {
	<-h.came
	h.open <- how
}

// await waits until so many calls wait behind the one under way.
func (t *target) await(queued int) {
	for n := -1; n != queued; {
		t.mu.Lock()
		n = len(t.queue)
		t.mu.Unlock()
	}
}

func wantIdle(t *testing.T, on *target) {
	t.Helper()
	on.mu.Lock()
	defer on.mu.Unlock()
	if on.inFlight != 0 || len(on.queue) != 0 {
		t.Errorf("%d calls are under way and %d wait, want none", on.inFlight, len(on.queue))
	}
}

// A caller that sends for itself and is cancelled meanwhile gets what was
// decided; those behind it have their own contexts and their own call.
func TestACallerThatSendsForItselfIsCancelled(t *testing.T) {
	w := newWorld(t, miniBackend, 1, nil)
	s, acme := w.stores[0], tenant("acme", concurrency(100))
	gate := newGate(w)
	ctx, cancel := context.WithCancel(t.Context())
	var first, gone, kept error
	var held *admission.Reservation
	var wg, left sync.WaitGroup
	wg.Go(func() { held, first = s.Reserve(ctx, ask(acme, "first", 1)) })
	<-gate.came
	left.Go(func() { _, gone = s.Reserve(ctx, ask(acme, "gone", 1)) })
	wg.Go(func() { _, kept = s.Reserve(t.Context(), ask(acme, "kept", 1)) })
	s.targets[0].await(2)
	cancel()
	left.Wait() // while the first call is still under way
	if !errors.Is(gone, context.Canceled) {
		t.Errorf("the one that waited and left: %v", gone)
	}
	gate.open <- pass
	gate.let(pass)
	wg.Wait()
	if first != nil || held == nil || held.State != "held" || kept != nil {
		t.Errorf("the first got %+v, %v; the other %v", held, first, kept)
	}
	go gate.let(pass)
	w.wantLeft(acme, "concurrency", 2, 0)
	if err := s.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantIdle(t, s.targets[0])
}

// A caller sends for itself alone: it is back while the call for those who came
// meanwhile is under way.
func TestACallerDoesNotServeOthers(t *testing.T) {
	w := newWorld(t, miniBackend, 1, nil)
	s, acme := w.stores[0], tenant("acme", concurrency(1000))
	gate := newGate(w)
	errs := make([]error, 2*maxBatch)
	var first, rest sync.WaitGroup
	first.Go(func() { _, errs[0] = s.Reserve(t.Context(), ask(acme, requestID(0), 1)) })
	<-gate.came
	for i := 1; i < maxBatch; i++ { // one less would start a second call
		rest.Go(func() { _, errs[i] = s.Reserve(t.Context(), ask(acme, requestID(i), 1)) })
	}
	s.targets[0].await(maxBatch - 1)
	gate.open <- pass
	<-gate.came
	first.Wait()
	for i := maxBatch; i < len(errs); i++ { // and these wait for the second, or go as a third
		rest.Go(func() { _, errs[i] = s.Reserve(t.Context(), ask(acme, requestID(i), 1)) })
	}
	gate.open <- pass
	done := make(chan struct{})
	go func() {
		rest.Wait()
		close(done)
	}()
	for open := true; open; {
		select {
		case <-gate.came:
			gate.open <- pass
		case <-done:
			open = false
		}
	}
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
	go gate.let(pass)
	w.wantLeft(acme, "concurrency", int64(len(errs)), 0)
	if err := s.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantIdle(t, s.targets[0])
}

// What befalls the call of one caller is its own affair.
func TestACallersOwnCallFails(t *testing.T) {
	for name, how := range map[string]func(error) error{
		"lost twice": lose,
		"panics":     func(error) error { panic("in a hook") },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, miniBackend, 1, nil)
			s, acme := w.stores[0], tenant("acme", concurrency(100))
			gate := newGate(w)
			var first, kept error
			var wg sync.WaitGroup
			wg.Go(func() {
				defer func() {
					if p := recover(); p != nil { // as net/http does
						first = admission.ErrUnavailable
					}
				}()
				_, first = s.Reserve(t.Context(), ask(acme, "first", 1))
			})
			<-gate.came
			wg.Go(func() { _, kept = s.Reserve(t.Context(), ask(acme, "kept", 1)) })
			s.targets[0].await(1)
			gate.open <- how
			if name == "lost twice" {
				gate.let(how)
			}
			gate.let(pass)
			wg.Wait()
			if !errors.Is(first, admission.ErrUnavailable) || kept != nil {
				t.Errorf("the first got %v, the other %v", first, kept)
			}
			go gate.let(pass)
			w.wantLeft(acme, "concurrency", 2, 0) // what was decided stays
			if err := s.Stop(t.Context()); err != nil {
				t.Fatal(err)
			}
			wantIdle(t, s.targets[0])
		})
	}
}

// A Redis that takes a call and does not answer keeps its caller no longer than
// the caller's own deadline, and the call is not repeated after it.
func TestACallerThatSendsForItselfHasADeadline(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { // answers the greeting, and nothing else
				defer conn.Close()
				buf := make([]byte, 4096)
				for {
					n, err := conn.Read(buf)
					if err != nil {
						return
					}
					if strings.Contains(strings.ToLower(string(buf[:n])), "hello") {
						_, _ = conn.Write([]byte("-ERR unknown command\r\n"))
					}
				}
			})
		}
	})
	client := goredis.NewClient(&goredis.Options{
		Addr: listener.Addr().String(), Protocol: 2, DisableIdentity: true, MaxRetries: -1,
		ReadTimeout: -1, WriteTimeout: -1, ContextTimeoutEnabled: true,
	})
	s, err := New(Options{Client: client, Timeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := s.Reserve(ctx, ask(tenant("acme"), "r", 1)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	wantIdle(t, s.targets[0])
	if err := errors.Join(client.Close(), listener.Close(), s.Stop(t.Context())); err != nil {
		t.Error(err)
	}
	wg.Wait()
}
