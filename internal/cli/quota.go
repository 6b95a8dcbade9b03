package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"tollgate/tenancy"
	"tollgate/tenancy/postgres"
)

type quotaCmd struct {
	Show     quotaShowCmd     `cmd:"" help:"Show a tenant's quota document."`
	Set      quotaSetCmd      `cmd:"" help:"Replace a tenant's quota document."`
	Limit    quotaLimitCmd    `cmd:"" help:"Set one limit of a tenant."`
	Remove   quotaRemoveCmd   `cmd:"" help:"Remove one limit of a tenant."`
	History  quotaHistoryCmd  `cmd:"" help:"Show who changed a quota, when and why."`
	Platform quotaPlatformCmd `cmd:"" help:"Show or replace the limits and models of the whole platform."`
	Model    quotaModelCmd    `cmd:"" help:"Set how a model counts."`
}

type quotaShowCmd struct {
	Tenant string `arg:"" help:"Tenant id."`
}

// Help implements kong.HelpProvider.
func (quotaShowCmd) Help() string {
	return "Example:\n  tollgate quota show acme --json > acme.json"
}

// Run shows the document.
func (c *quotaShowCmd) Run(e *env) error {
	return e.withTenancy(func(ctx context.Context, s *postgres.Store) error {
		q, err := s.GetQuota(ctx, c.Tenant)
		if err != nil {
			return err
		}
		return e.quota(q)
	})
}

func (e *env) quota(q *tenancy.Quota) error {
	return e.value(q, func() error {
		fmt.Fprintf(e.out, "Version %d\n\n", q.Version)
		return e.limits(q.Limits)
	})
}

type quotaSetCmd struct {
	Tenant string `arg:"" help:"Tenant id."`
	File   string `arg:"" help:"Quota document (JSON), - for standard input. Its version must be the one in force."`
	author
}

// Help implements kong.HelpProvider.
func (quotaSetCmd) Help() string {
	return "Example:\n  tollgate quota show acme --json > acme.json\n  $EDITOR acme.json\n  tollgate quota set acme acme.json --reason 'contract 2027'"
}

// Run replaces the document.
func (c *quotaSetCmd) Run(e *env) error {
	data, err := e.read(c.File)
	if err != nil {
		return err
	}
	document, err := tenancy.ParseQuota(data)
	if err != nil {
		return withStatus(ExitUsage, err)
	}
	return e.withTenancy(func(ctx context.Context, s *postgres.Store) error {
		q, err := s.SetQuota(ctx, c.change("quota set"), c.Tenant, document)
		if err != nil {
			return err
		}
		return e.quota(q)
	})
}

type quotaLimitCmd struct {
	Tenant string `arg:"" help:"Tenant id."`
	Limit  string `arg:"" help:"One limit as JSON, or a file with it (@FILE, @- for standard input)."`
	author
}

// Help implements kong.HelpProvider.
func (quotaLimitCmd) Help() string {
	return `A limit of the same name is replaced; another is added at the end.

Examples:
  tollgate quota limit acme '{"name":"concurrency","layer":"L3","kind":"lease","scope":"tenant","limit":50}'
  tollgate quota limit acme '{"name":"gpu-day","layer":"L4","kind":"counter","scope":"tenant","metric":"gpu_ms","limit":86400000,"period":"day","budget":true}'`
}

// Run sets the limit.
func (c *quotaLimitCmd) Run(e *env) error {
	data := []byte(c.Limit)
	if c.Limit != "" && c.Limit[0] == '@' {
		var err error
		if data, err = e.read(c.Limit[1:]); err != nil {
			return err
		}
	}
	limit, err := tenancy.ParseLimit(data)
	if err != nil {
		return withStatus(ExitUsage, err)
	}
	return e.withTenancy(func(ctx context.Context, s *postgres.Store) error {
		q, err := s.SetLimit(ctx, c.change("quota limit"), c.Tenant, limit)
		if err != nil {
			return err
		}
		return e.quota(q)
	})
}

type quotaRemoveCmd struct {
	Tenant string `arg:"" help:"Tenant id."`
	Name   string `arg:"" help:"Name of the limit."`
	author
}

// Help implements kong.HelpProvider.
func (quotaRemoveCmd) Help() string { return "Example:\n  tollgate quota remove acme gpu-day" }

