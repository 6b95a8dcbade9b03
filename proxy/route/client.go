package route

import (
	"net/http"
	"time"

	"tollgate/proxy/upstream"
)

// idlePerUpstream is how many unused connections are kept to an upstream that
// has no bound of its own.
const idlePerUpstream = 512

const (
	idleConnection = 90 * time.Second // unused for so long, a connection is closed
	maxHeaderBytes = 64 << 10         // of an answer
)

// newClient makes the client of an upstream. Time-outs of a whole request are
// the caller's: a stream may last. What is reached without TLS and without a
// proxy needs little of net/http's transport, and is spared the rest.
func newClient(up *Upstream) *http.Client {
	return &http.Client{
		Transport: newTransport(up),
		// A redirect could carry the key to another host.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

func newTransport(up *Upstream) http.RoundTripper {
	if !up.EnvironmentProxy {
		lean, err := upstream.New(up.Server.Base, upstream.Options{
			Dial: upstream.Dialer(up.ConnectTimeout), ResponseTimeout: up.headTimeout(),
			MaxConnections: up.MaxConnections, MaxIdle: idlePerUpstream, IdleTimeout: idleConnection, MaxHeaderBytes: maxHeaderBytes,
		})
		if err == nil { // else it is not for such addresses
			return lean
		}
	}
	t := &http.Transport{
		DialContext:           upstream.Dialer(up.ConnectTimeout),
		TLSHandshakeTimeout:   up.ConnectTimeout,
		ResponseHeaderTimeout: up.headTimeout(),
		ExpectContinueTimeout: time.Second,
		MaxConnsPerHost:       up.MaxConnections,
		MaxIdleConnsPerHost:   idlePerUpstream,
		IdleConnTimeout:       idleConnection,
		// Bodies pass as they are: whoever reads them asks for identity.
		DisableCompression:     true,
		ForceAttemptHTTP2:      true,
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: 15 * time.Second},
		MaxResponseHeaderBytes: maxHeaderBytes,
		// An open stream holds both for as long as it lasts.
		ReadBufferSize:  4 << 10,
		WriteBufferSize: 4 << 10,
	}
	if up.EnvironmentProxy {
		t.Proxy = http.ProxyFromEnvironment
	}
	return t
}

// headTimeout is the longest that any answer's header may take: connections are
// shared by streams and others.
func (up *Upstream) headTimeout() time.Duration { return max(up.ResponseTimeout, up.AnswerTimeout) }

// sameUpstream finds the upstream of the old table whose connections serve the
// new one as they are.
func sameUpstream(old []*Upstream, up *Upstream) *Upstream {
	for _, o := range old {
		if o.Server.Base == up.Server.Base && o.Name == up.Name && o.ConnectTimeout == up.ConnectTimeout &&
			o.headTimeout() == up.headTimeout() && o.MaxConnections == up.MaxConnections && o.EnvironmentProxy == up.EnvironmentProxy {
			return o
		}
	}
	return nil
}
