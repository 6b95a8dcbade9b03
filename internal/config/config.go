// Package config is the configuration of every role: one YAML file, TOLLGATE_…
// environment variables and --set flags, merged over defaults and validated as
// a whole.
//
// Flags win over the environment, the environment over the file, the file over
// the defaults. Every mistake is reported with where it was made (file and
// line, variable or flag) and what to do; unknown names are mistakes. Secrets
// are of types that print redacted.
//
// deploy/tollgate.example.yaml describes every field to users; a test keeps it
// complete.
package config

import (
	"log/slog"
	"time"
)

// Config is the whole configuration. Its field tags are the names in the file;
// joined by dots they are paths ("redis.prefix"), and in upper case with
// underscores they are variables ("TOLLGATE_REDIS_PREFIX").
type Config struct {
	Listen      string `yaml:"listen"`       // host:port of the API
	AdminListen string `yaml:"admin_listen"` // host:port of health and metrics

	Redis     Redis     `yaml:"redis"`
	Kafka     Kafka     `yaml:"kafka"`
	Postgres  Postgres  `yaml:"postgres"`
	Admission Admission `yaml:"admission"`
	Proxy     Proxy     `yaml:"proxy"`
	Relay     Relay     `yaml:"relay"`
	Ledger    Ledger    `yaml:"ledger"`
	Reconcile Reconcile `yaml:"reconcile"`
	Billing   Billing   `yaml:"billing"`
	Log       Log       `yaml:"log"`

	origins map[string]string // path → where its value was given
}

// Redis holds the admission state.
type Redis struct {
	Addresses []string `yaml:"addresses"` // host:port, several of a cluster
	Username  string   `yaml:"username"`
	Password  Secret   `yaml:"password"`
	TLS       bool     `yaml:"tls"`
	TLSCAFile string   `yaml:"tls_ca_file"` // PEM; empty: the system's roots
	Prefix    string   `yaml:"prefix"`      // of every key
	Cluster   string   `yaml:"cluster"`     // "auto" asks the server; "true", "false"
	Shards    int      `yaml:"shards"`      // never changed once there is state
}

// Kafka holds the log.
type Kafka struct {
	Brokers     []string      `yaml:"brokers"` // host:port
	TopicPrefix string        `yaml:"topic_prefix"`
	Partitions  int           `yaml:"partitions"`  // of topics that migrate creates
	Replication int           `yaml:"replication"` // of topics that migrate creates
	Retention   time.Duration `yaml:"retention"`   // of topics that migrate creates
	TLS         bool          `yaml:"tls"`
	TLSCAFile   string        `yaml:"tls_ca_file"` // PEM; empty: the system's roots
	Username    string        `yaml:"username"`    // SASL/PLAIN; empty: none
	Password    Secret        `yaml:"password"`
}

// Postgres holds the ledger, tenants and bills. A gateway without URL serves
// requests, and leaves it to others to publish tenants and rebuild state.
type Postgres struct {
	URL            SecretURL `yaml:"url"`
	MaxConnections int       `yaml:"max_connections"` // of each process
}

// Admission decides.
type Admission struct {
	IdempotencyRetention time.Duration `yaml:"idempotency_retention"` // of ended reservations' records
	OutboxMaxRecords     int64         `yaml:"outbox_max_records"`    // beyond it reserves are refused
	RequestTimeout       time.Duration `yaml:"request_timeout"`       // of one API request
	MaxBodyBytes         ByteSize      `yaml:"max_body_bytes"`        // of one API request
}

// Proxy is the front door: requests in the dialects of model providers, on the
// same address as the API. It is there where UpstreamsFile is set.
type Proxy struct {
	UpstreamsFile      string        `yaml:"upstreams_file"`       // YAML; read again when it changes
	Region             string        `yaml:"region"`               // this gateway's; its upstreams are tried first
	MaxBodyBytes       ByteSize      `yaml:"max_body_bytes"`       // of one request
	MaxAnswerBytes     ByteSize      `yaml:"max_answer_bytes"`     // of an answer that is read whole for its usage
	ProgressTokens     int64         `yaml:"progress_tokens"`      // a stream reports each time that it grew by so many
	ClientWriteTimeout time.Duration `yaml:"client_write_timeout"` // a client that takes nothing for so long has left
	DrainTimeout       time.Duration `yaml:"drain_timeout"`        // of streams, when the gateway stops
	MaxTries           int           `yaml:"max_tries"`            // upstreams that one request may try
	OTLPEndpoint       string        `yaml:"otlp_endpoint"`        // URL that traces go to; empty: none
	TracePercent       int           `yaml:"trace_percent"`        // of requests whose client does not decide it
}

