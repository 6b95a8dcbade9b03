package postgres

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"tollgate/events"
	"tollgate/reconcile"
)

//go:embed sql/insert_readings.sql
var insertReadingsSQL string

//go:embed sql/stored_readings.sql
var storedReadingsSQL string

// MeterFolder takes the readings of a topic into meter_readings, each event id
// once. It keeps its position in fold_progress, in the transaction that takes
// the readings in, so a crash neither loses nor repeats any; the owner and its
// epoch fence a process that lost the partition. Consumed = folded +
// duplicates + dead-lettered + conflicts, always.
type MeterFolder struct {
	pool *pgxpool.Pool
	dead reconcile.DeadLetterer
}

// NewMeterFolder makes a folder. Safe for concurrent use; one claim is not.
func NewMeterFolder(pool *pgxpool.Pool, dead reconcile.DeadLetterer) *MeterFolder {
	return &MeterFolder{pool: pool, dead: dead}
}

// MeterClaim is the right to fold one partition, and where it stands.
type MeterClaim struct {
	Topic      string
	Partition  int
	NextOffset int64
	owner      string
	epoch      int64
}

// MeterResult counts what became of a batch.
type MeterResult struct {
	Consumed     int64 `json:"consumed"`
	Folded       int64 `json:"folded"`
	Duplicates   int64 `json:"duplicates"`
	DeadLettered int64 `json:"dead_lettered"`
	Conflicts    int64 `json:"conflicts"`
}

// Acquire takes a partition over. The former owner's next Fold is fenced.
func (m *MeterFolder) Acquire(ctx context.Context, topic string, partition int, owner string) (*MeterClaim, error) {
	c := &MeterClaim{Topic: topic, Partition: partition, owner: owner}
	err := m.pool.QueryRow(ctx, `
		INSERT INTO fold_progress AS p (topic, topic_partition, next_offset, owner, owner_epoch, consumed, folded, duplicates,
		    dead_lettered, conflicts, chain_hash, tree_size, tree_range)
		VALUES ($1, $2, 0, $3, 1, 0, 0, 0, 0, 0, '', 0, '')
		ON CONFLICT (topic, topic_partition) DO UPDATE SET owner = excluded.owner, owner_epoch = p.owner_epoch + 1
		RETURNING next_offset, owner_epoch`, topic, partition, owner).Scan(&c.NextOffset, &c.epoch)
	if err != nil {
		return nil, fmt.Errorf("acquire %s/%d: %w", topic, partition, err)
	}
	return c, nil
}

// reading is a decoded record. Times have the precision of the table.
type reading struct {
	offset int64
	id     string
	kind   string
	data   []byte
	meter  events.Meter
}

// Fold takes records in, in order of their offsets, and advances the claim.
// Records before the claim's position are passed over. On an error nothing was
// folded, unless the commit's answer was lost; Resume then tells.
// ErrFenced means that another process owns the partition.
func (m *MeterFolder) Fold(ctx context.Context, claim *MeterClaim, records []events.Record) (MeterResult, error) {
	var res MeterResult
	for len(records) > 0 && records[0].Offset < claim.NextOffset {
		records = records[1:]
	}
	if len(records) == 0 {
		return res, nil
	}
	list, err := m.decode(ctx, records, &res)
	if err != nil {
		return MeterResult{}, err
	}
	next := records[len(records)-1].Offset + 1
	err = inTx(ctx, m.pool, func(tx pgx.Tx) error {
		if err := fence(ctx, tx, claim); err != nil {
			return err
		}
		if err := foldReadings(ctx, tx, claim, list, &res); err != nil {
			return err
		}
		if res.Folded+res.Duplicates+res.DeadLettered+res.Conflicts != res.Consumed {
			return fmt.Errorf("counts of a batch do not add up: %+v", res)
		}
		_, err := tx.Exec(ctx, `
			UPDATE fold_progress SET next_offset = $3, consumed = consumed + $4, folded = folded + $5,
			    duplicates = duplicates + $6, dead_lettered = dead_lettered + $7, conflicts = conflicts + $8, updated_at = now()
			WHERE topic = $1 AND topic_partition = $2`,
			claim.Topic, claim.Partition, next, res.Consumed, res.Folded, res.Duplicates, res.DeadLettered, res.Conflicts)
		return err
	})
	if err != nil {
		return MeterResult{}, fmt.Errorf("fold meters of %s/%d: %w", claim.Topic, claim.Partition, err)
	}
	claim.NextOffset = next
	return res, nil
}

