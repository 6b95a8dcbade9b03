package postgres

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"tollgate/ledger"
	"tollgate/ledger/internal/pgcopy"
)

// compare holds the original, at its snapshot, against what the log gives.
func (r *replay) compare(ctx context.Context, tx pgx.Tx, sums *ledger.Sums, window ledger.Window) error {
	r.comparePartitions()
	if err := r.compareJournal(ctx, tx); err != nil {
		return fmt.Errorf("compare journals: %w", err)
	}
	own := tupleCursor{count: len(sums.Reservations), at: func(b []byte, i int) []byte { return appendReservation(b, &sums.Reservations[i]) }}
	err := r.compareRows(ctx, tx, "reservations", reservationColumnNames, 1,
		"SELECT "+reservationColumns+` FROM reservations ORDER BY reservation_id COLLATE "C"`, own)
	if err != nil {
		return fmt.Errorf("compare reservations: %w", err)
	}
	own = tupleCursor{count: len(sums.Usage), at: func(b []byte, i int) []byte { return appendUsageRow(b, &sums.Usage[i]) }}
	err = r.compareRows(ctx, tx, "usage_hour", usageColumnNames, 5, "SELECT "+usageColumns+
		` FROM usage_hour ORDER BY tenant_id COLLATE "C", hour, model COLLATE "C", endpoint COLLATE "C", key_id COLLATE "C"`, own)
	if err != nil {
		return fmt.Errorf("compare usage_hour: %w", err)
	}
	if err := r.compareWindow(ctx, tx, sums, window); err != nil {
		return fmt.Errorf("compare usage_30d: %w", err)
	}
	return nil
}

func (r *replay) differ(d Difference) {
	if len(r.report.Differences) >= maxNamed {
		r.report.More = true
		return
	}
	r.report.Differences = append(r.report.Differences, d)
}

func (r *replay) comparePartitions() {
	log := make(map[int]ledger.RefoldedPartition)
	for _, p := range r.report.Partitions {
		log[p.Partition] = p
	}
	for _, p := range r.standing {
		want := log[p.Partition]
		if want.TreeRoot == nil { // no record of this partition
			want.TreeRoot = ledger.NewTree().Root()
		}
		for _, f := range []struct{ name, want, got string }{
			{"tree_root", hex.EncodeToString(want.TreeRoot), hex.EncodeToString(p.TreeRoot)},
			{"tree_size", strconv.FormatInt(want.TreeSize, 10), strconv.FormatInt(p.TreeSize, 10)},
			{"next_offset", strconv.FormatInt(want.Next, 10), strconv.FormatInt(p.Next, 10)},
			{"counts", fmt.Sprint(want.Counts), fmt.Sprint(p.Counts)},
		} {
			if f.want != f.got {
				r.differ(Difference{Table: "fold_progress", Row: fmt.Sprintf("partition %d", p.Partition), Figure: f.name, Want: f.want, Got: f.got})
			}
		}
	}
}

// compareJournal reads every row of the original and holds the leaf that its
// columns give against the log's.
func (r *replay) compareJournal(ctx context.Context, tx pgx.Tx) error {
	read := newJournalReader()
	sink := &pgcopy.Sink{Columns: ledger.ColumnCount, Row: func(row []byte) error {
		v, err := read.read(row)
		if err != nil {
			return err
		}
		known := r.fold.Lookup(v.eventID)
		at := fmt.Sprintf("event %q", v.eventID)
		switch {
		case known == nil:
			r.differ(Difference{Table: "journal", Row: at, Figure: "row", Got: fmt.Sprintf("at offset %d", v.offset)})
			return nil
		case known.Leaf != v.leaf:
			r.differ(Difference{
				Table: "journal", Row: fmt.Sprintf("partition %d offset %d %s", known.Partition, known.Offset, at), Figure: "leaf of the columns",
				Want: hex.EncodeToString(known.Leaf[:]), Got: hex.EncodeToString(v.leaf[:]),
			})
		case v.changed():
			r.differ(Difference{
				Table: "journal", Row: fmt.Sprintf("partition %d offset %d %s", known.Partition, known.Offset, at), Figure: "leaf",
				Want: hex.EncodeToString(v.leaf[:]), Got: hex.EncodeToString(v.stored[:]),
			})
		}
		known.Matched = true
		return nil
	}}
	if _, err := tx.Conn().PgConn().CopyTo(ctx, sink, "COPY (SELECT "+journalColumns+" FROM journal) TO STDOUT BINARY"); err != nil {
		return err
	}
	r.fold.Each(func(k *ledger.Known) {
		if !k.Matched {
			r.differ(Difference{Table: "journal", Row: fmt.Sprintf("partition %d offset %d", k.Partition, k.Offset), Figure: "row", Want: "the log's event"})
		}
	})
	return sink.Done()
}

// tupleCursor gives tuples in the order of their keys.
type tupleCursor struct {
	count int
	at    func(b []byte, i int) []byte
}

