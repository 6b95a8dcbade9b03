package admission

import (
	"errors"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"tollgate/events"
	"tollgate/tenancy"
)

func TestConstraintsAreNarrowToWide(t *testing.T) {
	limit := func(name string, scope tenancy.Scope, match string) tenancy.Limit {
		return tenancy.Limit{Name: name, Kind: tenancy.KindLease, Scope: scope, Match: match, Limit: 10, BurstPercent: 125}
	}
	tenant := &tenancy.Tenant{Quota: tenancy.Quota{Limits: []tenancy.Limit{
		limit("all", tenancy.ScopeTenant, ""), limit("chat", tenancy.ScopeEndpoint, "chat"),
		limit("embed", tenancy.ScopeEndpoint, "embed"), limit("each", tenancy.ScopeModel, "*"),
		limit("keys", tenancy.ScopeKey, ""),
	}}}
	key := &tenancy.Key{ID: "tgk_a", Limits: []tenancy.Limit{limit("own", tenancy.ScopeKey, "")}}
	platform := &tenancy.Platform{Limits: []tenancy.Limit{limit("global", tenancy.ScopeGlobal, ""), limit("each-endpoint", tenancy.ScopeEndpoint, "*")}}
	var got []string
	for _, c := range Constraints(tenant, key, "chat", "a,b;c|d", platform) {
		if c.Units != 12 {
			t.Errorf("%s: cap %d, want 12: 125 %% of 10, rounded down", c.Limit.Name, c.Units)
		}
		pool := ""
		if c.Pool {
			pool = "pool "
		}
		got = append(got, pool+c.Limit.Name+"="+c.Field)
	}
	want := "own=l:key:own:tgk_a keys=l:key:keys:tgk_a chat=l:endpoint:chat:chat each=l:model:each:a=2Cb=3Bc=7Cd " +
		"all=leases pool each-endpoint=l:endpoint:each-endpoint:chat pool global=l:global:global"
	if s := strings.Join(got, " "); s != want {
		t.Errorf("got  %s\nwant %s", s, want)
	}
}

func TestCaseA10_HoldWithoutAMaximum(t *testing.T) {
	ring := func(metric tenancy.Metric, tokens int64) tenancy.Limit {
		return tenancy.Limit{Name: string(metric), Kind: tenancy.KindRing, Scope: tenancy.ScopeTenant, Metric: metric, Limit: tokens, Window: tenancy.Duration(time.Minute), Slots: 60}
	}
	platform := &tenancy.Platform{DefaultMaxOutputTokens: 4096, Models: []tenancy.Model{
		{Name: "heavy", WeightMilli: 2000, DefaultMaxOutputTokens: 1000, ImageTokens: 2},
	}}
	for name, c := range map[string]struct {
		limits     []tenancy.Limit
		model      string
		tenantCap  int64
		figures    Figures
		wantOutput int64
	}{
		"no limit, the platform's default": {nil, "m", 0, Figures{InputTokens: 10, MaxOutputTokens: -1}, 4096},
		"the model's default":              {nil, "heavy", 0, Figures{InputTokens: 10, MaxOutputTokens: -1}, 1000},
		"the tenant's default":             {nil, "heavy", 77, Figures{InputTokens: 10, MaxOutputTokens: -1}, 77},
		"what a small limit leaves":        {[]tenancy.Limit{ring(tenancy.MetricTokens, 100)}, "m", 0, Figures{InputTokens: 30, MaxOutputTokens: -1}, 70},
		"in the model's weight":            {[]tenancy.Limit{ring(tenancy.MetricTokens, 100)}, "heavy", 0, Figures{InputTokens: 20, MaxOutputTokens: -1}, 30},
		"beside images":                    {[]tenancy.Limit{ring(tenancy.MetricTokens, 1000)}, "heavy", 0, Figures{InputTokens: 20, Images: 2, MaxOutputTokens: -1}, 360},
		"an output limit":                  {[]tenancy.Limit{ring(tenancy.MetricOutputTokens, 50)}, "m", 0, Figures{InputTokens: 300, MaxOutputTokens: -1}, 50},
		"never less than one":              {[]tenancy.Limit{ring(tenancy.MetricTokens, 100)}, "m", 0, Figures{InputTokens: 300, MaxOutputTokens: -1}, 1},
		"given":                            {[]tenancy.Limit{ring(tenancy.MetricTokens, 100)}, "m", 0, Figures{InputTokens: 30, MaxOutputTokens: 5000}, 5000},
		"none wanted":                      {nil, "m", 0, Figures{InputTokens: 30}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			tenant := &tenancy.Tenant{Quota: tenancy.Quota{Limits: c.limits, DefaultMaxOutputTokens: c.tenantCap}}
			w, err := Hold(c.figures, tenant, c.model, platform, Constraints(tenant, nil, "e", c.model, platform))
			if err != nil || w.Hold.OutputTokens != c.wantOutput {
				t.Errorf("output %d, %v; want %d", w.Hold.OutputTokens, err, c.wantOutput)
			}
		})
	}
}

func TestUnits(t *testing.T) {
	u := events.Usage{InputTokens: 100, OutputTokens: 50, CachedInputTokens: 90, Images: 2}
	if got, err := Units(u, 1500, 30); err != nil || got != 315_000 {
		t.Errorf("got %d, %v; want (100 + 50 + 60) × 1500", got, err)
	}
	for _, bad := range []events.Usage{
		{InputTokens: -1}, {OutputTokens: MaxUnits + 1}, {InputTokens: MaxUnits}, {Images: MaxUnits, InputTokens: 1},
	} {
		if got, err := Units(bad, 1000, MaxUnits); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v counts %d, %v", bad, got, err)
		}
	}
}

