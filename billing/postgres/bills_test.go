package postgres

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"math/big"
	"testing"
	"time"

	"github.com/govalues/decimal"

	"tollgate/billing"
	"tollgate/billing/export"
	"tollgate/events"
)

func TestDraftReadsWhatTheLedgerHas(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.price("m", billing.MeterInput, "2.5", 1_000_000, newYear)
	f.price("m", billing.MeterOutput, "10", 1_000_000, newYear)
	november := month(t, "2026-11", "UTC")
	f.use("acme", at("2026-10-31T23:59:59.999Z"), "m", events.Usage{InputTokens: 1_000_000})
	f.use("acme", at("2026-11-01T00:00:00Z"), "m", events.Usage{InputTokens: 2_000_000, OutputTokens: 100_000})
	f.use("acme", at("2026-11-30T23:59:59.999Z"), "m", events.Usage{InputTokens: 4_000_000})
	f.use("acme", at("2026-12-01T00:00:00Z"), "m", events.Usage{InputTokens: 8_000_000})
	f.use("other", at("2026-11-05T00:00:00Z"), "m", events.Usage{InputTokens: 16_000_000})
	f.use("acme", at("2026-11-05T00:00:00Z"), "secret", events.Usage{InputTokens: 5})

	bill := f.draft(acme, november)
	wantBill(t, bill, "16.00", "m input_tokens 6000000 = 15.00", "m output_tokens 100000 = 1.00",
		"secret input_tokens 5 = 0.00 unrated", "secret requests 1 = 0.00 unrated")
	if bill.Status != billing.StatusDraft || bill.ID != "" || bill.Unrated != 2 {
		t.Errorf("status %s, id %q, unrated %d", bill.Status, bill.ID, bill.Unrated)
	}
	// Unrated usage is not given away by closing, unless that is said.
	if _, err := f.Close(t.Context(), acme, november, CloseOptions{By: "operator"}); !errors.Is(err, billing.ErrUnrated) {
		t.Fatalf("close: %v, want ErrUnrated", err)
	}
	if n := count(t, f.pool, `SELECT count(*) FROM bills`); n != 0 {
		t.Fatalf("%d bills after a refused close", n)
	}
	if _, err := f.Close(t.Context(), acme, november, CloseOptions{By: "operator", AllowUnrated: true}); err != nil {
		t.Fatalf("close allowing unrated usage: %v", err)
	}
}

// Usage that a closed bill listed without a price is not listed again; what
// arrives late is.
func TestUnratedUsageIsListedOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	allow := CloseOptions{By: "operator", AllowUnrated: true}
	f.use("acme", at("2026-10-05T00:00:00Z"), "m", events.Usage{InputTokens: 3})
	first, err := f.Close(t.Context(), acme, month(t, "2026-10", "UTC"), allow)
	if err != nil {
		t.Fatal(err)
	}
	wantBill(t, first, "0.00", "m input_tokens 3 = 0.00 unrated", "m requests 1 = 0.00 unrated")
	november := month(t, "2026-11", "UTC")
	wantBill(t, f.draft(acme, november), "0.00")
	f.use("acme", at("2026-10-06T00:00:00Z"), "m", events.Usage{InputTokens: 4})
	late := f.draft(acme, november)
	wantBill(t, late, "0.00", "correction m input_tokens 4 = 0.00 unrated", "correction m requests 1 = 0.00 unrated")
	if late.Unrated != 2 {
		t.Errorf("%d unrated lines, want 2", late.Unrated)
	}
}

func TestDraftSplitsAtAPriceChange(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.price("m", billing.MeterInput, "1", 1000, newYear)
	f.price("m", billing.MeterInput, "2", 1000, at("2026-11-10T00:00:00Z"))
	f.price("n", billing.MeterInput, "1", 1000, newYear)
	f.use("acme", at("2026-11-09T23:30:00Z"), "m", events.Usage{InputTokens: 5000})
	f.use("acme", at("2026-11-10T00:00:00Z"), "m", events.Usage{InputTokens: 7000})
	f.use("acme", at("2026-11-11T00:00:00Z"), "m", events.Usage{InputTokens: 1000})
	f.use("acme", at("2026-11-01T00:00:00Z"), "n", events.Usage{InputTokens: 1000})
	f.use("acme", at("2026-11-20T00:00:00Z"), "n", events.Usage{InputTokens: 1000})
	wantBill(t, f.draft(acme, month(t, "2026-11", "UTC")), "23.00",
		"m input_tokens 5000 = 5.00", "m input_tokens 8000 = 16.00", "n input_tokens 2000 = 2.00")
}

