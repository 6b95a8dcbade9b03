package billing

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/govalues/decimal"
)

// PricingModel says how a quantity becomes an amount.
type PricingModel string

// Pricing models. Tiers count a meter's quantity in one billing period, over
// all price versions that the period met: a change of price in mid-month does
// not start the tiers anew.
const (
	// PricingFlat: quantity ÷ UnitSize × Amount.
	PricingFlat PricingModel = "flat"
	// PricingGraduated: each tier's share of the quantity at the tier's amount.
	PricingGraduated PricingModel = "graduated"
	// PricingVolume: the whole quantity at the amount of the tier it ends in.
	PricingVolume PricingModel = "volume"
	// PricingPackage: Amount for each begun package of UnitSize.
	PricingPackage PricingModel = "package"
)

// AnyModel is the model of a price that holds for models without their own.
const AnyModel = "*"

const (
	maxUnitSize   = 1_000_000_000
	maxTiers      = 100
	maxNameLength = 256
)

// maxPrice bounds a price for one unit size; beyond it a price is a typing
// mistake.
var maxPrice = decimal.MustParse("1000000000")

// Tier is one step of a tiered price.
type Tier struct {
	// UpTo is the tier's last unit, counted from the period's start in the
	// meter's unit; 0 in the last tier, which has no end.
	UpTo   int64           `json:"up_to,omitempty"`
	Amount decimal.Decimal `json:"amount"` // for UnitSize
}

// Price is one version of a price: what a meter costs from ValidFrom until
// ValidTo.
type Price struct {
	ID       int64     `json:"price_id"`
	TenantID string    `json:"tenant_id,omitempty"` // empty: list price
	Model    string    `json:"model"`               // exact name, or "*"
	Region   string    `json:"region,omitempty"`    // empty: any
	Meter    Meter     `json:"meter"`
	Currency string    `json:"currency"`
	From     time.Time `json:"valid_from"`        // a whole UTC hour
	To       time.Time `json:"valid_to,omitzero"` // exclusive; zero: open

	Pricing  PricingModel    `json:"pricing_model"`
	UnitSize int64           `json:"unit_size"` // the amount is for this many: 1, 1000, 1000000 …
	Amount   decimal.Decimal `json:"amount"`    // flat and package
	Tiers    []Tier          `json:"tiers,omitempty"`

	Source      string    `json:"source,omitempty"`
	Author      string    `json:"author"`
	CreatedAt   time.Time `json:"created_at,omitzero"`
	WithdrawnAt time.Time `json:"withdrawn_at,omitzero"` // replaced before any bill was closed with it
}

// Validate reports the first thing that makes the price unusable.
func (p Price) Validate() error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: price of %s for %q: %s", ErrInvalid, p.Meter, p.Model, fmt.Sprintf(format, args...))
	}
	if err := checkName(p.Model); err != nil {
		return bad("model: %v", err)
	}
	for _, name := range []string{p.TenantID, p.Region} {
		if name != "" {
			if err := checkName(name); err != nil {
				return bad("tenant or region: %v", err)
			}
		}
	}
	if !slices.Contains(Meters, p.Meter) {
		return bad("unknown meter; known are %v", Meters)
	}
	if _, err := minorUnits(p.Currency); err != nil {
		return err
	}
	if p.From.IsZero() || !p.From.Equal(p.From.Truncate(time.Hour)) {
		return bad("valid_from must be a whole UTC hour, because usage is kept by the hour")
	}
	if p.From.Year() < 2000 || p.From.Year() > 9999 {
		return bad("valid_from is out of range")
	}
	if !p.To.IsZero() && !p.From.Before(p.To) {
		return bad("valid_to is not after valid_from")
	}
	if p.UnitSize < 1 || p.UnitSize > maxUnitSize {
		return bad("unit_size must be 1 to %d", int64(maxUnitSize))
	}
	return p.validateAmounts(bad)
}

