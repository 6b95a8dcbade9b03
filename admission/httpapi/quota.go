package httpapi

import (
	"encoding/json"
	"net/http"
	"net/url"
	"time"

	"tollgate/admission"
	"tollgate/admission/answer"
	"tollgate/tenancy"
)

// QuotaUsage answers the usage query of one tenant.
type QuotaUsage struct {
	TenantID     string       `json:"tenant_id"`
	At           time.Time    `json:"at" doc:"When the figures were read."`
	QuotaVersion int64        `json:"quota_version" doc:"Version of the tenant's quota document."`
	Limits       []LimitUsage `json:"limits" nullable:"false"`
}

// LimitUsage is the standing of one limit, in the unit that people are shown.
type LimitUsage struct {
	Name    string `json:"name"`
	Layer   string `json:"layer" doc:"L1 tokens, L2 request rate, L3 concurrency, L4 GPU."`
	Kind    string `json:"kind"`
	Scope   string `json:"scope"`
	Match   string `json:"match,omitempty" doc:"The endpoint or model that the limit is for."`
	Unit    string `json:"unit" doc:"What the figures count; tokens are weighted by the model."`
	Window  string `json:"window,omitempty"`
	Period  string `json:"period,omitempty"`
	Budget  bool   `json:"budget,omitempty" doc:"When it is spent, requests are refused with 402."`
	Limit   int64  `json:"limit"`
	Used    int64  `json:"used" doc:"Really used; rounded up."`
	Held    int64  `json:"held" doc:"Held by open reservations; rounded up."`
	Left    int64  `json:"remaining"`
	Percent int64  `json:"remaining_percent" doc:"remaining ÷ limit, rounded down."`
	// LimitUnits is the limit as it is counted.
	LimitUnits  int64      `json:"limit_milli_units,omitempty" doc:"The limit in milli-units, for token limits."`
	ResetAt     *time.Time `json:"reset_at,omitempty" doc:"When the window or period is new; absent where nothing resets."`
	LastRefusal *Refused   `json:"last_refusal,omitempty" doc:"The most recent refusal by this limit, as far as is known."`
}

// Refused is the last refusal by a limit.
type Refused struct {
	At     time.Time `json:"at"`
	Reason string    `json:"reason"`
}

func (c *call) getQuotaUsage() *problem {
	if p := c.authenticate(tenancy.RoleTenant, tenancy.RoleOperator); p != nil {
		return p
	}
	query, p := c.quotaQuery()
	if p != nil {
		return p
	}
	tenant, p := c.quotaTenant(query.Get("tenant_id"))
	if p != nil {
		return p
	}
	platform := c.server.opts.Directory.Platform()
	if platform == nil {
		return problemOf(tenancy.ErrNotReady)
	}
	key := c.principal.Key
	if key.TenantID != tenant.ID {
		key = nil // an operator's own limits are not the tenant's
	}
	limits := standingLimits(tenant, key, query.Get("endpoint"), query.Get("model"), platform, key == nil)

	ctx, cancel := c.decide()
	defer cancel()
	standing, err := c.server.opts.Store.Standing(ctx, tenant, limits)
	if err != nil {
		return problemOf(err)
	}
	c.out, err = json.Marshal(quotaUsage(tenant, standing))
	if err != nil {
		return problemOf(err)
	}
	c.send(http.StatusOK, jsonType)
	return nil
}

// quotaQuery reads the parameters: each at most once, and no others.
func (c *call) quotaQuery() (url.Values, *problem) {
	bad := func(detail string) *problem {
		return &problem{status: http.StatusBadRequest, reason: "unknown_parameter", detail: detail}
	}
	query, err := url.ParseQuery(c.asked.rawQuery)
	if err != nil {
		return nil, bad("The query is not well formed.")
	}
	for name, values := range query {
		if name != "tenant_id" && name != "endpoint" && name != "model" {
			return nil, bad("The parameters are tenant_id, endpoint and model.")
		}
		if len(values) != 1 {
			return nil, bad("Give each parameter once.")
		}
	}
	if model := query.Get("model"); model != "" && !tenancy.ValidModelName(model) {
		return nil, bad("model is not a model's name.")
	}
	if endpoint := query.Get("endpoint"); endpoint != "" && !tenancy.ValidEndpoint(endpoint) {
		return nil, bad("endpoint is not an endpoint's name.")
	}
	return query, nil
}

