package events

import "fmt"

// Reason says in one word why an event was refused. Reasons are the values of
// the dead-letter header and of a metric's label, so the set is closed.
type Reason string

// Reasons of refusal.
const (
	ReasonOversize       Reason = "oversize"         // payload or attribute too long
	ReasonBadJSON        Reason = "bad_json"         // not JSON, or more than one value
	ReasonBadUTF8        Reason = "bad_utf8"         // invalid bytes or a lone surrogate
	ReasonNUL            Reason = "nul_in_string"    // PostgreSQL's text cannot hold it
	ReasonWrongType      Reason = "wrong_type"       // a string for a number, null, a fraction
	ReasonOutOfRange     Reason = "out_of_range"     // a number or an enumerated value outside its range
	ReasonMissingField   Reason = "missing_field"    // a required field or header
	ReasonUnknownField   Reason = "unknown_field"    // not in this version of the type
	ReasonDuplicateField Reason = "duplicate_field"  // readers could disagree
	ReasonBadHeader      Reason = "bad_header"       // envelope is not CloudEvents 1.0 binary mode
	ReasonBadTime        Reason = "bad_time"         // not RFC 3339 or out of range
	ReasonBadID          Reason = "bad_id"           // no day in the event id
	ReasonUnknownType    Reason = "unknown_type"     // not in the catalogue
	ReasonWrongTopic     Reason = "wrong_topic"      // a type that does not belong to the topic
	ReasonTenantMismatch Reason = "tenant_mismatch"  // key, subject and payload name different tenants
	ReasonInconsistent   Reason = "inconsistent"     // fields that contradict each other or the type
	ReasonClockSkew      Reason = "clock_skew"       // event time too far from its arrival
	ReasonRefusedByKafka Reason = "refused_by_kafka" // the broker will not take it, whatever the retries
)

// InvalidError says why an event is refused. It never repeats the offending
// value, which may be anything a client sent.
type InvalidError struct {
	Reason Reason
	Field  string // JSON path or header name, "" for the whole event
	Detail string
}

// Error implements error.
func (e *InvalidError) Error() string {
	if e.Field == "" {
		return fmt.Sprintf("invalid event (%s): %s", e.Reason, e.Detail)
	}
	return fmt.Sprintf("invalid event (%s): %s %s", e.Reason, e.Field, e.Detail)
}

func invalid(r Reason, field, detail string) *InvalidError {
	return &InvalidError{Reason: r, Field: field, Detail: detail}
}
