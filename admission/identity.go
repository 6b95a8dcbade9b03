package admission

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"
)

// Shapes of reservation ids.
const (
	idPrefix  = "rsv_"
	hashBytes = 15
	// HashLen is the length of a request's hash in a reservation id and a key.
	HashLen   = 24
	generated = 13 // digits of a creation time in ms, until the year 2286
)

var idEncoding = base32.NewEncoding("0123456789abcdefghijklmnopqrstuv").WithPadding(base32.NoPadding)

// RequestHash names a request of a tenant: 120 bits of SHA-256, in lower case
// base32. A retry computes the same name and so meets its own record.
func RequestHash(tenantID, requestID string) string {
	b := make([]byte, 0, 256)
	b = append(b, tenantID...)
	b = append(b, 0) // neither id can hold it, so pairs never run together
	b = append(b, requestID...)
	sum := sha256.Sum256(b)
	return idEncoding.EncodeToString(sum[:hashBytes])
}

// ReservationID joins a request's hash and the reservation's creation time. A
// request id used again after its record's retention is another reservation.
func ReservationID(hash string, createdMillis int64) string {
	b := make([]byte, 0, len(idPrefix)+HashLen+generated)
	b = append(b, idPrefix...)
	b = append(b, hash...)
	b = strconv.AppendInt(b, createdMillis, 10)
	return string(b)
}

// ParseReservationID splits a reservation id. Anything else is ErrNotFound: no
// reservation has such an id.
func ParseReservationID(id string) (hash string, createdMillis int64, err error) {
	rest, ok := strings.CutPrefix(id, idPrefix)
	if !ok || len(rest) != HashLen+generated {
		return "", 0, fmt.Errorf("%w: not a reservation id", ErrNotFound)
	}
	for i := 0; i < HashLen; i++ {
		if c := rest[i]; (c < '0' || c > '9') && (c < 'a' || c > 'v') {
			return "", 0, fmt.Errorf("%w: not a reservation id", ErrNotFound)
		}
	}
	for i := HashLen; i < len(rest); i++ {
		if rest[i] < '0' || rest[i] > '9' {
			return "", 0, fmt.Errorf("%w: not a reservation id", ErrNotFound)
		}
		createdMillis = createdMillis*10 + int64(rest[i]-'0')
	}
	if rest[HashLen] == '0' {
		return "", 0, fmt.Errorf("%w: not a reservation id", ErrNotFound)
	}
	return rest[:HashLen], createdMillis, nil
}

// Shard is where a tenant's state and its outbox are: FNV-1a of its id, modulo
// the number of shards.
func Shard(tenantID string, shards int) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(tenantID)) // a hash's Write never fails
	return int(h.Sum32() % uint32(shards))
}
