package cli

import (
	"encoding/json"

	"tollgate/internal/benchupstream"
)

// benchUpstreamCmd is the model server that `tollgate bench` starts, in a
// process of its own, so that its processor time is not the gateway's.
type benchUpstreamCmd struct {
	Listen string `help:"Address." default:"127.0.0.1:0" placeholder:"ADDRESS"`
}

// Help implements kong.HelpProvider.
func (benchUpstreamCmd) Help() string {
	return `Answers chat completions with a fixed text; how fast stands in the path: /delay-20ms/v1/… answers after
20 ms, /every-2ms/chunks-40/v1/… streams 40 chunks 2 ms apart. "tollgate bench" starts it by itself.

Example:
  tollgate bench-upstream --listen 127.0.0.1:9096`
}

// Run serves until it is told to stop, and prints what it did.
func (c *benchUpstreamCmd) Run(e *env) error {
	server, err := benchupstream.New(c.Listen)
	if err != nil {
		return err
	}
	e.note("Serving on %s", server.Addr())
	if err := server.Serve(e.ctx); err != nil {
		return err
	}
	return json.NewEncoder(e.out).Encode(server.Stats())
}
