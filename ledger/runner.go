package ledger

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tollgate/events"
)

// Options of a Runner. Zero values take the defaults given.
type Options struct {
	Topic string // default events.TopicEvents
	// Owner names this process in fold_progress; it should be unique, though
	// the fence does not depend on it.
	Owner string

	FlushInterval time.Duration // of the first record in a batch; default 10 s
	FlushEvents   int           // default 1,024
	// MaxBatch is the size of batches while far behind; default 8,192.
	MaxBatch int
	// MaxBatchBytes bounds a batch's payloads; default 16 MiB. Up to three
	// batches are in memory for each partition.
	MaxBatchBytes int
	// StallAfter is how long records may wait without progress before the
	// process is not ready; default 60 s.
	StallAfter time.Duration
	// StopTimeout bounds the last flush after the context ended; default 5 s.
	StopTimeout time.Duration
	// CloseEvery is how often the hour's close is tried; default 5 s.
	CloseEvery time.Duration

	Log     *slog.Logger          // nil discards
	Metrics prometheus.Registerer // nil registers nothing
}

func (o Options) withDefaults() Options {
	if o.Topic == "" {
		o.Topic = events.TopicEvents
	}
	for _, d := range []struct {
		value *time.Duration
		or    time.Duration
	}{
		{&o.FlushInterval, 10 * time.Second},
		{&o.StallAfter, time.Minute},
		{&o.StopTimeout, 5 * time.Second},
		{&o.CloseEvery, 5 * time.Second},
	} {
		if *d.value <= 0 {
			*d.value = d.or
		}
	}
	if o.FlushEvents <= 0 {
		o.FlushEvents = 1024
	}
	if o.MaxBatch <= 0 {
		o.MaxBatch = 8192
	}
	o.MaxBatch = max(o.MaxBatch, o.FlushEvents)
	if o.MaxBatchBytes <= 0 {
		o.MaxBatchBytes = 16 << 20
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// Runner folds the partitions that a consumer is given, closes hours, and knows
// whether the ledger keeps up.
type Runner struct {
	store   Store
	dead    DeadLetterer
	opts    Options
	log     *slog.Logger
	metrics *metrics
	health  health

	ctx    context.Context // ends with Stop
	cancel context.CancelFunc

	mu      sync.Mutex
	stopped bool
	running sync.WaitGroup
}

// NewRunner returns a runner. RunPartition may be used without Start; then no
// hours are closed.
func NewRunner(store Store, dead DeadLetterer, opts Options) *Runner {
	opts = opts.withDefaults()
	r := &Runner{store: store, dead: dead, opts: opts, log: opts.Log, metrics: newMetrics(opts.Metrics)}
	r.health.stallAfter = opts.StallAfter
	r.ctx, r.cancel = context.WithCancel(context.Background())
	return r
}

// Start begins to close hours as they end, at once and then regularly.
func (r *Runner) Start() {
	if !r.enter() {
		return
	}
	go func() {
		defer r.running.Done()
		tick := time.NewTicker(r.opts.CloseEvery)
		defer tick.Stop()
		for {
			r.closeHours()
			select {
			case <-r.ctx.Done():
				return
			case <-tick.C:
			}
		}
	}()
}

func (r *Runner) closeHours() {
	n, err := r.store.CloseHours(r.ctx, time.Now())
	switch {
	case r.ctx.Err() != nil:
	case err != nil:
		r.health.windowFailed(err)
		r.log.Error("hours were not closed; will try again", "error", err)
	default:
		r.health.windowFailed(nil)
		r.metrics.hoursClosed.Add(float64(n))
		if n > 0 {
			r.log.Info("closed hours of the rolling window", "hours", n)
		}
	}
}

// Stop ends all partitions, each after flushing what it holds, and waits for
// them. It may be called again.
func (r *Runner) Stop() {
	r.mu.Lock()
	r.stopped = true
	r.mu.Unlock()
	r.cancel()
	r.running.Wait()
}

// enter counts a goroutine in, unless the runner is stopped.
func (r *Runner) enter() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopped {
		return false
	}
	r.running.Add(1)
	return true
}

// RunPartition folds a partition until ctx or the runner ends; then it flushes
// what it holds and returns nil. It returns an error only where the source
// fails. When it is fenced it stands back for a while and acquires the
// partition again: whoever the consumer group means has its ctx still running.
func (r *Runner) RunPartition(ctx context.Context, partition int, src Source) error {
	if !r.enter() {
		return nil
	}
	defer r.running.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(r.ctx, cancel)()

	state := r.health.add(partition)
	defer r.health.remove(partition, state)
	defer r.metrics.forget(partition)

	for wait := newBackoff(time.Second, 15*time.Second); ; {
		err := r.own(ctx, partition, src, state)
		if !errors.Is(err, ErrFenced) {
			if ctx.Err() != nil && errors.Is(err, context.Canceled) {
				return nil
			}
			return err
		}
		r.metrics.fenced.Inc()
		r.log.Warn("partition was taken by another process", "partition", partition)
		if !wait.sleep(ctx) {
			return nil
		}
	}
}

// own acquires the partition and folds it until ctx ends, the source fails or
// another owner takes over.
func (r *Runner) own(ctx context.Context, partition int, src Source, state *partitionHealth) error {
	var lease Lease
	err := r.persist(ctx, state, "acquire", func() (err error) {
		lease, err = r.store.Acquire(ctx, r.opts.Topic, partition, r.opts.Owner)
		return err
	})
	if err != nil {
		return err
	}
	r.log.Info("partition acquired", "partition", partition, "epoch", lease.Epoch, "next_offset", lease.Next)
	src.SeekTo(lease.Next)
	state.moved(lease.Next)

	// While one batch commits, the next is fetched and decoded.
	collect, stop := context.WithCancel(ctx)
	defer stop()
	c := &collector{opts: &r.opts, src: src, partition: partition, next: lease.Next, state: state, out: make(chan *Batch, 1)}
	collected := make(chan error, 1)
	go func() { collected <- c.run(collect) }()

	err = r.commit(ctx, lease, src, state, c.out)
	stop()
	for range c.out { // what an error left behind is fetched again by the next owner
	}
	return errors.Join(err, <-collected)
}

// commit flushes batches in order. After ctx ends it has StopTimeout to finish.
func (r *Runner) commit(ctx context.Context, lease Lease, src Source, state *partitionHealth, batches <-chan *Batch) error {
	ctx, cancel := outlive(ctx, r.opts.StopTimeout)
	defer cancel()
	for b := range batches {
		var err error
		if lease, err = r.flush(ctx, lease, b, state); err != nil {
			return err
		}
		if err := src.Commit(lease.Next); err != nil {
			// The ledger has its own position; only lag tools are behind now.
			r.log.Debug("consumer group offset was not written", "partition", b.Partition, "error", err)
		}
	}
	return nil
}

// flush publishes the batch's dead letters and commits it, trying again for as
// long as ctx lasts. A batch that the database refuses is halved until the
// record is found; that becomes a dead letter.
func (r *Runner) flush(ctx context.Context, lease Lease, b *Batch, state *partitionHealth) (Lease, error) {
	for i := range b.DeadLetters {
		d := &b.DeadLetters[i]
		err := r.persist(ctx, state, "dead-letter", func() error { return r.dead.DeadLetter(ctx, d.Record, d.Reason) })
		if err != nil {
			return lease, err
		}
		r.log.Warn("record cannot be folded", "partition", b.Partition, "offset", d.Record.Offset,
			"reason", d.Reason, "detail", d.Detail)
	}
	began := time.Now()
	next, counts := lease, Counts{}
	err := r.persist(ctx, state, "flush", func() (err error) {
		next, counts, err = r.store.Flush(ctx, lease, b)
		return err
	})
	var poison *PoisonError
	if errors.As(err, &poison) {
		return r.halve(ctx, lease, b, state, poison)
	}
	if err != nil {
		return lease, err
	}
	if err := counts.Check(); err != nil {
		return lease, fmt.Errorf("after flush of offsets %d to %d: %w", b.First, b.Last, err)
	}
	r.metrics.flushed(b, counts, time.Since(began))
	if counts.Conflicts > 0 {
		r.log.Error("events came again with another content; they are in event_conflicts",
			"partition", b.Partition, "first_offset", b.First, "last_offset", b.Last, "conflicts", counts.Conflicts)
	}
	state.moved(next.Next)
	return next, nil
}

func (r *Runner) halve(ctx context.Context, lease Lease, b *Batch, state *partitionHealth, poison *PoisonError) (Lease, error) {
	if len(b.records) == 1 {
		if len(b.DeadLetters) == 1 {
			return lease, fmt.Errorf("database refuses a batch without events: %w", poison)
		}
		refused := map[int64]string{b.First: poison.Error()}
		only, err := newSummedBatch(b.Topic, b.Partition, b.records, refused)
		if err != nil {
			return lease, err
		}
		return r.flush(ctx, lease, only, state)
	}
	mid := len(b.records) / 2
	for _, part := range [][]events.Record{b.records[:mid], b.records[mid:]} {
		half, err := NewBatch(b.Topic, b.Partition, part)
		if err != nil {
			return lease, err
		}
		if lease, err = r.flush(ctx, lease, half, state); err != nil {
			return lease, err
		}
	}
	return lease, nil
}

// persist repeats do with growing pauses until it succeeds, ctx ends, or
// repeating does not help.
func (r *Runner) persist(ctx context.Context, state *partitionHealth, what string, do func() error) error {
	for wait := newBackoff(50*time.Millisecond, 5*time.Second); ; {
		err := do()
		var poison *PoisonError
		if err == nil || errors.Is(err, ErrFenced) || errors.As(err, &poison) {
			state.failing(nil)
			return err
		}
		if ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
		state.failing(fmt.Errorf("%s: %w", what, err))
		r.metrics.retries.WithLabelValues(what).Inc()
		r.log.Error("will try again", "doing", what, "partition", state.partition, "error", err)
		if !wait.sleep(ctx) {
			return errors.Join(err, ctx.Err())
		}
	}
}

// Ready returns nil when the ledger keeps up, else what is wrong.
func (r *Runner) Ready() error { return r.health.ready(time.Now()) }

// outlive returns a context that ends grace after its parent did.
func outlive(parent context.Context, grace time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(parent))
	stop := context.AfterFunc(parent, func() {
		t := time.NewTimer(grace)
		defer t.Stop()
		select {
		case <-t.C:
			cancel()
		case <-ctx.Done():
		}
	})
	return ctx, func() { stop(); cancel() }
}

// backoff is a growing pause.
type backoff struct{ next, most time.Duration }

func newBackoff(first, most time.Duration) *backoff { return &backoff{next: first, most: most} }

// sleep pauses; it returns false when ctx ended meanwhile.
func (b *backoff) sleep(ctx context.Context) bool {
	t := time.NewTimer(b.next)
	defer t.Stop()
	b.next = min(b.next*2, b.most)
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
