package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/govalues/decimal"
	"github.com/jackc/pgx/v5"
	"github.com/oklog/ulid/v2"

	"tollgate/billing"
)

// Draft computes the bill of an account and period as it stands now: the
// period's usage, corrections to bills closed before, and the balance used. If
// the period is closed it returns the closed bill, with StatusClosed. Nothing
// is written. It returns ErrOverlap where the period shares time with a closed
// one that is not the same.
func (s *Store) Draft(ctx context.Context, account billing.Account, period billing.Period) (billing.Bill, error) {
	var bill billing.Bill
	err := s.transact(ctx, snapshotRead, func(tx pgx.Tx) error {
		var err error
		bill, _, err = draft(ctx, tx, account, period)
		return err
	})
	if err != nil {
		return billing.Bill{}, fmt.Errorf("draft bill: %w", err)
	}
	return bill, nil
}

// CloseOptions say who closes and what is acceptable.
type CloseOptions struct {
	By string
	// AllowUnrated closes although some usage has no price. That usage cannot
	// be priced later: a price never reaches into a closed period.
	AllowUnrated bool
}

// Close stores a period's bill for good and takes the credit it uses from the
// balance. It returns ErrPeriodOpen before the period's end, ErrUnrated with
// the draft where usage has no price and that is not allowed, and
// ErrAlreadyClosed with the stored bill when called again.
func (s *Store) Close(ctx context.Context, account billing.Account, period billing.Period, opts CloseOptions) (billing.Bill, error) {
	if opts.By == "" {
		return billing.Bill{}, fmt.Errorf("%w: closing a bill needs an author", billing.ErrInvalid)
	}
	if err := period.Validate(); err != nil {
		return billing.Bill{}, err
	}
	now := s.now().UTC().Truncate(time.Microsecond)
	if now.Before(period.To) {
		return billing.Bill{}, fmt.Errorf("%w: it ends at %s", billing.ErrPeriodOpen, period.To.UTC().Format(time.RFC3339))
	}
	var bill billing.Bill
	err := s.transact(ctx, snapshotWrite, func(tx pgx.Tx) error {
		// LOCK takes no snapshot, so what is read after it is current.
		if err := exec(ctx, tx, "hold the price book", `LOCK TABLE prices IN SHARE MODE`); err != nil {
			return err
		}
		accountNo, err := lockAccount(ctx, tx, account.TenantID, account.Currency)
		if err != nil {
			return err
		}
		var used decimal.Decimal
		bill, used, err = draft(ctx, tx, account, period)
		switch {
		case err != nil:
			return err
		case bill.Status == billing.StatusClosed:
			return billing.ErrAlreadyClosed
		case bill.Unrated > 0 && !opts.AllowUnrated:
			return fmt.Errorf("%w: %d lines", billing.ErrUnrated, bill.Unrated)
		}
		bill.ID, bill.Status, bill.ClosedAt, bill.ClosedBy = "bil_"+ulid.Make().String(), billing.StatusClosed, now, opts.By
		return store(ctx, tx, accountNo, bill, used)
	})
	switch {
	case err == nil:
		s.log.InfoContext(ctx, "bill closed", "tenant", account.TenantID, "bill", bill.ID, "total", bill.Total.String(), "lines", len(bill.Lines))
		return bill, nil
	case errors.Is(err, billing.ErrAlreadyClosed), errors.Is(err, billing.ErrUnrated):
		return bill, fmt.Errorf("close bill: %w", err)
	}
	return billing.Bill{}, fmt.Errorf("close bill: %w", err)
}

// lockAccount makes the account if need be and holds it until the end of the
// transaction.
func lockAccount(ctx context.Context, tx pgx.Tx, tenantID, currency string) (int64, error) {
	err := exec(ctx, tx, "make the billing account",
		`INSERT INTO billing_accounts (tenant_id, currency) VALUES ($1, $2) ON CONFLICT (tenant_id) DO NOTHING`, tenantID, currency)
	if err != nil {
		return 0, err
	}
	var number int64
	var has string
	err = tx.QueryRow(ctx, `SELECT account_no, currency FROM billing_accounts WHERE tenant_id = $1 FOR UPDATE`, tenantID).Scan(&number, &has)
	if err != nil {
		return 0, fmt.Errorf("lock the billing account: %w", err)
	}
	if has != currency {
		return 0, fmt.Errorf("%w: %s is billed in %s", billing.ErrCurrency, tenantID, has)
	}
	return number, nil
}

