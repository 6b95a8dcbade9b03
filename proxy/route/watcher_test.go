package route

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestWatcher(t *testing.T) {
	dir := t.TempDir()
	file, key := filepath.Join(dir, "upstreams.yaml"), filepath.Join(dir, "key")
	age := time.Now()
	write := func(path, text string) {
		t.Helper()
		// A configuration map is exchanged by renaming, too.
		if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		age = age.Add(time.Second)
		if err := os.Chtimes(path+".new", age, age); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	text := strings.Replace(minimal, "name: a,", "name: a, key_file: key,", 1)
	write(key, "one")
	write(file, text)
	none := func(string) string { return "" }
	table, err := Open(file, none)
	if err != nil {
		t.Fatal(err)
	}
	r := NewRouter(table, RouterOptions{})
	defer r.Close()
	var log strings.Builder
	reloads := make(chan error, 10)
	w, err := NewWatcher(WatcherOptions{
		File: file, Router: r, Env: none, Every: time.Millisecond,
		Logger: slog.New(slog.NewTextHandler(&log, nil)), OnReload: func(err error) { reloads <- err },
	})
	if err != nil {
		t.Fatal(err)
	}
	w.Start()
	keyNow := func() string {
		t.Helper()
		plan, err := r.Plan("m", "openai", "")
		if err != nil {
			t.Fatal(err)
		}
		return plan.Deployments[0].Upstream.Server.Key
	}
	write(key, "two")
	if err := <-reloads; err != nil || keyNow() != "two" {
		t.Errorf("a new key: %v, the key is %q", err, keyNow())
	}
	write(file, text+"  - oops\n")
	if err := <-reloads; err == nil || keyNow() != "two" {
		t.Errorf("a table with a mistake: %v", err)
	}
	write(file, text+"    aliases: [n]\n")
	if err := <-reloads; err != nil {
		t.Error(err)
	}
	if _, err := r.Plan("n", "openai", ""); err != nil {
		t.Errorf("the new table is not used: %v", err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := <-reloads; err == nil {
		t.Error("a table that is gone")
	}
	w.Stop()
	if len(reloads) != 0 {
		t.Error("what stays as it is was read again")
	}
	if n := strings.Count(log.String(), "level=ERROR"); n != 2 || strings.Contains(log.String(), "two") {
		t.Errorf("%d errors logged:\n%s", n, log.String())
	}
}
