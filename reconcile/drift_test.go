package reconcile

import (
	"math"
	"math/big"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestDrift(t *testing.T) {
	p := DefaultPolicy()
	p.ThresholdPPM, p.MinTokens, p.MinGPUMillis = 50_000, 100, 1_000
	tokens := func(gateway, model int64) Figures {
		return Figures{GatewayTokens: gateway, ModelTokens: model, ModelKnown: true}
	}
	tests := []struct {
		name string
		in   Figures
		want Difference
	}{
		{"no meter at all", Figures{GatewayTokens: 1 << 40}, Difference{}},
		{"a missing meter is unknown, not zero", Figures{GatewayTokens: 5_000, ModelTokens: 0}, Difference{}},
		{"both zero", tokens(0, 0), Difference{Known: true}},
		{"equal", tokens(5_000, 5_000), Difference{Known: true}},
		{"meter counted nothing", tokens(5_000, 0), Difference{TokensPPM: 1_000_000, Known: true, Over: true}},
		{"gateway counted nothing", tokens(0, 5_000), Difference{TokensPPM: 1_000_000, Known: true, Over: true}},
		{"at the threshold exactly", tokens(10_000, 9_500), Difference{TokensPPM: 50_000, Known: true}},
		{"one token beyond", tokens(10_000, 9_499), Difference{TokensPPM: 50_100, Known: true, Over: true}},
		{"beyond by less than a millionth", tokens(20_000_001, 19_000_000), Difference{TokensPPM: 50_000, Known: true, Over: true}},
		{"great part, small number", tokens(100, 1), Difference{TokensPPM: 990_000, Known: true}},
		{"least difference exactly", tokens(200, 100), Difference{TokensPPM: 500_000, Known: true, Over: true}},
		{
			"estimates may be off by half",
			Figures{GatewayTokens: 10_000, ModelTokens: 9_000, ModelKnown: true, EstimatedTokens: 2_000},
			Difference{TokensPPM: 100_000, Known: true},
		},
		{
			"and not by more",
			Figures{GatewayTokens: 10_000, ModelTokens: 8_400, ModelKnown: true, EstimatedTokens: 2_000},
			Difference{TokensPPM: 160_000, Known: true, Over: true},
		},
		{
			"estimates that are too low",
			Figures{GatewayTokens: 9_000, ModelTokens: 10_000, ModelKnown: true, EstimatedTokens: 2_000},
			Difference{TokensPPM: 100_000, Known: true},
		},
		{
			"estimates are no room for what is exact",
			Figures{GatewayTokens: 10_000, ModelTokens: 5_000, ModelKnown: true, EstimatedTokens: 200},
			Difference{TokensPPM: 500_000, Known: true, Over: true},
		},
		{"negative gateway", tokens(-200, 200), Difference{TokensPPM: 2_000_000, Known: true, Over: true}},
		{"both negative", tokens(-1_000, -1_000), Difference{Known: true}},
		{"largest against zero", tokens(math.MaxInt64, 0), Difference{TokensPPM: 1_000_000, Known: true, Over: true}},
		{"extremes", tokens(math.MinInt64, math.MaxInt64), Difference{TokensPPM: 1_999_999, Known: true, Over: true}},
		{"extremes, other way", tokens(math.MaxInt64, math.MinInt64), Difference{TokensPPM: 1_999_999, Known: true, Over: true}},
		{"smallest against itself", tokens(math.MinInt64, math.MinInt64), Difference{Known: true}},
		{
			"GPU alone",
			Figures{GatewayGPU: 10_000, MeterGPU: 12_000, GPUKnown: true},
			Difference{GPUPPM: 166_666, Known: true, Over: true},
		},
		{
			"tokens fine, GPU off",
			Figures{GatewayTokens: 7, ModelTokens: 7, ModelKnown: true, GatewayGPU: 2_000, MeterGPU: 0, GPUKnown: true},
			Difference{GPUPPM: 1_000_000, Known: true, Over: true},
		},
		{"GPU off by too little to matter", Figures{GatewayGPU: 999, GPUKnown: true}, Difference{GPUPPM: 1_000_000, Known: true}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := Drift(tt.in, p); got != tt.want {
				t.Errorf("Drift = %+v; want %+v", got, tt.want)
			}
		})
	}
}

