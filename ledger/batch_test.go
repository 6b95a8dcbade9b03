package ledger_test

import (
	"bytes"
	"encoding/hex"
	"testing"
	"time"

	"github.com/transparency-dev/merkle/rfc6962"

	"tollgate/events"
	"tollgate/ledger"
	"tollgate/ledger/ledgerbench"
)

func TestLeafAndRootsAreRFC6962s(t *testing.T) {
	b, err := ledger.NewBatch(events.TopicEvents, 0, testLog(40))
	if err != nil {
		t.Fatal(err)
	}
	tree := ledger.NewTree()
	var leaves [][]byte
	for i := range b.Entries {
		leaf := rfc6962.DefaultHasher.HashLeaf(append([]byte{ledger.LeafVersion}, b.Row(i)...))
		if !bytes.Equal(leaf, b.Entries[i].Leaf[:]) {
			t.Fatalf("leaf %d is not the library's", i)
		}
		leaves = append(leaves, leaf)
		if err := tree.Append(leaf); err != nil {
			t.Fatal(err)
		}
		if want := mth(leaves); !bytes.Equal(tree.Root(), want) {
			t.Fatalf("root of %d leaves is %x, want %x", len(leaves), tree.Root(), want)
		}
		again, err := ledger.LoadTree(tree.Size(), tree.Range())
		if err != nil || !bytes.Equal(again.Root(), tree.Root()) {
			t.Fatalf("tree of %d leaves does not come back: %v", len(leaves), err)
		}
	}
	if !bytes.Equal(ledger.NewTree().Root(), rfc6962.DefaultHasher.EmptyRoot()) {
		t.Error("root of an empty tree is not RFC 6962's")
	}
}

// mth is the definition of the Merkle tree hash in RFC 6962, section 2.1.
func mth(leaves [][]byte) []byte {
	if len(leaves) == 1 {
		return leaves[0]
	}
	k := 1
	for k*2 < len(leaves) {
		k *= 2
	}
	return rfc6962.DefaultHasher.HashChildren(mth(leaves[:k]), mth(leaves[k:]))
}

func TestLoadTreeRefusesARangeOfAnotherSize(t *testing.T) {
	for _, c := range []struct {
		size  int64
		bytes int
	}{{-1, 0}, {0, 32}, {1, 0}, {3, 32}, {3, 65}, {4, 64}} {
		if _, err := ledger.LoadTree(c.size, make([]byte, c.bytes)); err == nil {
			t.Errorf("%d bytes were taken for %d leaves", c.bytes, c.size)
		}
	}
}

// The canonical encoding must never change: journals were hashed with it.
func TestCanonicalEncodingIsFixed(t *testing.T) {
	v := events.Reservation{
		TenantID: "acme", ReservationID: "rsv_1", RequestID: "req-1", KeyID: "k1", Endpoint: "chat", Model: "llama",
		Seq: 2, State: events.StateSettled, WeightMilli: 1500,
		Delta:           events.Usage{InputTokens: 1, OutputTokens: -2, CachedInputTokens: 3, ReasoningTokens: 4, ToolCalls: 5, Images: 6, AudioMillis: 7, GPUMillis: 8},
		DeltaMilliUnits: -1500, TotalMilliUnits: 12000, HeldMilliUnits: 0,
		Total:     events.Usage{InputTokens: 5, OutputTokens: 3},
		ExpiresAt: time.Date(2026, 3, 1, 0, 2, 0, 0, time.UTC), Estimated: true, Author: "client", Reason: "ü",
	}
	at := time.Date(2026, 3, 1, 0, 0, 0, int(5*time.Millisecond), time.UTC)
	e := events.Event{ID: events.NewID("e1-s07", at, 4, 1), Source: "s", Type: events.TypeSettled, Subject: "acme", Time: at, Data: events.AppendReservation(nil, &v)}
	r := events.ToRecord(events.TopicEvents, &e)
	r.Partition, r.Offset, r.Time = 3, 77, at
	b, err := ledger.NewBatch(events.TopicEvents, 3, []events.Record{r})
	if err != nil || len(b.Entries) != 1 {
		t.Fatalf("%v %+v", err, b.DeadLetters)
	}
	const row = "00000004000025540000001865312d7330372d313737323332333230303030352d342e31000000040000000300000008" +
		"000000000000004d0000001f746f6c6c676174652e7265736572766174696f6e2e736574746c65642e76310000000461" +
		"636d65000000057273765f31000000057265712d31000000026b310000000463686174000000056c6c616d6100000008" +
		"000000000000000200000007736574746c6564000000080002eee9eb8b938800000008000000000000000100000008ff" +
		"fffffffffffffe0000000800000000000000030000000800000000000000040000000800000000000000050000000800" +
		"0000000000000600000008000000000000000700000008000000000000000800000008fffffffffffffa240000000800" +
		"00000000002ee00000000800000000000000000000000800000000000005dc000000080002eee9f2b28e000000000101" +
		"000000010000000006636c69656e7400000002c3bc"
	if got := hex.EncodeToString(b.Row(0)); got != row {
		t.Errorf("canonical encoding is\n%s\nwant\n%s", got, row)
	}
	const leaf = "b635c99c10667b519978a9fe908ae70efbe1e308fd5b2ffa53cbc141f660196d"
	if got := hex.EncodeToString(b.Entries[0].Leaf[:]); got != leaf {
		t.Errorf("leaf is %s, want %s", got, leaf)
	}
}

