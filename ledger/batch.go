package ledger

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"tollgate/events"
	"tollgate/ledger/internal/pgcopy"
)

// Entry is one event as the journal keeps it. Times are µs since the Unix
// epoch, days are counted from it.
type Entry struct {
	Offset int64
	Day    int64 // from the event id
	Type   events.Type

	EventID, TenantID, ReservationID, RequestID string
	KeyID, Endpoint, Model                      string

	Seq        int64
	State      events.State
	TimeMicros int64
	Delta      events.Usage

	MilliUnits, TotalMilliUnits, HeldMilliUnits, WeightMilli int64

	ExpiresMicros        int64
	Estimated, Tombstone bool
	Author, Reason       string

	Leaf [HashSize]byte

	start, end int // of the row in its batch's buffer
}

// Final says whether this event is the one that ended its reservation, and so
// counts as a request of its hour. It looks at the event alone, so the count
// does not depend on the order of events: the type and the state say that the
// work was settled or cancelled, and a tombstone, which cancels what was never
// reserved, is no request.
func (e *Entry) Final() bool {
	switch e.Type {
	case events.TypeSettled:
		return e.State == events.StateSettled && !e.Tombstone
	case events.TypeCancelled:
		return e.State == events.StateCancelled && !e.Tombstone
	}
	return false
}

// Repeat is an event whose id an earlier record of the same batch has.
type Repeat struct {
	Of    int // index of the earlier one in Batch.Entries
	Entry Entry
	Row   []byte // columns in canonical encoding
	Value []byte // raw payload
}

// ReasonRefused is the dead-letter reason of a record that is a valid event
// and that the database cannot take, because a sum would leave its range.
const ReasonRefused = "refused_by_ledger"

// DeadLetter is a record that cannot be folded.
type DeadLetter struct {
	Record events.Record
	Reason string // one of events.Reason or ReasonRefused
	Detail string // for people; never repeats the record's content
}

// Batch is what a flush writes. It is not changed after NewBatch.
type Batch struct {
	Topic       string
	Partition   int
	First, Last int64 // offsets of the first and last record
	Consumed    int

	// Entries are events with distinct ids, in offset order.
	Entries     []Entry
	Repeats     []Repeat
	DeadLetters []DeadLetter

	// Sums are those of all Entries. A flush that finds some of them in the
	// journal already sums the others anew with Sum.
	Sums Sums

	records []events.Record // to cut the batch anew where the database refuses it

	rows   []byte   // COPY tuples: column count, columns, leaf
	values [][]byte // of Entries: raw payloads, for conflict records
	byID   map[string]int
}

// NewBatch decodes the records of one partition, which must come in ascending
// order of their offsets, and sums them. Records that are no valid events
// become dead letters. The batch keeps parts of the records' memory.
//
// NewBatch depends on the records alone, so a replay decides the same.
func NewBatch(topic string, partition int, records []events.Record) (*Batch, error) {
	return newSummedBatch(topic, partition, records, nil)
}

// newSummedBatch also dead-letters the records at the offsets in refused.
func newSummedBatch(topic string, partition int, records []events.Record, refused map[int64]string) (*Batch, error) {
	b := new(Batch)
	err := b.read(topic, partition, records, refused)
	if err == nil {
		b.Sums = b.Sum(nil)
	}
	return b, err
}

// read makes b the batch of the records, without its sums, in the memory of the
// batch that it was.
func (b *Batch) read(topic string, partition int, records []events.Record, refused map[int64]string) error {
	if len(records) == 0 {
		return errors.New("empty batch")
	}
	*b = Batch{
		Topic: topic, Partition: partition,
		First: records[0].Offset, Last: records[len(records)-1].Offset,
		Consumed: len(records),
		records:  records,
		Entries:  slices.Grow(b.Entries[:0], len(records)),
		values:   slices.Grow(b.values[:0], len(records)),
		rows:     slices.Grow(b.rows[:0], len(records)*rowGuess),
		byID:     b.byID,
	}
	if b.byID == nil {
		b.byID = make(map[string]int, len(records))
	}
	clear(b.byID)
	hasher := NewLeafHasher()
	var e Entry
	for i := range records {
		r := &records[i]
		if i > 0 && r.Offset <= records[i-1].Offset {
			return fmt.Errorf("offset %d comes after %d", r.Offset, records[i-1].Offset)
		}
		if r.Partition != partition {
			return fmt.Errorf("record of partition %d in a batch of %d", r.Partition, partition)
		}
		if detail, ok := refused[r.Offset]; ok {
			b.DeadLetters = append(b.DeadLetters, DeadLetter{Record: *r, Reason: ReasonRefused, Detail: detail})
			continue
		}
		if err := decode(&e, r); err != nil {
			b.DeadLetters = append(b.DeadLetters, deadLetter(r, err))
			continue
		}
		tuple := len(b.rows)
		b.rows = pgcopy.Tuple(b.rows, ColumnCount)
		e.start = len(b.rows)
		b.rows = appendRow(b.rows, &e, partition)
		e.end = len(b.rows)
		e.Leaf = hasher.Leaf(b.rows[e.start:e.end])
		if of, ok := b.byID[e.EventID]; ok {
			row := append([]byte(nil), b.rows[e.start:e.end]...)
			b.rows = b.rows[:tuple]
			b.Repeats = append(b.Repeats, Repeat{Of: of, Entry: e, Row: row, Value: r.Value})
			continue
		}
		b.rows = pgcopy.Bytes(b.rows, e.Leaf[:])
		b.byID[e.EventID] = len(b.Entries)
		b.Entries = append(b.Entries, e)
		b.values = append(b.values, r.Value)
	}
	return nil
}

