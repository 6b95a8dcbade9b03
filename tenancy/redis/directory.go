package redis

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"tollgate/tenancy"
)

// Directory answers from memory who may spend and how much. It follows what a
// Publisher writes, and keeps its last good state while Redis is away, empty
// or holds something unusable: admission refuses by itself then, and a
// directory that forgot its tenants would only answer wrongly sooner.
type Directory struct {
	client redis.UniversalClient
	keys   keys
	log    *slog.Logger
	now    func() time.Time
	resync time.Duration

	snapshot atomic.Pointer[snapshot]
	failure  atomic.Pointer[error]
	loaded   chan struct{} // closed at the first snapshot

	start  sync.Once
	stop   sync.Once
	cancel context.CancelFunc
	done   sync.WaitGroup
}

var _ tenancy.Directory = (*Directory)(nil)

// DirectoryOptions tunes a Directory. Zero values take the defaults.
type DirectoryOptions struct {
	// Resync is how often everything is loaded anew, whatever the changes say:
	// 5 minutes.
	Resync time.Duration
	// Now is the clock that keys expire by: time.Now.
	Now    func() time.Time
	Logger *slog.Logger
}

// NewDirectory returns a directory that is not running yet. The client stays
// the caller's.
func NewDirectory(client redis.UniversalClient, prefix string, o DirectoryOptions) *Directory {
	if o.Resync <= 0 {
		o.Resync = 5 * time.Minute
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Directory{
		client: client, keys: keysOf(prefix), log: o.Logger, now: o.Now, resync: o.Resync,
		loaded: make(chan struct{}),
	}
}

// Start begins to load and follow, and returns at once: until the first load
// Authenticate gives tenancy.ErrNotReady. A second call does nothing.
func (d *Directory) Start() {
	d.start.Do(func() {
		ctx, cancel := context.WithCancel(context.Background())
		d.cancel = cancel
		wake := make(chan struct{}, 1)
		d.done.Go(func() { d.listen(ctx, wake) })
		d.done.Go(func() { d.follow(ctx, wake) })
	})
}

// Stop ends following. It waits, and may be called again. The last state stays
// readable.
func (d *Directory) Stop() {
	d.start.Do(func() {}) // never starts after Stop
	d.stop.Do(func() {
		if d.cancel != nil {
			d.cancel()
		}
	})
	d.done.Wait()
}

// WaitReady returns when the first load is done, or with the context's error.
func (d *Directory) WaitReady(ctx context.Context) error {
	select {
	case <-d.loaded:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", tenancy.ErrNotReady, ctx.Err())
	}
}

// Ready is nil once the directory answers, else why it does not. It is what
// readiness asks: an answer from the last good state is better than none.
func (d *Directory) Ready() error {
	if d.snapshot.Load() != nil {
		return nil
	}
	return d.Err()
}

// Err is nil while the directory is current, else why it is not: Redis is
// away, nobody publishes, or published documents cannot be used. It is for
// alarms, not for readiness: one bad document must not stop every gateway.
func (d *Directory) Err() error {
	if failure := d.failure.Load(); failure != nil {
		return *failure
	}
	if d.snapshot.Load() == nil {
		return tenancy.ErrNotReady
	}
	return nil
}

// nobody is compared with when a key's id is unknown, so that the answer takes
// as long as for a wrong secret.
var nobody = &tenancy.Key{SecretHash: make([]byte, 32)}

// Authenticate implements tenancy.Directory. The secret is verified before
// anything is said about the key or its tenant.
func (d *Directory) Authenticate(presented string) (tenancy.Principal, error) {
	s := d.snapshot.Load()
	if s == nil {
		return tenancy.Principal{}, tenancy.ErrNotReady
	}
	id, hash, err := tenancy.ParseCredential(presented)
	if err != nil {
		return tenancy.Principal{}, err
	}
	key, known := s.keys[id]
	if !known {
		key = nobody
	}
	if matches := key.SecretMatches(hash); !matches || !known {
		return tenancy.Principal{}, tenancy.ErrBadKey
	}
	if !key.RevokedAt.IsZero() || !key.ExpiresAt.IsZero() && !d.now().Before(key.ExpiresAt) {
		return tenancy.Principal{}, tenancy.ErrKeyRevoked
	}
	if key.TenantID == "" {
		return tenancy.Principal{Key: key}, nil
	}
	tenant := s.tenants[key.TenantID]
	switch {
	case tenant == nil: // its document was unusable from the start
		return tenancy.Principal{}, tenancy.ErrNotReady
	case tenant.Suspended:
		return tenancy.Principal{Key: key, Tenant: tenant}, tenancy.ErrSuspended
	}
	return tenancy.Principal{Key: key, Tenant: tenant}, nil
}

// Tenant implements tenancy.Directory.
func (d *Directory) Tenant(id string) (*tenancy.Tenant, error) {
	s := d.snapshot.Load()
	if s == nil {
		return nil, tenancy.ErrNotReady
	}
	if tenant := s.tenants[id]; tenant != nil {
		return tenant, nil
	}
	return nil, tenancy.ErrNotFound
}

// Tenants implements tenancy.Directory.
func (d *Directory) Tenants() []string {
	if s := d.snapshot.Load(); s != nil {
		return s.ids
	}
	return nil
}

// Platform implements tenancy.Directory. Before the first load it is the
// default document.
func (d *Directory) Platform() *tenancy.Platform {
	if s := d.snapshot.Load(); s != nil {
		return s.platform
	}
	platform := tenancy.DefaultPlatform()
	return &platform
}

// Version implements tenancy.Directory. Once it is at least the store's
// version, every change made before that was read is in force here.
func (d *Directory) Version() int64 {
	if s := d.snapshot.Load(); s != nil {
		return s.version
	}
	return 0
}

// listen wakes the follower at each announcement. A lost connection is the
// client's to mend, and the follower's clock covers for it meanwhile.
func (d *Directory) listen(ctx context.Context, wake chan<- struct{}) {
	subscription := d.client.Subscribe(ctx, d.keys.channel)
	defer func() { _ = subscription.Close() }() // nothing is left to lose
	messages := subscription.Channel()
	for {
		select {
		case <-ctx.Done():
			return
		case _, open := <-messages:
			if !open {
				return
			}
			select {
			case wake <- struct{}{}:
			default:
			}
		}
	}
}

func (d *Directory) follow(ctx context.Context, wake <-chan struct{}) {
	ticker := time.NewTicker(PollInterval)
	defer ticker.Stop()
	began := time.Now()
	var loadedAt time.Time
	for {
		if time.Since(loadedAt) >= d.resync {
			loadedAt = time.Time{}
		}
		all, err := d.refresh(ctx, loadedAt.IsZero())
		if all {
			loadedAt = time.Now()
		}
		if stopped(ctx, err) {
			return
		}
		if !d.starting(err, began) {
			d.report(err)
		}
		select {
		case <-ctx.Done():
			return
		case <-wake:
		case <-ticker.C:
		}
	}
}

// startGrace is how long a directory may find nothing published before that is
// a failure: in a new installation its publisher starts at the same time.
const startGrace = 10 * time.Second

func (d *Directory) starting(err error, began time.Time) bool {
	return errors.Is(err, errNotPublished) && d.Version() == 0 && time.Since(began) < startGrace
}

// report logs a failure when it begins and when it ends.
func (d *Directory) report(err error) {
	before := d.failure.Load()
	switch {
	case err == nil && before != nil:
		d.failure.Store(nil)
		d.log.Info("tenant directory is current again", "version", d.Version())
	case err != nil && (before == nil || (*before).Error() != err.Error()):
		d.failure.Store(&err)
		d.log.Error("tenant directory is not current and keeps its last good state", "err", err, "version", d.Version())
	}
}

var errNoPublisher = fmt.Errorf("nobody has published configuration for %s: changes and revocations do not arrive; start a gateway that reaches PostgreSQL", aliveFor)

var errNotPublished = errors.New("no configuration is published in Redis; is a publisher running?")

// refresh takes in what was published, and reports whether it loaded all of it.
func (d *Directory) refresh(ctx context.Context, everything bool) (all bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*callTimeout)
	defer cancel()
	found, err := d.published(ctx)
	if err != nil {
		return false, err
	}
	current := d.snapshot.Load()
	switch {
	case everything || current == nil || current.epoch != found.epoch || found.version < current.source:
		all, err = true, d.loadAll(ctx, current, found)
	case found.version == current.source:
		err = current.err()
	default:
		err = d.loadChanges(ctx, current, found)
	}
	if err == nil && !found.alive {
		err = errNoPublisher
	}
	return all, err
}

