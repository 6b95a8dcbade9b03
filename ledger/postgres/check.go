package postgres

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"tollgate/ledger"
)

//go:embed sql/check_hours.sql
var sqlCheckHours string

//go:embed sql/check_reservations.sql
var sqlCheckReservations string

//go:embed sql/check_ends.sql
var sqlCheckEnds string

//go:embed sql/check_window.sql
var sqlCheckWindow string

//go:embed sql/check_partitions.sql
var sqlCheckPartitions string

//go:embed sql/totals.sql
var sqlTotals string

//go:embed sql/totals_rows.sql
var sqlTotalsRows string

// maxNamed bounds how many differing rows of a kind are named.
const maxNamed = 1000

// Difference is one figure that is not what it should be.
type Difference struct {
	Table  string `json:"table"`
	Row    string `json:"row"`
	Figure string `json:"figure"`
	Want   string `json:"want"` // "" : the row should not be there
	Got    string `json:"got"`  // "" : the row is missing
}

// String implements fmt.Stringer.
func (d Difference) String() string {
	return fmt.Sprintf("%s (%s): %s is %s, should be %s",
		d.Table, d.Row, d.Figure, cmp.Or(d.Got, "nothing"), cmp.Or(d.Want, "nothing"))
}

// CheckReport is what Check found, at one moment.
type CheckReport struct {
	Window *ledger.Window `json:"window"` // nil: no hour was ever closed

	// Totals over all tenants; what is beyond an int64's range is its end. Journal, Hours and BeforeWindow + Closed30d +
	// Open are equal when nothing differs. Reservations do not count requests.
	Journal      ledger.Amount `json:"journal"`
	Reservations ledger.Amount `json:"reservations"`
	Hours        ledger.Amount `json:"usage_hour"`
	Closed30d    ledger.Amount `json:"usage_30d"`
	Open         ledger.Amount `json:"open_hours"`
	BeforeWindow ledger.Amount `json:"before_window"`

	Counts ledger.Counts `json:"counts"`
	// Incomplete counts reservations that have not as many events as their last
	// one says: one is still on its way, or is a dead letter; or one came after
	// the end.
	Incomplete  int64        `json:"incomplete_reservations"`
	Differences []Difference `json:"differences"`
	// More is set when there may be more differences than are named.
	More bool `json:"more,omitempty"`
}

// Rolling30d is the rolling sum: the closed hours and what is open.
func (r *CheckReport) Rolling30d() ledger.Amount {
	a := r.Closed30d
	a.Add(r.Open)
	return a
}

// OK says that everything adds up.
func (r *CheckReport) OK() bool { return len(r.Differences) == 0 }

// Err returns nil or an error that names the first differences.
func (r *CheckReport) Err() error {
	if r.OK() {
		return nil
	}
	var b strings.Builder
	for i, d := range r.Differences {
		if i == 5 {
			fmt.Fprintf(&b, "\n… and %d more", len(r.Differences)-i)
			break
		}
		b.WriteString("\n" + d.String())
	}
	return fmt.Errorf("ledger does not add up:%s", b.String())
}

// Check compares, at one snapshot, every sum with what it is the sum of:
// usage_hour and reservations with the journal, usage_30d with usage_hour, the
// counts of records with each other and with the tables. It names every figure
// that differs, and every reservation that was counted twice, up to a thousand
// rows of a kind.
func (s *Store) Check(ctx context.Context) (*CheckReport, error) {
	r := new(CheckReport)
	err := s.snapshot(ctx, func(tx pgx.Tx) error { return s.check(ctx, tx, r) })
	if err != nil {
		return nil, fmt.Errorf("check the ledger: %w", err)
	}
	return r, nil
}

// snapshot runs do in a read-only transaction that sees one moment; that of
// another transaction where its exported snapshot is given.
func (s *Store) snapshot(ctx context.Context, do func(tx pgx.Tx) error, exported ...string) error {
	opts := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	return pgx.BeginTxFunc(ctx, s.pool, opts, func(tx pgx.Tx) error {
		for _, id := range exported {
			if !snapshotID.MatchString(id) {
				return errors.New("malformed snapshot id")
			}
			if _, err := tx.Exec(ctx, "SET TRANSACTION SNAPSHOT '"+id+"'"); err != nil {
				return err
			}
		}
		// Large sums are sorted in memory, and compiling the queries costs more
		// than it gains.
		if _, err := tx.Exec(ctx, "SET LOCAL work_mem = '64MB'; SET LOCAL jit = off; SET LOCAL timezone = 'UTC'"); err != nil {
			return err
		}
		return do(tx)
	})
}