// Resume reads the claim's position again, after an error left it in doubt. It
// returns ErrFenced when the claim is no longer this owner's.
func (m *MeterFolder) Resume(ctx context.Context, claim *MeterClaim) error {
	var owner string
	var epoch, next int64
	err := m.pool.QueryRow(ctx, `SELECT owner, owner_epoch, next_offset FROM fold_progress WHERE topic = $1 AND topic_partition = $2`,
		claim.Topic, claim.Partition).Scan(&owner, &epoch, &next)
	if err != nil {
		return fmt.Errorf("read the position of %s/%d: %w", claim.Topic, claim.Partition, err)
	}
	if owner != claim.owner || epoch != claim.epoch {
		return reconcile.ErrFenced
	}
	claim.NextOffset = next
	return nil
}

// decode reads the records. What is no reading goes to the dead letters before
// the transaction that counts it: a crash in between repeats the dead letter,
// never loses it.
func (m *MeterFolder) decode(ctx context.Context, records []events.Record, res *MeterResult) ([]reading, error) {
	list := make([]reading, 0, len(records))
	for _, record := range records {
		res.Consumed++
		r, err := decodeReading(record)
		if err == nil {
			list = append(list, r)
			continue
		}
		reason := "undecodable"
		var invalid *events.InvalidError
		if errors.As(err, &invalid) {
			reason = string(invalid.Reason)
		}
		callCtx, cancel := context.WithTimeout(ctx, publishTimeout)
		err = m.dead.DeadLetter(callCtx, record, reason)
		cancel()
		if err != nil {
			return nil, fmt.Errorf("dead-letter %s/%d offset %d: %w", record.Topic, record.Partition, record.Offset, err)
		}
		res.DeadLettered++
	}
	return list, nil
}

func decodeReading(record events.Record) (reading, error) {
	r := reading{offset: record.Offset}
	e, err := events.FromRecord(record)
	if err != nil {
		return r, err
	}
	if r.meter, err = e.Meter(); err != nil {
		return r, err
	}
	// The end of an interval must be near its arrival: it chooses the hour, and
	// an hour far away would never be judged.
	if err := events.CheckTime(e.Time, record.Time); err != nil {
		return r, err
	}
	if err := events.CheckTime(r.meter.To, record.Time); err != nil {
		return r, err
	}
	r.id, r.data, r.kind = e.ID, e.Data, "model"
	if e.Type == events.TypeGPUMeter {
		r.kind = "gpu"
	}
	r.meter.From = r.meter.From.UTC().Truncate(time.Microsecond)
	r.meter.To = r.meter.To.UTC().Truncate(time.Microsecond)
	return r, nil
}

// fence locks the partition's row and checks that it is as this claim left it.
func fence(ctx context.Context, tx pgx.Tx, claim *MeterClaim) error {
	var owner string
	var epoch, next int64
	err := tx.QueryRow(ctx, `
		SELECT owner, owner_epoch, next_offset FROM fold_progress
		WHERE topic = $1 AND topic_partition = $2 FOR UPDATE`, claim.Topic, claim.Partition).Scan(&owner, &epoch, &next)
	if err != nil {
		return fmt.Errorf("lock the position: %w", err)
	}
	if owner != claim.owner || epoch != claim.epoch || next != claim.NextOffset {
		return reconcile.ErrFenced
	}
	return nil
}

