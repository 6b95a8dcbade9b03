package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"tollgate/admission"
)

// How calls are gathered. While one script call is under way the others wait
// and go together: a call has a fixed cost that they then share, and Redis runs
// one script at a time anyway. A second call starts only for a full batch.
const (
	maxBatch    = 64
	maxInFlight = 2
	maxQueue    = 16384 // calls waiting; beyond it the gateway is drowning
)

// op is one operation on its way. Its arguments are kept one after the other in
// text; what it shares with others of its batch, by name.
type op struct {
	ctx      context.Context
	kind     byte
	tenant   string // empty: a pool operation
	calendar string // of the tenant; empty: none
	template []byte // empty: none
	text     []byte
	ends     []int

	done  chan struct{}
	reply string
	batch *answers
	err   error
}

// end ends an argument.
func (o *op) end() { o.ends = append(o.ends, len(o.text)) }

func (o *op) argument(s string) {
	o.text = append(o.text, s...)
	o.end()
}

func (o *op) number(v int64) {
	o.text = strconv.AppendInt(o.text, v, 10)
	o.end()
}

// answers are what one script call returned beside the operations' own texts.
type answers struct {
	now    int64 // Redis's time in ms
	states []string
}

var opPool = sync.Pool{New: func() any { return &op{done: make(chan struct{}, 1)} }}

func newOp(ctx context.Context) *op {
	o := opPool.Get().(*op)
	o.ctx, o.kind, o.tenant, o.calendar = ctx, 0, "", ""
	o.text, o.ends, o.template = o.text[:0], o.ends[:0], o.template[:0]
	o.reply, o.batch, o.err = "", nil, nil
	return o
}

// free gives an op back. Only an op whose answer was taken may be freed: the
// batch may still write to another.
func (o *op) free() {
	o.ctx = nil
	opPool.Put(o)
}

// target is a place that one script call can reach: the single Redis, a
// cluster's shard or its pool.
type target struct {
	store *Store
	mode  string
	key   string // routes the call in a cluster

	mu       sync.Mutex
	queue    []*op
	inFlight int
}

// do sends an operation and waits for its answer. An error means that nothing
// is known to have happened.
//
// Where no call is under way the caller sends its operation itself, alone: to
// wake another goroutine for it would cost more than the call. It is then back
// at its own deadline, as everybody, but not sooner when it is cancelled.
func (t *target) do(o *op) error {
	t.mu.Lock()
	if t.store.stopping.Load() {
		t.mu.Unlock()
		return fmt.Errorf("%w: the gateway is stopping", admission.ErrUnavailable)
	}
	if t.inFlight == 0 { // and so nobody waits
		t.inFlight++
		t.store.running.Add(1)
		t.mu.Unlock()
		return t.lead(o)
	}
	if len(t.queue) >= maxQueue {
		t.mu.Unlock()
		return fmt.Errorf("%w: %d calls are waiting", admission.ErrUnavailable, maxQueue)
	}
	t.queue = append(t.queue, o)
	if t.inFlight < maxInFlight && len(t.queue) >= maxBatch {
		t.inFlight++
		t.store.running.Add(1)
		go t.run()
	}
	t.mu.Unlock()

	select {
	case <-o.done:
		return o.err
	case <-o.ctx.Done():
		return o.ctx.Err()
	}
}

// lead sends one operation on its caller's goroutine. What was decided is its
// answer, whatever has become of the caller meanwhile.
func (t *target) lead(o *op) error {
	defer t.handOver() // also where the call panics: net/http would go on without it
	b := batchPool.Get().(*batch)
	b.ops = append(b.ops[:0], o)
	t.send(o.ctx, b)
	batchPool.Put(b)
	<-o.done
	if o.err != nil {
		if err := over(o.ctx); err != nil {
			return err
		}
	}
	return o.err
}

// over is why the context is over, if it is. A connection notices a deadline
// sooner than some contexts do.
func over(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if deadline, ok := ctx.Deadline(); ok && !time.Now().Before(deadline) {
		return context.DeadlineExceeded
	}
	return nil
}

// handOver ends a caller's lead. Those who came meanwhile go on without it.
func (t *target) handOver() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.queue) > 0 {
		go t.run()
		return
	}
	t.inFlight--
	t.store.running.Done()
}

// waitForCallers returns when whoever was past do's check has been counted.
func (t *target) waitForCallers() {
	t.mu.Lock()
	defer t.mu.Unlock()
}

