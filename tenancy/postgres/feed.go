package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"tollgate/tenancy"
)

const (
	// feedLock is the advisory lock that the one publisher of a database holds.
	feedLock = int64(0x746f6c6c67617465)
	// feedTimeout bounds each query: a database that hangs is a lost lead.
	feedTimeout = 5 * time.Second
)

// Feed reads what a publisher copies to gateways: documents by field name
// ("tenant:<id>", "key:<id>", "platform"), and which of them changed.
//
// It works on one connection of its own, which holds the advisory lock of the
// one publisher and listens for changes. When that connection is lost, so is
// the lead, and every method but Lead fails until Lead returns true again. A
// Feed is for one goroutine.
type Feed struct {
	pool  *pgxpool.Pool
	conn  *pgx.Conn
	leads bool
}

// NewFeed returns a feed on a migrated database. The pool stays the caller's;
// the feed takes one connection from it for good.
func NewFeed(pool *pgxpool.Pool) *Feed { return &Feed{pool: pool} }

// errNotLeading is returned by what only the leader may do.
var errNotLeading = errors.New("not the leading publisher")

// Lead tries once to become the one publisher and reports whether it is.
func (f *Feed) Lead(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, feedTimeout)
	defer cancel()
	if f.conn == nil || f.conn.IsClosed() {
		f.leads = false
		pooled, err := f.pool.Acquire(ctx)
		if err != nil {
			return false, fmt.Errorf("connect the publisher: %w", err)
		}
		f.conn = pooled.Hijack()
	}
	if f.leads {
		return true, nil
	}
	if err := f.conn.QueryRow(ctx, `SELECT pg_try_advisory_lock($1)`, feedLock).Scan(&f.leads); err != nil {
		f.Resign()
		return false, fmt.Errorf("ask for the publisher's lock: %w", err)
	}
	if f.leads {
		if _, err := f.conn.Exec(ctx, `LISTEN tollgate_config`); err != nil {
			f.Resign()
			return false, fmt.Errorf("listen for changes: %w", err)
		}
	}
	return f.leads, nil
}

// Resign gives the lead and the connection up. It may be called at any time.
func (f *Feed) Resign() {
	f.leads = false
	if f.conn != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = f.conn.Close(ctx) // the server drops the lock with the connection
		f.conn = nil
	}
}

// Wait returns when something was changed, or after atMost. A change may be
// missed, so the caller asks Changes either way.
func (f *Feed) Wait(ctx context.Context, atMost time.Duration) error {
	if !f.leads {
		return errNotLeading
	}
	waiting, cancel := context.WithTimeout(ctx, atMost)
	defer cancel()
	_, err := f.conn.WaitForNotification(waiting)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case waiting.Err() != nil && !f.conn.IsClosed():
		return nil
	}
	f.Resign()
	return fmt.Errorf("wait for changes: %w", err)
}

// All returns every document and the version that they are at.
func (f *Feed) All(ctx context.Context) (documents map[string][]byte, version int64, err error) {
	documents = map[string][]byte{}
	err = f.read(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, `SELECT version FROM config_version`).Scan(&version); err != nil {
			return fmt.Errorf("read the configuration's version: %w", err)
		}
		tenants, err := readTenants(ctx, tx, nil)
		if err != nil {
			return err
		}
		keys, err := readKeys(ctx, tx, `true OR $1 = ''`, "")
		if err != nil {
			return err
		}
		return collect(ctx, tx, documents, tenants, keys, true)
	})
	return documents, version, err
}

// Changes returns the documents that changed after version since, with nil for
// those that are gone, and the version that they are at.
func (f *Feed) Changes(ctx context.Context, since int64) (documents map[string][]byte, version int64, err error) {
	documents = map[string][]byte{}
	// It is asked again and again, and most of the time nothing has changed.
	if version, err = f.version(ctx); err != nil || version == since {
		return documents, version, err
	}
	err = f.read(ctx, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx,
			`SELECT v.version, coalesce(f.field, '') FROM config_version v LEFT JOIN config_fields f ON f.version > $1`, since)
		if err != nil {
			return fmt.Errorf("read what changed: %w", err)
		}
		var tenantIDs, keyIDs []string
		var field string
		platform := false
		_, err = pgx.ForEachRow(rows, []any{&version, &field}, func() error {
			switch kind, id := tenancy.SplitField(field); kind {
			case tenancy.FieldTenant:
				tenantIDs, documents[field] = append(tenantIDs, id), nil
			case tenancy.FieldKey:
				keyIDs, documents[field] = append(keyIDs, id), nil
			case tenancy.FieldPlatform:
				platform = true
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("read what changed: %w", err)
		}
		var tenants []tenancy.Tenant
		if len(tenantIDs) > 0 {
			if tenants, err = readTenants(ctx, tx, tenantIDs); err != nil {
				return err
			}
		}
		var keys []tenancy.Key
		if len(keyIDs) > 0 {
			if keys, err = readKeys(ctx, tx, `id = ANY ($1::text[])`, keyIDs); err != nil {
				return err
			}
		}
		return collect(ctx, tx, documents, tenants, keys, platform)
	})
	return documents, version, err
}

// version is the configuration's version by itself, in one exchange.
func (f *Feed) version(ctx context.Context) (version int64, err error) {
	err = f.ask(ctx, func(ctx context.Context) error {
		return f.conn.QueryRow(ctx, `SELECT version FROM config_version`).Scan(&version)
	})
	if err != nil {
		return 0, fmt.Errorf("read the configuration's version: %w", err)
	}
	return version, nil
}

// read runs do on one snapshot of the database.
func (f *Feed) read(ctx context.Context, do func(context.Context, pgx.Tx) error) error {
	options := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	return f.ask(ctx, func(ctx context.Context) error {
		return pgx.BeginTxFunc(ctx, f.conn, options, func(tx pgx.Tx) error { return do(ctx, tx) })
	})
}

// ask asks as the leader, and resigns when the connection is lost.
func (f *Feed) ask(ctx context.Context, do func(context.Context) error) error {
	if !f.leads {
		return errNotLeading
	}
	ctx, cancel := context.WithTimeout(ctx, feedTimeout)
	defer cancel()
	err := do(ctx)
	if err != nil && (f.conn == nil || f.conn.IsClosed()) {
		f.Resign()
	}
	return err
}

func collect(ctx context.Context, q querier, documents map[string][]byte, tenants []tenancy.Tenant, keys []tenancy.Key, platform bool) error {
	add := func(field string, value any) error {
		text, err := json.Marshal(value)
		if err != nil {
			return fmt.Errorf("encode %s: %w", field, err)
		}
		documents[field] = text
		return nil
	}
	for i := range tenants {
		if err := add(tenancy.TenantField(tenants[i].ID), &tenants[i]); err != nil {
			return err
		}
	}
	for i := range keys {
		if err := add(tenancy.KeyField(keys[i].ID), &keys[i]); err != nil {
			return err
		}
	}
	if !platform {
		return nil
	}
	document, err := readPlatform(ctx, q)
	if err != nil {
		return err
	}
	return add(tenancy.FieldPlatform, document)
}
