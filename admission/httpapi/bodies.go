package httpapi

import (
	"time"

	"tollgate/events"
)

// The bodies of requests. Their tags are at once the documentation (OpenAPI)
// and the rules that the scanner enforces; slot says where each field goes.

// ReserveBody asks for a reservation.
type ReserveBody struct {
	RequestID       string `json:"request_id" minLength:"1" maxLength:"128" pattern:"^[A-Za-z0-9._:@/+=-]+$" doc:"Chosen by the caller, unique in its tenant. The same id with the same body is the same reservation." example:"req-7f3a"`
	Endpoint        string `json:"endpoint" minLength:"1" maxLength:"64" pattern:"^[a-z0-9._/-]+$" doc:"What is called, as limits name it." example:"chat"`
	Model           string `json:"model" minLength:"1" maxLength:"128" pattern:"^[ -{}~]+$" doc:"The model; its inference weight turns tokens into units." example:"small"`
	InputTokens     int64  `json:"input_tokens" minimum:"0" maximum:"2147483647" doc:"Tokens of the prompt." example:"1200"`
	MaxOutputTokens int64  `json:"max_output_tokens,omitempty" minimum:"0" maximum:"2147483647" doc:"Most tokens the answer may have. Left out, a cap is chosen by rule and returned."`
	Images          int64  `json:"images,omitempty" minimum:"0" maximum:"1000000" doc:"Images in the request; each counts as its equivalent in tokens × 30."`
	GPUMillis       int64  `json:"gpu_ms,omitempty" minimum:"0" maximum:"2147483647" doc:"GPU time to hold, in milliseconds."`
	TTLMillis       int64  `json:"ttl_ms,omitempty" minimum:"1" maximum:"86400000" doc:"How long the hold lives without a usage report, in milliseconds. Left out, the tenant's or platform's default."`
}

var reserveRules = rulesOf((*ReserveBody)(nil))

// maxOutputField is the bit of max_output_tokens, whose absence has a meaning.
const maxOutputField = 4

func (*ReserveBody) rules() *rules { return reserveRules }

func (b *ReserveBody) slot(name []byte) (int, any) {
	switch string(name) {
	case "request_id":
		return 0, &b.RequestID
	case "endpoint":
		return 1, &b.Endpoint
	case "model":
		return 2, &b.Model
	case "input_tokens":
		return 3, &b.InputTokens
	case "max_output_tokens":
		return maxOutputField, &b.MaxOutputTokens
	case "images":
		return 5, &b.Images
	case "gpu_ms":
		return 6, &b.GPUMillis
	case "ttl_ms":
		return 7, &b.TTLMillis
	}
	return -1, nil
}

// UsageBody reports progress. All figures are cumulative: so far, not since
// the last report.
type UsageBody struct {
	InputTokens       int64 `json:"input_tokens" minimum:"0" maximum:"2147483647" doc:"Input tokens so far."`
	OutputTokens      int64 `json:"output_tokens" minimum:"0" maximum:"2147483647" doc:"Output tokens so far."`
	CachedInputTokens int64 `json:"cached_input_tokens,omitempty" minimum:"0" maximum:"2147483647" doc:"Input tokens read from a cache; part of input_tokens."`
	ReasoningTokens   int64 `json:"reasoning_tokens,omitempty" minimum:"0" maximum:"2147483647" doc:"Reasoning tokens; part of output_tokens."`
	ToolCalls         int64 `json:"tool_calls,omitempty" minimum:"0" maximum:"2147483647" doc:"Tool calls so far."`
	Images            int64 `json:"images,omitempty" minimum:"0" maximum:"1000000" doc:"Images so far."`
	AudioMillis       int64 `json:"audio_ms,omitempty" minimum:"0" maximum:"2147483647" doc:"Audio so far, in milliseconds."`
	GPUMillis         int64 `json:"gpu_ms,omitempty" minimum:"0" maximum:"2147483647" doc:"GPU time so far, in milliseconds."`
	Estimated         bool  `json:"estimated,omitempty" doc:"The figures are the caller's own count, not the provider's."`
	TTLMillis         int64 `json:"ttl_ms,omitempty" minimum:"1" maximum:"86400000" doc:"How far to extend the hold from now, in milliseconds."`
}

var usageRules = rulesOf((*UsageBody)(nil))

func (*UsageBody) rules() *rules { return usageRules }

func (b *UsageBody) slot(name []byte) (int, any) {
	switch string(name) {
	case "input_tokens":
		return 0, &b.InputTokens
	case "output_tokens":
		return 1, &b.OutputTokens
	case "cached_input_tokens":
		return 2, &b.CachedInputTokens
	case "reasoning_tokens":
		return 3, &b.ReasoningTokens
	case "tool_calls":
		return 4, &b.ToolCalls
	case "images":
		return 5, &b.Images
	case "audio_ms":
		return 6, &b.AudioMillis
	case "gpu_ms":
		return 7, &b.GPUMillis
	case "estimated":
		return 8, &b.Estimated
	case "ttl_ms":
		return 9, &b.TTLMillis
	}
	return -1, nil
}

