package httpapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"sync"

	"github.com/danielgtaylor/huma/v2"
)

//go:generate go test -run TestOpenAPIFileIsCurrent . -update

// document is the OpenAPI document in both of its served forms.
type document struct{ json, yaml []byte }

// operation is what the document says of a route beyond its types.
type operation struct {
	route   route
	id      string
	tag     string
	summary string
	detail  string
	body    any
	answers map[int]any
	// refusals are the problem statuses particular to the route; those that any
	// route of its kind can have are added.
	refusals []int
	query    []*huma.Param
}

var operations = []operation{
	{
		route: routeReservations, id: "reserve", tag: "reservations", summary: "Reserve",
		detail: "Holds a request's worst case in every layer at once, or refuses and changes nothing. " +
			"Repeating a request with its id and body returns the same reservation with status 200 and `Idempotent-Replayed: true`; another body under the id is 422.",
		body: ReserveBody{}, answers: map[int]any{201: ReservationAnswer{}, 200: ReservationAnswer{}},
		refusals: []int{402, 409, 422, 429},
	},
	{
		route: routeReservation, id: "get-reservation", tag: "reservations", summary: "Read a reservation",
		detail:  "Returns where a reservation of the caller's tenant stands.",
		answers: map[int]any{200: ReservationAnswer{}}, refusals: []int{404},
	},
	{
		route: routeUsage, id: "report-usage", tag: "reservations", summary: "Report progress",
		detail: "Records cumulative figures (so far, not since the last report), so a repeat is harmless, and extends the hold. " +
			"An answer with `stop` asks the caller to end the work and settle.",
		body: UsageBody{}, answers: map[int]any{200: ReservationAnswer{}}, refusals: []int{404, 409, 422},
	},
	{
		route: routeSettle, id: "settle", tag: "reservations", summary: "Settle",
		detail: "Replaces the hold by what was really used. The same figures again change nothing; others are 409 `already_settled` with the figures that stand.",
		body:   SettleBody{}, answers: map[int]any{200: ReservationAnswer{}}, refusals: []int{404, 409, 422},
	},
	{
		route: routeCancel, id: "cancel", tag: "reservations", summary: "Cancel",
		detail: "Ends the hold and charges what was consumed so far.",
		body:   CancelBody{}, answers: map[int]any{200: ReservationAnswer{}}, refusals: []int{404, 409, 422},
	},
	{
		route: routeCancelRequest, id: "cancel-request", tag: "reservations", summary: "Cancel by request id",
		detail: "As cancel, for a caller that has no reservation id. A request id that was never seen is marked: its reserve, should it arrive later, is refused.",
		body:   CancelBody{}, answers: map[int]any{200: ReservationAnswer{}}, refusals: []int{409, 422},
	},
	{
		route: routeQuotaUsage, id: "quota-usage", tag: "quota", summary: "Read quota usage",
		detail:  "Every limit of the caller's own tenant: what is used, held and left, when it resets, and the last refusal.",
		answers: map[int]any{200: QuotaUsage{}}, refusals: []int{404, 422},
		query: []*huma.Param{
			{Name: "tenant_id", In: "query", Description: "Another tenant; operators only.", Schema: &huma.Schema{Type: huma.TypeString}},
			{Name: "endpoint", In: "query", Description: "Also the limits that are kept for each endpoint, for this one.", Schema: &huma.Schema{Type: huma.TypeString}},
			{Name: "model", In: "query", Description: "Also the limits that are kept for each model, for this one.", Schema: &huma.Schema{Type: huma.TypeString}},
		},
	},
	{
		route: routeMeters, id: "report-meters", tag: "meters", summary: "Report meter readings",
		detail: "Takes readings of model servers and GPU agents, with a key of role meter. The answer comes when the log has them; a batch is taken as a whole and may be sent again.",
		body:   MetersBody{}, answers: map[int]any{202: MetersAccepted{}}, refusals: []int{422},
	},
	{route: routeHealth, id: "health", tag: "health", summary: "Is the process alive", answers: map[int]any{200: Status{}}},
	{route: routeReady, id: "ready", tag: "health", summary: "Can reserves be decided", answers: map[int]any{200: Status{}}, refusals: []int{503}},
}

// theDocument is the document, which is the same for every server.
var theDocument = sync.OnceValues(newDocument)

