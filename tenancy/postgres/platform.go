package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"tollgate/tenancy"
)

// GetPlatform returns the document in force: tenancy.DefaultPlatform with
// version 0 where none was ever set.
func (s *Store) GetPlatform(ctx context.Context) (*tenancy.Platform, error) {
	return readPlatform(ctx, s.pool)
}

// SetPlatform replaces the whole document. platform.Version is the version
// that the caller read; where another is in force meanwhile it returns
// tenancy.ErrConflict.
func (s *Store) SetPlatform(ctx context.Context, c tenancy.Change, platform tenancy.Platform) (*tenancy.Platform, error) {
	return s.changePlatform(ctx, c, "platform.set", func(current *tenancy.Platform) error {
		if platform.Version != current.Version {
			return fmt.Errorf("the platform's document is at version %d, not %d: %w", current.Version, platform.Version, tenancy.ErrConflict)
		}
		*current = platform
		return nil
	})
}

// SetModel replaces the model's line, or adds it.
func (s *Store) SetModel(ctx context.Context, c tenancy.Change, model tenancy.Model) (*tenancy.Platform, error) {
	return s.changePlatform(ctx, c, "platform.set-model", func(current *tenancy.Platform) error {
		if i := modelLine(current.Models, model.Name); i >= 0 {
			current.Models[i] = model
		} else {
			current.Models = append(current.Models, model)
		}
		return nil
	})
}

// RemoveModel removes the model's line: the model then weighs 1.
func (s *Store) RemoveModel(ctx context.Context, c tenancy.Change, name string) (*tenancy.Platform, error) {
	return s.changePlatform(ctx, c, "platform.remove-model", func(current *tenancy.Platform) error {
		i := modelLine(current.Models, name)
		if i < 0 {
			return fmt.Errorf("model %q: %w", name, tenancy.ErrNotFound)
		}
		current.Models = slices.Delete(current.Models, i, i+1)
		return nil
	})
}

func (s *Store) changePlatform(ctx context.Context, c tenancy.Change, action string, apply func(*tenancy.Platform) error) (*tenancy.Platform, error) {
	var platform tenancy.Platform
	err := s.change(ctx, c, func(e *edit) error {
		before, err := readPlatform(ctx, e.tx)
		if err != nil {
			return err
		}
		platform = *before
		platform.Models = slices.Clone(before.Models)
		if err := apply(&platform); err != nil {
			return err
		}
		platform.Version = before.Version + 1
		if err := platform.Validate(); err != nil {
			return err
		}
		document, err := json.Marshal(platform)
		if err != nil {
			return fmt.Errorf("encode the platform's document: %w", err)
		}
		_, err = e.tx.Exec(ctx,
			`INSERT INTO platform_versions (version, document, author, reason) VALUES ($1, $2, $3, $4)`,
			platform.Version, string(document), e.change.Author, e.change.Reason)
		if err != nil {
			return fmt.Errorf("write the platform's document: %w", err)
		}
		return e.audit(ctx, action, tenancy.FieldPlatform, before, platform)
	})
	if err != nil {
		return nil, err
	}
	return &platform, nil
}

func readPlatform(ctx context.Context, q querier) (*tenancy.Platform, error) {
	var version int64
	var document []byte
	err := q.QueryRow(ctx, `SELECT version, document FROM platform_versions ORDER BY version DESC LIMIT 1`).Scan(&version, &document)
	if errors.Is(err, pgx.ErrNoRows) {
		platform := tenancy.DefaultPlatform()
		return &platform, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the platform's document: %w", err)
	}
	var platform tenancy.Platform
	if err := json.Unmarshal(document, &platform); err != nil {
		return nil, fmt.Errorf("decode the platform's document, version %d: %w", version, err)
	}
	platform.Version = version
	return &platform, nil
}

func modelLine(models []tenancy.Model, name string) int {
	return slices.IndexFunc(models, func(m tenancy.Model) bool { return m.Name == name })
}
