package events

import "time"

// Limits of payload strings, in bytes. The JSON Schemas give the same numbers
// in characters.
const (
	maxNameBytes   = 128
	maxReasonBytes = 512
)

// AppendReservation appends r as JSON to dst. Times are written in UTC with
// milliseconds.
func AppendReservation(dst []byte, r *Reservation) []byte {
	dst = append(dst, `{"tenant_id":`...)
	dst = appendString(dst, r.TenantID)
	dst = append(dst, `,"reservation_id":`...)
	dst = appendString(dst, r.ReservationID)
	dst = append(dst, `,"request_id":`...)
	dst = appendString(dst, r.RequestID)
	dst = append(dst, `,"key_id":`...)
	dst = appendString(dst, r.KeyID)
	dst = append(dst, `,"endpoint":`...)
	dst = appendString(dst, r.Endpoint)
	dst = append(dst, `,"model":`...)
	dst = appendString(dst, r.Model)
	dst = appendInt(dst, `,"seq":`, r.Seq)
	dst = append(dst, `,"state":`...)
	dst = appendString(dst, string(r.State))
	dst = append(dst, `,"delta":`...)
	dst = appendUsage(dst, &r.Delta)
	dst = appendInt(dst, `,"delta_milli_units":`, r.DeltaMilliUnits)
	dst = append(dst, `,"total":`...)
	dst = appendUsage(dst, &r.Total)
	dst = appendInt(dst, `,"total_milli_units":`, r.TotalMilliUnits)
	dst = appendInt(dst, `,"weight_milli":`, r.WeightMilli)
	dst = appendInt(dst, `,"held_milli_units":`, r.HeldMilliUnits)
	dst = appendTimeField(dst, `,"expires_at":"`, r.ExpiresAt)
	if r.Estimated {
		dst = append(dst, `,"estimated":true`...)
	}
	if r.Tombstone {
		dst = append(dst, `,"tombstone":true`...)
	}
	dst = append(dst, `,"author":`...)
	dst = appendString(dst, r.Author)
	if r.Reason != "" {
		dst = append(dst, `,"reason":`...)
		dst = appendString(dst, r.Reason)
	}
	return append(dst, '}')
}

func appendUsage(dst []byte, u *Usage) []byte {
	dst = appendInt(dst, `{"input_tokens":`, u.InputTokens)
	dst = appendInt(dst, `,"output_tokens":`, u.OutputTokens)
	dst = appendOptional(dst, `,"cached_input_tokens":`, u.CachedInputTokens)
	dst = appendOptional(dst, `,"reasoning_tokens":`, u.ReasoningTokens)
	dst = appendOptional(dst, `,"tool_calls":`, u.ToolCalls)
	dst = appendOptional(dst, `,"images":`, u.Images)
	dst = appendOptional(dst, `,"audio_ms":`, u.AudioMillis)
	dst = appendOptional(dst, `,"gpu_ms":`, u.GPUMillis)
	return append(dst, '}')
}

func appendOptional(dst []byte, name string, v int64) []byte {
	if v == 0 {
		return dst
	}
	return appendInt(dst, name, v)
}

func appendTimeField(dst []byte, name string, t time.Time) []byte {
	dst = append(dst, name...)
	dst = appendTime(dst, t)
	return append(dst, '"')
}

