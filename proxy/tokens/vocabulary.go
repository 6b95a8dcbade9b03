package tokens

import (
	"fmt"
	"hash/maphash"
	"math"
	"strings"
	"unsafe"

	"github.com/tiktoken-go/tokenizer"
)

// vocabulary finds tokens by their bytes. It is the library's, laid out without
// a pointer a token: all tokens' bytes in one string, and an open-addressed table
// of token numbers. Ranks, by which pairs merge, are the numbers.
type vocabulary struct {
	seed  maphash.Seed
	bytes string
	ends  []uint32 // of token i in bytes; it begins at the end of the one before
	table []uint32 // token + 1; 0 is empty
	most  int      // the longest token's length
	codec tokenizer.Codec
}

// noRank is above all ranks.
const noRank = math.MaxUint32

func newVocabulary(name tokenizer.Encoding) (*vocabulary, error) {
	codec, err := tokenizer.Get(name)
	if err != nil {
		return nil, fmt.Errorf("tokenizer %s: %w", name, err)
	}
	// Decoding makes an index of its own in the codec that does it, which is not
	// kept.
	decoder, err := tokenizer.Get(name)
	if err != nil {
		return nil, fmt.Errorf("tokenizer %s: %w", name, err)
	}
	v := &vocabulary{seed: maphash.MakeSeed(), codec: codec}
	var all strings.Builder
	for id := uint(0); ; id++ {
		token, err := decoder.Decode([]uint{id})
		if err != nil {
			break // past the last: ids have no gaps
		}
		all.WriteString(token)
		v.ends = append(v.ends, uint32(all.Len()))
		v.most = max(v.most, len(token))
	}
	if len(v.ends) < 256 {
		return nil, fmt.Errorf("tokenizer %s has %d tokens", name, len(v.ends))
	}
	v.bytes = strings.Clone(all.String())
	size := 1
	for size < 2*len(v.ends) {
		size *= 2
	}
	v.table = make([]uint32, size)
	for id := range v.ends {
		at := maphash.String(v.seed, v.token(id)) & uint64(size-1)
		for v.table[at] != 0 {
			at = (at + 1) & uint64(size-1)
		}
		v.table[at] = uint32(id) + 1
	}
	return v, nil
}

func (v *vocabulary) token(id int) string {
	from := uint32(0)
	if id > 0 {
		from = v.ends[id-1]
	}
	return v.bytes[from:v.ends[id]]
}

// rank is the number of the token of these bytes, or noRank.
func (v *vocabulary) rank(bytes []byte) uint32 {
	if len(bytes) > v.most {
		return noRank
	}
	mask := uint64(len(v.table) - 1)
	for at := maphash.Bytes(v.seed, bytes) & mask; ; at = (at + 1) & mask {
		id := v.table[at]
		if id == 0 {
			return noRank
		}
		if v.token(int(id-1)) == string(bytes) {
			return id - 1
		}
	}
}

// shortPiece is how long a piece may be to be merged by looking for the lowest
// rank again and again, which takes time with the square of its length.
const shortPiece = 128

// count is the number of tokens of one piece, at least 1.
func (v *vocabulary) count(piece []byte) int64 {
	if len(piece) == 1 || v.rank(piece) != noRank {
		return 1
	}
	if len(piece) <= shortPiece {
		return v.merge(piece)
	}
	if isSpace(piece) {
		// Blank space beyond all use, which the library would split otherwise: its
		// parts are counted one by one, which may give a token more each.
		var n int64
		for len(piece) > shortPiece {
			n += v.count(piece[:shortPiece])
			piece = piece[shortPiece:]
		}
		return n + v.count(piece)
	}
	// The library merges long pieces with a heap, in n log n. It only reads the
	// string while it counts.
	n, err := v.codec.Count(unsafe.String(&piece[0], len(piece)))
	if err != nil || n < 1 {
		return estimate{}.Count(piece)
	}
	return int64(n)
}

// merge joins the two neighbours that make the token of the lowest rank, the
// leftmost where there are several, until no two do, and counts what is left.
func (v *vocabulary) merge(piece []byte) int64 {
	// Part i is piece[start[i]:start[i+1]]; pair[i] is the rank of parts i and i+1
	// joined.
	var start [shortPiece + 1]uint8
	var pair [shortPiece]uint32
	parts := len(piece)
	for i := range parts + 1 {
		start[i] = uint8(i)
	}
	for i := range parts - 1 {
		pair[i] = v.rank(piece[i : i+2])
	}
	for parts > 1 {
		best, rank := 0, uint32(noRank)
		for i, r := range pair[:parts-1] {
			if r < rank {
				best, rank = i, r
			}
		}
		if rank == noRank {
			break
		}
		copy(start[best+1:parts], start[best+2:parts+1])
		copy(pair[best:parts-2], pair[best+1:parts-1])
		parts--
		for _, i := range [...]int{best - 1, best} {
			if i >= 0 && i < parts-1 {
				pair[i] = v.rank(piece[start[i]:start[i+2]])
			}
		}
	}
	return int64(parts)
}
