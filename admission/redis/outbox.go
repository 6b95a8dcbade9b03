package redis

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"tollgate/admission"
	"tollgate/events"
)

// Claim takes and renews leases on shards' outboxes for owner and returns the
// shards that it holds now, in order. Live relays share the shards evenly: one
// that holds more than its share gives some up, so that a newcomer gets its
// part within a ttl. A relay must not read a shard for longer than ttl after
// the claim.
func (s *Store) Claim(ctx context.Context, owner string, ttl time.Duration) ([]int, error) {
	share, err := s.relayShare(ctx, owner, ttl)
	if err != nil {
		return nil, err
	}
	holders, err := s.leaseHolders(ctx)
	if err != nil {
		return nil, err
	}
	var mine, idle []int
	for shard, holder := range holders {
		switch holder {
		case owner:
			mine = append(mine, shard)
		case "":
			idle = append(idle, shard)
		}
	}
	var held []int
	for i, shard := range append(mine, idle...) {
		what := "claim"
		if len(held) >= share {
			if i >= len(mine) {
				break
			}
			what = "release"
		}
		n, err := s.outbox.Run(ctx, s.client, []string{s.shardKey(shard, "relay")}, what, owner, ttl.Milliseconds()).Int()
		if err != nil {
			return nil, s.outOfReach(ctx, err)
		}
		if what == "claim" && n == 1 {
			held = append(held, shard)
		}
	}
	return held, nil
}

// Release gives up everything that owner holds, for a relay that stops.
func (s *Store) Release(ctx context.Context, owner string) error {
	if err := s.client.ZRem(ctx, s.opts.Prefix+"{relays}", owner).Err(); err != nil {
		return s.outOfReach(ctx, err)
	}
	holders, err := s.leaseHolders(ctx)
	if err != nil {
		return err
	}
	for shard, holder := range holders {
		if holder != owner {
			continue
		}
		if err := s.outbox.Run(ctx, s.client, []string{s.shardKey(shard, "relay")}, "release", owner).Err(); err != nil {
			return s.outOfReach(ctx, err)
		}
	}
	return nil
}

// relayShare announces owner and returns how many shards each live relay may
// hold.
func (s *Store) relayShare(ctx context.Context, owner string, ttl time.Duration) (int, error) {
	now := time.Now()
	key := s.opts.Prefix + "{relays}"
	pipe := s.client.TxPipeline()
	pipe.ZAdd(ctx, key, redis.Z{Score: float64(now.Add(ttl).UnixMilli()), Member: owner})
	pipe.ZRemRangeByScore(ctx, key, "-inf", strconv.FormatInt(now.UnixMilli(), 10))
	live := pipe.ZCard(ctx, key)
	if _, err := pipe.Exec(ctx); err != nil {
		return 0, s.outOfReach(ctx, err)
	}
	n := max(int(live.Val()), 1)
	return (s.opts.Shards + n - 1) / n, nil
}

func (s *Store) leaseHolders(ctx context.Context) ([]string, error) {
	pipe := s.client.Pipeline()
	gets := make([]*redis.StringCmd, s.opts.Shards)
	for shard := range gets {
		gets[shard] = pipe.Get(ctx, s.shardKey(shard, "relay"))
	}
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return nil, s.outOfReach(ctx, err)
	}
	holders := make([]string, len(gets))
	for shard, get := range gets {
		v, err := get.Result()
		if err != nil && !errors.Is(err, redis.Nil) {
			return nil, s.outOfReach(ctx, err)
		}
		holders[shard] = v
	}
	return holders, nil
}

// Read returns up to maxEntries entries of a shard's outbox after the entry
// named after ("": from the oldest), in order. It changes nothing.
func (s *Store) Read(ctx context.Context, shard int, after string, maxEntries int) ([]events.OutboxEntry, error) {
	from := "-"
	if after != "" {
		from = "(" + after
	}
	messages, err := s.client.XRangeN(ctx, s.shardKey(shard, "outbox"), from, "+", int64(maxEntries)).Result()
	if err != nil {
		return nil, s.outOfReach(ctx, err)
	}
	entries := make([]events.OutboxEntry, len(messages))
	for i := range messages {
		entries[i] = s.entry(shard, &messages[i])
	}
	return entries, nil
}

func (s *Store) entry(shard int, m *redis.XMessage) events.OutboxEntry {
	text := func(name string) string {
		v, _ := m.Values[name].(string)
		return v
	}
	e := events.OutboxEntry{ID: m.ID}
	e.Cumulative, _ = strconv.ParseInt(text("c"), 10, 64) // 0 trims nothing from the count
	epoch := text("p")
	source := "tollgate/admission/" + epoch + "/" + strconv.Itoa(shard)
	prefix := epoch + "-s" + shardNumber(shard) + "-" + m.ID + "."
	for i, line := range strings.Split(text("e"), "\n") {
		ev, err := decodeEvent(line)
		if err != nil {
			s.metrics.undecodable.Inc()
			s.log.Error("outbox record cannot be decoded", "shard", shard, "entry", m.ID, "record", i, "error", err)
			ev = events.Event{Data: []byte(line), Time: entryTime(m.ID)}
		}
		ev.ID = prefix + strconv.Itoa(i)
		ev.Source = source
		e.Events = append(e.Events, ev)
	}
	return e
}

func entryTime(id string) time.Time {
	ms, _, _ := strings.Cut(id, "-")
	v, _ := strconv.ParseInt(ms, 10, 64) // Redis made it
	return time.UnixMilli(v).UTC()
}