// ParseReservation reads a reservation payload strictly: one JSON object of at
// most MaxDataBytes with every required field, no unknown field, none twice,
// no null, whole numbers within ±2^53 (negative ones in deltas only). Anything
// else gives an *InvalidError. Unknown fields are refused because they would
// escape the journal's hash; a new field needs a new version of the type.
func ParseReservation(data []byte) (Reservation, error) {
	var r Reservation
	var seen uint32
	s := newScanner(data)
	s.open()
	for name, ok := s.next(); ok; name, ok = s.next() {
		s.field = name
		switch name {
		case "tenant_id":
			s.mark(&seen, 0)
			r.TenantID = s.str(maxNameBytes)
		case "reservation_id":
			s.mark(&seen, 1)
			r.ReservationID = s.str(maxNameBytes)
		case "request_id":
			s.mark(&seen, 2)
			r.RequestID = s.str(maxNameBytes)
		case "key_id":
			s.mark(&seen, 3)
			r.KeyID = s.str(maxNameBytes)
		case "endpoint":
			s.mark(&seen, 4)
			r.Endpoint = s.str(maxNameBytes)
		case "model":
			s.mark(&seen, 5)
			r.Model = s.str(maxNameBytes)
		case "seq":
			s.mark(&seen, 6)
			r.Seq = s.integer(1)
		case "state":
			s.mark(&seen, 7)
			r.State = s.state()
		case "delta":
			s.mark(&seen, 8)
			s.usage(&r.Delta, -maxCount)
		case "delta_milli_units":
			s.mark(&seen, 9)
			r.DeltaMilliUnits = s.integer(-maxCount)
		case "total":
			s.mark(&seen, 10)
			s.usage(&r.Total, 0)
		case "total_milli_units":
			s.mark(&seen, 11)
			r.TotalMilliUnits = s.integer(0)
		case "weight_milli":
			s.mark(&seen, 12)
			r.WeightMilli = s.integer(0)
		case "held_milli_units":
			s.mark(&seen, 13)
			r.HeldMilliUnits = s.integer(0)
		case "expires_at":
			s.mark(&seen, 14)
			r.ExpiresAt = s.time()
		case "author":
			s.mark(&seen, 15)
			r.Author = s.str(maxNameBytes)
		case "estimated":
			s.mark(&seen, 16)
			r.Estimated = s.boolean()
		case "tombstone":
			s.mark(&seen, 17)
			r.Tombstone = s.boolean()
		case "reason":
			s.mark(&seen, 18)
			r.Reason = s.str(maxReasonBytes)
		default:
			s.fail(ReasonUnknownField, "is not known")
		}
	}
	s.field = ""
	s.end()
	s.require(seen, reservationRequired)
	s.notEmpty("tenant_id", r.TenantID)
	s.notEmpty("reservation_id", r.ReservationID)
	s.notEmpty("request_id", r.RequestID)
	s.notEmpty("author", r.Author)
	if s.err != nil {
		return Reservation{}, s.err
	}
	return r, nil
}

var reservationRequired = []string{
	"tenant_id", "reservation_id", "request_id", "key_id", "endpoint", "model", "seq", "state",
	"delta", "delta_milli_units", "total", "total_milli_units", "weight_milli", "held_milli_units",
	"expires_at", "author",
}

func (s *scanner) state() State {
	v := s.str(maxNameBytes)
	switch State(v) {
	case StateHeld, StateExpired, StateSettled, StateCancelled:
		return State(v)
	}
	s.fail(ReasonOutOfRange, "is not a state")
	return ""
}

func (s *scanner) usage(u *Usage, low int64) {
	outer := s.field
	var seen uint32
	s.open()
	for name, ok := s.next(); ok; name, ok = s.next() {
		s.field = name
		switch name {
		case "input_tokens":
			s.mark(&seen, 0)
			u.InputTokens = s.integer(low)
		case "output_tokens":
			s.mark(&seen, 1)
			u.OutputTokens = s.integer(low)
		case "cached_input_tokens":
			s.mark(&seen, 2)
			u.CachedInputTokens = s.integer(low)
		case "reasoning_tokens":
			s.mark(&seen, 3)
			u.ReasoningTokens = s.integer(low)
		case "tool_calls":
			s.mark(&seen, 4)
			u.ToolCalls = s.integer(low)
		case "images":
			s.mark(&seen, 5)
			u.Images = s.integer(low)
		case "audio_ms":
			s.mark(&seen, 6)
			u.AudioMillis = s.integer(low)
		case "gpu_ms":
			s.mark(&seen, 7)
			u.GPUMillis = s.integer(low)
		default:
			s.fail(ReasonUnknownField, "is not known")
		}
	}
	s.require(seen, usageRequired)
	s.field = outer
}

var usageRequired = []string{"input_tokens", "output_tokens"}

// require checks that the lowest bits of seen, one for each name, are set.
func (s *scanner) require(seen uint32, names []string) {
	if s.err != nil {
		return
	}
	for i, name := range names {
		if seen&(1<<i) == 0 {
			s.err = invalid(ReasonMissingField, name, "is missing")
			return
		}
	}
}

