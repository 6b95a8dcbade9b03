// Package bench measures Tollgate on real services: reserves in process and
// over HTTP, the usage query, what the front door adds to a model server, the
// fold, the replay. It works in a scratch
// database, under a Redis prefix and with Kafka topics of its own, and removes
// them afterwards; still, it takes all the processor it can get, so it is not
// for a machine that serves.
//
// Each figure stands beside a baseline that was measured in the same run, where
// there is one: machines differ and are noisy, ratios less so.
package bench

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"tollgate/internal/app"
	"tollgate/internal/config"
	"tollgate/ledger/ledgerbench"
	"tollgate/tenancy"
	tenancypg "tollgate/tenancy/postgres"
)

// Figure is one measured value. Baseline and Ratio (Value ÷ Baseline) are nil
// where there is no baseline.
type Figure struct {
	Name     string   `json:"name"`
	Value    float64  `json:"value"`
	Unit     string   `json:"unit"`
	Baseline *float64 `json:"baseline"`
	Ratio    *float64 `json:"ratio"`
	// What the baseline is, for people.
	Against string `json:"-"`
}

func (f Figure) against(baseline float64, what string) Figure {
	if baseline > 0 {
		ratio := f.Value / baseline
		f.Baseline, f.Ratio, f.Against = &baseline, &ratio, what
	}
	return f
}

// Options say what to measure and for how long.
type Options struct {
	Config *config.Config
	// Binary is this program, started again as the gateway.
	Binary string
	// Only selects the parts whose names begin so; empty takes all.
	Only string
	// Each is how long one load lasts.
	Each time.Duration
	// FoldEvents and ReplayEvents are how many events are folded and replayed.
	FoldEvents, ReplayEvents int
	Log                      *slog.Logger
	Note                     func(format string, args ...any)
}

// connections are the numbers of concurrent callers.
var connections = []int{1, 16, 64}

// tenants is over how many tenants the load is spread. Tenant k gets a share
// proportional to 1/(k+1), as customers do: a few make most of the traffic.
const tenants = 64

// shares is a walk over tenants that visits each as often as its share asks.
// Its length is a prime, so that connections which begin at different places
// stay apart.
func shares() []int {
	const length = 4099
	var weights [tenants]int
	total := 0
	for k := range weights {
		weights[k] = 1_000_000 / (k + 1)
		total += weights[k]
	}
	walk := make([]int, length)
	var credit [tenants]int
	for i := range walk {
		best := 0
		for k := range credit {
			if credit[k] += weights[k]; credit[k] > credit[best] {
				best = k
			}
		}
		credit[best] -= total
		walk[i] = best
	}
	return walk
}

// historyHours is how much use each tenant has behind it: a full 30 days.
const historyHours = 719

// Run measures the selected parts in order.
func Run(ctx context.Context, opts Options) ([]Figure, error) {
	var figures []Figure
	for _, p := range []struct {
		name string
		run  func(ctx context.Context, opts Options) ([]Figure, error)
	}{
		{"reserve_process", reserveInProcess},
		{"reserve_http", reserveHTTP},
		{"proxy", proxy},
		{"fold", fold},
		{"replay", replay},
	} {
		if !strings.HasPrefix(p.name, opts.Only) && !strings.HasPrefix(opts.Only, p.name) {
			continue
		}
		opts.Note("Measuring %s …", p.name)
		got, err := p.run(ctx, opts)
		if err != nil {
			return figures, fmt.Errorf("measure %s: %w", p.name, err)
		}
		figures = append(figures, got...)
	}
	return figures, nil
}

func fold(ctx context.Context, opts Options) ([]Figure, error) {
	rate, raw, err := ledgerbench.FoldRate(ctx, opts.Config.Postgres.URL.Reveal(), opts.FoldEvents)
	if err != nil {
		return nil, err
	}
	return []Figure{Figure{Name: "fold_events_per_s", Value: rate, Unit: "events/s"}.against(raw, "raw COPY + upsert of the same rows")}, nil
}

func replay(ctx context.Context, opts Options) ([]Figure, error) {
	rates, err := ledgerbench.ReplayRate(ctx, opts.Config.Postgres.URL.Reveal(), opts.ReplayEvents)
	if err != nil {
		return nil, err
	}
	return []Figure{
		{Name: "replay_events_per_s", Value: rates.Both, Unit: "events/s"},
		{Name: "replay_only_events_per_s", Value: rates.Replay, Unit: "events/s"},
		{Name: "verify_only_events_per_s", Value: rates.Verify, Unit: "events/s"},
	}, nil
}

// site is an installation of its own on the configured servers.
type site struct {
	cfg     *config.Config
	scratch *ledgerbench.Scratch
	redis   redis.UniversalClient
	secrets []string // by tenant
}

