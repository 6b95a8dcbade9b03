// Package tenancy holds who may spend and how much: tenants, API keys, models
// and quota documents, and the snapshot of them that a gateway decides with.
//
// The truth is in PostgreSQL (tenancy/postgres). A publisher copies it to
// Redis and gateways keep it in memory (tenancy/redis), so that no request
// path reads PostgreSQL. Types here are pure values; a document is validated
// as a whole before it is stored.
package tenancy

import (
	"errors"
	"time"
)

// Errors that callers branch on.
var (
	ErrNotFound     = errors.New("not found")
	ErrBadKey       = errors.New("unknown or malformed API key")
	ErrKeyRevoked   = errors.New("API key is revoked or expired")
	ErrSuspended    = errors.New("tenant is suspended")
	ErrNotReady     = errors.New("tenant directory is not loaded yet")
	ErrAlreadyThere = errors.New("already exists")
)

// Role says what a key may do.
type Role string

// Roles of API keys. A tenant key spends and reads its own tenant's quota; an
// operator key reads any tenant and administers; a meter key reports meters.
const (
	RoleTenant   Role = "tenant"
	RoleOperator Role = "operator"
	RoleMeter    Role = "meter"
)

// Tenant is the root, billable customer.
type Tenant struct {
	ID        string    `json:"id"` // ^[a-z0-9][a-z0-9-]{0,62}$
	Name      string    `json:"name"`
	Suspended bool      `json:"suspended,omitempty"`
	Critical  bool      `json:"critical,omitempty"`
	TimeZone  string    `json:"time_zone"` // IANA name; calendar budgets and bills follow it
	Currency  string    `json:"currency"`  // ISO 4217
	Quota     Quota     `json:"quota"`
	CreatedAt time.Time `json:"created_at"`
	UpdatedAt time.Time `json:"updated_at"`
}

// Key is an API key as it is stored: never with its secret.
type Key struct {
	ID         string    `json:"id"` // the public prefix shown in listings, "tgk_" + 16 characters
	TenantID   string    `json:"tenant_id"`
	Name       string    `json:"name"`
	Role       Role      `json:"role"`
	SecretHash []byte    `json:"secret_hash"` // SHA-256 of the 256-bit random secret
	Limits     []Limit   `json:"limits,omitempty"`
	CreatedAt  time.Time `json:"created_at"`
	ExpiresAt  time.Time `json:"expires_at"` // zero: never
	RevokedAt  time.Time `json:"revoked_at"` // zero: not revoked
}

// Quota is a tenant's quota document.
type Quota struct {
	Version int64   `json:"version"`
	Limits  []Limit `json:"limits"`
	// DefaultMaxOutputTokens caps the hold of a request that names no
	// max_output_tokens; 0 takes the model's or the platform's.
	DefaultMaxOutputTokens int64 `json:"default_max_output_tokens,omitempty"`
	// HoldTTL is how long a hold lives without a usage report; 0 takes the
	// platform's.
	HoldTTL Duration `json:"hold_ttl,omitempty"`
}

// Kind is a kind of constraint that the admission script knows.
type Kind string

// The four kinds. A new quota dimension is a Limit with one of these kinds and
// another metric, never a new script.
const (
	KindRing    Kind = "ring"    // sliding window: Window, Slots
	KindCounter Kind = "counter" // calendar period: Period
	KindRate    Kind = "rate"    // GCRA: Limit per Window, Burst
	KindLease   Kind = "lease"   // in use now
)

// Metric is what a limit counts.
type Metric string

// Metrics. MetricTokens counts weighted tokens (milli-units ÷ 1000).
const (
	MetricTokens       Metric = "tokens"
	MetricRequests     Metric = "requests"
	MetricInputTokens  Metric = "input_tokens"
	MetricOutputTokens Metric = "output_tokens"
	MetricImages       Metric = "images"
	MetricToolCalls    Metric = "tool_calls"
	MetricAudioMillis  Metric = "audio_ms"
	MetricGPUMillis    Metric = "gpu_ms"
)

// Period is the calendar period of a counter, in the tenant's time zone.
type Period string

