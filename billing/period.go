package billing

import (
	"fmt"
	"regexp"
	"strings"
	"time"
)

// Period is a half-open span of time that one bill covers. Its instants are in
// UTC; TimeZone is where its calendar was read.
//
// Usage is kept in buckets of UTC hours. A month in a zone that is off by half
// an hour begins inside such a bucket; that hour is then split exactly, by the
// times of the journal's events, and each event is on one bill alone.
type Period struct {
	From     time.Time `json:"from"`
	To       time.Time `json:"to"`
	TimeZone string    `json:"time_zone"`
	Label    string    `json:"label"` // as it was asked for, e.g. "2026-11"
}

var monthPattern = regexp.MustCompile(`^[0-9]{4}-(0[1-9]|1[0-2])$`)

// ParsePeriod reads "2026-11", a calendar month in the zone, or
// "<from>/<to>", two RFC 3339 instants that are whole hours in the zone or in
// UTC. Months of one zone touch without gap or overlap.
func ParsePeriod(text, timeZone string) (Period, error) {
	if timeZone == "" || timeZone == "Local" {
		return Period{}, fmt.Errorf("%w: time zone %q: give an IANA name such as Europe/Berlin", ErrInvalid, timeZone)
	}
	zone, err := time.LoadLocation(timeZone)
	if err != nil {
		return Period{}, fmt.Errorf("%w: time zone %q: give an IANA name such as Europe/Berlin", ErrInvalid, timeZone)
	}
	if monthPattern.MatchString(text) {
		first, err := time.Parse("2006-01", text)
		if err != nil {
			return Period{}, fmt.Errorf("%w: month %q", ErrInvalid, text)
		}
		return Period{
			From:     startOfDay(first.Year(), first.Month(), 1, zone),
			To:       startOfDay(first.Year(), first.Month()+1, 1, zone),
			TimeZone: timeZone,
			Label:    text,
		}, nil
	}
	left, right, found := strings.Cut(text, "/")
	if !found {
		return Period{}, fmt.Errorf("%w: period %q: give a month (2026-11) or two instants (2026-11-01T00:00:00Z/2026-11-08T00:00:00Z)", ErrInvalid, text)
	}
	from, err := parseBoundary(left, zone)
	if err != nil {
		return Period{}, err
	}
	to, err := parseBoundary(right, zone)
	if err != nil {
		return Period{}, err
	}
	p := Period{From: from, To: to, TimeZone: timeZone, Label: from.Format(time.RFC3339) + "/" + to.Format(time.RFC3339)}
	return p, p.Validate()
}

// Validate reports a period that no bill can be for.
func (p Period) Validate() error {
	switch {
	case p.From.IsZero() || !p.From.Before(p.To):
		return fmt.Errorf("%w: the period ends before it begins", ErrInvalid)
	case p.To.Sub(p.From) > 400*24*time.Hour:
		return fmt.Errorf("%w: the period is longer than 400 days", ErrInvalid)
	case p.From.Truncate(time.Second) != p.From || p.To.Truncate(time.Second) != p.To:
		return fmt.Errorf("%w: the period's boundaries are not whole seconds", ErrInvalid)
	}
	return nil
}

func parseBoundary(text string, zone *time.Location) (time.Time, error) {
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Time{}, fmt.Errorf("%w: instant %q: give RFC 3339, such as 2026-11-01T00:00:00Z", ErrInvalid, text)
	}
	local := t.In(zone)
	wholeLocal := local.Minute() == 0 && local.Second() == 0 && local.Nanosecond() == 0
	if t = t.UTC(); !wholeLocal && !t.Equal(t.Truncate(time.Hour)) {
		return time.Time{}, fmt.Errorf("%w: instant %q is not a whole hour in %s or in UTC", ErrInvalid, text, zone)
	}
	return t, nil
}

// startOfDay returns the first instant whose date in the zone is the given
// one. Where clocks jump over midnight that is the jump; where midnight comes
// twice it is the first. (time.Date promises neither.)
func startOfDay(year int, month time.Month, day int, zone *time.Location) time.Time {
	wanted := time.Date(year, month, day, 0, 0, 0, 0, time.UTC)
	// Offsets are within a day of UTC, so the day begins within this span. It
	// is walked by stretches of one offset, in each of which local time only
	// grows.
	at := wanted.Add(-26 * time.Hour)
	end := wanted.Add(26 * time.Hour)
	for at.Before(end) {
		local := at.In(zone)
		_, offset := local.Zone()
		_, stretchEnd := local.ZoneBounds()
		candidate := wanted.Add(-time.Duration(offset) * time.Second)
		if candidate.Before(at) {
			candidate = at
		}
		if stretchEnd.IsZero() || candidate.Before(stretchEnd) {
			return candidate
		}
		at = stretchEnd.UTC()
	}
	return wanted // not reached: some stretch in the span holds the day's start
}
