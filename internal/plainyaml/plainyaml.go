// Package plainyaml reads YAML files that people write as plain data: mappings,
// lists and scalars, each with its line. Anchors, aliases, merge keys, tags and
// several documents, which such a file does not need and bombs are made of, are
// mistakes; so are keys that are there twice.
//
// Scalars stay text. What they mean, and which names there are, is the
// caller's.
package plainyaml

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

// Limits bound a file. The parser's time grows with the square of nesting and
// of a mapping's width, so the number of words and signs is bounded, too.
type Limits struct {
	Bytes  int
	Tokens int
}

const maxFlow = 16 // nested [ and {

// Mistake is one thing that is wrong with a file.
type Mistake struct {
	Line    int // 0: the whole file
	Problem string
	Hint    string // what to do, or ""
}

// Kind is what a node is.
type Kind uint8

// Kinds.
const (
	Scalar  Kind = iota // Text
	List                // Items
	Mapping             // Fields
	Null                // nothing, or null
	Strange             // none of these
)

// Node is a value in a file.
type Node struct {
	Kind   Kind
	Line   int
	Text   string
	Items  []*Node
	Fields []Field
}

// Field is one of a mapping's, in the order of the file.
type Field struct {
	Name  string
	Line  int
	Value *Node
}

// Parse reads a file. An empty one is a Null node. With mistakes the node is
// nil.
func Parse(data []byte, limits Limits) (*Node, []Mistake) {
	if len(data) > limits.Bytes {
		return nil, []Mistake{{Problem: "is larger than " + size(limits.Bytes)}}
	}
	if !utf8.Valid(data) || strings.ContainsRune(string(data), 0) {
		return nil, []Mistake{{Problem: "is not UTF-8 text"}}
	}
	// A byte-order mark is no part of the first key.
	tokens := lexer.Tokenize(strings.TrimPrefix(string(data), "\ufeff"))
	if mistakes := check(tokens, limits.Tokens); len(mistakes) > 0 {
		return nil, mistakes
	}
	file, err := parser.Parse(tokens, 0)
	if err != nil {
		// The library's own text quotes lines of the file, which may hold
		// passwords: only its message is used.
		m := Mistake{Problem: "is not YAML"}
		var detail yaml.Error
		if errors.As(err, &detail) {
			m.Problem = shorten(detail.GetMessage())
			if t := detail.GetToken(); t != nil {
				m.Line = lineOf(t)
			}
		}
		return nil, []Mistake{m}
	}
	docs := slices.DeleteFunc(slices.Clone(file.Docs), func(d *ast.DocumentNode) bool { return d.Body == nil })
	switch len(docs) {
	case 0:
		return &Node{Kind: Null, Line: 1}, nil
	case 1:
		return nodeOf(docs[0].Body), nil
	}
	return nil, []Mistake{{lineOf(docs[1].Body.GetToken()), "a second document begins here", "remove the --- line"}}
}

// check finds everything that is not plain data.
func check(tokens token.Tokens, limit int) []Mistake {
	var mistakes []Mistake
	flow := 0
	for i, t := range tokens {
		if i == limit {
			return append(mistakes, Mistake{Problem: fmt.Sprintf("has more than %d words and signs", limit)})
		}
		switch t.Type {
		case token.MappingStartType, token.SequenceStartType:
			if flow++; flow > maxFlow {
				return append(mistakes, Mistake{Line: lineOf(t), Problem: fmt.Sprintf("is nested more than %d deep", maxFlow)})
			}
		case token.MappingEndType, token.SequenceEndType:
			flow--
		case token.AnchorType, token.AliasType, token.MergeKeyType:
			mistakes = append(mistakes, Mistake{lineOf(t), "anchors and aliases are not taken", "write the value out"})
		case token.TagType, token.DirectiveType:
			mistakes = append(mistakes, Mistake{lineOf(t), "tags and directives are not taken", "write the value out"})
		}
	}
	return mistakes
}

func nodeOf(node ast.Node) *Node {
	made := &Node{Line: lineOf(node.GetToken())}
	switch n := node.(type) {
	case *ast.MappingNode:
		made.Kind = Mapping
		for _, v := range n.Values {
			made.Fields = append(made.Fields, fieldOf(v))
		}
	case *ast.MappingValueNode:
		made.Kind, made.Fields = Mapping, []Field{fieldOf(n)}
	case *ast.SequenceNode:
		made.Kind = List
		for _, item := range n.Values {
			made.Items = append(made.Items, nodeOf(item))
		}
	case *ast.StringNode:
		made.Text = n.Value
	case *ast.LiteralNode:
		made.Text = strings.TrimSuffix(n.Value.Value, "\n")
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		made.Text = node.GetToken().Value
	case *ast.NullNode:
		made.Kind = Null
	default:
		made.Kind = Strange
	}
	return made
}

func fieldOf(v *ast.MappingValueNode) Field {
	key := v.Key.GetToken()
	return Field{Name: key.Value, Line: lineOf(key), Value: nodeOf(v.Value)}
}

func lineOf(t *token.Token) int {
	if t == nil || t.Position == nil {
		return 1
	}
	return t.Position.Line
}

func size(n int) string {
	if n%(1<<20) == 0 {
		return fmt.Sprintf("%dMiB", n>>20)
	}
	return fmt.Sprintf("%d bytes", n)
}

func shorten(text string) string {
	if len(text) > 80 {
		return strings.ToValidUTF8(text[:80], "") + "…"
	}
	return text
}