func TestCaseL11_LateUsageIsCorrectedOnTheNextBill(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.price("m", billing.MeterInput, "1", 1000, newYear)
	f.price("m", billing.MeterInput, "2", 1000, at("2026-11-01T00:00:00Z")) // later prices do not reach back
	october, november, december := month(t, "2026-10", "UTC"), month(t, "2026-11", "UTC"), month(t, "2026-12", "UTC")
	f.use("acme", at("2026-10-31T09:59:00Z"), "m", events.Usage{InputTokens: 3000})
	closed := f.close(acme, october)
	wantBill(t, closed, "3.00", "m input_tokens 3000 = 3.00")

	f.use("acme", at("2026-10-31T09:59:59.9Z"), "m", events.Usage{InputTokens: 1500}) // arrives after the close
	f.use("acme", at("2026-11-02T00:00:00Z"), "m", events.Usage{InputTokens: 1000})
	if stored := f.draft(acme, october); !equalBills(stored, closed) {
		t.Errorf("the closed bill changed:\n%+v\n%+v", closed, stored)
	}
	next := f.close(acme, november)
	wantBill(t, next, "3.50", "m input_tokens 1000 = 2.00", "correction m input_tokens 1500 = 1.50")
	line := next.Lines[1]
	if line.CorrectsBillID != closed.ID || !line.From.Equal(october.From) || !line.To.Equal(october.To) {
		t.Errorf("the correction names bill %s, %s to %s", line.CorrectsBillID, line.From, line.To)
	}
	// Corrected once: nothing new, nothing more. A lower final figure is a credit.
	wantBill(t, f.draft(acme, december), "0.00")
	f.use("acme", at("2026-10-05T00:00:00Z"), "m", events.Usage{InputTokens: -500})
	wantBill(t, f.draft(acme, december), "-0.50", "correction m input_tokens -500 = -0.50")
}

func TestCaseT3_NegativeHoursAreCreditedOnTheNextBill(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.price("m", billing.MeterOutput, "1", 1, newYear)
	f.price("*", billing.MeterRequests, "0", 1, newYear)
	f.use("acme", at("2026-10-05T00:00:00Z"), "m", events.Usage{OutputTokens: 20})
	f.use("acme", at("2026-10-06T00:00:00Z"), "m", events.Usage{OutputTokens: -25})
	f.use("acme", at("2026-11-06T00:00:00Z"), "m", events.Usage{OutputTokens: 7})
	wantBill(t, f.close(acme, month(t, "2026-10", "UTC")), "0.00", "m requests 2 = 0.00")
	wantBill(t, f.close(acme, month(t, "2026-11", "UTC")), "2.00",
		"m output_tokens 7 = 7.00", "m requests 1 = 0.00", "correction m output_tokens -5 = -5.00")
	wantBill(t, f.draft(acme, month(t, "2026-12", "UTC")), "0.00")
}

