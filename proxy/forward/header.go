package forward

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"tollgate/admission"
	"tollgate/admission/answer"
	"tollgate/tenancy"
)

// Header fields of a request that do not go upstream: those of one hop, what
// the client authenticated with, what says where it came from, and what this
// package sets itself. Its idempotency key is one among its tenant's: an upstream
// would take two tenants' equal keys for one request of the account they share.
var keptFromUpstream = set(
	"Connection", "Proxy-Connection", "Keep-Alive", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Expect",
	"Proxy-Authenticate", "Proxy-Authorization",
	"Authorization", "X-Api-Key", "Api-Key", "X-Goog-Api-Key", "Cookie", "Openai-Organization", "Openai-Project",
	"Ocp-Apim-Subscription-Key", "X-Goog-User-Project", "X-Amz-Security-Token",
	"Accept-Encoding", "Content-Length", "Content-Type", "Content-Encoding", "Host",
	"Forwarded", "Via", "X-Real-Ip", "X-Client-Ip", "True-Client-Ip", "Cf-Connecting-Ip", "Fastly-Client-Ip", "X-Request-Id", "Idempotency-Key", "X-Idempotency-Key",
	// What would make another request of it at some servers, or a part of its answer.
	"X-Http-Method-Override", "X-Http-Method", "X-Method-Override", "X-Original-Url", "X-Rewrite-Url", "Azureml-Model-Deployment", "Range",
)

// keptPrefixes begin fields that do not go upstream either: ours, where the
// request came from, and who sent it as a proxy before the gateway vouches for it
// (Cloudflare, Google's IAP, AWS's load balancers, Azure's App Service).
var keptPrefixes = []string{
	"X-Tollgate-", "X-Forwarded-", "If-", "Cf-", "X-Goog-Iap-", "X-Goog-Authenticated-User-", "X-Amzn-Oidc-", "X-Ms-Client-Principal", "X-Ms-Token-",
}

// Header fields of an answer that do not go to the client: those of one hop,
// what names the operator's own account, the upstream's limits (the tenant's
// own take their place), and what belongs to the upstream's host.
var keptFromClient = set(
	"Connection", "Proxy-Connection", "Keep-Alive", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
	"Proxy-Authenticate", "Proxy-Authorization", "Proxy-Authentication-Info", "Www-Authenticate",
	"Set-Cookie", "Openai-Organization", "Openai-Project", "Anthropic-Organization-Id",
	"Server", "Alt-Svc", "Strict-Transport-Security", "Report-To", "Nel", "Via", "X-Powered-By", "Date",
	"Access-Control-Allow-Origin", "Access-Control-Allow-Credentials", "Access-Control-Expose-Headers",
	"Content-Length", "Content-Encoding", "X-Request-Id", "Ratelimit", "Ratelimit-Policy",
)

func set(names ...string) map[string]struct{} {
	m := make(map[string]struct{}, len(names))
	for _, name := range names {
		m[name] = struct{}{}
	}
	return m
}

// upstreamHeader is the header that goes upstream, without what the dialect and
// the try add.
func upstreamHeader(from http.Header) http.Header {
	to := make(http.Header, len(from)+8)
	for name, values := range from {
		// Servers of the CGI family take x_forwarded_for for X-Forwarded-For.
		if _, kept := keptFromUpstream[name]; kept || strings.IndexByte(name, '_') >= 0 || hasAnyPrefix(name, keptPrefixes...) {
			continue
		}
		to[name] = values
	}
	dropNamed(to, from["Connection"])
	to["Accept-Encoding"] = []string{"identity"}
	if _, ok := to["User-Agent"]; !ok {
		to["User-Agent"] = nil // else net/http sends its own
	}
	// A repeat costs nobody: one reservation, charged once. So net/http may repeat a
	// request by itself whose connection turned out to be closed; a list without
	// values says so and is not sent.
	to["X-Idempotency-Key"] = nil
	return to
}

// keptFromSuccess are fields that would make a client of a good answer wait,
// repeat or go elsewhere.
var keptFromSuccess = []string{"Retry-After", "Retry-After-Ms", "X-Should-Retry", "Location", "Content-Location", "Refresh"}

// answerHeader copies an upstream's header to the client's.
func answerHeader(to, from http.Header) {
	for name, values := range from {
		if _, kept := keptFromClient[name]; kept || hasAnyPrefix(name, "X-Ratelimit-", "Anthropic-Ratelimit-", "X-Tollgate-") {
			continue
		}
		to[name] = values
	}
	dropNamed(to, from["Connection"])
	for _, name := range [...]string{"X-Request-Id", "Request-Id"} {
		if id := from[name]; len(id) > 0 {
			to["X-Tollgate-Upstream-Request-Id"] = id
		}
	}
}

func hasAnyPrefix(name string, prefixes ...string) bool {
	for _, p := range prefixes {
		if strings.HasPrefix(name, p) {
			return true
		}
	}
	return false
}

// dropNamed drops the fields that a Connection field names: they are of one hop.
func dropNamed(header http.Header, connection []string) {
	for _, value := range connection {
		for name := range strings.SplitSeq(value, ",") {
			if name = strings.TrimSpace(name); name != "" {
				delete(header, http.CanonicalHeaderKey(name))
			}
		}
	}
}

