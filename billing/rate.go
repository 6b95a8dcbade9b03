package billing

import (
	"cmp"
	"fmt"
	"math/big"
	"slices"
	"time"

	"github.com/govalues/decimal"
)

// Rate makes the draft lines and total of a period from its usage.
//
// Quantities are added per model, region, meter and price version, a line's
// quantity is never below zero, and each line is rounded once. Usage below
// zero is what a later, lower final figure took back from an estimate of an
// earlier period; the part that this period's own usage does not cover is
// credited by the next bill's corrections, at this period's price (see
// Corrections).
//
// Usage without a price becomes a line that is not rated, with the reason. It
// returns an error for usage outside the period and for usage that spans a
// change of price.
func Rate(usage []Usage, book *Book, account Account, period Period) (Bill, error) {
	if err := period.Validate(); err != nil {
		return Bill{}, err
	}
	lines, err := rateLines(usage, book, account.Currency, period, true)
	if err != nil {
		return Bill{}, err
	}
	bill := Bill{Status: StatusDraft, Account: account, Period: period, Currency: account.Currency, Lines: lines}
	return bill, bill.finish()
}

// finish numbers the lines and computes the total.
func (b *Bill) finish() error {
	places, err := minorUnits(b.Currency)
	if err != nil {
		return err
	}
	total, exact := new(big.Rat), new(big.Rat)
	b.Unrated = 0
	for i := range b.Lines {
		line := &b.Lines[i]
		line.N = i + 1
		total.Add(total, fraction(line.Amount))
		exact.Add(exact, shownFraction(line.ExactAmount))
		if !line.Rated {
			b.Unrated++
		}
	}
	if b.Total, err = roundHalfEven(total, places); err != nil {
		return fmt.Errorf("total: %w", err)
	}
	if fraction(b.Total).Cmp(total) != 0 {
		return fmt.Errorf("%w: a line's amount has more decimals than %s has", ErrInvalid, b.Currency)
	}
	b.Rounding = shown(total.Sub(total, exact))
	return nil
}

// group is a line in the making: one price version's share of a meter.
type group struct {
	model, region string
	meter         Meter
	price         Price // zero: no price
	reason        string
	quantity      int64
	first, last   time.Time
}

type groupKey struct {
	model, region string
	meter         Meter
	priceID       int64
	priceFrom     time.Time // tells versions apart that have no id yet
	priceTenant   string
	priceModel    string
	priceRegion   string
}

// rateLines rates usage into sorted lines. With clamp, a version's quantity
// below zero counts as zero; without it, it becomes a credit.
func rateLines(usage []Usage, book *Book, currency string, period Period, clamp bool) ([]Line, error) {
	places, err := minorUnits(currency)
	if err != nil {
		return nil, err
	}
	groups := map[groupKey]*group{}
	for _, u := range usage {
		if err := addUsage(groups, u, book, currency, period); err != nil {
			return nil, err
		}
	}
	sorted := make([]*group, 0, len(groups))
	for _, g := range groups {
		sorted = append(sorted, g)
	}
	slices.SortFunc(sorted, func(a, b *group) int {
		return cmp.Or(cmp.Compare(a.model, b.model), cmp.Compare(a.region, b.region),
			slices.Index(Meters, a.meter)-slices.Index(Meters, b.meter),
			a.first.Compare(b.first), cmp.Compare(a.price.ID, b.price.ID), a.price.From.Compare(b.price.From))
	})

	var lines []Line
	for start := 0; start < len(sorted); {
		end := start + 1
		for end < len(sorted) && sorted[end].sameSeries(sorted[start]) {
			end++
		}
		series, err := rateSeries(sorted[start:end], book, period, places, clamp)
		if err != nil {
			return nil, err
		}
		lines = append(lines, series...)
		start = end
	}
	return lines, nil
}

func (g *group) sameSeries(h *group) bool {
	return g.model == h.model && g.region == h.region && g.meter == h.meter
}

