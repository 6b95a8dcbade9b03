// Package billing turns recorded usage into money: the price book, rating,
// bills, corrections and credits.
//
// Everything here is pure. Rate is a function of usage, prices and a period;
// the same input gives the same bill, line by line. Reading usage at one
// snapshot and keeping closed bills unchanged is the work of
// billing/postgres; writing files is billing/export's.
//
// Money is exact. Prices and amounts are decimals, products are computed as
// fractions and rounded once, half to even, when a line gets its amount. A
// bill's total is the sum of its lines' rounded amounts and nothing else; what
// rounding added or took is shown beside it.
//
// The rules, each at the function that keeps it:
//
//   - A price holds from a UTC hour until the next version begins. A negotiated
//     price goes before the list, an exact model before "*", a named region
//     before any (Book.Find). The ledger records no region yet, so usage from it
//     meets only prices without one.
//   - No token is charged twice (Meter). Usage without a price is an unrated
//     line, never silently free (Rate); what is meant to be free has a price of
//     zero.
//   - Tiers count a period's quantity, over price versions (PricingModel).
//   - A line is never below zero; what is left of negative usage is credited by
//     the next bill (Rate, Corrections).
//   - A closed period's prices cannot change, so rating it again with late
//     usage gives the difference that the next bill corrects (Corrections).
//   - A bill whose corrections exceed its charges has a negative total: it is a
//     credit note.
package billing

import (
	"errors"
	"time"

	"github.com/govalues/decimal"

	"tollgate/events"
)

// Errors that callers branch on.
var (
	ErrNotFound = errors.New("not found")
	// ErrInvalid wraps every complaint about input: a price, a period, a
	// credit, a price file.
	ErrInvalid = errors.New("invalid")
	// ErrUnrated is returned by closing a bill that has unrated lines without
	// allowing them.
	ErrUnrated = errors.New("the bill has usage without a price")
	// ErrPeriodOpen is returned by closing a period that has not ended.
	ErrPeriodOpen = errors.New("the period has not ended")
	// ErrAlreadyClosed comes with the bill that was closed before.
	ErrAlreadyClosed = errors.New("the period is already closed")
	// ErrOverlap is returned where a period shares time with a closed one.
	ErrOverlap = errors.New("the period overlaps a closed one")
	// ErrClosedPeriod is returned where a price would change time that is on
	// a closed bill.
	ErrClosedPeriod = errors.New("the price would change a closed period")
	// ErrCurrency is returned where an account is used in two currencies.
	ErrCurrency = errors.New("the account has another currency")
	// ErrConflict is returned where an idempotency key is used again for
	// something else.
	ErrConflict = errors.New("the idempotency key belongs to another credit")
	// ErrJournal is returned where the journal does not add up to the hour's
	// bucket, so that an hour cannot be split at a period's boundary.
	ErrJournal = errors.New("the journal and the hour's bucket disagree")
)

// Account is who a bill is for.
type Account struct {
	TenantID string `json:"tenant_id"`
	Name     string `json:"name"`
	Currency string `json:"currency"`  // ISO 4217
	TimeZone string `json:"time_zone"` // IANA name
}

// Meter is what a price is for.
type Meter string

// Meters. Three of them are exclusive parts, so that no token is charged twice:
//
//   - input_tokens is charged without the cached ones when cached_input_tokens
//     has a price; without such a price cached tokens are input tokens.
//   - reasoning_tokens are output tokens unless they have a price of their own,
//     and then output_tokens is charged without them.
//
// requests counts reservations that were settled or cancelled. It is charged
// where it has a price; where it has none it is missing from the bill only if
// another meter of the model has one.
const (
	MeterInput       Meter = "input_tokens"
	MeterCachedInput Meter = "cached_input_tokens"
	MeterOutput      Meter = "output_tokens"
	MeterReasoning   Meter = "reasoning_tokens"
	MeterImages      Meter = "images"
	MeterAudioMillis Meter = "audio_ms"
	MeterGPUMillis   Meter = "gpu_ms"
	MeterToolCalls   Meter = "tool_calls"
	MeterRequests    Meter = "requests"
)

