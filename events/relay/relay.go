// Package relay copies the outbox to the log: it reads what admission recorded,
// publishes it with every replica's acknowledgement, and trims only what was
// acknowledged. A crash at any point repeats entries, with the same event ids,
// and loses none.
//
// Shards are divided among relays by leases. A lease saves work; it does not
// guard correctness: two relays that hold one shard for a moment publish the
// same ids, and either may trim only what it saw acknowledged itself.
//
// While the log is away, the outbox grows and the relay keeps trying; it holds
// at most two rounds of entries in memory. A relay to which the log acknowledged
// nothing for the time of a lease leaves its shards to others, which may reach
// the log. It also lets the outbox expire the holds of its shards, once a second.
package relay

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

// Outbox is where admission records its events, in shards of ordered entries.
// Every method may be repeated.
type Outbox interface {
	// Claim takes or renews leases for owner, which end ttl from now, and
	// returns all shards that it holds. Shards are shared fairly among owners
	// that claim. A shard that is not in the answer is no longer the owner's.
	Claim(ctx context.Context, owner string, ttl time.Duration) ([]int, error)
	// ReadMany returns, for each shard, up to limit entries after the entry id of
	// the same index, in order; from the first that is not trimmed where that is "".
	// What cannot be read has an error in its place, and no entries.
	ReadMany(ctx context.Context, shards []int, after []string, limit int) ([][]events.OutboxEntry, []error)
	// Trim removes last and every entry before it, exactly.
	Trim(ctx context.Context, shard int, last events.OutboxEntry) error
	// Backlog returns how many records are in all shards.
	Backlog(ctx context.Context) (int64, error)
	// Sweep expires the shard's holds whose time has passed and returns how
	// many. Their events go through the outbox like all others.
	Sweep(ctx context.Context, shard int) (int, error)
}

// Releaser is an Outbox that can give leases up before they end, so that a
// relay which stops hands its shards over at once.
type Releaser interface {
	// Release gives up every lease of the owner.
	Release(ctx context.Context, owner string) error
}

// Publisher is the log's writing end.
type Publisher interface {
	// Publish returns nil when all events are acknowledged, else a
	// *events.PublishError that names those which are not known to be.
	Publish(ctx context.Context, topic string, evs []events.Event) error
	// DeadLetter keeps a record that the log refuses, with the reason.
	DeadLetter(ctx context.Context, r events.Record, reason string) error
}

