package route

import (
	"net"
	"net/http"
	"time"
)

// idlePerUpstream is how many unused connections are kept to an upstream that
// has no bound of its own.
const idlePerUpstream = 512

// newClient makes the client of an upstream. Time-outs of a whole request are
// the caller's: a stream may last.
func newClient(up *Upstream) *http.Client {
	dialer := &net.Dialer{Timeout: up.ConnectTimeout, KeepAlive: 30 * time.Second}
	t := &http.Transport{
		DialContext:           dialer.DialContext,
		TLSHandshakeTimeout:   up.ConnectTimeout,
		ResponseHeaderTimeout: up.ResponseTimeout,
		ExpectContinueTimeout: time.Second,
		MaxConnsPerHost:       up.MaxConnections,
		MaxIdleConnsPerHost:   idlePerUpstream,
		IdleConnTimeout:       90 * time.Second,
		// Bodies pass as they are: whoever reads them asks for identity.
		DisableCompression:     true,
		ForceAttemptHTTP2:      true,
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: 15 * time.Second},
		MaxResponseHeaderBytes: 64 << 10,
		// An open stream holds both for as long as it lasts.
		ReadBufferSize:  4 << 10,
		WriteBufferSize: 4 << 10,
	}
	if up.EnvironmentProxy {
		t.Proxy = http.ProxyFromEnvironment
	}
	return &http.Client{
		Transport: t,
		// A redirect could carry the key to another host.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// sameUpstream finds the upstream of the old table whose connections serve the
// new one as they are.
func sameUpstream(old []*Upstream, up *Upstream) *Upstream {
	for _, o := range old {
		if o.Server.Base == up.Server.Base && o.Name == up.Name && o.ConnectTimeout == up.ConnectTimeout &&
			o.ResponseTimeout == up.ResponseTimeout && o.MaxConnections == up.MaxConnections && o.EnvironmentProxy == up.EnvironmentProxy {
			return o
		}
	}
	return nil
}