func TestCaseT2_TenantAtUTC13IsBilledOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.price("m", billing.MeterInput, "1", 1, newYear)
	tonga := billing.Account{TenantID: "tonga", Name: "Tonga", Currency: "USD", TimeZone: "Pacific/Tongatapu"}
	october, november := month(t, "2026-10", tonga.TimeZone), month(t, "2026-11", tonga.TimeZone)
	f.use("tonga", at("2026-10-31T10:59:59Z"), "m", events.Usage{InputTokens: 1})  // 23:59:59 on 31 October there
	f.use("tonga", at("2026-10-31T11:00:00Z"), "m", events.Usage{InputTokens: 10}) // 1 November there
	f.use("tonga", at("2026-11-30T10:59:59Z"), "m", events.Usage{InputTokens: 100})
	f.use("tonga", at("2026-11-30T11:00:00Z"), "m", events.Usage{InputTokens: 1000})
	f.close(tonga, october)

	// Eight closers at once: one bill, and everyone is told of it.
	bills := make([]billing.Bill, 8)
	errs := together(len(bills), func(i int) error {
		var err error
		bills[i], err = f.Close(t.Context(), tonga, november, CloseOptions{By: fmt.Sprintf("closer %d", i)})
		return err
	})
	winners := 0
	for i, err := range errs {
		switch {
		case err == nil:
			winners++
		case !errors.Is(err, billing.ErrAlreadyClosed):
			t.Errorf("close: %v", err)
		}
		if bills[i].ID != bills[0].ID || bills[i].Status != billing.StatusClosed {
			t.Errorf("closer %d got bill %q, closer 0 %q", i, bills[i].ID, bills[0].ID)
		}
	}
	if winners != 1 {
		t.Errorf("%d closers made a bill", winners)
	}
	wantBill(t, bills[0], "110.00", "m input_tokens 110 = 110.00")
	// The same span of UTC, or a part of it, is not billed again.
	for _, p := range []billing.Period{month(t, "2026-11", "UTC"), month(t, "2026-11", "Pacific/Kiritimati")} {
		if _, err := f.Close(t.Context(), tonga, p, CloseOptions{By: "operator"}); !errors.Is(err, billing.ErrOverlap) {
			t.Errorf("close %s to %s: %v, want ErrOverlap", p.From, p.To, err)
		}
		if _, err := f.Draft(t.Context(), tonga, p); !errors.Is(err, billing.ErrOverlap) {
			t.Errorf("draft %s to %s: %v, want ErrOverlap", p.From, p.To, err)
		}
	}
	if n := count(t, f.pool, `SELECT count(*) FROM bills WHERE tenant_id = 'tonga'`); n != 2 {
		t.Errorf("%d bills, want 2", n)
	}
}

func TestCaseT1_HalfHourZonesSplitTheBoundaryHour(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.price("m", billing.MeterInput, "1", 1, newYear)
	f.price("m", billing.MeterRequests, "100000", 1, newYear)
	india := billing.Account{TenantID: "india", Name: "India", Currency: "USD", TimeZone: "Asia/Kolkata"}
	october, november := month(t, "2026-10", india.TimeZone), month(t, "2026-11", india.TimeZone)
	f.use("india", at("2026-10-31T18:10:00Z"), "m", events.Usage{InputTokens: 1})         // 23:40 on 31 October there
	f.use("india", at("2026-10-31T18:29:59.999999Z"), "m", events.Usage{InputTokens: 10}) // the last instant of October
	f.use("india", at("2026-10-31T18:30:00Z"), "m", events.Usage{InputTokens: 100})       // the first of November
	f.use("india", at("2026-11-15T00:00:00Z"), "m", events.Usage{InputTokens: 1000})
	f.use("india", at("2026-11-30T18:29:59Z"), "m", events.Usage{InputTokens: 10_000})     // the last second of November
	f.use("india", at("2026-11-30T18:30:00Z"), "m", events.Usage{InputTokens: 100_000})    // December
	f.use("india", at("2026-09-30T18:31:00Z"), "other", events.Usage{InputTokens: 10_000}) // a boundary hour of another model
	f.price("other", billing.MeterInput, "0", 1, newYear)

	wantBill(t, f.close(india, october), "200011.00", "m input_tokens 11 = 11.00", "m requests 2 = 200000.00", "other input_tokens 10000 = 0.00")
	wantBill(t, f.close(india, november), "311100.00", "m input_tokens 11100 = 11100.00", "m requests 3 = 300000.00")
	// Late usage of the split hour is corrected on its own side of the boundary.
	f.use("india", at("2026-10-31T18:20:00Z"), "m", events.Usage{InputTokens: 5})
	bill := f.draft(india, month(t, "2026-12", india.TimeZone))
	wantBill(t, bill, "300005.00", "m input_tokens 100000 = 100000.00", "m requests 1 = 100000.00",
		"correction m input_tokens 5 = 5.00", "correction m requests 1 = 100000.00")
}

func TestSplittingNeedsAJournalThatAgrees(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.price("m", billing.MeterInput, "1", 1, newYear)
	f.use("india", at("2026-10-31T18:10:00Z"), "m", events.Usage{InputTokens: 1})
	f.exec(`UPDATE usage_hour SET input_tokens = input_tokens + 1`)
	india := billing.Account{TenantID: "india", Name: "India", Currency: "USD", TimeZone: "Asia/Kolkata"}
	if _, err := f.Draft(t.Context(), india, month(t, "2026-11", india.TimeZone)); !errors.Is(err, billing.ErrJournal) {
		t.Errorf("draft: %v, want ErrJournal", err)
	}
}

