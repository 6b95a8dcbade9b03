package postgres

import (
	"context"
	"hash/maphash"
	"strings"
	"sync/atomic"

	"github.com/jackc/pgx/v5"

	"tollgate/events"
	"tollgate/ledger"
	"tollgate/ledger/internal/pgcopy"
)

// rowSums sums the journal's rows by reservation and by bucket while Verify
// reads them, so that the sums need no second reading. It says only whether
// everything adds up; what differs is for Check to find and to name. Nothing
// here depends on the fold's code.
//
// Reservations are told apart, and their heads compared, by two 64-bit hashes
// under seeds of this process, so nobody can make two that meet.
type rowSums struct {
	limits *sumLimits
	byID   map[[2]uint64]int32 // place in reservations
	kept   []reservationSum
	hours  map[hourKey]*ledger.Amount
	all    ledger.Amount
	buf    []byte
}

// sumLimits are shared by the sums of one verification.
type sumLimits struct {
	seeds [2]maphash.Seed
	room  atomic.Int64 // how many more reservations may be kept
	off   atomic.Bool  // a sum overflowed, or there was no room: Check must do it
	twice atomic.Bool  // a reservation ended twice and may have been counted twice
}

// reservationSum is a reservation as its rows in the journal give it, or as the
// table has it.
type reservationSum struct {
	reservationFigures
	id     [2]uint64
	headID string // to decide between two events of one seq
	found  bool
	ended  bool // one of its events is final; then the head is
	paid   bool // one of those adds use
}

// reservationFigures are what must be equal.
type reservationFigures struct {
	amount              ledger.Amount // without requests
	events, seq         int64
	firstTime, lastTime int64
	head                [2]uint64 // of everything that comes from the head
}

// hourKey names a bucket.
type hourKey struct {
	tenant string
	hour   int64
	rest   string // key, endpoint and model with their lengths
}

func newRowSums(limits *sumLimits) *rowSums {
	return &rowSums{limits: limits, byID: make(map[[2]uint64]int32), hours: make(map[hourKey]*ledger.Amount)}
}

func newSumLimits(room int64) *sumLimits {
	l := &sumLimits{seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}}
	l.room.Store(room)
	return l
}

func (l *sumLimits) hash(b []byte) [2]uint64 {
	return [2]uint64{maphash.Bytes(l.seeds[0], b), maphash.Bytes(l.seeds[1], b)}
}

func (s *rowSums) note(ok bool) {
	if !ok {
		s.limits.off.Store(true)
	}
}

// amount reads the nine figures that begin at a column.
func (t *tuple) amount(first int) ledger.Amount {
	n := func(i int) int64 { return t.number(first + i) }
	return ledger.Amount{
		Usage: events.Usage{
			InputTokens: n(0), OutputTokens: n(1), CachedInputTokens: n(2), ReasoningTokens: n(3),
			ToolCalls: n(4), Images: n(5), AudioMillis: n(6), GPUMillis: n(7),
		},
		MilliUnits: n(8),
	}
}

// add sums a row of the journal.
func (s *rowSums) add(r *journalReader, eventID string) {
	if s.limits.off.Load() {
		return
	}
	a := r.amount(ledger.ColumnInputTokens)
	if len(r.value(ledger.ColumnReservation)) > 0 {
		s.addReservation(r, &a, eventID)
	}
	if final(r) {
		a.Requests = 1
	}
	if a != (ledger.Amount{}) {
		s.note(s.hour(r).Add(a))
		s.note(s.all.Add(a))
	}
}

// final says whether the row is a reservation's end, as check_hours.sql does.
func final(r *journalReader) bool {
	switch string(r.value(ledger.ColumnState)) {
	case string(events.StateSettled), string(events.StateCancelled):
	default:
		return false
	}
	switch string(r.value(ledger.ColumnType)) {
	case string(events.TypeSettled), string(events.TypeCancelled):
		return r.value(ledger.ColumnTombstone)[0] == 0
	}
	return false
}

func (s *rowSums) addReservation(r *journalReader, a *ledger.Amount, eventID string) {
	id := s.limits.hash(r.value(ledger.ColumnReservation))
	seq, at := r.number(ledger.ColumnSeq), r.number(ledger.ColumnTime)
	i, ok := s.byID[id]
	if !ok {
		if s.limits.room.Add(-1) < 0 {
			s.note(false)
			return
		}
		i = int32(len(s.kept))
		s.byID[id] = i
		s.kept = append(s.kept, reservationSum{id: id, reservationFigures: reservationFigures{firstTime: at, lastTime: at}})
	}
	sum := &s.kept[i]
	ended := ends(r)
	if !ok || after(ended, seq, eventID, sum) {
		s.buf = append(s.buf[:0], r.encoded(ledger.ColumnTenant, ledger.ColumnState)...)
		s.buf = append(s.buf, r.encoded(ledger.ColumnTotal, ledger.ColumnEstimated)...)
		s.buf = append(s.buf, r.encoded(ledger.ColumnEventID, ledger.ColumnEventID)...)
		sum.seq, sum.headID, sum.head = seq, eventID, s.limits.hash(s.buf)
	}
	if ended {
		s.end(sum, *a != (ledger.Amount{}))
	}
	sum.events++
	sum.firstTime, sum.lastTime = min(sum.firstTime, at), max(sum.lastTime, at)
	s.note(sum.amount.Add(*a))
}

// ends says whether the row leaves its reservation in a final state.
func ends(r *journalReader) bool {
	state := string(r.value(ledger.ColumnState))
	return state == string(events.StateSettled) || state == string(events.StateCancelled)
}

