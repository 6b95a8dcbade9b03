package tenancy

import (
	"fmt"
	"slices"
	"time"
)

var (
	layers  = []string{"L1", "L2", "L3", "L4"}
	metrics = []Metric{
		MetricTokens, MetricRequests, MetricInputTokens, MetricOutputTokens,
		MetricImages, MetricToolCalls, MetricAudioMillis, MetricGPUMillis,
	}
)

// checkLimits checks a document's lines: each by itself, then their number and
// names together. place checks what only this document asks of a line.
func checkLimits(m *mistakes, path string, limits []Limit, place func(*mistakes, string, *Limit)) {
	if len(limits) > MaxLimits {
		m.add(path, "merge limits or move some to keys", "has %d lines, at most %d are allowed", len(limits), MaxLimits)
		return
	}
	seen := make(map[string]int, len(limits))
	for i := range limits {
		line := fmt.Sprintf("%s[%d]", path, i)
		checkLimit(m, line+".", &limits[i])
		place(m, line+".", &limits[i])
		if first, twice := seen[limits[i].Name]; twice {
			m.add(line+".name", "names are unique in a document: usage is kept under them",
				"%s is already %s[%d]", quoted(limits[i].Name), path, first)
		} else {
			seen[limits[i].Name] = i
		}
	}
}

// checkLimit checks what every document asks of a line.
func checkLimit(m *mistakes, prefix string, l *Limit) {
	if len(l.Name) < 1 || len(l.Name) > 63 || !isLowerDigit(l.Name[0]) || !only(l.Name, isLowerDigit, "._-") {
		m.add(prefix+"name", `use 1 to 63 of a-z, 0-9, '.', '_' and '-', such as "tokens-60s"`, "%s is not a limit's name", quoted(l.Name))
	}
	if !slices.Contains(layers, l.Layer) {
		m.add(prefix+"layer", oneOf(layers...), "%s is not a layer", quoted(l.Layer))
	}
	if l.Limit < 0 || l.Limit > MaxLimit {
		m.add(prefix+"limit", "leave the line out for no limit", "must be 0 to %d, is %d", MaxLimit, l.Limit)
	}
	checkMatch(m, prefix, l)

	switch l.Kind {
	case KindRing:
		checkMetric(m, prefix, l, metrics...)
		checkRing(m, prefix, l)
		unused(m, prefix, l, "burst", "period", "burst_percent")
	case KindCounter:
		checkMetric(m, prefix, l, metrics...)
		if !slices.Contains([]Period{PeriodNone, PeriodDay, PeriodMonth}, l.Period) {
			m.add(prefix+"period", oneOf(PeriodNone, PeriodDay, PeriodMonth), "%s is not a period", quoted(string(l.Period)))
		}
		unused(m, prefix, l, "window", "slots", "burst", "burst_percent")
	case KindRate:
		checkMetric(m, prefix, l, MetricRequests)
		checkRate(m, prefix, l)
		unused(m, prefix, l, "slots", "period", "burst_percent", "budget")
	case KindLease:
		if l.BurstPercent != 0 && (l.BurstPercent < 100 || l.BurstPercent > 1000) {
			m.add(prefix+"burst_percent", "120 is a cap of 1.2 × the limit", "must be 100 to 1000, is %d", l.BurstPercent)
		}
		unused(m, prefix, l, "metric", "window", "slots", "burst", "period", "budget")
	default:
		m.add(prefix+"kind", oneOf(KindRing, KindCounter, KindRate, KindLease), "%s is not a kind of limit", quoted(string(l.Kind)))
	}
}

func checkMatch(m *mistakes, prefix string, l *Limit) {
	switch l.Scope {
	case ScopeEndpoint:
		if l.Match != "*" && !ValidEndpoint(l.Match) {
			m.add(prefix+"match", `name the endpoint (1 to 64 of a-z, 0-9, '.', '_', '/', '-'), or "*" for each`,
				"%s is not an endpoint", quoted(l.Match))
		}
	case ScopeModel:
		if !ValidModelName(l.Match) {
			m.add(prefix+"match", `name the model, or "*" for each`, "%s is not a model", quoted(l.Match))
		}
	case ScopeKey, ScopeTenant, ScopeGlobal:
		if l.Match != "" {
			m.add(prefix+"match", "remove it, or use scope endpoint or model", "has no meaning in scope %s", l.Scope)
		}
	default:
		m.add(prefix+"scope", oneOf(ScopeKey, ScopeEndpoint, ScopeModel, ScopeTenant, ScopeGlobal),
			"%s is not a scope", quoted(string(l.Scope)))
	}
}