func TestCaseT4_LinesTotalBillAndExportsAreEqual(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for i := range 81 {
		model := fmt.Sprintf("m%02d", i)
		f.price(model, billing.MeterInput, "0.01", 3, newYear) // a third of a cent
		f.use("acme", at("2026-11-05T00:00:00Z"), model, events.Usage{InputTokens: 301})
	}
	bill := f.close(acme, month(t, "2026-11", "UTC"))
	if len(bill.Lines) != 81 || bill.Total.String() != "81.00" {
		t.Fatalf("%d lines, total %v; want 81 and 81.00", len(bill.Lines), bill.Total)
	}
	var stored string
	err := f.pool.QueryRow(t.Context(), `SELECT sum(amount)::text FROM bill_lines WHERE bill_id = $1`, bill.ID).Scan(&stored)
	if err != nil || stored != "81.00" {
		t.Errorf("stored lines add up to %s, %v", stored, err)
	}
	list, err := f.ListBills(t.Context(), "acme")
	if err != nil || len(list) != 1 || list[0].Total.String() != "81.00" || list[0].Lines != 81 {
		t.Errorf("listed as %+v, %v", list, err)
	}
	again, err := f.Bill(t.Context(), bill.ID)
	if err != nil || !equalBills(again, bill) {
		t.Errorf("read back differently: %v", err)
	}
	for format, column := range map[export.Format]string{export.CSV: "amount", export.FOCUS: "BilledCost"} {
		var b bytes.Buffer
		if err := export.Write(&b, format, again, export.Options{}); err != nil {
			t.Fatal(err)
		}
		rows, err := csv.NewReader(&b).ReadAll()
		if err != nil {
			t.Fatal(err)
		}
		sum, totals := new(big.Rat), 0
		for _, row := range rows[1:] {
			if row[1] == "total" {
				totals++
				continue
			}
			for i, name := range rows[0] {
				if name == column {
					r, _ := new(big.Rat).SetString(row[i])
					sum.Add(sum, r)
				}
			}
		}
		if sum.FloatString(2) != "81.00" || (format == export.CSV) != (totals == 1) {
			t.Errorf("%s adds up to %s with %d total rows", format, sum.FloatString(2), totals)
		}
	}
}

func TestClosedBillsAreImmutable(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.price("m", billing.MeterInput, "1", 1, newYear)
	f.use("acme", at("2026-11-05T00:00:00Z"), "m", events.Usage{InputTokens: 5})
	bill := f.close(acme, month(t, "2026-11", "UTC"))
	for _, sql := range []string{
		`UPDATE bills SET total = 0`,
		`DELETE FROM bills`,
		`TRUNCATE bills CASCADE`,
		`UPDATE bill_lines SET amount = 0`,
		`DELETE FROM bill_lines`,
		`TRUNCATE bill_lines`,
		`INSERT INTO bill_lines SELECT bill_id, n + 1, category, corrects_bill_id, charge_from, charge_to, first_use, last_use, model, region, meter, price_id, tier, quantity, 0, rated, line FROM bill_lines`,
		`INSERT INTO bills SELECT 'bil_2', account_no, tenant_id, period_to, period_to + interval '1 day', label, currency, 0, 0, 1, closed_at, closed_by, document FROM bills`,
		`INSERT INTO bills SELECT 'bil_2', account_no, tenant_id, period_from + interval '1 day', period_to + interval '1 day', label, currency, 0, 0, 0, closed_at, closed_by, document FROM bills`,
		`UPDATE prices SET amount = 2`,
		`UPDATE prices SET valid_from = valid_from - interval '1 day'`,
		`DELETE FROM prices`,
	} {
		if _, err := f.pool.Exec(t.Context(), sql); err == nil {
			t.Errorf("the database took: %s", sql)
		}
	}
	if again, err := f.Bill(t.Context(), bill.ID); err != nil || !equalBills(again, bill) {
		t.Errorf("the bill changed: %v", err)
	}
}

