package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"tollgate/billing"
	"tollgate/billing/export"
	billingpg "tollgate/billing/postgres"
	tenancypg "tollgate/tenancy/postgres"
)

// withBilling runs fn with the billing store and the database behind it.
func (e *env) withBilling(fn func(ctx context.Context, s *billingpg.Store, pool *pgxpool.Pool) error) error {
	pool, err := e.database()
	if err != nil {
		return err
	}
	defer pool.Close()
	return billingStatus(fn(e.ctx, billingpg.New(pool, billingpg.Options{}), pool))
}

// billingStatus gives billing's errors their exit status.
func billingStatus(err error) error {
	var status *statusError
	if errors.As(err, &status) {
		return err
	}
	for _, known := range []struct {
		status int
		errs   []error
	}{
		{ExitUsage, []error{billing.ErrInvalid, billing.ErrNotFound, billing.ErrCurrency}},
		{ExitConflict, []error{
			billing.ErrAlreadyClosed, billing.ErrOverlap, billing.ErrClosedPeriod, billing.ErrPeriodOpen, billing.ErrConflict, export.ErrExists,
		}},
		{ExitDiffers, []error{billing.ErrUnrated, billing.ErrJournal}},
	} {
		for _, sentinel := range known.errs {
			if errors.Is(err, sentinel) {
				return withStatus(known.status, err)
			}
		}
	}
	return err
}

type billCmd struct {
	Draft  billDraftCmd  `cmd:"" help:"Compute a tenant's bill as it stands now."`
	Close  billCloseCmd  `cmd:"" help:"Close a period: its bill never changes again."`
	List   billListCmd   `cmd:"" help:"List closed bills."`
	Show   billShowCmd   `cmd:"" help:"Show or export a closed bill."`
	Credit billCreditCmd `cmd:"" help:"Give a tenant a credit or a refund."`
}

// billOutput says where a bill goes.
type billOutput struct {
	Format string `help:"csv, json or focus (FOCUS 1.2 CSV), for --output." enum:"csv,json,focus" default:"csv"`
	Output string `short:"o" help:"Write the bill to this file (- for standard output) instead of a table." placeholder:"FILE"`
	Force  bool   `help:"Replace the file if it exists."`
}

func (o billOutput) print(e *env, b billing.Bill) error {
	format := export.Format(o.Format)
	switch o.Output {
	case "":
		return e.bill(b)
	case "-":
		return export.Write(e.out, format, b, export.Options{})
	}
	if err := export.File(o.Output, format, b, export.Options{}, o.Force); err != nil {
		return billingStatus(err)
	}
	e.note("Wrote %s: %d lines, total %s %s.", o.Output, len(b.Lines), b.Total, b.Currency)
	return nil
}

// bill prints a bill as a table, or as JSON.
func (e *env) bill(b billing.Bill) error {
	return e.value(b, func() error {
		fmt.Fprintf(e.out, "%s bill of %s (%s), %s: %s to %s\n\n", b.Status, b.Account.TenantID, b.Account.Name,
			b.Period.Label, instant(b.Period.From), instant(b.Period.To))
		rows := make([][]string, len(b.Lines))
		for i, l := range b.Lines {
			price := l.UnitPrice
			if l.UnitSize > 1 && price != "" {
				price += " / " + count(l.UnitSize)
			}
			amount := l.Amount.String()
			if !l.Rated {
				amount = "no price"
			}
			kind := string(l.Category)
			if l.Correction {
				kind = "Correction"
			}
			rows[i] = []string{fmt.Sprint(l.N), kind, l.Model, string(l.Meter), count(l.Quantity), price, amount}
		}
		if err := e.table([]string{"LINE", "CHARGE", "MODEL", "METER", "QUANTITY", "PRICE", "AMOUNT"}, rows); err != nil {
			return err
		}
		_, err := fmt.Fprintf(e.out, "\nTotal %s %s\n", b.Total, b.Currency)
		return err
	})
}

type billDraftCmd struct {
	Tenant       string `arg:"" help:"Tenant id."`
	Period       string `arg:"" help:"A month of the tenant's time zone (2026-11), or FROM/TO as RFC 3339 whole hours."`
	AllowUnrated bool   `help:"End with status 0 although some usage has no price."`
	billOutput
}

// Help implements kong.HelpProvider.
func (billDraftCmd) Help() string {
	return "Status 1 when some usage has no price: it is listed, not left out.\n\nExamples:\n  tollgate bill draft acme 2026-11\n  tollgate bill draft acme 2026-11 --format focus -o acme-2026-11.csv"
}

// Run drafts the bill.
func (c *billDraftCmd) Run(e *env) error {
	return e.withBilling(func(ctx context.Context, s *billingpg.Store, pool *pgxpool.Pool) error {
		account, period, err := accountPeriod(ctx, pool, c.Tenant, c.Period)
		if err != nil {
			return err
		}
		b, err := s.Draft(ctx, account, period)
		if err != nil {
			return err
		}
		if err := c.print(e, b); err != nil {
			return err
		}
		if b.Unrated > 0 && !c.AllowUnrated {
			return withStatus(ExitDiffers, fmt.Errorf("%d lines have no price: set one with \"tollgate price set\", or pass --allow-unrated", b.Unrated))
		}
		return nil
	})
}

