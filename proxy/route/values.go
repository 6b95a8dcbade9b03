package route

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"tollgate/internal/plainyaml"
	"tollgate/tenancy"
)

// take reads the value of a field.
type take func(n *plainyaml.Node, path string)

// fields gives each field of a mapping to who takes it. Names that nobody takes,
// and needed ones that are not there, are mistakes.
func (p *parser) fields(n *plainyaml.Node, path string, known map[string]take, needed ...string) {
	if n.Kind != plainyaml.Mapping {
		p.wrong(n.Line, path, "", "must hold settings, one a line, as in \"name: value\"")
		return
	}
	for _, f := range n.Fields {
		at := f.Name
		if path != "" {
			at = path + "." + f.Name
		}
		read, found := known[f.Name]
		if !found {
			p.wrong(f.Line, shorten(at), didYouMean(f.Name, slices.Sorted(maps.Keys(known))), "is not a setting")
			continue
		}
		read(f.Value, at)
	}
	for _, name := range needed {
		if !slices.ContainsFunc(n.Fields, func(f plainyaml.Field) bool { return f.Name == name }) {
			p.wrong(n.Line, path, "", "lacks %s", name)
		}
	}
}

// each gives each item of a list to who takes it.
func (p *parser) each(n *plainyaml.Node, path string, most int, read take) {
	if n.Kind != plainyaml.List {
		p.wrong(n.Line, path, "", "must be a list, each item after a dash")
		return
	}
	if len(n.Items) > most {
		p.wrong(n.Line, path, "", "has more than %d items", most)
		return
	}
	for i, item := range n.Items {
		read(item, fmt.Sprintf("%s[%d]", path, i))
	}
}

func (p *parser) scalar(n *plainyaml.Node, path string) (string, bool) {
	switch n.Kind {
	case plainyaml.Scalar:
		return n.Text, true
	case plainyaml.Null:
		p.wrong(n.Line, path, "remove the line for the default", "has no value")
	default:
		p.wrong(n.Line, path, "", "must be a plain value")
	}
	return "", false
}

// text takes anything that fits on a line.
func (p *parser) text(n *plainyaml.Node, path string, value *string) {
	text, ok := p.scalar(n, path)
	if !ok {
		return
	}
	if text == "" || len(text) > 1024 || strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		p.wrong(n.Line, path, "", "must be 1 to 1024 bytes of text on one line")
		return
	}
	*value = text
}

// word takes a name.
func (p *parser) word(n *plainyaml.Node, path string, value *string) bool {
	text, ok := p.scalar(n, path)
	if !ok {
		return false
	}
	plain := !strings.ContainsFunc(text, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("._-", r)
	})
	if text == "" || len(text) > 64 || !plain {
		p.wrong(n.Line, path, "", `must be 1 to 64 letters, digits and "._-", is %s`, quoted(text))
		return false
	}
	*value = text
	return true
}

func (p *parser) oneOf(n *plainyaml.Node, path string, value *string, allowed []string) {
	text, ok := p.scalar(n, path)
	if !ok {
		return
	}
	if !slices.Contains(allowed, text) {
		p.wrong(n.Line, path, didYouMean(text, allowed), "%s is not known", quoted(text))
		return
	}
	*value = text
}

func (p *parser) yesNo(n *plainyaml.Node, path string, value *bool) {
	text, ok := p.scalar(n, path)
	if !ok {
		return
	}
	if text != "true" && text != "false" {
		p.wrong(n.Line, path, "", "must be true or false, is %s", quoted(text))
		return
	}
	*value = text == "true"
}

func (p *parser) number(n *plainyaml.Node, path string, value *int, low, high int) {
	text, ok := p.scalar(n, path)
	if !ok {
		return
	}
	number, err := strconv.Atoi(text)
	if err != nil || number < low || number > high {
		p.wrong(n.Line, path, "", "must be a whole number from %d to %d, is %s", low, high, quoted(text))
		return
	}
	*value = number
}

func (p *parser) duration(n *plainyaml.Node, path string, value *time.Duration, low, high time.Duration) {
	text, ok := p.scalar(n, path)
	if !ok {
		return
	}
	d, err := tenancy.ParseDuration(text)
	switch {
	case err != nil:
		p.wrong(n.Line, path, "", `must be a duration such as "500ms", "60s" or "2m", is %s`, quoted(text))
	case time.Duration(d) < low || time.Duration(d) > high:
		p.wrong(n.Line, path, "", "must be %s to %s, is %s", tenancy.Duration(low), tenancy.Duration(high), d)
	default:
		*value = time.Duration(d)
	}
}

// didYouMean suggests a name for a mistyped one.
func didYouMean(name string, names []string) string {
	if closest := tenancy.Closest(name, names); closest != "" {
		return fmt.Sprintf("did you mean %s?", closest)
	}
	if len(names) == 0 || len(names) > 20 {
		return ""
	}
	return "known are " + strings.Join(names, ", ")
}

func quoted(text string) string { return fmt.Sprintf("%q", shorten(text)) }

func shorten(text string) string {
	if len(text) > 80 {
		return strings.ToValidUTF8(text[:80], "") + "…"
	}
	return text
}