func TestCloseRefusals(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.use("acme", at("2026-11-05T00:00:00Z"), "m", events.Usage{InputTokens: 5})
	f.price("m", billing.MeterInput, "1", 1, newYear)
	november := month(t, "2026-11", "UTC")
	tests := []struct {
		name    string
		account billing.Account
		period  billing.Period
		by      string
		want    error
	}{
		{"no author", acme, november, "", billing.ErrInvalid},
		{"open period", acme, month(t, "2027-06", "UTC"), "op", billing.ErrPeriodOpen},
		{"no tenant", billing.Account{Currency: "USD"}, november, "op", billing.ErrInvalid},
		{"no period", acme, billing.Period{}, "op", billing.ErrInvalid},
		{"bad currency", billing.Account{TenantID: "x", Currency: "USB"}, november, "op", billing.ErrInvalid},
	}
	for _, tt := range tests {
		if _, err := f.Close(t.Context(), tt.account, tt.period, CloseOptions{By: tt.by}); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
		}
	}
	f.close(acme, november)
	euro := acme
	euro.Currency = "EUR"
	if _, err := f.Close(t.Context(), euro, month(t, "2026-12", "UTC"), CloseOptions{By: "op"}); !errors.Is(err, billing.ErrCurrency) {
		t.Errorf("another currency: %v, want ErrCurrency", err)
	}
	if _, err := f.Bill(t.Context(), "bil_none"); !errors.Is(err, billing.ErrNotFound) {
		t.Errorf("unknown bill: %v, want ErrNotFound", err)
	}
}

// A bill closed out of order is not lost, and each bill corrects the others.
func TestBillsClosedOutOfOrder(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.price("m", billing.MeterInput, "1", 1, newYear)
	f.use("acme", at("2026-10-05T00:00:00Z"), "m", events.Usage{InputTokens: 3})
	f.use("acme", at("2026-11-05T00:00:00Z"), "m", events.Usage{InputTokens: 5})
	wantBill(t, f.close(acme, month(t, "2026-11", "UTC")), "5.00", "m input_tokens 5 = 5.00")
	f.use("acme", at("2026-11-06T00:00:00Z"), "m", events.Usage{InputTokens: 2})
	wantBill(t, f.close(acme, month(t, "2026-10", "UTC")), "5.00", "m input_tokens 3 = 3.00", "correction m input_tokens 2 = 2.00")
}

// A price that is being set while a bill is closed is either on the bill or
// refused; it is never in the book for a period that was billed without it.
func TestCloseSeesThePriceThatItWaitedFor(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.price("m", billing.MeterInput, "1", 1, newYear)
	f.use("acme", at("2026-11-05T00:00:00Z"), "m", events.Usage{InputTokens: 5})
	tx, err := f.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, err := tx.Exec(t.Context(), holdPrices); err != nil {
		t.Fatal(err)
	}
	done := make(chan billing.Bill, 1)
	go func() {
		bill, err := f.Close(t.Context(), acme, month(t, "2026-11", "UTC"), CloseOptions{By: "operator"})
		if err != nil {
			t.Errorf("Close: %v", err)
		}
		done <- bill
	}()
	for count(t, f.pool, `SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'prices'::regclass`) == 0 {
		select {
		case bill := <-done:
			t.Fatalf("the close did not wait for the price: %v", brief(bill))
		case <-time.After(time.Millisecond): // look again
		}
	}
	placed := billing.Placement{Price: flat("m", billing.MeterInput, "2", 1, at("2026-11-01T00:00:00Z")), EndID: 1, EndAt: at("2026-11-01T00:00:00Z")}
	if _, err := writePlacements(t.Context(), tx, []billing.Placement{placed}); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantBill(t, <-done, "10.00", "m input_tokens 5 = 10.00")
}

func TestCreditIsUsedByBills(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.price("m", billing.MeterInput, "1", 1, newYear)
	f.use("acme", at("2026-10-05T00:00:00Z"), "m", events.Usage{InputTokens: 30})
	f.use("acme", at("2026-11-05T00:00:00Z"), "m", events.Usage{InputTokens: 50})
	if _, err := f.AddCredit(t.Context(), credit("k1", "45.50")); err != nil {
		t.Fatal(err)
	}
	wantBill(t, f.close(acme, month(t, "2026-10", "UTC")), "0.00", "m input_tokens 30 = 30.00", "credit = -30.00")
	wantBill(t, f.close(acme, month(t, "2026-11", "UTC")), "34.50", "m input_tokens 50 = 50.00", "credit = -15.50")
	wantBalance(t, f, "0.00")
	wantBill(t, f.draft(acme, month(t, "2026-12", "UTC")), "0.00")
}

