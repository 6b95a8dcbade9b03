package loadclient

import (
	"math"
	"math/bits"
	"sync/atomic"
	"time"
)

// Histogram counts durations in buckets whose width grows with their value, as
// HdrHistogram does: 1,024 buckets for each doubling, so that a quantile is at
// most 0.1 % above the true one; below 1.024 µs it is exact. Durations above
// 2^37 ns (137 s) count as that. It is safe for concurrent use.
type Histogram struct {
	buckets [(maxBits - subBits + 1) << subBits]atomic.Int64
	count   atomic.Int64
	sum     atomic.Int64
	max     atomic.Int64
}

const (
	subBits = 10
	maxBits = 37
)

// NewHistogram returns an empty histogram.
func NewHistogram() *Histogram { return &Histogram{} }

// Record counts d; a negative d counts as zero.
func (h *Histogram) Record(d time.Duration) {
	ns := max(int64(d), 0)
	h.buckets[bucketOf(ns)].Add(1)
	h.count.Add(1)
	h.sum.Add(ns)
	for {
		old := h.max.Load()
		if ns <= old || h.max.CompareAndSwap(old, ns) {
			return
		}
	}
}

// Count is the number of recorded durations.
func (h *Histogram) Count() int64 { return h.count.Load() }

// Max is the longest recorded duration, exactly.
func (h *Histogram) Max() time.Duration { return time.Duration(h.max.Load()) }

// Mean is the mean of the recorded durations; 0 when there are none.
func (h *Histogram) Mean() time.Duration {
	n := h.count.Load()
	if n == 0 {
		return 0
	}
	return time.Duration(h.sum.Load() / n)
}

// Quantile returns the duration that the fraction q (0 < q ≤ 1) of all
// recorded durations do not exceed, by nearest rank.
func (h *Histogram) Quantile(q float64) time.Duration {
	n := h.count.Load()
	if n == 0 {
		return 0
	}
	rank := max(int64(math.Ceil(q*float64(n))), 1)
	var seen int64
	for i := range h.buckets {
		seen += h.buckets[i].Load()
		if seen >= rank {
			return min(time.Duration(upperOf(i)), h.Max())
		}
	}
	return h.Max()
}

// bucketOf: values below 2^subBits have a bucket each; above, the top subBits
// bits after the leading one choose the bucket within the doubling.
func bucketOf(ns int64) int {
	ns = min(ns, 1<<maxBits-1)
	if ns < 1<<subBits {
		return int(ns)
	}
	shift := bits.Len64(uint64(ns)) - 1 - subBits
	return (shift+1)<<subBits + int(ns>>shift) - 1<<subBits
}

// upperOf is the largest value that falls into bucket i.
func upperOf(i int) int64 {
	if i < 1<<subBits {
		return int64(i)
	}
	shift := i>>subBits - 1
	return (int64(i&(1<<subBits-1))+1<<subBits+1)<<shift - 1
}
