package redis

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// Source is where documents come from; tenancy/postgres.Feed is one. It is
// used by one goroutine. An error of any method but Lead may mean that the
// lead is lost.
type Source interface {
	// Lead tries once to become the only publisher, and reports whether it is.
	Lead(ctx context.Context) (bool, error)
	// Resign gives the lead up. It may be called at any time.
	Resign()
	// Wait returns when something was changed, or after atMost.
	Wait(ctx context.Context, atMost time.Duration) error
	// All returns every document by field, and the version that they are at.
	All(ctx context.Context) (documents map[string][]byte, version int64, err error)
	// Changes returns the documents that changed after a version, nil for
	// those that are gone, and the version that they are at.
	Changes(ctx context.Context, since int64) (documents map[string][]byte, version int64, err error)
}

// Publisher copies documents from a Source to Redis. Any number may run; one
// leads, and another takes over when it ends or loses its source.
type Publisher struct {
	source Source
	client redis.UniversalClient
	keys   keys
	log    *slog.Logger

	resync  time.Duration
	partLen int
	leading atomic.Bool

	start  sync.Once
	stop   sync.Once
	cancel context.CancelFunc
	done   chan struct{}
}

// PublisherOptions tunes a Publisher. Zero values take the defaults.
type PublisherOptions struct {
	// Resync is how often all of Redis is compared with the source, to heal
	// what was changed or evicted there: 1 minute.
	Resync time.Duration
	Logger *slog.Logger
}

// NewPublisher returns a publisher that is not running yet. Source and client
// stay the caller's; the source must not be used by anyone else.
func NewPublisher(source Source, client redis.UniversalClient, prefix string, o PublisherOptions) *Publisher {
	if o.Resync <= 0 {
		o.Resync = time.Minute
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Publisher{
		source: source, client: client, keys: keysOf(prefix), log: o.Logger,
		resync: o.Resync, partLen: 500, done: make(chan struct{}),
	}
}

// Start begins to publish, or to wait for the lead, and returns at once. It
// runs until Stop, whatever fails in between. A second call does nothing.
func (p *Publisher) Start() {
	p.start.Do(func() {
		ctx, cancel := context.WithCancel(context.Background())
		p.cancel = cancel
		go func() {
			defer close(p.done)
			defer p.source.Resign()
			p.run(ctx)
		}()
	})
}

// Stop ends publishing and gives the lead up. It waits, and may be called
// again, also before Start, which then never runs.
func (p *Publisher) Stop() {
	p.start.Do(func() { close(p.done) })
	p.stop.Do(func() {
		if p.cancel != nil {
			p.cancel()
		}
	})
	<-p.done
}

// Leading reports whether this publisher is the one that writes.
func (p *Publisher) Leading() bool { return p.leading.Load() }

// run leads whenever it can. A failure is logged when it begins, not each time
// that it repeats.
func (p *Publisher) run(ctx context.Context) {
	last := ""
	for ctx.Err() == nil {
		leads, err := p.source.Lead(ctx)
		if err == nil && leads {
			err = p.lead(ctx, func() { last = "" })
			p.leading.Store(false)
		}
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, errReplaced):
			p.log.Warn("publication begins anew", "why", err)
			if !pause(ctx, PollInterval/10) {
				return
			}
			continue
		case err != nil:
			// Another process may reach what this one cannot.
			p.source.Resign()
		}
		if err != nil && err.Error() != last {
			last = err.Error()
			p.log.Warn("configuration cannot be published; gateways keep what they have", "err", err)
		}
		if !pause(ctx, PollInterval) {
			return
		}
	}
}

// errReplaced: Redis knows another publisher or was emptied, or the store went
// back to an older state. All of it is taken up by beginning anew.
var errReplaced = errors.New("not the publisher that Redis knows")

// term is one time of leading: what Redis gave to this publisher.
type term struct {
	fence, epoch string
	published    int64 // version in Redis
	seen         int64 // version of the source
	alive        time.Time
}