// publication is what Redis says about what it holds.
type publication struct {
	version int64
	epoch   string
	alive   bool // a publisher is at work
}

func (d *Directory) published(ctx context.Context) (publication, error) {
	pipe := d.client.Pipeline() // one slot, so one pipeline on a cluster too
	known := pipe.HMGet(ctx, d.keys.version, "version", "epoch")
	alive := pipe.Exists(ctx, d.keys.alive)
	if _, err := pipe.Exec(ctx); err != nil {
		return publication{}, fmt.Errorf("look at the published version: %w", err)
	}
	text, _ := known.Val()[0].(string)
	epoch, _ := known.Val()[1].(string)
	if text == "" || epoch == "" {
		return publication{}, errNotPublished
	}
	version, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return publication{}, fmt.Errorf("published version: %w", err)
	}
	return publication{version: version, epoch: epoch, alive: alive.Val() == 1}, nil
}

func (d *Directory) loadAll(ctx context.Context, current *snapshot, found publication) error {
	documents, err := scan(ctx, d.client, d.keys)
	if err != nil {
		return err
	}
	// What was read is whole only if Redis was not emptied meanwhile.
	if again, err := d.published(ctx); err != nil || again.epoch != found.epoch {
		return errors.Join(errors.New("publication changed while it was read"), err)
	}
	if documents[tenancy.FieldPlatform] == "" {
		return errNotPublished
	}
	next := (&snapshot{}).with(documents)
	if current != nil {
		next.keepLastGood(current)
	}
	if next.platform == nil {
		return next.err()
	}
	d.use(next, current, found)
	return next.err()
}

