package reconcile

import (
	"math"
	"math/bits"
	"time"
)

// Figures sets the meters of one tenant and window side by side. A meter that
// is not known is missing, which is not the same as a count of zero.
type Figures struct {
	GatewayTokens int64 `json:"gateway_tokens"`
	ModelTokens   int64 `json:"model_tokens"`
	ModelKnown    bool  `json:"model_known"`
	GatewayGPU    int64 `json:"gateway_gpu_ms"`
	MeterGPU      int64 `json:"meter_gpu_ms"`
	GPUKnown      bool  `json:"gpu_known"`
	// UnmeteredTokens is what the gateway settled for models that no meter
	// reported on; it is not part of GatewayTokens.
	UnmeteredTokens int64 `json:"unmetered_tokens"`
	// EstimatedTokens is the part of GatewayTokens that the gateway counted
	// itself, for answers of which nobody said what they used.
	EstimatedTokens int64 `json:"estimated_tokens"`
}

// Add sums figures of windows that follow each other.
func (f Figures) Add(o Figures) Figures {
	return Figures{
		GatewayTokens:   satAdd(f.GatewayTokens, o.GatewayTokens),
		ModelTokens:     satAdd(f.ModelTokens, o.ModelTokens),
		ModelKnown:      f.ModelKnown || o.ModelKnown,
		GatewayGPU:      satAdd(f.GatewayGPU, o.GatewayGPU),
		MeterGPU:        satAdd(f.MeterGPU, o.MeterGPU),
		GPUKnown:        f.GPUKnown || o.GPUKnown,
		UnmeteredTokens: satAdd(f.UnmeteredTokens, o.UnmeteredTokens),
		EstimatedTokens: satAdd(f.EstimatedTokens, o.EstimatedTokens),
	}
}

// Difference is how far two meters are apart.
type Difference struct {
	TokensPPM int64 `json:"tokens_ppm"` // parts per million of the larger figure, rounded down
	GPUPPM    int64 `json:"gpu_ppm"`
	Known     bool  `json:"known"` // at least one pair of meters could be compared
	Over      bool  `json:"over"`  // a pair is beyond the threshold and the least difference
}

// Drift compares gateway with model meter and gateway with GPU meter, each
// where both are known, in exact integer arithmetic. A pair is over when its
// difference is at least the policy's least one and more than ThresholdPPM of
// the larger figure's magnitude. Tokens that were counted by estimate may be off
// by half: as much of the difference is no drift.
func Drift(f Figures, p Policy) Difference {
	var d Difference
	if f.ModelKnown {
		var over bool
		d.TokensPPM, _ = apart(f.GatewayTokens, f.ModelTokens, p.ThresholdPPM, p.MinTokens)
		_, over = apart(towards(f.GatewayTokens, f.ModelTokens, f.EstimatedTokens/2), f.ModelTokens, p.ThresholdPPM, p.MinTokens)
		d.Known, d.Over = true, d.Over || over
	}
	if f.GPUKnown {
		var over bool
		d.GPUPPM, over = apart(f.GatewayGPU, f.MeterGPU, p.ThresholdPPM, p.MinGPUMillis)
		d.Known, d.Over = true, d.Over || over
	}
	return d
}

// towards moves a to b, by most at most.
func towards(a, b, most int64) int64 {
	most = max(most, 0)
	if a > b {
		return max(b, satAdd(a, -most))
	}
	return min(b, satAdd(a, most))
}

// apart returns |a − b| in parts per million of max(|a|, |b|), at most
// 2,000,000, and whether that is over. The comparison is made on the products
// in 128 bits, never on the rounded quotient.
func apart(a, b, thresholdPPM, least int64) (ppm int64, over bool) {
	diff := uint64(a) - uint64(b) // wraps to the true distance, which is below 2^64
	if a < b {
		diff = uint64(b) - uint64(a)
	}
	base := max(magnitude(a), magnitude(b))
	if base == 0 {
		return 0, false
	}
	// diff ≤ 2 × base, so the quotient is at most 2,000,000 and Div64 cannot overflow.
	hi, lo := bits.Mul64(diff, 1_000_000)
	quotient, _ := bits.Div64(hi, lo, base)

	limitHi, limitLo := bits.Mul64(base, uint64(thresholdPPM))
	beyond := hi > limitHi || (hi == limitHi && lo > limitLo)
	return int64(quotient), beyond && diff >= uint64(least)
}

func magnitude(n int64) uint64 {
	if n < 0 {
		return -uint64(n)
	}
	return uint64(n)
}

func satAdd(a, b int64) int64 {
	sum := a + b
	switch {
	case a > 0 && b > 0 && sum < 0:
		return math.MaxInt64
	case a < 0 && b < 0 && sum >= 0:
		return math.MinInt64
	}
	return sum
}

// Verdict is what a window's comparison amounts to.
type Verdict string

// Verdicts. Suspect is over the threshold but may still be corrected by late
// readings; Drift has stayed over it.
const (
	VerdictUnknown Verdict = "unknown"
	VerdictOK      Verdict = "ok"
	VerdictSuspect Verdict = "suspect"
	VerdictDrift   Verdict = "drift"
)

// Judge turns a comparison into a verdict. overSince is when the window was
// first seen over the threshold without a break; it equals now the first time.
func Judge(d Difference, overSince, now time.Time, p Policy) Verdict {
	switch {
	case !d.Known:
		return VerdictUnknown
	case !d.Over:
		return VerdictOK
	case now.Before(overSince.Add(p.ConfirmAfter)):
		return VerdictSuspect
	default:
		return VerdictDrift
	}
}