// Options configure a relay. Zero values take the defaults.
type Options struct {
	Outbox    Outbox
	Publisher Publisher
	Owner     string // unique among relays
	// Probe returns nil when the log can be reached. A relay that had to leave
	// its shards claims again only then; without it, after a pause.
	Probe func(ctx context.Context) error

	LeaseTTL       time.Duration // default 10 s; leases are renewed each third of it
	ReadMax        int           // entries of one read of one shard; default 256
	RoundEvents    int           // events published together, about; default 4096
	Readers        int           // shards read in one exchange, or trimmed at once; default 16
	PollMin        time.Duration // pause after a shard had entries; default 5 ms
	PollMax        time.Duration // pause of an idle shard; default 100 ms
	PublishTimeout time.Duration // of one try; default 10 s
	SweepInterval  time.Duration // default 1 s
	// BacklogAlarm is the backlog in records from which on Healthy fails and an
	// error is logged; default 50,000.
	BacklogAlarm int64

	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

// Relay copies the shards it owns until it is stopped.
type Relay struct {
	opts    Options
	log     *slog.Logger
	metrics *metrics
	began   time.Time // quiet shards are read in a beat that starts here

	mu          sync.Mutex
	shards      map[int]*shard
	leaseUntil  time.Time
	claimErr    error
	publishErr  error
	failedSince time.Time
	aside       aside
	backlog     int64
	backlogErr  error

	wake   chan struct{} // a shard was claimed
	start  sync.Once
	stop   sync.Once
	cancel context.CancelFunc
	done   sync.WaitGroup
}

// shard is what a relay knows of a shard that it owns. A shard that is lost and
// claimed again gets a new value, so that rounds of before do not touch it.
type shard struct {
	id         int
	after      string // last entry read; "" reads from the first untrimmed
	trimmed    string // last entry trimmed by this relay
	generation int    // grows when reading starts over; rounds of before are void
	pollAt     time.Time
	delay      time.Duration
	failures   int
}

// New returns a relay that is not started. It registers its metrics.
func New(opts Options) (*Relay, error) {
	if opts.Outbox == nil || opts.Publisher == nil || opts.Owner == "" {
		return nil, errors.New("relay: an outbox, a publisher and an owner are needed")
	}
	setDefault(&opts.LeaseTTL, 10*time.Second)
	setDefault(&opts.ReadMax, 256)
	setDefault(&opts.RoundEvents, 4096)
	setDefault(&opts.Readers, 16)
	setDefault(&opts.PollMin, 5*time.Millisecond)
	setDefault(&opts.PollMax, 100*time.Millisecond)
	setDefault(&opts.PublishTimeout, 10*time.Second)
	setDefault(&opts.SweepInterval, time.Second)
	setDefault(&opts.BacklogAlarm, 50_000)
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	r := &Relay{
		opts: opts, log: opts.Logger, began: time.Now(), shards: map[int]*shard{}, wake: make(chan struct{}, 1),
		claimErr: errNotStarted,
	}
	r.metrics = newMetrics()
	if opts.Registerer != nil {
		if err := r.metrics.register(opts.Registerer); err != nil {
			return nil, fmt.Errorf("relay metrics: %w", err)
		}
	}
	return r, nil
}

var errNotStarted = errors.New("relay is not running")

func setDefault[T int | int64 | time.Duration](v *T, value T) {
	if *v <= 0 {
		*v = value
	}
}

// Start runs the relay in the background. The outbox and the log need not be
// there yet. Only the first call does anything.
func (r *Relay) Start() {
	r.start.Do(func() {
		ctx, cancel := context.WithCancel(context.Background())
		r.cancel = cancel
		rounds := make(chan round)
		r.done.Go(func() { r.claimLoop(ctx) })
		r.done.Go(func() { r.sweepLoop(ctx) })
		r.done.Go(func() { r.backlogLoop(ctx) })
		r.done.Go(func() { r.readLoop(ctx, rounds) })
		r.done.Go(func() { r.publishLoop(ctx, rounds) })
	})
}

// Stop ends the relay and waits for it. A round that is being published gets a
// moment to end, so that it is trimmed rather than repeated. It may be called
// twice, and before Start.
func (r *Relay) Stop() {
	r.start.Do(func() {}) // a relay that was stopped does not start
	r.stop.Do(func() {
		if r.cancel != nil {
			r.cancel()
		}
	})
	r.done.Wait()
	r.release()
}

func (r *Relay) release() {
	owned := r.ownedNow()
	r.mu.Lock()
	r.claimErr = errNotStarted
	r.shards = map[int]*shard{}
	r.mu.Unlock()
	r.metrics.owned.Set(0)
	if len(owned) > 0 {
		r.giveUp(context.Background())
	}
}

// Healthy returns nil while the relay holds valid leases or has none to hold,
// publishes without failure, and the backlog is below the alarm.
func (r *Relay) Healthy() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.claimErr != nil:
		return fmt.Errorf("relay: leases: %w", r.claimErr)
	case r.publishErr != nil:
		return fmt.Errorf("relay: log has been away since %s: %w", r.failedSince.UTC().Format(time.RFC3339), r.publishErr)
	case r.backlogErr != nil:
		return fmt.Errorf("relay: backlog: %w", r.backlogErr)
	case r.backlog >= r.opts.BacklogAlarm:
		return fmt.Errorf("relay: backlog of %d records is over the alarm at %d", r.backlog, r.opts.BacklogAlarm)
	}
	return nil
}

// Backlog returns the outbox's size in records, as last seen.
func (r *Relay) Backlog() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.backlog
}