// newDocument makes the OpenAPI 3.1 document.
func newDocument() (document, error) {
	registry := huma.NewMapRegistry("#/components/schemas/", huma.DefaultSchemaNamer)
	api := &huma.OpenAPI{
		OpenAPI: "3.1.0",
		Info: &huma.Info{
			Title: "Tollgate gateway", Version: "1",
			Description: "Decides whether a request may spend tokens, request rate, concurrency and GPU time, and records what it really spent.\n\n" +
				"Bodies are I-JSON objects (RFC 7493): malformed JSON and repeated fields are 400; unknown fields, other types and values out of range are 422 and named. " +
				"Answers other than successes are RFC 9457 problems. Refusals by quota carry `Retry-After`, `RateLimit-Policy` and `RateLimit`, except 402, which waiting does not cure.\n\n" +
				"A suspended tenant's reserves are 403 `tenant_suspended`; its reservations can still be read, reported, settled and cancelled, so that delivered work is billed.",
		},
		Servers: []*huma.Server{{URL: "/"}},
		Components: &huma.Components{
			Schemas: registry,
			SecuritySchemes: map[string]*huma.SecurityScheme{
				"bearer": {Type: "http", Scheme: "bearer", Description: "An API key: tgk_…"},
				"header": {Type: "apiKey", In: "header", Name: "x-api-key", Description: "The same key, for clients that cannot set Authorization."},
			},
		},
	}
	for i := range operations {
		api.AddOperation(operations[i].describe(registry))
	}
	compact, err := json.Marshal(api)
	if err != nil {
		return document{}, fmt.Errorf("openapi document: %w", err)
	}
	var indented bytes.Buffer
	if err := json.Indent(&indented, compact, "", "  "); err != nil {
		return document{}, fmt.Errorf("openapi document: %w", err)
	}
	indented.WriteByte('\n')
	yaml, err := api.YAML()
	if err != nil {
		return document{}, fmt.Errorf("openapi document: %w", err)
	}
	return document{json: indented.Bytes(), yaml: yaml}, nil
}

// OpenAPI returns the document as JSON.
func OpenAPI() ([]byte, error) {
	doc, err := theDocument()
	return bytes.Clone(doc.json), err
}

func (o *operation) describe(registry huma.Registry) *huma.Operation {
	r := &routes[o.route]
	op := &huma.Operation{
		Method: r.method, Path: r.path, OperationID: o.id, Tags: []string{o.tag},
		Summary: o.summary, Description: o.detail, Parameters: o.query,
		Responses: map[string]*huma.Response{},
	}
	for _, name := range []string{"id", "request_id"} {
		if strings.Contains(r.path, "{"+name+"}") {
			op.Parameters = append(op.Parameters, &huma.Param{
				Name: name, In: "path", Required: true, Schema: &huma.Schema{Type: huma.TypeString},
			})
		}
	}
	if o.body != nil {
		op.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{
			jsonType: {Schema: registry.Schema(reflect.TypeOf(o.body), true, "")},
		}}
	}
	for status, answer := range o.answers {
		op.Responses[strconv.Itoa(status)] = &huma.Response{
			Description: http.StatusText(status), Headers: answerHeaders(o.route, status),
			Content: map[string]*huma.MediaType{jsonType: {Schema: registry.Schema(reflect.TypeOf(answer), true, "")}},
		}
	}
	refusals := append([]int(nil), o.refusals...)
	if strings.HasPrefix(r.path, "/v1/") {
		op.Security = []map[string][]string{{"bearer": {}}, {"header": {}}}
		refusals = append(refusals, 400, 401, 403, 414, 500, 503)
	}
	if o.body != nil {
		refusals = append(refusals, 413, 415)
	}
	for _, status := range refusals {
		op.Responses[strconv.Itoa(status)] = &huma.Response{
			Description: http.StatusText(status), Headers: problemHeaders(status),
			Content: map[string]*huma.MediaType{problemType: {Schema: registry.Schema(reflect.TypeFor[Problem](), true, "")}},
		}
	}
	return op
}

func header(kind, description string) *huma.Header {
	return &huma.Header{Description: description, Schema: &huma.Schema{Type: kind}}
}

func answerHeaders(r route, status int) map[string]*huma.Header {
	headers := map[string]*huma.Header{}
	if r == routeReservations {
		headers["RateLimit-Policy"] = header(huma.TypeString, "The caller's limits.")
		headers["RateLimit"] = header(huma.TypeString, "What is left of each.")
		if status == http.StatusCreated {
			headers["Location"] = header(huma.TypeString, "The reservation.")
		}
	}
	if status == http.StatusOK && r >= routeReservations && r <= routeCancelRequest && r != routeReservation {
		headers["Idempotent-Replayed"] = header(huma.TypeString, "true when this repeats an earlier answer.")
	}
	return headers
}

func problemHeaders(status int) map[string]*huma.Header {
	headers := map[string]*huma.Header{}
	switch status {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		headers["Retry-After"] = header(huma.TypeInteger, "Whole seconds, at least 1.")
	case http.StatusUnauthorized:
		headers["WWW-Authenticate"] = header(huma.TypeString, "Bearer.")
	}
	switch status {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable, http.StatusPaymentRequired:
		headers["RateLimit-Policy"] = header(huma.TypeString, "The limit that refused, when one did.")
		headers["RateLimit"] = header(huma.TypeString, "What is left of it, and when it allows the request.")
	}
	switch status {
	case http.StatusPaymentRequired, http.StatusForbidden, http.StatusConflict, http.StatusTooManyRequests:
		headers["X-Should-Retry"] = header(huma.TypeString, "false when repeating the request will not help.")
	}
	return headers
}

func (c *call) getOpenAPIJSON() *problem {
	return c.static(c.server.openapi.json, "application/vnd.oai.openapi+json;version=3.1")
}

func (c *call) getOpenAPIYAML() *problem {
	return c.static(c.server.openapi.yaml, "application/vnd.oai.openapi;version=3.1")
}

func (c *call) static(content []byte, contentType string) *problem {
	c.out = append(c.out[:0], content...)
	c.send(http.StatusOK, contentType)
	return nil
}
