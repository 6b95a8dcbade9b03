package billing

import (
	"errors"
	"testing"
	"time"
)

func mustPeriod(t testing.TB, text, zone string) Period {
	t.Helper()
	p, err := ParsePeriod(text, zone)
	if err != nil {
		t.Fatalf("ParsePeriod(%q, %q): %v", text, zone, err)
	}
	return p
}

func TestCaseT1_MonthsOfEveryZoneTouchAndHoursAddUp(t *testing.T) {
	t.Parallel()
	tests := []struct {
		zone, month, from string
		length            time.Duration
	}{
		{"UTC", "2026-02", "2026-02-01T00:00:00Z", 28 * 24 * time.Hour},
		{"Europe/Berlin", "2026-03", "2026-02-28T23:00:00Z", 743 * time.Hour}, // a day of 23 hours
		{"Europe/Berlin", "2026-10", "2026-09-30T22:00:00Z", 745 * time.Hour}, // a day of 25 hours
		{"America/New_York", "2026-11", "2026-11-01T04:00:00Z", 721 * time.Hour},
		{"Asia/Kolkata", "2026-11", "2026-10-31T18:30:00Z", 720 * time.Hour},
		{"Asia/Kathmandu", "2026-11", "2026-10-31T18:15:00Z", 720 * time.Hour},
		{"Australia/Lord_Howe", "2026-10", "2026-09-30T13:30:00Z", 744*time.Hour - 30*time.Minute}, // clocks move half an hour
		{"Australia/Lord_Howe", "2026-04", "2026-03-31T13:00:00Z", 720*time.Hour + 30*time.Minute},
		{"Pacific/Tongatapu", "2026-11", "2026-10-31T11:00:00Z", 720 * time.Hour}, // UTC+13
		// Clocks jumped over midnight of 1 October 2017, so the day began at 01:00.
		{"America/Asuncion", "2017-10", "2017-10-01T04:00:00Z", 743 * time.Hour},
		// Midnight of 1 November 2015 came twice; the month began at the first.
		{"America/Havana", "2015-11", "2015-11-01T04:00:00Z", 721 * time.Hour},
	}
	for _, tt := range tests {
		p := mustPeriod(t, tt.month, tt.zone)
		if got := p.From.Format(time.RFC3339); got != tt.from {
			t.Errorf("%s in %s begins at %s, want %s", tt.month, tt.zone, got, tt.from)
		}
		if got := p.To.Sub(p.From); got != tt.length {
			t.Errorf("%s in %s lasts %s, want %s", tt.month, tt.zone, got, tt.length)
		}
	}
}

// A month ends exactly where the next begins, and its start is the first
// instant of its own date: whatever the zone's clocks did.
func TestMonthsTileTheYears(t *testing.T) {
	t.Parallel()
	zones := []string{
		"UTC", "Europe/Berlin", "America/Havana", "America/Asuncion", "Asia/Kolkata", "Asia/Kathmandu", "Asia/Beirut",
		"Australia/Lord_Howe", "Pacific/Apia", "Pacific/Kiritimati", "America/St_Johns", "Africa/Cairo", "Asia/Gaza", "Pacific/Chatham",
	}
	for _, name := range zones {
		zone, err := time.LoadLocation(name)
		if err != nil {
			t.Fatalf("zone %s: %v", name, err)
		}
		var before Period
		for year := 2000; year < 2030; year++ {
			for month := time.January; month <= time.December; month++ {
				p := mustPeriod(t, time.Date(year, month, 1, 0, 0, 0, 0, time.UTC).Format("2006-01"), name)
				if !before.To.IsZero() && !before.To.Equal(p.From) {
					t.Fatalf("%s: %s ends at %s, the next begins at %s", name, before.Label, before.To, p.From)
				}
				if first := p.From.In(zone); first.Month() != month || first.Day() != 1 {
					t.Fatalf("%s: %s begins on %s", name, p.Label, first)
				}
				if last := p.From.Add(-time.Nanosecond).In(zone); last.Month() == month {
					t.Fatalf("%s: %s has an instant before its start, %s", name, p.Label, last)
				}
				before = p
			}
		}
	}
}

func TestParsePeriodExplicit(t *testing.T) {
	t.Parallel()
	p := mustPeriod(t, "2026-11-01T00:00:00+05:30/2026-11-02T00:00:00+05:30", "Asia/Kolkata")
	if p.From.Format(time.RFC3339) != "2026-10-31T18:30:00Z" || p.To.Sub(p.From) != 24*time.Hour {
		t.Errorf("got %+v", p)
	}
}

func TestParsePeriodRefusals(t *testing.T) {
	t.Parallel()
	tests := []struct{ text, zone string }{
		{"2026-13", "UTC"},
		{"2026-1", "UTC"},
		{"26-11", "UTC"},
		{"", "UTC"},
		{"november", "UTC"},
		{"2026-11", ""},
		{"2026-11", "Local"},
		{"2026-11", "Mars/Olympus"},
		{"2026-11", "../../etc/passwd"},
		{"2026-11-01T00:00:00Z/2026-11-01T00:00:00Z", "UTC"},
		{"2026-11-02T00:00:00Z/2026-11-01T00:00:00Z", "UTC"},
		{"2026-11-01T00:30:00Z/2026-11-02T00:00:00Z", "UTC"},
		{"2026-11-01T00:30:00Z/2026-11-02T00:00:00Z", "Asia/Kathmandu"},
		{"2026-11-01T00:00:00.5Z/2026-11-02T00:00:00Z", "UTC"},
		{"2026-11-01/2026-11-02", "UTC"},
		{"2020-01-01T00:00:00Z/2026-01-01T00:00:00Z", "UTC"},
	}
	for _, tt := range tests {
		if p, err := ParsePeriod(tt.text, tt.zone); !errors.Is(err, ErrInvalid) {
			t.Errorf("ParsePeriod(%q, %q) = %+v, %v; want ErrInvalid", tt.text, tt.zone, p, err)
		}
	}
}
