package ledger

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	"tollgate/events"
)

// Sums are the sums of a batch's events, in the order of their keys, so that
// any two flushes lock rows in the same order.
type Sums struct {
	Reservations []ReservationSum
	Usage        []UsageSum
	// Overflow is set where a sum left the range of an int64 and so is not
	// right: it stands at the end of the range, or lacks what did not fit.
	Overflow bool
}

// ReservationSum is what a batch adds to a reservation.
type ReservationSum struct {
	Head   *Entry // the event with the highest (final, seq, id)
	Events int64
	Usage  events.Usage

	MilliUnits              int64
	FirstMicros, LastMicros int64
}

// UsageKey names a bucket of usage_hour.
type UsageKey struct {
	TenantID               string
	HourMicros             int64 // since the Unix epoch
	Model, Endpoint, KeyID string
}

// UsageSum is what a batch adds to a bucket.
type UsageSum struct {
	UsageKey
	Amount Amount
}

// Amount is a row of figures as the usage tables keep it.
type Amount struct {
	Requests int64 `json:"requests"`
	events.Usage
	MilliUnits int64 `json:"milli_units"`
}

// Add adds o to a. It returns false when a figure left the range of an int64;
// that stays at the range's end.
func (a *Amount) Add(o Amount) bool {
	ok := addUsage(&a.Usage, &o.Usage)
	ok = add(&a.Requests, o.Requests) && ok
	return add(&a.MilliUnits, o.MilliUnits) && ok
}

func addUsage(a, b *events.Usage) bool {
	ok := add(&a.InputTokens, b.InputTokens)
	ok = add(&a.OutputTokens, b.OutputTokens) && ok
	ok = add(&a.CachedInputTokens, b.CachedInputTokens) && ok
	ok = add(&a.ReasoningTokens, b.ReasoningTokens) && ok
	ok = add(&a.ToolCalls, b.ToolCalls) && ok
	ok = add(&a.Images, b.Images) && ok
	ok = add(&a.AudioMillis, b.AudioMillis) && ok
	return add(&a.GPUMillis, b.GPUMillis) && ok
}

// add adds b to a and says whether the sum is right; one that is beyond an
// int64's range becomes its end.
func add(a *int64, b int64) bool {
	sum := *a + b
	switch {
	case b > 0 && sum < *a:
		*a = math.MaxInt64
	case b < 0 && sum > *a:
		*a = math.MinInt64
	default:
		*a = sum
		return true
	}
	return false
}

// Amount is what the event adds to its bucket.
func (e *Entry) Amount() Amount {
	a := Amount{Usage: e.Delta, MilliUnits: e.MilliUnits}
	if e.Final() {
		a.Requests = 1
	}
	return a
}

// Sum sums the entries that keep accepts; nil accepts all. An event that adds
// nothing makes no bucket, so which buckets there are does not depend on how
// the log was cut into batches.
func (b *Batch) Sum(keep func(i int) bool) Sums {
	f := NewFold()
	for i := range b.Entries {
		if keep == nil || keep(i) {
			f.overflow = !f.Add(&b.Entries[i]) || f.overflow
		}
	}
	return f.Sums()
}

// Fold sums events by reservation and by bucket, in any order.
type Fold struct {
	reservations map[string]*ReservationSum
	usage        map[UsageKey]*Amount
	hour         UsageKey
	amount       *Amount // of hour: neighbours often share a bucket
	overflow     bool    // an event was left out
	copyHeads    bool    // keep copies of heads, so that their batches can go
}

// NewFold returns a fold of nothing.
func NewFold() *Fold {
	return &Fold{reservations: make(map[string]*ReservationSum), usage: make(map[UsageKey]*Amount)}
}

// Add folds one event, and says whether its sums took it: where one would leave
// the range of an int64, nothing is folded. It may keep e.
func (f *Fold) Add(e *Entry) bool {
	r := f.reservations[e.ReservationID]
	usage, milli := e.Delta, e.MilliUnits
	if r != nil && (!addUsage(&usage, &r.Usage) || !add(&milli, r.MilliUnits)) {
		return false
	}
	if a := e.Amount(); a != (Amount{}) {
		bucket := f.bucket(e)
		sum := *bucket
		if !sum.Add(a) {
			return false
		}
		*bucket = sum
	}
	if e.ReservationID != "" {
		r = f.addReservation(r, e)
		r.Usage, r.MilliUnits = usage, milli
	}
	return true
}

// addReservation adds all of an event but its figures to its reservation; r is
// nil for the first one.
func (f *Fold) addReservation(r *ReservationSum, e *Entry) *ReservationSum {
	if r == nil {
		r = f.newReservation(e)
		r.FirstMicros, r.LastMicros = e.TimeMicros, e.TimeMicros
		f.reservations[r.Head.ReservationID] = r
	} else if e.after(r.Head) {
		if f.copyHeads {
			r.Head.copyHead(e)
		} else {
			r.Head = e
		}
	}
	r.Events++
	r.FirstMicros = min(r.FirstMicros, e.TimeMicros)
	r.LastMicros = max(r.LastMicros, e.TimeMicros)
	return r
}

// newReservation returns a sum of nothing whose head is e, or a copy of e.
func (f *Fold) newReservation(e *Entry) *ReservationSum {
	if !f.copyHeads {
		return &ReservationSum{Head: e}
	}
	own := new(struct {
		ReservationSum
		head Entry
	})
	own.head.copyHead(e)
	own.Head = &own.head
	return &own.ReservationSum
}

