package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"strings"
)

// gatewayPrefix is what the names of the gateway's figures begin with in
// `tollgate bench`.
const gatewayPrefix = "reserve_http_"

// measureGateway runs the gateway's own benchmark, which uses the same load
// client and, given by its environment, the same Redis.
func measureGateway(ctx context.Context, o options, stderr io.Writer) ([]row, error) {
	var out bytes.Buffer
	bench := exec.CommandContext(ctx, o.gateway, "bench", "--only", "reserve_http", "--json") //nolint:gosec // the operator names the program
	bench.Stdout, bench.Stderr = &out, stderr
	if err := bench.Run(); err != nil {
		return nil, fmt.Errorf("%s: %w", bench, err)
	}
	var all, rows []row
	if err := json.Unmarshal(out.Bytes(), &all); err != nil {
		return nil, fmt.Errorf("read what %s printed: %w", bench, err)
	}
	for _, r := range all {
		if strings.HasPrefix(r.Name, gatewayPrefix) {
			rows = append(rows, r)
		}
	}
	if len(rows) == 0 {
		return nil, fmt.Errorf("%s printed no figure named %s…", bench, gatewayPrefix)
	}
	return rows, nil
}

// suffix is what a figure of the gateway shares with its peer's: "64_rps" of
// "reserve_http_64_rps".
func suffix(name string) string { return strings.TrimPrefix(name, gatewayPrefix) }
