// Command benchpeers puts the gateway beside programs that many run, on the same
// Redis, driven by the same load client with the same loads.
//
// Beside its reserves: Envoy's ratelimit. The two do not do the same work.
// Envoy's counts each of two descriptors in a fixed window. The gateway checks
// every layer of a tenant's quota, takes a hold, and writes the reservation and
// its event, all or nothing. The figure to look at is what a caller waits for an
// answer.
//
// Beside its front door: gateways of model servers, and nginx as a bare hop, in
// front of the same model server. They do less: what each does is printed. A
// peer that cannot be measured is named with the reason.
//
// It is run by `make bench-peers`, which builds and installs the programs and
// starts Redis.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"tollgate/internal/benchupstream"
)

// row is one measured figure, as `tollgate bench --json` prints them.
type row struct {
	Name     string   `json:"name"`
	Value    float64  `json:"value"`
	Unit     string   `json:"unit"`
	Baseline *float64 `json:"baseline"`
	Ratio    *float64 `json:"ratio"`
}

// notMeasured stands in the place of a peer's or a load's figures.
type notMeasured struct {
	Name   string   `json:"name"`
	Value  *float64 `json:"value"` // null
	Reason string   `json:"not_measured"`
}

type options struct {
	redis   string
	envoy   string
	peers   string
	help    string
	gateway string
	only    string
	each    time.Duration
	rounds  int
}

// connections are the numbers that every program is measured with.
var connections = []int{1, 16, 64}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "benchpeers:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) > 0 && args[0] == "upstream" { // it starts itself so
		return serveUpstream(ctx, args[1:])
	}
	var o options
	var asJSON bool
	flags := flag.NewFlagSet("benchpeers", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.redis, "redis", os.Getenv("TOLLGATE_TEST_REDIS"), "host:port of the Redis that all use")
	flags.StringVar(&o.envoy, "envoy", "bin/envoy-ratelimit", "the program of Envoy's ratelimit")
	flags.StringVar(&o.peers, "peers", "bin/peers", "where deploy/peers/install put gateways of model servers")
	flags.StringVar(&o.help, "help-peers", "deploy/peers", "what gateways need beside their packages")
	flags.StringVar(&o.gateway, "gateway", "bin/tollgate", "the program of Tollgate; empty measures the peers alone")
	flags.StringVar(&o.only, "only", "", "reserve or proxy; empty is both")
	flags.DurationVar(&o.each, "each", 5*time.Second, "how long one load lasts")
	flags.IntVar(&o.rounds, "rounds", 3, "how often a load of the front door is repeated")
	flags.BoolVar(&asJSON, "json", false, "print the figures as JSON")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if o.redis == "" {
		return fmt.Errorf("no Redis: give -redis or set TOLLGATE_TEST_REDIS (deploy/with-services does)")
	}
	if o.only != "" && o.only != "reserve" && o.only != "proxy" {
		return fmt.Errorf("-only %q is neither reserve nor proxy", o.only)
	}

	var rows []row
	var without []notMeasured
	if o.only != "proxy" {
		got, err := besideEnvoy(ctx, o, stderr)
		if err != nil {
			return err
		}
		rows = append(rows, got...)
	}
	if o.only != "reserve" {
		got, missing, err := besideProxies(ctx, o, stderr)
		if err != nil {
			return err
		}
		rows, without = append(rows, got...), missing
	}
	if asJSON {
		var all []any
		for _, r := range rows {
			all = append(all, r)
		}
		for _, w := range without {
			all = append(all, w)
		}
		encoder := json.NewEncoder(stdout)
		encoder.SetIndent("", "  ")
		return encoder.Encode(all)
	}
	return table(stdout, rows, without)
}

func serveUpstream(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("benchpeers upstream", flag.ContinueOnError)
	listen := flags.String("listen", "127.0.0.1:0", "address")
	if err := flags.Parse(args); err != nil {
		return err
	}
	server, err := benchupstream.New(*listen)
	if err != nil {
		return err
	}
	return server.Serve(ctx)
}

func besideEnvoy(ctx context.Context, o options, stderr io.Writer) ([]row, error) {
	peer, err := measureEnvoy(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("measure Envoy's ratelimit: %w", err)
	}
	if o.gateway == "" {
		return peer, nil
	}
	gateway, err := measureGateway(ctx, o, reservePrefix, stderr)
	if err != nil {
		return nil, fmt.Errorf("measure the gateway: %w", err)
	}
	compare(gateway, reservePrefix, peer, "peer_envoy_")
	return append(gateway, peer...), nil
}

func besideProxies(ctx context.Context, o options, stderr io.Writer) (rows []row, without []notMeasured, err error) {
	peers, without, err := measureProxies(ctx, o, stderr)
	if err != nil || o.gateway == "" {
		return peers, without, err
	}
	gateway, err := measureGateway(ctx, o, proxyPrefix, stderr)
	if err != nil {
		return nil, nil, fmt.Errorf("measure the front door: %w", err)
	}
	for _, p := range proxyPeers {
		compare(peers, p.prefix(), gateway, proxyPrefix)
	}
	return append(gateway, peers...), without, nil
}

// compare gives each row whose name begins with prefix the other program's
// figure of the same name as a baseline.
func compare(rows []row, prefix string, others []row, othersPrefix string) {
	for i, r := range rows {
		name, ok := strings.CutPrefix(r.Name, prefix)
		if !ok {
			continue
		}
		for _, other := range others {
			// What is added may be below zero on a noisy machine: no ratio says anything then.
			if other.Name != othersPrefix+name || other.Value <= 0 || r.Value < 0 {
				continue
			}
			ratio := r.Value / other.Value
			rows[i].Baseline, rows[i].Ratio = &other.Value, &ratio
		}
	}
}

func table(w io.Writer, rows []row, without []notMeasured) error {
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintln(out, "figure\tvalue\tunit\tbaseline\tratio\t") // a tabwriter fails at Flush
	for _, r := range rows {
		baseline, ratio := "", ""
		if r.Baseline != nil {
			baseline = fmt.Sprintf("%.2f", *r.Baseline)
		}
		if r.Ratio != nil {
			ratio = fmt.Sprintf("%.2f", *r.Ratio)
		}
		_, _ = fmt.Fprintf(out, "%s\t%.2f\t%s\t%s\t%s\t\n", r.Name, r.Value, r.Unit, baseline, ratio)
	}
	if err := out.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprint(w, legend(rows, without))
	return err
}

// legend says what the baselines are, what each peer does, and what was not
// measured.
func legend(rows []row, without []notMeasured) string {
	var text strings.Builder
	for _, l := range []struct{ prefix, baseline string }{
		{reservePrefix, "Envoy's ratelimit"},
		{proxyPrefix, "the model server without a hop"},
	} {
		if slices.ContainsFunc(rows, func(r row) bool { return strings.HasPrefix(r.Name, l.prefix) }) {
			fmt.Fprintf(&text, "\nbaseline of %s…: %s", l.prefix, l.baseline)
		}
	}
	for _, p := range proxyPeers {
		if slices.ContainsFunc(rows, func(r row) bool { return strings.HasPrefix(r.Name, p.prefix()) }) {
			fmt.Fprintf(&text, "\nbaseline of %s…: %s…; it %s", p.prefix(), proxyPrefix, p.does)
		}
	}
	for _, w := range without {
		fmt.Fprintf(&text, "\nnot measured: %s: %s", strings.TrimSuffix(w.Name, "_"), w.Reason)
	}
	if text.Len() > 0 {
		text.WriteByte('\n')
	}
	return text.String()
}
