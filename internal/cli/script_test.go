package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rogpeppe/go-internal/testscript"

	"tollgate/internal/testenv"
)

// scriptPatience bounds how long a script waits for what must come.
const scriptPatience = 40 * time.Second

// TestScripts runs testdata/*.txtar. Each script has a database, Redis keys and
// Kafka topics of its own on the real services, named in the environment as a
// user would name them; commands are processes of this test binary.
//
// Beside testscript's commands a script has:
//
//	status N tollgate …    run; fail unless it exits with N
//	secretless FILE        fail if stdout or stderr has FILE's content
//	shape FILE             compare the names and types of stdout's JSON with FILE
//	value PATH WANT        compare one value of stdout's JSON
//	await URL              wait until it answers 200
//	await-ended N          wait until the ledger has N reservations that ended
//	sql STATEMENT          execute in the script's database
//	request URL FILE …     post FILE, with header lines that follow; stdout has the answer's status and body
func TestScripts(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			t.Parallel()
			vars := scriptVars(t, !strings.Contains(file, "migrate"))
			testscript.Run(t, testscript.Params{
				Files:               []string{file},
				RequireExplicitExec: true,
				Setup: func(env *testscript.Env) error {
					env.Vars = append(env.Vars, vars...)
					return nil
				},
				Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
					"status": cmdStatus, "secretless": cmdSecretless, "shape": cmdShape, "value": cmdValue,
					"await": cmdAwait, "await-ended": cmdAwaitEnded, "sql": cmdSQL,
					"request": cmdRequest,
				},
			})
		})
	}
}

func scriptVars(t *testing.T, migrated bool) []string {
	t.Helper()
	database := testenv.EmptyPostgresURL
	if migrated {
		database = testenv.PostgresURL
	}
	_, prefix := testenv.Redis(t)
	brokers, topics := testenv.Kafka(t)
	listen, err := freeAddress()
	if err != nil {
		t.Fatal(err)
	}
	admin, err := freeAddress()
	if err != nil {
		t.Fatal(err)
	}
	fake, err := freeAddress()
	if err != nil {
		t.Fatal(err)
	}
	return []string{
		"TOLLGATE_POSTGRES_URL=" + database(t),
		"TOLLGATE_REDIS_ADDRESSES=" + os.Getenv(testenv.EnvRedis), "TOLLGATE_REDIS_PREFIX=" + prefix,
		"TOLLGATE_REDIS_SHARDS=4", "TOLLGATE_REDIS_CLUSTER=false",
		"TOLLGATE_KAFKA_BROKERS=" + strings.Join(brokers, ","), "TOLLGATE_KAFKA_TOPIC_PREFIX=" + topics,
		"TOLLGATE_KAFKA_PARTITIONS=2", "TOLLGATE_LEDGER_GROUP=" + topics + "ledger", "TOLLGATE_LEDGER_FLUSH_INTERVAL=100ms",
		"TOLLGATE_LISTEN=" + listen, "TOLLGATE_ADMIN_LISTEN=127.0.0.1:0",
		// The race detector would keep every process for a second at its end.
		"GORACE=atexit_sleep_ms=0",
		"TOLLGATE_AUTHOR=script", "LISTEN=" + listen, "ADMIN=" + admin, "FAKE=" + fake, "FROM=" + time.Now().UTC().Truncate(time.Hour).Format(time.RFC3339),
		"TO=" + time.Now().UTC().Truncate(time.Hour).Add(24*time.Hour).Format(time.RFC3339),
	}
}

func cmdStatus(ts *testscript.TestScript, neg bool, args []string) {
	want, err := strconv.Atoi(args[0])
	if neg || err != nil || len(args) < 2 {
		ts.Fatalf("usage: status N command …")
	}
	got := 0
	var exit *exec.ExitError
	switch err := ts.Exec(args[1], args[2:]...); {
	case errors.As(err, &exit):
		got = exit.ExitCode()
	case err != nil:
		ts.Fatalf("%v", err)
	}
	if got != want {
		ts.Fatalf("exit status %d, want %d", got, want)
	}
}

func cmdSecretless(ts *testscript.TestScript, _ bool, args []string) {
	secret := strings.TrimSpace(ts.ReadFile(args[0]))
	_, secret, found := strings.Cut(secret, ".") // the part before the point is the key's id
	if !found || len(secret) < 20 {
		ts.Fatalf("%s holds no key", args[0])
	}
	for _, stream := range []string{"stdout", "stderr"} {
		if strings.Contains(ts.ReadFile(stream), secret) {
			ts.Fatalf("%s tells the secret of %s", stream, args[0])
		}
	}
}

