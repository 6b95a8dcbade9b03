package bench

import "testing"

func TestSharesFollowTheirWeights(t *testing.T) {
	var got [tenants]int
	walk := shares()
	for _, k := range walk {
		got[k]++
	}
	harmonic := 0.0
	for k := range tenants {
		harmonic += 1 / float64(k+1)
	}
	for k, n := range got {
		want := float64(len(walk)) / (float64(k+1) * harmonic)
		if diff := float64(n) - want; diff < -2 || diff > 2 {
			t.Errorf("tenant %d is visited %d times, want about %.0f", k, n, want)
		}
	}
}