// Enabled says whether there is a front door.
func (p Proxy) Enabled() bool { return p.UpstreamsFile != "" }

// Relay copies the outbox to Kafka.
type Relay struct {
	EnabledInGateway bool          `yaml:"enabled_in_gateway"`
	Lease            time.Duration `yaml:"lease"` // of a shard; another relay takes over after it
}

// Ledger folds the log.
type Ledger struct {
	FlushInterval time.Duration `yaml:"flush_interval"`
	FlushEvents   int           `yaml:"flush_events"` // of a partition; whichever comes first
	MaxBatch      int           `yaml:"max_batch"`    // events of one transaction when catching up
	Group         string        `yaml:"group"`        // Kafka consumer group
	StallAfter    time.Duration `yaml:"stall_after"`  // lag without progress turns readiness red
}

// Reconcile compares and ends what is open.
type Reconcile struct {
	Every                 string        `yaml:"every"` // cron, UTC
	DriftThresholdPercent Percent       `yaml:"drift_threshold_percent"`
	DriftMinTokens        int64         `yaml:"drift_min_tokens"` // smaller differences are no drift
	HoldGrace             time.Duration `yaml:"hold_grace"`       // after its TTL a hold is left alone so long
	PendingDeadline       time.Duration `yaml:"pending_deadline"` // after it an expired hold is closed
	ExecutionStatusURL    string        `yaml:"execution_status_url"`
}

// Billing turns usage into bills.
type Billing struct {
	Currency string `yaml:"currency"` // ISO 4217, of new tenants and price books
}

// Log is the program's own log on standard error.
type Log struct {
	Level  string `yaml:"level"`  // debug, info, warn, error
	Format string `yaml:"format"` // text, json
}

// SlogLevel is Level as slog's.
func (l Log) SlogLevel() slog.Level {
	var level slog.Level
	_ = level.UnmarshalText([]byte(l.Level)) // validated; else info
	return level
}

// Default is the configuration where nothing is given: services on this
// machine's loopback.
func Default() *Config {
	return &Config{
		Listen:      "127.0.0.1:8080",
		AdminListen: "127.0.0.1:9090",
		Redis: Redis{
			Addresses: []string{"127.0.0.1:6379"},
			Prefix:    "tg:",
			Cluster:   "auto",
			Shards:    64,
		},
		Kafka: Kafka{
			Brokers:     []string{"127.0.0.1:9092"},
			Partitions:  12,
			Replication: 1,
			Retention:   90 * 24 * time.Hour,
		},
		Postgres: Postgres{URL: "postgres://tollgate@127.0.0.1:5432/tollgate", MaxConnections: 10},
		Admission: Admission{
			IdempotencyRetention: 24 * time.Hour,
			OutboxMaxRecords:     1_000_000,
			RequestTimeout:       2 * time.Second,
			MaxBodyBytes:         64 << 10,
		},
		Proxy: Proxy{
			MaxBodyBytes:       32 << 20,
			MaxAnswerBytes:     64 << 20,
			ProgressTokens:     256,
			ClientWriteTimeout: time.Minute,
			DrainTimeout:       30 * time.Second,
			MaxTries:           3,
			TracePercent:       10,
		},
		Relay: Relay{EnabledInGateway: true, Lease: 5 * time.Second},
		Ledger: Ledger{
			FlushInterval: 10 * time.Second,
			FlushEvents:   1024,
			MaxBatch:      16_384,
			Group:         "tollgate-ledger",
			StallAfter:    time.Minute,
		},
		Reconcile: Reconcile{
			Every:                 "* * * * *",
			DriftThresholdPercent: 10_000,
			DriftMinTokens:        10_000,
			HoldGrace:             time.Minute,
			PendingDeadline:       24 * time.Hour,
		},
		Billing: Billing{Currency: "USD"},
		Log:     Log{Level: "info", Format: "text"},
	}
}