func (p Price) validateAmounts(bad func(string, ...any) error) error {
	switch p.Pricing {
	case PricingFlat, PricingPackage:
		if len(p.Tiers) > 0 {
			return bad("a %s price has no tiers", p.Pricing)
		}
		return checkAmount(p.Amount, bad)
	case PricingGraduated, PricingVolume:
		if len(p.Tiers) < 1 || len(p.Tiers) > maxTiers {
			return bad("a %s price needs 1 to %d tiers", p.Pricing, maxTiers)
		}
		if !p.Amount.IsZero() {
			return bad("a %s price has its amounts in its tiers", p.Pricing)
		}
		var before int64
		for i, t := range p.Tiers {
			if err := checkAmount(t.Amount, bad); err != nil {
				return err
			}
			if last := i == len(p.Tiers)-1; last != (t.UpTo == 0) {
				return bad("every tier but the last needs up_to, and the last has none")
			} else if !last && t.UpTo <= before {
				return bad("tier %d must end after tier %d", i+1, i)
			}
			before = t.UpTo
		}
		return nil
	}
	return bad("unknown pricing model %q", p.Pricing)
}

func checkAmount(d decimal.Decimal, bad func(string, ...any) error) error {
	if d.IsNeg() {
		return bad("a price must not be negative; give a credit instead")
	}
	if d.Cmp(maxPrice) > 0 {
		return bad("a price must not exceed %v", maxPrice)
	}
	return nil
}

// checkName keeps names printable, storable and of a sane length.
func checkName(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("a name is empty")
	case len(name) > maxNameLength:
		return fmt.Errorf("a name is longer than %d bytes", maxNameLength)
	case !utf8.ValidString(name):
		return fmt.Errorf("a name is not UTF-8")
	case strings.TrimSpace(name) != name:
		return fmt.Errorf("a name begins or ends with a space")
	case strings.ContainsFunc(name, unicode.IsControl):
		return fmt.Errorf("a name has a control character")
	}
	return nil
}

// SameTerms reports whether two versions charge the same.
func (p Price) SameTerms(q Price) bool {
	return p.Pricing == q.Pricing && p.UnitSize == q.UnitSize && p.Amount.Cmp(q.Amount) == 0 &&
		slices.EqualFunc(p.Tiers, q.Tiers, func(a, b Tier) bool { return a.UpTo == b.UpTo && a.Amount.Cmp(b.Amount) == 0 })
}

// holdsAt reports whether the version is in force at an instant.
func (p Price) holdsAt(t time.Time) bool {
	return !t.Before(p.From) && (p.To.IsZero() || t.Before(p.To))
}

// ParseTiers reads tiers from JSON, strictly: amounts are strings or numbers
// and are read exactly, unknown fields are refused.
func ParseTiers(data []byte) ([]Tier, error) {
	var raw []struct {
		UpTo   int64           `json:"up_to"`
		Amount json.RawMessage `json:"amount"`
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&raw); err != nil {
		return nil, fmt.Errorf("%w: tiers: %w", ErrInvalid, err)
	}
	if _, err := decoder.Token(); err != io.EOF {
		return nil, fmt.Errorf("%w: tiers: text after the list", ErrInvalid)
	}
	tiers := make([]Tier, 0, len(raw))
	for i, r := range raw {
		amount, err := ParseAmount(strings.Trim(string(r.Amount), `"`))
		if err != nil {
			return nil, fmt.Errorf("tier %d: %w", i+1, err)
		}
		tiers = append(tiers, Tier{UpTo: r.UpTo, Amount: amount})
	}
	return tiers, nil
}

// ParseAmount reads a decimal without loss. A number with more digits than a
// decimal holds is an error.
func ParseAmount(text string) (decimal.Decimal, error) {
	r, err := parseNumber(text)
	if err != nil {
		return decimal.Decimal{}, err
	}
	d, ok := exactDecimal(r)
	if !ok {
		return decimal.Decimal{}, fmt.Errorf("%w: amount %q has more digits than a price can hold (%d)", ErrInvalid, text, decimal.MaxPrec)
	}
	return d, nil
}

