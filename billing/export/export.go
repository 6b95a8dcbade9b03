// Package export writes bills for others to read: CSV for people, JSON for
// programs, and FOCUS 1.2 CSV for cost tools.
//
// Every format gives each line's amount as the bill has it, so the sum of any
// export is the bill's total to the last digit. Text that comes from outside,
// such as a tenant's name, is written so that a spreadsheet does not take it
// for a formula.
package export

import (
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"tollgate/billing"
)

// Format names a kind of export.
type Format string

// Formats. FOCUS is the FinOps Open Cost and Usage Specification, version 1.2.
const (
	CSV   Format = "csv"
	JSON  Format = "json"
	FOCUS Format = "focus"
)

// Formats lists them all.
var Formats = []Format{CSV, JSON, FOCUS}

// Extension is the usual ending of a file of the format, with its dot.
func (f Format) Extension() string {
	switch f {
	case FOCUS:
		return ".focus.csv"
	case JSON:
		return ".json"
	}
	return ".csv"
}

// Options name the parties in FOCUS exports. Empty names become "Tollgate".
type Options struct {
	Provider string // who offers the service
	Issuer   string // who sends the invoice
}

// ErrExists is returned by File where the file is there and force is not set.
var ErrExists = errors.New("the file exists; remove it, choose another name, or force overwriting")

// Write writes the bill. It returns the writer's error or, for an unknown
// format, billing.ErrInvalid.
func Write(w io.Writer, format Format, bill billing.Bill, options Options) error {
	var err error
	switch format {
	case CSV:
		err = writeCSV(w, bill)
	case JSON:
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		encoder.SetEscapeHTML(false)
		err = encoder.Encode(bill)
	case FOCUS:
		err = writeFOCUS(w, bill, options)
	default:
		return fmt.Errorf("%w: export format %q; known are %v", billing.ErrInvalid, format, Formats)
	}
	if err != nil {
		return fmt.Errorf("write %s export: %w", format, err)
	}
	return nil
}

// File writes the bill to a file that is there whole or not at all. Without
// force it returns ErrExists rather than replace a file. Only the owner may
// read it: a bill is a customer's secret.
func File(path string, format Format, bill billing.Bill, options Options, force bool) (err error) {
	dir := filepath.Dir(path)
	temporary, err := os.CreateTemp(dir, "."+filepath.Base(path)+".*.tmp") // mode 0600
	if err != nil {
		return fmt.Errorf("export: %w", err)
	}
	defer func() {
		_ = temporary.Close()           // already closed unless something failed
		_ = os.Remove(temporary.Name()) // already gone after a rename
	}()
	if err := Write(temporary, format, bill, options); err != nil {
		return err
	}
	if err := errors.Join(temporary.Sync(), temporary.Close()); err != nil {
		return fmt.Errorf("export: %w", err)
	}
	if force {
		err = os.Rename(temporary.Name(), path)
	} else if err = os.Link(temporary.Name(), path); errors.Is(err, os.ErrExist) { // a link never replaces
		return fmt.Errorf("export to %s: %w", path, ErrExists)
	}
	if err != nil {
		return fmt.Errorf("export: %w", err)
	}
	return syncDirectory(dir)
}

func syncDirectory(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("export: %w", err)
	}
	defer func() { _ = d.Close() }()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("export: %w", err)
	}
	return nil
}

var csvHeader = []string{
	"line", "category", "class", "corrects_bill", "from", "to", "model", "region", "meter", "quantity",
	"pricing_model", "tier", "unit_price", "unit_size", "price_id", "exact_amount", "amount", "currency", "rated", "description",
}

// writeCSV writes the lines and a last row with the total, whose category is
// "total".
func writeCSV(w io.Writer, bill billing.Bill) error {
	out := csv.NewWriter(w)
	if err := out.Write(csvHeader); err != nil {
		return err
	}
	for _, l := range bill.Lines {
		class, rated, description := "", "yes", l.Description
		if l.Correction {
			class = "correction"
		}
		if !l.Rated {
			rated, description = "no", l.Description+": "+l.Reason
		}
		row := []string{
			strconv.Itoa(l.N), strings.ToLower(string(l.Category)), class, l.CorrectsBillID, instant(l.From), instant(l.To),
			safe(l.Model), safe(l.Region), string(l.Meter), strconv.FormatInt(l.Quantity, 10),
			string(l.Pricing), number(int64(l.Tier)), l.UnitPrice, number(l.UnitSize), number(l.PriceID),
			l.ExactAmount, l.Amount.String(), bill.Currency, rated, safe(description),
		}
		if err := out.Write(row); err != nil {
			return err
		}
	}
	total := make([]string, len(csvHeader))
	total[1], total[4], total[5] = "total", instant(bill.Period.From), instant(bill.Period.To)
	total[16], total[17] = bill.Total.String(), bill.Currency
	total[19] = safe(fmt.Sprintf("%s bill of %s for %s", bill.Status, bill.Account.TenantID, bill.Period.Label))
	if bill.Unrated > 0 {
		total[18], total[19] = "no", total[19]+fmt.Sprintf("; %d lines have no price and are not in the total", bill.Unrated)
	}
	if err := out.Write(total); err != nil {
		return err
	}
	out.Flush()
	return out.Error()
}

// instant is ISO 8601 in UTC, as FOCUS wants it.
func instant(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05Z") }

// number leaves a field empty rather than write a zero that means nothing.
func number(n int64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatInt(n, 10)
}

// safe keeps spreadsheets from running text that came from outside: a cell
// that begins like a formula gets an apostrophe in front.
func safe(text string) string {
	if strings.TrimLeft(text, " ") != "" && strings.ContainsRune("=+-@\t\r\n|%", rune(strings.TrimLeft(text, " ")[0])) {
		return "'" + text
	}
	return text
}
