package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/govalues/decimal"
	"github.com/jackc/pgx/v5"

	"tollgate/billing"
)

// AddCredit gives money to a tenant's balance. The credit, its entry, the
// balance and the credit's status change in one transaction, so whichever of
// them fails, none has happened; and the idempotency key makes a repeat return
// the first credit. The same key with another content is ErrConflict.
func (s *Store) AddCredit(ctx context.Context, c billing.Credit) (billing.Credit, error) {
	if err := c.Validate(); err != nil {
		return billing.Credit{}, err
	}
	amount, err := billing.InMinorUnits(c.Amount, c.Currency)
	if err != nil {
		return billing.Credit{}, err
	}
	c.Amount = amount
	var posted billing.Credit
	err = s.transact(ctx, plainWrite, func(tx pgx.Tx) error {
		accountNo, err := lockAccount(ctx, tx, c.TenantID, c.Currency)
		if err != nil {
			return err
		}
		earlier, err := queryCredits(ctx, tx, `WHERE tenant_id = $1 AND idempotency_key = $2`, c.TenantID, c.IdempotencyKey)
		if err != nil {
			return err
		}
		if len(earlier) > 0 {
			if posted = earlier[0]; !posted.SameAs(c) {
				return fmt.Errorf("%w (credit %d)", billing.ErrConflict, posted.ID)
			}
			return nil
		}
		posted, err = postCredit(ctx, tx, accountNo, c)
		return err
	})
	if err != nil {
		return billing.Credit{}, fmt.Errorf("add credit: %w", err)
	}
	return posted, nil
}

func postCredit(ctx context.Context, tx pgx.Tx, accountNo int64, c billing.Credit) (billing.Credit, error) {
	err := tx.QueryRow(ctx, `
		INSERT INTO credits (account_no, tenant_id, idempotency_key, kind, amount, currency, reason, author, status)
		VALUES ($1, $2, $3, $4, $5::text::numeric, $6, $7, $8, 'pending') RETURNING credit_id, created_at`,
		accountNo, c.TenantID, c.IdempotencyKey, string(c.Kind), c.Amount.String(), c.Currency, c.Reason, c.Author).Scan(&c.ID, &c.CreatedAt)
	if err != nil {
		return c, fmt.Errorf("insert the credit: %w", err)
	}
	c.CreatedAt = c.CreatedAt.UTC()
	for _, step := range []struct {
		what, sql string
		args      []any
	}{
		{"insert the balance entry", `INSERT INTO balance_entries (account_no, kind, reference, amount) VALUES ($1, 'credit', $2::bigint::text, $3::text::numeric)`, []any{accountNo, c.ID, c.Amount.String()}},
		{"move the balance", `UPDATE billing_accounts SET balance = balance + $2::text::numeric WHERE account_no = $1`, []any{accountNo, c.Amount.String()}},
		{"mark the credit as posted", `UPDATE credits SET status = 'posted' WHERE credit_id = $1`, []any{c.ID}},
	} {
		if err := exec(ctx, tx, step.what, step.sql, step.args...); err != nil {
			return c, err
		}
	}
	return c, nil
}

// ListCredits lists a tenant's credits, oldest first.
func (s *Store) ListCredits(ctx context.Context, tenantID string) ([]billing.Credit, error) {
	return queryCredits(ctx, s.pool, `WHERE tenant_id = $1 ORDER BY credit_id`, tenantID)
}

func queryCredits(ctx context.Context, q querier, where string, args ...any) ([]billing.Credit, error) {
	rows, err := q.Query(ctx, `
		SELECT credit_id, tenant_id, idempotency_key, kind, amount::text, currency, reason, author, created_at FROM credits `+where, args...)
	if err != nil {
		return nil, fmt.Errorf("read credits: %w", err)
	}
	credits, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (billing.Credit, error) {
		var c billing.Credit
		var amount string
		err := row.Scan(&c.ID, &c.TenantID, &c.IdempotencyKey, &c.Kind, &amount, &c.Currency, &c.Reason, &c.Author, &c.CreatedAt)
		if err != nil {
			return c, err
		}
		c.CreatedAt = c.CreatedAt.UTC()
		c.Amount, err = decimal.Parse(amount)
		return c, err
	})
	if err != nil {
		return nil, fmt.Errorf("read credits: %w", err)
	}
	return credits, nil
}

// Balance returns a tenant's credit that no bill has used yet, and its
// currency; a tenant without an account has none, in no currency.
func (s *Store) Balance(ctx context.Context, tenantID string) (decimal.Decimal, string, error) {
	var balance, currency string
	err := s.pool.QueryRow(ctx, `SELECT balance::text, currency FROM billing_accounts WHERE tenant_id = $1`, tenantID).Scan(&balance, &currency)
	if errors.Is(err, pgx.ErrNoRows) {
		return decimal.Decimal{}, "", nil
	}
	if err != nil {
		return decimal.Decimal{}, "", fmt.Errorf("read balance: %w", err)
	}
	amount, err := parseBalance(balance, currency)
	return amount, currency, err
}

func readBalance(ctx context.Context, tx pgx.Tx, tenantID, currency string) (decimal.Decimal, error) {
	var balance, has string
	err := tx.QueryRow(ctx, `SELECT balance::text, currency FROM billing_accounts WHERE tenant_id = $1`, tenantID).Scan(&balance, &has)
	if errors.Is(err, pgx.ErrNoRows) {
		return decimal.Decimal{}, nil
	}
	if err != nil {
		return decimal.Decimal{}, fmt.Errorf("read balance: %w", err)
	}
	if has != currency {
		return decimal.Decimal{}, fmt.Errorf("%w: %s is billed in %s", billing.ErrCurrency, tenantID, has)
	}
	return parseBalance(balance, currency)
}

func parseBalance(text, currency string) (decimal.Decimal, error) {
	amount, err := decimal.Parse(text)
	if err == nil {
		amount, err = billing.InMinorUnits(amount, currency)
	}
	if err != nil {
		return decimal.Decimal{}, fmt.Errorf("read balance: %w", err)
	}
	return amount, nil
}
