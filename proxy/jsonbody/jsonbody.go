// Package jsonbody reads the JSON bodies that pass the front door, and changes
// them in place.
//
// Requests are read strictly where it matters: the members that routing and
// metering depend on must occur once and be spelled exactly, so that this
// gateway and the server behind it cannot understand one body in two ways.
// Everything else is left as it came: bodies are changed by replacing bytes, they
// are never decoded and encoded again.
//
// Answers are read leniently, without allocating, by Walk.
package jsonbody

import (
	"strconv"
	"strings"
	"unsafe"

	"github.com/tidwall/gjson"

	"tollgate/proxy"
)

// MaxDepth bounds the nesting of a body. Readers that recurse, here and at the
// upstreams, are safe below it.
const MaxDepth = 128

// MaxInt is the largest figure that is taken for a count: 2^52.
const MaxInt = 1 << 52

// Parse reads a request's body, which must be one JSON object. The result
// refers to body, which must not change as long as it is used, and the indexes of
// all that is found in it are positions in body.
func Parse(body []byte) (gjson.Result, *proxy.BadRequest) {
	switch {
	case deeperThan(body, MaxDepth):
		return gjson.Result{}, &proxy.BadRequest{Detail: "The body is nested deeper than " + strconv.Itoa(MaxDepth) + " levels. Flatten it."}
	case !gjson.ValidBytes(body):
		return gjson.Result{}, &proxy.BadRequest{Detail: "The body is not valid JSON. Send one JSON object."}
	}
	root := gjson.Parse(View(body))
	if !root.IsObject() {
		return gjson.Result{}, &proxy.BadRequest{Detail: "The body is not a JSON object. Send one."}
	}
	return root, nil
}

// Pick finds the members of object with the given names. A name that occurs
// twice, or in another case, is refused: which of them the upstream would take is
// not known. prefix is put before names in errors: "generationConfig.".
func Pick(object gjson.Result, prefix string, names []string, found []gjson.Result) *proxy.BadRequest {
	var bad *proxy.BadRequest
	object.ForEach(func(key, value gjson.Result) bool {
		for i, name := range names {
			switch {
			case !sameFold(key.Str, name):
			case key.Str != name:
				bad = &proxy.BadRequest{Field: prefix + name, Detail: "must be spelled exactly so; a name in another case is ambiguous"}
			case found[i].Exists():
				bad = &proxy.BadRequest{Field: prefix + name, Detail: "occurs twice; send it once"}
			default:
				found[i] = value
			}
		}
		return bad == nil
	})
	return bad
}

// sameFold is strings.EqualFold with a quick way out: names of one length in
// bytes are the rule, and folding changes few letters' lengths.
func sameFold(key, name string) bool {
	if len(key) < len(name) || len(key) > 3*len(name) {
		return false
	}
	return strings.EqualFold(key, name)
}

// Count reads a whole number of at least 0 and at most MaxInt.
func Count(raw string) (int64, bool) {
	if raw == "" || len(raw) > 16 || (raw[0] == '0' && len(raw) > 1) {
		return 0, false
	}
	var n int64
	for i := range len(raw) {
		c := raw[i]
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int64(c-'0')
	}
	return n, n <= MaxInt
}

// View is b as a string, without a copy: b must not change while it is used.
func View(b []byte) string {
	return unsafe.String(unsafe.SliceData(b), len(b))
}

// Bytes is s as bytes, without a copy: they must not be written to.
func Bytes(s string) []byte {
	return unsafe.Slice(unsafe.StringData(s), len(s))
}

// Text is the text of a JSON string, in memory of its own; "" of anything else.
func Text(raw []byte) string {
	if len(raw) < 2 || raw[0] != '"' {
		return ""
	}
	return gjson.ParseBytes(raw).Str
}
