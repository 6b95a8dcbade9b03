package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"tollgate/internal/drill"
	"tollgate/internal/fakeprovider"
	"tollgate/internal/trace"
)

// modelServer is the model server of `tollgate dev`. Its address is taken before
// the gateway starts, whose table names it; it serves once the gateway is there,
// to which it reports its meters. Who connects before that waits.
type modelServer struct {
	table    string // file
	listener net.Listener
	server   *fakeprovider.Server
	http     *http.Server
	ended    chan error
}

// newModelServer takes an address and writes the table of upstreams.
func newModelServer() (*modelServer, error) {
	dir, err := os.MkdirTemp("", "tollgate-models-")
	if err != nil {
		return nil, fmt.Errorf("make a directory for the table of upstreams: %w", err)
	}
	m := &modelServer{table: filepath.Join(dir, "upstreams.yaml"), ended: make(chan error, 1)}
	if m.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	// Its words are tokens of this encoding, too: what is counted here, of clients
	// that leave, is close.
	if err := os.WriteFile(m.table, []byte(modelTable(m.listener.Addr().String(), "o200k_base")), 0o600); err != nil {
		return nil, errors.Join(err, m.close())
	}
	return m, nil
}

// modelTable is the table of upstreams of a drill: its two models are served at
// one address, in a dialect each. Their tokens are said to be those of an encoding
// where one is named.
func modelTable(address, encoding string) string {
	tokenizer := ""
	if encoding != "" {
		tokenizer = "\n    tokenizer: " + encoding
	}
	return fmt.Sprintf(`# One model server, in two dialects.
upstreams:
  - {name: demo-openai, dialect: openai, url: "http://%[1]s/v1", identify: true}
  - {name: demo-anthropic, dialect: anthropic, url: "http://%[1]s", identify: true}
models:
  - name: %[2]s%[4]s
    aliases: [gpt-4o-mini] # the names that docs/clients.md asks for
    deployments: [{upstream: demo-openai}]
  - name: %[3]s%[4]s
    aliases: [claude-sonnet-4-5]
    deployments: [{upstream: demo-anthropic}]
`, address, drill.Model, drill.ClaudeModel, tokenizer)
}

// serve begins to answer, as fast as a model of middle size would.
func (m *modelServer) serve(gateway, meterKey string, log *slog.Logger) {
	m.server = fakeprovider.New(fakeprovider.Options{
		Seed: 1, Models: []string{drill.Model, drill.ClaudeModel},
		FirstToken: 30 * time.Millisecond, PrefillPerSecond: 20_000, DecodePerSecond: 150, GPUInUsage: true,
		Meters: fakeprovider.MeterOptions{URL: gateway, Key: meterKey, Pool: "demo"}, Log: log,
	})
	m.http = &http.Server{Handler: m.server, ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug)}
	go func() { m.ended <- m.http.Serve(m.listener) }()
}

// generated is what it did for a tenant, by its own log.
func (m *modelServer) generated(tenant string) trace.Totals {
	t := m.server.Totals().ByTenant[tenant]
	return trace.Totals{Requests: t.Requests, InputTokens: t.Input, OutputTokens: t.Output}
}

// reported says that the gateway has all of its readings.
func (m *modelServer) reported() bool {
	return m.server.Running() == 0 && m.server.Totals().Meters.Pending == 0
}

// stop ends it after its gateway. What it could not report is nobody's loss.
func (m *modelServer) stop(log *slog.Logger) {
	if m.server != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if m.http.Shutdown(ctx) != nil {
			_ = m.http.Close() // the patience is over
		}
		if err := <-m.ended; !errors.Is(err, http.ErrServerClosed) {
			log.Warn("the model server ended", "error", err)
		}
		if err := m.server.Stop(ctx); err != nil {
			log.Debug("stop the model server", "error", err)
		}
	}
	if err := m.close(); err != nil {
		log.Warn("remove the table of upstreams", "error", err)
	}
}

func (m *modelServer) close() error {
	_ = m.listener.Close() // by the server, most often
	return os.RemoveAll(filepath.Dir(m.table))
}
