package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"tollgate/tenancy"
)

// NewKey describes a key to create. TenantID is empty for operators and for
// meters of the whole platform; a zero ExpiresAt never expires.
type NewKey struct {
	TenantID  string
	Name      string
	Role      tenancy.Role
	Limits    []tenancy.Limit
	ExpiresAt time.Time
}

// CreateKey makes and stores a key. The presented form ("tgk_<16>.<secret>")
// is returned this once and cannot be had again.
func (s *Store) CreateKey(ctx context.Context, c tenancy.Change, n NewKey) (key *tenancy.Key, presented string, err error) {
	err = s.change(ctx, c, func(e *edit) error {
		key, presented, err = s.insertKey(ctx, e, n)
		if err != nil {
			return err
		}
		return e.audit(ctx, "key.create", tenancy.KeyField(key.ID), nil, shown(key))
	})
	if err != nil {
		return nil, "", err
	}
	return key, presented, nil
}

// RevokeKey ends a key now. Revoking it again changes nothing.
func (s *Store) RevokeKey(ctx context.Context, c tenancy.Change, keyID string) (*tenancy.Key, error) {
	var revoked *tenancy.Key
	err := s.change(ctx, c, func(e *edit) error {
		before, err := getKey(ctx, e.tx, keyID)
		if err != nil {
			return err
		}
		if revoked = before; !before.RevokedAt.IsZero() {
			return nil
		}
		if _, err := e.tx.Exec(ctx, `UPDATE api_keys SET revoked_at = now() WHERE id = $1`, keyID); err != nil {
			return fmt.Errorf("revoke key %s: %w", keyID, err)
		}
		if revoked, err = getKey(ctx, e.tx, keyID); err != nil {
			return err
		}
		return e.audit(ctx, "key.revoke", tenancy.KeyField(keyID), shown(before), shown(revoked))
	})
	if err != nil {
		return nil, err
	}
	return revoked, nil
}

// RotateKey makes a key with another id and secret and the same name, role,
// limits and expiry. The old key ends after overlap, at once where it is 0. A
// key that has ended cannot be rotated: tenancy.ErrKeyRevoked.
func (s *Store) RotateKey(ctx context.Context, c tenancy.Change, keyID string, overlap time.Duration) (key *tenancy.Key, presented string, err error) {
	if overlap < 0 || overlap > tenancy.MaxKeyOverlap {
		return nil, "", fmt.Errorf("rotate key %s: %w", keyID, &tenancy.InvalidError{Document: "change", Mistakes: []tenancy.Mistake{{
			Path: "overlap", Problem: fmt.Sprintf("must be 0s to %s, is %s", tenancy.Duration(tenancy.MaxKeyOverlap), tenancy.Duration(overlap)),
		}}})
	}
	err = s.change(ctx, c, func(e *edit) error {
		old, err := getKey(ctx, e.tx, keyID)
		if err != nil {
			return err
		}
		var ended bool
		err = e.tx.QueryRow(ctx,
			`SELECT revoked_at IS NOT NULL OR coalesce(expires_at <= now(), false) FROM api_keys WHERE id = $1`, keyID).Scan(&ended)
		if err != nil {
			return notFound(err, "key "+keyID)
		}
		if ended {
			return fmt.Errorf("rotate key %s: %w", keyID, tenancy.ErrKeyRevoked)
		}
		if key, presented, err = s.insertKey(ctx, e, NewKey{
			TenantID: old.TenantID, Name: old.Name, Role: old.Role, Limits: old.Limits, ExpiresAt: old.ExpiresAt,
		}); err != nil {
			return err
		}
		_, err = e.tx.Exec(ctx,
			`UPDATE api_keys SET
			     revoked_at = CASE WHEN $2::bigint = 0 THEN now() END,
			     expires_at = CASE WHEN $2::bigint = 0 THEN expires_at
			                       ELSE least(expires_at, now() + $2::bigint * interval '1 microsecond') END
			 WHERE id = $1`, keyID, overlap.Microseconds())
		if err != nil {
			return fmt.Errorf("end key %s: %w", keyID, err)
		}
		ending, err := getKey(ctx, e.tx, keyID)
		if err != nil {
			return err
		}
		if err := e.audit(ctx, "key.rotate-out", tenancy.KeyField(keyID), shown(old), shown(ending)); err != nil {
			return err
		}
		return e.audit(ctx, "key.rotate-in", tenancy.KeyField(key.ID), nil, shown(key))
	})
	if err != nil {
		return nil, "", err
	}
	return key, presented, nil
}

