package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// The parser's time grows with the square of nesting and of a mapping's width,
// so both are bounded on the token list, before it runs.
const (
	maxTokens = 5000
	maxFlow   = 16 // nested [ and {
)

// loadFile merges a YAML file. Only plain data is taken: no anchors, aliases,
// merge keys, tags or several documents, which a configuration does not need
// and bombs are made of.
func (l *loader) loadFile(name string, data []byte) {
	at := func(t *token.Token) string { return fmt.Sprintf("%s:%d", name, lineOf(t)) }
	if len(data) > MaxFileBytes {
		l.mistake(name, "", "", "is larger than %s", ByteSize(MaxFileBytes))
		return
	}
	if !utf8.Valid(data) || strings.ContainsRune(string(data), 0) {
		l.mistake(name, "", "", "is not UTF-8 text")
		return
	}
	// A byte-order mark is no part of the first key.
	text := strings.TrimPrefix(string(data), "\ufeff")
	tokens := lexer.Tokenize(text)
	if !l.plain(at, name, tokens) {
		return
	}
	file, err := parser.Parse(tokens, 0)
	if err != nil {
		// The library's own text quotes lines of the file, which may hold
		// passwords: only its message is used.
		where, message := name, "is not YAML"
		var detail yaml.Error
		if errors.As(err, &detail) {
			message = detail.GetMessage()
			if t := detail.GetToken(); t != nil {
				where = at(t)
			}
		}
		l.mistake(where, "", "", "%s", shorten(message))
		return
	}
	docs := slices.DeleteFunc(slices.Clone(file.Docs), func(d *ast.DocumentNode) bool { return d.Body == nil })
	if len(docs) > 1 {
		l.mistake(at(docs[1].Body.GetToken()), "", "remove the --- line", "a second document begins here")
		return
	}
	if len(docs) == 1 {
		l.section(at, "", docs[0].Body)
	}
}

// plain reports everything that is not plain data.
func (l *loader) plain(at func(*token.Token) string, name string, tokens token.Tokens) bool {
	before, flow := len(l.mistakes), 0
	for i, t := range tokens {
		if i == maxTokens {
			l.mistake(name, "", "", "has more than %d words and signs", maxTokens)
			return false
		}
		switch t.Type {
		case token.MappingStartType, token.SequenceStartType:
			if flow++; flow > maxFlow {
				l.mistake(at(t), "", "", "is nested more than %d deep", maxFlow)
				return false
			}
		case token.MappingEndType, token.SequenceEndType:
			flow--
		case token.AnchorType, token.AliasType, token.MergeKeyType:
			l.mistake(at(t), "", "write the value out", "anchors and aliases are not taken")
		case token.TagType, token.DirectiveType:
			l.mistake(at(t), "", "write the value out", "tags and directives are not taken")
		}
	}
	return len(l.mistakes) == before
}

// section merges one mapping: the document, or a section of it.
func (l *loader) section(at func(*token.Token) string, prefix string, node ast.Node) {
	var values []*ast.MappingValueNode
	switch n := node.(type) {
	case *ast.MappingNode:
		values = n.Values
	case *ast.MappingValueNode:
		values = []*ast.MappingValueNode{n}
	case *ast.NullNode:
		return // a section of which everything is commented out
	default:
		l.mistake(at(node.GetToken()), strings.TrimSuffix(prefix, "."), "", "must hold settings, one a line, as in \"name: value\"")
		return
	}
	for _, v := range values {
		key := v.Key.GetToken()
		path := prefix + key.Value
		switch {
		case l.leaves[path] != nil:
			if texts, ok := l.texts(at, path, v.Value); ok {
				l.set(at(key), path, texts)
			}
		case l.hasSection(path):
			l.section(at, path+".", v.Value)
		default:
			l.mistake(at(key), shorten(path), didYouMean(key.Value, l.namesIn(prefix)), "is not a setting")
		}
	}
}

// texts returns the scalars of a value: one, or those of a list.
func (l *loader) texts(at func(*token.Token) string, path string, node ast.Node) ([]string, bool) {
	if list, ok := node.(*ast.SequenceNode); ok {
		texts := []string{}
		for _, item := range list.Values {
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

func (l *loader) scalar(at func(*token.Token) string, path string, node ast.Node) (string, bool) {
	switch n := node.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.LiteralNode:
		return strings.TrimSuffix(n.Value.Value, "\n"), true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return node.GetToken().Value, true
	case *ast.NullNode:
		l.mistake(at(n.GetToken()), path, `remove the line for the default, or write "" for empty text`, "has no value")
	default:
		l.mistake(at(node.GetToken()), path, "", "must be a plain value")
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

func lineOf(t *token.Token) int {
	if t == nil || t.Position == nil {
		return 1
	}
	return t.Position.Line
}