func credit(key, amount string) billing.Credit {
	return billing.Credit{
		TenantID: "acme", IdempotencyKey: key, Kind: billing.KindRefund, Amount: decimal.MustParse(amount),
		Currency: "USD", Reason: "outage", Author: "operator",
	}
}

// wantBalance checks the balance and that it is the sum of its entries.
func wantBalance(t *testing.T, f *fixture, want string) {
	t.Helper()
	balance, _, err := f.Balance(t.Context(), "acme")
	if err != nil || balance.String() != want {
		t.Errorf("balance %v, %v; want %s", balance, err, want)
	}
	n := count(t, f.pool, `SELECT count(*) FROM billing_accounts a
		WHERE balance <> (SELECT coalesce(sum(amount), 0) FROM balance_entries e WHERE e.account_no = a.account_no)`)
	if n != 0 {
		t.Errorf("%d balances are not the sum of their entries", n)
	}
}

func TestCaseL12_RefundMovesTheBalanceOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	// The write of the status fails three times. A sequence counts attempts,
	// because it does not roll back.
	f.exec(`CREATE SEQUENCE attempts`)
	f.exec(`CREATE FUNCTION fail_thrice() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN IF nextval('attempts') <= 3 THEN RAISE EXCEPTION 'the status cannot be written'; END IF; RETURN NEW; END $$`)
	f.exec(`CREATE TRIGGER fail_thrice BEFORE UPDATE ON credits FOR EACH ROW EXECUTE FUNCTION fail_thrice()`)
	failures := 0
	for {
		_, err := f.AddCredit(t.Context(), credit("refund-1", "12.34"))
		if err == nil {
			break
		}
		if failures++; failures > 3 {
			t.Fatalf("attempt %d: %v", failures, err)
		}
		if n := count(t, f.pool, `SELECT count(*) FROM credits`); n != 0 {
			t.Fatalf("a failed attempt left %d credits", n)
		}
	}
	if failures != 3 {
		t.Errorf("%d attempts failed, want 3", failures)
	}
	wantBalance(t, f, "12.34")

	// The answer was lost, so the client asks again, several times at once.
	ids := make([]int64, 6)
	for i, err := range together(len(ids), func(i int) error {
		c, err := f.AddCredit(t.Context(), credit("refund-1", "12.34"))
		ids[i] = c.ID
		return err
	}) {
		if err != nil || ids[i] != ids[0] {
			t.Errorf("repeat %d: credit %d, %v; want credit %d", i, ids[i], err, ids[0])
		}
	}
	wantBalance(t, f, "12.34")
	if _, err := f.AddCredit(t.Context(), credit("refund-1", "12.35")); !errors.Is(err, billing.ErrConflict) {
		t.Errorf("the same key for another amount: %v, want ErrConflict", err)
	}
	if credits, err := f.ListCredits(t.Context(), "acme"); err != nil || len(credits) != 1 || credits[0].ID != ids[0] {
		t.Errorf("credits %+v, %v", credits, err)
	}
}

// Credits and closes at once: whatever the order, no credit is lost or used
// twice.
func TestCreditsAndClosesAtOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.price("m", billing.MeterInput, "1", 1, newYear)
	months := []string{"2026-07", "2026-08", "2026-09", "2026-10"}
	for _, m := range months {
		f.use("acme", at(m+"-05T00:00:00Z"), "m", events.Usage{InputTokens: 10})
	}
	for _, err := range together(12, func(i int) error {
		if i < len(months) {
			_, err := f.Close(t.Context(), acme, month(t, months[i], "UTC"), CloseOptions{By: "operator"})
			return err
		}
		_, err := f.AddCredit(t.Context(), credit(fmt.Sprint(i), "3"))
		return err
	}) {
		if err != nil {
			t.Error(err)
		}
	}
	used := count(t, f.pool, `SELECT (-coalesce(sum(amount), 0))::int FROM bill_lines WHERE category = 'Credit'`)
	billed := count(t, f.pool, `SELECT sum(total)::int FROM bills`)
	if billed != 40-used {
		t.Errorf("billed %d and used credit of %d for usage of 40", billed, used)
	}
	wantBalance(t, f, fmt.Sprintf("%d.00", 24-used))
}
