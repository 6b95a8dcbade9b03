// Package migrations carries the schema of the ledger's database and brings a
// database up to it.
//
// Every part that keeps tables owns one numbered file here. Files only ever
// gain successors: one that was released is never edited. Numbers may be
// missing or arrive later than higher ones; they are applied all the same.
package migrations

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the "pgx" driver that goose speaks through
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

// FS holds the migration files.
//
//go:embed *.sql
var FS embed.FS

// State is one migration and whether the database has it.
type State struct {
	Version   int64     `json:"version"`
	File      string    `json:"file"`
	Applied   bool      `json:"applied"`
	AppliedAt time.Time `json:"applied_at,omitzero"`
}

// Up applies every migration that the database at pgURL lacks. Several
// processes may call it at once: a session lock lets one work and the others
// find nothing left to do. It returns the first failure; migrations before it
// stay applied, the failed one is rolled back.
func Up(ctx context.Context, pgURL string) error {
	return with(ctx, pgURL, func(p *goose.Provider) error {
		if _, err := p.Up(ctx); err != nil {
			return fmt.Errorf("migrate up: %w", err)
		}
		return nil
	})
}

// Status lists all migrations in order of their numbers.
func Status(ctx context.Context, pgURL string) ([]State, error) {
	var out []State
	err := with(ctx, pgURL, func(p *goose.Provider) error {
		all, err := p.Status(ctx)
		if err != nil {
			return fmt.Errorf("migration status: %w", err)
		}
		for _, s := range all {
			out = append(out, State{
				Version:   s.Source.Version,
				File:      s.Source.Path,
				Applied:   s.State == goose.StateApplied,
				AppliedAt: s.AppliedAt,
			})
		}
		return nil
	})
	return out, err
}

// with opens a provider on pgURL and closes its connections afterwards.
func with(ctx context.Context, pgURL string, do func(*goose.Provider) error) (err error) {
	db, err := sql.Open("pgx", pgURL)
	if err != nil {
		return fmt.Errorf("open database: %w", err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if err := db.PingContext(ctx); err != nil {
		return fmt.Errorf("reach database: %w", err)
	}
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, 300))
	if err != nil {
		return fmt.Errorf("migration lock: %w", err)
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, db, FS,
		goose.WithSessionLocker(locker),
		goose.WithAllowOutofOrder(true),
		goose.WithDisableGlobalRegistry(true),
	)
	if err != nil {
		return fmt.Errorf("read migrations: %w", err)
	}
	return do(provider)
}
