package clients

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tollgate/internal/testenv"
)

// The environment variables that deploy/clients prints.
const (
	envPython      = "TOLLGATE_TEST_PYTHON"
	envNode        = "TOLLGATE_TEST_NODE"
	envNodeModules = "TOLLGATE_TEST_NODE_MODULES"
)

// scriptTimeout ends a script that hangs.
const scriptTimeout = 2 * time.Minute

// installed returns an environment variable's value, or ends the test.
func installed(t *testing.T, variable string) string {
	t.Helper()
	value := os.Getenv(variable)
	switch {
	case value != "":
	case testenv.Required():
		t.Fatalf("%s is not set and %s=1 forbids skipping", variable, testenv.EnvRequire)
	default:
		t.Skipf(`skipped: %s is not set (deploy/clients install, then eval "$(deploy/clients env)")`, variable)
	}
	return value
}

// command is a script's, in python/ or node/ or of another folder with the same
// endings.
func command(ctx context.Context, t *testing.T, script string) *exec.Cmd {
	t.Helper()
	if strings.HasSuffix(script, ".py") {
		return exec.CommandContext(ctx, installed(t, envPython), script)
	}
	return exec.CommandContext(ctx, installed(t, envNode), beside(t, script, installed(t, envNodeModules)))
}

// beside copies a script with its neighbours to a folder that has the packages:
// Node looks for them nowhere else.
func beside(t *testing.T, script, modules string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Symlink(modules, filepath.Join(dir, "node_modules")); err != nil {
		t.Fatal(err)
	}
	neighbours, err := filepath.Glob(filepath.Join(filepath.Dir(script), "*.mjs"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range neighbours {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(path)), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, filepath.Base(script))
}

// run runs a script and returns what it printed. It sees nothing of the test's
// own environment: no key, no proxy and no profile of the developer's.
func run(t *testing.T, script string, environment ...string) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), scriptTimeout)
	defer cancel()
	cmd := command(ctx, t, script)
	return finish(t, cmd, environment)
}

func finish(t *testing.T, cmd *exec.Cmd, environment []string) []byte {
	t.Helper()
	cmd.Env = append([]string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "LANG=C.UTF-8", "PYTHONDONTWRITEBYTECODE=1", "NO_COLOR=1",
	}, environment...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		t.Errorf("%s: %v\n%s", filepath.Base(cmd.Args[len(cmd.Args)-1]), err, stderr.String())
	case err != nil:
		t.Fatal(err)
	}
	return stdout.Bytes()
}

// at points a script to a door.
func (d door) at(suite string) []string {
	return []string{"GATEWAY_URL=" + d.url, "GATEWAY_KEY=" + d.key, "TOLLGATE_SUITE=" + suite}
}
