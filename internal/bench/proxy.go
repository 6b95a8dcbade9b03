package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"tollgate/internal/hop"
	"tollgate/internal/loadclient"
)

// proxyRounds is how often each load is repeated, straight at the model server
// and through the gateway in turns.
const proxyRounds = 3

// proxyModel is what clients call the model of a pace.
func proxyModel(p hop.Pace) string { return "bench-" + p.Word() }

// proxy measures the front door of a gateway in a process of its own, with
// authentication, reservation, metering and settlement on the real services.
func proxy(ctx context.Context, opts Options) (figures []Figure, err error) {
	s, err := newSite(ctx, opts)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	upstream, err := hop.StartUpstream(ctx, opts.Binary, "bench-upstream")
	if err != nil {
		return nil, err
	}
	defer upstream.Stop()
	dir, err := os.MkdirTemp("", "tollgate-bench-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	table := filepath.Join(dir, "upstreams.yaml")
	if err := os.WriteFile(table, upstreamTable(upstream.Addr), 0o600); err != nil {
		return nil, err
	}
	gw, err := s.startGateway(ctx, opts, "proxy.upstreams_file="+table)
	if err != nil {
		return nil, err
	}
	defer gw.stop()

	through := s.frontDoor(gw)
	if err := s.checkAccounts(ctx, gw, through); err != nil {
		return nil, err
	}
	for _, load := range hop.Loads {
		opts.Note("  %s …", load.Name)
		got, err := load.Run(ctx, hop.Direct(upstream.Addr), through, hop.Options{Each: opts.Each, Rounds: proxyRounds})
		if err != nil {
			return figures, err
		}
		for _, f := range got {
			figure := Figure{Name: "proxy_" + f.Name, Value: f.Value, Unit: f.Unit}
			if f.Baseline != nil {
				figure = figure.against(*f.Baseline, "straight at the model server, same client")
			}
			figures = append(figures, figure)
		}
	}
	return figures, nil
}

// upstreamTable has one upstream and one model for each pace.
func upstreamTable(addr string) []byte {
	var upstreams, models strings.Builder
	for _, p := range hop.Paces {
		fmt.Fprintf(&upstreams, "  - {name: %s, dialect: openai, url: \"http://%s%s/v1\"}\n", p.Word(), addr, p)
		fmt.Fprintf(&models, "  - {name: %s, tokenizer: o200k_base, deployments: [{upstream: %s, model: bench}]}\n", proxyModel(p), p.Word())
	}
	return []byte("upstreams:\n" + upstreams.String() + "models:\n" + models.String())
}

// frontDoor is the gateway as a hop: tenants come in the shares of their
// weights, each with its own key.
func (s *site) frontDoor(gw *gateway) hop.Target {
	return hop.Target{Addr: gw.addr, Root: gw.cmd.Process.Pid, Requests: func(p hop.Pace, stream bool) [][]byte {
		body := hop.Body(proxyModel(p), stream)
		byTenant := make([][]byte, len(s.secrets))
		for i, secret := range s.secrets {
			byTenant[i] = loadclient.AppendRequest(nil, http.MethodPost, "/v1/chat/completions", gw.addr, "Bearer "+secret, body)
		}
		var requests [][]byte
		for _, k := range shares() {
			requests = append(requests, byTenant[k])
		}
		return requests
	}}
}

// How many requests prove that what is measured is metered.
const (
	checkedAnswers = 200
	checkedStreams = 100
)

// checkAccounts sends a known number of requests and fails when the tenants are
// not charged for exactly these: a figure for a door that does not count would
// be worth nothing.
func (s *site) checkAccounts(ctx context.Context, gw *gateway, through hop.Target) error {
	hour := time.Now().Truncate(time.Hour)
	before, _, err := s.tokens(ctx, gw)
	if err != nil {
		return err
	}
	err = errors.Join(through.Send(ctx, hop.Prompt, false, checkedAnswers), through.Send(ctx, hop.Prompt, true, checkedStreams))
	if err != nil {
		return err
	}
	const want = checkedAnswers*hop.AnswerTokens + checkedStreams*hop.StreamTokens
	var after, held int64
	for range 100 { // the client has its answer before the gateway has settled
		if after, held, err = s.tokens(ctx, gw); err != nil {
			return err
		}
		if held == 0 && after-before == want {
			return nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	if !time.Now().Truncate(time.Hour).Equal(hour) {
		return errors.New("the hour turned while charges were checked, and took the oldest one's use with it: run it again")
	}
	return fmt.Errorf("%d answers and %d streams of the front door were charged %d tokens, and %d are still held; want %d and 0",
		checkedAnswers, checkedStreams, after-before, held, want)
}

// tokens is what all tenants have used in 30 days, and what is held.
func (s *site) tokens(ctx context.Context, gw *gateway) (used, held int64, err error) {
	for _, secret := range s.secrets {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+gw.addr+"/v1/quota/usage", http.NoBody)
		if err != nil {
			return 0, 0, err
		}
		req.Header.Set("Authorization", "Bearer "+secret)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return 0, 0, err
		}
		var usage struct {
			Limits []struct {
				Name       string
				Used, Held int64
			}
		}
		err = json.NewDecoder(res.Body).Decode(&usage)
		_ = res.Body.Close()
		if res.StatusCode != http.StatusOK {
			err = errors.Join(err, errors.New(res.Status))
		}
		if err != nil {
			return 0, 0, fmt.Errorf("read a tenant's usage: %w", err)
		}
		for _, l := range usage.Limits {
			if l.Name == "tokens-30d" {
				used, held = used+l.Used, held+l.Held
			}
		}
	}
	return used, held, nil
}
