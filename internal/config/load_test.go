package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

const example = "../../deploy/tollgate.example.yaml"

var ignoreOrigins = cmpopts.IgnoreUnexported(Config{})

// load reads text as if it were tollgate.yaml.
func load(text string, env []string, flags map[string]string) (*Config, error) {
	return parse(Source{File: "tollgate.yaml", Env: env, Flags: flags}, []byte(text))
}

func TestDefaultsAreValid(t *testing.T) {
	got, err := Load(Source{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Default(), got, ignoreOrigins); diff != "" {
		t.Errorf("nothing given (-want +got):\n%s", diff)
	}
}

// The example names every setting, with its default and a comment.
func TestExampleFileIsCompleteAndShowsTheDefaults(t *testing.T) {
	got, err := Load(Source{File: example})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Default(), got, ignoreOrigins); diff != "" {
		t.Errorf("the example differs from the defaults (-default +example):\n%s", diff)
	}
	for path := range leaves() {
		if !strings.HasPrefix(got.origin(path), example+":") {
			t.Errorf("the example lacks %s", path)
		}
	}
}

func TestPrecedence(t *testing.T) {
	const file = "redis:\n  prefix: \"file:\"\n  shards: 8\nkafka:\n  partitions: 3\n"
	env := []string{"TOLLGATE_REDIS_PREFIX=env:", "TOLLGATE_REDIS_SHARDS=16", "TOLLGATE_KAFKA_BROKERS=a:1, b:2"}
	got, err := load(file, env, map[string]string{"redis.prefix": "flag:"})
	if err != nil {
		t.Fatal(err)
	}
	if got.Redis.Prefix != "flag:" || got.Redis.Shards != 16 || got.Kafka.Partitions != 3 || got.Kafka.Replication != 1 {
		t.Errorf("got %+v %+v", got.Redis, got.Kafka)
	}
	if diff := cmp.Diff([]string{"a:1", "b:2"}, got.Kafka.Brokers); diff != "" {
		t.Errorf("list from the environment (-want +got):\n%s", diff)
	}
	for path, want := range map[string]string{
		"redis.prefix": "--set redis.prefix", "redis.shards": "TOLLGATE_REDIS_SHARDS",
		"kafka.partitions": "tollgate.yaml:5", "kafka.replication": "default",
	} {
		if where := got.origin(path); where != want {
			t.Errorf("%s comes from %q, want %q", path, where, want)
		}
	}
}

