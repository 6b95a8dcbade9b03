package forward

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"strconv"

	"tollgate/admission"
	"tollgate/admission/answer"
	"tollgate/events"
)

const (
	keyHeader = "Idempotency-Key"
	// idHeader is what libraries send of themselves. Some name a conversation by it
	// (Codex), so it stands for one request only together with the body.
	idHeader = "X-Client-Request-Id"
)

// maxAttempts bounds how many reservations one key may have.
const maxAttempts = 32

// idempotencyKey is the client's key, "" for none. What admission could not
// keep as a request id is replaced by its hash.
func idempotencyKey(header http.Header, bodyHash func() [16]byte) string {
	key := header.Get(keyHeader)
	if key == "" {
		id := header.Get(idHeader)
		if id == "" {
			return ""
		}
		body := bodyHash()
		key = id + "\n" + string(body[:])
	}
	if plainKey(key) {
		return key
	}
	sum := sha256.Sum256([]byte(key))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// plainKey leaves room for the number of an attempt, and its alphabet has no
// '~', which goes before it.
func plainKey(key string) bool {
	if len(key) > 120 {
		return false
	}
	for i := range len(key) {
		switch b := key[i]; {
		case b >= 'a' && b <= 'z', b >= 'A' && b <= 'Z', b >= '0' && b <= '9':
		case b == '.', b == '_', b == ':', b == '@', b == '/', b == '+', b == '=', b == '-':
		default:
			return false
		}
	}
	return true
}

// attemptID is the request id of a reservation. Its '~' is what no client of the
// API may use in a request id, and keeps a reservation that the front door made
// out of its tenant's own hands: else a tenant could settle it at nothing while
// it runs.
func attemptID(key string, attempt int) string { return key + "~" + strconv.Itoa(attempt) }

// reserveOnce reserves so that a repeat of the same request does not run twice.
//
// Without a key the request's id is made here, nobody else can have it, and what
// is found under it is this call's own. With a key each attempt that was given
// up leaves its reservation behind and the next one takes the next number.
func (c *call) reserveOnce(req *admission.ReserveRequest) (*admission.Reservation, *answer.Answer) {
	key := idempotencyKey(c.r.Header, c.bodyHash)
	if key == "" {
		return c.reserveOwn(req)
	}
	req.BodyHash = c.bodyHash()
	for attempt := 1; attempt <= maxAttempts; attempt++ {
		req.RequestID = attemptID(key, attempt)
		res, err := c.h.opts.Store.Reserve(c.h.patience.get(), req)
		switch {
		case errors.Is(err, admission.ErrTombstone):
			continue
		case err != nil:
			// Whether it is held is not known. Another try could not tell its own hold
			// from that of a request with the same key, so the hold, if there is one,
			// ends by its time.
			return nil, answer.Of(err)
		case !res.Replayed:
			return res, nil
		}
		switch res.State {
		case events.StateHeld:
			return nil, &answer.Answer{
				Status: http.StatusConflict, Reason: "in_flight", RetryAfter: 1,
				Detail: "A request with this idempotency key is under way. Repeat after Retry-After to learn its outcome.",
			}
		case events.StateSettled:
			return nil, &answer.Answer{
				Status: http.StatusConflict, Reason: "idempotency_key_used", GiveUp: true,
				Detail: "A request with this idempotency key was answered, and answers are not kept. Use a key of its own for each request.",
			}
		case events.StateCancelled, events.StateExpired:
		}
	}
	return nil, &answer.Answer{
		Status: http.StatusConflict, Reason: "too_many_attempts", GiveUp: true,
		Detail: "This idempotency key has had " + strconv.Itoa(maxAttempts) + " attempts. Use another one.",
	}
}

func (c *call) reserveOwn(req *admission.ReserveRequest) (*admission.Reservation, *answer.Answer) {
	ctx := c.h.patience.get()
	res, err := c.h.opts.Store.Reserve(ctx, req)
	if errors.Is(err, admission.ErrUnavailable) && ctx.Err() == nil {
		res, err = c.h.opts.Store.Reserve(ctx, req) // it may have taken effect: that is met then
	}
	if err == nil {
		return res, nil
	}
	if unknown(err) {
		c.h.settler.later(&final{
			cancel: true, attrs: c.attrs(),
			report: admission.UsageReport{Tenant: c.principal.Tenant, RequestID: req.RequestID, Author: author, Reason: "reserve_unknown"},
		}, err)
	}
	return nil, answer.Of(err)
}