// snapshotID is what PostgreSQL gives; the statement takes no parameter.
var snapshotID = regexp.MustCompile(`^[0-9A-Fa-f-]+$`)

var (
	amountNames = []string{
		"requests", "input_tokens", "output_tokens", "cached_input_tokens", "reasoning_tokens",
		"tool_calls", "images", "audio_ms", "gpu_ms", "milli_units",
	}
	reservationNames = []string{
		"seq", "head_event_id", "tenant_id", "request_id", "key_id", "endpoint", "model", "state",
		"weight_milli", "held_milli_units", "total_milli_units", "estimated", "expires_at",
		"events", "input_tokens", "output_tokens", "cached_input_tokens", "reasoning_tokens",
		"tool_calls", "images", "audio_ms", "gpu_ms", "milli_units", "first_event_at", "last_event_at",
	}
	partitionNames = []string{
		"consumed (sum of its kinds)",
		"consumed (batches)", "folded (batches)", "duplicates (batches)", "dead_lettered (batches)", "conflicts (batches)",
		"folded (journal rows)", "tree_size (journal rows)", "conflicts (event_conflicts rows)",
	}
)

func (s *Store) check(ctx context.Context, tx pgx.Tx, r *CheckReport) error {
	if err := readTotals(ctx, tx, r); err != nil {
		return err
	}
	if err := r.readAmounts(ctx, tx, sqlTotalsRows); err != nil {
		return err
	}
	journal, err := countJournal(ctx, tx)
	if err != nil {
		return err
	}
	if err := s.checkPartitions(ctx, tx, r, journal); err != nil {
		return err
	}
	var tenant, model, endpoint, key, id string
	var hour time.Time
	err = r.compare(ctx, tx, sqlCheckHours, "usage_hour", amountNames, []any{&tenant, &hour, &model, &endpoint, &key}, func() string {
		return fmt.Sprintf("tenant %q hour %s model %q endpoint %q key %q", tenant, hour.UTC().Format("2006-01-02T15Z"), model, endpoint, key)
	})
	if err != nil {
		return err
	}
	if err := r.checkWindow(ctx, tx); err != nil {
		return err
	}
	err = r.compare(ctx, tx, sqlCheckReservations, "reservations", reservationNames, []any{&id}, func() string { return fmt.Sprintf("reservation %q", id) })
	if err != nil {
		return err
	}
	if err := r.checkReservationTotals(ctx, tx); err != nil {
		return err
	}
	return r.checkEnds(ctx, tx)
}

// checkEnds names the reservations that ended more than once, each time with
// use: every sum is right, and yet too much was counted. It comes of an
// admission state older than the log.
func (r *CheckReport) checkEnds(ctx context.Context, tx pgx.Tx) error {
	var id string
	return r.compare(ctx, tx, sqlCheckEnds, "journal", []string{"events that end it"}, []any{&id},
		func() string { return fmt.Sprintf("reservation %q, counted twice", id) })
}

func (r *CheckReport) checkWindow(ctx context.Context, tx pgx.Tx) error {
	var tenant string
	return r.compare(ctx, tx, sqlCheckWindow, "usage_30d", amountNames, []any{&tenant}, func() string { return fmt.Sprintf("tenant %q", tenant) })
}

// countJournal counts the journal's rows by partition of the log.
func countJournal(ctx context.Context, tx pgx.Tx) (map[int]int64, error) {
	rows, err := tx.Query(ctx, "SELECT topic_partition, count(*) FROM journal GROUP BY 1")
	if err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	counts := make(map[int]int64)
	var partition int
	var n int64
	if _, err := pgx.ForEachRow(rows, []any{&partition, &n}, func() error { counts[partition] = n; return nil }); err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	return counts, nil
}

// compare runs a query of rows that differ: key columns, then the figures that
// should be and those that are.
func (r *CheckReport) compare(ctx context.Context, tx pgx.Tx, sql, table string, names []string, key []any, row func() string) error {
	rows, err := tx.Query(ctx, sql, maxNamed)
	if err != nil {
		return fmt.Errorf("%s: %w", table, err)
	}
	var want, got []*string
	n := 0
	_, err = pgx.ForEachRow(rows, append(key, &want, &got), func() error {
		n++
		r.name(table, row(), names, or(want, ""), or(got, ""))
		return nil
	})
	r.More = r.More || n == maxNamed
	if err != nil {
		return fmt.Errorf("%s: %w", table, err)
	}
	return nil
}

