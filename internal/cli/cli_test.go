package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/rogpeppe/go-internal/testscript"

	"tollgate/admission"
	"tollgate/billing"
	"tollgate/billing/export"
	"tollgate/events/kafka"
	"tollgate/reconcile"
	"tollgate/tenancy"
)

// TestMain makes this test binary the program as well, as testscript does it:
// started under the name tollgate it runs a command as cmd/tollgate would.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"tollgate": func() {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		context.AfterFunc(ctx, stop)
		os.Exit(Run(ctx, os.Args[1:], Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}))
	}})
}

func newParser(t *testing.T) *kong.Kong {
	t.Helper()
	parser, err := kong.New(&root{}, kong.Name("tollgate"), kong.ExplicitGroups(groups), kong.Exit(func(int) {}))
	if err != nil {
		t.Fatal(err)
	}
	return parser
}

// leaves calls fn for every command that can be run.
func leaves(node *kong.Node, fn func(*kong.Node)) {
	if node.Leaf() {
		fn(node)
		return
	}
	for _, child := range node.Children {
		leaves(child, fn)
	}
}

// examples are the command lines of a help text's or a document's examples.
func examples(text string) []string {
	var found []string
	for line := range strings.SplitSeq(text, "\n") {
		line = strings.TrimSpace(line)
		if before, after, ok := strings.Cut(line, "&& "); ok && !strings.HasPrefix(before, "tollgate") {
			line = strings.TrimSpace(after)
		}
		for { // variables and programs in front
			first, rest, ok := strings.Cut(line, " ")
			if !ok || first == "tollgate" || !strings.Contains(first, "=") && first != "deploy/with-services" && first != "--settings" {
				break
			}
			line = rest
		}
		line = strings.TrimPrefix(line, "bin/")
		if strings.HasPrefix(line, "tollgate ") {
			found = append(found, line)
		}
	}
	return found
}

// words splits a command line as a shell does, as far as examples need it: a
// redirection and a description behind three spaces end it.
func words(t *testing.T, line string) []string {
	t.Helper()
	if before, _, ok := strings.Cut(line, "   "); ok {
		line = before
	}
	var list []string
	var word strings.Builder
	quoted, started := false, false
	for _, r := range line {
		switch {
		case r == '\'':
			quoted, started = !quoted, true
		case r == ' ' && !quoted:
			if started {
				list = append(list, word.String())
			}
			word.Reset()
			started = false
		default:
			word.WriteRune(r)
			started = true
		}
	}
	if quoted {
		t.Errorf("%q: a quote is not closed", line)
	}
	if started {
		list = append(list, word.String())
	}
	for i, w := range list {
		if strings.HasPrefix(w, ">") || w == "|" {
			return list[:i]
		}
	}
	return list
}

// mustParse parses an example without running it. Files that it names need not
// exist here.
func mustParse(t *testing.T, line string) string {
	t.Helper()
	args := words(t, line)[1:]
	parser := newParser(t)
	kctx, err := parser.Parse(args)
	if err != nil && strings.Contains(err.Error(), "no such file") {
		return ""
	}
	if err != nil {
		t.Errorf("%q does not parse: %v", line, err)
		return ""
	}
	return kctx.Command()
}

func TestEveryCommandHasHelpWithAnExample(t *testing.T) {
	t.Parallel()
	n := 0
	leaves(newParser(t).Model.Node, func(node *kong.Node) {
		n++
		path := strings.TrimPrefix(node.FullPath(), "tollgate ")
		if node.Help == "" {
			t.Errorf("%s has no line of help", path)
		}
		if !strings.Contains(node.Detail, "Example") {
			t.Errorf("%s has no example in its help", path)
		}
		own := false
		for _, line := range examples(node.Detail) {
			mustParse(t, line)
			own = own || strings.HasPrefix(withoutFlags(line), "tollgate "+path) || path == "reconcile run" && strings.HasSuffix(line, " reconcile")
		}
		if !own {
			t.Errorf("%s: no example is of the command itself", path)
		}
	})
	if n < 35 {
		t.Errorf("only %d commands were looked at", n)
	}
}

// withoutFlags leaves out the flags in front of a command.
func withoutFlags(line string) string {
	list := strings.Fields(line)
	for len(list) > 2 && strings.HasPrefix(list[1], "--") {
		list = append(list[:1], list[3:]...)
	}
	return strings.Join(list, " ")
}

func TestEveryFlagAndArgumentHasHelp(t *testing.T) {
	t.Parallel()
	var walk func(node *kong.Node)
	walk = func(node *kong.Node) {
		for _, f := range node.Flags {
			if f.Help == "" {
				t.Errorf("%s --%s has no help", node.FullPath(), f.Name)
			}
		}
		for _, a := range node.Positional {
			if a.Help == "" {
				t.Errorf("%s <%s> has no help", node.FullPath(), a.Name)
			}
		}
		if node.Help == "" && node.Type == kong.CommandNode {
			t.Errorf("%s has no help", node.FullPath())
		}
		for _, child := range node.Children {
			walk(child)
		}
	}
	walk(newParser(t).Model.Node)
}