func (s *scanner) notEmpty(name, v string) {
	if s.err == nil && v == "" {
		s.err = invalid(ReasonMissingField, name, "is empty")
	}
}

// AppendMeter appends m as JSON to dst.
func AppendMeter(dst []byte, m *Meter) []byte {
	dst = append(dst, `{"tenant_id":`...)
	dst = appendString(dst, m.TenantID)
	dst = appendOptionalString(dst, `,"reservation_id":`, m.ReservationID)
	dst = appendOptionalString(dst, `,"request_id":`, m.RequestID)
	dst = appendOptionalString(dst, `,"pool":`, m.Pool)
	dst = appendOptionalString(dst, `,"model":`, m.Model)
	dst = appendTimeField(dst, `,"from":"`, m.From)
	dst = appendTimeField(dst, `,"to":"`, m.To)
	dst = appendOptional(dst, `,"input_tokens":`, m.InputTokens)
	dst = appendOptional(dst, `,"output_tokens":`, m.OutputTokens)
	dst = appendOptional(dst, `,"gpu_ms":`, m.GPUMillis)
	if m.Final {
		dst = append(dst, `,"final":true`...)
	}
	return append(dst, '}')
}

func appendOptionalString(dst []byte, name, v string) []byte {
	if v == "" {
		return dst
	}
	dst = append(dst, name...)
	return appendString(dst, v)
}

// ParseMeter reads a meter payload as strictly as ParseReservation. A meter
// without a reservation is an increment and needs an interval: from before to.
func ParseMeter(data []byte) (Meter, error) {
	var m Meter
	var seen uint32
	s := newScanner(data)
	s.open()
	for name, ok := s.next(); ok; name, ok = s.next() {
		s.field = name
		switch name {
		case "tenant_id":
			s.mark(&seen, 0)
			m.TenantID = s.str(maxNameBytes)
		case "from":
			s.mark(&seen, 1)
			m.From = s.time()
		case "to":
			s.mark(&seen, 2)
			m.To = s.time()
		case "reservation_id":
			s.mark(&seen, 3)
			m.ReservationID = s.str(maxNameBytes)
		case "request_id":
			s.mark(&seen, 4)
			m.RequestID = s.str(maxNameBytes)
		case "pool":
			s.mark(&seen, 5)
			m.Pool = s.str(maxNameBytes)
		case "model":
			s.mark(&seen, 6)
			m.Model = s.str(maxNameBytes)
		case "input_tokens":
			s.mark(&seen, 7)
			m.InputTokens = s.integer(0)
		case "output_tokens":
			s.mark(&seen, 8)
			m.OutputTokens = s.integer(0)
		case "gpu_ms":
			s.mark(&seen, 9)
			m.GPUMillis = s.integer(0)
		case "final":
			s.mark(&seen, 10)
			m.Final = s.boolean()
		default:
			s.fail(ReasonUnknownField, "is not known")
		}
	}
	s.field = ""
	s.end()
	s.require(seen, meterRequired)
	s.notEmpty("tenant_id", m.TenantID)
	if m.ReservationID == "" && s.err == nil && !m.From.Before(m.To) {
		s.err = invalid(ReasonInconsistent, "from", "is not before to, in an interval's meter")
	}
	if s.err != nil {
		return Meter{}, s.err
	}
	return m, nil
}

var meterRequired = []string{"tenant_id", "from", "to"}

// AppendSettlement appends v as JSON to dst.
func AppendSettlement(dst []byte, v *Settlement) []byte {
	dst = append(dst, `{"tenant_id":`...)
	dst = appendString(dst, v.TenantID)
	dst = append(dst, `,"author":`...)
	dst = appendString(dst, v.Author)
	dst = append(dst, `,"reason":`...)
	dst = appendString(dst, v.Reason)
	dst = appendTimeField(dst, `,"window_start":"`, v.WindowStart)
	dst = appendTimeField(dst, `,"window_end":"`, v.WindowEnd)
	dst = appendInt(dst, `,"gateway_tokens":`, v.GatewayCount)
	dst = appendInt(dst, `,"model_tokens":`, v.ModelCount)
	dst = appendInt(dst, `,"gateway_gpu_ms":`, v.GPUGateway)
	dst = appendInt(dst, `,"meter_gpu_ms":`, v.GPUMeter)
	return append(dst, '}')
}

