package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// evictionPoll is how often Redis is asked what it does when memory is full.
const evictionPoll = 30 * time.Second

// keepsAll is the only policy under which a full Redis refuses writes instead
// of dropping keys, which would be counters and holds that nobody misses.
const keepsAll = "noeviction"

// evictionWatch keeps a gateway from being ready on a Redis that may drop keys.
// A Redis that does not tell its policy is believed, with a warning.
type evictionWatch struct {
	client redis.UniversalClient
	log    *slog.Logger

	mu     sync.Mutex
	err    error
	warned bool
}

var errPolicyNotAsked = errors.New("redis has not been asked for its maxmemory-policy yet")

func newEvictionWatch(client redis.UniversalClient, log *slog.Logger) *evictionWatch {
	return &evictionWatch{client: client, log: log, err: errPolicyNotAsked}
}

// run asks now and then until ctx ends.
func (w *evictionWatch) run(ctx context.Context) error {
	tick := time.NewTicker(evictionPoll)
	defer tick.Stop()
	for {
		w.ask(ctx)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// ready returns an error while a master of Redis may drop keys.
func (w *evictionWatch) ready(context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// ask asks every master. Only an answer changes what is known: a Redis that is
// away stays what it was.
func (w *evictionWatch) ask(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, evictionPoll/2)
	defer cancel()
	var mu sync.Mutex
	var evicting, unknown []error
	askOne := func(ctx context.Context, node *redis.Client) error {
		policy, err := evictionPolicy(ctx, node)
		mu.Lock()
		defer mu.Unlock()
		switch addr := node.Options().Addr; {
		case err != nil:
			unknown = append(unknown, fmt.Errorf("%s: %w", addr, err))
		case policy != keepsAll:
			evicting = append(evicting, fmt.Errorf("%s has maxmemory-policy %s", addr, policy))
		}
		return nil
	}
	var err error
	switch c := w.client.(type) {
	case *redis.ClusterClient:
		err = c.ForEachMaster(ctx, askOne)
	case *redis.Client:
		err = askOne(ctx, c)
	default:
		err = fmt.Errorf("client is a %T", c)
	}
	if err != nil {
		unknown = append(unknown, err)
	}
	if ctx.Err() != nil && len(evicting) == 0 {
		return // stopping, or out of reach: what could not be asked is asked again
	}
	w.conclude(errors.Join(evicting...), errors.Join(unknown...))
}

// conclude keeps the answer and logs what changed.
func (w *evictionWatch) conclude(evicting, unknown error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if unknown != nil && !w.warned {
		w.warned = true
		w.log.Warn("it is not known whether Redis keeps its keys when memory is full; its maxmemory-policy must be noeviction", "error", unknown)
	}
	switch {
	case evicting != nil:
		if w.err == nil || w.err.Error() != evicting.Error() {
			w.log.Error("Redis may drop counters and holds when memory is full; set maxmemory-policy to noeviction on every node",
				"error", evicting)
		}
		w.err = evicting
	case unknown == nil || errors.Is(w.err, errPolicyNotAsked):
		w.err = nil
	}
}

// evictionPolicy prefers INFO, which managed services allow.
func evictionPolicy(ctx context.Context, node *redis.Client) (string, error) {
	info, err := node.Info(ctx, "memory").Result()
	for line := range strings.Lines(info) {
		if policy, found := strings.CutPrefix(strings.TrimSpace(line), "maxmemory_policy:"); found {
			return policy, nil
		}
	}
	config, configErr := node.ConfigGet(ctx, "maxmemory-policy").Result()
	if policy := config["maxmemory-policy"]; policy != "" {
		return policy, nil
	}
	return "", errors.Join(errors.New("redis does not tell its maxmemory-policy"), err, configErr)
}