// What README and the other documents say can be typed.
func TestExamplesOfTheDocumentsParse(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	lines := examples(string(readme))
	// Commands inside text and tables stand between backquotes.
	for i, part := range strings.Split(string(readme), "`") {
		if i%2 == 1 && !strings.Contains(part, "\n") {
			lines = append(lines, examples(part)...)
		}
	}
	if len(lines) < 8 {
		t.Errorf("only %d examples were found: %q", len(lines), lines)
	}
	for _, line := range lines {
		args := words(t, line)[1:]
		if len(args) == 1 { // the name of a command, perhaps of a group of them
			if !hasCommand(newParser(t).Model.Node, args[0]) {
				t.Errorf("%q: there is no such command", line)
			}
			continue
		}
		mustParse(t, line)
	}
}

func hasCommand(node *kong.Node, name string) bool {
	for _, child := range node.Children {
		if child.Name == name {
			return true
		}
	}
	return false
}

func TestExitStatusOfErrors(t *testing.T) {
	t.Parallel()
	pg := func(code string) error { return fmt.Errorf("connect: %w", &pgconn.PgError{Code: code}) }
	op := func(name string) error {
		return fmt.Errorf("start: %w", &net.OpError{Op: name, Net: "tcp", Err: syscall.ECONNREFUSED})
	}
	for _, tt := range []struct {
		err    error
		status int
		hint   string
	}{
		{errors.New("whatever"), ExitFailed, ""},
		{usagef("wrong"), ExitUsage, ""},
		{fmt.Errorf("deep: %w", usagef("wrong")), ExitUsage, ""},
		{fmt.Errorf("x: %w", tenancy.ErrNotFound), ExitUsage, ""},
		{tenancy.ErrInvalid, ExitUsage, ""},
		{tenancy.ErrAlreadyThere, ExitConflict, ""},
		{tenancy.ErrConflict, ExitConflict, ""},
		{tenancy.ErrKeyRevoked, ExitConflict, ""},
		{reconcile.ErrFrozen, ExitConflict, ""},
		{reconcile.ErrNotFrozen, ExitConflict, ""},
		{reconcile.ErrNotLeader, ExitConflict, ""},
		{admission.ErrUnavailable, ExitUnavailable, "config print"},
		{admission.ErrNotRebuilt, ExitUnavailable, ""},
		{context.DeadlineExceeded, ExitUnavailable, ""},
		{context.Canceled, ExitFailed, ""},
		{os.ErrNotExist, ExitUsage, ""},
		{pg("08006"), ExitUnavailable, "config print"},
		{pg("53300"), ExitUnavailable, ""},
		{pg("57P03"), ExitUnavailable, ""},
		{pg("57014"), ExitFailed, ""},
		{pg("42P01"), ExitUsage, "tollgate migrate"},
		{pg("3D000"), ExitUsage, "TOLLGATE_POSTGRES_URL"},
		{pg("28P01"), ExitUsage, "TOLLGATE_POSTGRES_URL"},
		{pg("23505"), ExitFailed, ""},
		{op("dial"), ExitUnavailable, "config print"},
		{op("listen"), ExitUsage, "another program"},
		{&net.DNSError{}, ExitUnavailable, ""},
		{&kafka.PartitionMismatchError{Topic: "t", Have: 1, Want: 2}, ExitUsage, ""},
		{billingStatus(billing.ErrNotFound), ExitUsage, ""},
		{billingStatus(billing.ErrCurrency), ExitUsage, ""},
		{billingStatus(billing.ErrOverlap), ExitConflict, ""},
		{billingStatus(billing.ErrPeriodOpen), ExitConflict, ""},
		{billingStatus(billing.ErrUnrated), ExitDiffers, ""},
		// The file that is in the way is told before what the file would hold.
		{billingStatus(errors.Join(export.ErrExists, billing.ErrUnrated)), ExitConflict, ""},
		{billingStatus(withStatus(ExitDiffers, billing.ErrNotFound)), ExitDiffers, ""},
	} {
		for range 20 { // whatever the order of maps
			if got := exitStatus(tt.err); got != tt.status {
				t.Errorf("%v: status %d, want %d", tt.err, got, tt.status)
			}
		}
		if got := hint(tt.err); !strings.Contains(got, tt.hint) || got == "" && tt.hint != "" {
			t.Errorf("%v: hint %q, want %q in it", tt.err, got, tt.hint)
		}
	}
}
