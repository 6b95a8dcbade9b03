package admission

import (
	"time"

	"tollgate/tenancy"
)

// Calendar holds the boundaries of the day and the month around an instant, in
// a tenant's time zone, as Unix seconds. The script picks the period by Redis's
// own time; it needs two periods because a gateway's clock may be a little
// behind a boundary that Redis has passed.
type Calendar struct {
	DayStart, DayEnd, DayNextEnd       int64
	MonthStart, MonthEnd, MonthNextEnd int64
}

// CalendarAt returns the boundaries around at in loc.
func CalendarAt(at time.Time, loc *time.Location) Calendar {
	y, m, d := at.In(loc).Date()
	return Calendar{
		DayStart:     startOfDay(y, m, d, loc),
		DayEnd:       startOfDay(y, m, d+1, loc),
		DayNextEnd:   startOfDay(y, m, d+2, loc),
		MonthStart:   startOfDay(y, m, 1, loc),
		MonthEnd:     startOfDay(y, m+1, 1, loc),
		MonthNextEnd: startOfDay(y, m+2, 1, loc),
	}
}

// End returns when the period that at (Unix seconds) lies in ends, 0 for a
// budget without period.
func (c *Calendar) End(period tenancy.Period, at int64) int64 {
	switch period {
	case tenancy.PeriodDay:
		if at >= c.DayEnd {
			return c.DayNextEnd
		}
		return c.DayEnd
	case tenancy.PeriodMonth:
		if at >= c.MonthEnd {
			return c.MonthNextEnd
		}
		return c.MonthEnd
	}
	return 0
}

// startOfDay is the first instant of a date. Midnight may not exist (clocks go
// forward over it: the day starts at the transition), or exist twice (the first
// one counts). time.Date leaves both cases open.
func startOfDay(y int, m time.Month, d int, loc *time.Location) int64 {
	utc := time.Date(y, m, d, 0, 0, 0, 0, time.UTC)
	y, m, d = utc.Date() // normalised
	var first time.Time
	for _, probe := range [...]time.Time{utc.Add(-26 * time.Hour), utc.Add(26 * time.Hour)} {
		_, offset := probe.In(loc).Zone()
		t := utc.Add(-time.Duration(offset) * time.Second).In(loc)
		ty, tm, td := t.Date()
		if ty == y && tm == m && td == d && t.Hour() == 0 && t.Minute() == 0 && t.Second() == 0 &&
			(first.IsZero() || t.Before(first)) {
			first = t
		}
	}
	if !first.IsZero() {
		return first.Unix()
	}
	// No midnight: the transition that skipped it is the first boundary after
	// the last instant that is certainly before the date.
	t := utc.Add(-26 * time.Hour).In(loc)
	_, end := t.ZoneBounds()
	if end.IsZero() {
		return time.Date(y, m, d, 0, 0, 0, 0, loc).Unix()
	}
	return end.Unix()
}
