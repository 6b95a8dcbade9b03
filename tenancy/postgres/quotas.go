package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"tollgate/tenancy"
)

// QuotaVersion is one version of a quota document and who wrote it.
type QuotaVersion struct {
	Quota     tenancy.Quota `json:"quota"`
	Author    string        `json:"author"`
	Reason    string        `json:"reason"`
	CreatedAt time.Time     `json:"created_at"`
}

// GetQuota returns the quota in force.
func (s *Store) GetQuota(ctx context.Context, tenantID string) (*tenancy.Quota, error) {
	tenant, err := getTenant(ctx, s.pool, tenantID)
	if err != nil {
		return nil, err
	}
	return &tenant.Quota, nil
}

// SetQuota replaces the whole document. quota.Version is the version that the
// caller read; where another is in force meanwhile it returns
// tenancy.ErrConflict.
func (s *Store) SetQuota(ctx context.Context, c tenancy.Change, tenantID string, quota tenancy.Quota) (*tenancy.Quota, error) {
	return s.changeQuota(ctx, c, tenantID, "quota.set", func(current *tenancy.Quota) error {
		if quota.Version != current.Version {
			return fmt.Errorf("quota of tenant %s is at version %d, not %d: %w", tenantID, current.Version, quota.Version, tenancy.ErrConflict)
		}
		*current = quota
		return nil
	})
}

// SetLimit replaces the line of that name, or adds it at the end.
func (s *Store) SetLimit(ctx context.Context, c tenancy.Change, tenantID string, limit tenancy.Limit) (*tenancy.Quota, error) {
	return s.changeQuota(ctx, c, tenantID, "quota.set-limit", func(current *tenancy.Quota) error {
		if i := lineOf(current.Limits, limit.Name); i >= 0 {
			current.Limits[i] = limit
		} else {
			current.Limits = append(current.Limits, limit)
		}
		return nil
	})
}

// RemoveLimit removes the line of that name.
func (s *Store) RemoveLimit(ctx context.Context, c tenancy.Change, tenantID, name string) (*tenancy.Quota, error) {
	return s.changeQuota(ctx, c, tenantID, "quota.remove-limit", func(current *tenancy.Quota) error {
		i := lineOf(current.Limits, name)
		if i < 0 {
			return fmt.Errorf("limit %q of tenant %s: %w", name, tenantID, tenancy.ErrNotFound)
		}
		current.Limits = slices.Delete(current.Limits, i, i+1)
		return nil
	})
}

// QuotaHistory returns all versions, newest first.
func (s *Store) QuotaHistory(ctx context.Context, tenantID string) ([]QuotaVersion, error) {
	if _, err := getTenant(ctx, s.pool, tenantID); err != nil {
		return nil, err
	}
	rows, err := s.pool.Query(ctx,
		`SELECT version, document, author, reason, created_at FROM tenant_quotas WHERE tenant_id = $1 ORDER BY version DESC`, tenantID)
	if err != nil {
		return nil, fmt.Errorf("read quota history of tenant %s: %w", tenantID, err)
	}
	history, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (QuotaVersion, error) {
		var v QuotaVersion
		var version int64
		var document []byte
		if err := row.Scan(&version, &document, &v.Author, &v.Reason, &v.CreatedAt); err != nil {
			return v, err
		}
		v.CreatedAt = v.CreatedAt.UTC()
		var err error
		v.Quota, err = decodeQuota(version, document)
		return v, err
	})
	if err != nil {
		return nil, fmt.Errorf("read quota history of tenant %s: %w", tenantID, err)
	}
	return history, nil
}

func (s *Store) changeQuota(ctx context.Context, c tenancy.Change, tenantID, action string, apply func(*tenancy.Quota) error) (*tenancy.Quota, error) {
	var quota tenancy.Quota
	err := s.change(ctx, c, func(e *edit) error {
		tenant, err := getTenant(ctx, e.tx, tenantID)
		if err != nil {
			return err
		}
		quota = tenant.Quota
		quota.Limits = slices.Clone(quota.Limits)
		if err := apply(&quota); err != nil {
			return err
		}
		quota.Version = tenant.Quota.Version + 1
		if quota.Limits == nil {
			quota.Limits = []tenancy.Limit{}
		}
		if err := quota.Validate(); err != nil {
			return err
		}
		if err := e.writeQuota(ctx, tenantID, quota); err != nil {
			return err
		}
		return e.audit(ctx, action, tenancy.TenantField(tenantID), tenant.Quota, quota)
	})
	if err != nil {
		return nil, err
	}
	return &quota, nil
}

func (e *edit) writeQuota(ctx context.Context, tenantID string, quota tenancy.Quota) error {
	document, err := json.Marshal(quota)
	if err != nil {
		return fmt.Errorf("encode quota of tenant %s: %w", tenantID, err)
	}
	_, err = e.tx.Exec(ctx,
		`INSERT INTO tenant_quotas (tenant_id, version, document, author, reason) VALUES ($1, $2, $3, $4, $5)`,
		tenantID, quota.Version, string(document), e.change.Author, e.change.Reason)
	if err != nil {
		return fmt.Errorf("write quota of tenant %s: %w", tenantID, err)
	}
	return nil
}

func lineOf(limits []tenancy.Limit, name string) int {
	return slices.IndexFunc(limits, func(l tenancy.Limit) bool { return l.Name == name })
}