func (p *Publisher) lead(ctx context.Context, wentWell func()) error {
	t, err := p.take(ctx)
	if err != nil {
		return err
	}
	if err := p.publishAll(ctx, t); err != nil {
		return err
	}
	p.leading.Store(true)
	p.log.Info("publishing configuration", "version", t.published)
	wentWell()
	compared := time.Now()
	for {
		if err := p.source.Wait(ctx, PollInterval); err != nil {
			return err
		}
		if err := p.check(ctx, t); err != nil {
			return err
		}
		if time.Since(compared) >= p.resync {
			if err := p.publishAll(ctx, t); err != nil {
				return err
			}
			compared = time.Now()
			continue
		}
		documents, version, err := p.source.Changes(ctx, t.seen)
		switch {
		case err != nil:
			return err
		case version < t.seen:
			return fmt.Errorf("%w: the store went back from version %d to %d", errReplaced, t.seen, version)
		case version > t.seen:
			if err := p.write(ctx, t, documents, version); err != nil {
				return err
			}
		}
	}
}

// take makes this the publisher that Redis knows.
func (p *Publisher) take(ctx context.Context) (*term, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	reply, err := takeScript.Run(ctx, p.client, []string{p.keys.version}, rand.Text()).StringSlice()
	if err != nil {
		return nil, fmt.Errorf("take the publisher's place: %w", err)
	}
	if len(reply) != 3 {
		return nil, fmt.Errorf("take the publisher's place: Redis answered %d values", len(reply))
	}
	t := &term{fence: reply[0], epoch: reply[1]}
	if reply[2] != "" {
		if t.published, err = strconv.ParseInt(reply[2], 10, 64); err != nil {
			return nil, fmt.Errorf("published version: %w", err)
		}
	}
	return t, nil
}

// check finds out whether Redis was emptied or knows another publisher.
func (p *Publisher) check(ctx context.Context, t *term) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	known, err := p.client.HMGet(ctx, p.keys.version, "fence", "epoch", "version").Result()
	if err != nil {
		return fmt.Errorf("look at the published version: %w", err)
	}
	if known[0] != t.fence || known[1] != t.epoch || known[2] != strconv.FormatInt(t.published, 10) {
		return errReplaced
	}
	return p.sayAlive(ctx, t)
}

// sayAlive lets directories know that somebody publishes.
func (p *Publisher) sayAlive(ctx context.Context, t *term) error {
	if time.Since(t.alive) < aliveFor/6 {
		return nil
	}
	if err := p.client.Set(ctx, p.keys.alive, "1", aliveFor).Err(); err != nil {
		return fmt.Errorf("say that a publisher is at work: %w", err)
	}
	t.alive = time.Now()
	return nil
}

// publishAll makes Redis equal to the source, writing what differs.
func (p *Publisher) publishAll(ctx context.Context, t *term) error {
	documents, version, err := p.source.All(ctx)
	if err != nil {
		return err
	}
	scanning, cancel := context.WithTimeout(ctx, 6*callTimeout)
	defer cancel()
	published, err := scan(scanning, p.client, p.keys)
	if err != nil {
		return err
	}
	changed := map[string][]byte{}
	for field, document := range documents {
		if old, there := published[field]; !there || old != string(document) {
			changed[field] = document
		}
	}
	for field := range published {
		if _, there := documents[field]; !there {
			changed[field] = nil
		}
	}
	t.seen = version
	if err := p.sayAlive(scanning, t); err != nil {
		return err
	}
	if len(changed) == 0 && t.published >= version && t.published > 0 {
		return nil
	}
	return p.write(ctx, t, changed, version)
}

// write publishes documents under a version that is at least the source's and
// more than any before.
func (p *Publisher) write(ctx context.Context, t *term, documents map[string][]byte, version int64) error {
	next := max(version, t.published+1)
	fields := make([]string, 0, len(documents))
	for field := range documents {
		fields = append(fields, field)
	}
	slices.Sort(fields)
	for {
		part := fields[:min(p.partLen, len(fields))]
		fields = fields[len(part):]
		if err := p.writePart(ctx, t, next, part, documents, len(fields) == 0); err != nil {
			return err
		}
		if len(fields) == 0 {
			t.published, t.seen = next, version
			return nil
		}
	}
}

func (p *Publisher) writePart(ctx context.Context, t *term, version int64, fields []string, documents map[string][]byte, last bool) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	args := make([]any, 0, 5+2*len(fields))
	args = append(args, t.fence, t.epoch, strconv.FormatInt(version, 10), "0", p.keys.channel)
	if last {
		args[3] = "1"
	}
	for _, field := range fields {
		args = append(args, field, documents[field])
	}
	ok, err := publishScript.Run(ctx, p.client, []string{p.keys.documents, p.keys.version, p.keys.changes}, args...).Int()
	if err != nil {
		return fmt.Errorf("publish version %d: %w", version, err)
	}
	if ok != 1 {
		return errReplaced
	}
	return nil
}