// run sends batches until none waits.
func (t *target) run() {
	defer t.store.running.Done()
	b := batchPool.Get().(*batch)
	defer batchPool.Put(b)
	for {
		t.mu.Lock()
		n := min(len(t.queue), maxBatch)
		if n == 0 || t.inFlight > 1 && n < maxBatch { // the other one takes the rest
			t.inFlight--
			t.mu.Unlock()
			return
		}
		b.ops = append(b.ops[:0], t.queue[:n]...)
		rest := copy(t.queue, t.queue[n:])
		clear(t.queue[rest:])
		t.queue = t.queue[:rest]
		t.mu.Unlock()
		t.send(context.Background(), b) // its callers have different deadlines
	}
}

// batch is what one script call is built from, kept for the next.
type batch struct {
	ops  []*op
	args []any // pointers into parts: a string in an interface is an allocation
	// parts and ends are the arguments; text is all of them together.
	parts []string
	text  []byte
	ends  []int

	templates map[string]int
	calendars map[string]int
	tenants   map[owner]int
	names     []string // in the order of their indexes
	dates     []string
	owners    []owner
}

// owner is a tenant with the calendar that its operation was sent with.
type owner struct{ tenant, calendar string }

func newBatch() *batch {
	return &batch{templates: map[string]int{}, calendars: map[string]int{}, tenants: map[owner]int{}}
}

var batchPool = sync.Pool{New: func() any { return newBatch() }}

// send calls the script for all that are still waited for. The call ends with ctx.
func (t *target) send(ctx context.Context, b *batch) {
	live := b.ops[:0]
	for _, o := range b.ops {
		if err := o.ctx.Err(); err != nil {
			o.err = err // its caller has gone
			o.done <- struct{}{}
			continue
		}
		live = append(live, o)
	}
	b.ops = live
	if len(live) == 0 {
		return
	}
	reply, err := t.call(ctx, b)
	if err != nil && isScriptFault(err) {
		t.store.faulty(b.ops, err)
	}
	if err != nil && isScriptFault(err) && len(b.ops) > 1 {
		// One operation's fault must not be the others': send each by itself.
		one := newBatch()
		for _, o := range append([]*op(nil), b.ops...) {
			one.ops = append(one.ops[:0], o)
			reply, err := t.call(ctx, one)
			if err != nil && isScriptFault(err) {
				t.store.faulty(one.ops, err)
			}
			finish(one.ops, reply, err)
		}
		return
	}
	finish(b.ops, reply, err)
}

// faulty tells of a script that failed: a mistake in it, or state that cannot be
// read, which a person must mend.
func (s *Store) faulty(ops []*op, err error) {
	s.metrics.faults.Inc()
	if len(ops) > 1 {
		s.log.Error("admission script failed; its operations go one by one", "error", err, "operations", len(ops))
		return
	}
	s.log.Error("admission script failed", "error", err, "tenant", ops[0].tenant)
}

// finish gives each operation its line of the reply: Redis's time, a line an
// operation, a line for each template's states.
func finish(ops []*op, reply string, err error) {
	a := &answers{}
	if err == nil {
		var now string
		now, reply, _ = strings.Cut(reply, "\n")
		a.now, err = strconv.ParseInt(now, 10, 64)
		if lines := strings.Count(reply, "\n") + 1; err == nil && lines < len(ops) {
			err = fmt.Errorf("script answered %d lines to %d operations", lines, len(ops))
		}
	}
	if err != nil {
		for _, o := range ops {
			o.err = fmt.Errorf("%w: %w", admission.ErrUnavailable, err)
			o.done <- struct{}{}
		}
		return
	}
	more := true
	for _, o := range ops {
		o.reply, reply, more = strings.Cut(reply, "\n")
		o.batch = a
	}
	for more {
		var line string
		line, reply, more = strings.Cut(reply, "\n")
		a.states = append(a.states, line)
	}
	for _, o := range ops {
		o.done <- struct{}{}
	}
}

// call runs the script, once more when the first try was lost on the way: the
// operations are idempotent. Each try has the store's time-out, and no longer
// than ctx.
func (t *target) call(ctx context.Context, b *batch) (string, error) {
	s := t.store
	args := t.arguments(b)
	s.metrics.batch(len(b.ops))
	var err error
	for try := range 2 {
		started := time.Now()
		tryCtx, cancel := within(ctx, s.opts.Timeout)
		var reply string
		reply, err = t.evaluate(tryCtx, args)
		cancel()
		s.metrics.script(time.Since(started))
		if err == nil {
			return reply, nil
		}
		if _, answered := errors.AsType[redis.Error](err); answered || over(ctx) != nil {
			break
		}
		if try == 0 {
			s.metrics.retries.Inc()
		}
	}
	return "", err
}

