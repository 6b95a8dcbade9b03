package ledger_test

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"

	"tollgate/events"
	"tollgate/ledger"
	"tollgate/ledger/ledgerbench"
)

// What a refold gives does not depend on where its batches are cut, although it
// uses their memory again: trees, sums and rows are those of one batch.
func TestPropertyRefoldDoesNotDependOnCuts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		log := ledgerbench.Log(ledgerbench.LogOptions{Seed: rapid.Uint64().Draw(t, "seed"), Events: rapid.IntRange(1, 300).Draw(t, "events")})[0]
		for range rapid.IntRange(0, 20).Draw(t, "repeats") {
			again := log[rapid.IntRange(0, len(log)-1).Draw(t, "of")]
			again.Offset = int64(len(log))
			log = append(log, again)
		}
		whole, cut := ledger.NewRefold(events.TopicEvents), ledger.NewRefold(events.TopicEvents)
		all, err := whole.Add(0, log)
		if err != nil {
			t.Fatal(err)
		}
		var rows []byte
		tree := ledger.NewTree()
		for rest := log; len(rest) > 0; {
			n := min(len(rest), rapid.IntRange(1, 60).Draw(t, "cut"))
			part, err := cut.Add(0, rest[:n])
			if err != nil {
				t.Fatal(err)
			}
			rows = append(rows, part.Rows...)
			rest = rest[n:]
			// The last 32 bytes of a tuple are its leaf.
			for tuples := part.Rows; len(tuples) > 0; {
				var leaf []byte
				leaf, tuples = firstLeaf(tuples)
				if err := tree.Append(leaf); err != nil {
					t.Fatal(err)
				}
			}
			if !bytes.Equal(part.Link.TreeRoot, tree.Root()) || part.Link.TreeSize != tree.Size() {
				t.Fatalf("tree after offset %d is not that of its leaves", part.Link.Last)
			}
		}
		if !bytes.Equal(rows, all.Rows) {
			t.Fatal("rows depend on where batches are cut")
		}
		if a, b := whole.Partitions()[0], cut.Partitions()[0]; !bytes.Equal(a.TreeRoot, b.TreeRoot) || !bytes.Equal(a.TreeRange, b.TreeRange) || a.Counts != b.Counts {
			t.Fatalf("cut: %+v, whole: %+v", b, a)
		}
		a, b := whole.Sums(), cut.Sums()
		if len(a.Reservations) != len(b.Reservations) || len(a.Usage) != len(b.Usage) {
			t.Fatal("sums depend on where batches are cut")
		}
		for i := range a.Reservations {
			x, y := a.Reservations[i], b.Reservations[i]
			if *x.Head != *y.Head {
				t.Fatalf("head depends on where batches are cut: %+v, %+v", x.Head, y.Head)
			}
			x.Head, y.Head = nil, nil
			if x != y {
				t.Fatalf("sum depends on where batches are cut: %+v, %+v", x, y)
			}
		}
		for i := range a.Usage {
			if a.Usage[i] != b.Usage[i] {
				t.Fatalf("bucket depends on where batches are cut: %+v, %+v", a.Usage[i], b.Usage[i])
			}
		}
	})
}

// firstLeaf takes the first tuple off and returns its leaf.
func firstLeaf(tuples []byte) (leaf, rest []byte) {
	rest = tuples[2:]
	for range ledger.ColumnCount {
		n := int(rest[0])<<24 | int(rest[1])<<16 | int(rest[2])<<8 | int(rest[3])
		leaf, rest = rest[4:4+n], rest[4+n:]
	}
	return leaf, rest
}
