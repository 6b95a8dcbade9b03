package billing

import (
	"cmp"
	"fmt"
	"math/big"
	"slices"
	"strings"
)

// ClosedPeriod is a closed bill with everything that later bills already
// corrected of it, and the usage that is known for its period now.
type ClosedPeriod struct {
	BillID string
	Period Period
	// Billed are the usage lines of the bill itself and the correction lines,
	// on any later bill, that name it.
	Billed []Line
	Usage  []Usage
}

// billedKey is what a correction is about: one price's or tier's share of a
// meter.
type billedKey struct {
	model, region string
	meter         Meter
	priceID       int64
	tier          int
	rated         bool
}

// Corrections returns the lines that make up for the difference between what
// a closed period was billed and what its usage, as known now, costs at the
// prices that were in force then. With nothing new it returns none, so two
// bills in a row do not correct the same thing.
//
// Here a quantity below zero is a credit: it is usage that an earlier bill
// charged by an estimate and that this period took back.
func Corrections(closed ClosedPeriod, book *Book, currency string) ([]Line, error) {
	now, err := rateLines(closed.Usage, book, currency, closed.Period, false)
	if err != nil {
		return nil, fmt.Errorf("bill %s: %w", closed.BillID, err)
	}
	places, err := minorUnits(currency)
	if err != nil {
		return nil, err
	}
	type difference struct {
		line                    Line
		quantity                int64
		amount, exact, list, in *big.Rat
	}
	differences := map[billedKey]*difference{}
	add := func(lines []Line, sign int64) error {
		for _, line := range lines {
			key := billedKey{line.Model, line.Region, line.Meter, line.PriceID, line.Tier, line.Rated}
			d := differences[key]
			if d == nil {
				d = &difference{line: line, amount: new(big.Rat), exact: new(big.Rat), list: new(big.Rat), in: new(big.Rat)}
				differences[key] = d
			}
			if d.quantity, err = addInt64(d.quantity, sign*line.Quantity); err != nil {
				return err
			}
			factor := big.NewRat(sign, 1)
			for _, sum := range []struct{ to, what *big.Rat }{
				{d.amount, fraction(line.Amount)},
				{d.exact, shownFraction(line.ExactAmount)},
				{d.list, shownFraction(line.ListAmount)},
				{d.in, shownFraction(line.PricingQuantity)},
			} {
				sum.to.Add(sum.to, sum.what.Mul(sum.what, factor))
			}
		}
		return nil
	}
	if err := cmp.Or(add(now, 1), add(closed.Billed, -1)); err != nil {
		return nil, fmt.Errorf("bill %s: %w", closed.BillID, err)
	}

	var lines []Line
	for _, d := range differences {
		if d.quantity == 0 && d.amount.Sign() == 0 {
			continue
		}
		line := d.line
		line.Correction, line.CorrectsBillID = true, closed.BillID
		line.Quantity, line.PricingQuantity = d.quantity, shown(d.in)
		line.ExactAmount, line.ListAmount = shown(d.exact), shown(d.list)
		if line.Amount, err = roundHalfEven(d.amount, places); err != nil {
			return nil, err
		}
		if !line.Rated {
			line.PricingQuantity = ""
		}
		prefix := "correction of bill " + closed.BillID + ": "
		line.Description = prefix + strings.TrimPrefix(line.Description, prefix)
		lines = append(lines, line)
	}
	slices.SortFunc(lines, compareLines)
	return lines, nil
}

func compareLines(a, b Line) int {
	return cmp.Or(cmp.Compare(a.Model, b.Model), cmp.Compare(a.Region, b.Region),
		slices.Index(Meters, a.Meter)-slices.Index(Meters, b.Meter),
		cmp.Compare(a.PriceID, b.PriceID), cmp.Compare(a.Tier, b.Tier))
}

// AddCorrections appends correction lines to a draft.
func (b *Bill) AddCorrections(lines []Line) error {
	b.Lines = append(b.Lines, lines...)
	return b.finish()
}