// lineEnds are encoded ends of a line: no parameter of any dialect has one, and a
// server that decodes too early would take what follows for a header.
func lineEnds(pair string) bool {
	lower := strings.ToLower(pair)
	return strings.Contains(lower, "%0d") || strings.Contains(lower, "%0a")
}

// credentialParameters are query parameters that carry keys.
var credentialParameters = set("key", "api_key", "api-key", "apikey", "access_token", "token")

// withoutCredentials drops the credentials from a query, and what no server
// should have to read, and leaves the rest as it is.
func withoutCredentials(query string) string {
	if query == "" {
		return ""
	}
	kept := make([]string, 0, 4)
	for pair := range strings.SplitSeq(query, "&") {
		name, _, _ := strings.Cut(pair, "=")
		plain, err := url.QueryUnescape(name)
		if err != nil || lineEnds(pair) {
			continue // what cannot be read cannot be known to be harmless
		}
		if _, secret := credentialParameters[strings.ToLower(plain)]; !secret {
			kept = append(kept, pair)
		}
	}
	return strings.Join(kept, "&")
}

// ownHeader sets what every answer says of the request.
func (c *call) ownHeader() {
	f := fields{to: c.w.Header()}
	f.add("X-Request-Id", c.requestID)
	if c.dialect.Name() == "anthropic" {
		f.add("Request-Id", c.requestID) // where that dialect's clients look
	}
	if c.reserved != nil {
		f.add("X-Tollgate-Reservation", c.reserved.ID)
		c.quotaHeader(&f, c.reserved.Left)
	}
	if c.h.opts.ShowUpstream && c.ex.Upstream != "" {
		f.add("X-Tollgate-Upstream", c.ex.Upstream)
	}
	if c.h.isDraining() {
		f.add("Connection", "close")
	}
	f.set()
}

// fields collects header fields and sets them with few allocations.
type fields struct {
	to     http.Header
	n      int
	names  [12]string
	values [12]string
	text   []byte // of the values that are put together here
	ends   [12]int
}

func (f *fields) add(name, value string) {
	f.names[f.n], f.values[f.n] = name, value
	f.end()
}

// put adds a field whose value was appended to text since the last one.
func (f *fields) put(name string) {
	f.names[f.n] = name
	f.end()
}

func (f *fields) end() {
	f.ends[f.n] = len(f.text)
	f.n++
}

func (f *fields) set() {
	text, from := string(f.text), 0
	values := make([]string, f.n)
	for i := range f.n {
		values[i] = f.values[i]
		if f.ends[i] > from {
			values[i] = text[from:f.ends[i]]
			from = f.ends[i]
		}
		f.to[f.names[i]] = values[i : i+1 : i+1]
	}
}

// quotaHeader announces the standing of the caller's own limits.
func (c *call) quotaHeader(f *fields, left []admission.Left) {
	own := false
	f.text = make([]byte, 0, 512)
	for i := range left {
		if l := &left[i]; !l.Constraint.Pool {
			if own {
				f.text = append(f.text, ", "...)
			}
			own = true
			f.text = answer.AppendPolicy(f.text, &l.Constraint)
		}
	}
	if !own {
		return
	}
	f.put("Ratelimit-Policy")
	own = false
	for i := range left {
		if l := &left[i]; !l.Constraint.Pool {
			if own {
				f.text = append(f.text, ", "...)
			}
			own = true
			var wait int64
			if l.Reset > 0 {
				wait = answer.Seconds(l.Reset)
			}
			f.text = answer.AppendRemaining(f.text, &l.Constraint, l.Remaining, wait)
		}
	}
	f.put("Ratelimit")
	if c.dialect.Name() == "openai" {
		openAILimits(f, left)
	}
}

// openAILimits sets the header fields that OpenAI's clients know. They have room
// for one limit of each kind: that of which least is left.
func openAILimits(f *fields, left []admission.Left) {
	var requests, tokens *admission.Left
	for i := range left {
		l := &left[i]
		if l.Constraint.Pool || l.Constraint.Limit.Kind == tenancy.KindLease {
			continue
		}
		switch l.Constraint.Limit.Metric {
		case tenancy.MetricRequests:
			requests = tighter(requests, l)
		case tenancy.MetricTokens:
			tokens = tighter(tokens, l)
		}
	}
	if requests != nil {
		openAILimit(f, "X-Ratelimit-Limit-Requests", "X-Ratelimit-Remaining-Requests", "X-Ratelimit-Reset-Requests", requests)
	}
	if tokens != nil {
		openAILimit(f, "X-Ratelimit-Limit-Tokens", "X-Ratelimit-Remaining-Tokens", "X-Ratelimit-Reset-Tokens", tokens)
	}
}

func tighter(a, b *admission.Left) *admission.Left {
	if a == nil || b.Remaining < a.Remaining {
		return b
	}
	return a
}

func openAILimit(f *fields, limit, remaining, reset string, l *admission.Left) {
	f.text = strconv.AppendInt(f.text, answer.Effective(&l.Constraint), 10)
	f.put(limit)
	f.text = strconv.AppendInt(f.text, max(l.Remaining, 0), 10)
	f.put(remaining)
	f.text = append(f.text, max(l.Reset, 0).Round(time.Millisecond).String()...) // "6m0s"
	f.put(reset)
}