// Periods of a counter; PeriodNone never starts anew (a prepaid budget).
const (
	PeriodNone  Period = "none"
	PeriodDay   Period = "day"
	PeriodMonth Period = "month"
)

// Scope says whose use a limit bounds. Scopes are checked narrow to wide.
type Scope string

// Scopes of limits. ScopeEndpoint in a tenant's document is that tenant's use
// of the endpoint; in the platform's document it is everybody's.
const (
	ScopeKey      Scope = "key"
	ScopeEndpoint Scope = "endpoint"
	ScopeModel    Scope = "model"
	ScopeTenant   Scope = "tenant"
	ScopeGlobal   Scope = "global"
)

// Limit is one line of a quota document.
type Limit struct {
	Name  string `json:"name"`  // unique in its document, e.g. "tokens-60s"
	Layer string `json:"layer"` // "L1".."L4", as shown to users
	Kind  Kind   `json:"kind"`
	Scope Scope  `json:"scope"`
	// Match is the endpoint or model that a ScopeEndpoint or ScopeModel limit
	// is for; "*" makes one limit for each.
	Match  string `json:"match,omitempty"`
	Metric Metric `json:"metric,omitempty"` // not for leases
	// Limit is in the metric's unit (tokens, requests, ms, leases); at most
	// 10^12. For a lease BurstPercent, when set, admits Limit × BurstPercent ÷
	// 100 (120 is a cap of 1.2 ×).
	Limit        int64    `json:"limit"`
	BurstPercent int64    `json:"burst_percent,omitempty"`
	Window       Duration `json:"window,omitempty"` // ring and rate
	Slots        int      `json:"slots,omitempty"`  // ring; Window ÷ Slots is the precision
	Burst        int64    `json:"burst,omitempty"`  // rate: requests that may come at once; ≥ 1
	Period       Period   `json:"period,omitempty"` // counter
	// Budget marks a limit on money or on the month: when it is really spent
	// the refusal is 402 and not retryable. Else it is 429.
	Budget bool `json:"budget,omitempty"`
}

// Model says how a model counts.
type Model struct {
	Name string `json:"name"`
	// WeightMilli is the inference weight × 1000: milli-units of one token.
	WeightMilli            int64 `json:"weight_milli"`
	DefaultMaxOutputTokens int64 `json:"default_max_output_tokens,omitempty"`
	// ImageTokens is the equivalent in tokens of one image, before the × 30 of
	// the quota rule.
	ImageTokens int64 `json:"image_tokens,omitempty"`
}

// Platform is the document of everything that is not a tenant's: limits over
// all tenants (kind lease, scope endpoint or global) and models.
type Platform struct {
	Version                int64    `json:"version"`
	Limits                 []Limit  `json:"limits"`
	Models                 []Model  `json:"models"`
	DefaultMaxOutputTokens int64    `json:"default_max_output_tokens"` // e.g. 4096
	HoldTTL                Duration `json:"hold_ttl"`                  // e.g. 120s
	// MaxHold bounds a reservation's whole life from its creation.
	MaxHold Duration `json:"max_hold"` // e.g. 1h
}

// Principal is a verified credential.
type Principal struct {
	Key    *Key
	Tenant *Tenant // nil for platform-wide operator and meter keys
}

// Directory is what a gateway asks on the request path. It answers from
// memory; a change in PostgreSQL shows within a second. It is safe for
// concurrent use and the values it returns must not be changed.
type Directory interface {
	// Authenticate verifies a presented API key ("tgk_<16>.<secret>") in
	// constant time. It returns ErrBadKey, ErrKeyRevoked, ErrSuspended or
	// ErrNotReady. With ErrSuspended alone comes the principal, which is verified
	// and may end what its tenant had before, but begin nothing.
	Authenticate(presented string) (Principal, error)
	// Tenant returns ErrNotFound for an unknown id.
	Tenant(id string) (*Tenant, error)
	// Tenants returns all tenant ids, sorted.
	Tenants() []string
	Platform() *Platform
	// Version grows with every change that the directory has taken in.
	Version() int64
}

// Duration is a time.Duration that reads and writes as "60s" in JSON and YAML.
type Duration time.Duration
