package postgres

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"

	"tollgate/tenancy"
)

// TenantPatch names what UpdateTenant changes; nil leaves a field as it is.
// Id and currency never change.
type TenantPatch struct {
	Name      *string
	TimeZone  *string
	Critical  *bool
	Suspended *bool
}

// CreateTenant stores a new tenant with version 1 of its quota. A tenant
// without Quota.Limits gets tenancy.DefaultQuota; an empty, non-nil list means
// no limits.
func (s *Store) CreateTenant(ctx context.Context, c tenancy.Change, t tenancy.Tenant) (*tenancy.Tenant, error) {
	if t.Quota.Limits == nil {
		t.Quota = tenancy.DefaultQuota()
	}
	t.Quota.Version = 1
	if err := t.Validate(); err != nil {
		return nil, err
	}
	var created *tenancy.Tenant
	err := s.change(ctx, c, func(e *edit) error {
		tag, err := e.tx.Exec(ctx,
			`INSERT INTO tenants (id, name, suspended, critical, time_zone, currency)
			 VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (id) DO NOTHING`,
			t.ID, t.Name, t.Suspended, t.Critical, t.TimeZone, t.Currency)
		if err != nil {
			return fmt.Errorf("create tenant %s: %w", t.ID, err)
		}
		if tag.RowsAffected() == 0 {
			return fmt.Errorf("tenant %s: %w", t.ID, tenancy.ErrAlreadyThere)
		}
		if err := e.writeQuota(ctx, t.ID, t.Quota); err != nil {
			return err
		}
		if created, err = getTenant(ctx, e.tx, t.ID); err != nil {
			return err
		}
		return e.audit(ctx, "tenant.create", tenancy.TenantField(t.ID), nil, created)
	})
	return created, err
}

// UpdateTenant renames, moves, marks, suspends or resumes a tenant.
func (s *Store) UpdateTenant(ctx context.Context, c tenancy.Change, id string, patch TenantPatch) (*tenancy.Tenant, error) {
	var updated *tenancy.Tenant
	err := s.change(ctx, c, func(e *edit) error {
		before, err := getTenant(ctx, e.tx, id)
		if err != nil {
			return err
		}
		after := *before
		set(&after.Name, patch.Name)
		set(&after.TimeZone, patch.TimeZone)
		set(&after.Critical, patch.Critical)
		set(&after.Suspended, patch.Suspended)
		if err := after.Validate(); err != nil {
			return err
		}
		_, err = e.tx.Exec(ctx,
			`UPDATE tenants SET name = $2, time_zone = $3, critical = $4, suspended = $5, updated_at = now() WHERE id = $1`,
			id, after.Name, after.TimeZone, after.Critical, after.Suspended)
		if err != nil {
			return fmt.Errorf("update tenant %s: %w", id, err)
		}
		if updated, err = getTenant(ctx, e.tx, id); err != nil {
			return err
		}
		action := "tenant.update"
		switch {
		case after.Suspended && !before.Suspended:
			action = "tenant.suspend"
		case before.Suspended && !after.Suspended:
			action = "tenant.resume"
		}
		return e.audit(ctx, action, tenancy.TenantField(id), before, updated)
	})
	return updated, err
}

// GetTenant returns a tenant with the quota in force.
func (s *Store) GetTenant(ctx context.Context, id string) (*tenancy.Tenant, error) {
	return getTenant(ctx, s.pool, id)
}

// ListTenants returns all tenants with their quotas, by id.
func (s *Store) ListTenants(ctx context.Context) ([]tenancy.Tenant, error) {
	return readTenants(ctx, s.pool, nil)
}

func set[T any](field, value *T) {
	if value != nil {
		*field = *value
	}
}

func getTenant(ctx context.Context, q querier, id string) (*tenancy.Tenant, error) {
	if !tenancy.ValidTenantID(id) {
		return nil, fmt.Errorf("tenant: %w", tenancy.ErrNotFound)
	}
	tenants, err := readTenants(ctx, q, []string{id})
	if err != nil {
		return nil, err
	}
	if len(tenants) == 0 {
		return nil, fmt.Errorf("tenant %s: %w", id, tenancy.ErrNotFound)
	}
	return &tenants[0], nil
}

// readTenants reads the tenants of the given ids, all where ids is nil. Ids
// are compared byte by byte, so that the order is the same everywhere.
func readTenants(ctx context.Context, q querier, ids []string) ([]tenancy.Tenant, error) {
	rows, err := q.Query(ctx,
		`SELECT t.id, t.name, t.suspended, t.critical, t.time_zone, t.currency, t.created_at, t.updated_at,
		        q.version, q.document
		 FROM tenants t
		 JOIN LATERAL (SELECT version, document FROM tenant_quotas WHERE tenant_id = t.id ORDER BY version DESC LIMIT 1) q ON true
		 WHERE $1::text[] IS NULL OR t.id = ANY ($1)
		 ORDER BY t.id COLLATE "C"`, ids)
	if err != nil {
		return nil, fmt.Errorf("read tenants: %w", err)
	}
	tenants, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (tenancy.Tenant, error) {
		var t tenancy.Tenant
		var version int64
		var document []byte
		err := row.Scan(&t.ID, &t.Name, &t.Suspended, &t.Critical, &t.TimeZone, &t.Currency, &t.CreatedAt, &t.UpdatedAt, &version, &document)
		if err != nil {
			return t, err
		}
		t.CreatedAt, t.UpdatedAt = t.CreatedAt.UTC(), t.UpdatedAt.UTC()
		t.Quota, err = decodeQuota(version, document)
		return t, err
	})
	if err != nil {
		return nil, fmt.Errorf("read tenants: %w", err)
	}
	return tenants, nil
}

func decodeQuota(version int64, document []byte) (tenancy.Quota, error) {
	var quota tenancy.Quota
	if err := json.Unmarshal(document, &quota); err != nil {
		return quota, fmt.Errorf("decode quota version %d: %w", version, err)
	}
	quota.Version = version
	return quota, nil
}