// within is context.WithTimeout, without a timer where ctx ends sooner anyway.
func within(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if own, ok := ctx.Deadline(); ok && time.Until(own) <= d {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, d)
}

// isScriptFault tells a fault of the script itself from a server that cannot
// serve now.
func isScriptFault(err error) bool {
	e, ok := errors.AsType[redis.Error](err)
	return ok && (strings.HasPrefix(e.Error(), "ERR ") || strings.HasPrefix(e.Error(), "WRONGTYPE"))
}

// arguments builds the command. Templates, calendars and tenants that operations
// share are sent once.
func (t *target) arguments(b *batch) []any {
	s := t.store
	b.share()
	b.text, b.ends = b.text[:0], b.ends[:0]
	// A function has met the templates before; a script takes each anew.
	apart := s.decide.scriptsOnly()
	for _, v := range b.names {
		b.add(v)
		if !apart {
			b.addNumber(0)
			continue
		}
		b.addNumber(strings.Count(v, ";"))
		for line := range strings.SplitSeq(strings.TrimSuffix(v, ";"), ";") {
			for part := range strings.SplitSeq(line, ",") {
				b.add(part)
			}
		}
	}
	for _, v := range b.dates {
		b.add(v)
	}
	for _, v := range b.owners {
		b.add(shardNumber(admission.Shard(v.tenant, s.opts.Shards)))
		b.add(v.tenant)
		b.addNumber(b.calendars[v.calendar]) // 0 for none
	}
	for _, o := range b.ops {
		b.text = append(b.text, o.kind)
		b.ends = append(b.ends, len(b.text))
		b.addNumber(1000*b.tenants[owner{o.tenant, o.calendar}] + b.templates[string(o.template)])
		from := 0
		for _, end := range o.ends {
			b.text = append(b.text, o.text[from:end]...)
			b.ends = append(b.ends, len(b.text))
			from = end
		}
	}

	clear(b.args)
	b.args = append(b.args[:0], "", "") // command and program
	if t.key == "" {
		b.args = append(b.args, 0)
	} else {
		b.args = append(b.args, 1, t.key)
	}
	b.args = append(b.args, s.opts.Prefix, t.mode, s.backlog.bound(s), s.opts.Retention.Milliseconds(),
		len(b.names), len(b.dates), len(b.owners))
	all, from := string(b.text), 0
	b.parts = slices.Grow(b.parts[:0], len(b.ends)) // first: the pointers stay
	for _, end := range b.ends {
		b.parts = append(b.parts, all[from:end])
		b.args = append(b.args, &b.parts[len(b.parts)-1])
		from = end
	}
	if s.redisNow != nil {
		now := s.redisNow().UnixMicro()
		b.args = append(b.args, strconv.FormatInt(now/1e6, 10)+","+strconv.FormatInt(now%1e6, 10))
	}
	return b.args
}

// share numbers what the operations name, from 1. The index of "" is 0.
func (b *batch) share() {
	clear(b.templates)
	clear(b.calendars)
	clear(b.tenants)
	b.names, b.dates, b.owners = b.names[:0], b.dates[:0], b.owners[:0]
	for _, o := range b.ops {
		if _, ok := b.templates[string(o.template)]; !ok && len(o.template) > 0 {
			name := string(o.template)
			b.names = append(b.names, name)
			b.templates[name] = len(b.names)
		}
		if _, ok := b.calendars[o.calendar]; !ok && o.calendar != "" {
			b.dates = append(b.dates, o.calendar)
			b.calendars[o.calendar] = len(b.dates)
		}
		if d := (owner{o.tenant, o.calendar}); o.tenant != "" && b.tenants[d] == 0 {
			b.owners = append(b.owners, d)
			b.tenants[d] = len(b.owners)
		}
	}
}

func (b *batch) add(s string) {
	b.text = append(b.text, s...)
	b.ends = append(b.ends, len(b.text))
}

func (b *batch) addNumber(n int) {
	b.text = strconv.AppendInt(b.text, int64(n), 10)
	b.ends = append(b.ends, len(b.text))
}
