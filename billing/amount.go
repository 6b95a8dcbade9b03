package billing

import (
	"fmt"
	"math/big"
	"strings"

	"github.com/govalues/decimal"
	"github.com/govalues/money"
)

// shownScale bounds the decimals of figures that are shown next to an amount
// and may be endless, such as a third.
const shownScale = 12

// minorUnits returns the number of decimals of a currency's minor unit.
func minorUnits(currency string) (int, error) {
	c, err := money.ParseCurr(currency)
	if err != nil || c.Code() != currency || c == money.XXX || c == money.XTS {
		return 0, fmt.Errorf("%w: currency %q is not an ISO 4217 code such as USD", ErrInvalid, currency)
	}
	return c.Scale(), nil
}

// InMinorUnits returns the amount with exactly the decimals of its currency, or
// ErrInvalid where it has more.
func InMinorUnits(amount decimal.Decimal, currency string) (decimal.Decimal, error) {
	places, err := minorUnits(currency)
	if err != nil {
		return decimal.Decimal{}, err
	}
	rounded, err := roundHalfEven(fraction(amount), places)
	if err != nil {
		return decimal.Decimal{}, err
	}
	if rounded.Cmp(amount) != 0 {
		return decimal.Decimal{}, fmt.Errorf("%w: %s has %d decimals, %v has more", ErrInvalid, currency, places, amount)
	}
	return rounded, nil
}

// fraction is exact: a decimal's text is a fraction of a power of ten.
func fraction(d decimal.Decimal) *big.Rat {
	r, ok := new(big.Rat).SetString(d.String())
	if !ok {
		panic("billing: a decimal's text is not a number: " + d.String())
	}
	return r
}

// exactDecimal returns r where a decimal holds it without loss.
func exactDecimal(r *big.Rat) (decimal.Decimal, bool) {
	places, exact := r.FloatPrec()
	if !exact || places > decimal.MaxScale {
		return decimal.Decimal{}, false
	}
	d, err := decimal.Parse(r.FloatString(places))
	if err != nil || fraction(d).Cmp(r) != 0 {
		return decimal.Decimal{}, false
	}
	return d, true
}

// roundHalfEven rounds r to a number of decimals, ties to the even neighbour.
// An amount of more than 19 digits is an error, never a rounded figure.
func roundHalfEven(r *big.Rat, places int) (decimal.Decimal, error) {
	scaled := new(big.Rat).Mul(r, new(big.Rat).SetInt(pow10(places)))
	quotient, remainder := new(big.Int).DivMod(scaled.Num(), scaled.Denom(), new(big.Int)) // floor
	switch twice := remainder.Lsh(remainder, 1); twice.Cmp(scaled.Denom()) {
	case 1:
		quotient.Add(quotient, big.NewInt(1))
	case 0:
		if quotient.Bit(0) == 1 {
			quotient.Add(quotient, big.NewInt(1))
		}
	}
	rounded := new(big.Rat).SetFrac(quotient, pow10(places))
	d, err := decimal.Parse(rounded.FloatString(places)) // has exactly these places, so nothing is lost
	if err != nil || fraction(d).Cmp(rounded) != 0 {
		return decimal.Decimal{}, fmt.Errorf("%w: an amount has more than %d digits", ErrInvalid, decimal.MaxPrec)
	}
	return d, nil
}

func pow10(n int) *big.Int {
	return new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(n)), nil)
}

// shown writes r in full where it ends, else to 12 decimals. It is for figures
// beside an amount; amounts are decimals.
func shown(r *big.Rat) string {
	places, exact := r.FloatPrec()
	if !exact {
		places = shownScale
	}
	s := r.FloatString(places)
	if !exact && strings.Trim(s, "-0.") == "" {
		return "0"
	}
	return s
}

// shownFraction reads what shown wrote.
func shownFraction(s string) *big.Rat {
	r, ok := new(big.Rat).SetString(s)
	if !ok {
		return new(big.Rat)
	}
	return r
}
