package ledger

import (
	"crypto/sha256"
	"hash"

	"tollgate/events"
	"tollgate/ledger/internal/pgcopy"
)

// The canonical encoding of a journal row, version 1.
//
// A row's leaf is the RFC 6962 leaf hash, SHA-256(0x00 ‖ data), of
//
//	data = 0x01 ‖ column ‖ column ‖ …
//
// with every column but leaf itself, in the order of Columns. A column is its
// length as a 32-bit big-endian integer and its value as PostgreSQL's binary
// format writes it: bigint and integer big-endian, boolean one byte, text as
// UTF-8, date as the 32-bit number of days and timestamptz as the 64-bit
// number of microseconds since 2000-01-01 (UTC).
//
// Each column carries its length, so no two rows share an encoding. Because it
// is the database's own format, an auditor can compute a leaf in SQL with the
// send functions (int8send, textsend, …), the fold encodes a row once for hash
// and COPY, and verification hashes what COPY gives back.

// LeafVersion is the first byte of the canonical encoding.
const LeafVersion = 1

// Columns are the journal's columns in the order of the canonical encoding;
// the last, leaf, is not part of it.
var Columns = []string{
	"day", "event_id", "topic_partition", "topic_offset", "type", "tenant_id", "reservation_id",
	"request_id", "key_id", "endpoint", "model", "seq", "state", "event_time",
	"input_tokens", "output_tokens", "cached_input_tokens", "reasoning_tokens", "tool_calls", "images",
	"audio_ms", "gpu_ms", "milli_units", "total_milli_units", "held_milli_units", "weight_milli",
	"expires_at", "estimated", "tombstone", "author", "reason", "leaf",
}

// Places of columns in Columns that code here and in ledger/postgres reads.
const (
	ColumnDay = iota
	ColumnEventID
	ColumnPartition
	ColumnOffset
	ColumnType
	ColumnTenant
	ColumnReservation
	columnRequest
	ColumnKey
	columnEndpoint
	ColumnModel
	ColumnSeq
	ColumnState
	ColumnTime
	ColumnInputTokens // the first of nine figures, of which milli_units is the last

	ColumnTotal     = 23
	ColumnEstimated = 27
	ColumnTombstone = 28
	ColumnLeaf      = 31
	ColumnCount     = 32
)

const day = 86_400_000_000 // µs

// appendRow appends the columns of e, without leaf, in canonical encoding.
func appendRow(b []byte, e *Entry, partition int) []byte {
	b = pgcopy.Date(b, e.Day)
	b = pgcopy.Text(b, e.EventID)
	b = pgcopy.Int32(b, int32(partition))
	b = pgcopy.Int64(b, e.Offset)
	b = pgcopy.Text(b, string(e.Type))
	b = pgcopy.Text(b, e.TenantID)
	b = pgcopy.Text(b, e.ReservationID)
	b = pgcopy.Text(b, e.RequestID)
	b = pgcopy.Text(b, e.KeyID)
	b = pgcopy.Text(b, e.Endpoint)
	b = pgcopy.Text(b, e.Model)
	b = pgcopy.Int64(b, e.Seq)
	b = pgcopy.Text(b, string(e.State))
	b = pgcopy.Time(b, e.TimeMicros)
	b = appendUsage(b, &e.Delta)
	b = pgcopy.Int64(b, e.MilliUnits)
	b = pgcopy.Int64(b, e.TotalMilliUnits)
	b = pgcopy.Int64(b, e.HeldMilliUnits)
	b = pgcopy.Int64(b, e.WeightMilli)
	b = pgcopy.Time(b, e.ExpiresMicros)
	b = pgcopy.Bool(b, e.Estimated)
	b = pgcopy.Bool(b, e.Tombstone)
	b = pgcopy.Text(b, e.Author)
	return pgcopy.Text(b, e.Reason)
}

func appendUsage(b []byte, u *events.Usage) []byte {
	b = pgcopy.Int64(b, u.InputTokens)
	b = pgcopy.Int64(b, u.OutputTokens)
	b = pgcopy.Int64(b, u.CachedInputTokens)
	b = pgcopy.Int64(b, u.ReasoningTokens)
	b = pgcopy.Int64(b, u.ToolCalls)
	b = pgcopy.Int64(b, u.Images)
	b = pgcopy.Int64(b, u.AudioMillis)
	return pgcopy.Int64(b, u.GPUMillis)
}

// LeafHasher computes leaves. It is not safe for concurrent use.
type LeafHasher struct{ h hash.Hash }

// NewLeafHasher returns a hasher.
func NewLeafHasher() *LeafHasher { return &LeafHasher{h: sha256.New()} }

var leafPrefix = []byte{0x00, LeafVersion}

// Leaf returns the leaf of a row given as its columns in canonical encoding,
// without version byte and without the leaf column.
func (l *LeafHasher) Leaf(row []byte) (leaf [sha256.Size]byte) {
	l.h.Reset()
	l.h.Write(leafPrefix)
	l.h.Write(row)
	l.h.Sum(leaf[:0])
	return leaf
}