func (b *UsageBody) usage() events.Usage {
	return events.Usage{
		InputTokens: b.InputTokens, OutputTokens: b.OutputTokens,
		CachedInputTokens: b.CachedInputTokens, ReasoningTokens: b.ReasoningTokens,
		ToolCalls: b.ToolCalls, Images: b.Images, AudioMillis: b.AudioMillis, GPUMillis: b.GPUMillis,
	}
}

// SettleBody gives the final figures. It is a UsageBody without a ttl_ms: the
// hold ends.
type SettleBody struct {
	InputTokens       int64 `json:"input_tokens" minimum:"0" maximum:"2147483647" doc:"Input tokens consumed."`
	OutputTokens      int64 `json:"output_tokens" minimum:"0" maximum:"2147483647" doc:"Output tokens consumed."`
	CachedInputTokens int64 `json:"cached_input_tokens,omitempty" minimum:"0" maximum:"2147483647" doc:"Input tokens read from a cache; part of input_tokens."`
	ReasoningTokens   int64 `json:"reasoning_tokens,omitempty" minimum:"0" maximum:"2147483647" doc:"Reasoning tokens; part of output_tokens."`
	ToolCalls         int64 `json:"tool_calls,omitempty" minimum:"0" maximum:"2147483647" doc:"Tool calls made."`
	Images            int64 `json:"images,omitempty" minimum:"0" maximum:"1000000" doc:"Images consumed."`
	AudioMillis       int64 `json:"audio_ms,omitempty" minimum:"0" maximum:"2147483647" doc:"Audio consumed, in milliseconds."`
	GPUMillis         int64 `json:"gpu_ms,omitempty" minimum:"0" maximum:"2147483647" doc:"GPU time consumed, in milliseconds."`
	Estimated         bool  `json:"estimated,omitempty" doc:"The figures are the caller's own count, not the provider's."`
}

var settleRules = rulesOf((*SettleBody)(nil))

func (*SettleBody) rules() *rules { return settleRules }

func (b *SettleBody) slot(name []byte) (int, any) {
	switch string(name) {
	case "input_tokens":
		return 0, &b.InputTokens
	case "output_tokens":
		return 1, &b.OutputTokens
	case "cached_input_tokens":
		return 2, &b.CachedInputTokens
	case "reasoning_tokens":
		return 3, &b.ReasoningTokens
	case "tool_calls":
		return 4, &b.ToolCalls
	case "images":
		return 5, &b.Images
	case "audio_ms":
		return 6, &b.AudioMillis
	case "gpu_ms":
		return 7, &b.GPUMillis
	case "estimated":
		return 8, &b.Estimated
	}
	return -1, nil
}

func (b *SettleBody) usage() events.Usage {
	return events.Usage{
		InputTokens: b.InputTokens, OutputTokens: b.OutputTokens,
		CachedInputTokens: b.CachedInputTokens, ReasoningTokens: b.ReasoningTokens,
		ToolCalls: b.ToolCalls, Images: b.Images, AudioMillis: b.AudioMillis, GPUMillis: b.GPUMillis,
	}
}

// CancelBody ends a reservation with what was consumed so far. Without any
// figure, what was reported before is charged: leaving figures out never makes
// consumed tokens free.
type CancelBody struct {
	InputTokens       int64  `json:"input_tokens,omitempty" minimum:"0" maximum:"2147483647" doc:"Input tokens consumed. Left out with all other figures, what was reported before is charged."`
	OutputTokens      int64  `json:"output_tokens,omitempty" minimum:"0" maximum:"2147483647" doc:"Output tokens consumed; needed when any figure is given."`
	CachedInputTokens int64  `json:"cached_input_tokens,omitempty" minimum:"0" maximum:"2147483647" doc:"Input tokens read from a cache; part of input_tokens."`
	ReasoningTokens   int64  `json:"reasoning_tokens,omitempty" minimum:"0" maximum:"2147483647" doc:"Reasoning tokens; part of output_tokens."`
	ToolCalls         int64  `json:"tool_calls,omitempty" minimum:"0" maximum:"2147483647" doc:"Tool calls made."`
	Images            int64  `json:"images,omitempty" minimum:"0" maximum:"1000000" doc:"Images consumed."`
	AudioMillis       int64  `json:"audio_ms,omitempty" minimum:"0" maximum:"2147483647" doc:"Audio consumed, in milliseconds."`
	GPUMillis         int64  `json:"gpu_ms,omitempty" minimum:"0" maximum:"2147483647" doc:"GPU time consumed, in milliseconds."`
	Estimated         bool   `json:"estimated,omitempty" doc:"The figures are the caller's own count, not the provider's."`
	Reason            string `json:"reason,omitempty" minLength:"0" maxLength:"128" pattern:"^[^\\x00-\\x1f\\x7f]*$" doc:"Why, for people; kept in the log."`
}

// figureFields are the bits of CancelBody's figures.
const figureFields = 1<<8 - 1