// GetKey returns a key as it is stored.
func (s *Store) GetKey(ctx context.Context, keyID string) (*tenancy.Key, error) {
	return getKey(ctx, s.pool, keyID)
}

// ListKeys returns the keys of a tenant, or all keys where tenantID is empty,
// in the order of their creation.
func (s *Store) ListKeys(ctx context.Context, tenantID string) ([]tenancy.Key, error) {
	if tenantID == "" {
		return readKeys(ctx, s.pool, `true OR $1 = ''`, "")
	}
	if _, err := getTenant(ctx, s.pool, tenantID); err != nil {
		return nil, err
	}
	return readKeys(ctx, s.pool, `tenant_id = $1`, tenantID)
}

func (s *Store) insertKey(ctx context.Context, e *edit, n NewKey) (*tenancy.Key, string, error) {
	credential, err := tenancy.NewCredential(s.random)
	if err != nil {
		return nil, "", err
	}
	key := tenancy.Key{
		ID: credential.KeyID, TenantID: n.TenantID, Name: n.Name, Role: n.Role,
		SecretHash: credential.SecretHash, Limits: n.Limits, ExpiresAt: n.ExpiresAt,
	}
	if err := key.Validate(); err != nil {
		return nil, "", err
	}
	if key.TenantID != "" {
		if _, err := getTenant(ctx, e.tx, key.TenantID); err != nil {
			return nil, "", err
		}
	}
	limits, err := json.Marshal(append([]tenancy.Limit{}, key.Limits...)) // never null
	if err != nil {
		return nil, "", fmt.Errorf("encode limits of a key: %w", err)
	}
	_, err = e.tx.Exec(ctx,
		`INSERT INTO api_keys (id, tenant_id, name, role, secret_hash, limits, expires_at)
		 VALUES ($1, nullif($2, ''), $3, $4, $5, $6, $7)`,
		key.ID, key.TenantID, key.Name, key.Role, key.SecretHash, string(limits), nullTime(key.ExpiresAt))
	if err != nil {
		return nil, "", fmt.Errorf("create key: %w", err)
	}
	stored, err := getKey(ctx, e.tx, key.ID)
	if err != nil {
		return nil, "", err
	}
	return stored, credential.Presented, nil
}

func getKey(ctx context.Context, q querier, keyID string) (*tenancy.Key, error) {
	if len(keyID) > 64 { // whatever it is, it is no key id; don't echo it
		return nil, fmt.Errorf("key: %w", tenancy.ErrNotFound)
	}
	keys, err := readKeys(ctx, q, `id = $1`, keyID)
	if err != nil {
		return nil, err
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("key %q: %w", keyID, tenancy.ErrNotFound)
	}
	return &keys[0], nil
}

// readKeys reads the keys for which a condition, a constant of this file,
// holds with its argument.
func readKeys(ctx context.Context, q querier, condition string, argument any) ([]tenancy.Key, error) {
	rows, err := q.Query(ctx,
		`SELECT id, coalesce(tenant_id, ''), name, role, secret_hash, limits, created_at, expires_at, revoked_at
		 FROM api_keys WHERE `+condition+` ORDER BY created_at, id COLLATE "C"`, argument)
	if err != nil {
		return nil, fmt.Errorf("read keys: %w", err)
	}
	keys, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (tenancy.Key, error) {
		var k tenancy.Key
		var limits []byte
		var expires, revoked *time.Time
		err := row.Scan(&k.ID, &k.TenantID, &k.Name, &k.Role, &k.SecretHash, &limits, &k.CreatedAt, &expires, &revoked)
		if err != nil {
			return k, err
		}
		k.CreatedAt, k.ExpiresAt, k.RevokedAt = k.CreatedAt.UTC(), zeroTime(expires), zeroTime(revoked)
		if err := json.Unmarshal(limits, &k.Limits); err != nil {
			return k, fmt.Errorf("decode limits of key %s: %w", k.ID, err)
		}
		if len(k.Limits) == 0 {
			k.Limits = nil // as it is after a way through JSON
		}
		return k, nil
	})
	if err != nil {
		return nil, fmt.Errorf("read keys: %w", err)
	}
	return keys, nil
}

// shown is a key as the audit trail may show it: without its secret's hash.
func shown(key *tenancy.Key) *tenancy.Key {
	k := *key
	k.SecretHash = nil
	return &k
}

func nullTime(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func zeroTime(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.UTC()
}
