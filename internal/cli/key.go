package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"tollgate/tenancy"
	"tollgate/tenancy/postgres"
)

func readLimited(r io.Reader, name string) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxInput+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	if len(data) > maxInput {
		return nil, usagef("%s is larger than %d bytes", name, maxInput)
	}
	return data, nil
}

type keyCmd struct {
	Create keyCreateCmd `cmd:"" help:"Create an API key; its secret is shown this once."`
	List   keyListCmd   `cmd:"" help:"List API keys."`
	Revoke keyRevokeCmd `cmd:"" help:"End an API key now."`
	Rotate keyRotateCmd `cmd:"" help:"Make a successor of a key, and end the old one."`
}

type keyCreateCmd struct {
	Tenant string        `arg:"" optional:"" help:"Tenant id; none for operator keys and platform-wide meter keys."`
	Name   string        `help:"What the key is for." default:"default"`
	Role   string        `help:"tenant, operator or meter." enum:"tenant,operator,meter" default:"tenant"`
	Limits string        `help:"Limits of this key alone (JSON file with a quota document, - for standard input)." placeholder:"FILE"`
	TTL    time.Duration `name:"ttl" help:"How long the key lives, e.g. 720h. Default: until it is revoked."`
	author
}

type keyOutput struct {
	Key    shownKey `json:"key"`
	Secret string   `json:"secret,omitempty"`
}

// shownKey is a key without its hash.
type shownKey struct {
	ID        string          `json:"id"`
	TenantID  string          `json:"tenant_id,omitempty"`
	Name      string          `json:"name"`
	Role      tenancy.Role    `json:"role"`
	Limits    []tenancy.Limit `json:"limits,omitempty"`
	CreatedAt time.Time       `json:"created_at"`
	ExpiresAt *time.Time      `json:"expires_at"`
	RevokedAt *time.Time      `json:"revoked_at"`
}

func show(k *tenancy.Key) shownKey {
	optional := func(t time.Time) *time.Time {
		if t.IsZero() {
			return nil
		}
		return &t
	}
	return shownKey{
		ID: k.ID, TenantID: k.TenantID, Name: k.Name, Role: k.Role, Limits: k.Limits,
		CreatedAt: k.CreatedAt, ExpiresAt: optional(k.ExpiresAt), RevokedAt: optional(k.RevokedAt),
	}
}

// Help implements kong.HelpProvider.
func (keyCreateCmd) Help() string {
	return "Examples:\n  tollgate key create acme --name agents\n  tollgate key create --role operator --name oncall --ttl 720h"
}

// Run creates the key and prints its secret.
func (c *keyCreateCmd) Run(e *env) error {
	n := postgres.NewKey{TenantID: c.Tenant, Name: c.Name, Role: tenancy.Role(c.Role)}
	if c.TTL < 0 {
		return usagef("--ttl must be positive, or absent for a key without an end")
	}
	if c.TTL > 0 {
		n.ExpiresAt = time.Now().Add(c.TTL).UTC()
	}
	if c.Limits != "" {
		data, err := e.read(c.Limits)
		if err != nil {
			return err
		}
		document, err := tenancy.ParseQuota(data)
		if err != nil {
			return withStatus(ExitUsage, err)
		}
		n.Limits = document.Limits
	}
	return e.withTenancy(func(ctx context.Context, s *postgres.Store) error {
		key, secret, err := s.CreateKey(ctx, c.change("key create"), n)
		if err != nil {
			return err
		}
		return e.secret(key, secret)
	})
}

// secret prints a new key. Only the key itself goes to standard output, so
// that a script can take it as it is.
func (e *env) secret(key *tenancy.Key, secret string) error {
	return e.value(keyOutput{show(key), secret}, func() error {
		e.note("Created key %s (%s). This is the only time that it is shown:", key.ID, key.Role)
		_, err := fmt.Fprintln(e.out, secret)
		return err
	})
}

type keyListCmd struct {
	Tenant string `arg:"" optional:"" help:"Only this tenant's keys."`
}

// Help implements kong.HelpProvider.
func (keyListCmd) Help() string { return "Example:\n  tollgate key list acme" }

// Run lists keys.
func (c *keyListCmd) Run(e *env) error {
	return e.withTenancy(func(ctx context.Context, s *postgres.Store) error {
		keys, err := s.ListKeys(ctx, c.Tenant)
		if err != nil {
			return err
		}
		shown := make([]shownKey, len(keys))
		rows := make([][]string, len(keys))
		for i := range keys {
			k := &keys[i]
			shown[i] = show(k)
			rows[i] = []string{k.ID, k.TenantID, k.Name, string(k.Role), instant(k.CreatedAt), instant(k.ExpiresAt), instant(k.RevokedAt)}
		}
		return e.value(shown, func() error {
			return e.table([]string{"KEY", "TENANT", "NAME", "ROLE", "CREATED", "EXPIRES", "REVOKED"}, rows)
		})
	})
}

type keyRevokeCmd struct {
	ID string `arg:"" help:"Key id (tgk_…), without the secret."`
	author
}

// Help implements kong.HelpProvider.
func (keyRevokeCmd) Help() string {
	return "Example:\n  tollgate key revoke tgk_0123456789abcdef --reason leaked"
}

// Run revokes the key.
func (c *keyRevokeCmd) Run(e *env) error {
	if c.Reason == "" {
		return usagef("say why with --reason; it is kept in the audit trail")
	}
	return e.withTenancy(func(ctx context.Context, s *postgres.Store) error {
		key, err := s.RevokeKey(ctx, c.change(""), c.ID)
		if err != nil {
			return err
		}
		return e.value(keyOutput{Key: show(key)}, func() error {
			_, err := fmt.Fprintf(e.out, "Revoked key %s at %s.\n", key.ID, instant(key.RevokedAt))
			return err
		})
	})
}

type keyRotateCmd struct {
	ID      string        `arg:"" help:"Key id (tgk_…), without the secret."`
	Overlap time.Duration `help:"How long the old key stays valid." default:"24h"`
	author
}

// Help implements kong.HelpProvider.
func (keyRotateCmd) Help() string {
	return "Example:\n  tollgate key rotate tgk_0123456789abcdef --overlap 1h"
}

// Run rotates the key.
func (c *keyRotateCmd) Run(e *env) error {
	if c.Overlap < 0 {
		return usagef("--overlap must not be negative")
	}
	return e.withTenancy(func(ctx context.Context, s *postgres.Store) error {
		key, secret, err := s.RotateKey(ctx, c.change("key rotate"), c.ID, c.Overlap)
		if err != nil {
			return err
		}
		return e.secret(key, secret)
	})
}
