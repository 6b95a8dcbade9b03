// Command benchpeers puts the gateway beside a rate limiter that many run:
// Envoy's ratelimit, on the same Redis, driven by the same load client over
// HTTP with the same numbers of connections.
//
// The two do not do the same work. Envoy's counts each of two descriptors in a
// fixed window. The gateway checks every layer of a tenant's quota, takes a
// hold, and writes the reservation and its event, all or nothing. The figure
// to look at is what a caller waits for an answer.
//
// It is run by `make bench-peers`, which builds both programs and starts Redis.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"text/tabwriter"
	"time"
)

// row is one measured figure, as `tollgate bench --json` prints them.
type row struct {
	Name     string   `json:"name"`
	Value    float64  `json:"value"`
	Unit     string   `json:"unit"`
	Baseline *float64 `json:"baseline"`
	Ratio    *float64 `json:"ratio"`
}

type options struct {
	redis   string
	envoy   string
	gateway string
	each    time.Duration
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
	var o options
	var asJSON bool
	flags := flag.NewFlagSet("benchpeers", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.redis, "redis", os.Getenv("TOLLGATE_TEST_REDIS"), "host:port of the Redis that both use")
	flags.StringVar(&o.envoy, "envoy", "bin/envoy-ratelimit", "the program of Envoy's ratelimit")
	flags.StringVar(&o.gateway, "gateway", "bin/tollgate", "the program of Tollgate; empty measures the peer alone")
	flags.DurationVar(&o.each, "each", 5*time.Second, "how long to measure with each number of connections")
	flags.BoolVar(&asJSON, "json", false, "print the figures as JSON")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if o.redis == "" {
		return fmt.Errorf("no Redis: give -redis or set TOLLGATE_TEST_REDIS (deploy/with-services does)")
	}

	peer, err := measureEnvoy(ctx, o)
	if err != nil {
		return fmt.Errorf("measure Envoy's ratelimit: %w", err)
	}
	rows := peer
	if o.gateway != "" {
		gateway, err := measureGateway(ctx, o, stderr)
		if err != nil {
			return fmt.Errorf("measure the gateway: %w", err)
		}
		rows = append(compare(gateway, peer), peer...)
	}
	if asJSON {
		encoder := json.NewEncoder(stdout)
		encoder.SetIndent("", "  ")
		return encoder.Encode(rows)
	}
	return table(stdout, rows)
}

// compare gives each figure of the gateway its peer's as a baseline.
func compare(gateway, peer []row) []row {
	for i, g := range gateway {
		for _, p := range peer {
			if p.Name != "peer_envoy_"+suffix(g.Name) || p.Value == 0 {
				continue
			}
			ratio := g.Value / p.Value
			gateway[i].Baseline, gateway[i].Ratio = &p.Value, &ratio
		}
	}
	return gateway
}

func table(w io.Writer, rows []row) error {
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintln(out, "figure\tvalue\tunit\tpeer\tratio\t") // a tabwriter fails at Flush
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
	return out.Flush()
}
