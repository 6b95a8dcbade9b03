package jsonbody

import (
	"slices"

	"github.com/tidwall/gjson"
)

// Edit replaces the bytes from From to To by Text.
type Edit struct {
	From, To int
	Text     []byte
}

// Replace is the edit that puts text in place of a value.
func Replace(value gjson.Result, text []byte) Edit {
	return Edit{From: value.Index, To: value.Index + len(value.Raw), Text: text}
}

// Insert is the edit that makes name a first member of object, whose value is
// text. The object must not have one of that name.
func Insert(object gjson.Result, name string, text []byte) Edit {
	member := make([]byte, 0, len(name)+len(text)+4)
	member = append(append(append(member, '"'), name...), `":`...)
	member = append(member, text...)
	empty := true
	object.ForEach(func(_, _ gjson.Result) bool {
		empty = false
		return false
	})
	if !empty {
		member = append(member, ',')
	}
	return Edit{From: object.Index + 1, To: object.Index + 1, Text: member}
}

// Splice is body with the edits made, which must not overlap. Without edits it
// is body itself; else body is left as it is.
func Splice(body []byte, edits ...Edit) []byte {
	if len(edits) == 0 {
		return body
	}
	slices.SortFunc(edits, func(a, b Edit) int { return a.From - b.From })
	size := len(body)
	for _, e := range edits {
		size += len(e.Text) - (e.To - e.From)
	}
	changed, at := make([]byte, 0, size), 0
	for _, e := range edits {
		changed = append(append(changed, body[at:e.From]...), e.Text...)
		at = e.To
	}
	return append(changed, body[at:]...)
}
