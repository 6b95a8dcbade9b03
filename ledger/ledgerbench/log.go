// Package ledgerbench makes logs and measures how fast they are folded,
// replayed and verified. It is what `tollgate bench` calls, and tests take
// their logs from it.
package ledgerbench

import (
	"fmt"
	"math/rand/v2"
	"time"

	"tollgate/events"
)

// LogOptions say what a log looks like. The same options give the same log.
type LogOptions struct {
	Topic        string // default events.TopicEvents
	Seed         uint64
	Events       int       // about; the last reservation is told to its end
	Partitions   int       // default 1
	Tenants      int       // default 8
	Start        time.Time // of the first event; default 2026-03-01T09:00Z
	Step         time.Duration
	UsagePercent int // reservations that report usage before their end; default 20
}

// Log returns the records of a log by partition. Every reservation is told to
// its end: most are settled, some cancelled, some expire first, and a few
// requests are cancelled before they were reserved.
func Log(opts LogOptions) [][]events.Record {
	if opts.Topic == "" {
		opts.Topic = events.TopicEvents
	}
	opts.Partitions = max(1, opts.Partitions)
	if opts.Tenants <= 0 {
		opts.Tenants = 8
	}
	if opts.Start.IsZero() {
		opts.Start = time.Date(2026, 3, 1, 9, 0, 0, 0, time.UTC)
	}
	if opts.Step <= 0 {
		opts.Step = 50 * time.Millisecond
	}
	if opts.UsagePercent <= 0 {
		opts.UsagePercent = 20
	}
	g := &generator{
		opts: opts, now: opts.Start,
		rnd: rand.New(rand.NewPCG(opts.Seed, 0x746f6c6c)),
		out: make([][]events.Record, opts.Partitions),
	}
	for g.made < opts.Events {
		g.reservation()
	}
	return g.out
}

var (
	models    = []string{"llama-3.1-70b", "llama-3.1-8b", "mixtral-8x7b"}
	endpoints = []string{"chat", "embeddings"}
)

type generator struct {
	opts LogOptions
	rnd  *rand.Rand
	now  time.Time
	made int
	seq  int64
	out  [][]events.Record

	chunk   []byte
	headers []events.Header
}

func (g *generator) reservation() {
	g.seq++
	tenant := g.rnd.IntN(g.opts.Tenants)
	r := events.Reservation{
		TenantID:      fmt.Sprintf("tenant-%03d", tenant),
		ReservationID: fmt.Sprintf("rsv_%016x%08x", g.rnd.Uint64(), g.seq),
		RequestID:     fmt.Sprintf("req-%d-%d", g.opts.Seed, g.seq),
		KeyID:         fmt.Sprintf("key%d", g.rnd.IntN(2)),
		Endpoint:      endpoints[g.rnd.IntN(len(endpoints))],
		Model:         models[g.rnd.IntN(len(models))],
		WeightMilli:   []int64{1000, 1500, 250}[g.rnd.IntN(3)],
		Author:        "client",
	}
	input, output := 1+g.rnd.Int64N(4000), 1+g.rnd.Int64N(1000)
	switch kind := g.rnd.IntN(100); {
	case kind < 2:
		r.Endpoint, r.Model, r.WeightMilli, r.Tombstone = "", "", 0, true
		g.event(tenant, &r, events.TypeCancelled, events.StateCancelled, events.Usage{}, 0)
		return
	case kind < 10:
		g.event(tenant, &r, events.TypeReserved, events.StateHeld, events.Usage{}, input+4096)
		g.event(tenant, &r, events.TypeCancelled, events.StateCancelled, events.Usage{InputTokens: input}, 0)
		return
	}
	g.event(tenant, &r, events.TypeReserved, events.StateHeld, events.Usage{}, input+4096)
	total := events.Usage{InputTokens: input}
	if g.rnd.IntN(100) < g.opts.UsagePercent {
		// An estimate may be above the final figure: the last delta is negative.
		total.OutputTokens = g.rnd.Int64N(2 * output)
		r.Estimated = true
		g.event(tenant, &r, events.TypeUsage, events.StateHeld, total, 4096)
		r.Estimated = false
	}
	if g.rnd.IntN(100) < 3 {
		r.Author = "gateway"
		g.event(tenant, &r, events.TypeExpired, events.StateExpired, total, 4096)
		r.Author = "reconciler"
		r.Reason = "settled at the model meter's figure"
	}
	total.OutputTokens = output
	total.CachedInputTokens = input / 4
	total.GPUMillis = output * 11
	g.event(tenant, &r, events.TypeSettled, events.StateSettled, total, 0)
}