// draft computes a bill in a snapshot, and the part of the balance it uses.
func draft(ctx context.Context, tx pgx.Tx, account billing.Account, period billing.Period) (billing.Bill, decimal.Decimal, error) {
	var none decimal.Decimal
	fail := func(err error) (billing.Bill, decimal.Decimal, error) { return billing.Bill{}, none, err }
	if account.TenantID == "" {
		return fail(fmt.Errorf("%w: an account needs a tenant", billing.ErrInvalid))
	}
	if err := period.Validate(); err != nil {
		return fail(err)
	}
	period.From, period.To = period.From.UTC(), period.To.UTC()
	closed, err := closedBills(ctx, tx, account.TenantID)
	if err != nil {
		return fail(err)
	}
	for _, c := range closed {
		switch {
		case c.Period.From.Equal(period.From) && c.Period.To.Equal(period.To):
			bill, err := readBill(ctx, tx, c.BillID)
			return bill, none, err
		case c.Period.From.Before(period.To) && period.From.Before(c.Period.To):
			return fail(fmt.Errorf("%w: bill %s covers %s", billing.ErrOverlap, c.BillID, c.Period.Label))
		}
	}
	book, err := readBook(ctx, tx, account)
	if err != nil {
		return fail(err)
	}
	usage, err := readUsage(ctx, tx, account.TenantID, period, book)
	if err != nil {
		return fail(err)
	}
	bill, err := billing.Rate(usage, book, account, period)
	if err != nil {
		return fail(err)
	}
	if err := addCorrections(ctx, tx, &bill, closed, book); err != nil {
		return fail(err)
	}
	balance, err := readBalance(ctx, tx, account.TenantID, account.Currency)
	if err != nil {
		return fail(err)
	}
	used, err := bill.ApplyCredit(balance)
	if err != nil {
		return fail(err)
	}
	return bill, used, nil
}

// closedBills lists a tenant's closed periods, oldest first, without usage and
// lines.
func closedBills(ctx context.Context, tx pgx.Tx, tenantID string) ([]billing.ClosedPeriod, error) {
	rows, err := tx.Query(ctx, `SELECT bill_id, period_from, period_to, label FROM bills WHERE tenant_id = $1 ORDER BY period_from`, tenantID)
	if err != nil {
		return nil, fmt.Errorf("read closed bills: %w", err)
	}
	closed, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (billing.ClosedPeriod, error) {
		var c billing.ClosedPeriod
		err := row.Scan(&c.BillID, &c.Period.From, &c.Period.To, &c.Period.Label)
		c.Period.From, c.Period.To = c.Period.From.UTC(), c.Period.To.UTC()
		return c, err
	})
	if err != nil {
		return nil, fmt.Errorf("read closed bills: %w", err)
	}
	return closed, nil
}

func addCorrections(ctx context.Context, tx pgx.Tx, bill *billing.Bill, closed []billing.ClosedPeriod, book *billing.Book) error {
	var corrections []billing.Line
	for _, c := range closed {
		var err error
		if c.Usage, err = readUsage(ctx, tx, bill.Account.TenantID, c.Period, book); err != nil {
			return fmt.Errorf("bill %s: %w", c.BillID, err)
		}
		rows, err := tx.Query(ctx, `
			SELECT line FROM bill_lines
			WHERE category = 'Usage' AND ((bill_id = $1 AND corrects_bill_id IS NULL) OR corrects_bill_id = $1)
			ORDER BY bill_id, n`, c.BillID)
		if err != nil {
			return fmt.Errorf("read the lines of bill %s: %w", c.BillID, err)
		}
		if c.Billed, err = pgx.CollectRows(rows, pgx.RowTo[billing.Line]); err != nil {
			return fmt.Errorf("read the lines of bill %s: %w", c.BillID, err)
		}
		lines, err := billing.Corrections(c, book, bill.Currency)
		if err != nil {
			return err
		}
		corrections = append(corrections, lines...)
	}
	return bill.AddCorrections(corrections)
}

// readBook reads the prices that the tenant's usage may meet.
func readBook(ctx context.Context, tx pgx.Tx, account billing.Account) (*billing.Book, error) {
	prices, err := queryPrices(ctx, tx, `
		WHERE withdrawn_at IS NULL AND s.currency = $2 AND s.tenant_id IN ('', $1)
			AND (s.model = '*' OR s.model IN (SELECT DISTINCT model FROM usage_hour WHERE tenant_id = $1))`,
		account.TenantID, account.Currency)
	if err != nil {
		return nil, err
	}
	return billing.NewBook(account.TenantID, account.Currency, prices)
}

