// Package app builds Tollgate's roles out of its parts: it opens the shared
// connections, wires what one part needs from another, starts everything in
// order and stops it in reverse. Each role can run alone in a process, or all
// of them in one.
//
// Nothing is decided here. Adapters between the packages (what a reconciler
// calls a settler is admission to everybody else) are here because the
// packages do not import each other.
package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/redis/go-redis/v9"
	kafkago "github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/sasl/plain"

	admissionredis "tollgate/admission/redis"
	"tollgate/events/kafka"
	"tollgate/internal/config"
	tenancyredis "tollgate/tenancy/redis"
)

// The Redis client writes to standard error by itself, a line each time that it
// dials in vain. What it says there comes back as an error as well, and is
// logged once, by whoever called.
func init() { redis.SetLogger(noLog{}) }

type noLog struct{}

// Printf implements go-redis's logger.
func (noLog) Printf(context.Context, string, ...any) {}

// stopTimeout bounds an orderly end, but for the time that streams may drain.
const stopTimeout = 30 * time.Second

// part is something that runs. Start returns when it is under way; Stop waits
// until it has ended.
type part struct {
	name  string
	start func(ctx context.Context) error
	stop  func(ctx context.Context) error
}

// check is one condition of readiness.
type check struct {
	name  string
	ready func(ctx context.Context) error
}

// App is a set of roles in one process. Roles are added before Run.
type App struct {
	cfg     *config.Config
	log     *slog.Logger
	metrics *prometheus.Registry
	parts   []part
	checks  []check
	fatal   chan error
	closers []func()
	// patience bounds an orderly end.
	patience time.Duration

	redisClient redis.UniversalClient
	kafkaClient *kafka.Client
	pool        *pgxpool.Pool
	store       *admissionredis.Store
	directory   *tenancyredis.Directory
	relaying    bool

	Version string // of the program, for traces

	// Addresses that were bound, known once started.
	Addr, AdminAddr string
	onReady         func(*App)
}

// New returns an app without roles. cfg must be validated.
func New(cfg *config.Config, log *slog.Logger) *App {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return &App{cfg: cfg, log: log, metrics: registry, fatal: make(chan error, 8), patience: stopTimeout}
}

// OnReady sets a function that Run calls once every part has started.
func (a *App) OnReady(fn func(*App)) { a.onReady = fn }

// Metrics is where the app's parts register.
func (a *App) Metrics() *prometheus.Registry { return a.metrics }

// Run starts all parts, waits until ctx ends or a part fails for good, and
// stops them in reverse order. It returns nil after an orderly end.
func (a *App) Run(ctx context.Context) error {
	a.addAdmin()
	return a.Do(ctx, func(ctx context.Context, a *App) error {
		if a.onReady != nil {
			a.onReady(a)
		}
		select {
		case <-ctx.Done():
			return nil
		case err := <-a.fatal:
			return err
		}
	})
}

// Do starts all parts, calls fn, and stops them in reverse order.
func (a *App) Do(ctx context.Context, fn func(context.Context, *App) error) error {
	defer a.close()
	var started []part
	var failure error
	for _, p := range a.parts {
		if err := p.start(ctx); err != nil {
			failure = fmt.Errorf("start %s: %w", p.name, err)
			break
		}
		started = append(started, p)
	}
	if failure == nil {
		failure = fn(ctx, a)
	}
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.patience)
	defer cancel()
	errs := []error{failure}
	for _, p := range slices.Backward(started) {
		if p.stop == nil {
			continue
		}
		a.log.Debug("stopping", "part", p.name)
		if err := p.stop(stopping); err != nil {
			errs = append(errs, fmt.Errorf("stop %s: %w", p.name, err))
		}
	}
	return errors.Join(errs...)
}

func (a *App) add(p part) { a.parts = append(a.parts, p) }

// check adds a condition; several roles in one process share those that they
// have in common.
func (a *App) check(name string, ready func(context.Context) error) {
	if slices.ContainsFunc(a.checks, func(c check) bool { return c.name == name }) {
		return
	}
	a.checks = append(a.checks, check{name, ready})
}

// fail ends Run with an error that no retry will mend.
func (a *App) fail(err error) {
	select {
	case a.fatal <- err:
	default: // Run is ending for another reason already
	}
}