// rowGuess is the usual size of a row, to allocate once.
const rowGuess = 640

// decode reads a record into e, all of it. It returns an *events.InvalidError.
func decode(e *Entry, r *events.Record) error {
	event, err := events.FromRecord(*r)
	if err != nil {
		return err
	}
	if event.Type.Topic() != events.TopicEvents {
		return &events.InvalidError{Reason: events.ReasonWrongTopic, Detail: "is not of the events topic"}
	}
	if err := events.CheckTime(event.Time, r.Time); err != nil {
		return err
	}
	*e = Entry{
		Offset:     r.Offset,
		Type:       event.Type,
		EventID:    event.ID,
		TenantID:   event.Subject,
		TimeMicros: event.Time.UnixMicro(),
	}
	made, err := events.DayOf(event.ID)
	e.Day = made.UnixMicro() / day
	if event.Type.IsSettlement() {
		// A freeze is never refused for the form of its id. Such ids all belong
		// to one day, so that a repeat still meets its like.
		if err != nil {
			e.Day = 0
		}
		return e.fromSettlement(&event)
	}
	if err != nil {
		return err
	}
	return e.fromReservation(&event)
}

func (e *Entry) fromReservation(event *events.Event) error {
	v, err := event.Reservation()
	if err != nil {
		return err
	}
	e.ReservationID, e.RequestID = v.ReservationID, v.RequestID
	e.KeyID, e.Endpoint, e.Model = v.KeyID, v.Endpoint, v.Model
	e.Seq, e.State, e.Delta = v.Seq, v.State, v.Delta
	e.MilliUnits, e.TotalMilliUnits = v.DeltaMilliUnits, v.TotalMilliUnits
	e.HeldMilliUnits, e.WeightMilli = v.HeldMilliUnits, v.WeightMilli
	e.ExpiresMicros = v.ExpiresAt.UnixMicro()
	e.Estimated, e.Tombstone = v.Estimated, v.Tombstone
	e.Author, e.Reason = v.Author, v.Reason
	return nil
}

// fromSettlement makes the row of a freeze or unfreeze: it belongs to the
// chain, adds nothing, and keeps the end of the window that it is about.
func (e *Entry) fromSettlement(event *events.Event) error {
	v, err := event.Settlement()
	if err != nil {
		return err
	}
	e.ExpiresMicros = v.WindowEnd.UnixMicro()
	e.Author, e.Reason = v.Author, v.Reason
	return nil
}

func deadLetter(r *events.Record, err error) DeadLetter {
	d := DeadLetter{Record: *r, Reason: string(events.ReasonInconsistent), Detail: err.Error()}
	var invalid *events.InvalidError
	if errors.As(err, &invalid) {
		d.Reason = string(invalid.Reason)
	}
	return d
}

// CopyData returns the tuples of all Entries as COPY BINARY wants them, without
// its header and trailer.
func (b *Batch) CopyData() []byte { return b.rows }

// Row returns entry i's columns in canonical encoding.
func (b *Batch) Row(i int) []byte { return b.rows[b.Entries[i].start:b.Entries[i].end] }

// Value returns entry i's raw payload.
func (b *Batch) Value(i int) []byte { return b.values[i] }

// Days returns the days of the entries, each once.
func (b *Batch) Days() []time.Time {
	seen := make(map[int64]bool, 2)
	var out []time.Time
	for i := range b.Entries {
		if d := b.Entries[i].Day; !seen[d] {
			seen[d] = true
			out = append(out, time.UnixMicro(d*day).UTC())
		}
	}
	return out
}

// SameEvent says whether two rows in canonical encoding tell the same event,
// wherever in the log they stand and whatever time their envelopes carry. An
// event that is published again keeps its id and its payload; its position is
// another, and its time may be, too.
func SameEvent(a, b []byte) bool {
	for column := 0; len(a) > 0 || len(b) > 0; column++ {
		av, an, ok1 := pgcopy.Next(a)
		bv, bn, ok2 := pgcopy.Next(b)
		if !ok1 || !ok2 {
			return false
		}
		a, b = an, bn
		switch column {
		case ColumnPartition, ColumnOffset, ColumnTime:
			continue
		}
		if string(av) != string(bv) {
			return false
		}
	}
	return true
}
