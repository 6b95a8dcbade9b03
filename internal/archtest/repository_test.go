package archtest

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestEveryDirectDependencyHasAReason(t *testing.T) {
	t.Parallel()
	command := exec.CommandContext(t.Context(), "go", "mod", "edit", "-json")
	command.Dir = root(t)
	output, err := command.Output()
	if err != nil {
		t.Fatalf("go mod edit: %v", err)
	}
	var mod struct {
		Require []struct {
			Path     string
			Indirect bool
		}
	}
	if err := json.Unmarshal(output, &mod); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root(t), "docs", "dependencies.md"))
	if err != nil {
		t.Fatal(err)
	}
	reasons := reasonsIn(string(page))
	for _, require := range mod.Require {
		if require.Indirect {
			continue
		}
		if len(strings.Fields(reasons[require.Path])) < 4 {
			t.Errorf("docs/dependencies.md has no line with a reason for %s", require.Path)
		}
		delete(reasons, require.Path)
	}
	for path := range reasons {
		t.Errorf("docs/dependencies.md gives a reason for %s, which go.mod does not require directly", path)
	}
}

// reasonsIn reads the rows "| `module` | … |" of the page.
func reasonsIn(page string) map[string]string {
	reasons := map[string]string{}
	for line := range strings.SplitSeq(page, "\n") {
		cells := strings.Split(strings.Trim(line, "| "), "|")
		path := strings.TrimSpace(cells[0])
		if len(cells) >= 2 && strings.HasPrefix(path, "`") && strings.Contains(path, ".") {
			reasons[strings.Trim(path, "`")] = strings.TrimSpace(strings.Join(cells[1:], " "))
		}
	}
	return reasons
}

// Where packages come from is the business of the machine that builds, which
// may have mirrors of its own. Names are written in halves here, so that this
// file does not hold them itself.
func TestRepositoryNamesNoRegistryHost(t *testing.T) {
	t.Parallel()
	var forbidden []string
	for host, domain := range map[string]string{
		"proxy": ".golang.org", "sum": ".golang.org", "registry": ".npmjs.org", "pypi": ".org",
		"repo1": ".maven.org", "repo.maven": ".apache.org", "deb": ".debian.org", "crates": ".io",
		"files.python": "hosted.org",
	} {
		forbidden = append(forbidden, host+domain)
	}
	command := exec.CommandContext(t.Context(), "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	command.Dir = root(t)
	output, err := command.Output()
	if err != nil {
		t.Skipf("not a git checkout: %v", err)
	}
	files := slices.DeleteFunc(strings.Split(string(output), "\x00"), func(f string) bool { return f == "" })
	if len(files) < 20 {
		t.Fatalf("git lists %d files; the test would prove nothing", len(files))
	}
	for _, name := range files {
		content, err := os.ReadFile(filepath.Join(root(t), name))
		if os.IsNotExist(err) {
			continue // deleted, not yet committed
		} else if err != nil {
			t.Fatal(err)
		}
		for _, word := range forbidden {
			if bytes.Contains(content, []byte(word)) {
				t.Errorf("%s names %s", name, word)
			}
		}
	}
}
