// Command tollgate is every role and tool of Tollgate; see internal/cli.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"tollgate/internal/cli"
)

func main() {
	// The first signal asks for an orderly end, the second ends at once.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	os.Exit(cli.Run(ctx, os.Args[1:], cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}))
}