// event appends the reservation's next event, after which its usage is total.
func (g *generator) event(tenant int, r *events.Reservation, t events.Type, s events.State, total events.Usage, heldTokens int64) {
	g.now = g.now.Add(time.Duration(g.rnd.Int64N(int64(2 * g.opts.Step)))).Truncate(time.Millisecond)
	units := (total.InputTokens + total.OutputTokens) * r.WeightMilli
	r.Seq++
	r.State = s
	r.Delta = minus(total, r.Total)
	r.DeltaMilliUnits = units - r.TotalMilliUnits
	r.Total, r.TotalMilliUnits = total, units
	r.HeldMilliUnits = heldTokens * r.WeightMilli
	r.ExpiresAt = g.now.Add(2 * time.Minute)

	partition := tenant % g.opts.Partitions
	e := events.Event{
		ID:      events.NewID(fmt.Sprintf("e1-s%02d", tenant%64), g.now, int64(g.made), 0),
		Source:  fmt.Sprintf("tollgate/admission/e1/s%02d", tenant%64),
		Type:    t,
		Subject: r.TenantID,
		Time:    g.now,
		Data:    events.AppendReservation(nil, r),
	}
	rec := events.ToRecord(g.opts.Topic, &e)
	g.pack(&rec)
	rec.Partition, rec.Offset, rec.Time = partition, int64(len(g.out[partition])), g.now.Add(time.Second)
	g.out[partition] = append(g.out[partition], rec)
	g.made++
}

// chunkBytes is how much of the log shares one piece of memory.
const chunkBytes = 256 << 10

// pack moves a record's bytes into memory that its neighbours share, as records
// of one fetch do. A log of small objects would be slow to collect garbage
// beside, which no log in Kafka is.
func (g *generator) pack(r *events.Record) {
	keep := func(b []byte) []byte {
		if len(g.chunk)+len(b) > cap(g.chunk) {
			g.chunk = make([]byte, 0, max(chunkBytes, len(b)))
		}
		at := len(g.chunk)
		g.chunk = append(g.chunk, b...)
		return g.chunk[at:len(g.chunk):len(g.chunk)]
	}
	r.Key, r.Value = keep(r.Key), keep(r.Value)
	if len(g.headers)+len(r.Headers) > cap(g.headers) {
		g.headers = make([]events.Header, 0, max(4096, len(r.Headers)))
	}
	at := len(g.headers)
	for _, h := range r.Headers {
		g.headers = append(g.headers, events.Header{Key: h.Key, Value: keep(h.Value)})
	}
	r.Headers = g.headers[at:len(g.headers):len(g.headers)]
}

func minus(a, b events.Usage) events.Usage {
	return events.Usage{
		InputTokens:       a.InputTokens - b.InputTokens,
		OutputTokens:      a.OutputTokens - b.OutputTokens,
		CachedInputTokens: a.CachedInputTokens - b.CachedInputTokens,
		ReasoningTokens:   a.ReasoningTokens - b.ReasoningTokens,
		ToolCalls:         a.ToolCalls - b.ToolCalls,
		Images:            a.Images - b.Images,
		AudioMillis:       a.AudioMillis - b.AudioMillis,
		GPUMillis:         a.GPUMillis - b.GPUMillis,
	}
}
