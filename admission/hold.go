package admission

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/bits"
	"sync/atomic"

	"tollgate/events"
	"tollgate/tenancy"
)

// MilliPerUnit is how many milli-units one token of weight 1 counts.
const MilliPerUnit = 1000

// imageFactor makes quota tokens of an image's equivalent tokens.
const imageFactor = 30

// defaultWeightMilli is the weight of a model that the platform does not list.
const defaultWeightMilli = 1000

// Figures are what a request's body asks for. A negative MaxOutputTokens means
// that none was given; zero is a request without output.
type Figures struct {
	InputTokens     int64
	MaxOutputTokens int64
	ToolCalls       int64
	Images          int64
	AudioMillis     int64
	GPUMillis       int64
}

// Worst is the worst case of a request: what is held until it ends.
type Worst struct {
	Hold        events.Usage // OutputTokens is the granted cap
	WeightMilli int64
	ImageTokens int64 // quota tokens of one image
}

// Hold computes a request's worst case. A request without max_output_tokens is
// held at the tenant's default cap, else the model's, else the platform's, and
// at no more than the smallest of its token limits leaves beside its input, so
// that a small limit never demands the field of its clients; at least one
// token. It fails with ErrInvalid when a figure is negative or the worst case
// exceeds MaxUnits.
func Hold(f Figures, tenant *tenancy.Tenant, model string, platform *tenancy.Platform, limits []Constraint) (Worst, error) {
	w := Worst{WeightMilli: defaultWeightMilli}
	var modelCap int64
	if m := findModel(platform, model); m != nil {
		if m.WeightMilli > 0 {
			w.WeightMilli = m.WeightMilli
		}
		w.ImageTokens = m.ImageTokens * imageFactor
		modelCap = m.DefaultMaxOutputTokens
	}
	w.Hold = events.Usage{
		InputTokens: f.InputTokens, OutputTokens: f.MaxOutputTokens, ToolCalls: f.ToolCalls,
		Images: f.Images, AudioMillis: f.AudioMillis, GPUMillis: f.GPUMillis,
	}
	if f.MaxOutputTokens < 0 {
		w.Hold.OutputTokens = 0
		beside, err := Units(w.Hold, w.WeightMilli, w.ImageTokens)
		if err != nil {
			return Worst{}, err
		}
		w.Hold.OutputTokens = outputCap(tenant, modelCap, platform, limits, beside, w.WeightMilli)
	}
	if _, err := Units(w.Hold, w.WeightMilli, w.ImageTokens); err != nil {
		return Worst{}, err
	}
	return w, nil
}

func outputCap(tenant *tenancy.Tenant, modelCap int64, platform *tenancy.Platform, limits []Constraint, beside, weight int64) int64 {
	limit := tenant.Quota.DefaultMaxOutputTokens
	if limit == 0 {
		limit = modelCap
	}
	if limit == 0 && platform != nil {
		limit = platform.DefaultMaxOutputTokens
	}
	for i := range limits {
		c := &limits[i]
		if c.Limit.Kind != tenancy.KindRing && c.Limit.Kind != tenancy.KindCounter {
			continue
		}
		switch c.Limit.Metric {
		case tenancy.MetricTokens:
			limit = min(limit, (c.Units-beside)/weight)
		case tenancy.MetricOutputTokens:
			limit = min(limit, c.Units)
		}
	}
	return max(limit, 1)
}

// modelIndex finds models of the platform document that is in force. Documents
// are immutable, so an index belongs to a pointer.
type modelIndex struct {
	of     *tenancy.Platform
	byName map[string]*tenancy.Model
}

var lastIndex atomic.Pointer[modelIndex]

func findModel(platform *tenancy.Platform, name string) *tenancy.Model {
	if platform == nil {
		return nil
	}
	ix := lastIndex.Load()
	if ix == nil || ix.of != platform {
		ix = &modelIndex{of: platform, byName: make(map[string]*tenancy.Model, len(platform.Models))}
		for i := range platform.Models {
			ix.byName[platform.Models[i].Name] = &platform.Models[i]
		}
		lastIndex.Store(ix)
	}
	return ix.byName[name]
}

// Units counts usage in milli-units: (input + output + images × imageTokens) ×
// weightMilli. Prompt and completion tokens weigh the same; cached and
// reasoning tokens are parts of them. It fails with ErrInvalid when a figure is
// negative or anything exceeds MaxUnits.
func Units(u events.Usage, weightMilli, imageTokens int64) (int64, error) {
	for _, v := range [...]int64{
		u.InputTokens, u.OutputTokens, u.CachedInputTokens, u.ReasoningTokens,
		u.ToolCalls, u.Images, u.AudioMillis, u.GPUMillis, weightMilli, imageTokens,
	} {
		if v < 0 || v > MaxUnits {
			return 0, fmt.Errorf("%w: a count of %d is outside 0 to 2^52", ErrInvalid, v)
		}
	}
	hi, images := bits.Mul64(uint64(u.Images), uint64(imageTokens))
	if hi != 0 || images > uint64(MaxUnits) {
		return 0, tooMuch()
	}
	tokens := uint64(u.InputTokens) + uint64(u.OutputTokens) + images
	hi, units := bits.Mul64(tokens, uint64(weightMilli))
	if hi != 0 || units > uint64(MaxUnits) {
		return 0, tooMuch()
	}
	return int64(units), nil
}

func tooMuch() error {
	return fmt.Errorf("%w: more than 2^52 milli-units", ErrInvalid)
}

// BodyHash identifies a reserve body: two requests with the same hash ask for
// the same. It covers what the client sent, not what was derived from it, so
// that a changed default does not turn a retry into another request.
func BodyHash(endpoint, model string, f Figures) [16]byte {
	b := make([]byte, 0, 256)
	b = append(b, 1) // version of the canonical form
	for _, s := range [...]string{endpoint, model} {
		b = binary.AppendUvarint(b, uint64(len(s)))
		b = append(b, s...)
	}
	for _, v := range [...]int64{f.InputTokens, max(f.MaxOutputTokens, -1), f.ToolCalls, f.Images, f.AudioMillis, f.GPUMillis} {
		b = binary.AppendVarint(b, v)
	}
	sum := sha256.Sum256(b)
	return [16]byte(sum[:16])
}
