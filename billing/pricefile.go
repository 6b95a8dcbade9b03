package billing

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"math/big"
	"slices"
	"strings"

	"github.com/govalues/decimal"
)

// Limits of a price file.
const (
	MaxPriceFileBytes   = 64 << 20
	MaxPriceFileEntries = 100_000
)

// FilePrice is a flat list price that a price file gives.
type FilePrice struct {
	Model    string
	Meter    Meter
	UnitSize int64
	Amount   decimal.Decimal
	Field    string // the file's name of it
	Line     int
}

// LeftOut is a part of a price file that was not taken, and why.
type LeftOut struct {
	Entry  string `json:"entry"`
	Field  string `json:"field,omitempty"` // empty: the whole entry
	Reason string `json:"reason"`
	Line   int    `json:"line"`
}

// PriceFile is what was read from a price file.
type PriceFile struct {
	SHA256  string
	Entries int
	Prices  []FilePrice // sorted by model and meter; one a meter
	LeftOut []LeftOut   // in the file's order
	// Zero counts prices of exactly nothing: the file says that they are free.
	Zero int
}

// ReadPriceFile reads a public price list: a JSON object of models, each an
// object whose prices are numbers of US dollars (or another single currency)
// per token, image, second or request. This is the shape of the list that the
// LiteLLM project publishes.
//
// It takes what the ledger's meters can rate and lists every other price with
// a reason. Numbers are read exactly, never through a float. Malformed JSON, a
// name that comes twice, a negative price, or a file beyond the limits is a
// *FileError for the whole file.
func ReadPriceFile(r io.Reader) (PriceFile, error) {
	data, err := io.ReadAll(io.LimitReader(r, MaxPriceFileBytes+1))
	if err != nil {
		return PriceFile{}, fmt.Errorf("read price file: %w", err)
	}
	if len(data) > MaxPriceFileBytes {
		return PriceFile{}, fmt.Errorf("%w: the price file is larger than %d MiB", ErrInvalid, MaxPriceFileBytes>>20)
	}
	sum := sha256.Sum256(data)
	file := PriceFile{SHA256: hex.EncodeToString(sum[:])}
	s := &scanner{data: data}
	lines := lineCounter{data: data}
	err = s.object(func(name string, at int) error {
		if file.Entries++; file.Entries > MaxPriceFileEntries {
			return s.fail(at, "the file has more than %d entries", MaxPriceFileEntries)
		}
		return file.readEntry(s, name, lines.line(at), &lines)
	})
	if err != nil {
		return PriceFile{}, err
	}
	if s.peek(); s.at != len(data) {
		return PriceFile{}, s.fail(s.at, "text after the object's end")
	}
	slices.SortFunc(file.Prices, func(a, b FilePrice) int {
		return cmp.Or(cmp.Compare(a.Model, b.Model), slices.Index(Meters, a.Meter)-slices.Index(Meters, b.Meter))
	})
	return file, nil
}

// lineCounter counts lines up to growing offsets, each byte once.
type lineCounter struct {
	data      []byte
	at, lines int
}

func (c *lineCounter) line(at int) int {
	for ; c.at < at; c.at++ {
		if c.data[c.at] == '\n' {
			c.lines++
		}
	}
	return c.lines + 1
}

// entryField is one field of an entry that looks like a price.
type entryField struct {
	kind jsonKind
	text string
	at   int
	line int
}

