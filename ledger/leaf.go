package ledger

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"

	"tollgate/events"
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
	columnKey
	columnEndpoint
	columnModel
	columnSeq
	columnState
	ColumnTime

	ColumnCount = 32
	ColumnLeaf  = ColumnCount - 1
)

const (
	day = 86_400_000_000 // µs

	// pgEpoch is 2000-01-01 in µs since the Unix epoch.
	pgEpoch     = 946_684_800_000_000
	pgEpochDays = pgEpoch / day
)

// appendRow appends the columns of e, without leaf, in canonical encoding.
func appendRow(b []byte, e *Entry, partition int) []byte {
	b = appendInt32(b, int32(e.Day-pgEpochDays))
	b = appendText(b, e.EventID)
	b = appendInt32(b, int32(partition))
	b = appendInt64(b, e.Offset)
	b = appendText(b, string(e.Type))
	b = appendText(b, e.TenantID)
	b = appendText(b, e.ReservationID)
	b = appendText(b, e.RequestID)
	b = appendText(b, e.KeyID)
	b = appendText(b, e.Endpoint)
	b = appendText(b, e.Model)
	b = appendInt64(b, e.Seq)
	b = appendText(b, string(e.State))
	b = appendInt64(b, e.TimeMicros-pgEpoch)
	b = appendUsage(b, &e.Delta)
	b = appendInt64(b, e.MilliUnits)
	b = appendInt64(b, e.TotalMilliUnits)
	b = appendInt64(b, e.HeldMilliUnits)
	b = appendInt64(b, e.WeightMilli)
	b = appendInt64(b, e.ExpiresMicros-pgEpoch)
	b = appendBool(b, e.Estimated)
	b = appendBool(b, e.Tombstone)
	b = appendText(b, e.Author)
	return appendText(b, e.Reason)
}

func appendUsage(b []byte, u *events.Usage) []byte {
	b = appendInt64(b, u.InputTokens)
	b = appendInt64(b, u.OutputTokens)
	b = appendInt64(b, u.CachedInputTokens)
	b = appendInt64(b, u.ReasoningTokens)
	b = appendInt64(b, u.ToolCalls)
	b = appendInt64(b, u.Images)
	b = appendInt64(b, u.AudioMillis)
	return appendInt64(b, u.GPUMillis)
}

func appendInt64(b []byte, v int64) []byte {
	return binary.BigEndian.AppendUint64(append(b, 0, 0, 0, 8), uint64(v))
}

func appendInt32(b []byte, v int32) []byte {
	return binary.BigEndian.AppendUint32(append(b, 0, 0, 0, 4), uint32(v))
}

func appendText(b []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint32(b, uint32(len(s))), s...)
}

func appendBool(b []byte, v bool) []byte {
	if v {
		return append(b, 0, 0, 0, 1, 1)
	}
	return append(b, 0, 0, 0, 1, 0)
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
