package redis

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"tollgate/tenancy"
)

// snapshot is all that a directory knows at one version. It is never changed
// once it is in use.
type snapshot struct {
	version  int64  // as the directory reports it: never goes back
	source   int64  // as Redis had it
	epoch    string // of Redis
	keys     map[string]*tenancy.Key
	tenants  map[string]*tenancy.Tenant
	ids      []string // of tenants, sorted
	platform *tenancy.Platform
	unusable map[string]error // by field: published, but not in force
}

// with returns a copy in which documents replaced or, where empty, removed
// what was there. A document that cannot be used leaves what was there before,
// and is noted in unusable until another replaces it.
func (s *snapshot) with(documents map[string]string) *snapshot {
	next := &snapshot{
		platform: s.platform,
		keys:     clone(s.keys), tenants: clone(s.tenants), unusable: clone(s.unusable),
	}
	for field, document := range documents {
		if err := next.apply(field, document); err != nil {
			next.unusable[field] = err
		} else {
			delete(next.unusable, field)
		}
	}
	next.ids = slices.Sorted(maps.Keys(next.tenants))
	return next
}

func clone[T any](m map[string]T) map[string]T {
	if m == nil {
		return map[string]T{}
	}
	return maps.Clone(m)
}

// err says which documents could not be used, in few words however many.
func (s *snapshot) err() error {
	if len(s.unusable) == 0 {
		return nil
	}
	fields := slices.Sorted(maps.Keys(s.unusable))
	return fmt.Errorf("%d published documents cannot be used, first %s: %w", len(fields), fields[0], s.unusable[fields[0]])
}

func (s *snapshot) apply(field, document string) error {
	kind, id := tenancy.SplitField(field)
	switch kind {
	case tenancy.FieldTenant:
		if document == "" {
			delete(s.tenants, id)
			return nil
		}
		tenant := &tenancy.Tenant{}
		if err := decode(document, tenant); err != nil {
			return err
		}
		if tenant.ID != id {
			return errWrongID
		}
		s.tenants[id] = tenant
	case tenancy.FieldKey:
		if document == "" {
			delete(s.keys, id)
			return nil
		}
		key := &tenancy.Key{}
		if err := decode(document, key); err != nil {
			return err
		}
		if key.ID != id {
			return errWrongID
		}
		s.keys[id] = key
	case tenancy.FieldPlatform:
		if document == "" {
			return errors.New("the platform's document is missing")
		}
		platform := &tenancy.Platform{}
		if err := decode(document, platform); err != nil {
			return err
		}
		s.platform = platform
	}
	return nil // a kind that a newer publisher knows
}

var errWrongID = errors.New("the document is another's")

// decode takes unknown fields, which a newer publisher may write, but no value
// that this program would not have stored.
func decode(document string, into interface{ Validate() error }) error {
	if err := json.Unmarshal([]byte(document), into); err != nil {
		return fmt.Errorf("decode: %w", err)
	}
	return into.Validate()
}

// keepLastGood takes from old what is still published but could not be used,
// so that one bad document harms only its own change.
func (s *snapshot) keepLastGood(old *snapshot) {
	for field := range s.unusable {
		switch kind, id := tenancy.SplitField(field); kind {
		case tenancy.FieldTenant:
			if tenant := old.tenants[id]; tenant != nil {
				s.tenants[id] = tenant
			}
		case tenancy.FieldKey:
			if key := old.keys[id]; key != nil {
				s.keys[id] = key
			}
		case tenancy.FieldPlatform:
			s.platform = old.platform
		}
	}
	s.ids = slices.Sorted(maps.Keys(s.tenants))
}
