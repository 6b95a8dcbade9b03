package postgres

import (
	"encoding/binary"
	"fmt"

	"tollgate/ledger"
	"tollgate/ledger/internal/pgcopy"
)

// tuple finds the columns of a row in COPY BINARY form.
type tuple struct {
	row   []byte
	start [ledger.ColumnCount + 1]int // where each column begins, with its length
}

// split takes a row of so many columns, which the tuple keeps.
func (t *tuple) split(row []byte, columns int) error {
	t.row = row
	at := 0
	for column := range columns {
		t.start[column] = at
		value, _, ok := pgcopy.Next(row[at:])
		if !ok {
			return fmt.Errorf("column %d of a row cannot be read", column+1)
		}
		at += 4 + len(value)
	}
	t.start[columns] = at
	return nil
}

// encoded returns the columns from first to last with their lengths.
func (t *tuple) encoded(first, last int) []byte { return t.row[t.start[first]:t.start[last+1]] }

// value returns a column's value.
func (t *tuple) value(column int) []byte { return t.row[t.start[column]+4 : t.start[column+1]] }

// number returns a bigint's or a timestamp's value; of another type's, what is
// at its end.
func (t *tuple) number(column int) int64 {
	v := t.value(column)
	if len(v) == 8 {
		return int64(binary.BigEndian.Uint64(v))
	}
	var wide [8]byte
	copy(wide[max(0, 8-len(v)):], v[max(0, len(v)-8):])
	return int64(binary.BigEndian.Uint64(wide[:]))
}

// journalReader reads rows of the journal and computes their leaves.
type journalReader struct {
	tuple
	hasher *ledger.LeafHasher
}

func newJournalReader() *journalReader { return &journalReader{hasher: ledger.NewLeafHasher()} }

// verifiedRow is a row with its leaf as its columns give it and as stored.
type verifiedRow struct {
	offset       int64
	eventID      string
	leaf, stored [ledger.HashSize]byte
}

func (r *verifiedRow) changed() bool { return r.leaf != r.stored }

// read reads a row's columns and leaf.
func (r *journalReader) read(row []byte) (verifiedRow, error) {
	var v verifiedRow
	if err := r.split(row, ledger.ColumnCount); err != nil {
		return v, err
	}
	v.offset = r.number(ledger.ColumnOffset)
	v.eventID = string(r.value(ledger.ColumnEventID))
	v.leaf = r.hasher.Leaf(row[:r.start[ledger.ColumnLeaf]])
	if stored := r.value(ledger.ColumnLeaf); len(stored) == ledger.HashSize {
		copy(v.stored[:], stored) // else zeros, which is no leaf
	}
	return v, nil
}