// readEntry reads one model's entry at the scanner.
func (f *PriceFile) readEntry(s *scanner, model string, line int, lines *lineCounter) error {
	skip := func(reason string) error {
		f.LeftOut = append(f.LeftOut, LeftOut{Entry: model, Reason: reason, Line: line})
		_, _, err := s.value()
		return err
	}
	if s.peek() != '{' {
		return skip("the entry is not an object")
	}
	switch err := checkName(model); {
	case err != nil:
		return skip("the model's name cannot be used: " + err.Error())
	case model == AnyModel:
		return skip(`a price for every model is set by hand, not imported`)
	case model == "sample_spec":
		return skip("the entry explains the file's format and is no model")
	}
	mode := ""
	fields := map[string]entryField{}
	var order []string
	err := s.object(func(name string, at int) error {
		valueAt := s.at
		kind, text, err := s.value()
		if err != nil {
			return err
		}
		if name == "mode" && kind == kindString {
			mode = strings.Trim(string(text), `"`)
		}
		if isPriceField(name) {
			fields[name] = entryField{kind, string(text), valueAt, lines.line(at)}
			order = append(order, name)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return f.takeEntry(s, model, mode, line, fields, order)
}

// isPriceField tells prices from the entry's other properties. A name is a
// price unless nothing in it speaks of money, so that a new kind of price is
// listed as left out rather than overlooked.
func isPriceField(name string) bool {
	return slices.ContainsFunc([]string{"cost", "price", "pricing", "uplift", "multiplier", "fee", "rate_card"}, func(word string) bool {
		return strings.Contains(name, word)
	})
}

// fieldRule says how a field becomes a price.
type fieldRule struct {
	field    string
	meter    Meter
	unitSize int64    // of the stored price
	shift    int64    // the stored amount is the file's times this
	modes    []string // empty: any
}

// Rules come in the order in which they win where two fields give the same
// meter.
var fieldRules = []fieldRule{
	{"input_cost_per_token", MeterInput, 1_000_000, 1_000_000, nil},
	{"cache_read_input_token_cost", MeterCachedInput, 1_000_000, 1_000_000, nil},
	{"input_cost_per_token_cache_hit", MeterCachedInput, 1_000_000, 1_000_000, nil},
	{"output_cost_per_token", MeterOutput, 1_000_000, 1_000_000, nil},
	{"output_cost_per_reasoning_token", MeterReasoning, 1_000_000, 1_000_000, nil},
	{"output_cost_per_image", MeterImages, 1, 1, []string{"image_generation", "image_edit"}},
	{"input_cost_per_image", MeterImages, 1, 1, nil},
	{"output_cost_per_image", MeterImages, 1, 1, nil},
	{"input_cost_per_second", MeterAudioMillis, 1_000, 1, []string{"audio_transcription"}},
	{"output_cost_per_second", MeterAudioMillis, 1_000, 1, []string{"audio_speech", "audio_transcription"}},
	{"input_cost_per_audio_per_second", MeterAudioMillis, 1_000, 1, nil},
	{"input_cost_per_request", MeterRequests, 1, 1, nil},
	{"input_cost_per_query", MeterRequests, 1, 1, nil},
}

// takeEntry turns an entry's fields into prices and left-out lines.
func (f *PriceFile) takeEntry(s *scanner, model, mode string, line int, fields map[string]entryField, order []string) error {
	taken := map[Meter]FilePrice{}
	explained := map[string]string{} // field → why it was left out; "" taken
	for _, rule := range fieldRules {
		field, ok := fields[rule.field]
		if _, done := explained[rule.field]; !ok || done {
			continue
		}
		if len(rule.modes) > 0 && !slices.Contains(rule.modes, mode) {
			continue
		}
		amount, reason, err := fileAmount(s, rule, field)
		if err != nil {
			return err
		}
		if reason == "" {
			if first, twice := taken[rule.meter]; twice {
				reason = fmt.Sprintf("%s is already priced by %s", rule.meter, first.Field)
				if first.UnitSize == rule.unitSize && first.Amount.Cmp(amount) == 0 {
					reason = "the same price as " + first.Field
				}
			} else {
				taken[rule.meter] = FilePrice{model, rule.meter, rule.unitSize, amount, rule.field, field.line}
			}
		}
		explained[rule.field] = reason
	}
	for _, name := range order {
		reason, ruled := explained[name]
		if !ruled {
			reason = reasonLeftOut(name, mode)
			if err := checkNotNegative(s, fields[name]); err != nil {
				return err
			}
		}
		if reason != "" {
			f.LeftOut = append(f.LeftOut, LeftOut{Entry: model, Field: name, Reason: reason, Line: fields[name].line})
		}
	}
	if len(order) == 0 {
		f.LeftOut = append(f.LeftOut, LeftOut{Entry: model, Reason: "the entry has no price", Line: line})
	}
	for _, meter := range slices.Sorted(maps.Keys(taken)) {
		price := taken[meter]
		if price.Amount.IsZero() {
			f.Zero++
		}
		f.Prices = append(f.Prices, price)
	}
	return nil
}

// fileAmount reads a field as a price. It returns why it cannot be one, or an
// error where the file cannot be trusted.
func fileAmount(s *scanner, rule fieldRule, field entryField) (amount decimal.Decimal, reason string, err error) {
	if field.kind != kindNumber {
		return amount, "not a number", nil
	}
	if err := checkNotNegative(s, field); err != nil {
		return amount, "", err
	}
	r, err := parseNumber(field.text)
	if err != nil {
		return amount, errTooLong.Error(), nil
	}
	amount, ok := exactDecimal(r.Mul(r, new(big.Rat).SetInt64(rule.shift)))
	if !ok {
		return amount, fmt.Sprintf("more digits than a price can hold (%d)", decimal.MaxPrec), nil
	}
	if amount.Cmp(maxPrice) > 0 {
		return amount, fmt.Sprintf("more than %v for one unit", maxPrice), nil
	}
	return amount, "", nil
}

func checkNotNegative(s *scanner, field entryField) error {
	if field.kind == kindNumber && strings.HasPrefix(field.text, "-") && strings.ContainsFunc(mantissa(field.text), func(r rune) bool { return r >= '1' && r <= '9' }) {
		return s.fail(field.at, "a price is negative")
	}
	return nil
}

func mantissa(number string) string {
	before, _, _ := strings.Cut(strings.ToLower(number), "e")
	return before
}

// reasonLeftOut explains fields that no rule takes.
func reasonLeftOut(name, mode string) string {
	has := func(words ...string) bool {
		return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(name, w) })
	}
	suffixed := func(words ...string) bool {
		return slices.ContainsFunc(words, func(w string) bool { return strings.HasSuffix(name, w) })
	}
	switch {
	case has("uplift", "multiplier"):
		return "a multiplier for a region or programme; set a price for that region instead"
	case suffixed("_batches", "_flex", "_priority", "_ultrafast", "_balanced", "_decisions"):
		return "a service level, which usage does not carry"
	case has("_above_"):
		return "depends on the size of each request, which hourly usage does not keep"
	case name == "tiered_pricing":
		return "tiers by the size of each request, which hourly usage does not keep"
	case name == "off_peak_pricing":
		return "depends on the time of day; set prices by hand"
	case has("cache_creation"):
		return "cache writes are not metered apart from input"
	case has("explicit_cache_read"):
		return "cache reads are not metered by kind of cache"
	case has("audio_token", "image_token", "video_token"):
		return "tokens are not metered by medium"
	case has("video"):
		return "video is not metered"
	case has("character"):
		return "characters are not metered"
	case has("pixel"):
		return "pixels are not metered"
	case has("per_image"):
		return "image sizes are not metered"
	case has("per_second"):
		return fmt.Sprintf("seconds of mode %q are not metered", mode)
	case has("page", "credit", "session", "gb_per_day", "1k_calls", "query", "citation", "guardrail", "text_message", "search"):
		return "this unit is not metered"
	case has("dbu"):
		return "not in the file's currency"
	}
	return "an unknown kind of price"
}