// addUsage adds one usage row to the groups of the prices in force.
func addUsage(groups map[groupKey]*group, u Usage, book *Book, currency string, period Period) error {
	if u.From.Before(period.From) || u.To.After(period.To) || !u.From.Before(u.To) {
		return fmt.Errorf("%w: usage of %s to %s is outside the period", ErrInvalid, u.From.UTC().Format(time.RFC3339), u.To.UTC().Format(time.RFC3339))
	}
	if edges := book.Edges(u.From, u.To); len(edges) > 0 {
		return fmt.Errorf("%w: a price changes at %s, within one usage row", ErrInvalid, edges[0].UTC().Format(time.RFC3339))
	}
	quantities, err := meterQuantities(u, book)
	if err != nil {
		return err
	}
	for i, quantity := range quantities {
		meter := Meters[i]
		if quantity == 0 {
			continue
		}
		price, rated := book.Find(u.Model, u.Region, meter, u.From)
		if !rated && meter == MeterRequests && pricesSome(book, u) {
			continue
		}
		key := groupKey{u.Model, u.Region, meter, price.ID, price.From, price.TenantID, price.Model, price.Region}
		g := groups[key]
		if g == nil {
			g = &group{model: u.Model, region: u.Region, meter: meter, price: price, first: u.From, last: u.To}
			if !rated {
				g.reason = fmt.Sprintf("no price in %s for %s of %q", currency, meter, u.Model)
			}
			groups[key] = g
		}
		if g.quantity, err = addInt64(g.quantity, quantity); err != nil {
			return fmt.Errorf("%s of %q: %w", meter, u.Model, err)
		}
		if u.From.Before(g.first) {
			g.first = u.From
		}
		if u.To.After(g.last) {
			g.last = u.To
		}
	}
	return nil
}

// meterQuantities splits a usage row into meters that share no token. Its
// result is indexed like Meters.
func meterQuantities(u Usage, book *Book) ([9]int64, error) {
	input, cached := u.InputTokens, u.CachedInputTokens
	if _, ok := book.Find(u.Model, u.Region, MeterCachedInput, u.From); !ok {
		cached = 0
	}
	output, reasoning := u.OutputTokens, u.ReasoningTokens
	if _, ok := book.Find(u.Model, u.Region, MeterReasoning, u.From); !ok {
		reasoning = 0
	}
	quantities := [9]int64{input, cached, output, reasoning, u.Images, u.AudioMillis, u.GPUMillis, u.ToolCalls, u.Requests}
	for _, q := range quantities {
		if q < -maxQuantity || q > maxQuantity {
			return quantities, errQuantity
		}
	}
	quantities[0] -= cached // cannot overflow: both are within ± 2^62
	quantities[2] -= reasoning
	return quantities, nil
}

// pricesSome reports whether any meter but requests has a price.
func pricesSome(book *Book, u Usage) bool {
	return slices.ContainsFunc(Meters, func(m Meter) bool {
		_, ok := book.Find(u.Model, u.Region, m, u.From)
		return ok && m != MeterRequests
	})
}

// maxQuantity bounds quantities and their sums, so that neither a difference
// nor a negation of two overflows.
const maxQuantity = 1 << 62

var errQuantity = fmt.Errorf("%w: a quantity is beyond 2^62", ErrInvalid)

func addInt64(a, b int64) (int64, error) {
	sum := a + b
	if (b > 0 && sum < a) || (b < 0 && sum > a) || sum > maxQuantity || sum < -maxQuantity {
		return 0, errQuantity
	}
	return sum, nil
}

// rateSeries rates one meter of one model: its price versions in the order in
// which they were first used. Each begins in the tiers where the one before
// ended.
func rateSeries(series []*group, book *Book, period Period, places int, clamp bool) ([]Line, error) {
	var total int64
	var err error
	for _, g := range series {
		if total, err = addInt64(total, max(g.quantity, 0)); err != nil {
			return nil, err
		}
	}
	var lines []Line
	var position int64
	for _, g := range series {
		quantity := g.quantity
		if clamp {
			quantity = max(quantity, 0)
		}
		if quantity == 0 {
			continue
		}
		if g.reason != "" {
			line := g.line(period, charge{quantity: quantity, pricing: new(big.Rat), exact: new(big.Rat)})
			if line.Amount, err = roundHalfEven(new(big.Rat), places); err != nil {
				return nil, err
			}
			lines = append(lines, line)
			continue
		}
		for _, c := range chargesOf(g.price, position, quantity, total) {
			line := g.line(period, c)
			if line.Amount, err = roundHalfEven(c.exact, places); err != nil {
				return nil, fmt.Errorf("%s of %q: %w", g.meter, g.model, err)
			}
			g.compareWithList(&line, c, book)
			lines = append(lines, line)
		}
		position += max(quantity, 0)
	}
	return lines, nil
}