// after says whether an event decides over the head that the sum has.
func after(ended bool, seq int64, eventID string, sum *reservationSum) bool {
	if ended != sum.ended {
		return ended
	}
	return seq > sum.seq || seq == sum.seq && eventID > sum.headID
}

// end notes a final event of a reservation, or several that another worker read.
func (s *rowSums) end(sum *reservationSum, pays bool) {
	if sum.ended && (sum.paid || pays) {
		s.limits.twice.Store(true)
	}
	sum.ended, sum.paid = true, sum.paid || pays
}

func (s *rowSums) hour(r *journalReader) *ledger.Amount {
	at := ledger.HourOf(r.number(ledger.ColumnTime)) // hours begin alike in both epochs
	rest := r.encoded(ledger.ColumnKey, ledger.ColumnModel)
	// The strings of a lookup are not allocated.
	a := s.hours[hourKey{tenant: string(r.value(ledger.ColumnTenant)), hour: at, rest: string(rest)}]
	if a == nil {
		a = new(ledger.Amount)
		s.hours[hourKey{tenant: string(r.value(ledger.ColumnTenant)), hour: at, rest: string(rest)}] = a
	}
	return a
}

// merge adds what another worker summed.
func (s *rowSums) merge(o *rowSums) {
	s.note(s.all.Add(o.all))
	for k, a := range o.hours {
		if own := s.hours[k]; own != nil {
			s.note(own.Add(*a))
			continue
		}
		s.hours[k] = a
	}
	for i := range o.kept {
		other := &o.kept[i]
		at, ok := s.byID[other.id]
		if !ok {
			s.byID[other.id] = int32(len(s.kept))
			s.kept = append(s.kept, *other)
			continue
		}
		sum := &s.kept[at]
		if after(other.ended, other.seq, other.headID, sum) {
			sum.seq, sum.headID, sum.head = other.seq, other.headID, other.head
		}
		if other.ended {
			s.end(sum, other.paid)
		}
		sum.events += other.events
		sum.firstTime, sum.lastTime = min(sum.firstTime, other.firstTime), max(sum.lastTime, other.lastTime)
		s.note(sum.amount.Add(other.amount))
	}
}

// storedSums is what the tables say.
type storedSums struct {
	reservations []reservationSum
	all          ledger.Amount
	incomplete   int64
	hours        map[hourKey]ledger.Amount
	wrong        bool // it contradicts itself
}

// Columns of reservations and usage_hour in the order in which the journal has
// them, so that their bytes compare.
const (
	auditedReservation = "tenant_id, reservation_id, request_id, key_id, endpoint, model, seq, state, " +
		"total_milli_units, held_milli_units, weight_milli, expires_at, estimated, head_event_id, " +
		"events, first_event_at, last_event_at, input_tokens, output_tokens, cached_input_tokens, reasoning_tokens, " +
		"tool_calls, images, audio_ms, gpu_ms, milli_units"
	auditedHour = "tenant_id, hour, key_id, endpoint, model, requests, input_tokens, output_tokens, cached_input_tokens, " +
		"reasoning_tokens, tool_calls, images, audio_ms, gpu_ms, milli_units"
)

func readStoredSums(ctx context.Context, tx pgx.Tx, limits *sumLimits) (*storedSums, error) {
	s := &storedSums{hours: make(map[hourKey]ledger.Amount)}
	err := copyRows(ctx, tx, "reservations", auditedReservation, func(t *tuple) error {
		if limits.off.Load() {
			return nil // Check reads them anew
		}
		const id, seq, total, headID, events, first, last, amount = 1, 6, 8, 13, 14, 15, 16, 17
		r := reservationSum{id: limits.hash(t.value(id)), reservationFigures: reservationFigures{
			amount: t.amount(amount), events: t.number(events), seq: t.number(seq),
			firstTime: t.number(first), lastTime: t.number(last), head: limits.hash(t.encoded(0, headID)),
		}}
		if r.events != r.seq {
			s.incomplete++
		} else if r.amount.MilliUnits != t.number(total) {
			s.wrong = true
		}
		if !s.all.Add(r.amount) {
			s.wrong = true
		}
		s.reservations = append(s.reservations, r)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return s, copyRows(ctx, tx, "usage_hour", auditedHour, func(t *tuple) error {
		const tenant, hour, key, model, requests = 0, 1, 2, 4, 5
		a := t.amount(requests + 1)
		a.Requests = t.number(requests)
		s.hours[hourKey{tenant: string(t.value(tenant)), hour: t.number(hour), rest: string(t.encoded(key, model))}] = a
		return nil
	})
}

func copyRows(ctx context.Context, tx pgx.Tx, table, columns string, row func(*tuple) error) error {
	var t tuple
	sink := &pgcopy.Sink{Columns: strings.Count(columns, ",") + 1}
	sink.Row = func(b []byte) error {
		if err := t.split(b, sink.Columns); err != nil {
			return err
		}
		return row(&t)
	}
	if _, err := tx.Conn().PgConn().CopyTo(ctx, sink, "COPY "+table+" ("+columns+") TO STDOUT BINARY"); err != nil {
		return err
	}
	return sink.Done()
}

// agree says whether the tables are what the journal's rows sum up to.
func (s *rowSums) agree(stored *storedSums) bool {
	if s.limits.off.Load() || stored.wrong || len(s.kept) != len(stored.reservations) || len(s.hours) != len(stored.hours) {
		return false
	}
	for i := range stored.reservations {
		have := &stored.reservations[i]
		at, ok := s.byID[have.id]
		if !ok || s.kept[at].found || s.kept[at].reservationFigures != have.reservationFigures {
			return false
		}
		s.kept[at].found = true
	}
	for k, a := range s.hours {
		if have, ok := stored.hours[k]; !ok || have != *a {
			return false
		}
	}
	return true
}