// background adds a part that is one function, which ends with its context.
func (a *App) background(name string, fn func(ctx context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	a.add(part{
		name: name,
		start: func(context.Context) error {
			go func() {
				defer close(done)
				if err := fn(ctx); err != nil && ctx.Err() == nil {
					a.fail(fmt.Errorf("%s: %w", name, err))
				}
			}()
			return nil
		},
		stop: func(stopping context.Context) error {
			cancel()
			select {
			case <-done:
				return nil
			case <-stopping.Done():
				return errors.New("did not end in time")
			}
		},
	})
}

func (a *App) close() {
	for _, fn := range slices.Backward(a.closers) {
		fn()
	}
	a.closers = nil
}

// redis returns the shared client.
func (a *App) redis() (redis.UniversalClient, error) {
	if a.redisClient == nil {
		client, err := NewRedis(a.cfg)
		if err != nil {
			return nil, err
		}
		a.redisClient = client
		a.closers = append(a.closers, func() {
			if err := client.Close(); err != nil {
				a.log.Debug("close Redis client", "error", err)
			}
		})
	}
	return a.redisClient, nil
}

// NewRedis returns a client for the configured Redis. It does not connect,
// except where redis.cluster is "auto": then the server is asked what it is,
// and one that does not answer counts as a single server when one address is
// configured, as a cluster when there are several.
func NewRedis(cfg *config.Config) (redis.UniversalClient, error) {
	tlsConfig, err := cfg.Redis.TLSConfig()
	if err != nil {
		return nil, fmt.Errorf("redis.tls_ca_file: %w", err)
	}
	opts := &redis.UniversalOptions{
		Addrs:        cfg.Redis.Addresses,
		Username:     cfg.Redis.Username,
		Password:     cfg.Redis.Password.Reveal(),
		TLSConfig:    tlsConfig,
		DialTimeout:  2 * time.Second,
		ReadTimeout:  cfg.Admission.RequestTimeout,
		WriteTimeout: cfg.Admission.RequestTimeout,
		// A call ends when its caller's time is up.
		ContextTimeoutEnabled: true,
		// Retries are the store's, which knows what may be repeated.
		MaxRetries: -1,
	}
	clustered := cfg.Redis.Cluster == "true"
	if cfg.Redis.Cluster == "auto" {
		clustered = askCluster(opts)
	}
	if clustered {
		// Following a redirect is no retry: the node refused without deciding.
		opts.MaxRetries = 0
		return redis.NewClusterClient(opts.Cluster()), nil
	}
	return redis.NewClient(opts.Simple()), nil
}

func askCluster(opts *redis.UniversalOptions) bool {
	single := redis.NewClient(opts.Simple())
	defer func() { _ = single.Close() }() // only asked
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	info, err := single.Info(ctx, "cluster").Result()
	if err != nil {
		return len(opts.Addrs) > 1
	}
	return strings.Contains(info, "cluster_enabled:1")
}

// kafka returns the shared client. It does not connect.
func (a *App) kafka() (*kafka.Client, error) {
	if a.kafkaClient == nil {
		client, err := NewKafka(a.cfg, a.log)
		if err != nil {
			return nil, err
		}
		a.kafkaClient = client
		a.closers = append(a.closers, client.Close)
	}
	return a.kafkaClient, nil
}

// NewKafka returns a client for the configured brokers. It does not connect.
func NewKafka(cfg *config.Config, log *slog.Logger) (*kafka.Client, error) {
	tlsConfig, err := cfg.Kafka.TLSConfig()
	if err != nil {
		return nil, fmt.Errorf("kafka.tls_ca_file: %w", err)
	}
	kc := kafka.Config{Brokers: cfg.Kafka.Brokers, TopicPrefix: cfg.Kafka.TopicPrefix, TLS: tlsConfig, Logger: log}
	if cfg.Kafka.Username != "" {
		kc.SASL = plain.Mechanism{Username: cfg.Kafka.Username, Password: cfg.Kafka.Password.Reveal()}
	}
	return kafka.New(kc)
}

// IsTopicMissing tells an error that says that one of the log's topics is not
// there.
func IsTopicMissing(err error) bool { return errors.Is(err, kafkago.UnknownTopicOrPartition) }

// postgres returns the shared pool. It connects when it is first used.
func (a *App) postgres() (*pgxpool.Pool, error) {
	if a.pool == nil {
		pool, err := NewPostgres(a.cfg)
		if err != nil {
			return nil, err
		}
		a.pool = pool
		a.closers = append(a.closers, pool.Close)
	}
	return a.pool, nil
}

// ErrNoDatabase says that postgres.url is not set.
var ErrNoDatabase = errors.New("no database is configured: set postgres.url, or TOLLGATE_POSTGRES_URL")

// NewPostgres returns a pool on the configured database, which connects when
// it is first used.
func NewPostgres(cfg *config.Config) (*pgxpool.Pool, error) {
	if cfg.Postgres.URL == "" {
		return nil, ErrNoDatabase
	}
	pc, err := pgxpool.ParseConfig(cfg.Postgres.URL.Reveal())
	if err != nil {
		// The parser's error repeats the URL, without its password.
		return nil, fmt.Errorf("postgres.url: %w", err)
	}
	pc.MaxConns = int32(cfg.Postgres.MaxConnections)
	pc.ConnConfig.RuntimeParams["application_name"] = "tollgate"
	pool, err := pgxpool.NewWithConfig(context.Background(), pc)
	if err != nil {
		return nil, fmt.Errorf("postgres pool: %w", err)
	}
	return pool, nil
}

// processName tells this process from others in leases and progress rows.
func processName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s/%d/%d", host, os.Getpid(), time.Now().UnixNano())
}
