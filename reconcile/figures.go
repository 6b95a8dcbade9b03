package reconcile

import "slices"

// ModelFigures is what ledger and meters say of one tenant, model and hour.
//
// A use is metered in one of two ways: by readings of its reservation, or in
// increments of an interval. Readings of reservations are set against the
// reservations that ended in the hour, whole, so a stream across the hour's
// boundary is no drift. Increments are set against the use of the hour.
type ModelFigures struct {
	Model string // "" for increments of all models together

	UsageTokens, UsageGPU   int64 // gateway: the hour's bucket
	CohortTokens, CohortGPU int64 // gateway: reservations that ended in the hour

	ReadTokens, ReadGPU   int64 // meters: highest readings of those reservations
	StrayTokens, StrayGPU int64 // meters: readings of reservations that the ledger does not know
	TokenReads, GPUReads  int64 // how many reservations were read, strays included

	EstimatedTokens int64 // of CohortTokens: the front door's own count

	IntervalTokens, IntervalGPU          int64 // meters: increments
	IntervalTokenReads, IntervalGPUReads int64
}

// Combine sets the meters of one tenant and hour side by side. Models without
// any token reading stay out of the comparison on both sides and count as
// unmetered. A gateway that counted no GPU time at all does not meter it, so
// its GPU figure is unknown.
func Combine(rows []ModelFigures) Figures {
	rows = slices.Clone(rows)
	// An increment that names no model speaks of all of them together.
	for _, row := range rows {
		if row.Model == "" && row.IntervalTokenReads+row.IntervalGPUReads > 0 {
			rows = []ModelFigures{sumOf(rows)}
			break
		}
	}
	var f Figures
	for _, row := range rows {
		gateway, meter, known := row.tokens()
		if known {
			f.ModelKnown = true
			f.GatewayTokens = satAdd(f.GatewayTokens, gateway)
			f.ModelTokens = satAdd(f.ModelTokens, meter)
			f.EstimatedTokens = satAdd(f.EstimatedTokens, row.EstimatedTokens)
		} else {
			f.UnmeteredTokens = satAdd(f.UnmeteredTokens, row.UsageTokens)
		}
		if gateway, meter, known := row.gpu(); known {
			f.GPUKnown = true
			f.GatewayGPU = satAdd(f.GatewayGPU, gateway)
			f.MeterGPU = satAdd(f.MeterGPU, meter)
		}
	}
	if f.GatewayGPU == 0 {
		f.GPUKnown = false
	}
	return f
}

func (m ModelFigures) tokens() (gateway, meter int64, known bool) {
	gateway, meter = m.CohortTokens, satAdd(m.ReadTokens, m.StrayTokens)
	if m.IntervalTokenReads > 0 {
		gateway, meter = m.UsageTokens, satAdd(meter, m.IntervalTokens)
	}
	return gateway, meter, m.TokenReads+m.IntervalTokenReads > 0
}

func (m ModelFigures) gpu() (gateway, meter int64, known bool) {
	gateway, meter = m.CohortGPU, satAdd(m.ReadGPU, m.StrayGPU)
	if m.IntervalGPUReads > 0 {
		gateway, meter = m.UsageGPU, satAdd(meter, m.IntervalGPU)
	}
	return gateway, meter, m.GPUReads+m.IntervalGPUReads > 0
}

func sumOf(rows []ModelFigures) ModelFigures {
	var s ModelFigures
	for _, r := range rows {
		s.UsageTokens = satAdd(s.UsageTokens, r.UsageTokens)
		s.UsageGPU = satAdd(s.UsageGPU, r.UsageGPU)
		s.EstimatedTokens = satAdd(s.EstimatedTokens, r.EstimatedTokens)
		s.CohortTokens = satAdd(s.CohortTokens, r.CohortTokens)
		s.CohortGPU = satAdd(s.CohortGPU, r.CohortGPU)
		s.ReadTokens = satAdd(s.ReadTokens, r.ReadTokens)
		s.ReadGPU = satAdd(s.ReadGPU, r.ReadGPU)
		s.StrayTokens = satAdd(s.StrayTokens, r.StrayTokens)
		s.StrayGPU = satAdd(s.StrayGPU, r.StrayGPU)
		s.TokenReads += r.TokenReads
		s.GPUReads += r.GPUReads
		s.IntervalTokens = satAdd(s.IntervalTokens, r.IntervalTokens)
		s.IntervalGPU = satAdd(s.IntervalGPU, r.IntervalGPU)
		s.IntervalTokenReads += r.IntervalTokenReads
		s.IntervalGPUReads += r.IntervalGPUReads
	}
	return s
}
