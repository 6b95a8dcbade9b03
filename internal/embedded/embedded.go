// Package embedded starts stand-ins for the services that Tollgate needs, for
// `tollgate dev`: a Kafka broker in this process (kfake), a redis-server from
// PATH or else one in this process (miniredis), and a PostgreSQL server from
// the binaries on the machine. Everything listens on loopback or on a socket
// in a private directory, and ends with the process.
//
// It is for trying Tollgate out, never for production: the broker keeps what
// it was given only as well as one process does, and miniredis keeps nothing.
package embedded

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/alicebob/miniredis/v2"
	"github.com/twmb/franz-go/pkg/kfake"
)

// Options say where the services keep their data.
type Options struct {
	// Dir keeps the data between runs; empty takes a temporary directory that
	// Stop deletes.
	Dir string
	Log *slog.Logger
}

// Services are running services and their addresses.
type Services struct {
	PostgresURL   string
	RedisAddr     string
	RedisPassword string
	Brokers       []string
	// Kinds says what stands in for what, for people: "Redis 7.0.15",
	// "miniredis (in this process, nothing is kept)".
	Kinds map[string]string

	dir    string
	remove bool
	stops  []func() error
}

// Start starts all three. On an error it stops what it had started. The error
// says what to install when a binary is missing.
func Start(ctx context.Context, opts Options) (*Services, error) {
	s := &Services{dir: opts.Dir, Kinds: map[string]string{}}
	if s.dir == "" {
		dir, err := os.MkdirTemp("", "tollgate-dev-")
		if err != nil {
			return nil, fmt.Errorf("make a directory for the services: %w", err)
		}
		s.dir, s.remove = dir, true
	}
	if err := s.start(ctx, opts.Log); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

func (s *Services) start(ctx context.Context, log *slog.Logger) error {
	// PostgreSQL runs as another user when this process is root, and must be
	// able to pass through to its own directory.
	if err := os.MkdirAll(s.dir, 0o711); err != nil {
		return fmt.Errorf("make %s: %w", s.dir, err)
	}
	if err := os.Chmod(s.dir, 0o711); err != nil {
		return fmt.Errorf("open %s to the database's user: %w", s.dir, err)
	}
	if err := s.startKafka(log); err != nil {
		return err
	}
	if err := s.startRedis(ctx, log); err != nil {
		return err
	}
	return s.startPostgres(ctx, log)
}

// Stop ends the services, newest first, and deletes a temporary directory. It
// may be called twice.
func (s *Services) Stop() error {
	var errs []error
	for len(s.stops) > 0 {
		last := len(s.stops) - 1
		errs = append(errs, s.stops[last]())
		s.stops = s.stops[:last]
	}
	if s.remove {
		errs = append(errs, os.RemoveAll(s.dir))
	}
	return errors.Join(errs...)
}

func (s *Services) startKafka(log *slog.Logger) error {
	dir := filepath.Join(s.dir, "kafka")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make %s: %w", dir, err)
	}
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.DataDir(dir))
	if err != nil {
		return fmt.Errorf("start the embedded Kafka broker: %w", err)
	}
	s.stops = append(s.stops, func() error { cluster.Close(); return nil })
	s.Brokers = cluster.ListenAddrs()
	s.Kinds["kafka"] = "kfake (in this process)"
	log.Debug("embedded Kafka is up", "brokers", s.Brokers)
	return nil
}

func (s *Services) startRedis(ctx context.Context, log *slog.Logger) error {
	server, err := startRedisServer(ctx, filepath.Join(s.dir, "redis"))
	switch {
	case err == nil:
		s.stops = append(s.stops, server.stop)
		s.RedisAddr, s.RedisPassword = server.addr, server.password
		s.Kinds["redis"] = "redis-server from PATH"
	case errors.Is(err, errNoBinary):
		mini := miniredis.NewMiniRedis()
		s.RedisPassword = rand.Text()
		mini.RequireAuth(s.RedisPassword)
		if err := mini.Start(); err != nil {
			return fmt.Errorf("start miniredis: %w", err)
		}
		s.stops = append(s.stops, func() error { mini.Close(); return nil })
		s.RedisAddr = mini.Addr()
		s.Kinds["redis"] = "miniredis (in this process; nothing is kept when it ends)"
	default:
		return err
	}
	log.Debug("Redis is up", "addr", s.RedisAddr, "kind", s.Kinds["redis"])
	return nil
}

func (s *Services) startPostgres(ctx context.Context, log *slog.Logger) error {
	server, err := startPostgresServer(ctx, filepath.Join(s.dir, "postgres"))
	if err != nil {
		return err
	}
	s.stops = append(s.stops, server.stop)
	s.PostgresURL = server.url
	s.Kinds["postgres"] = server.kind
	log.Debug("PostgreSQL is up", "kind", server.kind)
	return nil
}
