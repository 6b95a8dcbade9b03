package tenancy

import (
	"errors"
	"fmt"
	"strings"
)

// Errors of administration that callers branch on, beside those of the
// request path.
var (
	// ErrInvalid: the document or argument breaks a rule. The error is an
	// *InvalidError that lists every mistake.
	ErrInvalid = errors.New("invalid")
	// ErrConflict: the document was changed since the caller read it.
	ErrConflict = errors.New("changed by someone else meanwhile; read it again and repeat the change")
)

// Mistake is one broken rule: where, what, and what to do about it.
type Mistake struct {
	Path    string `json:"path"` // e.g. "limits[2].window"; "" is the document itself
	Problem string `json:"problem"`
	Hint    string `json:"hint,omitempty"`
}

// String gives "limits[2].window: is missing; a ring needs …".
func (m Mistake) String() string {
	var b strings.Builder
	if m.Path != "" {
		b.WriteString(m.Path)
		b.WriteString(": ")
	}
	b.WriteString(m.Problem)
	if m.Hint != "" {
		b.WriteString("; ")
		b.WriteString(m.Hint)
	}
	return b.String()
}

// InvalidError lists all mistakes of one document. errors.Is finds ErrInvalid.
type InvalidError struct {
	Document string // "tenant", "key", "quota", "platform", …
	Mistakes []Mistake
}

// Error lists the mistakes, one a line where there are several.
func (e *InvalidError) Error() string {
	if len(e.Mistakes) == 1 {
		return fmt.Sprintf("invalid %s: %s", e.Document, e.Mistakes[0])
	}
	var b strings.Builder
	fmt.Fprintf(&b, "invalid %s: %d mistakes", e.Document, len(e.Mistakes))
	for _, m := range e.Mistakes {
		b.WriteString("\n  ")
		b.WriteString(m.String())
	}
	return b.String()
}

// Is makes errors.Is(err, ErrInvalid) true.
func (e *InvalidError) Is(target error) bool { return target == ErrInvalid }

// mistakes collects broken rules under a path.
type mistakes struct {
	list []Mistake
}

func (m *mistakes) add(path, hint, problem string, args ...any) {
	m.list = append(m.list, Mistake{Path: path, Problem: fmt.Sprintf(problem, args...), Hint: hint})
}

func (m *mistakes) err(document string) error {
	if len(m.list) == 0 {
		return nil
	}
	return &InvalidError{Document: document, Mistakes: m.list}
}
