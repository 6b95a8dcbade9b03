package config

import (
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/robfig/cron/v3"

	"tollgate/tenancy"
)

// validate checks the merged configuration as a whole: every field by itself,
// then what fields ask of each other.
func (l *loader) validate() {
	c := l.config
	l.address("listen", c.Listen)
	l.address("admin_listen", c.AdminListen)
	if c.Listen == c.AdminListen && !strings.HasSuffix(c.Listen, ":0") {
		l.wrongPair("admin_listen", "listen", "choose another port: health and metrics are not for clients", "is the same address as listen")
	}

	l.addresses("redis.addresses", c.Redis.Addresses)
	l.text("redis.prefix", c.Redis.Prefix, 1, 32, ":._-")
	l.oneOf("redis.cluster", c.Redis.Cluster, "auto", "true", "false")
	l.between("redis.shards", int64(c.Redis.Shards), 1, 1000)
	l.credentials("redis", c.Redis.Username, c.Redis.Password, c.Redis.TLS, c.Redis.TLSCAFile)

	l.addresses("kafka.brokers", c.Kafka.Brokers)
	l.text("kafka.topic_prefix", c.Kafka.TopicPrefix, 0, 64, "._-")
	l.between("kafka.partitions", int64(c.Kafka.Partitions), 1, 1000)
	l.between("kafka.replication", int64(c.Kafka.Replication), 1, 15)
	l.lasts("kafka.retention", c.Kafka.Retention, time.Hour, 3650*24*time.Hour)
	l.credentials("kafka", c.Kafka.Username, c.Kafka.Password, c.Kafka.TLS, c.Kafka.TLSCAFile)
	if c.Kafka.Password != "" && c.Kafka.Username == "" {
		l.wrong("kafka.password", "set kafka.username", "has no meaning without a user name")
	}
	if c.Kafka.Username != "" && !c.Kafka.TLS {
		l.wrong("kafka.username", "set kafka.tls: true", "SASL/PLAIN would send the password in the clear")
	}

	l.database("postgres.url", c.Postgres.URL)
	l.between("postgres.max_connections", int64(c.Postgres.MaxConnections), 4, 1000)

	l.lasts("admission.idempotency_retention", c.Admission.IdempotencyRetention, time.Minute, 30*24*time.Hour)
	l.between("admission.outbox_max_records", c.Admission.OutboxMaxRecords, 1000, 1_000_000_000)
	l.lasts("admission.request_timeout", c.Admission.RequestTimeout, 10*time.Millisecond, time.Minute)
	if n := c.Admission.MaxBodyBytes; n < 1<<10 || n > 16<<20 {
		l.wrong("admission.max_body_bytes", "", "must be 1KiB to 16MiB, is %s", n)
	}

	l.proxy(c.Proxy)

	l.lasts("relay.lease", c.Relay.Lease, time.Second, 5*time.Minute)

	l.lasts("ledger.flush_interval", c.Ledger.FlushInterval, 100*time.Millisecond, 10*time.Minute)
	l.between("ledger.flush_events", int64(c.Ledger.FlushEvents), 1, 100_000)
	l.between("ledger.max_batch", int64(c.Ledger.MaxBatch), 1, 100_000)
	if c.Ledger.MaxBatch < c.Ledger.FlushEvents {
		l.wrongPair("ledger.max_batch", "ledger.flush_events", "raise it, or lower ledger.flush_events", "%d is less than ledger.flush_events %d", c.Ledger.MaxBatch, c.Ledger.FlushEvents)
	}
	l.text("ledger.group", c.Ledger.Group, 1, 128, "._-")
	l.lasts("ledger.stall_after", c.Ledger.StallAfter, time.Second, 24*time.Hour)
	if c.Ledger.StallAfter < c.Ledger.FlushInterval {
		l.wrongPair("ledger.stall_after", "ledger.flush_interval", "an idle flush interval would look like a stall", "%s is shorter than ledger.flush_interval %s",
			tenancy.Duration(c.Ledger.StallAfter), tenancy.Duration(c.Ledger.FlushInterval))
	}

	l.schedule("reconcile.every", c.Reconcile.Every)
	if p := c.Reconcile.DriftThresholdPercent; p > 1_000_000 {
		l.wrong("reconcile.drift_threshold_percent", "", "must be 0 to 100, is %s", p)
	}
	l.between("reconcile.drift_min_tokens", c.Reconcile.DriftMinTokens, 0, 1_000_000_000_000)
	l.lasts("reconcile.hold_grace", c.Reconcile.HoldGrace, 0, time.Hour)
	l.lasts("reconcile.pending_deadline", c.Reconcile.PendingDeadline, time.Minute, 30*24*time.Hour)
	l.httpURL("reconcile.execution_status_url", c.Reconcile.ExecutionStatusURL)

	if problem := tenancy.CheckCurrency(c.Billing.Currency); problem != "" {
		l.wrong("billing.currency", `use an ISO 4217 code such as "EUR"`, "%s", problem)
	}
	l.oneOf("log.level", c.Log.Level, "debug", "info", "warn", "error")
	l.oneOf("log.format", c.Log.Format, "text", "json")

	// Mistakes read in the order of the file's lines, then the rest.
	slices.SortStableFunc(l.mistakes, func(a, b Mistake) int { return fileLine(a.Where) - fileLine(b.Where) })
}