// store writes the lines, then the bill that they must add up to, then the
// credit that it uses. The update of the account makes a snapshot that was
// taken before this transaction's end fail, so two bills cannot use the same
// credit or correct the same usage.
func store(ctx context.Context, tx pgx.Tx, accountNo int64, bill billing.Bill, used decimal.Decimal) error {
	document, err := json.Marshal(bill)
	if err != nil {
		return fmt.Errorf("encode the bill: %w", err)
	}
	if err := insertLines(ctx, tx, bill); err != nil {
		return err
	}
	err = exec(ctx, tx, "insert the bill", `
		INSERT INTO bills (bill_id, account_no, tenant_id, period_from, period_to, label, currency, line_count, unrated_lines, total, closed_at, closed_by, document)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10::text::numeric, $11, $12, $13)`,
		bill.ID, accountNo, bill.Account.TenantID, bill.Period.From, bill.Period.To, bill.Period.Label, bill.Currency,
		len(bill.Lines), bill.Unrated, bill.Total.String(), bill.ClosedAt, bill.ClosedBy, document)
	switch sqlState(err) {
	case "23505", "23P01": // the account's lock should have met it first
		return fmt.Errorf("%w: %w", billing.ErrOverlap, err)
	}
	if err != nil {
		return err
	}
	if used.IsPos() {
		err := exec(ctx, tx, "use the balance", `INSERT INTO balance_entries (account_no, kind, reference, amount) VALUES ($1, 'bill', $2, $3::text::numeric)`,
			accountNo, bill.ID, used.Neg().String())
		if err != nil {
			return err
		}
	}
	return exec(ctx, tx, "update the billing account",
		`UPDATE billing_accounts SET balance = balance - $2::text::numeric, closed_bills = closed_bills + 1 WHERE account_no = $1`, accountNo, used.String())
}

func insertLines(ctx context.Context, tx pgx.Tx, bill billing.Bill) error {
	batch := &pgx.Batch{}
	for _, line := range bill.Lines {
		document, err := json.Marshal(line)
		if err != nil {
			return fmt.Errorf("encode line %d: %w", line.N, err)
		}
		batch.Queue(`
			INSERT INTO bill_lines (bill_id, n, category, corrects_bill_id, charge_from, charge_to, first_use, last_use,
				model, region, meter, price_id, tier, quantity, amount, rated, line)
			VALUES ($1, $2, $3, nullif($4, ''), $5, $6, $7, $8, $9, $10, $11, nullif($12, 0::bigint), $13, $14, $15::text::numeric, $16, $17)`,
			bill.ID, line.N, string(line.Category), line.CorrectsBillID, line.From, line.To, timeOrNil(line.FirstUse), timeOrNil(line.LastUse),
			line.Model, line.Region, string(line.Meter), line.PriceID, line.Tier, line.Quantity, line.Amount.String(), line.Rated, document)
	}
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("insert bill lines: %w", err)
	}
	return nil
}

func timeOrNil(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// Bill returns a closed bill exactly as it was closed, or ErrNotFound.
func (s *Store) Bill(ctx context.Context, billID string) (billing.Bill, error) {
	return readBill(ctx, s.pool, billID)
}

func readBill(ctx context.Context, q querier, billID string) (billing.Bill, error) {
	rows, err := q.Query(ctx, `SELECT document FROM bills WHERE bill_id = $1`, billID)
	if err != nil {
		return billing.Bill{}, fmt.Errorf("read bill: %w", err)
	}
	bill, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[billing.Bill])
	if errors.Is(err, pgx.ErrNoRows) {
		return billing.Bill{}, fmt.Errorf("bill %q: %w", billID, billing.ErrNotFound)
	}
	if err != nil {
		return billing.Bill{}, fmt.Errorf("read bill: %w", err)
	}
	return bill, nil
}

// BillSummary is a closed bill in a list.
type BillSummary struct {
	ID       string          `json:"bill_id"`
	TenantID string          `json:"tenant_id"`
	Label    string          `json:"label"`
	From     time.Time       `json:"from"`
	To       time.Time       `json:"to"`
	Currency string          `json:"currency"`
	Total    decimal.Decimal `json:"total"`
	Lines    int             `json:"lines"`
	Unrated  int             `json:"unrated_lines"`
	ClosedAt time.Time       `json:"closed_at"`
	ClosedBy string          `json:"closed_by"`
}

// ListBills lists closed bills by tenant and period; an empty tenant lists
// everyone's.
func (s *Store) ListBills(ctx context.Context, tenantID string) ([]BillSummary, error) {
	rows, err := s.pool.Query(ctx, `
		SELECT bill_id, tenant_id, label, period_from, period_to, currency, total::text, line_count, unrated_lines, closed_at, closed_by
		FROM bills WHERE $1 = '' OR tenant_id = $1 ORDER BY tenant_id, period_from`, tenantID)
	if err != nil {
		return nil, fmt.Errorf("list bills: %w", err)
	}
	bills, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (BillSummary, error) {
		var b BillSummary
		var total string
		err := row.Scan(&b.ID, &b.TenantID, &b.Label, &b.From, &b.To, &b.Currency, &total, &b.Lines, &b.Unrated, &b.ClosedAt, &b.ClosedBy)
		if err != nil {
			return b, err
		}
		b.From, b.To, b.ClosedAt = b.From.UTC(), b.To.UTC(), b.ClosedAt.UTC()
		b.Total, err = decimal.Parse(total)
		return b, err
	})
	if err != nil {
		return nil, fmt.Errorf("list bills: %w", err)
	}
	return bills, nil
}