func (d *Directory) loadChanges(ctx context.Context, current *snapshot, found publication) error {
	fields, err := d.client.ZRangeByScore(ctx, d.keys.changes, &redis.ZRangeBy{
		Min: "(" + strconv.FormatInt(current.source, 10), Max: "+inf",
	}).Result()
	if err != nil {
		return fmt.Errorf("read what changed: %w", err)
	}
	documents := make(map[string]string, len(fields))
	if len(fields) > 0 {
		values, err := d.client.HMGet(ctx, d.keys.documents, fields...).Result()
		if err != nil {
			return fmt.Errorf("read changed documents: %w", err)
		}
		for i, field := range fields {
			documents[field], _ = values[i].(string)
		}
	}
	// A missing document means "removed" only in the epoch that it was asked
	// for: in a Redis that was emptied meanwhile everything is missing.
	if again, err := d.published(ctx); err != nil || again.epoch != found.epoch {
		return errors.Join(errors.New("publication changed while it was read"), err)
	}
	next := current.with(documents)
	d.use(next, current, found)
	return next.err()
}

func (d *Directory) use(next, current *snapshot, found publication) {
	next.version, next.source, next.epoch = found.version, found.version, found.epoch
	if current != nil && next.version < current.version {
		next.version = current.version
	}
	d.snapshot.Store(next)
	if current == nil {
		close(d.loaded)
	}
}
