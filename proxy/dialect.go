package proxy

import "strings"

// What dialects have in common.

// Agree takes one more credential that a request presents; spaces around it do
// not count, nor does an empty one. False: it is another than the one before, and
// the request says two things about who asks.
func Agree(credential *string, next string) bool {
	next = strings.TrimSpace(next)
	switch {
	case next == "", next == *credential:
		return true
	case *credential != "":
		return false
	}
	*credential = next
	return true
}

// AppendEach appends one item for each id, with commas between them.
func AppendEach(dst []byte, ids []string, one func(dst []byte, id string) []byte) []byte {
	for i, id := range ids {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = one(dst, id)
	}
	return dst
}

// Uncounted is the counter where nothing needs to be counted, since the upstream
// has said its figures.
type Uncounted struct{}

// Count implements Counter.
func (Uncounted) Count([]byte) int64 { return 0 }

// Exact implements Counter.
func (Uncounted) Exact() bool { return true }
