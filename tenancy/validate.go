package tenancy

import (
	"fmt"
	"slices"
	"strings"
	"time"
	_ "time/tzdata" // a tenant's time zone must not depend on the machine
	"unicode"
	"unicode/utf8"

	"github.com/govalues/money"
)

// Bounds of documents.
const (
	MaxLimit      = int64(1_000_000_000_000) // × 1000 milli-units stays below 2^52
	MaxLimits     = 64                       // lines of one document
	MaxModels     = 1000
	MaxSlots      = 1024 // of a ring: each is a field of the tenant's hash
	MaxWindow     = 400 * day
	MaxHoldTTL    = day
	MaxHoldLife   = 7 * day
	MaxKeyOverlap = 90 * day          // of a rotated key
	MaxTokensCap  = int64(10_000_000) // default_max_output_tokens, image_tokens
	MaxWeight     = int64(1_000_000)  // weight_milli: 1000 × the base model

	maxNameLen   = 200
	maxReasonLen = 500
	maxAuthorLen = 128
	maxModelName = 128
	maxEndpoint  = 64
	// maxRateSpan bounds a rate's window × burst ÷ limit: the script keeps the
	// theoretical arrival time in µs in a double.
	maxRateSpan = 400 * day
)

const idHint = "use 1 to 63 of a-z, 0-9 and '-', not starting with '-'"

// Validate checks the tenant and its quota as a whole. The error is an
// *InvalidError.
func (t *Tenant) Validate() error {
	var m mistakes
	if !ValidTenantID(t.ID) {
		m.add("id", idHint, "%s is not a tenant id", quoted(t.ID))
	}
	checkText(&m, "name", t.Name, maxNameLen)
	if problem := CheckTimeZone(t.TimeZone); problem != "" {
		m.add("time_zone", `use an IANA name such as "Europe/Berlin" or "UTC"`, "%s", problem)
	}
	if problem := CheckCurrency(t.Currency); problem != "" {
		m.add("currency", `use an ISO 4217 code such as "EUR"`, "%s", problem)
	}
	checkQuota(&m, "quota.", &t.Quota)
	return m.err("tenant")
}

// Validate checks the quota document as a whole. The error is an
// *InvalidError.
func (q *Quota) Validate() error {
	var m mistakes
	checkQuota(&m, "", q)
	return m.err("quota")
}

// Validate checks the platform's document as a whole. The error is an
// *InvalidError.
func (p *Platform) Validate() error {
	var m mistakes
	if p.Version < 0 {
		m.add("version", "", "is negative")
	}
	checkLimits(&m, "limits", p.Limits, checkPlatformLimit)
	if len(p.Models) > MaxModels {
		m.add("models", "", "has %d lines, at most %d are allowed", len(p.Models), MaxModels)
	} else {
		seen := make(map[string]int, len(p.Models))
		for i := range p.Models {
			path := fmt.Sprintf("models[%d]", i)
			checkModel(&m, path+".", &p.Models[i])
			if first, twice := seen[p.Models[i].Name]; twice {
				m.add(path+".name", "each model has one line", "%s is already models[%d]", quoted(p.Models[i].Name), first)
			} else {
				seen[p.Models[i].Name] = i
			}
		}
	}
	if p.DefaultMaxOutputTokens < 1 || p.DefaultMaxOutputTokens > MaxTokensCap {
		m.add("default_max_output_tokens", "4096 is usual", "must be 1 to %d, is %d", MaxTokensCap, p.DefaultMaxOutputTokens)
	}
	checkDuration(&m, "hold_ttl", p.HoldTTL, time.Second, MaxHoldTTL, `"120s" is usual`)
	checkDuration(&m, "max_hold", p.MaxHold, time.Second, MaxHoldLife, `"1h" is usual`)
	if p.MaxHold < p.HoldTTL {
		m.add("max_hold", "raise max_hold or lower hold_ttl", "%s is shorter than hold_ttl %s", p.MaxHold, p.HoldTTL)
	}
	return m.err("platform")
}

// Validate checks one model. The error is an *InvalidError.
func (mo *Model) Validate() error {
	var m mistakes
	checkModel(&m, "", mo)
	return m.err("model")
}

// Validate checks a key as it is stored. The error is an *InvalidError.
func (k *Key) Validate() error {
	var m mistakes
	if !validKeyID(k.ID) {
		m.add("id", "ids of keys are generated", "%s is not a key id", quoted(k.ID))
	}
	checkText(&m, "name", k.Name, maxNameLen)
	if len(k.SecretHash) != 32 {
		m.add("secret_hash", "it is the SHA-256 of the secret", "must have 32 bytes, has %d", len(k.SecretHash))
	}
	switch k.Role {
	case RoleTenant:
		if !ValidTenantID(k.TenantID) {
			m.add("tenant_id", "a tenant key belongs to a tenant", "%s is not a tenant id", quoted(k.TenantID))
		}
	case RoleMeter:
		if k.TenantID != "" && !ValidTenantID(k.TenantID) {
			m.add("tenant_id", "leave it empty for a meter of the whole platform", "%s is not a tenant id", quoted(k.TenantID))
		}
	case RoleOperator:
		if k.TenantID != "" {
			m.add("tenant_id", "leave it empty", "an operator key reads any tenant and belongs to none")
		}
	default:
		m.add("role", oneOf(RoleTenant, RoleOperator, RoleMeter), "%s is not a role", quoted(string(k.Role)))
	}
	if len(k.Limits) > 0 && k.Role != RoleTenant {
		m.add("limits", "remove them", "only tenant keys spend, so only they have limits")
	}
	checkLimits(&m, "limits", k.Limits, checkKeyLimit)
	return m.err("key")
}