// Book holds the price versions that may matter to one tenant in one currency,
// and finds the one that is in force. It must not be changed after NewBook.
type Book struct {
	tenantID string
	versions map[bookKey][]Price // sorted by From
	edges    []time.Time         // every From and To, sorted
}

type bookKey struct {
	tenantID, model, region string
	meter                   Meter
}

// NewBook makes a book of one tenant and currency. Versions of other tenants
// and currencies, and withdrawn ones, are left out. Overlapping versions are
// an error: a book must not depend on the order of its versions.
func NewBook(tenantID, currency string, prices []Price) (*Book, error) {
	b := &Book{tenantID: tenantID, versions: map[bookKey][]Price{}}
	for _, p := range prices {
		if p.Currency != currency || !p.WithdrawnAt.IsZero() || (p.TenantID != "" && p.TenantID != tenantID) {
			continue
		}
		if err := p.Validate(); err != nil {
			return nil, err
		}
		key := bookKey{p.TenantID, p.Model, p.Region, p.Meter}
		b.versions[key] = append(b.versions[key], p)
		b.edges = append(b.edges, p.From)
		if !p.To.IsZero() {
			b.edges = append(b.edges, p.To)
		}
	}
	for key, versions := range b.versions {
		slices.SortFunc(versions, func(p, q Price) int { return p.From.Compare(q.From) })
		for i := 1; i < len(versions); i++ {
			if before := versions[i-1]; before.To.IsZero() || before.To.After(versions[i].From) {
				return nil, fmt.Errorf("%w: prices %d and %d of %s for %q overlap", ErrInvalid, before.ID, versions[i].ID, key.meter, key.model)
			}
		}
	}
	slices.SortFunc(b.edges, time.Time.Compare)
	b.edges = slices.CompactFunc(b.edges, time.Time.Equal)
	return b, nil
}

// Find returns the price in force at an instant. A negotiated price goes
// before the list, then an exact model before "*", then a named region before
// any. Each meter is looked up by itself.
func (b *Book) Find(model, region string, meter Meter, at time.Time) (Price, bool) {
	if b.tenantID != "" {
		if p, ok := b.find(b.tenantID, model, region, meter, at); ok {
			return p, true
		}
	}
	return b.FindList(model, region, meter, at)
}

// FindList is Find among list prices alone.
func (b *Book) FindList(model, region string, meter Meter, at time.Time) (Price, bool) {
	return b.find("", model, region, meter, at)
}

func (b *Book) find(tenantID, model, region string, meter Meter, at time.Time) (Price, bool) {
	for _, m := range []string{model, AnyModel} {
		for _, r := range []string{region, ""} {
			for _, p := range b.versions[bookKey{tenantID, m, r, meter}] {
				if p.holdsAt(at) {
					return p, true
				}
			}
		}
	}
	return Price{}, false
}

// Edges returns the instants within (from, to) at which some price changes.
func (b *Book) Edges(from, to time.Time) []time.Time {
	start, _ := slices.BinarySearchFunc(b.edges, from, time.Time.Compare)
	var inside []time.Time
	for _, e := range b.edges[start:] {
		if e.After(from) && e.Before(to) {
			inside = append(inside, e)
		}
	}
	return inside
}

// SortPrices orders versions as listings show them.
func SortPrices(prices []Price) {
	slices.SortFunc(prices, func(p, q Price) int {
		return cmp.Or(cmp.Compare(p.TenantID, q.TenantID), cmp.Compare(p.Model, q.Model), cmp.Compare(p.Region, q.Region),
			slices.Index(Meters, p.Meter)-slices.Index(Meters, q.Meter), cmp.Compare(p.Currency, q.Currency), p.From.Compare(q.From))
	})
}
