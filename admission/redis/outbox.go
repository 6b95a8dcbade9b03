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
	entries, errs := s.ReadMany(ctx, []int{shard}, []string{after}, maxEntries)
	return entries[0], errs[0]
}

// ReadMany is Read of several shards in one exchange, each after the entry of
// the same index.
func (s *Store) ReadMany(ctx context.Context, shards []int, after []string, maxEntries int) ([][]events.OutboxEntry, []error) {
	pipe := s.client.Pipeline()
	ranges := make([]*redis.XMessageSliceCmd, len(shards))
	for i, shard := range shards {
		from := "-"
		if after[i] != "" {
			from = "(" + after[i]
		}
		ranges[i] = pipe.XRangeN(ctx, s.shardKey(shard, "outbox"), from, "+", int64(maxEntries))
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
	entries, errs := make([][]events.OutboxEntry, len(shards)), make([]error, len(shards))
	for i, shard := range shards {
		messages, err := ranges[i].Result()
		if err != nil {
			errs[i] = s.outOfReach(ctx, err)
			continue
		}
		entries[i] = make([]events.OutboxEntry, len(messages))
		for j := range messages {
			entries[i][j] = s.entry(shard, &messages[j])
		}
	}
	return entries, errs
}

func (s *Store) entry(shard int, m *redis.XMessage) events.OutboxEntry {
	text := func(name string) string {
		v, _ := m.Values[name].(string)
		return v
	}
	e := events.OutboxEntry{ID: m.ID}
	e.Cumulative, _ = strconv.ParseInt(text("c"), 10, 64) // 0 tells nothing
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

var eventTypes = map[string]events.Type{
	"u": events.TypeUsage, "s": events.TypeSettled, "c": events.TypeCancelled, "x": events.TypeExpired,
}

// eventFields stand before the terms of what is not a reserve; a reserve has
// reserveFields.
const (
	eventFields   = 11
	reserveFields = 3
)

// decodeEvent reads what admission.lua wrote: r|now|deadline|terms for a
// reserve, else kind|now|state|seq|created|deadline|before|total|flag|author|
// reason|terms. Milli-units and deltas are computed here, where integers are
// exact.
func decodeEvent(line string) (events.Event, error) {
	if strings.HasPrefix(line, "r|") {
		return decodeReserve(line)
	}
	f, terms, ok := cutFields(line, eventFields)
	kind := eventTypes[f[0]]
	if !ok || kind == "" || len(f[2]) != 1 || stateNames[f[2][0]] == "" {
		return events.Event{}, fmt.Errorf("kind %.8q in state %.8q", f[0], f[2])
	}
	r := &record{state: f[2][0]}
	if err := r.setTerms(terms); err != nil {
		return events.Event{}, err
	}
	var now int64
	for _, n := range [...]struct {
		to   *int64
		text string
	}{{&now, f[1]}, {&r.seq, f[3]}, {&r.created, f[4]}, {&r.deadline, f[5]}} {
		var err error
		if *n.to, err = strconv.ParseInt(n.text, 10, 64); err != nil {
			return events.Event{}, fmt.Errorf("number: %w", err)
		}
	}
	before, err := parseUsage(f[6])
	if err != nil {
		return events.Event{}, err
	}
	if r.total, err = parseUsage(f[7]); err != nil {
		return events.Event{}, err
	}
	r.author, r.estimated = f[9], f[8] == "e"
	return r.event(kind, now, &before, f[8] == "t", f[10])
}

func decodeReserve(line string) (events.Event, error) {
	f, terms, ok := cutFields(line, reserveFields)
	if !ok {
		return events.Event{}, errors.New("not a reserve")
	}
	r := &record{state: 'h', seq: 1}
	if err := r.setTerms(terms); err != nil {
		return events.Event{}, err
	}
	var err error
	if r.created, err = strconv.ParseInt(f[1], 10, 64); err != nil {
		return events.Event{}, fmt.Errorf("time: %w", err)
	}
	if r.deadline, err = strconv.ParseInt(f[2], 10, 64); err != nil {
		return events.Event{}, fmt.Errorf("deadline: %w", err)
	}
	return r.event(events.TypeReserved, r.created, &r.total, false, "")
}

// event makes the event of a record's change at now (ms). before is the total
// before it; r.author made the change.
func (r *record) event(kind events.Type, now int64, before *events.Usage, tombstone bool, reason string) (events.Event, error) {
	var units [3]int64
	for i, usage := range [...]*events.Usage{before, &r.total, &r.hold} {
		var err error
		if units[i], err = admission.Units(*usage, r.weight, r.image); err != nil {
			return events.Event{}, err
		}
	}
	e := events.Reservation{
		TenantID: r.tenant, ReservationID: admission.ReservationID(r.hash, r.created), RequestID: r.request,
		KeyID: r.key, Endpoint: r.endpoint, Model: r.model,
		Seq: r.seq, State: stateNames[r.state],
		Delta: minus(r.total, *before), DeltaMilliUnits: units[1] - units[0],
		Total: r.total, TotalMilliUnits: units[1], WeightMilli: r.weight,
		ExpiresAt: time.UnixMilli(r.deadline).UTC(),
		Estimated: r.estimated, Tombstone: tombstone, Author: free(r.author), Reason: free(reason),
	}
	if e.State == events.StateHeld || e.State == events.StateExpired {
		e.HeldMilliUnits = max(0, units[2]-units[1])
	}
	return events.Event{
		Type: kind, Subject: e.TenantID, Time: time.UnixMilli(now).UTC(), Data: events.AppendReservation(nil, &e),
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
// by the log. Trimming twice, or late, does no harm, also where Redis was emptied
// or restored since last was read.
func (s *Store) Trim(ctx context.Context, shard int, last events.OutboxEntry) error {
	ms, seq, ok := strings.Cut(last.ID, "-")
	n, err := strconv.ParseUint(seq, 10, 64)
	if !ok || err != nil || len(last.Events) == 0 {
		return fmt.Errorf("%w: %q is not an outbox entry", admission.ErrInvalid, last.ID)
	}
	firstKept := ms + "-" + strconv.FormatUint(n+1, 10)
	epoch, _, _ := strings.Cut(last.Events[0].ID, "-") // as entry made it
	keys := []string{s.shardKey(shard, "outbox"), s.shardKey(shard, "meta"), s.shardKey(shard, "epoch")}
	if err := s.outbox.Run(ctx, s.client, keys, "trim", firstKept, last.ID, epoch).Err(); err != nil {
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
	for shard, m := range metas {
		var v [2]int64
		for i := range v {
			text, ok := m[i].(string)
			if !ok {
				continue // nothing was written yet
			}
			if v[i], err = strconv.ParseInt(text, 10, 64); err != nil {
				return 0, fmt.Errorf("%w: shard %d's count of records is corrupt: %w", admission.ErrUnavailable, shard, err)
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