func checkMetric(m *mistakes, prefix string, l *Limit, allowed ...Metric) {
	if !slices.Contains(allowed, l.Metric) {
		m.add(prefix+"metric", oneOf(allowed...), "%s is not a metric of a %s", quoted(string(l.Metric)), l.Kind)
	}
}

func checkRing(m *mistakes, prefix string, l *Limit) {
	checkDuration(m, prefix+"window", l.Window, time.Second, MaxWindow, `a ring needs a window, such as "60s" or "30d"`)
	if l.Slots < 1 || l.Slots > MaxSlots {
		m.add(prefix+"slots", "window ÷ slots is the ring's precision: 60 slots of 60s, 720 of 30d",
			"must be 1 to %d, is %d", MaxSlots, l.Slots)
		return
	}
	if l.Window > 0 && time.Duration(l.Window)%(time.Duration(l.Slots)*time.Millisecond) != 0 {
		m.add(prefix+"slots", "choose slots that divide the window into whole milliseconds",
			"%s is not %d slots of whole milliseconds", l.Window, l.Slots)
	}
}

func checkRate(m *mistakes, prefix string, l *Limit) {
	checkDuration(m, prefix+"window", l.Window, time.Millisecond, day, `a rate needs a window, such as "1s"`)
	if l.Limit < 1 {
		m.add(prefix+"limit", "", "a rate must be at least 1, is %d", l.Limit)
	} else if micros := time.Duration(l.Window).Microseconds(); micros > 0 && l.Limit > micros {
		// The script spaces requests by whole microseconds.
		m.add(prefix+"limit", "one per microsecond is the most", "%d per %s is too fast", l.Limit, l.Window)
	}
	if l.Burst < 1 || l.Burst > 1_000_000 {
		m.add(prefix+"burst", "burst is how many requests may come at once", "must be 1 to 1000000, is %d", l.Burst)
	} else if l.Limit >= 1 && l.Window > 0 && l.Window <= Duration(day) &&
		time.Duration(l.Window).Microseconds()/l.Limit > maxRateSpan.Microseconds()/l.Burst {
		m.add(prefix+"burst", "lower burst or raise the rate", "%d requests at this rate are more than %s", l.Burst, Duration(maxRateSpan))
	}
}

// unused reports fields that the line's kind does not read: whoever set them
// believes that they do something.
func unused(m *mistakes, prefix string, l *Limit, names ...string) {
	set := map[string]bool{
		"metric": l.Metric != "", "window": l.Window != 0, "slots": l.Slots != 0, "burst": l.Burst != 0,
		"period": l.Period != "", "burst_percent": l.BurstPercent != 0, "budget": l.Budget,
	}
	for _, name := range names {
		if set[name] {
			m.add(prefix+name, "remove it", "has no meaning for a %s", l.Kind)
		}
	}
}

func checkTenantLimit(m *mistakes, prefix string, l *Limit) {
	if l.Scope == ScopeGlobal {
		m.add(prefix+"scope", "put it in the platform's document, or use scope tenant", "global is over all tenants")
	}
}

func checkKeyLimit(m *mistakes, prefix string, l *Limit) {
	if l.Scope != ScopeKey {
		m.add(prefix+"scope", "use scope key, or put it in the tenant's quota", "%s is wider than the key", quoted(string(l.Scope)))
	}
}

func checkPlatformLimit(m *mistakes, prefix string, l *Limit) {
	if l.Kind != KindLease {
		m.add(prefix+"kind", "use kind lease, or put it in tenants' quotas", "a limit over all tenants can only be a lease")
	}
	if l.Scope != ScopeEndpoint && l.Scope != ScopeGlobal {
		m.add(prefix+"scope", "use scope endpoint or global", "%s is not a scope over all tenants", quoted(string(l.Scope)))
	}
}
