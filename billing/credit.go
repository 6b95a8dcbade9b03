package billing

import (
	"fmt"
	"math/big"
	"time"

	"github.com/govalues/decimal"
)

// CreditKind says why money is given.
type CreditKind string

// Kinds of credits. Both raise the balance that later bills draw on.
const (
	KindCredit CreditKind = "credit" // goodwill, a promotion, an agreed compensation
	KindRefund CreditKind = "refund" // money back for something that was billed
)

// Credit is money given to a tenant, once for each idempotency key.
type Credit struct {
	ID             int64           `json:"credit_id"`
	TenantID       string          `json:"tenant_id"`
	IdempotencyKey string          `json:"idempotency_key"`
	Kind           CreditKind      `json:"kind"`
	Amount         decimal.Decimal `json:"amount"` // above zero
	Currency       string          `json:"currency"`
	Reason         string          `json:"reason"`
	Author         string          `json:"author"`
	CreatedAt      time.Time       `json:"created_at,omitzero"`
}

// Validate reports the first thing that is missing or wrong.
func (c Credit) Validate() error {
	if c.Kind != KindCredit && c.Kind != KindRefund {
		return fmt.Errorf("%w: credit kind %q is neither credit nor refund", ErrInvalid, c.Kind)
	}
	if !c.Amount.IsPos() || c.Amount.Cmp(maxPrice) > 0 {
		return fmt.Errorf("%w: a credit's amount must be above zero and at most %v", ErrInvalid, maxPrice)
	}
	if _, err := InMinorUnits(c.Amount, c.Currency); err != nil {
		return err
	}
	for _, text := range []struct{ name, value string }{
		{"tenant_id", c.TenantID}, {"idempotency_key", c.IdempotencyKey}, {"reason", c.Reason}, {"author", c.Author},
	} {
		if err := checkName(text.value); err != nil {
			return fmt.Errorf("%w: credit's %s: %w", ErrInvalid, text.name, err)
		}
	}
	return nil
}

// SameAs reports whether a repeat asks for the same credit.
func (c Credit) SameAs(d Credit) bool {
	return c.TenantID == d.TenantID && c.IdempotencyKey == d.IdempotencyKey && c.Kind == d.Kind &&
		c.Currency == d.Currency && c.Reason == d.Reason && c.Author == d.Author && c.Amount.Cmp(d.Amount) == 0
}

// ApplyCredit appends a line that uses as much of the balance as the bill
// needs, and returns how much that is. A bill at or below zero uses none.
func (b *Bill) ApplyCredit(balance decimal.Decimal) (decimal.Decimal, error) {
	places, err := minorUnits(b.Currency)
	if err != nil {
		return decimal.Decimal{}, err
	}
	used := balance
	if b.Total.Cmp(used) < 0 {
		used = b.Total
	}
	if !used.IsPos() {
		return decimal.Decimal{}, nil
	}
	exact := new(big.Rat).Neg(fraction(used))
	amount, err := roundHalfEven(exact, places)
	if err != nil {
		return decimal.Decimal{}, err
	}
	b.Lines = append(b.Lines, Line{
		Category: CategoryCredit, From: b.Period.From, To: b.Period.To, Rated: true,
		Description: "credit balance applied", ExactAmount: shown(exact), ListAmount: shown(exact), Amount: amount,
	})
	return used, b.finish()
}
