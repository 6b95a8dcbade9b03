package cli

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"tollgate/internal/testenv"
)

// dev starts `tollgate dev` as a process and waits until it serves.
type dev struct {
	cmd  *exec.Cmd
	tmp  string   // its temporary directory
	text []string // what it said
}

func startDev(t *testing.T) *dev {
	t.Helper()
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if _, pathErr := exec.LookPath("initdb"); err != nil || len(found) == 0 && pathErr != nil {
		testenv.Missing(t, "PostgreSQL's initdb")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// A short path that PostgreSQL's user may pass through.
	tmp, err := os.MkdirTemp("", "tgdev")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(tmp) })
	if err := os.Chmod(tmp, 0o711); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(tmp, "tollgate")
	if err := os.Symlink(self, program); err != nil {
		t.Fatal(err)
	}
	d := &dev{cmd: exec.Command(program, "dev", "--listen", "127.0.0.1:0"), tmp: tmp}
	d.cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stderr, err := d.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = d.cmd.Process.Kill()
		_ = d.cmd.Wait()
	})
	lines := make(chan string)
	go func() {
		defer close(lines)
		scanner := bufio.NewScanner(stderr)
		for scanner.Scan() {
			lines <- scanner.Text()
		}
	}()
	limit := time.After(90 * time.Second)
	for {
		select {
		case line, open := <-lines:
			if !open {
				t.Fatalf("it ended: %s", strings.Join(d.text, "\n"))
			}
			d.text = append(d.text, line)
			if strings.HasPrefix(line, "Ctrl-C ends everything") {
				go func() {
					for range lines { // keep it from blocking
					}
				}()
				return d
			}
		case <-limit:
			t.Fatalf("it does not serve: %s", strings.Join(d.text, "\n"))
		}
	}
}

// family lists the processes below d: every one whose parents lead to it.
func (d *dev) family(t *testing.T) []int {
	t.Helper()
	parents := map[int]int{}
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil || len(stats) == 0 {
		t.Skip("there is no /proc to look for processes in")
	}
	for _, path := range stats {
		data, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended meanwhile
		}
		pid, _, _ := strings.Cut(string(data), " ")
		_, rest, ok := strings.Cut(string(data[strings.LastIndexByte(string(data), ')'):]), " ")
		fields := strings.Fields(rest)
		if !ok || len(fields) < 2 {
			continue
		}
		child, childErr := strconv.Atoi(pid)
		parent, parentErr := strconv.Atoi(fields[1])
		if childErr == nil && parentErr == nil {
			parents[child] = parent
		}
	}
	var list []int
	for pid := range parents {
		for up := parents[pid]; up > 1; up = parents[up] {
			if up == d.cmd.Process.Pid {
				list = append(list, pid)
				break
			}
		}
	}
	slices.Sort(list)
	return list
}

// alive are those of the processes that have not ended. A zombie has.
func alive(pids []int) (left []string) {
	for _, pid := range pids {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue
		}
		text := string(data)
		if state := text[strings.LastIndexByte(text, ')')+2:]; !strings.HasPrefix(state, "Z") {
			left = append(left, text[:min(len(text), 60)])
		}
	}
	return left
}

func (d *dev) mustLeaveNothing(t *testing.T, pids []int) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for left := alive(pids); len(left) > 0; left = alive(pids) {
		if time.Now().After(deadline) {
			t.Fatalf("these are left: %q", left)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func TestDevEndsCleanly(t *testing.T) {
	t.Parallel()
	for name, sig := range map[string]syscall.Signal{"Ctrl-C": syscall.SIGINT, "SIGTERM": syscall.SIGTERM} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := startDev(t)
			pids := d.family(t)
			if len(pids) < 3 {
				t.Fatalf("only %d processes below it: PostgreSQL alone has more", len(pids))
			}
			d.mustServe(t)
			d.mustStream(t)
			if err := d.cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			if err := d.cmd.Wait(); err != nil {
				t.Errorf("it ended with %v, want status 0", err)
			}
			if left := alive(pids); len(left) > 0 {
				t.Errorf("these are left: %q", left)
			}
			if left, err := filepath.Glob(filepath.Join(d.tmp, "tollgate-*")); err != nil || len(left) > 0 {
				t.Errorf("directories are left: %v, %v", left, err)
			}
		})
	}
}

// Even kill -9 leaves no server behind: they die with their parent.
func TestDevKilledLeavesNoServerBehind(t *testing.T) {
	t.Parallel()
	d := startDev(t)
	pids := d.family(t)
	if len(pids) < 3 {
		t.Fatalf("only %d processes below it: PostgreSQL alone has more", len(pids))
	}
	if err := d.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = d.cmd.Wait() // says that it was killed
	d.mustLeaveNothing(t, pids)
}

// mustServe tries the command that dev prints.
func (d *dev) mustServe(t *testing.T) {
	t.Helper()
	text := strings.Join(d.text, "\n")
	url := regexp.MustCompile(`listens on (http://[0-9.:]+),`).FindStringSubmatch(text)
	key := regexp.MustCompile(`export KEY=(\S+)`).FindStringSubmatch(text)
	if url == nil || key == nil {
		t.Fatalf("no address or key in %s", text)
	}
	curl := newClient(1)
	defer curl.CloseIdleConnections()
	deadline := time.Now().Add(30 * time.Second)
	for {
		status, body := usageQuery(t, curl, url[1], key[1])
		if status == 200 && strings.Contains(body, `"tenant_id"`) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("usage query: %d %s", status, body)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// mustStream does what the lines of Python that dev prints do, and the command for
// the bill after it.
func (d *dev) mustStream(t *testing.T) {
	t.Helper()
	text := strings.Join(d.text, "\n")
	python := regexp.MustCompile(`OpenAI\(base_url="([^"]+)", api_key="([^"]+)"\)\.chat\.completions\.create\(model="([^"]+)"`).FindStringSubmatch(text)
	bill := regexp.MustCompile(`TOLLGATE_POSTGRES_URL='([^']+)' tollgate (bill draft \S+ \S+)`).FindStringSubmatch(text)
	if python == nil || bill == nil {
		t.Fatalf("no Python or no bill in %s", text)
	}
	body := `{"model":"` + python[3] + `","messages":[{"role":"user","content":"Hello"}],"stream":true}`
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, python[1]+"/chat/completions", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+python[2])
	req.Header.Set("Content-Type", "application/json")
	client := newClient(1)
	defer client.CloseIdleConnections()
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != 200 || !strings.HasSuffix(string(answer), "data: [DONE]\n\n") {
		t.Fatalf("the stream: %d %v %s", res.StatusCode, err, answer)
	}
	deadline := time.Now().Add(30 * time.Second)
	for {
		draft := exec.CommandContext(t.Context(), d.cmd.Path, append([]string{"--json"}, strings.Fields(bill[2])...)...)
		draft.Env = append(os.Environ(), "TOLLGATE_POSTGRES_URL="+bill[1])
		out, err := draft.Output()
		if err == nil && strings.Contains(string(out), `"`+python[3]+`"`) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the bill does not show the answer: %v %s", err, out)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func usageQuery(t *testing.T, client *http.Client, base, key string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+"/v1/quota/usage", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+key)
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(body)
}