func TestChainHashCoversEveryFieldOfTheRecord(t *testing.T) {
	base := func() *ledger.Link {
		return &ledger.Link{
			Topic: "t", Partition: 1, Batch: 2, First: 3, Last: 4,
			Counts:    ledger.Counts{Consumed: 5, Folded: 6, Duplicates: 7, DeadLettered: 8, Conflicts: 9},
			BatchRoot: bytes.Repeat([]byte{1}, 32), Prev: bytes.Repeat([]byte{2}, 32),
			TreeSize: 10, TreeRoot: bytes.Repeat([]byte{3}, 32), CommittedAt: time.UnixMicro(11),
		}
	}
	seen := map[string]string{hex.EncodeToString(base().ChainHash()): "the record itself"}
	for name, change := range map[string]func(*ledger.Link){
		"topic": func(l *ledger.Link) { l.Topic = "u" }, "partition": func(l *ledger.Link) { l.Partition++ },
		"batch": func(l *ledger.Link) { l.Batch++ }, "first": func(l *ledger.Link) { l.First-- }, "last": func(l *ledger.Link) { l.Last++ },
		"consumed": func(l *ledger.Link) { l.Counts.Consumed++ }, "folded": func(l *ledger.Link) { l.Counts.Folded++ },
		"duplicates": func(l *ledger.Link) { l.Counts.Duplicates++ }, "dead": func(l *ledger.Link) { l.Counts.DeadLettered++ },
		"conflicts": func(l *ledger.Link) { l.Counts.Conflicts++ }, "root": func(l *ledger.Link) { l.BatchRoot[31]++ },
		"prev": func(l *ledger.Link) { l.Prev[0]++ }, "size": func(l *ledger.Link) { l.TreeSize++ },
		"tree": func(l *ledger.Link) { l.TreeRoot[9]++ }, "time": func(l *ledger.Link) { l.CommittedAt = l.CommittedAt.Add(time.Microsecond) },
	} {
		l := base()
		change(l)
		h := hex.EncodeToString(l.ChainHash())
		if other, ok := seen[h]; ok {
			t.Errorf("%s and %s give one hash", name, other)
		}
		seen[h] = name
	}
}

func TestBatchRefusesRecordsOutOfOrder(t *testing.T) {
	log := testLog(3)
	log[1].Offset, log[2].Offset = 9, 9
	if _, err := ledger.NewBatch(events.TopicEvents, 0, log); err == nil {
		t.Error("two records at one offset were taken")
	}
	log[2].Offset, log[2].Partition = 10, 1
	if _, err := ledger.NewBatch(events.TopicEvents, 0, log); err == nil {
		t.Error("a record of another partition was taken")
	}
}

func TestMetersOnTheEventsTopicAreDeadLetters(t *testing.T) {
	at := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	e := events.Event{
		ID: events.NewID("m", at, 1, 0), Source: "s", Type: events.TypeModelMeter, Subject: "acme", Time: at,
		Data: events.AppendMeter(nil, &events.Meter{TenantID: "acme", From: at, To: at.Add(time.Minute)}),
	}
	r := events.ToRecord(events.TopicEvents, &e)
	r.Time = at
	b, err := ledger.NewBatch(events.TopicEvents, 0, []events.Record{r})
	if err != nil || len(b.DeadLetters) != 1 || b.DeadLetters[0].Reason != string(events.ReasonWrongTopic) {
		t.Errorf("%v %+v", err, b)
	}
}

func BenchmarkNewBatch(b *testing.B) {
	log := ledgerbench.Log(ledgerbench.LogOptions{Seed: 1, Events: 1024, Tenants: 64})[0]
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ledger.NewBatch(events.TopicEvents, 0, log); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(log)), "ns/event")
}
