package admission

import (
	"math"
	"testing"
)

func TestAddCount(t *testing.T) {
	for _, c := range []struct{ sum, more, want int64 }{
		{1, 2, 3},
		{5, -7, -2},
		{MaxCount - 1, 1, MaxCount},
		{MaxCount - 1, 2, MaxCount},
		{MaxCount, -5, MaxCount}, // it was more once
		{math.MaxInt64, math.MaxInt64, MaxCount},
		{1, math.MaxInt64, MaxCount},
		{-1, math.MaxInt64, MaxCount},
		{0, math.MinInt64, -MaxCount},
		{-1, math.MinInt64, -MaxCount},
		{math.MinInt64, math.MinInt64, -MaxCount},
		{-MaxCount, 3, 3 - MaxCount},
	} {
		if got := AddCount(c.sum, c.more); got != c.want {
			t.Errorf("AddCount(%d, %d) = %d, want %d", c.sum, c.more, got, c.want)
		}
	}
}