var cancelRules = rulesOf((*CancelBody)(nil))

func (*CancelBody) rules() *rules { return cancelRules }

func (b *CancelBody) slot(name []byte) (int, any) {
	switch string(name) {
	case "input_tokens":
		return 0, &b.InputTokens
	case "output_tokens":
		return 1, &b.OutputTokens
	case "cached_input_tokens":
		return 2, &b.CachedInputTokens
	case "reasoning_tokens":
		return 3, &b.ReasoningTokens
	case "tool_calls":
		return 4, &b.ToolCalls
	case "images":
		return 5, &b.Images
	case "audio_ms":
		return 6, &b.AudioMillis
	case "gpu_ms":
		return 7, &b.GPUMillis
	case "estimated":
		return 8, &b.Estimated
	case "reason":
		return 9, &b.Reason
	}
	return -1, nil
}

func (b *CancelBody) usage() events.Usage {
	return events.Usage{
		InputTokens: b.InputTokens, OutputTokens: b.OutputTokens,
		CachedInputTokens: b.CachedInputTokens, ReasoningTokens: b.ReasoningTokens,
		ToolCalls: b.ToolCalls, Images: b.Images, AudioMillis: b.AudioMillis, GPUMillis: b.GPUMillis,
	}
}

// MetersBody is a batch of meter readings.
type MetersBody struct {
	Readings []Reading `json:"readings" minItems:"1" maxItems:"256" doc:"Readings, each with an id of its own."`
}

var metersRules = rulesOf((*MetersBody)(nil))

func (*MetersBody) rules() *rules { return metersRules }

func (b *MetersBody) slot(name []byte) (int, any) {
	if string(name) == "readings" {
		return 0, (*readings)(&b.Readings)
	}
	return -1, nil
}

type readings []Reading

func (r *readings) grow() object {
	*r = append(*r, Reading{})
	return &(*r)[len(*r)-1]
}

// Reading is what a model server or GPU agent has counted: a reservation's
// cumulative figures, or an increment for a tenant and an interval.
type Reading struct {
	ID            string    `json:"id" minLength:"1" maxLength:"100" pattern:"^[A-Za-z0-9._:@/+=-]+$" doc:"Unique for this key. A reading that is sent again under its id counts once."`
	Kind          string    `json:"kind" minLength:"3" maxLength:"5" pattern:"^[a-z]+$" enum:"model,gpu" doc:"Which meter: model servers count tokens, GPU agents count GPU time."`
	TenantID      string    `json:"tenant_id" minLength:"1" maxLength:"63" pattern:"^[a-z0-9-]+$" doc:"Whose use it is."`
	ReservationID string    `json:"reservation_id,omitempty" minLength:"1" maxLength:"128" pattern:"^[A-Za-z0-9_]+$" doc:"Set: the figures are this reservation's, so far, and at most 2147483647 each. Left out: they are the interval's alone."`
	RequestID     string    `json:"request_id,omitempty" minLength:"1" maxLength:"128" pattern:"^[A-Za-z0-9._:@/+=-]+$" doc:"The reservation's request id."`
	Pool          string    `json:"pool,omitempty" minLength:"1" maxLength:"64" pattern:"^[a-z0-9._/-]+$" doc:"The pool of servers or GPUs."`
	Model         string    `json:"model,omitempty" minLength:"1" maxLength:"128" pattern:"^[ -{}~]+$" doc:"The model."`
	From          time.Time `json:"from" doc:"Start of the interval or of the execution."`
	To            time.Time `json:"to" doc:"End of the interval, or the moment of the reading."`
	InputTokens   int64     `json:"input_tokens,omitempty" minimum:"0" maximum:"1099511627776" doc:"Input tokens (kind model)."`
	OutputTokens  int64     `json:"output_tokens,omitempty" minimum:"0" maximum:"1099511627776" doc:"Output tokens (kind model)."`
	GPUMillis     int64     `json:"gpu_ms,omitempty" minimum:"0" maximum:"1099511627776" doc:"GPU time in milliseconds (kind gpu)."`
	Final         bool      `json:"final,omitempty" doc:"The execution has ended; only with reservation_id."`
}

var readingRules = rulesOf((*Reading)(nil))

func (*Reading) rules() *rules { return readingRules }

func (r *Reading) slot(name []byte) (int, any) {
	switch string(name) {
	case "id":
		return 0, &r.ID
	case "kind":
		return 1, &r.Kind
	case "tenant_id":
		return 2, &r.TenantID
	case "reservation_id":
		return 3, &r.ReservationID
	case "request_id":
		return 4, &r.RequestID
	case "pool":
		return 5, &r.Pool
	case "model":
		return 6, &r.Model
	case "from":
		return 7, &r.From
	case "to":
		return 8, &r.To
	case "input_tokens":
		return 9, &r.InputTokens
	case "output_tokens":
		return 10, &r.OutputTokens
	case "gpu_ms":
		return 11, &r.GPUMillis
	case "final":
		return 12, &r.Final
	}
	return -1, nil
}
