package app

import (
	"context"
	"fmt"
	"net"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/oklog/ulid/v2"
	"github.com/redis/go-redis/v9"
)

// A Redis that comes back with an older copy of its data (a restored file, or a
// loss of power with appendfsync everysec) has its epochs, so that gateways
// would go on admitting: on counters that lack what the log has, with holds
// open that were settled. Therefore the rebuilder keeps in PostgreSQL how far
// each shard was, and compares. What is older is closed and rebuilt like state
// that was lost.
//
// It looks once a second, and at once when the process connects to Redis anew,
// which it does after every restart. A copy that lacks only what was decided
// after the last look before is not told from the whole one; and what gateways
// decide on an old copy until it is looked at stands.

// mark is how far a shard's state is.
type mark struct {
	epoch string
	added int64
}

// older tells whether the state now is an older copy of what was seen before.
// Rebuilt state has a later epoch; without one it is closed already.
func (now mark) older(seen mark) bool {
	if now.epoch == "" || seen.epoch == "" {
		return false
	}
	if now.epoch == seen.epoch {
		return now.added < seen.added
	}
	nowID, err := ulid.ParseStrict(strings.ToUpper(now.epoch))
	if err != nil {
		return false // made by other hands, without an order
	}
	seenID, err := ulid.ParseStrict(strings.ToUpper(seen.epoch))
	return err == nil && nowID.Compare(seenID) < 0
}

// compare closes all shards if any has become older than it was, and else
// writes down how far they are. It reports whether every shard is open.
func (r *rebuilder) compare(ctx context.Context) (open bool, err error) {
	// What was seen is read first: it is at most what Redis has by now.
	seen, err := r.seen(ctx)
	if err != nil {
		return false, err
	}
	now, err := r.marks(ctx)
	if err != nil || now == nil {
		return false, err
	}
	epochs, older := map[int]string{}, 0
	open = true
	for shard, m := range now {
		epochs[shard] = m.epoch
		open = open && m.epoch != ""
		if m.older(seen[shard]) {
			older++
			r.log.Error("Redis has an older copy of its state: it was restored, or lost what it had acknowledged",
				"shard", shard, "epoch", m.epoch, "records", m.added,
				"seen_epoch", seen[shard].epoch, "seen_records", seen[shard].added)
		}
	}
	if older == 0 {
		return open, r.note(ctx, seen, now)
	}
	// On a single Redis one shard's outbox has other shards' records as well: one
	// that is older says nothing good of the rest.
	closed, err := r.store.Forget(ctx, epochs)
	if err != nil {
		return false, fmt.Errorf("close shards that are older than they were: %w", err)
	}
	if closed > 0 {
		r.rolledBack.Inc()
	}
	r.log.Error("admission state is closed until it is rebuilt from the ledger", "older", older, "closed", closed)
	return false, nil
}

// marks reads how far the shards are; nil when that changed under its eyes.
func (r *rebuilder) marks(ctx context.Context) (map[int]mark, error) {
	epochs, added, again, err := r.store.Progress(ctx)
	if err != nil {
		return nil, err
	}
	marks := make(map[int]mark, len(added))
	for shard, n := range added {
		if epochs[shard] != again[shard] {
			return nil, nil
		}
		marks[shard] = mark{epochs[shard], n}
	}
	return marks, nil
}

func (r *rebuilder) seen(ctx context.Context) (map[int]mark, error) {
	rows, err := r.pool.Query(ctx, `SELECT shard, epoch, added FROM admission_state`)
	if err != nil {
		return nil, fmt.Errorf("read what was seen of the state: %w", err)
	}
	seen := map[int]mark{}
	var shard int
	var m mark
	if _, err := pgx.ForEachRow(rows, []any{&shard, &m.epoch, &m.added}, func() error { seen[shard] = m; return nil }); err != nil {
		return nil, fmt.Errorf("read what was seen of the state: %w", err)
	}
	return seen, nil
}

// note writes down what changed. Of several processes at it the one that saw
// most wins; one that saw an epoch that is over changes nothing.
func (r *rebuilder) note(ctx context.Context, seen, now map[int]mark) error {
	var shards []int
	var epochs, before []string
	var added []int64
	for shard, m := range now {
		if m.epoch == "" || m == seen[shard] {
			continue
		}
		shards, epochs, added = append(shards, shard), append(epochs, m.epoch), append(added, m.added)
		before = append(before, seen[shard].epoch)
	}
	if len(shards) == 0 {
		return nil
	}
	// In order of shards, so that two writers do not lock each other out.
	_, err := r.pool.Exec(ctx, `
		WITH now AS (
			SELECT * FROM unnest($1::int[], $2::text[], $3::bigint[], $4::text[]) AS n (shard, epoch, added, before)
		), known AS (
			UPDATE admission_state s SET epoch = n.epoch, added = n.added, seen_at = now()
			FROM now n, (SELECT shard FROM admission_state WHERE shard = ANY ($1) ORDER BY shard FOR UPDATE) locked
			WHERE s.shard = n.shard AND s.shard = locked.shard AND s.epoch = n.before
			  AND (s.epoch <> n.epoch OR s.added < n.added)
		)
		INSERT INTO admission_state (shard, epoch, added)
		SELECT shard, epoch, added FROM now WHERE before = '' ORDER BY shard
		ON CONFLICT (shard) DO NOTHING`, shards, epochs, added, before)
	if err != nil {
		return fmt.Errorf("note how far the state is: %w", err)
	}
	return nil
}

// newEpoch returns an epoch later than all that were seen, whatever the clock
// says.
func newEpoch(seen map[int]mark) string {
	id := ulid.Make()
	for _, m := range seen {
		before, err := ulid.ParseStrict(strings.ToUpper(m.epoch))
		if err == nil && id.Time() <= before.Time() {
			_ = id.SetTime(before.Time() + 1) // fails only for times past the year 10889
		}
	}
	return strings.ToLower(id.String())
}

// drained returns nil once the relays have copied all that closed shards have:
// state is rebuilt from the ledger, which must know it.
func (r *rebuilder) drained(ctx context.Context, shards map[int]bool) error {
	waiting, err := r.store.Waiting(ctx, shards)
	if err != nil {
		return err
	}
	if waiting > 0 {
		return fmt.Errorf("entries in outboxes of closed shards are not in the log yet: %d", waiting)
	}
	return nil
}

// onDial makes a client signal each connection that it opens. It must be called
// before the client is used.
func onDial(client redis.UniversalClient, signal chan<- struct{}) {
	switch c := client.(type) {
	case *redis.ClusterClient:
		c.OnNewNode(func(node *redis.Client) { node.AddHook(dialHook(signal)) })
	case *redis.Client:
		c.AddHook(dialHook(signal))
	}
}

// dialHook signals without waiting: one signal that was not taken is enough.
type dialHook chan<- struct{}

// DialHook implements redis.Hook.
func (h dialHook) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := next(ctx, network, addr)
		if err == nil {
			select {
			case h <- struct{}{}:
			default:
			}
		}
		return conn, err
	}
}

// ProcessHook implements redis.Hook.
func (dialHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

// ProcessPipelineHook implements redis.Hook.
func (dialHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
