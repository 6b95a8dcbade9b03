package httpapi

import (
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// object is a body, or an item of one, that the scanner can fill.
type object interface {
	rules() *rules
	// slot returns the place of the named field and a pointer to it; nil when
	// there is no such field.
	slot(name []byte) (int, any)
}

// list is an array field: grow adds an item and returns it.
type list interface{ grow() object }

// rules are what a body's fields must satisfy, in the order of its struct.
type rules struct {
	fields   []field
	required uint64 // bit i: field i must be there
}

// field is one field's rules. Min and max bound a number, a string's length in
// characters, or an array's length.
type field struct {
	name     string
	min, max int64
	pattern  string
	charset  *[256]bool // bytes that pattern admits; nil: any
}

// The largest figures a body may carry: of one reservation, and of a meter's
// interval, which sums many. A counter takes thousands of the largest before it
// is at its own end, and stays there then. They are repeated in struct tags,
// where constants cannot go; a test compares them.
const (
	maxCount    = 1<<31 - 1
	maxInterval = 1 << 40
)

// rulesOf reads the rules from the struct's tags: the same tags that huma makes
// the OpenAPI schema of, so that what is documented is what is enforced. It
// panics on a tag that it cannot enforce; that is a mistake in this package.
func rulesOf(body any) *rules {
	t := reflect.TypeOf(body).Elem()
	out := &rules{}
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if !strings.Contains(options, "omitempty") && !strings.Contains(options, "omitzero") {
			out.required |= 1 << i
		}
		rule := field{name: name}
		switch f.Type {
		case reflect.TypeFor[string]():
			rule.min, rule.max = intTag(f, "minLength"), intTag(f, "maxLength")
			rule.pattern = f.Tag.Get("pattern")
			rule.charset = charsetOf(rule.pattern)
		case reflect.TypeFor[int64]():
			rule.min, rule.max = intTag(f, "minimum"), intTag(f, "maximum")
		case reflect.TypeFor[bool]():
		case reflect.TypeFor[time.Time]():
			rule.min, rule.max = 20, 40
		default:
			if f.Type.Kind() != reflect.Slice {
				panic(fmt.Sprintf("httpapi: field %s.%s has a type the scanner does not know", t, f.Name))
			}
			rule.min, rule.max = intTag(f, "minItems"), intTag(f, "maxItems")
		}
		out.fields = append(out.fields, rule)
	}
	return out
}

func intTag(f reflect.StructField, tag string) int64 {
	n, err := strconv.ParseInt(f.Tag.Get(tag), 10, 64)
	if err != nil {
		panic(fmt.Sprintf("httpapi: field %s needs the tag %s", f.Name, tag))
	}
	return n
}

// charsetOf turns a pattern of the form ^[class]+$ or ^[class]*$ into the table
// of bytes it admits. Bytes of multi-byte characters are admitted all or none,
// as a class that names ASCII only does.
func charsetOf(pattern string) *[256]bool {
	if pattern == "" {
		return nil
	}
	class, ok := strings.CutPrefix(pattern, "^[")
	class = strings.TrimSuffix(strings.TrimSuffix(class, "+$"), "*$")
	if !ok || !strings.HasSuffix(class, "]") || strings.Count(class, "]") != 1 {
		panic("httpapi: pattern " + pattern + " is not a class of characters")
	}
	one := regexp.MustCompile("^[" + class + "$")
	var table [256]bool
	for b := range table {
		if b < 0x80 {
			table[b] = one.MatchString(string(rune(b)))
		} else {
			table[b] = one.MatchString("é")
		}
	}
	return &table
}
