package cli

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/user"

	"github.com/jackc/pgx/v5/pgxpool"

	"tollgate/internal/app"
	"tollgate/tenancy"
	"tollgate/tenancy/postgres"
)

// author signs administrative changes.
type author struct {
	Author string `help:"Who makes the change, for the audit trail. Default: the operating system's user." env:"TOLLGATE_AUTHOR"`
	Reason string `help:"Why, for the audit trail."`
}

// change returns the signature; what stands in for a reason that was not given.
func (a author) change(what string) tenancy.Change {
	c := tenancy.Change{Author: a.Author, Reason: a.Reason}
	if c.Author == "" {
		c.Author = "cli"
		if u, err := user.Current(); err == nil {
			c.Author = "cli:" + u.Username
		}
	}
	if c.Reason == "" {
		c.Reason = what
	}
	return c
}

// database opens the configured database for one command.
func (e *env) database() (*pgxpool.Pool, error) {
	cfg, err := e.config()
	if err != nil {
		return nil, err
	}
	pool, err := app.NewPostgres(cfg)
	if err != nil {
		return nil, withStatus(ExitUsage, err)
	}
	if err := pool.Ping(e.ctx); err != nil {
		pool.Close()
		return nil, fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	return pool, nil
}

// withTenancy runs fn with the administration store.
func (e *env) withTenancy(fn func(ctx context.Context, s *postgres.Store) error) error {
	pool, err := e.database()
	if err != nil {
		return err
	}
	defer pool.Close()
	return fn(e.ctx, postgres.New(pool))
}

type tenantCmd struct {
	Create  tenantCreateCmd  `cmd:"" help:"Create a tenant."`
	List    tenantListCmd    `cmd:"" help:"List tenants."`
	Show    tenantShowCmd    `cmd:"" help:"Show a tenant and its quota."`
	Suspend tenantSuspendCmd `cmd:"" help:"Refuse everything a tenant asks from now on."`
	Resume  tenantResumeCmd  `cmd:"" help:"Undo a suspension."`
	Changes tenantChangesCmd `cmd:"" help:"Show the audit trail of administrative changes."`
}

type tenantCreateCmd struct {
	ID       string `arg:"" help:"Tenant id: lower-case letters, digits and hyphens, at most 63."`
	Name     string `help:"Name for people. Default: the id."`
	TimeZone string `help:"IANA time zone of calendar budgets and bills." default:"UTC"`
	Currency string `help:"Currency of bills (ISO 4217). Default: billing.currency of the configuration (USD)."`
	Critical bool   `help:"Mark the tenant as critical."`
	Quota    string `help:"Quota document (JSON file, - for standard input). Default: the standard layers." placeholder:"FILE"`
	author
}

// Help implements kong.HelpProvider.
func (tenantCreateCmd) Help() string {
	return "Example:\n  tollgate tenant create acme --name 'Acme Inc.' --time-zone Europe/Zurich --currency CHF"
}

// Run creates the tenant.
func (c *tenantCreateCmd) Run(e *env) error {
	cfg, err := e.config()
	if err != nil {
		return err
	}
	t := tenancy.Tenant{
		ID: c.ID, Name: c.Name, TimeZone: c.TimeZone, Currency: cmp.Or(c.Currency, cfg.Billing.Currency), Critical: c.Critical,
	}
	if t.Name == "" {
		t.Name = c.ID
	}
	if c.Quota != "" {
		data, err := e.read(c.Quota)
		if err != nil {
			return err
		}
		if t.Quota, err = tenancy.ParseQuota(data); err != nil {
			return withStatus(ExitUsage, err)
		}
	}
	return e.withTenancy(func(ctx context.Context, s *postgres.Store) error {
		created, err := s.CreateTenant(ctx, c.change("tenant create"), t)
		if err != nil {
			return err
		}
		return e.value(created, func() error {
			_, err := fmt.Fprintf(e.out, "Created tenant %s.\nGive it a key:  tollgate key create %s\n", created.ID, created.ID)
			return err
		})
	})
}

type tenantListCmd struct{}

// Help implements kong.HelpProvider.
func (tenantListCmd) Help() string { return "Example:\n  tollgate tenant list --json" }

// Run lists all tenants.
func (tenantListCmd) Run(e *env) error {
	return e.withTenancy(func(ctx context.Context, s *postgres.Store) error {
		tenants, err := s.ListTenants(ctx)
		if err != nil {
			return err
		}
		return e.value(tenants, func() error {
			rows := make([][]string, len(tenants))
			for i, t := range tenants {
				state := "active"
				if t.Suspended {
					state = "suspended"
				}
				rows[i] = []string{t.ID, t.Name, state, t.TimeZone, t.Currency, fmt.Sprint(len(t.Quota.Limits)), instant(t.CreatedAt)}
			}
			return e.table([]string{"TENANT", "NAME", "STATE", "TIME ZONE", "CURRENCY", "LIMITS", "CREATED"}, rows)
		})
	})
}

type tenantShowCmd struct {
	ID string `arg:"" help:"Tenant id."`
}

// Help implements kong.HelpProvider.
func (tenantShowCmd) Help() string { return "Example:\n  tollgate tenant show acme" }

// Run shows one tenant.
func (c *tenantShowCmd) Run(e *env) error {
	return e.withTenancy(func(ctx context.Context, s *postgres.Store) error {
		t, err := s.GetTenant(ctx, c.ID)
		if err != nil {
			return err
		}
		return e.value(t, func() error {
			fmt.Fprintf(e.out, "%s (%s), %s, %s, suspended: %t\n\n", t.ID, t.Name, t.TimeZone, t.Currency, t.Suspended)
			return e.limits(t.Quota.Limits)
		})
	})
}

// limits prints the lines of a quota document.
func (e *env) limits(limits []tenancy.Limit) error {
	rows := make([][]string, len(limits))
	for i, l := range limits {
		span := string(l.Period)
		if l.Window > 0 {
			span = l.Window.String()
		}
		extra := ""
		switch {
		case l.Burst > 0:
			extra = fmt.Sprintf("burst %d", l.Burst)
		case l.BurstPercent > 0:
			extra = fmt.Sprintf("× %d%%", l.BurstPercent)
		case l.Budget:
			extra = "budget"
		}
		rows[i] = []string{l.Layer, l.Name, string(l.Kind), string(l.Scope), l.Match, string(l.Metric), count(l.Limit), span, extra}
	}
	return e.table([]string{"LAYER", "LIMIT", "KIND", "SCOPE", "MATCH", "METRIC", "AMOUNT", "PER", ""}, rows)
}

type tenantSuspendCmd struct {
	ID string `arg:"" help:"Tenant id."`
	author
}

// Help implements kong.HelpProvider.
func (tenantSuspendCmd) Help() string {
	return "Example:\n  tollgate tenant suspend acme --reason 'invoice 2026-10 unpaid'"
}

// Run suspends the tenant.
func (c *tenantSuspendCmd) Run(e *env) error { return setSuspended(e, c.ID, c.author, true) }

type tenantResumeCmd struct {
	ID string `arg:"" help:"Tenant id."`
	author
}

// Help implements kong.HelpProvider.
func (tenantResumeCmd) Help() string {
	return "Example:\n  tollgate tenant resume acme --reason 'invoice 2026-10 paid'"
}

// Run resumes the tenant.
func (c *tenantResumeCmd) Run(e *env) error { return setSuspended(e, c.ID, c.author, false) }

func setSuspended(e *env, id string, a author, suspended bool) error {
	if a.Reason == "" {
		return usagef("say why with --reason; it is kept in the audit trail")
	}
	return e.withTenancy(func(ctx context.Context, s *postgres.Store) error {
		t, err := s.UpdateTenant(ctx, a.change(""), id, postgres.TenantPatch{Suspended: &suspended})
		if err != nil {
			return err
		}
		return e.value(t, func() error {
			_, err := fmt.Fprintf(e.out, "Tenant %s: suspended = %t.\n", t.ID, t.Suspended)
			return err
		})
	})
}

type tenantChangesCmd struct {
	Subject string `arg:"" optional:"" help:"Only changes of this subject, e.g. tenant:acme."`
	Limit   int    `help:"At most so many, the newest first (1 to 1000)." default:"50"`
}

// Help implements kong.HelpProvider.
func (tenantChangesCmd) Help() string { return "Example:\n  tollgate tenant changes tenant:acme" }

// Run prints the audit trail.
func (c *tenantChangesCmd) Run(e *env) error {
	if c.Limit < 1 || c.Limit > 1000 {
		return usagef("--limit must be 1 to 1000")
	}
	return e.withTenancy(func(ctx context.Context, s *postgres.Store) error {
		records, err := s.Changes(ctx, c.Subject, c.Limit)
		if err != nil {
			return err
		}
		return e.value(records, func() error {
			rows := make([][]string, len(records))
			for i, r := range records {
				rows[i] = []string{instant(r.At), r.Author, r.Action, r.Subject, r.Reason}
			}
			return e.table([]string{"AT", "AUTHOR", "ACTION", "SUBJECT", "REASON"}, rows)
		})
	})
}

// maxInput bounds documents read from files and standard input.
const maxInput = 1 << 20

// read returns a file's content, or standard input's for "-".
func (e *env) read(path string) ([]byte, error) {
	if path == "-" {
		return readLimited(e.in, "standard input")
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, withStatus(ExitUsage, err)
	}
	defer func() { _ = f.Close() }() // only read
	return readLimited(f, path)
}