// charge is a quantity at one unit price.
type charge struct {
	tier     int // 1, 2, 3 …; 0 without tiers
	quantity int64
	amount   decimal.Decimal // for a unit size
	pricing  *big.Rat        // quantity in unit sizes
	exact    *big.Rat        // pricing × amount
}

// chargesOf splits a quantity, not zero, that begins at a position of the period's count
// into charges. A quantity below zero is credited at the first tier. total is
// the whole period's quantity, which selects a volume tier.
func chargesOf(p Price, position, quantity, total int64) []charge {
	switch p.Pricing {
	case PricingGraduated:
		if quantity < 0 {
			return []charge{p.charge(1, quantity, p.Tiers[0].Amount)}
		}
		var charges []charge
		from, to, floor := position, position+quantity, int64(0)
		for i, t := range p.Tiers {
			upTo := t.UpTo
			if upTo == 0 {
				upTo = to
			}
			if share := min(to, upTo) - max(from, floor); share > 0 {
				charges = append(charges, p.charge(i+1, share, t.Amount))
			}
			floor = upTo
		}
		return charges
	case PricingVolume:
		for i, t := range p.Tiers {
			if t.UpTo == 0 || total <= t.UpTo {
				return []charge{p.charge(i+1, quantity, t.Amount)}
			}
		}
	case PricingPackage:
		c := p.charge(0, quantity, p.Amount)
		packages := -(-quantity / p.UnitSize) // only whole packages are given back
		if quantity >= 0 {
			packages = ceilDiv(position+quantity, p.UnitSize) - ceilDiv(position, p.UnitSize)
		}
		c.pricing = new(big.Rat).SetInt64(packages)
		c.exact = new(big.Rat).Mul(c.pricing, fraction(p.Amount))
		return []charge{c}
	}
	return []charge{p.charge(0, quantity, p.Amount)}
}

func ceilDiv(a, b int64) int64 {
	quotient := a / b
	if a%b > 0 {
		quotient++
	}
	return quotient
}

func (p Price) charge(tier int, quantity int64, amount decimal.Decimal) charge {
	pricing := big.NewRat(quantity, p.UnitSize)
	return charge{tier: tier, quantity: quantity, amount: amount, pricing: pricing, exact: new(big.Rat).Mul(pricing, fraction(amount))}
}

// line makes the bill line of a charge, without its rounded amount.
func (g *group) line(period Period, c charge) Line {
	line := Line{
		Category: CategoryUsage, From: period.From, To: period.To, FirstUse: g.first.UTC(), LastUse: g.last.UTC(),
		Model: g.model, Region: g.region, Meter: g.meter, Quantity: c.quantity,
		Rated: g.reason == "", Reason: g.reason,
		ExactAmount: shown(c.exact), ListAmount: shown(c.exact),
	}
	if !line.Rated {
		line.Description = fmt.Sprintf("%s, %s: not rated", g.model, g.meter)
		return line
	}
	line.PriceID, line.Negotiated, line.Pricing = g.price.ID, g.price.TenantID != "", g.price.Pricing
	line.Tier, line.UnitSize, line.UnitPrice = c.tier, g.price.UnitSize, c.amount.String()
	line.ListUnitPrice, line.PricingQuantity = line.UnitPrice, shown(c.pricing)
	line.Description = fmt.Sprintf("%s, %s at %s per %d", g.model, g.meter, line.UnitPrice, line.UnitSize)
	if c.tier > 0 {
		line.Description += fmt.Sprintf(", tier %d", c.tier)
	}
	return line
}

// compareWithList sets what the list would have charged where a negotiated
// price was used. A tiered list price is shown by its first tier.
func (g *group) compareWithList(line *Line, c charge, book *Book) {
	if !line.Negotiated {
		return
	}
	list, ok := book.FindList(g.model, g.region, g.meter, g.first)
	if !ok {
		return
	}
	amount := list.Amount
	if len(list.Tiers) > 0 {
		amount = list.Tiers[0].Amount
	}
	// The list's price for the line's own unit size, so that both prices are
	// for the same pricing quantity.
	unit := new(big.Rat).Mul(fraction(amount), big.NewRat(line.UnitSize, list.UnitSize))
	line.ListUnitPrice = shown(unit)
	line.ListAmount = shown(unit.Mul(unit, c.pricing))
}
