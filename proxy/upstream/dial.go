package upstream

import (
	"context"
	"errors"
	"net"
	"time"
)

// DialFunc makes a connection.
type DialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// Dialer makes connections within a time-out; 0: the system's.
//
// A process that is not run for a while, on a machine that is short of
// processors, finds connections that were made long ago and their time-outs at
// the same moment. That says nothing of the server, and with many requests it
// would open a breaker at once. So a time-out that itself came late is not
// believed, and the server is called once more.
func Dialer(timeout time.Duration) DialFunc {
	return believing(timeout, (&net.Dialer{Timeout: timeout, KeepAlive: 30 * time.Second}).DialContext)
}

func believing(timeout time.Duration, dial DialFunc) DialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		began := time.Now()
		c, err := dial(ctx, network, address)
		late := timeout > 0 && time.Since(began) > timeout+timeout/20
		var failed net.Error
		if late && ctx.Err() == nil && errors.As(err, &failed) && failed.Timeout() {
			return dial(ctx, network, address)
		}
		return c, err
	}
}