// TestDriftExact compares with unbounded arithmetic, over all of int64.
func TestDriftExact(t *testing.T) {
	number := rapid.OneOf(rapid.Int64(), rapid.Int64Range(-1000, 1000), rapid.SampledFrom([]int64{math.MinInt64, math.MaxInt64, 0, 1, -1}))
	rapid.Check(t, func(t *rapid.T) {
		a, b := number.Draw(t, "a"), number.Draw(t, "b")
		threshold := rapid.Int64Range(1, 1_000_000).Draw(t, "threshold")
		least := rapid.OneOf(rapid.Int64Range(0, 1000), rapid.Int64Range(0, math.MaxInt64)).Draw(t, "least")
		ppm, over := apart(a, b, threshold, least)

		A, B := big.NewInt(a), big.NewInt(b)
		diff := new(big.Int).Abs(new(big.Int).Sub(A, B))
		base := new(big.Int).Abs(A)
		if abs := new(big.Int).Abs(B); abs.Cmp(base) > 0 {
			base = abs
		}
		if base.Sign() == 0 {
			if ppm != 0 || over {
				t.Fatalf("apart(0, 0) = %d, %t", ppm, over)
			}
			return
		}
		scaled := new(big.Int).Mul(diff, big.NewInt(1_000_000))
		if want := new(big.Int).Quo(scaled, base).Int64(); ppm != want {
			t.Fatalf("apart(%d, %d) = %d ppm; want %d", a, b, ppm, want)
		}
		beyond := scaled.Cmp(new(big.Int).Mul(base, big.NewInt(threshold))) > 0
		if want := beyond && diff.Cmp(big.NewInt(least)) >= 0; over != want {
			t.Fatalf("apart(%d, %d, %d, %d) over = %t; want %t", a, b, threshold, least, over, want)
		}
		if otherPPM, otherOver := apart(b, a, threshold, least); otherPPM != ppm || otherOver != over {
			t.Fatalf("not symmetric: %d %t and %d %t", ppm, over, otherPPM, otherOver)
		}
	})
}

func TestJudge(t *testing.T) {
	p := DefaultPolicy()
	p.ConfirmAfter = 50 * time.Minute
	over := Difference{Known: true, Over: true}
	tests := []struct {
		name  string
		d     Difference
		since time.Duration // before now
		want  Verdict
	}{
		{"unknown", Difference{}, 10 * time.Hour, VerdictUnknown},
		{"fine", Difference{Known: true, TokensPPM: 3}, 10 * time.Hour, VerdictOK},
		{"seen for the first time", over, 0, VerdictSuspect},
		{"a moment short", over, 50*time.Minute - 1, VerdictSuspect},
		{"lasting", over, 50 * time.Minute, VerdictDrift},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := Judge(tt.d, t0.Add(-tt.since), t0, p); got != tt.want {
				t.Errorf("Judge = %s; want %s", got, tt.want)
			}
		})
	}
}

func TestCombine(t *testing.T) {
	tests := []struct {
		name string
		rows []ModelFigures
		want Figures
	}{
		{"nothing", nil, Figures{}},
		{
			"no meter: unmetered, not drift",
			[]ModelFigures{{Model: "m", UsageTokens: 500, CohortTokens: 480}},
			Figures{UnmeteredTokens: 500},
		},
		{
			// The stream began in the hour before: the bucket has a part of it,
			// the reservation all of it, and so has the meter.
			"readings of reservations stand against whole reservations",
			[]ModelFigures{{Model: "m", UsageTokens: 300, CohortTokens: 500, ReadTokens: 500, TokenReads: 3}},
			Figures{GatewayTokens: 500, ModelTokens: 500, ModelKnown: true},
		},
		{
			"use that the ledger does not know",
			[]ModelFigures{{Model: "m", StrayTokens: 70, TokenReads: 1}},
			Figures{ModelTokens: 70, ModelKnown: true},
		},
		{
			"increments stand against the bucket",
			[]ModelFigures{{Model: "m", UsageTokens: 300, CohortTokens: 500, IntervalTokens: 310, IntervalTokenReads: 2}},
			Figures{GatewayTokens: 300, ModelTokens: 310, ModelKnown: true},
		},
		{
			"an unmetered model stays out of both sides",
			[]ModelFigures{
				{Model: "a", UsageTokens: 100, CohortTokens: 100, ReadTokens: 100, TokenReads: 1},
				{Model: "b", UsageTokens: 900, CohortTokens: 900},
			},
			Figures{GatewayTokens: 100, ModelTokens: 100, ModelKnown: true, UnmeteredTokens: 900},
		},
		{
			"an increment of all models covers them all",
			[]ModelFigures{
				{Model: "", IntervalTokens: 1000, IntervalTokenReads: 1},
				{Model: "a", UsageTokens: 100},
				{Model: "b", UsageTokens: 900},
			},
			Figures{GatewayTokens: 1000, ModelTokens: 1000, ModelKnown: true},
		},
		{
			"a gateway without GPU figures does not meter GPUs",
			[]ModelFigures{{Model: "m", CohortTokens: 5, ReadTokens: 5, TokenReads: 1, ReadGPU: 9_000, GPUReads: 1}},
			Figures{GatewayTokens: 5, ModelTokens: 5, ModelKnown: true, MeterGPU: 9_000},
		},
		{
			"GPU figures",
			[]ModelFigures{{Model: "m", CohortGPU: 8_000, ReadGPU: 9_000, GPUReads: 1}},
			Figures{GatewayGPU: 8_000, MeterGPU: 9_000, GPUKnown: true},
		},
		{
			"sums saturate",
			[]ModelFigures{
				{Model: "a", CohortTokens: math.MaxInt64, ReadTokens: math.MaxInt64, StrayTokens: math.MaxInt64, TokenReads: 1},
				{Model: "b", CohortTokens: 1, ReadTokens: 1, TokenReads: 1},
			},
			Figures{GatewayTokens: math.MaxInt64, ModelTokens: math.MaxInt64, ModelKnown: true},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, Combine(tt.rows)); diff != "" {
				t.Errorf("Combine (-want +got):\n%s", diff)
			}
		})
	}
}
