// Package events holds the nouns of the log: the CloudEvents envelope, the
// event types, their payloads, and the rules that say when one is well formed.
//
// The log is the only place where admission and the ledger meet. An event
// carries the change it makes (its delta) and the reservation's sequence
// number, so that a fold over events gives the same result in any order.
// Payload shapes are kept as JSON Schema files beside the code; a test holds
// the two together.
//
// The package does no input or output. Kafka is in events/kafka, the Redis
// outbox in admission/redis.
package events

import "time"

// Type names an event and the version of its payload.
type Type string

// The event types of the log. Reservation events are written by the admission
// scripts through the outbox; settlement events by the reconciler; meter
// events by model servers and GPU agents.
const (
	TypeReserved  Type = "tollgate.reservation.created.v1"
	TypeUsage     Type = "tollgate.reservation.usage.v1"
	TypeSettled   Type = "tollgate.reservation.settled.v1"
	TypeCancelled Type = "tollgate.reservation.cancelled.v1"
	TypeExpired   Type = "tollgate.reservation.expired.v1"

	TypeFrozen   Type = "tollgate.settlement.frozen.v1"
	TypeUnfrozen Type = "tollgate.settlement.unfrozen.v1"

	TypeModelMeter Type = "tollgate.meter.model.v1"
	TypeGPUMeter   Type = "tollgate.meter.gpu.v1"
)

// Topics of the log. Names are fixed; partition count and retention are
// configuration.
const (
	TopicEvents     = "tollgate.events.v1"
	TopicMeters     = "tollgate.meters.v1"
	TopicDeadLetter = "tollgate.dead-letter.v1"
)

// Event is a CloudEvents 1.0 envelope with its JSON payload.
//
// Source and ID together identify an event. For reservation events Source is
// "tollgate/admission/<epoch>/<shard>", where the epoch changes each time the
// admission state is rebuilt, and ID is "<epoch>-<shard>-<ms>-<seq>.<n>": the
// outbox entry's stream id and the record's place in that entry. Everything
// that says when the event was made is inside the ID, so a repeat has the same
// ID and belongs to the same day whatever its Time says.
type Event struct {
	ID      string
	Source  string
	Type    Type
	Subject string    // the tenant's id, and the Kafka key
	Time    time.Time // UTC, millisecond precision
	Data    []byte    // JSON
}

// Usage is what a reservation has consumed. All figures are cumulative counts
// or, in a delta, the change of a count. Negative values occur in deltas only,
// where a final figure is below an estimate reported earlier.
type Usage struct {
	InputTokens       int64 `json:"input_tokens"`
	OutputTokens      int64 `json:"output_tokens"`
	CachedInputTokens int64 `json:"cached_input_tokens,omitempty"` // part of InputTokens
	ReasoningTokens   int64 `json:"reasoning_tokens,omitempty"`    // part of OutputTokens
	ToolCalls         int64 `json:"tool_calls,omitempty"`
	Images            int64 `json:"images,omitempty"`
	AudioMillis       int64 `json:"audio_ms,omitempty"`
	GPUMillis         int64 `json:"gpu_ms,omitempty"`
}

// State is where a reservation stands. Higher ranks never go back to lower
// ones except expired, which a late usage report or settlement may leave.
type State string

// The states of a reservation.
const (
	StateHeld      State = "held"
	StateExpired   State = "expired" // the hold's TTL passed; pending reconciliation
	StateSettled   State = "settled"
	StateCancelled State = "cancelled"
)

// Reservation is the payload of the five reservation event types.
type Reservation struct {
	TenantID      string `json:"tenant_id"`
	ReservationID string `json:"reservation_id"`
	RequestID     string `json:"request_id"`
	KeyID         string `json:"key_id"`
	Endpoint      string `json:"endpoint"`
	Model         string `json:"model"`

	// Seq numbers the events of one reservation from 1 without gaps. The event
	// with the highest Seq says the reservation's State and hold.
	Seq   int64 `json:"seq"`
	State State `json:"state"`

	// Delta is what this event adds to the reservation's usage; Total is the
	// usage after it. The milli-unit figures are (input + output tokens + image
	// equivalents) × WeightMilli.
	Delta           Usage `json:"delta"`
	DeltaMilliUnits int64 `json:"delta_milli_units"`
	Total           Usage `json:"total"`
	TotalMilliUnits int64 `json:"total_milli_units"`
	WeightMilli     int64 `json:"weight_milli"`

	// HeldMilliUnits is what stays held after this event; 0 in a final state.
	HeldMilliUnits int64     `json:"held_milli_units"`
	ExpiresAt      time.Time `json:"expires_at"` // deadline of the hold

	Estimated bool   `json:"estimated,omitempty"` // usage is the gateway's own count
	Tombstone bool   `json:"tombstone,omitempty"` // cancelled before it was reserved
	Author    string `json:"author"`              // "client", "gateway", "reconciler", or an operator's key id
	Reason    string `json:"reason,omitempty"`
}

// Meter is the payload of both meter event types: a cumulative count of one
// reservation (ReservationID set) or an increment for a tenant and interval
// (ReservationID empty, From and To set).
type Meter struct {
	TenantID      string    `json:"tenant_id"`
	ReservationID string    `json:"reservation_id,omitempty"`
	RequestID     string    `json:"request_id,omitempty"`
	Pool          string    `json:"pool,omitempty"`
	Model         string    `json:"model,omitempty"`
	From          time.Time `json:"from"`
	To            time.Time `json:"to"`
	InputTokens   int64     `json:"input_tokens,omitempty"`
	OutputTokens  int64     `json:"output_tokens,omitempty"`
	GPUMillis     int64     `json:"gpu_ms,omitempty"`
	Final         bool      `json:"final,omitempty"` // the execution has ended
}

// Settlement is the payload of the frozen and unfrozen event types.
type Settlement struct {
	TenantID     string    `json:"tenant_id"`
	Author       string    `json:"author"`
	Reason       string    `json:"reason"`
	WindowStart  time.Time `json:"window_start"`
	WindowEnd    time.Time `json:"window_end"`
	GatewayCount int64     `json:"gateway_tokens"`
	ModelCount   int64     `json:"model_tokens"`
	GPUGateway   int64     `json:"gateway_gpu_ms"`
	GPUMeter     int64     `json:"meter_gpu_ms"`
}