// ParseSettlement reads a settlement payload as strictly as ParseReservation.
// Every field is required, and the reason may not be empty: nothing is frozen
// or released in silence.
func ParseSettlement(data []byte) (Settlement, error) {
	var v Settlement
	var seen uint32
	s := newScanner(data)
	s.open()
	for name, ok := s.next(); ok; name, ok = s.next() {
		s.field = name
		switch name {
		case "tenant_id":
			s.mark(&seen, 0)
			v.TenantID = s.str(maxNameBytes)
		case "author":
			s.mark(&seen, 1)
			v.Author = s.str(maxNameBytes)
		case "reason":
			s.mark(&seen, 2)
			v.Reason = s.str(maxReasonBytes)
		case "window_start":
			s.mark(&seen, 3)
			v.WindowStart = s.time()
		case "window_end":
			s.mark(&seen, 4)
			v.WindowEnd = s.time()
		case "gateway_tokens":
			s.mark(&seen, 5)
			v.GatewayCount = s.integer(0)
		case "model_tokens":
			s.mark(&seen, 6)
			v.ModelCount = s.integer(0)
		case "gateway_gpu_ms":
			s.mark(&seen, 7)
			v.GPUGateway = s.integer(0)
		case "meter_gpu_ms":
			s.mark(&seen, 8)
			v.GPUMeter = s.integer(0)
		default:
			s.fail(ReasonUnknownField, "is not known")
		}
	}
	s.field = ""
	s.end()
	s.require(seen, settlementRequired)
	s.notEmpty("tenant_id", v.TenantID)
	s.notEmpty("author", v.Author)
	s.notEmpty("reason", v.Reason)
	if s.err != nil {
		return Settlement{}, s.err
	}
	return v, nil
}

var settlementRequired = []string{
	"tenant_id", "author", "reason", "window_start", "window_end",
	"gateway_tokens", "model_tokens", "gateway_gpu_ms", "meter_gpu_ms",
}

// Reservation parses the payload of a reservation event and checks it against
// the envelope: the same tenant, and a state that the type can leave. It is
// what a reader of the log should call.
func (e *Event) Reservation() (Reservation, error) {
	if !e.Type.IsReservation() {
		return Reservation{}, invalid(ReasonWrongTopic, headerType, "is not a reservation's")
	}
	r, err := ParseReservation(e.Data)
	if err != nil {
		return Reservation{}, err
	}
	if r.TenantID != e.Subject {
		return Reservation{}, invalid(ReasonTenantMismatch, "tenant_id", "differs from ce_subject")
	}
	if !stateFits(e.Type, r.State) {
		return Reservation{}, invalid(ReasonInconsistent, "state", "does not follow from the type")
	}
	return r, nil
}

func stateFits(t Type, s State) bool {
	switch t {
	case TypeReserved:
		return s == StateHeld
	case TypeUsage: // a late report leaves an expired reservation expired
		return s == StateHeld || s == StateExpired
	case TypeSettled:
		return s == StateSettled
	case TypeCancelled:
		return s == StateCancelled
	case TypeExpired:
		return s == StateExpired
	}
	return false
}

// Meter parses the payload of a meter event and checks its tenant.
func (e *Event) Meter() (Meter, error) {
	if !e.Type.IsMeter() {
		return Meter{}, invalid(ReasonWrongTopic, headerType, "is not a meter's")
	}
	m, err := ParseMeter(e.Data)
	if err == nil && m.TenantID != e.Subject {
		return Meter{}, invalid(ReasonTenantMismatch, "tenant_id", "differs from ce_subject")
	}
	return m, err
}

// Settlement parses the payload of a settlement event and checks its tenant.
func (e *Event) Settlement() (Settlement, error) {
	if !e.Type.IsSettlement() {
		return Settlement{}, invalid(ReasonWrongTopic, headerType, "is not a settlement's")
	}
	v, err := ParseSettlement(e.Data)
	if err == nil && v.TenantID != e.Subject {
		return Settlement{}, invalid(ReasonTenantMismatch, "tenant_id", "differs from ce_subject")
	}
	return v, err
}