// quotaTenant is the caller's own tenant, or for an operator any. A tenant's
// key learns nothing about others, not even which there are.
func (c *call) quotaTenant(wanted string) (*tenancy.Tenant, *problem) {
	own := c.principal.Tenant
	if own != nil && (wanted == "" || wanted == own.ID) {
		return own, nil
	}
	if c.principal.Key.Role != tenancy.RoleOperator {
		return nil, &problem{
			status: http.StatusForbidden, reason: "other_tenant", giveUp: true,
			detail: "This key reads its own tenant's quota only.",
		}
	}
	if wanted == "" {
		return nil, problemOfBody(unacceptable(reasonMissing, "tenant_id", "is required for a key without a tenant"))
	}
	tenant, err := c.server.opts.Directory.Tenant(wanted)
	if err != nil {
		return nil, problemOf(err)
	}
	return tenant, nil
}

// standingLimits lists the limits to report: those of the tenant and the key,
// those for an endpoint or model that the documents name, and those for each
// endpoint or model where the caller names one. Limits over all tenants are
// for operators: they show everybody's use.
func standingLimits(tenant *tenancy.Tenant, key *tenancy.Key, endpoint, model string, platform *tenancy.Platform, pools bool) []admission.Constraint {
	documents := [][]tenancy.Limit{tenant.Quota.Limits}
	if pools {
		documents = append(documents, platform.Limits)
	} else {
		platform = nil
	}
	list := admission.Constraints(tenant, key, endpoint, model, platform)
	for width, document := range documents {
		for i := range document {
			l := &document[i]
			e, m := "", ""
			switch {
			case l.Match == "" || l.Match == "*":
				continue
			case l.Scope == tenancy.ScopeEndpoint && l.Match != endpoint:
				e = l.Match
			case l.Scope == tenancy.ScopeModel && l.Match != model:
				m = l.Match
			}
			for _, c := range admission.Constraints(tenant, key, e, m, platform) {
				if c.Limit == *l && c.Pool == (width == 1) {
					list = append(list, c)
				}
			}
		}
	}
	return list
}

func quotaUsage(tenant *tenancy.Tenant, standing *admission.Standing) *QuotaUsage {
	out := &QuotaUsage{
		TenantID: tenant.ID, At: standing.At.UTC().Truncate(time.Millisecond),
		QuotaVersion: tenant.Quota.Version, Limits: make([]LimitUsage, 0, len(standing.Left)),
	}
	for i := range standing.Left {
		left := &standing.Left[i]
		l := &left.Constraint.Limit
		limit := answer.Effective(&left.Constraint)
		line := LimitUsage{
			Name: l.Name, Layer: l.Layer, Kind: string(l.Kind), Scope: string(l.Scope), Match: l.Match,
			Unit: answer.UnitOf(l), Period: string(l.Period), Budget: l.Budget,
			Limit: limit, Used: left.Used, Held: left.Held, Left: left.Remaining,
		}
		if l.Window > 0 {
			line.Window = time.Duration(l.Window).String()
		}
		if l.Metric == tenancy.MetricTokens && l.Kind != tenancy.KindLease {
			line.LimitUnits = left.Constraint.Units
		}
		if limit > 0 { // limits are at most 10^12, so this stays far from overflow
			line.Percent = left.Remaining * 100 / limit
		}
		if left.Reset > 0 {
			at := out.At.Add(left.Reset).Truncate(time.Millisecond)
			line.ResetAt = &at
		}
		if refusal, ok := standing.LastRefusals[l.Name]; ok && !refusal.At.IsZero() {
			line.LastRefusal = &Refused{At: refusal.At.UTC().Truncate(time.Millisecond), Reason: refusal.Reason}
		}
		out.Limits = append(out.Limits, line)
	}
	return out
}
