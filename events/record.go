package events

import (
	"strings"
	"time"
	"unicode/utf8"
)

// MaxDataBytes bounds an event's payload. A larger one is refused when it is
// made and dead-lettered when it is met.
const MaxDataBytes = 64 << 10

// Limits of the envelope's attributes, in bytes.
const (
	maxIDBytes      = 128
	maxSourceBytes  = 256
	maxSubjectBytes = 128
)

// The headers of a CloudEvent in Kafka's binary mode (CloudEvents Kafka
// Protocol Binding 1.0.2, section 3.2).
const (
	headerID          = "ce_id"
	headerSource      = "ce_source"
	headerType        = "ce_type"
	headerSpecVersion = "ce_specversion"
	headerTime        = "ce_time"
	headerSubject     = "ce_subject"
	headerContentType = "content-type"

	specVersion = "1.0"
	contentJSON = "application/json"
)

// Header is one header of a record.
type Header struct {
	Key   string `json:"key"`
	Value []byte `json:"value"`
}

// Record is a record of the log with its position. Key, Value and header
// values may share memory with other records of the same read; they must not
// be changed, and copies should be kept where a record outlives its batch.
type Record struct {
	Topic     string
	Partition int
	Offset    int64
	Key       []byte
	Value     []byte
	Headers   []Header
	// Time is when the record was appended to the log: the broker's time where
	// the topic says LogAppendTime, else the producer's. It is part of the log,
	// so whatever is decided by it is decided the same on a replay.
	Time time.Time
}

// HeaderValue returns the first header of that name; nil when there is none.
func (r *Record) HeaderValue(key string) []byte {
	for i := range r.Headers {
		if r.Headers[i].Key == key {
			return r.Headers[i].Value
		}
	}
	return nil
}

// FromRecord reads the CloudEvents envelope of a record in binary mode. The
// payload is not parsed. A record that is no well-formed event gives an
// *InvalidError. Headers outside the envelope (extensions, tracing) are
// ignored; an envelope header that comes twice is refused, since two readers
// could disagree about it.
func FromRecord(r Record) (Event, error) {
	var e Event
	var seen uint
	if len(r.Value) > MaxDataBytes {
		return e, invalid(ReasonOversize, "data", "payload is larger than 64 KiB")
	}
	for i := range r.Headers {
		h := &r.Headers[i]
		var bit uint
		switch h.Key {
		case headerID:
			bit, e.ID = 1<<0, string(h.Value)
		case headerSource:
			bit, e.Source = 1<<1, string(h.Value)
		case headerType:
			bit, e.Type = 1<<2, typeOf(h.Value)
		case headerSpecVersion:
			bit = 1 << 3
			if string(h.Value) != specVersion {
				return e, invalid(ReasonBadHeader, headerSpecVersion, "is not 1.0")
			}
		case headerTime:
			bit = 1 << 4
			t, ok := parseTime(string(h.Value))
			if !ok {
				return e, invalid(ReasonBadTime, headerTime, "is not an RFC 3339 time")
			}
			e.Time = t
		case headerSubject:
			bit, e.Subject = 1<<5, string(h.Value)
		case headerContentType:
			bit = 1 << 6
			if !isJSONContent(string(h.Value)) {
				return e, invalid(ReasonBadHeader, headerContentType, "is not application/json")
			}
		default:
			continue
		}
		if seen&bit != 0 {
			return e, invalid(ReasonDuplicateField, h.Key, "comes twice")
		}
		seen |= bit
	}
	const all = 1<<7 - 1
	if seen != all {
		return e, invalid(ReasonMissingField, missingHeader(seen), "is missing")
	}
	if string(r.Key) != e.Subject {
		return e, invalid(ReasonTenantMismatch, "key", "differs from ce_subject")
	}
	e.Data = r.Value
	return e, e.Validate()
}

func missingHeader(seen uint) string {
	names := [...]string{headerID, headerSource, headerType, headerSpecVersion, headerTime, headerSubject, headerContentType}
	for i, name := range names {
		if seen&(1<<i) == 0 {
			return name
		}
	}
	return ""
}