// Meters lists every meter in the order that bills show them.
var Meters = []Meter{
	MeterInput, MeterCachedInput, MeterOutput, MeterReasoning, MeterImages,
	MeterAudioMillis, MeterGPUMillis, MeterToolCalls, MeterRequests,
}

// Usage is what one model consumed in [From, To). It may be an hour, a part of
// an hour at a period's boundary, or many hours among which no price changes.
type Usage struct {
	From     time.Time
	To       time.Time
	Model    string
	Region   string // empty where the ledger does not know it
	Requests int64
	events.Usage
}

// Status says whether a bill can still change.
type Status string

// A draft is computed anew each time; a closed bill never changes.
const (
	StatusDraft  Status = "draft"
	StatusClosed Status = "closed"
)

// Bill is one tenant's bill for one period.
type Bill struct {
	ID       string  `json:"bill_id,omitempty"` // empty for a draft
	Status   Status  `json:"status"`
	Account  Account `json:"account"`
	Period   Period  `json:"period"`
	Currency string  `json:"currency"`
	Lines    []Line  `json:"lines"`

	// Total is exactly the sum of the lines' amounts. A negative total is owed
	// to the tenant.
	Total decimal.Decimal `json:"total"`
	// Rounding is Total less the sum before rounding, to at most 12 decimals:
	// what rounding each line once has added or taken.
	Rounding string `json:"rounding"`
	// Unrated counts the lines whose usage has no price.
	Unrated int `json:"unrated_lines"`

	ClosedAt time.Time `json:"closed_at,omitzero"`
	ClosedBy string    `json:"closed_by,omitempty"`
}

// Category is what kind of charge a line is.
type Category string

// Categories of lines, as FOCUS names them.
const (
	CategoryUsage  Category = "Usage"
	CategoryCredit Category = "Credit"
)

// Line is one charge of a bill: a quantity of one meter at one price.
type Line struct {
	N        int      `json:"n"` // 1, 2, 3 …
	Category Category `json:"category"`
	// Correction marks a change to an earlier closed bill, CorrectsBillID.
	Correction     bool   `json:"correction,omitempty"`
	CorrectsBillID string `json:"corrects_bill_id,omitempty"`

	// From and To are the period that the charge is for. FirstUse and LastUse
	// bound the usage in it.
	From     time.Time `json:"from"`
	To       time.Time `json:"to"`
	FirstUse time.Time `json:"first_use,omitzero"`
	LastUse  time.Time `json:"last_use,omitzero"`

	Model       string `json:"model,omitempty"`
	Region      string `json:"region,omitempty"`
	Meter       Meter  `json:"meter,omitempty"`
	Description string `json:"description"`
	// Quantity is in the meter's unit. In a bill's own lines it is never below
	// zero; in a correction it is the change.
	Quantity int64 `json:"quantity"`

	// Rated is false for usage without a price; Reason says why, and the
	// amount is zero.
	Rated  bool   `json:"rated"`
	Reason string `json:"reason,omitempty"`

	PriceID    int64        `json:"price_id,omitempty"`
	Negotiated bool         `json:"negotiated,omitempty"`
	Pricing    PricingModel `json:"pricing_model,omitempty"`
	Tier       int          `json:"tier,omitempty"`      // 1, 2, 3 …; 0 without tiers
	UnitSize   int64        `json:"unit_size,omitempty"` // UnitPrice is for this many
	UnitPrice  string       `json:"unit_price,omitempty"`
	// PricingQuantity × UnitPrice is ExactAmount. ListUnitPrice and ListAmount
	// are what the list price would have made of it.
	PricingQuantity string `json:"pricing_quantity,omitempty"`
	ExactAmount     string `json:"exact_amount"`
	ListUnitPrice   string `json:"list_unit_price,omitempty"`
	ListAmount      string `json:"list_amount"`

	// Amount is ExactAmount rounded half to even to the currency's minor unit.
	Amount decimal.Decimal `json:"amount"`
}
