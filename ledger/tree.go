package ledger

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/bits"
	"time"

	"github.com/transparency-dev/merkle/compact"
	"github.com/transparency-dev/merkle/rfc6962"
)

// HashSize is the length of every hash of the ledger.
const HashSize = sha256.Size

var ranges = compact.RangeFactory{Hash: hashNode}

// hashNode is RFC 6962's interior node, SHA-256(0x01 ‖ left ‖ right), as the
// library's hasher computes it, without its allocations.
func hashNode(left, right []byte) []byte {
	var b [1 + 2*HashSize]byte
	b[0] = rfc6962.RFC6962NodeHashPrefix
	copy(b[1:], left)
	copy(b[1+HashSize:], right)
	sum := sha256.Sum256(b[:])
	return sum[:]
}

// Tree is the Merkle tree (RFC 6962) over all leaves of a partition so far,
// kept as its compact range: what is needed to go on and to tell the root.
type Tree struct{ r *compact.Range }

// NewTree returns an empty tree.
func NewTree() *Tree { return &Tree{r: ranges.NewEmptyRange(0)} }

// LoadTree restores a tree from what Size and Range returned.
func LoadTree(size int64, packed []byte) (*Tree, error) {
	if size < 0 || len(packed) != bits.OnesCount64(uint64(size))*HashSize {
		return nil, fmt.Errorf("tree range of %d bytes does not belong to %d leaves", len(packed), size)
	}
	hashes := make([][]byte, 0, len(packed)/HashSize)
	for i := 0; i < len(packed); i += HashSize {
		hashes = append(hashes, append([]byte(nil), packed[i:i+HashSize]...))
	}
	r, err := ranges.NewRange(0, uint64(size), hashes)
	if err != nil {
		return nil, fmt.Errorf("tree range: %w", err)
	}
	return &Tree{r: r}, nil
}

// Append adds a leaf, in offset order. The tree keeps no memory of the caller's.
func (t *Tree) Append(leaf []byte) error { return t.append(bytes.Clone(leaf)) }

// append adds a leaf whose memory the tree may keep until the next one comes,
// and for longer if it is the only one of its pair.
func (t *Tree) append(leaf []byte) error {
	if err := t.r.Append(leaf, nil); err != nil {
		return fmt.Errorf("append to tree: %w", err)
	}
	return nil
}

// AppendBatch adds leaves, of which own is the tree. Where the batch begins at a
// multiple of its largest subtree, the two trees have the same nodes, and they
// are taken over instead of being hashed again.
func (t *Tree) AppendBatch(own *Tree, leaves [][]byte) error {
	begin, n := t.r.End(), own.r.End()
	if n == 0 || begin&(1<<(bits.Len64(n)-1)-1) != 0 {
		return t.appendAll(leaves)
	}
	r, err := ranges.NewRange(begin, begin+n, own.r.Hashes())
	if err == nil {
		err = t.r.AppendRange(r, nil)
	}
	if err != nil {
		return fmt.Errorf("append to tree: %w", err)
	}
	return nil
}

// TreeOf returns the tree over leaves.
func TreeOf(leaves [][]byte) (*Tree, error) {
	t := NewTree()
	return t, t.appendAll(leaves)
}

// appendAll adds leaves. Only the last may outlive the call as a node of its
// own, so only that is copied.
func (t *Tree) appendAll(leaves [][]byte) error {
	for i, leaf := range leaves {
		if i == len(leaves)-1 {
			leaf = bytes.Clone(leaf)
		}
		if err := t.append(leaf); err != nil {
			return err
		}
	}
	return nil
}

// Size is the number of leaves.
func (t *Tree) Size() int64 { return int64(t.r.End()) }

// Range returns the compact range: the roots of the perfect subtrees from left
// to right, concatenated.
func (t *Tree) Range() []byte {
	hashes := t.r.Hashes()
	out := make([]byte, 0, len(hashes)*HashSize)
	for _, h := range hashes {
		out = append(out, h...)
	}
	return out
}

// Root returns the tree's root; for an empty tree SHA-256 of nothing, as RFC
// 6962 says.
func (t *Tree) Root() []byte {
	if t.r.End() == 0 {
		return rfc6962.DefaultHasher.EmptyRoot()
	}
	root, err := t.r.GetRootHash(nil)
	if err != nil {
		// A range that begins at 0 has a root: LoadTree and NewTree make no other.
		panic("ledger: root of a tree: " + err.Error())
	}
	return append([]byte(nil), root...)
}

// Link is what a batch record says, and what its chain hash covers.
type Link struct {
	Topic       string
	Partition   int
	Batch       int64 // 1, 2, 3 … in each partition
	First, Last int64 // offsets
	Counts      Counts
	BatchRoot   []byte // over the leaves folded in this batch
	Prev        []byte // chain hash of the batch before; Genesis for the first
	TreeSize    int64
	TreeRoot    []byte // over all leaves of the partition so far
	CommittedAt time.Time
}

// Genesis is what the first batch of a partition is chained to.
func Genesis() []byte { return make([]byte, HashSize) }

// ChainHash returns the hash that links the batch to the one before:
//
//	SHA-256(0x02 ‖ prev ‖ batch_root ‖ tree_root ‖ len(topic) ‖ topic ‖ n)
//
// where n are 64-bit big-endian integers: partition, batch, first, last,
// consumed, folded, duplicates, dead-lettered, conflicts, tree size and the
// time of commit in µs since the Unix epoch. The first byte keeps it apart
// from RFC 6962's leaves (0x00) and nodes (0x01).
func (l *Link) ChainHash() []byte {
	h := sha256.New()
	b := make([]byte, 0, 256)
	b = append(b, 0x02)
	b = append(b, l.Prev...)
	b = append(b, l.BatchRoot...)
	b = append(b, l.TreeRoot...)
	b = binary.BigEndian.AppendUint64(b, uint64(len(l.Topic)))
	b = append(b, l.Topic...)
	for _, n := range [...]int64{
		int64(l.Partition), l.Batch, l.First, l.Last,
		l.Counts.Consumed, l.Counts.Folded, l.Counts.Duplicates, l.Counts.DeadLettered, l.Counts.Conflicts,
		l.TreeSize, l.CommittedAt.UnixMicro(),
	} {
		b = binary.BigEndian.AppendUint64(b, uint64(n))
	}
	h.Write(b)
	return h.Sum(nil)
}
