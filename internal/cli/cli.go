// Package cli is the command line of Tollgate: what each command takes, what it
// prints and which status it ends with. The work is done elsewhere; a command
// here reads its flags, calls one function, and prints the result as a table or
// as JSON.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/alecthomas/kong"

	"tollgate/internal/config"
)

// Exit statuses. They are part of the interface: scripts branch on them.
const (
	ExitOK          = 0
	ExitDiffers     = 1 // the command ran and what it checked is not right
	ExitUsage       = 2 // flags, configuration or input are wrong; nothing was done
	ExitUnavailable = 3 // a service is out of reach; trying again may help
	ExitConflict    = 4 // refused: it exists already, was changed meanwhile, or is closed
	ExitFailed      = 5 // anything else
)

// statusError carries an exit status.
type statusError struct {
	status int
	err    error
}

func (e *statusError) Error() string { return e.err.Error() }
func (e *statusError) Unwrap() error { return e.err }

func withStatus(status int, err error) error {
	if err == nil {
		return nil
	}
	return &statusError{status, err}
}

// usagef is an error about what the caller asked for.
func usagef(format string, args ...any) error {
	return withStatus(ExitUsage, fmt.Errorf(format, args...))
}

// Streams are what a command reads and writes.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
}

type root struct {
	Config  string            `short:"c" help:"Configuration file (YAML). Default: TOLLGATE_CONFIG, else none." type:"path" placeholder:"FILE"`
	Set     map[string]string `help:"Set one configuration field, above file and environment, e.g. --set kafka.brokers=127.0.0.1:9092." placeholder:"FIELD=VALUE"`
	JSON    bool              `name:"json" help:"Print results as JSON."`
	Verbose bool              `short:"v" help:"Log at debug level."`

	Gateway   gatewayCmd   `cmd:"" group:"roles" help:"Serve the HTTP API: reserve, report, settle, cancel, usage."`
	Relay     relayCmd     `cmd:"" group:"roles" help:"Copy the outbox in Redis to Kafka."`
	Ledger    ledgerCmd    `cmd:"" group:"roles" help:"Fold events from Kafka into PostgreSQL."`
	Reconcile reconcileCmd `cmd:"" group:"roles" help:"Compare meters, end expired holds, freeze on drift."`
	Dev       devCmd       `cmd:"" group:"roles" help:"Run every role in one process on embedded services."`

	FakeProvider fakeproviderCmd `cmd:"" name:"fakeprovider" group:"measure" help:"Serve models without a model: known answers, known tokens, faults on order."`

	Migrate migrateCmd `cmd:"" group:"admin" help:"Create or update the database's tables and Kafka's topics."`
	Tenant  tenantCmd  `cmd:"" group:"admin" help:"Create, list and change tenants."`
	Key     keyCmd     `cmd:"" group:"admin" help:"Create, list and revoke API keys."`
	Quota   quotaCmd   `cmd:"" group:"admin" help:"Show and change quotas and platform limits."`
	Conf    configCmd  `cmd:"" name:"config" group:"admin" help:"Check and print the configuration."`

	Bill   billCmd   `cmd:"" group:"money" help:"Draft, close and export bills."`
	Price  priceCmd  `cmd:"" group:"money" help:"Import and list prices."`
	Replay replayCmd `cmd:"" group:"audit" help:"Fold the log into an empty database and compare."`
	Verify verifyCmd `cmd:"" group:"audit" help:"Recompute the ledger's hashes and sums; name the first wrong batch."`
	Export exportCmd `cmd:"" group:"audit" help:"Write the event log to a file."`

	Load  loadCmd  `cmd:"" group:"measure" help:"Drive a gateway with a request trace."`
	Bench benchCmd `cmd:"" group:"measure" help:"Measure admission, fold, replay and usage query."`

	BenchUpstream benchUpstreamCmd `cmd:"" group:"measure" hidden:"" help:"A model server for measuring what stands in front of one."`

	Chaos chaosCmd `cmd:"" group:"measure" hidden:"" help:"Kill every process in turn while a trace runs; totals must be exact."`

	Version versionCmd `cmd:"" help:"Print the version."`
}

var groups = []kong.Group{
	{Key: "roles", Title: "Roles (each runs alone until it is told to stop):"},
	{Key: "admin", Title: "Administration:"},
	{Key: "money", Title: "Money:"},
	{Key: "audit", Title: "Audit:"},
	{Key: "measure", Title: "Measuring:"},
}

const description = `Tollgate admits, meters and bills what many tenants spend on shared models.

Exit status: 0 done; 1 what was checked is not right; 2 wrong flags, configuration or input;
3 a service is out of reach; 4 refused, it exists or was changed meanwhile; 5 anything else.`

// env is what every command's Run receives.
type env struct {
	ctx context.Context
	in  io.Reader
	*printer
	root *root
}

// config loads and validates the whole configuration.
func (e *env) config() (*config.Config, error) {
	cfg, err := config.Load(config.Source{File: e.configFile(), Env: os.Environ(), Flags: e.root.Set})
	if err != nil {
		return nil, withStatus(ExitUsage, err)
	}
	return cfg, nil
}

func (e *env) configFile() string {
	if e.root.Config != "" {
		return e.root.Config
	}
	return os.Getenv("TOLLGATE_CONFIG")
}

// logger writes to standard error in the configured format.
func (e *env) logger(cfg *config.Config) *slog.Logger {
	level := cfg.Log.SlogLevel()
	if e.root.Verbose {
		level = slog.LevelDebug
	}
	opts := &slog.HandlerOptions{Level: level}
	if cfg.Log.Format == "json" {
		return slog.New(slog.NewJSONHandler(e.err, opts))
	}
	return slog.New(slog.NewTextHandler(e.err, opts))
}

// Run parses args, carries the command out and returns the exit status. ctx
// ends when the process is told to stop.
func Run(ctx context.Context, args []string, streams Streams) int {
	var r root
	p := &printer{out: streams.Out, err: streams.Err}
	exited := -1
	parser, err := kong.New(&r,
		kong.Name("tollgate"),
		kong.Description(description),
		kong.ExplicitGroups(groups),
		kong.Writers(streams.Out, streams.Err),
		kong.Exit(func(status int) { exited = status }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 100}),
	)
	if err != nil {
		p.note("tollgate: %v", err)
		return ExitFailed
	}
	kctx, err := parser.Parse(args)
	if exited >= 0 {
		return exited // --help has printed
	}
	if err != nil {
		p.note("tollgate: %v", err)
		p.note("Try \"tollgate --help\", or --help after a command.")
		return ExitUsage
	}
	p.json = r.JSON
	if err := kctx.Run(&env{ctx: ctx, in: streams.In, printer: p, root: &r}); err != nil {
		p.note("tollgate %s: %v", kctx.Command(), err)
		if h := hint(err); h != "" {
			p.note("%s", h)
		}
		return exitStatus(err)
	}
	return ExitOK
}

// exitStatus maps an error to a status; see errors.go for the table.
func exitStatus(err error) int {
	var status *statusError
	if errors.As(err, &status) {
		return status.status
	}
	for _, known := range knownErrors {
		if errors.Is(err, known.err) {
			return known.status
		}
	}
	return serviceStatus(err)
}