func parseStdout(ts *testscript.TestScript) any {
	var v any
	text := ts.ReadFile("stdout")
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.UseNumber()
	ts.Check(decoder.Decode(&v))
	if decoder.More() {
		ts.Fatalf("more than one JSON value: %s", text)
	}
	return v
}

func cmdShape(ts *testscript.TestScript, _ bool, args []string) {
	found := map[string]bool{}
	shapeOf("", parseStdout(ts), found)
	got := strings.Join(slices.Sorted(maps.Keys(found)), "\n") + "\n"
	if want := ts.ReadFile(args[0]); got != want {
		ts.Fatalf("the shape of stdout is\n%s\nwant\n%s", got, want)
	}
}

// shapeOf lists each path and its type; items of a list share one path.
func shapeOf(path string, v any, found map[string]bool) {
	switch v := v.(type) {
	case map[string]any:
		for name, item := range v {
			shapeOf(path+"."+name, item, found)
		}
	case []any:
		found[path+"[]"] = len(v) == 0
		if len(v) > 0 {
			delete(found, path+"[]")
		}
		for _, item := range v {
			shapeOf(path+"[]", item, found)
		}
	case string:
		found[path+" string"] = true
	case json.Number:
		found[path+" number"] = true
		if strings.ContainsAny(v.String(), ".eE") {
			found[path+" FRACTION"] = true
		}
	case bool:
		found[path+" bool"] = true
	case nil:
		found[path+" null"] = true
	}
}

func cmdValue(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: value PATH WANT")
	}
	v := parseStdout(ts)
	for name := range strings.SplitSeq(args[0], ".") {
		switch inside := v.(type) {
		case map[string]any:
			v = inside[name]
		case []any:
			i, err := strconv.Atoi(name)
			if err != nil || i >= len(inside) {
				ts.Fatalf("%s: there is no item %s of %d", args[0], name, len(inside))
			}
			v = inside[i]
		default:
			ts.Fatalf("%s: there is no %s", args[0], name)
		}
	}
	if got := fmt.Sprint(v); (got == args[1]) == neg {
		ts.Fatalf("%s is %s, want %s (inverted: %t)", args[0], got, args[1], neg)
	}
}

// poll repeats check until it returns nil.
func poll(ts *testscript.TestScript, check func() error) {
	deadline := time.Now().Add(scriptPatience)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("after %s: %v", scriptPatience, err)
		}
		time.Sleep(30 * time.Millisecond)
	}
}

func cmdAwait(ts *testscript.TestScript, _ bool, args []string) {
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	poll(ts, func() error {
		res, err := client.Get(args[0])
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if res.StatusCode != http.StatusOK {
			return fmt.Errorf("%s answers %s", args[0], res.Status)
		}
		return nil
	})
}

func cmdRequest(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) < 2 {
		ts.Fatalf("usage: request URL FILE [HEADER: VALUE]…")
	}
	req, err := http.NewRequest(http.MethodPost, args[0], strings.NewReader(ts.ReadFile(args[1])))
	ts.Check(err)
	for _, line := range args[2:] {
		name, value, _ := strings.Cut(line, ": ")
		req.Header.Set(name, value)
	}
	client := &http.Client{Timeout: scriptPatience, Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(req)
	ts.Check(err)
	defer res.Body.Close()
	fmt.Fprintln(ts.Stdout(), res.StatusCode)
	_, err = io.Copy(ts.Stdout(), res.Body)
	ts.Check(err)
}

func withScriptDatabase(ts *testscript.TestScript, fn func(ctx context.Context, conn *pgx.Conn) error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*scriptPatience)
	defer cancel()
	conn, err := pgx.Connect(ctx, ts.Getenv("TOLLGATE_POSTGRES_URL"))
	ts.Check(err)
	defer conn.Close(ctx)
	ts.Check(fn(ctx, conn))
}

func cmdAwaitEnded(ts *testscript.TestScript, _ bool, args []string) {
	withScriptDatabase(ts, func(ctx context.Context, conn *pgx.Conn) error {
		poll(ts, func() error {
			var n int
			err := conn.QueryRow(ctx, `SELECT count(*) FROM reservations WHERE state IN ('settled', 'cancelled')`).Scan(&n)
			if err == nil && strconv.Itoa(n) != args[0] {
				err = fmt.Errorf("%d reservations have ended, want %s", n, args[0])
			}
			return err
		})
		return nil
	})
}

func cmdSQL(ts *testscript.TestScript, _ bool, args []string) {
	withScriptDatabase(ts, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, args[0])
		return err
	})
}
