package events

import (
	"encoding/json"
	"testing"
	"time"
)

func exampleReservation() Reservation {
	return Reservation{
		TenantID: "acme", ReservationID: "rsv_0123456789abcdefghijkl001", RequestID: "req-2026-08-19-000123",
		KeyID: "tgk_abcdefghijklmnop", Endpoint: "chat/completions", Model: "gpt-4o-mini-2024-07-18",
		Seq: 3, State: StateSettled,
		Delta: Usage{InputTokens: 13, OutputTokens: 33}, DeltaMilliUnits: 46_000,
		Total: Usage{InputTokens: 1013, OutputTokens: 333, CachedInputTokens: 12, GPUMillis: 1200}, TotalMilliUnits: 1_346_000,
		WeightMilli: 1000, ExpiresAt: time.UnixMilli(1_787_155_200_123).UTC(), Author: "client",
	}
}

func BenchmarkParseReservation(b *testing.B) {
	r := exampleReservation()
	data := AppendReservation(nil, &r)
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseReservation(data); err != nil {
			b.Fatal(err)
		}
	}
}

// The yardstick: what the standard library takes for the same payload.
func BenchmarkParseReservationStdlib(b *testing.B) {
	r := exampleReservation()
	data := AppendReservation(nil, &r)
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		var v Reservation
		if err := json.Unmarshal(data, &v); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAppendReservation(b *testing.B) {
	r := exampleReservation()
	buf := make([]byte, 0, 1024)
	b.ReportAllocs()
	for b.Loop() {
		buf = AppendReservation(buf[:0], &r)
	}
}

func BenchmarkFromRecord(b *testing.B) {
	r := exampleReservation()
	e := Event{
		ID: "e1-s07-1787155200123-0.0", Source: "tollgate/admission/e1/7", Type: TypeSettled,
		Subject: "acme", Time: r.ExpiresAt, Data: AppendReservation(nil, &r),
	}
	rec := ToRecord(TopicEvents, &e)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := FromRecord(rec); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDayOf(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := DayOf("e1-s07-1787155200123-0.0"); err != nil {
			b.Fatal(err)
		}
	}
}