// Run removes the limit.
func (c *quotaRemoveCmd) Run(e *env) error {
	return e.withTenancy(func(ctx context.Context, s *postgres.Store) error {
		q, err := s.RemoveLimit(ctx, c.change("quota remove"), c.Tenant, c.Name)
		if err != nil {
			return err
		}
		return e.quota(q)
	})
}

type quotaHistoryCmd struct {
	Tenant string `arg:"" help:"Tenant id."`
}

// Help implements kong.HelpProvider.
func (quotaHistoryCmd) Help() string { return "Example:\n  tollgate quota history acme" }

// Run prints all versions.
func (c *quotaHistoryCmd) Run(e *env) error {
	return e.withTenancy(func(ctx context.Context, s *postgres.Store) error {
		versions, err := s.QuotaHistory(ctx, c.Tenant)
		if err != nil {
			return err
		}
		return e.value(versions, func() error {
			rows := make([][]string, len(versions))
			for i, v := range versions {
				rows[i] = []string{fmt.Sprint(v.Quota.Version), instant(v.CreatedAt), v.Author, v.Reason, fmt.Sprint(len(v.Quota.Limits))}
			}
			return e.table([]string{"VERSION", "AT", "AUTHOR", "REASON", "LIMITS"}, rows)
		})
	})
}

type quotaPlatformCmd struct {
	File string `arg:"" optional:"" help:"Platform document (JSON), - for standard input. Without it the one in force is shown."`
	author
}

// Help implements kong.HelpProvider.
func (quotaPlatformCmd) Help() string {
	return "Example:\n  tollgate quota platform --json > platform.json\n  $EDITOR platform.json\n  tollgate quota platform platform.json --reason 'second cluster'"
}

// Run shows or replaces the platform's document.
func (c *quotaPlatformCmd) Run(e *env) error {
	var document *tenancy.Platform
	if c.File != "" {
		data, err := e.read(c.File)
		if err != nil {
			return err
		}
		p, err := tenancy.ParsePlatform(data)
		if err != nil {
			return withStatus(ExitUsage, err)
		}
		document = &p
	}
	return e.withTenancy(func(ctx context.Context, s *postgres.Store) error {
		p, err := s.GetPlatform(ctx)
		if document != nil {
			p, err = s.SetPlatform(ctx, c.change("quota platform"), *document)
		}
		if err != nil {
			return err
		}
		return e.platform(p)
	})
}

func (e *env) platform(p *tenancy.Platform) error {
	return e.value(p, func() error {
		fmt.Fprintf(e.out, "Version %d, hold %s, at most %s, output cap %s tokens\n\n", p.Version, p.HoldTTL, p.MaxHold, count(p.DefaultMaxOutputTokens))
		if err := e.limits(p.Limits); err != nil {
			return err
		}
		if len(p.Models) == 0 {
			return nil
		}
		fmt.Fprintln(e.out)
		rows := make([][]string, len(p.Models))
		for i, m := range p.Models {
			rows[i] = []string{m.Name, fmt.Sprintf("%d.%03d", m.WeightMilli/1000, m.WeightMilli%1000), count(m.DefaultMaxOutputTokens), count(m.ImageTokens)}
		}
		return e.table([]string{"MODEL", "WEIGHT", "OUTPUT CAP", "IMAGE TOKENS"}, rows)
	})
}

type quotaModelCmd struct {
	Model string `arg:"" help:"The model's line as JSON."`
	author
}

// Help implements kong.HelpProvider.
func (quotaModelCmd) Help() string {
	return "Example:\n  tollgate quota model '{\"name\":\"llama-70b\",\"weight_milli\":2500,\"default_max_output_tokens\":2048}'"
}

// Run sets the model's line.
func (c *quotaModelCmd) Run(e *env) error {
	var m tenancy.Model
	decoder := json.NewDecoder(strings.NewReader(c.Model))
	decoder.DisallowUnknownFields() // a misspelt field must not count as its default
	if err := decoder.Decode(&m); err != nil {
		return usagef("model: %w", err)
	}
	if decoder.More() {
		return usagef("model: one JSON object is wanted")
	}
	return e.withTenancy(func(ctx context.Context, s *postgres.Store) error {
		p, err := s.SetModel(ctx, c.change("quota model"), m)
		if err != nil {
			return err
		}
		return e.platform(p)
	})
}
