package admission

// MaxCount is where a sum of use ends: the largest number up to which Lua's
// doubles count by ones. It is above every limit, so what has reached it refuses.
const MaxCount = int64(1)<<53 - 1

// AddCount adds to a sum of use. A sum that has reached MaxCount stays there,
// whatever is added or taken back: it is no longer known how far beyond it is,
// and use that cannot be told must not become free.
func AddCount(sum, more int64) int64 {
	sum = max(sum, -MaxCount) // so that neither difference overflows
	switch {
	case sum >= MaxCount || more > MaxCount-sum:
		return MaxCount
	case more < -MaxCount-sum:
		return -MaxCount
	}
	return sum + more
}
