package config

import (
	"fmt"
	"slices"
	"strings"

	"tollgate/internal/plainyaml"
)

// maxTokens is as many words and signs as the file may have.
const maxTokens = 5000

// loadFile merges a YAML file.
func (l *loader) loadFile(name string, data []byte) {
	at := func(line int) string {
		if line == 0 {
			return name
		}
		return fmt.Sprintf("%s:%d", name, line)
	}
	root, mistakes := plainyaml.Parse(data, plainyaml.Limits{Bytes: MaxFileBytes, Tokens: maxTokens})
	for _, m := range mistakes {
		l.mistake(at(m.Line), "", m.Hint, "%s", m.Problem)
	}
	if len(mistakes) == 0 {
		l.section(at, "", root)
	}
}

// section merges one mapping: the document, or a section of it.
func (l *loader) section(at func(int) string, prefix string, node *plainyaml.Node) {
	switch node.Kind {
	case plainyaml.Mapping:
	case plainyaml.Null:
		return // a section of which everything is commented out
	default:
		l.mistake(at(node.Line), strings.TrimSuffix(prefix, "."), "", "must hold settings, one a line, as in \"name: value\"")
		return
	}
	for _, field := range node.Fields {
		path := prefix + field.Name
		switch {
		case l.leaves[path] != nil:
			if texts, ok := l.texts(at, path, field.Value); ok {
				l.set(at(field.Line), path, texts)
			}
		case l.hasSection(path):
			l.section(at, path+".", field.Value)
		default:
			l.mistake(at(field.Line), shorten(path), didYouMean(field.Name, l.namesIn(prefix)), "is not a setting")
		}
	}
}

// texts returns the scalars of a value: one, or those of a list.
func (l *loader) texts(at func(int) string, path string, node *plainyaml.Node) ([]string, bool) {
	if node.Kind == plainyaml.List {
		texts := []string{}
		for _, item := range node.Items {
			text, ok := l.scalar(at, path, item)
			if !ok {
				return nil, false
			}
			texts = append(texts, text)
		}
		return texts, true
	}
	text, ok := l.scalar(at, path, node)
	return []string{text}, ok
}

func (l *loader) scalar(at func(int) string, path string, node *plainyaml.Node) (string, bool) {
	switch node.Kind {
	case plainyaml.Scalar:
		return node.Text, true
	case plainyaml.Null:
		l.mistake(at(node.Line), path, `remove the line for the default, or write "" for empty text`, "has no value")
	default:
		l.mistake(at(node.Line), path, "", "must be a plain value")
	}
	return "", false
}

func (l *loader) hasSection(path string) bool {
	for leaf := range l.leaves {
		if strings.HasPrefix(leaf, path+".") {
			return true
		}
	}
	return false
}

// namesIn lists the names that a section knows, sorted.
func (l *loader) namesIn(prefix string) []string {
	var names []string
	for leaf := range l.leaves {
		if rest, inside := strings.CutPrefix(leaf, prefix); inside {
			name, _, _ := strings.Cut(rest, ".")
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
