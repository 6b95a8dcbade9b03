package proxy

import "tollgate/events"

// MaxFigure is the largest figure of an upstream that is believed: 2^32 tokens,
// or 49 days in milliseconds. It is far above what a request can use, and far
// enough below what the ledger counts (2^52 milli-units) that a believed figure
// can always be settled.
const MaxFigure = 1 << 32

// Figure reads a JSON number as a count. What is no plain integer from 0 to
// MaxFigure gives −1, which CheckUsage refuses.
func Figure(raw string) int64 {
	if raw == "" || len(raw) > 10 {
		return -1
	}
	var n int64
	for _, c := range []byte(raw) {
		if c < '0' || c > '9' {
			return -1
		}
		n = n*10 + int64(c-'0')
	}
	if n > MaxFigure {
		return -1
	}
	return n
}

// CheckUsage says whether an upstream's report can be believed: no figure is
// negative or beyond MaxFigure. Cached input is brought down to the input and
// reasoning to the output, which they are parts of.
func CheckUsage(u events.Usage) (_ events.Usage, ok bool) {
	for _, n := range [...]int64{
		u.InputTokens, u.OutputTokens, u.CachedInputTokens, u.ReasoningTokens,
		u.ToolCalls, u.Images, u.AudioMillis, u.GPUMillis,
	} {
		if n < 0 || n > MaxFigure {
			return events.Usage{}, false
		}
	}
	u.CachedInputTokens = min(u.CachedInputTokens, u.InputTokens)
	u.ReasoningTokens = min(u.ReasoningTokens, u.OutputTokens)
	return u, true
}

// Merge takes one more report of usage. Reports are cumulative and may be
// repeated, so the largest of each figure counts, once. A report that cannot be
// believed counts as not made. It returns old, changed, or a new one where old is
// nil.
func Merge(old *events.Usage, report events.Usage) *events.Usage {
	report, ok := CheckUsage(report)
	if !ok {
		return old
	}
	if old == nil {
		return &report
	}
	*old = events.Usage{
		InputTokens:       max(old.InputTokens, report.InputTokens),
		OutputTokens:      max(old.OutputTokens, report.OutputTokens),
		CachedInputTokens: max(old.CachedInputTokens, report.CachedInputTokens),
		ReasoningTokens:   max(old.ReasoningTokens, report.ReasoningTokens),
		ToolCalls:         max(old.ToolCalls, report.ToolCalls),
		Images:            max(old.Images, report.Images),
		AudioMillis:       max(old.AudioMillis, report.AudioMillis),
		GPUMillis:         max(old.GPUMillis, report.GPUMillis),
	}
	return old
}

// usageSaid is a report if it can be believed.
func usageSaid(u *events.Usage) *events.Usage {
	if u == nil {
		return nil
	}
	checked, ok := CheckUsage(*u)
	if !ok {
		return nil
	}
	return &checked
}

// spoke tells a report with figures from zeros. Tool calls are counted here, not
// said.
func spoke(u *events.Usage) bool {
	return u.InputTokens > 0 || u.OutputTokens > 0 || u.Images > 0 || u.AudioMillis > 0 || u.GPUMillis > 0
}
