package redis

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"tollgate/admission"
)

// How calls are gathered. Two script calls under way keep Redis busy while the
// answer to one is read; more would only make batches smaller.
const (
	maxBatch    = 64
	maxInFlight = 2
	maxQueue    = 16384 // calls waiting; beyond it the gateway is drowning
)

// op is one operation on its way: its text with a place for the indexes that
// its batch gives to its template and calendar.
type op struct {
	ctx      context.Context
	text     []byte
	split    int    // where the indexes go in text
	template []byte // nil: none
	calendar string
	dated    bool // takes a calendar's index, empty or not

	done  chan struct{}
	reply string
	batch *answers
	err   error
}

// answers are what one script call returned beside the operations' own texts.
type answers struct {
	now    int64 // Redis's time in ms
	states []string
}

var opPool = sync.Pool{New: func() any { return &op{done: make(chan struct{}, 1)} }}

func newOp(ctx context.Context) *op {
	o := opPool.Get().(*op)
	o.ctx, o.text, o.template, o.calendar, o.dated = ctx, o.text[:0], o.template[:0], "", false
	o.split, o.reply, o.batch, o.err = 0, "", nil, nil
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
func (t *target) do(o *op) error {
	t.mu.Lock()
	if t.store.stopping.Load() {
		t.mu.Unlock()
		return fmt.Errorf("%w: the gateway is stopping", admission.ErrUnavailable)
	}
	if len(t.queue) >= maxQueue {
		t.mu.Unlock()
		return fmt.Errorf("%w: %d calls are waiting", admission.ErrUnavailable, maxQueue)
	}
	t.queue = append(t.queue, o)
	if t.inFlight < maxInFlight {
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

// run sends batches until none waits.
func (t *target) run() {
	defer t.store.running.Done()
	b := batchPool.Get().(*batch)
	defer batchPool.Put(b)
	for {
		t.mu.Lock()
		n := min(len(t.queue), maxBatch)
		if n == 0 {
			t.inFlight--
			t.mu.Unlock()
			return
		}
		b.ops = append(b.ops[:0], t.queue[:n]...)
		rest := copy(t.queue, t.queue[n:])
		clear(t.queue[rest:])
		t.queue = t.queue[:rest]
		t.mu.Unlock()
		t.send(b)
	}
}

// batch is what one script call is built from, kept for the next.
type batch struct {
	ops       []*op
	args      []any
	text      []byte
	ends      []int
	templates map[string]int
	calendars map[string]int
	names     []string // templates, then calendars, in the order of their indexes
	dates     []string
}

var batchPool = sync.Pool{New: func() any {
	return &batch{templates: map[string]int{}, calendars: map[string]int{}}
}}

func (t *target) send(b *batch) {
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
	values, err := t.call(b)
	if err != nil && isScriptFault(err) && len(b.ops) > 1 {
		// One operation's fault must not be the others': send each by itself.
		t.store.log.Error("admission script failed; its operations go one by one", "error", err, "operations", len(b.ops))
		one := &batch{templates: map[string]int{}, calendars: map[string]int{}}
		for _, o := range append([]*op(nil), b.ops...) {
			one.ops = append(one.ops[:0], o)
			values, err := t.call(one)
			finish(one.ops, values, err)
		}
		return
	}
	finish(b.ops, values, err)
}

func finish(ops []*op, values []any, err error) {
	var a *answers
	if err == nil {
		a, err = readAnswers(values, len(ops))
	}
	for i, o := range ops {
		if err != nil {
			o.err = fmt.Errorf("%w: %v", admission.ErrUnavailable, err)
		} else {
			o.reply, o.batch = values[i+1].(string), a
		}
		o.done <- struct{}{}
	}
}

func readAnswers(values []any, ops int) (*answers, error) {
	if len(values) < ops+1 {
		return nil, fmt.Errorf("script answered %d values to %d operations", len(values), ops)
	}
	for _, v := range values {
		if _, ok := v.(string); !ok {
			return nil, fmt.Errorf("script answered a %T", v)
		}
	}
	a := &answers{}
	var err error
	if a.now, err = strconv.ParseInt(values[0].(string), 10, 64); err != nil {
		return nil, fmt.Errorf("script's time: %w", err)
	}
	for _, v := range values[ops+1:] {
		a.states = append(a.states, v.(string))
	}
	return a, nil
}

// call runs the script, once more when the first try was lost on the way: the
// operations are idempotent. The batch has its own deadline, because its
// callers have different ones.
func (t *target) call(b *batch) ([]any, error) {
	s := t.store
	args := t.arguments(b)
	s.metrics.batch(len(b.ops))
	var err error
	for try := range 2 {
		started := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), s.opts.Timeout)
		var values []any
		values, err = t.evaluate(ctx, args)
		cancel()
		s.metrics.script(time.Since(started))
		if err == nil {
			return values, nil
		}
		if _, answered := errors.AsType[redis.Error](err); answered {
			break
		}
		if try == 0 {
			s.metrics.retries.Inc()
		}
	}
	return nil, err
}

func (t *target) evaluate(ctx context.Context, args []any) ([]any, error) {
	values, err := t.store.client.Do(ctx, args...).Slice()
	if err == nil || !redis.HasErrorPrefix(err, "NOSCRIPT") {
		return values, err
	}
	// EVAL also keeps the script for the next EVALSHA.
	whole := append([]any{"eval", t.store.source}, args[2:]...)
	return t.store.client.Do(ctx, whole...).Slice()
}

// isScriptFault tells a fault of the script itself from a server that cannot
// serve now.
func isScriptFault(err error) bool {
	e, ok := errors.AsType[redis.Error](err)
	return ok && (strings.HasPrefix(e.Error(), "ERR ") || strings.HasPrefix(e.Error(), "WRONGTYPE"))
}

// arguments builds the command. Templates and calendars that operations share
// are sent once.
func (t *target) arguments(b *batch) []any {
	s := t.store
	clear(b.templates)
	clear(b.calendars)
	b.names, b.dates, b.text, b.ends = b.names[:0], b.dates[:0], b.text[:0], b.ends[:0]
	for _, o := range b.ops {
		b.text = append(b.text, o.text[:o.split]...)
		if len(o.template) > 0 {
			at, ok := b.templates[string(o.template)]
			if !ok {
				name := string(o.template)
				b.names = append(b.names, name)
				at = len(b.names)
				b.templates[name] = at
			}
			b.text = strconv.AppendInt(b.text, int64(at), 10)
			if o.dated {
				b.text = append(b.text, '|')
			}
		}
		if o.calendar != "" {
			at, ok := b.calendars[o.calendar]
			if !ok {
				b.dates = append(b.dates, o.calendar)
				at = len(b.dates)
				b.calendars[o.calendar] = at
			}
			b.text = strconv.AppendInt(b.text, int64(at), 10)
		}
		b.text = append(b.text, o.text[o.split:]...)
		b.ends = append(b.ends, len(b.text))
	}

	hash := s.decide.Hash()
	clear(b.args)
	b.args = append(b.args[:0], "evalsha", hash)
	if t.key == "" {
		b.args = append(b.args, 0)
	} else {
		b.args = append(b.args, 1, t.key)
	}
	b.args = append(b.args, s.opts.Prefix, t.mode, s.backlog.bound(s), s.opts.Retention.Milliseconds(), len(b.names), len(b.dates))
	for _, v := range b.names {
		b.args = append(b.args, v)
	}
	for _, v := range b.dates {
		b.args = append(b.args, v)
	}
	from := 0
	for _, end := range b.ends {
		b.args = append(b.args, b.text[from:end])
		from = end
	}
	if s.redisNow != nil {
		now := s.redisNow().UnixMicro()
		b.args = append(b.args, strconv.FormatInt(now/1e6, 10)+","+strconv.FormatInt(now%1e6, 10))
	}
	return b.args
}
