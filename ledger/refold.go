package ledger

import (
	"fmt"
	"hash/maphash"
	"slices"
	"sync"

	"tollgate/events"
	"tollgate/ledger/internal/pgcopy"
)

// Refold folds a whole log in memory, from its beginning: what a replay writes
// or compares. Partitions may be added to at the same time, each by one
// goroutine.
//
// It keeps about 150 bytes for each event (to recognise repeats) and 700 for
// each reservation.
type Refold struct {
	topic    string
	position maphash.Seed // two hashes together name an event id
	second   maphash.Seed

	ids [64]knownShard

	mu         sync.Mutex
	partitions map[int]*refoldPartition
}

// knownShard keeps events without pointers, so that millions of them cost the
// garbage collector nothing.
type knownShard struct {
	sync.Mutex
	places map[[2]uint64]uint32
	chunks []*[knownChunk]Known
	count  uint32
}

const knownChunk = 256

func (s *knownShard) at(place uint32) *Known { return &s.chunks[place/knownChunk][place%knownChunk] }

// Known is what a Refold remembers of an event.
type Known struct {
	Leaf      [HashSize]byte
	Offset    int64
	Partition int32
	Matched   bool   // for a comparer's own use
	forgotten bool   // its sums refused it
	content   uint64 // of everything but position and time
}

type refoldPartition struct {
	fold   *Fold
	tree   *Tree
	batch  Batch    // whose memory the next one takes over
	leaves [][]byte // of the batch
	state  RefoldedPartition
}

// RefoldedPartition is where a partition's refold stands.
type RefoldedPartition struct {
	Partition int    `json:"partition"`
	Next      int64  `json:"next_offset"`
	Counts    Counts `json:"counts"`
	TreeSize  int64  `json:"tree_size"`
	TreeRoot  []byte `json:"tree_root"`
	TreeRange []byte `json:"-"`
	ChainHash []byte `json:"-"` // depends on where batches were cut
	LastBatch int64  `json:"-"`
}

// Refolded is a batch as a flush would have left it. It is valid until the next
// one of its partition is added.
type Refolded struct {
	Batch *Batch
	Link  Link
	// Rows are the COPY tuples of the events that were folded.
	Rows      []byte
	Conflicts []RefoldedConflict
}

// RefoldedConflict is an event that contradicts one with the same id.
type RefoldedConflict struct {
	Entry *Entry
	Kept  [HashSize]byte
	Value []byte
}

// NewRefold returns an empty refold.
func NewRefold(topic string) *Refold {
	f := &Refold{
		topic: topic, position: maphash.MakeSeed(), second: maphash.MakeSeed(),
		partitions: make(map[int]*refoldPartition),
	}
	for i := range f.ids {
		f.ids[i].places = make(map[[2]uint64]uint32)
	}
	return f
}

func (f *Refold) partition(id int) *refoldPartition {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.partitions[id]
	if p == nil {
		p = &refoldPartition{fold: NewFold(), tree: NewTree()}
		p.fold.copyHeads = true
		p.state = RefoldedPartition{Partition: id, ChainHash: Genesis()}
		f.partitions[id] = p
	}
	return p
}

// Add folds the next records of a partition, in the order of the log. The link
// that it returns lacks the time of commit; Seal sets it.
func (f *Refold) Add(partition int, records []events.Record) (*Refolded, error) {
	p := f.partition(partition)
	b := &p.batch
	if err := b.read(f.topic, partition, records, nil); err != nil {
		return nil, err
	}
	if b.First < p.state.Next {
		return nil, fmt.Errorf("offset %d of partition %d comes after %d", b.First, partition, p.state.Next-1)
	}
	out := &Refolded{Batch: b, Rows: b.rows}
	counts := Counts{Consumed: int64(b.Consumed), DeadLettered: int64(len(b.DeadLetters))}
	p.leaves = p.leaves[:0]
	upto, whole := 0, true // out.Rows are all of b.rows, which was passed so far
	pick := func() {
		if whole {
			out.Rows, whole = slices.Clone(b.rows[:upto]), false
		}
	}
	// Of the events with one id in a batch the later ones are repeats, unless the
	// first was refused: so all are taken in the order of the log.
	for i, j := 0, 0; i < len(b.Entries) || j < len(b.Repeats); {
		if j < len(b.Repeats) && (i == len(b.Entries) || b.Repeats[j].Entry.Offset < b.Entries[i].Offset) {
			r := &b.Repeats[j]
			j++
			if f.take(p, out, &counts, &r.Entry, r.Row, r.Value) {
				pick()
				out.Rows = pgcopy.Tuple(out.Rows, ColumnCount)
				out.Rows = append(out.Rows, r.Row...)
				out.Rows = pgcopy.Bytes(out.Rows, r.Entry.Leaf[:])
			}
			continue
		}
		e := &b.Entries[i]
		took := f.take(p, out, &counts, e, b.Row(i), b.Value(i))
		if !took {
			pick() // from here on rows are picked one by one
		}
		i, upto = i+1, e.end+4+HashSize
		if took && !whole {
			out.Rows = append(out.Rows, b.rows[e.start-2:upto]...)
		}
	}
	if err := counts.Check(); err != nil {
		return nil, err
	}
	own, err := TreeOf(p.leaves)
	if err != nil {
		return nil, err
	}
	if err := p.tree.AppendBatch(own, p.leaves); err != nil {
		return nil, err
	}
	out.Link = Link{
		Topic: f.topic, Partition: partition, Batch: p.state.LastBatch + 1,
		First: b.First, Last: b.Last, Counts: counts,
		BatchRoot: own.Root(), Prev: p.state.ChainHash,
		TreeSize: p.tree.Size(), TreeRoot: p.tree.Root(),
	}
	p.state.Counts.Add(counts)
	p.state.Next, p.state.LastBatch = b.Last+1, out.Link.Batch
	return out, nil
}