// Change says who makes a change and why. Both stay in the audit trail.
type Change struct {
	Author string // at most 128 bytes
	Reason string // at most 500 bytes
}

// Validate checks that both are given and printable. The error is an
// *InvalidError.
func (c Change) Validate() error {
	var m mistakes
	checkText(&m, "author", c.Author, maxAuthorLen)
	checkText(&m, "reason", c.Reason, maxReasonLen)
	return m.err("change")
}

// ValidTenantID reports whether id is ^[a-z0-9][a-z0-9-]{0,62}$.
func ValidTenantID(id string) bool {
	return len(id) >= 1 && len(id) <= 63 && id[0] != '-' && only(id, isLowerDigit, "-")
}

// CheckTimeZone returns what is wrong with an IANA time zone name, or "".
func CheckTimeZone(name string) string {
	// LoadLocation takes "" for UTC and "Local" for the machine's own zone.
	if name == "" {
		return "is missing"
	}
	if name == "Local" || len(name) > 64 {
		return quoted(name) + " is not a time zone"
	}
	if _, err := time.LoadLocation(name); err != nil {
		return quoted(name) + " is not a known time zone"
	}
	return ""
}

// CheckCurrency returns what is wrong with an ISO 4217 alphabetic code, or "".
func CheckCurrency(code string) string {
	if code == "" {
		return "is missing"
	}
	// The library also takes lower case and numeric codes; XXX and XTS mean
	// "no currency" and "testing".
	if len(code) != 3 || strings.ToUpper(code) != code || code == "XXX" || code == "XTS" {
		return quoted(code) + " is not a currency code"
	}
	curr, err := money.ParseCurr(code)
	if err != nil || curr.Code() != code {
		return quoted(code) + " is not a known currency"
	}
	return ""
}

func checkQuota(m *mistakes, prefix string, q *Quota) {
	if q.Version < 0 {
		m.add(prefix+"version", "", "is negative")
	}
	checkLimits(m, prefix+"limits", q.Limits, checkTenantLimit)
	if q.DefaultMaxOutputTokens < 0 || q.DefaultMaxOutputTokens > MaxTokensCap {
		m.add(prefix+"default_max_output_tokens", "0 takes the model's or the platform's",
			"must be 0 to %d, is %d", MaxTokensCap, q.DefaultMaxOutputTokens)
	}
	if q.HoldTTL != 0 {
		checkDuration(m, prefix+"hold_ttl", q.HoldTTL, time.Second, MaxHoldTTL, "leave it out to take the platform's")
	}
}

func checkModel(m *mistakes, prefix string, mo *Model) {
	if !ValidModelName(mo.Name) {
		m.add(prefix+"name", "use 1 to 128 printable ASCII characters without '|'", "%s is not a model name", quoted(mo.Name))
	}
	if mo.WeightMilli < 1 || mo.WeightMilli > MaxWeight {
		m.add(prefix+"weight_milli", "1000 is a weight of 1", "must be 1 to %d, is %d", MaxWeight, mo.WeightMilli)
	}
	for _, f := range []struct {
		name  string
		value int64
	}{{"default_max_output_tokens", mo.DefaultMaxOutputTokens}, {"image_tokens", mo.ImageTokens}} {
		if f.value < 0 || f.value > MaxTokensCap {
			m.add(prefix+f.name, "", "must be 0 to %d, is %d", MaxTokensCap, f.value)
		}
	}
}

// ValidModelName reports whether name is 1 to 128 printable ASCII characters
// without '|' and without spaces at its ends.
func ValidModelName(name string) bool {
	if len(name) < 1 || len(name) > maxModelName || strings.TrimSpace(name) != name {
		return false
	}
	for i := range len(name) {
		if name[i] < ' ' || name[i] > '~' || name[i] == '|' {
			return false
		}
	}
	return true
}

// ValidEndpoint reports whether name is 1 to 64 of [a-z0-9._/-].
func ValidEndpoint(name string) bool {
	return len(name) >= 1 && len(name) <= maxEndpoint && only(name, isLowerDigit, "._/-")
}

func checkText(m *mistakes, path, text string, limit int) {
	switch {
	case strings.TrimSpace(text) == "":
		m.add(path, "", "is missing")
	case len(text) > limit:
		m.add(path, "", "has %d bytes, at most %d are allowed", len(text), limit)
	case !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }):
		m.add(path, "", "must be printable text on one line")
	}
}

func checkDuration(m *mistakes, path string, d Duration, low, high time.Duration, hint string) {
	if time.Duration(d) < low || time.Duration(d) > high {
		m.add(path, hint, "must be %s to %s, is %s", Duration(low), Duration(high), d)
	}
}

func isLowerDigit(c byte) bool { return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' }

func only(s string, class func(byte) bool, also string) bool {
	for i := range len(s) {
		if !class(s[i]) && strings.IndexByte(also, s[i]) < 0 {
			return false
		}
	}
	return true
}

// quoted quotes what a person typed, shortened: a message must not carry a
// megabyte of somebody's input.
func quoted(s string) string {
	if len(s) > 80 {
		s = strings.ToValidUTF8(s[:80], "") + "…"
	}
	return fmt.Sprintf("%q", s)
}

func oneOf[T ~string](values ...T) string {
	texts := make([]string, len(values))
	for i, v := range values {
		texts[i] = string(v)
	}
	slices.Sort(texts)
	return "use one of " + strings.Join(texts, ", ")
}
