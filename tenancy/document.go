package tenancy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
)

// MaxDocumentBytes bounds a JSON document that a person hands in.
const MaxDocumentBytes = 256 << 10

const maxDocumentDepth = 16

// ParseQuota reads and validates a tenant's quota document. Unknown and
// repeated fields are mistakes, with their path. The error is an *InvalidError.
func ParseQuota(data []byte) (Quota, error) {
	var q Quota
	if err := decodeStrict(data, "quota", &q); err != nil {
		return Quota{}, err
	}
	if q.Limits == nil {
		var m mistakes
		m.add("limits", "write [] for a tenant without limits", "is missing")
		return Quota{}, m.err("quota")
	}
	return q, q.Validate()
}

// ParseLimit reads one line of a quota document. It is validated with the
// document that it goes into.
func ParseLimit(data []byte) (Limit, error) {
	var l Limit
	err := decodeStrict(data, "limit", &l)
	return l, err
}

// ParsePlatform reads and validates the platform's document, as ParseQuota.
func ParsePlatform(data []byte) (Platform, error) {
	var p Platform
	if err := decodeStrict(data, "platform", &p); err != nil {
		return Platform{}, err
	}
	return p, p.Validate()
}

// decodeStrict decodes one JSON object into a struct. Where encoding/json
// would ignore an unknown field, take the last of two, or match a name in
// another case, it reports a mistake with its path.
func decodeStrict(data []byte, document string, into any) error {
	var m mistakes
	if len(data) > MaxDocumentBytes {
		m.add("", "", "has %d bytes, at most %d are allowed", len(data), MaxDocumentBytes)
		return m.err(document)
	}
	tokens := json.NewDecoder(bytes.NewReader(data))
	if err := checkShape(&m, tokens, "", reflect.TypeOf(into).Elem(), 0); err != nil {
		m.add("", "", "is not JSON: %s", describeSyntax(data, err))
		return m.err(document)
	}
	if _, err := tokens.Token(); !errors.Is(err, io.EOF) {
		m.add("", "hand in one document at a time", "has something after its end")
	}
	if len(m.list) > 0 {
		return m.err(document)
	}
	if err := json.Unmarshal(data, into); err != nil {
		var wrong *json.UnmarshalTypeError
		if errors.As(err, &wrong) {
			m.add(wrong.Field, "", "must be a %s, is a %s", kindName(wrong.Type), wrong.Value)
		} else {
			m.add("", "", "%s", err)
		}
	}
	return m.err(document)
}

// checkShape walks one JSON value beside the Go type that it will be decoded
// into (nil: not known) and reports unknown and repeated names.
func checkShape(m *mistakes, tokens *json.Decoder, path string, t reflect.Type, depth int) error {
	if depth > maxDocumentDepth {
		return fmt.Errorf("nested more than %d deep", maxDocumentDepth)
	}
	token, err := tokens.Token()
	if err != nil {
		return err
	}
	if depth == 0 && token != json.Delim('{') {
		m.add("", `it looks like {"limits": [ … ]}`, "is not a JSON object")
	}
	switch token {
	case json.Delim('{'):
		fields := jsonFields(t)
		seen := map[string]bool{}
		for tokens.More() {
			name, err := tokens.Token()
			if err != nil {
				return err
			}
			key := name.(string)
			at := strings.TrimPrefix(path+"."+key, ".")
			field, known := fields[key]
			switch {
			case len(m.list) > 100: // enough to work on
			case seen[key]:
				m.add(shorten(at), "keep one of them", "is there twice")
			case !known && fields != nil:
				m.add(shorten(at), didYouMean(key, fields), "is not a field")
			}
			seen[key] = true
			if err := checkShape(m, tokens, at, field, depth+1); err != nil {
				return err
			}
		}
		_, err = tokens.Token()
	case json.Delim('['):
		var element reflect.Type
		if t != nil && t.Kind() == reflect.Slice {
			element = t.Elem()
		}
		for i := 0; tokens.More(); i++ {
			if err := checkShape(m, tokens, fmt.Sprintf("%s[%d]", path, i), element, depth+1); err != nil {
				return err
			}
		}
		_, err = tokens.Token()
	}
	return err
}

func jsonFields(t reflect.Type) map[string]reflect.Type {
	if t == nil || t.Kind() != reflect.Struct {
		return nil
	}
	fields := make(map[string]reflect.Type, t.NumField())
	for i := range t.NumField() {
		if name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ","); name != "" && name != "-" {
			fields[name] = t.Field(i).Type
		}
	}
	return fields
}

func didYouMean(name string, fields map[string]reflect.Type) string {
	names := make([]string, 0, len(fields))
	for field := range fields {
		names = append(names, field)
	}
	slices.Sort(names)
	if closest := Closest(name, names); closest != "" {
		return fmt.Sprintf("did you mean %q?", closest)
	}
	return "known are " + strings.Join(names, ", ")
}

// Closest returns the name that is fewest edits away from a mistyped one, or
// "" when none is near.
func Closest(name string, names []string) string {
	if len(name) > 64 {
		return ""
	}
	best, closest := 1+len(name)/3, ""
	for _, candidate := range names {
		if d := editDistance(strings.ToLower(name), strings.ToLower(candidate)); d <= best && (closest == "" || d < best) {
			best, closest = d, candidate
		}
	}
	return closest
}

// editDistance is Levenshtein's, by bytes, in one row.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// describeSyntax names the line of a JSON syntax error.
func describeSyntax(data []byte, err error) string {
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &syntax):
		at := max(0, min(int(syntax.Offset), len(data)))
		return fmt.Sprintf("line %d: %s", 1+bytes.Count(data[:at], []byte("\n")), syntax)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "it ends too early"
	}
	return err.Error()
}

func kindName(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Int, reflect.Int64:
		return "whole number"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice:
		return "list"
	case reflect.Struct:
		return "object"
	}
	return "text"
}

func shorten(path string) string {
	if len(path) > 120 {
		return strings.ToValidUTF8(path[:120], "") + "…"
	}
	return path
}