// proxy checks the front door's settings. The upstreams' file is not read here:
// it changes by itself, and whoever runs the gateway reads it.
func (l *loader) proxy(p Proxy) {
	if len(p.UpstreamsFile) > 1024 || strings.ContainsFunc(p.UpstreamsFile, func(r rune) bool { return r < ' ' }) {
		l.wrong("proxy.upstreams_file", "leave it empty for no front door", "is no file's name")
	}
	l.text("proxy.region", p.Region, 0, 64, "._-")
	if n := p.MaxBodyBytes; n < 1<<10 || n > 512<<20 {
		l.wrong("proxy.max_body_bytes", "", "must be 1KiB to 512MiB, is %s", n)
	}
	if n := p.MaxAnswerBytes; n < 1<<10 || n > 1<<30 {
		l.wrong("proxy.max_answer_bytes", "", "must be 1KiB to 1GiB, is %s", n)
	}
	l.between("proxy.progress_tokens", p.ProgressTokens, 1, 1_000_000)
	l.lasts("proxy.client_write_timeout", p.ClientWriteTimeout, time.Second, time.Hour)
	l.lasts("proxy.drain_timeout", p.DrainTimeout, 100*time.Millisecond, time.Hour)
	l.between("proxy.max_tries", int64(p.MaxTries), 1, 16)
	l.httpURL("proxy.otlp_endpoint", p.OTLPEndpoint)
	l.between("proxy.trace_percent", int64(p.TracePercent), 0, 100)
}

// httpURL takes "" as none.
func (l *loader) httpURL(path, text string) {
	if text == "" {
		return
	}
	if u, err := url.Parse(text); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil {
		l.wrong(path, "leave it empty for none", "must be an http or https URL without a user")
	}
}

// wrongPair reports that two fields do not go together, at the one that was
// given where the other is a default.
func (l *loader) wrongPair(path, other, hint, problem string, args ...any) {
	where := l.config.origin(path)
	if where == byDefault {
		where = l.config.origin(other)
	}
	l.mistake(where, path, hint, problem, args...)
}

// wrong reports a mistake where the field's value was given.
func (l *loader) wrong(path, hint, problem string, args ...any) {
	l.mistake(l.config.origin(path), path, hint, problem, args...)
}

func (l *loader) address(path, text string) {
	host, port, err := net.SplitHostPort(text)
	n, portErr := strconv.ParseUint(port, 10, 16)
	if err != nil || portErr != nil || len(text) > 260 || strings.ContainsAny(host, " \t\r\n/@") {
		l.wrong(path, `write it like "127.0.0.1:8080"`, "%s is not host:port", quoted(text))
		return
	}
	if host == "" && path != "listen" && path != "admin_listen" || n == 0 && strings.Contains(path, ".") {
		l.wrong(path, `write it like "127.0.0.1:8080"`, "%s lacks a host or port", quoted(text))
	}
}

func (l *loader) addresses(path string, texts []string) {
	if len(texts) < 1 || len(texts) > 64 {
		l.wrong(path, "", "must have 1 to 64 addresses, has %d", len(texts))
		return
	}
	for i, text := range texts {
		if slices.Index(texts, text) < i {
			l.wrong(path, "keep one of them", "%s is there twice", quoted(text))
			continue
		}
		l.address(path, text)
	}
}

func (l *loader) text(path, text string, shortest, longest int, also string) {
	plain := !strings.ContainsFunc(text, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune(also, r)
	})
	if len(text) < shortest || len(text) > longest || !plain {
		l.wrong(path, "", "must be %d to %d letters, digits and %q, is %s", shortest, longest, also, quoted(text))
	}
}

func (l *loader) oneOf(path, text string, allowed ...string) {
	if !slices.Contains(allowed, text) {
		l.wrong(path, didYouMean(text, allowed), "%s is not known", quoted(text))
	}
}

func (l *loader) between(path string, n, low, high int64) {
	if n < low || n > high {
		l.wrong(path, "", "must be %d to %d, is %d", low, high, n)
	}
}

func (l *loader) lasts(path string, d, low, high time.Duration) {
	if d < low || d > high {
		l.wrong(path, "", "must be %s to %s, is %s", tenancy.Duration(low), tenancy.Duration(high), tenancy.Duration(d))
	}
}

func (l *loader) credentials(section, username string, password Secret, tls bool, caFile string) {
	if username != "" && password == "" {
		l.wrong(section+".username", "set "+section+".password, best by "+envName(section+".password"), "has no password")
	}
	if caFile != "" && !tls {
		l.wrong(section+".tls_ca_file", "set "+section+".tls: true", "has no meaning without TLS")
	}
}

// database checks the URL without repeating it: it may carry a password.
func (l *loader) database(path string, text SecretURL) {
	const hint = `write it like "postgres://user@host:5432/database", with the password best in TOLLGATE_POSTGRES_URL`
	u, err := url.Parse(text.Reveal())
	switch {
	case text == "": // a gateway that neither publishes tenants nor rebuilds
	case err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" || u.Opaque != "":
		l.wrong(path, hint, "is not a postgres:// URL")
	case u.Host == "" && u.Query().Get("host") == "":
		l.wrong(path, hint, "lacks a host")
	case strings.Trim(u.Path, "/") == "":
		l.wrong(path, hint, "lacks a database")
	}
}

func (l *loader) schedule(path, text string) {
	// The library also takes "TZ=…" and panics on some malformed ones; the
	// schedule is in UTC anyway.
	if strings.Contains(text, "TZ=") {
		l.wrong(path, "it is in UTC", "must not name a time zone")
		return
	}
	if _, err := cron.ParseStandard(text); err != nil || len(text) > 200 {
		l.wrong(path, `"* * * * *" is each minute, "@hourly" each hour`, "%s is not a cron schedule", quoted(text))
	}
}

// fileLine orders mistakes: the line where Where ends in one, else after all.
func fileLine(where string) int {
	if i := strings.LastIndexByte(where, ':'); i >= 0 {
		if n, err := strconv.Atoi(where[i+1:]); err == nil {
			return n
		}
	}
	return MaxFileBytes + 1
}
