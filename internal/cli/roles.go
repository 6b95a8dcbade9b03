package cli

import (
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"time"

	"tollgate/internal/app"
	"tollgate/migrations"
)

// role runs one role until the process is told to stop.
func (e *env) role(name string, add func(a *app.App) error) error {
	cfg, err := e.config()
	if err != nil {
		return err
	}
	log := e.logger(cfg)
	a := app.New(cfg, log)
	a.Version = version
	if err := add(a); err != nil {
		return err
	}
	a.OnReady(func(a *app.App) {
		log.Info("started", "role", name, "listen", a.Addr, "admin_listen", a.AdminAddr)
	})
	if err := a.Run(e.ctx); err != nil {
		return err
	}
	log.Info("stopped", "role", name)
	return nil
}

type gatewayCmd struct{}

// Help implements kong.HelpProvider.
func (gatewayCmd) Help() string {
	return `Listens on "listen" (default 127.0.0.1:8080); metrics, /healthz and /readyz on "admin_listen".
It refuses with 503 until Redis answers and its state is rebuilt. Stops on SIGTERM after the
requests under way. Collects garbage as with GOGC=400 and GOMEMLIMIT=1GiB, unless these are set.

Example:
  tollgate --config tollgate.yaml gateway`
}

// Run runs the role.
func (gatewayCmd) Run(e *env) error {
	collectLess()
	return e.role("gateway", (*app.App).Gateway)
}

// collectLess lets the heap of a gateway's process grow to five times what is
// live. It keeps a few MiB and makes little garbage for each of very many
// requests: as Go has it by default, it would collect several times a second,
// each time in the way of the requests under way. The second bound is for
// whatever makes more live than that; it is soft.
func collectLess() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(1 << 30)
	}
}

type relayCmd struct{}

// Help implements kong.HelpProvider.
func (relayCmd) Help() string {
	return `Any number may run; they share the outbox's shards. The gateway runs one of its own unless
relay.enabled_in_gateway is false.

Example:
  tollgate --set admin_listen=127.0.0.1:9190 relay`
}

// Run runs the role.
func (relayCmd) Run(e *env) error { return e.role("relay", (*app.App).Relay) }

type ledgerCmd struct{}

// Help implements kong.HelpProvider.
func (ledgerCmd) Help() string {
	return `Any number may run; they share the log's partitions. Flushes what it holds before it stops.

Example:
  tollgate --set admin_listen=127.0.0.1:9191 --set ledger.flush_interval=1s ledger`
}

// Run runs the role.
func (ledgerCmd) Run(e *env) error { return e.role("ledger", (*app.App).Ledger) }

type migrateCmd struct {
	Wait   time.Duration `help:"How long to wait for services that are still starting." default:"30s"`
	Status bool          `help:"Only list the migrations and whether the database has them."`
}

type migrateOutput struct {
	Migrations []migrations.State `json:"migrations"`
	Partitions int                `json:"kafka_partitions"`
}

// Help implements kong.HelpProvider.
func (migrateCmd) Help() string {
	return "May be run again at any time, and by several at once.\n\nExample:\n  tollgate --config tollgate.yaml migrate"
}

// Run migrates the database and creates the topics.
func (c *migrateCmd) Run(e *env) error {
	cfg, err := e.config()
	if err != nil {
		return err
	}
	if cfg.Postgres.URL == "" {
		return withStatus(ExitUsage, app.ErrNoDatabase)
	}
	ctx, cancel := context.WithTimeout(e.ctx, c.Wait)
	defer cancel()
	if !c.Status {
		if err := app.Migrate(ctx, cfg, e.logger(cfg)); err != nil {
			return err
		}
	}
	states, err := migrations.Status(ctx, cfg.Postgres.URL.Reveal())
	if err != nil {
		return err
	}
	return e.value(migrateOutput{states, cfg.Kafka.Partitions}, func() error {
		rows := make([][]string, len(states))
		for i, s := range states {
			applied := "no"
			if s.Applied {
				applied = "yes"
			}
			rows[i] = []string{fmt.Sprint(s.Version), s.File, applied}
		}
		return e.table([]string{"MIGRATION", "FILE", "APPLIED"}, rows)
	})
}