func (r *CheckReport) name(table, row string, names, want, got []string) {
	at := func(v []string, i int) string {
		if i < len(v) {
			return v[i]
		}
		return ""
	}
	for i, name := range names {
		if at(want, i) != at(got, i) {
			r.Differences = append(r.Differences, Difference{Table: table, Row: row, Figure: name, Want: at(want, i), Got: at(got, i)})
		}
	}
}

// checkPartitions holds the counts of records against each other; journal has
// how many rows the journal has of each partition.
func (s *Store) checkPartitions(ctx context.Context, tx pgx.Tx, r *CheckReport, journal map[int]int64) error {
	progress, err := readProgress(ctx, tx, s.topic)
	if err != nil {
		return fmt.Errorf("fold_progress: %w", err)
	}
	for _, p := range progress {
		r.Counts.Add(p.Counts)
	}
	partitions, counts := make([]int, 0, len(journal)), make([]int64, 0, len(journal))
	for p, n := range journal {
		if n > 0 {
			partitions, counts = append(partitions, p), append(counts, n)
		}
	}
	rows, err := tx.Query(ctx, sqlCheckPartitions, s.topic, partitions, counts)
	if err != nil {
		return fmt.Errorf("partitions: %w", err)
	}
	var partition int
	var want, got []*string
	_, err = pgx.ForEachRow(rows, []any{&partition, &want, &got}, func() error {
		r.name("fold_progress", fmt.Sprintf("partition %d", partition), partitionNames, or(want, "0"), or(got, "0"))
		return nil
	})
	if err != nil {
		return fmt.Errorf("partitions: %w", err)
	}
	return nil
}

// or replaces what is null: the figures of a row that is missing.
func or(v []*string, null string) []string {
	out := make([]string, len(v))
	for i, p := range v {
		if out[i] = null; p != nil {
			out[i] = *p
		}
	}
	return out
}

// checkReservationTotals holds the sum of a reservation's deltas against what
// its last event says the sum is. Where an event is missing they may differ.
func (r *CheckReport) checkReservationTotals(ctx context.Context, tx pgx.Tx) error {
	if err := tx.QueryRow(ctx, "SELECT count(*) FROM reservations WHERE events <> seq").Scan(&r.Incomplete); err != nil {
		return fmt.Errorf("reservations: %w", err)
	}
	rows, err := tx.Query(ctx, `SELECT reservation_id, total_milli_units::text, milli_units::text FROM reservations
		WHERE events = seq AND milli_units <> total_milli_units ORDER BY 1 LIMIT $1`, maxNamed)
	if err != nil {
		return fmt.Errorf("reservations: %w", err)
	}
	var id, want, got string
	_, err = pgx.ForEachRow(rows, []any{&id, &want, &got}, func() error {
		r.Differences = append(r.Differences, Difference{
			Table: "reservations", Row: fmt.Sprintf("reservation %q", id),
			Figure: "milli_units (last event's total)", Want: want, Got: got,
		})
		return nil
	})
	return err
}

func readTotals(ctx context.Context, tx pgx.Tx, r *CheckReport) error {
	var w ledger.Window
	err := tx.QueryRow(ctx, "SELECT window_start, closed_through FROM usage_window").Scan(&w.Start, &w.ClosedThrough)
	switch {
	case err == nil:
		r.Window = &w
	case !errors.Is(err, pgx.ErrNoRows):
		return fmt.Errorf("usage_window: %w", err)
	}
	return r.readAmounts(ctx, tx, sqlTotals)
}

// readAmounts reads rows of a name and ten sums into the fields of that name.
func (r *CheckReport) readAmounts(ctx context.Context, tx pgx.Tx, sql string) error {
	rows, err := tx.Query(ctx, sql)
	if err != nil {
		return fmt.Errorf("totals: %w", err)
	}
	into := map[string]*ledger.Amount{
		"journal": &r.Journal, "reservations": &r.Reservations, "usage_hour": &r.Hours,
		"usage_30d": &r.Closed30d, "open": &r.Open, "before": &r.BeforeWindow,
	}
	var name string
	var v []*string
	_, err = pgx.ForEachRow(rows, []any{&name, &v}, func() error { return saturate(into[name], v) })
	if err != nil {
		return fmt.Errorf("totals: %w", err)
	}
	return nil
}

// fields returns the figures of an amount in the order of amountNames.
func fields(a *ledger.Amount) [10]*int64 {
	return [10]*int64{
		&a.Requests, &a.InputTokens, &a.OutputTokens, &a.CachedInputTokens, &a.ReasoningTokens,
		&a.ToolCalls, &a.Images, &a.AudioMillis, &a.GPUMillis, &a.MilliUnits,
	}
}