func isJSONContent(v string) bool {
	v, _, _ = strings.Cut(v, ";")
	return strings.EqualFold(strings.TrimSpace(v), contentJSON)
}

// typeOf returns the known type without allocating.
func typeOf(b []byte) Type {
	for _, t := range types {
		if string(t) == string(b) {
			return t
		}
	}
	return Type(b)
}

var types = [...]Type{
	TypeReserved, TypeSettled, TypeUsage, TypeCancelled, TypeExpired,
	TypeFrozen, TypeUnfrozen, TypeModelMeter, TypeGPUMeter,
}

// Topic returns the topic that events of this type belong to, "" for an
// unknown type.
func (t Type) Topic() string {
	switch t {
	case TypeReserved, TypeUsage, TypeSettled, TypeCancelled, TypeExpired, TypeFrozen, TypeUnfrozen:
		return TopicEvents
	case TypeModelMeter, TypeGPUMeter:
		return TopicMeters
	}
	return ""
}

// IsReservation says whether the payload is a Reservation.
func (t Type) IsReservation() bool {
	switch t {
	case TypeReserved, TypeUsage, TypeSettled, TypeCancelled, TypeExpired:
		return true
	}
	return false
}

// IsMeter says whether the payload is a Meter.
func (t Type) IsMeter() bool { return t == TypeModelMeter || t == TypeGPUMeter }

// IsSettlement says whether the payload is a Settlement.
func (t Type) IsSettlement() bool { return t == TypeFrozen || t == TypeUnfrozen }

// Validate checks the envelope: the required CloudEvents attributes, their
// lengths and characters, a known type, and the payload's size. It returns an
// *InvalidError. The payload's content is checked by the parsers.
func (e *Event) Validate() error {
	if err := checkAttribute(headerID, e.ID, maxIDBytes); err != nil {
		return err
	}
	if err := checkAttribute(headerSource, e.Source, maxSourceBytes); err != nil {
		return err
	}
	if err := checkAttribute(headerSubject, e.Subject, maxSubjectBytes); err != nil {
		return err
	}
	if e.Type.Topic() == "" {
		return invalid(ReasonUnknownType, headerType, "is not known")
	}
	if e.Time.IsZero() || e.Time.Year() < 1970 || e.Time.Year() > 9999 {
		return invalid(ReasonBadTime, headerTime, "is outside 1970..9999")
	}
	if len(e.Data) == 0 {
		return invalid(ReasonMissingField, "data", "is empty")
	}
	if len(e.Data) > MaxDataBytes {
		return invalid(ReasonOversize, "data", "payload is larger than 64 KiB")
	}
	return nil
}

// checkAttribute refuses what the CloudEvents type system forbids in a string
// (control characters, bad UTF-8) besides empty and overlong ones.
func checkAttribute(name, v string, limit int) error {
	if v == "" {
		return invalid(ReasonMissingField, name, "is empty")
	}
	if len(v) > limit {
		return invalid(ReasonOversize, name, "is too long")
	}
	for i := 0; i < len(v); i++ {
		switch c := v[i]; {
		case c == 0:
			return invalid(ReasonNUL, name, "contains NUL")
		case c < 0x20 || c == 0x7f:
			return invalid(ReasonBadHeader, name, "contains a control character")
		case c >= utf8.RuneSelf && !utf8.ValidString(v):
			return invalid(ReasonBadUTF8, name, "is not UTF-8")
		}
	}
	return nil
}

// ToRecord writes an event as a record in binary mode, without a position. The
// key is the subject, so all events of a tenant share a partition.
func ToRecord(topic string, e *Event) Record {
	ts := make([]byte, 0, len(timeLayout))
	return Record{
		Topic: topic,
		Key:   []byte(e.Subject),
		Value: e.Data,
		Headers: []Header{
			{headerSpecVersion, []byte(specVersion)},
			{headerID, []byte(e.ID)},
			{headerSource, []byte(e.Source)},
			{headerType, []byte(e.Type)},
			{headerSubject, []byte(e.Subject)},
			{headerTime, appendTime(ts, e.Time)},
			{headerContentType, []byte(contentJSON)},
		},
	}
}
