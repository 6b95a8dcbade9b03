package reconcile

import (
	"errors"
	"fmt"
	"time"
)

// Policy is what an operator may choose. The zero value is not valid; start
// from DefaultPolicy.
type Policy struct {
	// HoldGrace is how long after its TTL a hold is left alone, so that a
	// client's late settlement and clocks that differ do no harm.
	HoldGrace time.Duration `json:"hold_grace"`
	// PendingDeadline is how long after its TTL a hold is ended at the latest.
	PendingDeadline time.Duration `json:"pending_deadline"`
	// EndedWait is how long after its TTL a hold waits for a final reading when
	// its execution is known to have ended.
	EndedWait time.Duration `json:"ended_wait"`

	// ThresholdPPM is the drift, in parts per million of the larger figure,
	// beyond which a window counts as drifting.
	ThresholdPPM int64 `json:"threshold_ppm"`
	// MinTokens and MinGPUMillis are the least differences that count at all.
	MinTokens    int64 `json:"min_tokens"`
	MinGPUMillis int64 `json:"min_gpu_ms"`
	// WindowGrace is how long after its end a window is first judged.
	WindowGrace time.Duration `json:"window_grace"`
	// ConfirmAfter is how long a window must stay over the threshold, from when
	// it was first seen so, before it freezes: readings that come late correct
	// it until then.
	ConfirmAfter time.Duration `json:"confirm_after"`
	// Lookback is how far back each run judges again.
	Lookback time.Duration `json:"lookback"`
}

// DefaultPolicy judges an hour five minutes after its end and freezes when it
// is still off by more than 5 % and 10,000 tokens (or 60 GPU seconds) 50
// minutes later. Holds end at most 24 hours after their TTL.
func DefaultPolicy() Policy {
	return Policy{
		HoldGrace:       time.Minute,
		PendingDeadline: 24 * time.Hour,
		EndedWait:       10 * time.Minute,
		ThresholdPPM:    50_000,
		MinTokens:       10_000,
		MinGPUMillis:    60_000,
		WindowGrace:     5 * time.Minute,
		ConfirmAfter:    50 * time.Minute,
		Lookback:        6 * time.Hour,
	}
}

// MaxLookback bounds how many hours one run judges, also after a long pause.
const MaxLookback = 72 * time.Hour

// Validate names every setting that cannot work.
func (p Policy) Validate() error {
	var errs []error
	need := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	need(p.HoldGrace >= 0, "hold grace %s: must not be negative", p.HoldGrace)
	need(p.PendingDeadline > 0, "pending deadline %s: must be positive", p.PendingDeadline)
	need(p.HoldGrace <= p.PendingDeadline, "hold grace %s: must not exceed the pending deadline %s", p.HoldGrace, p.PendingDeadline)
	need(p.EndedWait >= 0, "ended wait %s: must not be negative", p.EndedWait)
	need(p.ThresholdPPM > 0 && p.ThresholdPPM <= 1_000_000, "drift threshold %d ppm: must be 1 to 1000000", p.ThresholdPPM)
	need(p.MinTokens >= 0, "least token difference %d: must not be negative", p.MinTokens)
	need(p.MinGPUMillis >= 0, "least GPU difference %d ms: must not be negative", p.MinGPUMillis)
	need(p.WindowGrace >= 0 && p.WindowGrace < time.Hour, "window grace %s: must be 0s to under 1h", p.WindowGrace)
	need(p.ConfirmAfter >= 0, "confirm after %s: must not be negative", p.ConfirmAfter)
	need(p.Lookback >= p.ConfirmAfter+2*time.Hour && p.Lookback <= MaxLookback,
		"lookback %s: must be at least 2h more than confirm after (%s) and at most %s", p.Lookback, p.ConfirmAfter, MaxLookback)
	return errors.Join(errs...)
}