// copyHead takes over what a head is kept for. Strings may be parts of a
// record's payload, which should go.
func (e *Entry) copyHead(o *Entry) {
	keep := func(mine *string, v string) {
		if *mine != v {
			*mine = strings.Clone(v)
		}
	}
	e.EventID, e.Seq, e.State = o.EventID, o.Seq, o.State
	keep(&e.TenantID, o.TenantID)
	keep(&e.ReservationID, o.ReservationID)
	keep(&e.RequestID, o.RequestID)
	keep(&e.KeyID, o.KeyID)
	keep(&e.Endpoint, o.Endpoint)
	keep(&e.Model, o.Model)
	e.TotalMilliUnits, e.HeldMilliUnits, e.WeightMilli = o.TotalMilliUnits, o.HeldMilliUnits, o.WeightMilli
	e.ExpiresMicros, e.Estimated = o.ExpiresMicros, o.Estimated
}

// after says whether e decides over o what state their reservation is in. Once
// final, always final: where admission lost the end of a reservation and goes on
// with an older state of it, what that emits does not open it again.
func (e *Entry) after(o *Entry) bool {
	if e.ended() != o.ended() {
		return e.ended()
	}
	return e.Seq > o.Seq || e.Seq == o.Seq && e.EventID > o.EventID
}

// ended says whether the event leaves its reservation in a final state.
func (e *Entry) ended() bool {
	return e.State == events.StateSettled || e.State == events.StateCancelled
}

func (f *Fold) bucket(e *Entry) *Amount {
	k := UsageKey{
		TenantID: e.TenantID, HourMicros: HourOf(e.TimeMicros),
		Model: e.Model, Endpoint: e.Endpoint, KeyID: e.KeyID,
	}
	if f.amount != nil && k == f.hour {
		return f.amount
	}
	a := f.usage[k]
	if a == nil {
		a = new(Amount)
		f.usage[k] = a
	}
	f.hour, f.amount = k, a
	return a
}

// Sums returns the sums in the order of their keys.
func (f *Fold) Sums() Sums { return sumsOf(f) }

// sumsOf returns the sums of several folds.
func sumsOf(folds ...*Fold) Sums {
	var out Sums
	var all []*ReservationSum
	var usage []UsageSum
	for _, f := range folds {
		out.Overflow = out.Overflow || f.overflow
		all = slices.Grow(all, len(f.reservations))
		for _, r := range f.reservations {
			all = append(all, r)
		}
		usage = slices.Grow(usage, len(f.usage))
		for k, a := range f.usage {
			usage = append(usage, UsageSum{UsageKey: k, Amount: *a})
		}
	}
	slices.SortFunc(all, func(a, b *ReservationSum) int { return cmp.Compare(a.Head.ReservationID, b.Head.ReservationID) })
	slices.SortFunc(usage, func(a, b UsageSum) int { return a.UsageKey.compare(b.UsageKey) })
	out.Reservations = make([]ReservationSum, 0, len(all))
	for _, r := range all {
		if n := len(out.Reservations); n > 0 && out.Reservations[n-1].Head.ReservationID == r.Head.ReservationID {
			out.note(out.Reservations[n-1].add(r))
			continue
		}
		out.Reservations = append(out.Reservations, *r)
	}
	out.Usage = usage[:0]
	for _, u := range usage {
		if n := len(out.Usage); n > 0 && out.Usage[n-1].UsageKey == u.UsageKey {
			out.note(out.Usage[n-1].Amount.Add(u.Amount))
			continue
		}
		out.Usage = append(out.Usage, u)
	}
	return out
}

func (s *Sums) note(ok bool) { s.Overflow = s.Overflow || !ok }

// add adds what another fold summed of the same reservation.
func (r *ReservationSum) add(o *ReservationSum) bool {
	if o.Head.after(r.Head) {
		r.Head = o.Head
	}
	r.Events += o.Events
	r.FirstMicros = min(r.FirstMicros, o.FirstMicros)
	r.LastMicros = max(r.LastMicros, o.LastMicros)
	ok := addUsage(&r.Usage, &o.Usage)
	return add(&r.MilliUnits, o.MilliUnits) && ok
}

func (k UsageKey) compare(o UsageKey) int {
	return cmp.Or(
		cmp.Compare(k.TenantID, o.TenantID),
		cmp.Compare(k.HourMicros, o.HourMicros),
		cmp.Compare(k.Model, o.Model),
		cmp.Compare(k.Endpoint, o.Endpoint),
		cmp.Compare(k.KeyID, o.KeyID),
	)
}

// TenantSum is what a batch adds to a tenant's rolling window.
type TenantSum struct {
	TenantID string
	Amount   Amount
}

// Late returns, by tenant, what falls into the closed hours of w: it belongs
// to the rolling sum at once, since those hours will not be closed again. It
// is not ok when a sum leaves the range of an int64.
func (s *Sums) Late(w Window) (_ []TenantSum, ok bool) {
	start, end := w.Start.UnixMicro(), w.ClosedThrough.UnixMicro()
	var out []TenantSum
	ok = true
	for i := range s.Usage { // in order of tenants
		u := &s.Usage[i]
		if u.HourMicros < start || u.HourMicros >= end {
			continue
		}
		if n := len(out); n == 0 || out[n-1].TenantID != u.TenantID {
			out = append(out, TenantSum{TenantID: u.TenantID})
		}
		ok = out[len(out)-1].Amount.Add(u.Amount) && ok
	}
	return out, ok
}

// HourOf returns the start of the UTC hour of a time, both in µs since the Unix
// epoch.
func HourOf(micros int64) int64 {
	const hour = int64(time.Hour / time.Microsecond)
	rem := micros % hour
	if rem < 0 {
		rem += hour
	}
	return micros - rem
}
