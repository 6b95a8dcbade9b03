package httpapi

import (
	"net/http"
	"strings"
)

// route is one path of the API.
type route uint8

const (
	routeUnknown route = iota
	routeReservations
	routeReservation
	routeUsage
	routeSettle
	routeCancel
	routeCancelRequest
	routeQuotaUsage
	routeMeters
	routeOpenAPIJSON
	routeOpenAPIYAML
	routeHealth
	routeReady
	routeCount
)

// routes are what each path is called in documents and metrics, and the one
// method it has.
var routes = [routeCount]struct{ path, method string }{
	routeUnknown:       {path: "unknown"},
	routeReservations:  {"/v1/reservations", http.MethodPost},
	routeReservation:   {"/v1/reservations/{id}", http.MethodGet},
	routeUsage:         {"/v1/reservations/{id}/usage", http.MethodPost},
	routeSettle:        {"/v1/reservations/{id}/settle", http.MethodPost},
	routeCancel:        {"/v1/reservations/{id}/cancel", http.MethodPost},
	routeCancelRequest: {"/v1/requests/{request_id}/cancel", http.MethodPost},
	routeQuotaUsage:    {"/v1/quota/usage", http.MethodGet},
	routeMeters:        {"/v1/meters", http.MethodPost},
	routeOpenAPIJSON:   {"/openapi.json", http.MethodGet},
	routeOpenAPIYAML:   {"/openapi.yaml", http.MethodGet},
	routeHealth:        {"/healthz", http.MethodGet},
	routeReady:         {"/readyz", http.MethodGet},
}

// routeOf finds the route of a path, and the id in it. Paths are not cleaned:
// an id is taken as it is or refused, never rewritten.
func routeOf(path string) (route, string) {
	if rest, ok := strings.CutPrefix(path, "/v1/reservations"); ok {
		if rest == "" {
			return routeReservations, ""
		}
		if rest[0] != '/' || rest == "/" {
			return routeUnknown, ""
		}
		id, verb, ok := strings.Cut(rest[1:], "/")
		switch {
		case !ok:
			return routeReservation, id
		case verb == "settle":
			return routeSettle, id
		case verb == "usage":
			return routeUsage, id
		case verb == "cancel":
			return routeCancel, id
		}
		return routeUnknown, ""
	}
	// A request id may hold slashes.
	if rest, ok := strings.CutPrefix(path, "/v1/requests/"); ok {
		if id, ok := strings.CutSuffix(rest, "/cancel"); ok && id != "" {
			return routeCancelRequest, id
		}
		return routeUnknown, ""
	}
	for i := routeQuotaUsage; i < routeCount; i++ {
		if routes[i].path == path {
			return i, ""
		}
	}
	return routeUnknown, ""
}

// handle answers on the call's route.
func (c *call) handle() *problem {
	switch c.route {
	case routeReservations:
		return c.postReservation()
	case routeReservation:
		return c.getReservation()
	case routeUsage:
		return c.postUsage()
	case routeSettle:
		return c.postSettle()
	case routeCancel:
		return c.postCancel()
	case routeCancelRequest:
		return c.postCancelRequest()
	case routeQuotaUsage:
		return c.getQuotaUsage()
	case routeMeters:
		return c.postMeters()
	case routeOpenAPIJSON:
		return c.getOpenAPIJSON()
	case routeOpenAPIYAML:
		return c.getOpenAPIYAML()
	case routeHealth:
		return c.getHealth()
	case routeReady:
		return c.getReady()
	}
	return &problem{status: http.StatusNotFound, reason: "no_such_route", detail: "There is no such path; see /openapi.json."}
}