// foldReadings inserts what is new and sorts the rest into duplicates and
// conflicts. Of equal ids the one with the lowest offset is kept.
func foldReadings(ctx context.Context, tx pgx.Tx, claim *MeterClaim, list []reading, res *MeterResult) error {
	first := make(map[string]reading, len(list))
	fresh := make([]reading, 0, len(list))
	var again []reading
	for _, r := range list {
		if _, ok := first[r.id]; ok {
			again = append(again, r)
			continue
		}
		first[r.id] = r
		fresh = append(fresh, r)
	}
	inserted, err := insertReadings(ctx, tx, fresh)
	if err != nil {
		return err
	}
	var met []string
	for _, r := range fresh {
		if inserted[r.id] {
			res.Folded++
			continue
		}
		met = append(met, r.id)
		again = append(again, r)
	}
	stored, err := storedReadings(ctx, tx, met)
	if err != nil {
		return err
	}
	for _, r := range again {
		kept, ok := stored[r.id]
		if !ok {
			kept = first[r.id]
		}
		if kept.kind == r.kind && kept.meter == r.meter {
			res.Duplicates++
			continue
		}
		res.Conflicts++
		_, err := tx.Exec(ctx, `
			INSERT INTO meter_conflicts (topic, topic_partition, topic_offset, event_id, tenant_id, other_event)
			VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING`,
			claim.Topic, claim.Partition, r.offset, r.id, r.meter.TenantID, bytes.Clone(r.data))
		if err != nil {
			return fmt.Errorf("note a conflict: %w", err)
		}
	}
	return nil
}

func insertReadings(ctx context.Context, tx pgx.Tx, list []reading) (map[string]bool, error) {
	n := len(list)
	ids, kinds, tenants := make([]string, n), make([]string, n), make([]string, n)
	reservations, requests, pools, models := make([]string, n), make([]string, n), make([]string, n), make([]string, n)
	from, to := make([]time.Time, n), make([]time.Time, n)
	input, output, gpu, final := make([]int64, n), make([]int64, n), make([]int64, n), make([]bool, n)
	for i, r := range list {
		v := r.meter
		ids[i], kinds[i], tenants[i] = r.id, r.kind, v.TenantID
		reservations[i], requests[i], pools[i], models[i] = v.ReservationID, v.RequestID, v.Pool, v.Model
		from[i], to[i] = v.From, v.To
		input[i], output[i], gpu[i], final[i] = v.InputTokens, v.OutputTokens, v.GPUMillis, v.Final
	}
	rows, err := tx.Query(ctx, insertReadingsSQL, ids, kinds, tenants, reservations, requests, pools, models,
		from, to, input, output, gpu, final)
	if err != nil {
		return nil, fmt.Errorf("insert readings: %w", err)
	}
	inserted := make(map[string]bool, n)
	var id string
	if _, err := pgx.ForEachRow(rows, []any{&id}, func() error {
		inserted[id] = true
		return nil
	}); err != nil {
		return nil, fmt.Errorf("insert readings: %w", err)
	}
	return inserted, nil
}

func storedReadings(ctx context.Context, tx pgx.Tx, ids []string) (map[string]reading, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	rows, err := tx.Query(ctx, storedReadingsSQL, ids)
	if err != nil {
		return nil, fmt.Errorf("read stored readings: %w", err)
	}
	stored := make(map[string]reading, len(ids))
	var r reading
	v := &r.meter
	if _, err := pgx.ForEachRow(rows, []any{
		&r.id, &r.kind, &v.TenantID, &v.ReservationID, &v.RequestID, &v.Pool, &v.Model,
		&v.From, &v.To, &v.InputTokens, &v.OutputTokens, &v.GPUMillis, &v.Final,
	}, func() error {
		v.From, v.To = v.From.UTC(), v.To.UTC()
		stored[r.id] = r
		return nil
	}); err != nil {
		return nil, fmt.Errorf("read stored readings: %w", err)
	}
	return stored, nil
}
