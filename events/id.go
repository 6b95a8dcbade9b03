package events

import (
	"strconv"
	"strings"
	"time"
)

// Bounds of the milliseconds in an event id: from 2000 to the end of 2199.
const (
	minIDMillis = 946_684_800_000
	maxIDMillis = 7_258_118_399_999
)

// NewID makes an event id "<prefix>-<ms>-<seq>.<n>", the form that DayOf reads.
// The same arguments give the same id, so a repeat is recognised; the caller
// chooses prefix, seq and n so that different events differ.
func NewID(prefix string, at time.Time, seq int64, n int) string {
	b := make([]byte, 0, len(prefix)+40)
	b = append(b, prefix...)
	b = append(b, '-')
	b = strconv.AppendInt(b, at.UnixMilli(), 10)
	b = append(b, '-')
	b = strconv.AppendInt(b, seq, 10)
	b = append(b, '.')
	b = strconv.AppendInt(b, int64(n), 10)
	return string(b)
}

// DayOf returns the UTC day on which an event was made, from the milliseconds
// inside its id ("<prefix>-<ms>-<seq>.<n>"). The day depends on the id alone,
// so a repeat with another time meets the same row. An id of another form gives
// an *InvalidError.
func DayOf(eventID string) (time.Time, error) {
	ms, err := millisOf(eventID)
	if err != nil {
		return time.Time{}, err
	}
	const day = 86_400_000
	return time.UnixMilli(ms - ms%day).UTC(), nil
}

func millisOf(id string) (int64, error) {
	bad := func() (int64, error) {
		return 0, invalid(ReasonBadID, headerID, "is not <prefix>-<ms>-<seq>.<n>")
	}
	last := strings.LastIndexByte(id, '-')
	if last <= 0 {
		return bad()
	}
	before := strings.LastIndexByte(id[:last], '-')
	if before <= 0 {
		return bad()
	}
	seq, n, ok := strings.Cut(id[last+1:], ".")
	if !ok || !isDigits(seq) || !isDigits(n) {
		return bad()
	}
	digits := id[before+1 : last]
	// One spelling for one number: a leading zero would be another id of the
	// same entry.
	if !isDigits(digits) || digits[0] == '0' {
		return bad()
	}
	ms, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || ms < minIDMillis || ms > maxIDMillis {
		return bad()
	}
	return ms, nil
}

func isDigits(s string) bool {
	if s == "" || len(s) > 20 {
		return false
	}
	for i := 0; i < len(s); i++ {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return true
}

// How far an event's time may be from its arrival in the log.
const (
	MaxFuture = 5 * time.Minute
	MaxAge    = 35 * 24 * time.Hour
)

// CheckTime refuses an event whose time is more than MaxFuture after or MaxAge
// before its arrival, with an *InvalidError of ReasonClockSkew. Arrival is the
// record's time in the log, never the reader's clock, so that a replay decides
// as the first reading did.
func CheckTime(eventTime, arrival time.Time) error {
	switch d := eventTime.Sub(arrival); {
	case d > MaxFuture:
		return invalid(ReasonClockSkew, headerTime, "is more than 5 minutes after arrival")
	case d < -MaxAge:
		return invalid(ReasonClockSkew, headerTime, "is more than 35 days before arrival")
	}
	return nil
}