// take folds an event and says whether it is a new one: its id is not known, and
// the partition's sums take it. Which events they refuse is decided one by one,
// as a Runner finds them; a flush that takes a whole batch at once looks at the
// sums after it, so where figures leave the range and come back within a batch
// it may have taken what is refused here.
func (f *Refold) take(p *refoldPartition, out *Refolded, counts *Counts, e *Entry, row, value []byte) bool {
	known, fresh := f.learn(e, row, out.Batch.Partition)
	switch {
	case !fresh:
		f.repeat(out, counts, known, e, row, value)
		return false
	case !p.fold.Add(e):
		f.forget(e, known)
		counts.DeadLettered++
		return false
	}
	p.leaves = append(p.leaves, e.Leaf[:])
	counts.Folded++
	return true
}

// Seal tells the refold the chain hash of the partition's last batch.
func (f *Refold) Seal(link *Link) { f.partition(link.Partition).state.ChainHash = link.ChainHash() }

func (f *Refold) key(id string) [2]uint64 {
	return [2]uint64{maphash.String(f.position, id), maphash.String(f.second, id)}
}

// learn remembers an event as fresh, unless one with its id is known: that is
// returned.
func (f *Refold) learn(e *Entry, row []byte, partition int) (_ *Known, fresh bool) {
	k, content := f.key(e.EventID), f.content(row)
	shard := f.shard(k)
	shard.Lock()
	defer shard.Unlock()
	if place, ok := shard.places[k]; ok {
		return shard.at(place), false
	}
	if shard.count%knownChunk == 0 {
		shard.chunks = append(shard.chunks, new([knownChunk]Known))
	}
	known := shard.at(shard.count)
	*known = Known{Leaf: e.Leaf, Offset: e.Offset, Partition: int32(partition), content: content}
	shard.places[k] = shard.count
	shard.count++
	return known, true
}

// forget takes back what was learned of an event: it was not folded, and the
// next with its id is no repeat of it.
func (f *Refold) forget(e *Entry, known *Known) {
	k := f.key(e.EventID)
	shard := f.shard(k)
	shard.Lock()
	defer shard.Unlock()
	delete(shard.places, k)
	known.forgotten = true
}

func (f *Refold) shard(k [2]uint64) *knownShard { return &f.ids[k[0]%uint64(len(f.ids))] }

// Lookup returns what is known of an event id, nil if nothing is. It must not
// run beside Add.
func (f *Refold) Lookup(id string) *Known {
	k := f.key(id)
	shard := f.shard(k)
	if place, ok := shard.places[k]; ok {
		return shard.at(place)
	}
	return nil
}

// Each calls fn for every known event, in no order.
func (f *Refold) Each(fn func(*Known)) {
	for i := range f.ids {
		for place := range f.ids[i].count {
			if known := f.ids[i].at(place); !known.forgotten {
				fn(known)
			}
		}
	}
}

// repeat counts an event whose id is known.
func (f *Refold) repeat(out *Refolded, counts *Counts, known *Known, e *Entry, row, value []byte) {
	if known.content == f.content(row) {
		counts.Duplicates++
		return
	}
	counts.Conflicts++
	out.Conflicts = append(out.Conflicts, RefoldedConflict{Entry: e, Kept: known.Leaf, Value: value})
}

// content hashes what SameEvent compares. The seed is the process's own, so
// nobody can make two events that meet.
func (f *Refold) content(row []byte) uint64 {
	var h maphash.Hash
	h.SetSeed(f.position)
	rest, from := row, 0
	for column := 0; len(rest) > 0; column++ {
		_, next, ok := pgcopy.Next(rest)
		if !ok {
			break
		}
		switch column {
		case ColumnPartition, ColumnOffset, ColumnTime:
			_, _ = h.Write(row[from : len(row)-len(rest)])
			from = len(row) - len(next)
		}
		rest = next
	}
	_, _ = h.Write(row[from:])
	return h.Sum64()
}

// Partitions returns where each partition stands, in order.
func (f *Refold) Partitions() []RefoldedPartition {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []RefoldedPartition
	for _, p := range f.partitions {
		s := p.state
		s.TreeSize, s.TreeRoot, s.TreeRange = p.tree.Size(), p.tree.Root(), p.tree.Range()
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b RefoldedPartition) int { return a.Partition - b.Partition })
	return out
}

// Sums returns the sums over all partitions. They are valid until something is
// added.
func (f *Refold) Sums() Sums {
	f.mu.Lock()
	defer f.mu.Unlock()
	folds := make([]*Fold, 0, len(f.partitions))
	for _, p := range f.partitions {
		folds = append(folds, p.fold)
	}
	return sumsOf(folds...)
}