// compareRows walks two sorted sequences of tuples side by side. The first keys
// columns are the key; in COPY BINARY form their bytes compare as the values
// do, but for the lengths of texts, so keys are compared column by column.
func (r *replay) compareRows(ctx context.Context, tx pgx.Tx, table string, names []string, keys int, query string, own tupleCursor) error {
	next := 0
	var buf []byte
	missing := func(tuple []byte) {
		r.differ(Difference{Table: table, Row: describe(tuple, names, keys), Figure: "row", Want: "the log's"})
	}
	sink := &pgcopy.Sink{Columns: len(names), Row: func(got []byte) error {
		for next < own.count {
			buf = own.at(buf[:0], next)
			order := compareKeys(buf, got, keys)
			if order > 0 {
				break
			}
			next++
			if order == 0 {
				if !bytes.Equal(buf, got) {
					r.nameColumns(table, names, keys, buf, got)
				}
				return nil
			}
			missing(buf)
		}
		r.differ(Difference{Table: table, Row: describe(got, names, keys), Figure: "row", Got: "a row"})
		return nil
	}}
	if _, err := tx.Conn().PgConn().CopyTo(ctx, sink, "COPY ("+query+") TO STDOUT BINARY"); err != nil {
		return err
	}
	for ; next < own.count; next++ {
		buf = own.at(buf[:0], next)
		missing(buf)
	}
	return sink.Done()
}

func compareKeys(a, b []byte, keys int) int {
	for range keys {
		av, an, _ := pgcopy.Next(a)
		bv, bn, _ := pgcopy.Next(b)
		// A time is a signed number; every year after 2000 compares by bytes.
		if c := bytes.Compare(av, bv); c != 0 {
			return c
		}
		a, b = an, bn
	}
	return 0
}

func (r *replay) nameColumns(table string, names []string, keys int, want, got []byte) {
	row := describe(want, names, keys)
	for _, name := range names {
		wv, wn, _ := pgcopy.Next(want)
		gv, gn, _ := pgcopy.Next(got)
		if !bytes.Equal(wv, gv) {
			r.differ(Difference{Table: table, Row: row, Figure: name, Want: render(name, wv), Got: render(name, gv)})
		}
		want, got = wn, gn
	}
}

func describe(tuple []byte, names []string, keys int) string {
	var parts []string
	for i := range keys {
		v, rest, _ := pgcopy.Next(tuple)
		parts = append(parts, names[i]+" "+render(names[i], v))
		tuple = rest
	}
	return strings.Join(parts, ", ")
}

// render shows a value in COPY BINARY form.
func render(name string, v []byte) string {
	switch {
	case name == "hour" || strings.HasSuffix(name, "_at"):
		if len(v) == 8 {
			return time.UnixMicro(int64(binary.BigEndian.Uint64(v)) + pgcopy.Epoch).UTC().Format(time.RFC3339Nano)
		}
	case name == "estimated":
		return strconv.FormatBool(len(v) == 1 && v[0] == 1)
	case strings.HasSuffix(name, "_id") || name == "model" || name == "endpoint" || name == "state":
		return strconv.Quote(string(v))
	}
	if len(v) == 8 {
		return strconv.FormatInt(int64(binary.BigEndian.Uint64(v)), 10)
	}
	return strconv.Quote(string(v))
}

func (r *replay) compareWindow(ctx context.Context, tx pgx.Tx, sums *ledger.Sums, window ledger.Window) error {
	want := rolling(sums, window)
	rows, err := tx.Query(ctx, "SELECT tenant_id, "+amountColumns+" FROM usage_30d")
	if err != nil {
		return err
	}
	got := make(map[string][]string)
	var tenant string
	var figures []string
	if _, err := pgx.ForEachRow(rows, []any{&tenant, &figures}, func() error {
		got[tenant] = slices.Clone(figures)
		return nil
	}); err != nil {
		return err
	}
	for tenant := range want {
		if _, ok := got[tenant]; !ok {
			got[tenant] = nil
		}
	}
	for tenant, have := range got { // without use and without a row are the same
		should := want[tenant]
		if should == nil {
			should = new([10]big.Int)
		}
		for i := range should {
			w, g := should[i].String(), "0"
			if i < len(have) {
				g = have[i]
			}
			if w != g {
				r.differ(Difference{Table: "usage_30d", Row: fmt.Sprintf("tenant %q", tenant), Figure: amountNames[i], Want: w, Got: g})
			}
		}
	}
	return nil
}

// rolling sums the closed hours of the window by tenant, exactly.
func rolling(sums *ledger.Sums, window ledger.Window) map[string]*[10]big.Int {
	out := make(map[string]*[10]big.Int)
	start, end := window.Start.UnixMicro(), window.ClosedThrough.UnixMicro()
	var n big.Int
	for i := range sums.Usage {
		u := &sums.Usage[i]
		if u.HourMicros < start || u.HourMicros >= end {
			continue
		}
		t := out[u.TenantID]
		if t == nil {
			t = new([10]big.Int)
			out[u.TenantID] = t
		}
		for k, f := range fields(&u.Amount) {
			t[k].Add(&t[k], n.SetInt64(*f))
		}
	}
	return out
}