func accountPeriod(ctx context.Context, pool *pgxpool.Pool, tenant, period string) (billing.Account, billing.Period, error) {
	t, err := tenancypg.New(pool).GetTenant(ctx, tenant)
	if err != nil {
		return billing.Account{}, billing.Period{}, err
	}
	p, err := billing.ParsePeriod(period, t.TimeZone)
	if err != nil {
		return billing.Account{}, billing.Period{}, err
	}
	return billing.Account{TenantID: t.ID, Name: t.Name, Currency: t.Currency, TimeZone: t.TimeZone}, p, nil
}

type billCloseCmd struct {
	Tenant       string `arg:"" help:"Tenant id."`
	Period       string `arg:"" help:"The period, which must have ended."`
	AllowUnrated bool   `help:"Close although some usage has no price; it can then never be billed."`
	billOutput
	author
}

// Help implements kong.HelpProvider.
func (billCloseCmd) Help() string {
	return "Closing again prints the bill that is closed and ends with status 4.\n\nExample:\n  tollgate bill close acme 2026-10 --format json -o acme-2026-10.json"
}

// Run closes the period.
func (c *billCloseCmd) Run(e *env) error {
	return e.withBilling(func(ctx context.Context, s *billingpg.Store, pool *pgxpool.Pool) error {
		account, period, err := accountPeriod(ctx, pool, c.Tenant, c.Period)
		if err != nil {
			return err
		}
		b, err := s.Close(ctx, account, period, billingpg.CloseOptions{By: c.change("").Author, AllowUnrated: c.AllowUnrated})
		if err != nil && !errors.Is(err, billing.ErrAlreadyClosed) && !errors.Is(err, billing.ErrUnrated) {
			return err
		}
		return errors.Join(c.print(e, b), err)
	})
}

type billListCmd struct {
	Tenant string `arg:"" optional:"" help:"Only this tenant's."`
}

// Help implements kong.HelpProvider.
func (billListCmd) Help() string { return "Example:\n  tollgate bill list acme" }

// Run lists closed bills.
func (c *billListCmd) Run(e *env) error {
	return e.withBilling(func(ctx context.Context, s *billingpg.Store, _ *pgxpool.Pool) error {
		bills, err := s.ListBills(ctx, c.Tenant)
		if err != nil {
			return err
		}
		return e.value(bills, func() error {
			rows := make([][]string, len(bills))
			for i, b := range bills {
				rows[i] = []string{b.ID, b.TenantID, b.Label, instant(b.From), instant(b.To), b.Total.String(), b.Currency, fmt.Sprint(b.Lines), instant(b.ClosedAt), b.ClosedBy}
			}
			return e.table([]string{"BILL", "TENANT", "PERIOD", "FROM", "TO", "TOTAL", "CURRENCY", "LINES", "CLOSED", "BY"}, rows)
		})
	})
}

type billShowCmd struct {
	ID string `arg:"" help:"Bill id, from \"tollgate bill list\"."`
	billOutput
}

// Help implements kong.HelpProvider.
func (billShowCmd) Help() string {
	return "Example:\n  tollgate bill show bill_acme_2026-10 --format focus -o -"
}

// Run shows a closed bill.
func (c *billShowCmd) Run(e *env) error {
	return e.withBilling(func(ctx context.Context, s *billingpg.Store, _ *pgxpool.Pool) error {
		b, err := s.Bill(ctx, c.ID)
		if err != nil {
			return err
		}
		return c.print(e, b)
	})
}

type billCreditCmd struct {
	Tenant   string `arg:"" help:"Tenant id."`
	Amount   string `arg:"" help:"Amount above zero, in the tenant's currency."`
	Key      string `required:"" help:"Idempotency key: the same key never gives twice."`
	IsRefund bool   `name:"refund" help:"Mark the credit as a refund."`
	author
}

// Help implements kong.HelpProvider.
func (billCreditCmd) Help() string {
	return "Example:\n  tollgate bill credit acme 25.00 --key ticket-1234 --reason 'outage on 3 November'"
}

// Run gives the credit.
func (c *billCreditCmd) Run(e *env) error {
	if c.Reason == "" {
		return usagef("say why with --reason; it is shown to the tenant")
	}
	amount, err := billing.ParseAmount(c.Amount)
	if err != nil {
		return withStatus(ExitUsage, err)
	}
	return e.withBilling(func(ctx context.Context, s *billingpg.Store, pool *pgxpool.Pool) error {
		t, err := tenancypg.New(pool).GetTenant(ctx, c.Tenant)
		if err != nil {
			return err
		}
		kind := billing.KindCredit
		if c.IsRefund {
			kind = billing.KindRefund
		}
		credit, err := s.AddCredit(ctx, billing.Credit{
			TenantID: t.ID, IdempotencyKey: c.Key, Kind: kind, Amount: amount,
			Currency: t.Currency, Reason: c.Reason, Author: c.change("").Author,
		})
		if err != nil {
			return err
		}
		balance, currency, err := s.Balance(ctx, t.ID)
		if err != nil {
			return err
		}
		return e.value(credit, func() error {
			_, err := fmt.Fprintf(e.out, "Credit %d of %s %s; %s now has %s %s to use.\n", credit.ID, credit.Amount, credit.Currency, t.ID, balance, currency)
			return err
		})
	})
}

// hourStart is the current UTC hour, from which a new price holds by default.
func hourStart(now time.Time) time.Time { return now.UTC().Truncate(time.Hour) }
