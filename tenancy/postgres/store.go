// Package postgres keeps tenants, API keys, quota documents and the platform's
// document in PostgreSQL, with their history and an audit trail.
//
// Store is for administration; no request path uses it. Every change is one
// transaction that validates the whole document, writes it, and records who
// changed what and why. Transactions lock the row of config_version first, so
// changes are made one at a time and become visible in the order of their
// versions; Feed relies on that order.
package postgres

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"tollgate/tenancy"
)

// Store administers tenancy. Methods that change something return a
// *tenancy.InvalidError for what breaks a rule (nothing is written then),
// tenancy.ErrNotFound, tenancy.ErrAlreadyThere or tenancy.ErrConflict.
type Store struct {
	pool   *pgxpool.Pool
	random io.Reader
}

// New returns a store on a migrated database. The pool stays the caller's.
func New(pool *pgxpool.Pool) *Store {
	return &Store{pool: pool, random: rand.Reader}
}

// Version is the version of everything that is published. A directory that
// reports at least this version has taken in every change made before.
func (s *Store) Version(ctx context.Context) (int64, error) {
	var version int64
	if err := s.pool.QueryRow(ctx, `SELECT version FROM config_version`).Scan(&version); err != nil {
		return 0, fmt.Errorf("read the configuration's version: %w", err)
	}
	return version, nil
}

// change runs one administrative transaction, alone.
func (s *Store) change(ctx context.Context, c tenancy.Change, do func(*edit) error) error {
	if err := c.Validate(); err != nil {
		return err
	}
	return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT FROM config_version FOR UPDATE`); err != nil {
			return fmt.Errorf("wait for other changes: %w", err)
		}
		return do(&edit{tx: tx, change: c})
	})
}

// edit is one administrative transaction under way.
type edit struct {
	tx     pgx.Tx
	change tenancy.Change
}

// audit adds a record of what was changed. before and after are nil or values
// that carry no secret.
func (e *edit) audit(ctx context.Context, action, subject string, before, after any) error {
	texts := [2]*string{}
	for i, value := range []any{before, after} {
		if value == nil {
			continue
		}
		text, err := json.Marshal(value)
		if err != nil {
			return fmt.Errorf("write down the change of %s: %w", subject, err)
		}
		asText := string(text)
		texts[i] = &asText
	}
	_, err := e.tx.Exec(ctx,
		`INSERT INTO admin_changes (author, reason, action, subject, before, after) VALUES ($1, $2, $3, $4, $5, $6)`,
		e.change.Author, e.change.Reason, action, subject, texts[0], texts[1])
	if err != nil {
		return fmt.Errorf("record the change of %s: %w", subject, err)
	}
	return nil
}

// querier is a pool or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// notFound turns a missing row into tenancy.ErrNotFound and gives other errors
// their context.
func notFound(err error, what string) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("%s: %w", what, tenancy.ErrNotFound)
	}
	return fmt.Errorf("read %s: %w", what, err)
}
