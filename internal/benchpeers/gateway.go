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

// What the names of the gateway's figures begin with in `tollgate bench`.
const (
	reservePrefix = "reserve_http_"
	proxyPrefix   = "proxy_"
)

// measureGateway runs the part of the gateway's own benchmark whose figures'
// names begin with prefix. It uses the same load client and, given by its environment, the same Redis.
func measureGateway(ctx context.Context, o options, prefix string, stderr io.Writer) ([]row, error) {
	var out bytes.Buffer
	bench := exec.CommandContext(ctx, o.gateway, "bench", "--only", strings.TrimSuffix(prefix, "_"), "--each", o.each.String(), "--json") //nolint:gosec // the operator names the program
	bench.Stdout, bench.Stderr = &out, stderr
	if err := bench.Run(); err != nil {
		return nil, fmt.Errorf("%s: %w", bench, err)
	}
	var all, rows []row
	if err := json.Unmarshal(out.Bytes(), &all); err != nil {
		return nil, fmt.Errorf("read what %s printed: %w", bench, err)
	}
	for _, r := range all {
		if strings.HasPrefix(r.Name, prefix) {
			rows = append(rows, r)
		}
	}
	if len(rows) == 0 {
		return nil, fmt.Errorf("%s printed no figure named %s…", bench, prefix)
	}
	return rows, nil
}