var eventTypes = map[string]struct {
	name  events.Type
	state events.State
}{
	"r": {events.TypeReserved, ""},
	"u": {events.TypeUsage, ""},
	"s": {events.TypeSettled, ""},
	"c": {events.TypeCancelled, ""},
	"x": {events.TypeExpired, ""},
}

const eventFields = 20

// decodeEvent reads what admission.lua's emit wrote: kind|seq|tenant|hash|
// created|now|state|before|total|hold|weight|image|deadline|flag|author|reason|
// request|key|endpoint|model. Milli-units and deltas are computed here, where
// integers are exact.
func decodeEvent(line string) (events.Event, error) {
	f := strings.Split(line, "|")
	if len(f) != eventFields {
		return events.Event{}, fmt.Errorf("%d fields, want %d", len(f), eventFields)
	}
	kind, ok := eventTypes[f[0]]
	if !ok || len(f[6]) != 1 || stateNames[f[6][0]] == "" {
		return events.Event{}, fmt.Errorf("kind %.8q in state %.8q", f[0], f[6])
	}
	var v [13]int64
	for _, i := range [...]int{1, 4, 5, 10, 11, 12} {
		var err error
		if v[i], err = strconv.ParseInt(f[i], 10, 64); err != nil {
			return events.Event{}, fmt.Errorf("field %d: %w", i, err)
		}
	}
	var usage [3]events.Usage
	var units [3]int64
	for i := range usage {
		var err error
		if usage[i], err = parseUsage(f[7+i]); err != nil {
			return events.Event{}, err
		}
		if units[i], err = admission.Units(usage[i], v[10], v[11]); err != nil {
			return events.Event{}, err
		}
	}
	before, total, hold := 0, 1, 2
	r := events.Reservation{
		TenantID: f[2], ReservationID: admission.ReservationID(f[3], v[4]), RequestID: f[16],
		KeyID: f[17], Endpoint: f[18], Model: f[19],
		Seq: v[1], State: stateNames[f[6][0]],
		Delta: minus(usage[total], usage[before]), DeltaMilliUnits: units[total] - units[before],
		Total: usage[total], TotalMilliUnits: units[total], WeightMilli: v[10],
		ExpiresAt: time.UnixMilli(v[12]).UTC(),
		Estimated: f[13] == "e", Tombstone: f[13] == "t", Author: free(f[14]), Reason: free(f[15]),
	}
	if r.State == events.StateHeld || r.State == events.StateExpired {
		r.HeldMilliUnits = max(0, units[hold]-units[total])
	}
	return events.Event{
		Type: kind.name, Subject: r.TenantID, Time: time.UnixMilli(v[5]).UTC(),
		Data: events.AppendReservation(nil, &r),
	}, nil
}

func minus(a, b events.Usage) events.Usage {
	return events.Usage{
		InputTokens: a.InputTokens - b.InputTokens, OutputTokens: a.OutputTokens - b.OutputTokens,
		CachedInputTokens: a.CachedInputTokens - b.CachedInputTokens, ReasoningTokens: a.ReasoningTokens - b.ReasoningTokens,
		ToolCalls: a.ToolCalls - b.ToolCalls, Images: a.Images - b.Images,
		AudioMillis: a.AudioMillis - b.AudioMillis, GPUMillis: a.GPUMillis - b.GPUMillis,
	}
}

// Trim drops a shard's entries through last, which must have been acknowledged
// by the log. Trimming twice, or late, does no harm.
func (s *Store) Trim(ctx context.Context, shard int, last events.OutboxEntry) error {
	ms, seq, ok := strings.Cut(last.ID, "-")
	n, err := strconv.ParseUint(seq, 10, 64)
	if !ok || err != nil {
		return fmt.Errorf("%w: %q is not an outbox entry", admission.ErrInvalid, last.ID)
	}
	firstKept := ms + "-" + strconv.FormatUint(n+1, 10)
	keys := []string{s.shardKey(shard, "outbox"), s.shardKey(shard, "meta")}
	if err := s.outbox.Run(ctx, s.client, keys, "trim", firstKept, last.Cumulative).Err(); err != nil {
		return s.outOfReach(ctx, err)
	}
	return nil
}

// Backlog returns the number of records that wait in all outboxes.
func (s *Store) Backlog(ctx context.Context) (int64, error) {
	metas, err := s.metas(ctx, "added", "trimmed")
	if err != nil {
		return 0, err
	}
	var sum int64
	for _, m := range metas {
		var v [2]int64
		for i := range v {
			if text, ok := m[i].(string); ok {
				v[i], _ = strconv.ParseInt(text, 10, 64) // the script wrote it
			}
		}
		sum += max(0, v[0]-v[1])
	}
	s.metrics.backlog.Set(float64(sum))
	return sum, nil
}

// metas reads fields of every shard's meta hash.
func (s *Store) metas(ctx context.Context, fields ...string) ([][]any, error) {
	pipe := s.client.Pipeline()
	gets := make([]*redis.SliceCmd, s.opts.Shards)
	for shard := range gets {
		gets[shard] = pipe.HMGet(ctx, s.shardKey(shard, "meta"), fields...)
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, s.outOfReach(ctx, err)
	}
	out := make([][]any, len(gets))
	for shard, get := range gets {
		out[shard] = get.Val()
	}
	return out, nil
}