func newSite(ctx context.Context, opts Options) (_ *site, err error) {
	s := &site{}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if s.scratch, err = ledgerbench.NewScratch(ctx, opts.Config.Postgres.URL.Reveal()); err != nil {
		return nil, err
	}
	id := strings.ToLower(rand.Text()[:10])
	cfg := *opts.Config
	cfg.Postgres.URL = config.SecretURL(s.scratch.URL)
	cfg.Redis.Prefix = "bench-" + id + ":"
	cfg.Kafka.TopicPrefix = "bench-" + id + "-"
	cfg.Ledger.FlushInterval = time.Second
	s.cfg = &cfg
	if s.redis, err = app.NewRedis(&cfg); err != nil {
		return nil, err
	}
	if err := app.Migrate(ctx, &cfg, opts.Log); err != nil {
		return nil, err
	}
	s.secrets, err = s.setup(ctx, s.scratch.Pool)
	return s, err
}

// setup creates tenants with every layer, limits out of reach and 30 days of
// history, which the gateway's rebuilder then carries into Redis.
func (s *site) setup(ctx context.Context, pool *pgxpool.Pool) ([]string, error) {
	change := tenancy.Change{Author: "bench", Reason: "measure"}
	store := tenancypg.New(pool)
	platform, err := store.GetPlatform(ctx)
	if err != nil {
		return nil, err
	}
	for i := range platform.Limits {
		platform.Limits[i].Limit = 1_000_000_000
	}
	if _, err := store.SetPlatform(ctx, change, *platform); err != nil {
		return nil, err
	}
	quota := tenancy.DefaultQuota()
	for i := range quota.Limits {
		l := &quota.Limits[i]
		switch l.Kind {
		case tenancy.KindRate:
			l.Limit, l.Burst = 1_000_000, 1_000_000
		case tenancy.KindRing, tenancy.KindCounter, tenancy.KindLease:
			l.Limit = 1_000_000_000_000
		}
	}
	var secrets []string
	for i := range tenants {
		t := tenancy.Tenant{ID: fmt.Sprintf("bench-%02d", i), Name: "bench", TimeZone: "UTC", Currency: "USD", Quota: quota}
		if _, err := store.CreateTenant(ctx, change, t); err != nil {
			return nil, err
		}
		_, secret, err := store.CreateKey(ctx, change, tenancypg.NewKey{TenantID: t.ID, Name: "bench", Role: tenancy.RoleTenant})
		if err != nil {
			return nil, err
		}
		secrets = append(secrets, secret)
	}
	_, err = pool.Exec(ctx, `
		INSERT INTO usage_hour (tenant_id, hour, model, endpoint, key_id, requests, input_tokens, output_tokens,
		                        cached_input_tokens, reasoning_tokens, tool_calls, images, audio_ms, gpu_ms, milli_units)
		SELECT t.id, date_trunc('hour', now()) - h * interval '1 hour', $1, 'chat', '', 1, 1000, 100, 0, 0, 0, 0, 0, 0, 1100000
		FROM tenants t, generate_series(1, $2) h`, benchModel, historyHours)
	if err != nil {
		return nil, fmt.Errorf("write 30 days of use: %w", err)
	}
	return secrets, nil
}

// close removes everything that the site left behind.
func (s *site) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var errs []error
	if s.redis != nil {
		errs = append(errs, s.unlink(ctx), s.redis.Close())
	}
	if s.cfg != nil {
		client, err := app.NewKafka(s.cfg, slog.New(slog.DiscardHandler))
		if err == nil {
			err = client.DeleteTopics(ctx)
			client.Close()
		}
		errs = append(errs, err)
	}
	if s.scratch != nil {
		errs = append(errs, s.scratch.Close())
	}
	return errors.Join(errs...)
}

func (s *site) unlink(ctx context.Context) error {
	remove := func(ctx context.Context, c redis.UniversalClient) error {
		var cursor uint64
		for {
			keys, next, err := c.Scan(ctx, cursor, s.cfg.Redis.Prefix+"*", 1000).Result()
			if err != nil {
				return fmt.Errorf("find the measurement's keys: %w", err)
			}
			for _, key := range keys { // one by one: on a cluster they lie in many slots
				if err := c.Unlink(ctx, key).Err(); err != nil {
					return fmt.Errorf("remove the measurement's keys: %w", err)
				}
			}
			if cursor = next; cursor == 0 {
				return nil
			}
		}
	}
	if cluster, ok := s.redis.(*redis.ClusterClient); ok {
		return cluster.ForEachMaster(ctx, func(ctx context.Context, c *redis.Client) error { return remove(ctx, c) })
	}
	return remove(ctx, s.redis)
}
