// Package redis keeps the admission state in Redis and decides there.
//
// One Lua script (admission.lua) decides a batch of operations: reserves,
// usage reports, settles, cancels and expiries. It reads everything the batch
// needs, decides each operation in order against the state that the ones
// before it left, and writes all changes together with their events, so that
// there is no gap between deciding and recording. A Store gathers the calls
// that arrive while one is under way; a call on an idle gateway goes at once.
//
// On a single Redis one script call does everything. On a cluster a tenant's
// state and outbox lie in one slot, and limits over all tenants in a slot of
// their own: they are leased there first, under a short deadline, and given
// back when the tenant's script refuses.
//
// Everything here may be repeated: a retry after a timeout meets the record
// that the first try left.
package redis

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"tollgate/admission"
	"tollgate/tenancy"
)

//go:embed admission.lua
var decideSource string

//go:embed outbox.lua
var outboxSource string

//go:embed seed.lua
var seedSource string

// Mode says how keys are spread.
type Mode int

// Modes. ModeAuto takes ModeCluster for a cluster client, else ModeSingle.
const (
	ModeAuto Mode = iota
	ModeSingle
	ModeCluster
)

// Options of a Store. Client is required; the rest have defaults.
type Options struct {
	// Client should have ContextTimeoutEnabled: without it a deadline that ends
	// before the client's own time-outs does not end a call.
	Client redis.UniversalClient
	Mode   Mode
	Prefix string // of every key; "tg:". Without braces, spaces and '|'
	Shards int    // 64; must not change while state exists

	// Retention is how long the record of an ended reservation answers repeats;
	// 24 h.
	Retention time.Duration
	// MaxBacklog bounds the records waiting in all outboxes; beyond it reserves
	// are refused with ErrBacklogFull. 1,000,000.
	MaxBacklog int64
	// Timeout of one script call; 2 s. A call that times out is sent once more.
	Timeout time.Duration

	Logger     *slog.Logger          // slog.Default()
	Registerer prometheus.Registerer // nil: no metrics
}

// Store implements admission.Store. It is safe for concurrent use.
type Store struct {
	opts    Options
	client  redis.UniversalClient
	cluster bool
	log     *slog.Logger
	metrics *metrics

	decide       *program
	outbox, seed *redis.Script

	targets []*target // one, or one a shard
	pool    *target   // a cluster's pool
	notes   noter
	backlog backlogGuard
	zones   sync.Map // time zone name → *zone

	attempts  atomic.Uint64
	attemptID string

	running  sync.WaitGroup
	stopping atomic.Bool

	now func() time.Time // the gateway's clock
	// redisNow, in tests, is sent to a script that takes it for Redis's time.
	redisNow func() time.Time
}

var _ admission.Store = (*Store)(nil)

// New returns a Store. It opens nothing by itself; call Stop when done.
func New(opts Options) (*Store, error) {
	if opts.Client == nil {
		return nil, errors.New("admission/redis: no client")
	}
	setDefaults(&opts)
	if strings.ContainsAny(opts.Prefix, "{}| \n") {
		return nil, fmt.Errorf("admission/redis: prefix %q holds braces, '|' or spaces", opts.Prefix)
	}
	if opts.Shards < 1 || opts.Shards > 1000 {
		return nil, fmt.Errorf("admission/redis: %d shards, want 1 to 1000", opts.Shards)
	}
	if _, ok := opts.Client.(*redis.Ring); ok {
		return nil, errors.New("admission/redis: a client-side ring cannot keep one shard's keys together")
	}
	s := &Store{
		opts: opts, client: opts.Client, log: opts.Logger, now: time.Now,
		decide: newProgram(decideSource), outbox: redis.NewScript(outboxSource), seed: redis.NewScript(seedSource),
		attemptID: strconv.FormatUint(rand.Uint64(), 36),
	}
	s.cluster = opts.Mode == ModeCluster
	if opts.Mode == ModeAuto {
		_, s.cluster = opts.Client.(*redis.ClusterClient)
	}
	var err error
	if s.metrics, err = newMetrics(opts.Registerer); err != nil {
		return nil, fmt.Errorf("admission/redis: metrics: %w", err)
	}
	if !s.cluster {
		s.targets = []*target{{store: s, mode: "s"}}
		return s, nil
	}
	for shard := range opts.Shards {
		s.targets = append(s.targets, &target{store: s, mode: "t", key: s.shardKey(shard, "meta")})
	}
	s.pool = &target{store: s, mode: "p", key: opts.Prefix + "{pool}:l"}
	return s, nil
}

func setDefaults(o *Options) {
	if o.Prefix == "" {
		o.Prefix = "tg:"
	}
	if o.Shards == 0 {
		o.Shards = 64
	}
	if o.Retention <= 0 {
		o.Retention = 24 * time.Hour
	}
	if o.MaxBacklog <= 0 {
		o.MaxBacklog = 1_000_000
	}
	if o.Timeout <= 0 {
		o.Timeout = 2 * time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
}

// Stop refuses further calls and waits for those under way, or for ctx. It may
// be called twice. It does not close the client.
func (s *Store) Stop(ctx context.Context) error {
	s.stopping.Store(true)
	for _, t := range append(s.targets, s.pool) {
		if t != nil {
			t.waitForCallers()
		}
	}
	done := make(chan struct{})
	go func() {
		s.running.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *Store) shardKey(shard int, name string) string {
	return s.opts.Prefix + "{s" + shardNumber(shard) + "}:" + name
}

// shardNumber has two digits, or three beyond 99.
func shardNumber(shard int) string {
	if shard < 10 {
		return "0" + strconv.Itoa(shard)
	}
	return strconv.Itoa(shard)
}

func (s *Store) target(shard int) *target {
	if s.cluster {
		return s.targets[shard]
	}
	return s.targets[0]
}

// Ready implements admission.Store: every shard answers and has an epoch.
func (s *Store) Ready(ctx context.Context) error {
	epochs, err := s.Epoch(ctx)
	if err != nil {
		return err
	}
	if len(epochs) < s.opts.Shards {
		return fmt.Errorf("%w: %d of %d shards", admission.ErrNotRebuilt, len(epochs), s.opts.Shards)
	}
	return nil
}

// Get implements admission.Store.
func (s *Store) Get(ctx context.Context, tenant *tenancy.Tenant, reservationID string) (*admission.Reservation, error) {
	hash, created, err := admission.ParseReservationID(reservationID)
	if err != nil {
		return nil, err
	}
	shard := admission.Shard(tenant.ID, s.opts.Shards)
	text, err := s.client.Get(ctx, s.shardKey(shard, "r:"+tenant.ID+":"+hash)).Result()
	if errors.Is(err, redis.Nil) {
		return nil, admission.ErrNotFound
	}
	if err != nil {
		return nil, s.outOfReach(ctx, err)
	}
	r, err := parseRecord(text, hash)
	if err != nil {
		return nil, err
	}
	if r.created != created {
		return nil, admission.ErrNotFound
	}
	return r.reservation()
}

// outOfReach turns a client's error into what callers branch on: their own
// context's end, else ErrUnavailable.
func (s *Store) outOfReach(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("%w: %w", admission.ErrUnavailable, err)
}