func TestReservationIDs(t *testing.T) {
	hash := RequestHash("acme", "r1")
	if hash == RequestHash("acmer", "1") || len(hash) != HashLen {
		t.Errorf("hash %s", hash)
	}
	id := ReservationID(hash, 1787140913413)
	got, created, err := ParseReservationID(id)
	if err != nil || got != hash || created != 1787140913413 {
		t.Errorf("%s reads as %s, %d, %v", id, got, created, err)
	}
	for _, bad := range []string{"", "rsv_", id[1:], id + "0", id[:len(id)-1], "rsv_" + strings.ToUpper(hash) + "1787140913413", "rsv_" + hash + "17871409134 3", "rsv_" + hash + "0787140913413", "rsv_" + hash[:23] + "|1787140913413"} {
		if _, _, err := ParseReservationID(bad); !errors.Is(err, ErrNotFound) {
			t.Errorf("%q reads with %v", bad, err)
		}
	}
}

func FuzzParseReservationID(f *testing.F) {
	f.Add(ReservationID(RequestHash("acme", "r1"), 1787140913413))
	f.Add("rsv_000000000000000000000000999999999999")
	f.Fuzz(func(t *testing.T, id string) {
		hash, created, err := ParseReservationID(id)
		if err == nil && ReservationID(hash, created) != id {
			t.Errorf("%q reads as %s, %d", id, hash, created)
		}
	})
}

func TestBodyHashCoversEveryFigure(t *testing.T) {
	base := Figures{InputTokens: 1, MaxOutputTokens: 2, ToolCalls: 3, Images: 4, AudioMillis: 5, GPUMillis: 6}
	seen := map[[16]byte]string{BodyHash("e", "m", base): "base"}
	for name, h := range map[string][16]byte{
		"endpoint": BodyHash("e2", "m", base), "model": BodyHash("e", "m2", base), "cut": BodyHash("em", "", base),
		"input":  BodyHash("e", "m", Figures{2, 2, 3, 4, 5, 6}),
		"output": BodyHash("e", "m", Figures{1, 3, 3, 4, 5, 6}),
		"none":   BodyHash("e", "m", Figures{1, -1, 3, 4, 5, 6}),
		"zero":   BodyHash("e", "m", Figures{1, 0, 3, 4, 5, 6}),
		"tools":  BodyHash("e", "m", Figures{1, 2, 4, 4, 5, 6}),
		"images": BodyHash("e", "m", Figures{1, 2, 3, 5, 5, 6}),
		"audio":  BodyHash("e", "m", Figures{1, 2, 3, 4, 6, 6}),
		"gpu":    BodyHash("e", "m", Figures{1, 2, 3, 4, 5, 7}),
	} {
		if other, twice := seen[h]; twice {
			t.Errorf("%s and %s have one hash", name, other)
		}
		seen[h] = name
	}
}

// Days of every zone follow each other without gap, begin at the first instant
// of their date, and add up to the month.
func TestCaseT1_CalendarsOfDaysWithOddLengths(t *testing.T) {
	zones := []string{
		"UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "Asia/Kathmandu",
		"Pacific/Tongatapu", "Pacific/Apia", "America/Havana", "America/Santiago", "Asia/Beirut", "Atlantic/Azores", "Africa/Cairo",
	}
	rapid.Check(t, func(rt *rapid.T) {
		loc, err := time.LoadLocation(rapid.SampledFrom(zones).Draw(rt, "zone"))
		if err != nil {
			rt.Fatal(err)
		}
		at := time.Unix(rapid.Int64Range(1_290_000_000, 1_900_000_000).Draw(rt, "at"), 0)
		c := CalendarAt(at, loc)
		if c.DayStart > at.Unix() || c.DayEnd <= at.Unix() || c.MonthStart > at.Unix() || c.MonthEnd <= at.Unix() {
			rt.Fatalf("%v is not inside %+v", at.In(loc), c)
		}
		y, m, d := at.In(loc).Date()
		first, before := time.Unix(c.DayStart, 0).In(loc), time.Unix(c.DayStart-1, 0).In(loc)
		fy, fm, fd := first.Date()
		if fy != y || fm != m || fd != d {
			rt.Fatalf("the day of %v starts at %v", at.In(loc), first)
		}
		if by, bm, bd := before.Date(); by == y && bm == m && bd == d {
			rt.Fatalf("the day of %v starts at %v, but %v is in it", at.In(loc), first, before)
		}
		sum := int64(0)
		for day := c.MonthStart; day < c.MonthEnd; {
			next := CalendarAt(time.Unix(day, 0), loc)
			if next.DayStart != day {
				rt.Fatalf("%v is not the start of its day", time.Unix(day, 0).In(loc))
			}
			sum += next.DayEnd - day
			day = next.DayEnd
		}
		if sum != c.MonthEnd-c.MonthStart {
			rt.Fatalf("days of %v add up to %d s, the month has %d", at.In(loc), sum, c.MonthEnd-c.MonthStart)
		}
	})
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	for day, hours := range map[time.Time]int64{
		time.Date(2026, 3, 29, 12, 0, 0, 0, time.UTC): 23, time.Date(2026, 10, 25, 12, 0, 0, 0, time.UTC): 25, noonUTC: 24,
	} {
		if c := CalendarAt(day, berlin); c.DayEnd-c.DayStart != hours*3600 {
			t.Errorf("%v has %d s, want %d h", day, c.DayEnd-c.DayStart, hours)
		}
	}
}

var noonUTC = time.Date(2026, 8, 19, 12, 0, 0, 0, time.UTC)
