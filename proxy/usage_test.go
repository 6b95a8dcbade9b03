package proxy_test

import (
	"encoding/json"
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"tollgate/events"
	"tollgate/proxy"
)

// M1: cumulative usage in several chunks and again in the last counts once.
func TestCaseM1_CumulativeUsageCountsOnce(t *testing.T) {
	t.Parallel()
	var u *events.Usage
	for _, report := range []events.Usage{
		{InputTokens: 13, OutputTokens: 1},
		{InputTokens: 13, OutputTokens: 12},
		{InputTokens: 13, OutputTokens: 12},
		{OutputTokens: 33},
		{InputTokens: 13, OutputTokens: 33},
		{InputTokens: 13, OutputTokens: 33},
		{}, // a server that ends with zeros does not take it back
		{InputTokens: 13, OutputTokens: -1},
		{InputTokens: 13, OutputTokens: 1 << 53},
	} {
		u = proxy.Merge(u, report)
	}
	got := proxy.Judge(proxy.Ending{
		Phase: proxy.PhaseAnswered, InputTokens: 15,
		Tally: proxy.Tally{Usage: u, Content: true, Complete: true, Delivered: events.Usage{OutputTokens: 40}},
	})
	if got.Estimated || got.Usage.InputTokens+got.Usage.OutputTokens != 46 || got.Usage.InputTokens != 13 {
		t.Errorf("%+v", got)
	}
}

func TestMergeIsLargestInAnyOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		report := rapid.Custom(func(t *rapid.T) events.Usage {
			n := rapid.Int64Range(-1, 50)
			return events.Usage{InputTokens: n.Draw(t, "in"), OutputTokens: n.Draw(t, "out"), CachedInputTokens: n.Draw(t, "cached"), GPUMillis: n.Draw(t, "gpu")}
		})
		reports := rapid.SliceOf(report).Draw(t, "reports")
		var forth, back, twice *events.Usage
		believed := false
		var want events.Usage
		for i, r := range reports {
			forth = proxy.Merge(forth, r)
			back = proxy.Merge(back, reports[len(reports)-1-i])
			twice = proxy.Merge(proxy.Merge(twice, r), r)
			if min(r.InputTokens, r.OutputTokens, r.CachedInputTokens, r.GPUMillis) >= 0 {
				believed = true
				want.InputTokens = max(want.InputTokens, r.InputTokens)
				want.OutputTokens = max(want.OutputTokens, r.OutputTokens)
				want.CachedInputTokens = max(want.CachedInputTokens, min(r.CachedInputTokens, r.InputTokens))
				want.GPUMillis = max(want.GPUMillis, r.GPUMillis)
			}
		}
		for _, got := range []*events.Usage{forth, back, twice} {
			if !believed {
				if got != nil {
					t.Fatalf("%+v of reports that cannot be believed", got)
				}
			} else if got == nil || *got != want {
				t.Fatalf("%+v, want %+v", got, want)
			}
		}
	})
}

func TestCheckUsage(t *testing.T) {
	t.Parallel()
	got, ok := proxy.CheckUsage(events.Usage{InputTokens: 10, CachedInputTokens: 11, OutputTokens: 5, ReasoningTokens: 6})
	if want := (events.Usage{InputTokens: 10, CachedInputTokens: 10, OutputTokens: 5, ReasoningTokens: 5}); !ok || got != want {
		t.Errorf("%+v, %v", got, ok)
	}
	for i, set := range []func(*events.Usage, int64){
		func(u *events.Usage, n int64) { u.InputTokens = n }, func(u *events.Usage, n int64) { u.OutputTokens = n },
		func(u *events.Usage, n int64) { u.CachedInputTokens = n }, func(u *events.Usage, n int64) { u.ReasoningTokens = n },
		func(u *events.Usage, n int64) { u.ToolCalls = n }, func(u *events.Usage, n int64) { u.Images = n },
		func(u *events.Usage, n int64) { u.AudioMillis = n }, func(u *events.Usage, n int64) { u.GPUMillis = n },
	} {
		for n, want := range map[int64]bool{0: true, 1: true, proxy.MaxFigure: true, proxy.MaxFigure + 1: false, -1: false, 1<<63 - 1: false, -1 << 63: false} {
			var u events.Usage
			set(&u, n)
			if _, ok := proxy.CheckUsage(u); ok != want {
				t.Errorf("field %d = %d: %v", i, n, ok)
			}
		}
	}
}

func TestFigure(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]int64{
		"0": 0, "46": 46, "4294967296": proxy.MaxFigure, "4294967297": -1, "9999999999": -1, "99999999999999999999": -1,
		"-1": -1, "1.5": -1, "33.0": -1, "1e3": -1, "": -1, `"46"`: -1, "null": -1, " 1": -1, "+1": -1,
	} {
		if got := proxy.Figure(raw); got != want {
			t.Errorf("%q is %d, want %d", raw, got, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Int64Range(0, proxy.MaxFigure).Draw(t, "n")
		raw, err := json.Marshal(n)
		if err != nil || proxy.Figure(string(raw)) != n {
			t.Fatalf("%s is %d (%v)", strconv.FormatInt(n, 10), proxy.Figure(string(raw)), err)
		}
	})
}