func TestEverySettingCanComeFromTheEnvironment(t *testing.T) {
	for path := range leaves() {
		_, err := load("", []string{envName(path) + "=\x01"}, nil)
		// Free text takes anything; all else must have been looked at.
		if err != nil && !strings.Contains(err.Error(), envName(path)+": "+path) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestMistakesNameTheirLineAndTheRemedy(t *testing.T) {
	for _, test := range []struct {
		text string
		want string // prefix of the one mistake
	}{
		{"listen: 8080\n", `tollgate.yaml:1: listen: "8080" is not host:port; write it like`},
		{"listen: \"a:b:c\"\n", `tollgate.yaml:1: listen: "a:b:c" is not host:port`},
		{"listen: \"127.0.0.1:99999\"\n", `tollgate.yaml:1: listen: "127.0.0.1:99999" is not host:port`},
		{"\n\nadmin_listen: 127.0.0.1:8080\n", `tollgate.yaml:3: admin_listen: is the same address as listen`},
		{"listen: 127.0.0.1:9090\n", `tollgate.yaml:1: admin_listen: is the same address as listen`},
		{"lisen: 127.0.0.1:80\n", `tollgate.yaml:1: lisen: is not a setting; did you mean listen?`},
		{"redis:\n  shard: 3\n", `tollgate.yaml:2: redis.shard: is not a setting; did you mean shards?`},
		{"rediss:\n  shards: 3\n", `tollgate.yaml:1: rediss: is not a setting; did you mean redis?`},
		{"redis: 127.0.0.1:6379\n", `tollgate.yaml:1: redis: must hold settings, one a line`},
		{"redis:\n  shards: many\n", `tollgate.yaml:2: redis.shards: must be a whole number, is "many"`},
		{"redis:\n  shards: 1.5\n", `tollgate.yaml:2: redis.shards: must be a whole number, is "1.5"`},
		{"redis:\n  shards: 0x10\n", `tollgate.yaml:2: redis.shards: must be a whole number, is "0x10"`},
		{"redis:\n  shards: 99999999999999999999\n", `tollgate.yaml:2: redis.shards: must be a whole number`},
		{"redis:\n  shards: 0\n", `tollgate.yaml:2: redis.shards: must be 1 to 1000, is 0`},
		{"redis:\n  shards: [1, 2]\n", `tollgate.yaml:2: redis.shards: must be one value, is a list`},
		{"redis:\n  shards: {a: 1}\n", `tollgate.yaml:2: redis.shards: must be a plain value`},
		{"redis:\n  shards:\n", `tollgate.yaml:2: redis.shards: has no value; remove the line`},
		{"redis:\n  addresses: []\n", `tollgate.yaml:2: redis.addresses: must have 1 to 64 addresses, has 0`},
		{"redis:\n  addresses: [\"a:1\", \"a:1\"]\n", `tollgate.yaml:2: redis.addresses: "a:1" is there twice`},
		{"redis:\n  addresses: [\":6379\"]\n", `tollgate.yaml:2: redis.addresses: ":6379" lacks a host`},
		{"redis:\n  addresses:\n    - [a]\n", `tollgate.yaml:3: redis.addresses: must be a plain value`},
		{"redis:\n  prefix: \"{tg}\"\n", `tollgate.yaml:2: redis.prefix: must be 1 to 32 letters`},
		{"redis:\n  cluster: yes\n", `tollgate.yaml:2: redis.cluster: "yes" is not known; known are auto, true, false`},
		{"redis:\n  tls: on\n", `tollgate.yaml:2: redis.tls: must be true or false, is "on"`},
		{"redis:\n  tls_ca_file: ca.pem\n", `tollgate.yaml:2: redis.tls_ca_file: has no meaning without TLS`},
		{"redis:\n  username: u\n", `tollgate.yaml:2: redis.username: has no password; set redis.password, best by TOLLGATE_REDIS_PASSWORD`},
		{"kafka:\n  username: u\n  password: p\n", `tollgate.yaml:2: kafka.username: SASL/PLAIN would send the password in the clear`},
		{"kafka:\n  retention: 90\n", `tollgate.yaml:2: kafka.retention: must be a duration such as`},
		{"kafka:\n  retention: 1s\n", `tollgate.yaml:2: kafka.retention: must be 1h to 3650d, is 1s`},
		{"postgres:\n  url: mysql://h/d\n", `tollgate.yaml:2: postgres.url: is not a postgres:// URL`},
		{"postgres:\n  url: postgres://h\n", `tollgate.yaml:2: postgres.url: lacks a database`},
		{"admission:\n  max_body_bytes: 1GiB\n", `tollgate.yaml:2: admission.max_body_bytes: must be 1KiB to 16MiB, is 1GiB`},
		{"admission:\n  max_body_bytes: 64KB\n", `tollgate.yaml:2: admission.max_body_bytes: must be a number of bytes`},
		{"proxy:\n  max_tries: 0\n", `tollgate.yaml:2: proxy.max_tries: must be 1 to 16, is 0`},
		{"proxy:\n  region: \"a b\"\n", `tollgate.yaml:2: proxy.region: must be 0 to 64 letters`},
		{"proxy:\n  max_body_bytes: 1GiB\n", `tollgate.yaml:2: proxy.max_body_bytes: must be 1KiB to 512MiB, is 1GiB`},
		{"proxy:\n  max_answer_bytes: 0\n", `tollgate.yaml:2: proxy.max_answer_bytes: must be 1KiB to 1GiB, is 0`},
		{"proxy:\n  progress_tokens: 0\n", `tollgate.yaml:2: proxy.progress_tokens: must be 1 to 1000000, is 0`},
		{"proxy:\n  drain_timeout: 2h\n", `tollgate.yaml:2: proxy.drain_timeout: must be`},
		{"proxy:\n  client_write_timeout: 0s\n", `tollgate.yaml:2: proxy.client_write_timeout: must be 1s to 1h, is 0s`},
		{"proxy:\n  otlp_endpoint: otel:4318\n", `tollgate.yaml:2: proxy.otlp_endpoint: must be an http or https URL`},
		{"proxy:\n  upstreams: x\n", `tollgate.yaml:2: proxy.upstreams: is not a setting; known are`},
		{"ledger:\n  flush_events: 20000\n", `tollgate.yaml:2: ledger.max_batch: 16384 is less than ledger.flush_events 20000`},
		{"ledger:\n  stall_after: 5s\n", `tollgate.yaml:2: ledger.stall_after: 5s is shorter than ledger.flush_interval 10s`},
		{"reconcile:\n  every: sometimes\n", `tollgate.yaml:2: reconcile.every: "sometimes" is not a cron schedule`},
		{"reconcile:\n  every: \"TZ=\"\n", `tollgate.yaml:2: reconcile.every: must not name a time zone`},
		{"reconcile:\n  every: \"* * * * * *\"\n", `tollgate.yaml:2: reconcile.every: "* * * * * *" is not`},
		{"reconcile:\n  drift_threshold_percent: -1\n", `tollgate.yaml:2: reconcile.drift_threshold_percent: must be a percentage`},
		{"reconcile:\n  drift_threshold_percent: 101\n", `tollgate.yaml:2: reconcile.drift_threshold_percent: must be 0 to 100, is 101`},
		{"reconcile:\n  execution_status_url: \"file:///etc/passwd\"\n", `tollgate.yaml:2: reconcile.execution_status_url: must be an http`},
		{"billing:\n  currency: eur\n", `tollgate.yaml:2: billing.currency: "eur" is not a currency code`},
		{"log:\n  level: warning\n", `tollgate.yaml:2: log.level: "warning" is not known; did you mean warn?`},
		{"log:\n  level: info\n  level: debug\n", `tollgate.yaml:3: mapping key "level" already defined`},
		{"log:\n\tlevel: info\n", `tollgate.yaml:2: found character '`},
		{"log: [\n", `tollgate.yaml:1: `},
		{"just text\n", `tollgate.yaml:1: must hold settings`},
		{"- a\n- b\n", `tollgate.yaml:1: must hold settings`},
		{"log:\n  level: info\n---\nlog:\n  level: info\n", `tollgate.yaml:4: a second document begins here`},
		{"a: &a x\nb: *a\n", `tollgate.yaml:1: anchors and aliases are not taken`},
		{"log:\n  level: !!str info\n", `tollgate.yaml:2: tags and directives are not taken`},
		{"log:\n  <<: {level: info}\n", `tollgate.yaml:2: anchors and aliases are not taken`},
		{"a: " + strings.Repeat("[", 1000) + strings.Repeat("]", 1000), `tollgate.yaml:1: is nested more than 16 deep`},
		{strings.Repeat("- ", 100_000), `tollgate.yaml: has more than 5000 words and signs`},
		{strings.Repeat("#", MaxFileBytes+1), `tollgate.yaml: is larger than 1MiB`},
		{"log:\n  level: \"\x00\"\n", `tollgate.yaml: is not UTF-8 text`},
		{"log: \xff\n", `tollgate.yaml: is not UTF-8 text`},
	} {
		_, err := load(test.text, nil, nil)
		name := test.text[:min(len(test.text), 60)]
		var invalid *InvalidError
		if !errors.As(err, &invalid) {
			t.Errorf("%q: got %v, want a mistake", name, err)
			continue
		}
		if !strings.HasPrefix(invalid.Mistakes[0].String(), test.want) {
			t.Errorf("%q:\n got %s\nwant %s", name, invalid.Mistakes[0], test.want)
		}
		if len(invalid.Mistakes) != 1 && !strings.Contains(test.text, "*a") {
			t.Errorf("%q: %d mistakes: %v", name, len(invalid.Mistakes), invalid.Mistakes)
		}
	}
}

func TestMistakesOfEnvironmentAndFlags(t *testing.T) {
	for _, test := range []struct {
		env  string
		flag [2]string
		want string
	}{
		{env: "TOLLGATE_REDIS_SHARDS=x", want: `TOLLGATE_REDIS_SHARDS: redis.shards: must be a whole number, is "x"`},
		{env: "TOLLGATE_REDIS_SHARDS=0", want: `TOLLGATE_REDIS_SHARDS: redis.shards: must be 1 to 1000`},
		{env: "TOLLGATE_REDIS_SHARD=1", want: `TOLLGATE_REDIS_SHARD: is not a setting; did you mean TOLLGATE_REDIS_SHARDS?`},
		{env: "TOLLGATE_REDIS_SOMETHING_ELSE=1", want: `TOLLGATE_REDIS_SOMETHING_ELSE: is not a setting`},
		{flag: [2]string{"redis.shards", ""}, want: `--set redis.shards: redis.shards: must be a whole number, is ""`},
		{flag: [2]string{"redis.shrads", "1"}, want: `--set redis.shrads: is not a setting; did you mean redis.shards?`},
		{flag: [2]string{"redis", "1"}, want: `--set redis: is not a setting`},
	} {
		src := Source{}
		if test.env != "" {
			src.Env = []string{test.env}
		} else {
			src.Flags = map[string]string{test.flag[0]: test.flag[1]}
		}
		_, err := Load(src)
		var invalid *InvalidError
		if !errors.As(err, &invalid) || len(invalid.Mistakes) != 1 || !strings.HasPrefix(invalid.Mistakes[0].String(), test.want) {
			t.Errorf("got %v, want %s", err, test.want)
		}
	}
	if _, err := Load(Source{Env: []string{"TOLLGATE_TEST_REDIS=x", "TOLLGATE_CONFIG=x", "TOLLGATE_SERVICES_PORT=1", "TOLLGATE_AUTHOR=x", "TOLLGATE_URL=x", "PATH=/bin", "TOLLGATE"}}); err != nil {
		t.Errorf("variables that are no settings are refused: %v", err)
	}
}

func TestAllMistakesAreReportedInTheOrderOfLines(t *testing.T) {
	_, err := load("log:\n  format: xml\nbilling:\n  currency: zzz\nlisten: x\nbad: 1\n", []string{"TOLLGATE_REDIS_SHARDS=0"}, nil)
	want := []string{"tollgate.yaml:2", "tollgate.yaml:4", "tollgate.yaml:5", "tollgate.yaml:6", "TOLLGATE_REDIS_SHARDS"}
	var invalid *InvalidError
	if !errors.As(err, &invalid) {
		t.Fatalf("got %v", err)
	}
	var got []string
	for _, m := range invalid.Mistakes {
		got = append(got, m.Where)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("places (-want +got):\n%s", diff)
	}
}

func TestValues(t *testing.T) {
	got, err := load(`
listen: ":8080"
postgres: {url: ""}
redis:
  # everything below is commented out
kafka:
  retention: 1d12h
  brokers: "a:1,b:2"
admission:
  outbox_max_records: 2_000_000
  max_body_bytes: 1MiB
reconcile:
  drift_threshold_percent: 0.25
log: {level: debug, format: json}
`, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got.Kafka.Retention != 36*time.Hour || len(got.Kafka.Brokers) != 2 || got.Admission.OutboxMaxRecords != 2_000_000 ||
		got.Admission.MaxBodyBytes != 1<<20 || got.Reconcile.DriftThresholdPercent.PPM() != 2500 || got.Log.SlogLevel() != slog.LevelDebug || got.Postgres.URL != "" {
		t.Errorf("got %+v", got)
	}
}

func TestSecretsAreNotShown(t *testing.T) {
	const secret = "hunter2"
	got, err := load(`
redis: {username: u, password: `+secret+`}
kafka: {tls: true, username: u, password: `+secret+`}
postgres: {url: "postgres://user:`+secret+`@db:5432/x?sslmode=disable&sslpassword=`+secret+`"}
`, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got.Redis.Password.Reveal() != secret || !strings.Contains(got.Postgres.URL.Reveal(), secret) {
		t.Fatal("the secret itself is lost")
	}
	var out bytes.Buffer
	if err := got.Print(&out); err != nil {
		t.Fatal(err)
	}
	asJSON, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	out.Write(asJSON)
	slog.New(slog.NewTextHandler(&out, nil)).Info("x", "redis", got.Redis.Password, "url", got.Postgres.URL)
	slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "redis", got.Redis, "all", got)
	fmt.Fprintf(&out, "%v %+v %#v %s %q %x", *got, *got, *got, got.Redis.Password, got.Postgres.URL, got.Redis.Password)
	if strings.Contains(out.String(), secret) || strings.Contains(out.String(), fmt.Sprintf("%x", secret)) {
		t.Errorf("the secret is shown:\n%s", out.String())
	}
	if !strings.Contains(out.String(), "postgres://user:REDACTED@db:5432/x") {
		t.Errorf("the database's host is not shown:\n%s", out.String())
	}
}

// A mistake in a secret, or near one, does not quote it.
func TestMistakesDoNotShowSecrets(t *testing.T) {
	for _, text := range []string{
		"postgres:\n  url: \"mysql://u:hunter2@h/d\"\n",
		"postgres:\n  url: \"postgres://u:hunter2@h:port/d\"\n",
		"postgres:\n  url: hunter2\n",
		"redis:\n  password: [hunter2, hunter2]\n",
		"redis:\n  password: hunter2\n bad\n",
		"redis:\n  password: \"hunter2\n",
		"redis:\n  password: {hunter2: 1}\n",
	} {
		if _, err := load(text, nil, nil); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestPrintIsReadBack(t *testing.T) {
	want, err := Load(Source{File: example, Env: []string{"TOLLGATE_REDIS_PREFIX=x:"}})
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := want.Print(&out); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "# TOLLGATE_REDIS_PREFIX\n") {
		t.Errorf("where the prefix comes from is not shown:\n%s", out.String())
	}
	got, err := load(out.String(), nil, nil)
	if err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	if diff := cmp.Diff(want, got, ignoreOrigins); diff != "" {
		t.Errorf("read back (-want +got):\n%s", diff)
	}
}

func TestLoadFile(t *testing.T) {
	dir := t.TempDir()
	if _, err := Load(Source{File: filepath.Join(dir, "none.yaml")}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing file gives %v", err)
	}
	if _, err := Load(Source{File: dir}); err == nil {
		t.Error("a directory was read")
	}
	path := filepath.Join(dir, "t.yaml")
	if err := os.WriteFile(path, []byte("\ufefflog:\n  level: error\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := Load(Source{File: path})
	if err != nil || got.Log.Level != "error" {
		t.Errorf("with a byte-order mark: %+v, %v", got, err)
	}
	for _, empty := range []string{"", "\n", "# nothing\n", "---\n", "{}\n"} {
		if _, err := load(empty, nil, nil); err != nil {
			t.Errorf("%q: %v", empty, err)
		}
	}
}

func FuzzLoad(f *testing.F) {
	text, err := os.ReadFile(example)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	for _, seed := range []string{
		"a: &a [*a]", "? {}\n: x", "redis: {shards: 1e9}", "log:\n  level: |\n    info\n", "%YAML 1.2\n---\n",
		"reconcile:\n  every: \"@every 1s\"", "{", "- - -", "\"", "'", "a: b: c", "!!binary", "listen: \"[::1]:80\"",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := load(string(data), nil, nil)
		if err != nil {
			var invalid *InvalidError
			if !errors.As(err, &invalid) || len(invalid.Mistakes) == 0 {
				t.Fatalf("refused with %v", err)
			}
			return
		}
		var out strings.Builder
		if err := got.Print(&out); err != nil {
			t.Fatal(err)
		}
		back, err := load(out.String(), nil, nil)
		if err != nil && !strings.Contains(out.String(), redacted) {
			t.Fatalf("what is printed is refused: %v\n%s", err, out.String())
		}
		if err == nil && !strings.Contains(out.String(), redacted) {
			if diff := cmp.Diff(got, back, ignoreOrigins); diff != "" {
				t.Fatalf("read back (-want +got):\n%s", diff)
			}
		}
	})
}
