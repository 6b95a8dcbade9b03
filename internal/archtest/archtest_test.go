package archtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "tollgate"

// listed is what `go list` says about one package of the project.
type listed struct {
	ImportPath string
	Dir        string
	GoFiles    []string
	Imports    []string
}

// name is the import path below the module.
func (p *listed) name() string { return strings.TrimPrefix(p.ImportPath, module+"/") }

func root(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func goList(t *testing.T) []listed {
	t.Helper()
	command := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Dir,GoFiles,Imports", "./...")
	command.Dir = root(t)
	var stderr bytes.Buffer
	command.Stderr = &stderr
	output, err := command.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	var all []listed
	for decoder := json.NewDecoder(bytes.NewReader(output)); ; {
		var p listed
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	if len(all) < 10 {
		t.Fatalf("go list found %d packages; the test would prove nothing", len(all))
	}
	return all
}

func TestArrows(t *testing.T) {
	t.Parallel()
	used := map[string]bool{}
	for _, p := range goList(t) {
		entry, known := packages[p.name()]
		if !known {
			t.Errorf("package %s is not listed in arrows_test.go: say what it is for and what it may import", p.name())
			continue
		}
		used[p.name()] = true
		for _, path := range p.Imports {
			to, ours := strings.CutPrefix(path, module+"/")
			if !ours {
				continue
			}
			if _, allowed := entry.arrows[to]; !allowed {
				t.Errorf("%s imports %s, which arrows_test.go does not allow", p.name(), to)
			}
		}
	}
	for name, entry := range packages {
		if !used[name] {
			t.Errorf("arrows_test.go lists %s, which is not there any more", name)
		}
		if entry.why == "" {
			t.Errorf("arrows_test.go does not say what %s is for", name)
		}
		for to, why := range entry.arrows {
			// The wiring and the commands use every part for the reason they exist.
			if why == "" && name != "internal/app" && name != "internal/cli" {
				t.Errorf("arrows_test.go gives no reason for %s → %s", name, to)
			}
		}
	}
}

// The table itself may not allow what the architecture forbids.
func TestAdmissionAndLedgerMeetOnlyInTheLog(t *testing.T) {
	t.Parallel()
	for name := range packages {
		reached := reach(name)
		for _, pair := range [][2]string{{"admission", "ledger"}, {"ledger", "admission"}} {
			if name != pair[0] && !strings.HasPrefix(name, pair[0]+"/") {
				continue
			}
			for _, to := range reached {
				if to == pair[1] || strings.HasPrefix(to, pair[1]+"/") {
					t.Errorf("%s reaches %s", name, to)
				}
			}
		}
		if slices.Contains(reached, name) {
			t.Errorf("%s reaches itself", name)
		}
	}
}

// reach returns everything that a package may import, directly or not.
func reach(name string) []string {
	var all []string
	queue := []string{name}
	for len(queue) > 0 {
		next := queue[0]
		queue = queue[1:]
		for to := range packages[next].arrows {
			if !slices.Contains(all, to) {
				all = append(all, to)
				queue = append(queue, to)
			}
		}
	}
	return all
}

func TestModules(t *testing.T) {
	t.Parallel()
	for _, p := range goList(t) {
		for _, path := range p.Imports {
			first, _, _ := strings.Cut(path, "/")
			if first == module || !strings.Contains(first, ".") {
				continue // ours, or the standard library
			}
			name := moduleOf(path)
			if name == "" {
				t.Errorf("%s imports %s, of a module that arrows_test.go does not list for code that ships", p.name(), path)
			} else if !slices.Contains(modules[name].in, p.name()) {
				t.Errorf("%s imports %s, which arrows_test.go keeps to %v", p.name(), path, modules[name].in)
			}
		}
	}
	for name, entry := range modules {
		if entry.why == "" {
			t.Errorf("arrows_test.go gives no reason for %s", name)
		}
		for _, in := range entry.in {
			if _, known := packages[in]; !known {
				t.Errorf("arrows_test.go allows %s in %s, which is no package", name, in)
			}
		}
	}
}

// moduleOf returns the listed module that an import path belongs to.
func moduleOf(path string) string {
	for name := range modules {
		if path == name || strings.HasPrefix(path, name+"/") {
			return name
		}
	}
	return ""
}

func TestRulesKnowNoTechnology(t *testing.T) {
	t.Parallel()
	forbidden := map[string]string{
		"net/http":     "HTTP is admission/httpapi's",
		"database/sql": "tables are a subpackage's",
		"os":           "files and the environment are the commands'",
		"os/exec":      "no rule starts a program",
		"os/signal":    "signals are main's",
		"net":          "no rule speaks to a network",
	}
	for _, p := range goList(t) {
		if slices.Contains(noTechnology, p.name()) {
			for _, path := range p.Imports {
				if why, no := forbidden[path]; no {
					t.Errorf("%s imports %s: %s", p.name(), path, why)
				}
			}
		}
		if p.name() != "internal/testenv" && slices.Contains(p.Imports, "testing") {
			t.Errorf("%s imports testing in code that ships", p.name())
		}
	}
}

func TestDecisionsArePure(t *testing.T) {
	t.Parallel()
	checked := 0
	for _, p := range goList(t) {
		if !slices.Contains(pure, p.name()) {
			continue
		}
		for _, file := range p.GoFiles {
			checked++
			source, err := os.ReadFile(filepath.Join(p.Dir, file))
			if err != nil {
				t.Fatal(err)
			}
			for _, found := range impurities(t, p.name()+"/"+file, source) {
				t.Error(found)
			}
		}
	}
	if checked == 0 {
		t.Fatal("no file was checked")
	}
}

// The check sees what it is meant to see.
func TestImpuritiesAreFound(t *testing.T) {
	t.Parallel()
	source := []byte(`package p
import ("math/rand/v2"; "time")
func f() float64 { return float64(time.Now().Unix()) * rand.Float64() }
func g(now time.Time) time.Duration { return now.Sub(time.Time{}) }
`)
	found := strings.Join(impurities(t, "p.go", source), "\n")
	for _, want := range []string{"math/rand/v2", "float64", "time.Now"} {
		if !strings.Contains(found, want) {
			t.Errorf("%s was not found in:\n%s", want, found)
		}
	}
	if n := strings.Count(found, "\n") + 1; n != 4 {
		t.Errorf("found %d impurities, want 4:\n%s", n, found)
	}
}

// impurities lists clocks, dice and floats in a file.
func impurities(t *testing.T, name string, source []byte) []string {
	t.Helper()
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, name, source, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	report := func(at token.Pos, what string) {
		found = append(found, files.Position(at).String()+": "+what)
	}
	for _, spec := range file.Imports {
		if path := strings.Trim(spec.Path.Value, `"`); path == "math/rand" || path == "math/rand/v2" {
			report(spec.Pos(), "imports "+path+": randomness is an argument")
		}
	}
	ast.Inspect(file, func(node ast.Node) bool {
		switch n := node.(type) {
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" && slices.Contains([]string{"Now", "Since", "Until", "After", "Tick"}, n.Sel.Name) {
				report(n.Pos(), "calls time."+n.Sel.Name+": now is an argument")
			}
		case *ast.Ident:
			if n.Name == "float64" || n.Name == "float32" {
				report(n.Pos(), "uses "+n.Name+": no float touches money or quota")
			}
		}
		return true
	})
	return found
}
