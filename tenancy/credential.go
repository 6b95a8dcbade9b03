package tenancy

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base32"
	"encoding/base64"
	"fmt"
	"io"
)

// A presented API key is "tgk_" + 16 characters, a dot, and 43 characters of
// base64url that hold a 256-bit secret: always 64 bytes. The part before the
// dot is the key's id; it is not secret.
const (
	keyPrefix     = "tgk_"
	keyIDLen      = len(keyPrefix) + 16
	secretTextLen = 43
	presentedLen  = keyIDLen + 1 + secretTextLen
)

// The id's alphabet leaves out i, l, o and u, which people misread.
var (
	idEncoding     = base32.NewEncoding("0123456789abcdefghjkmnpqrstvwxyz").WithPadding(base32.NoPadding)
	secretEncoding = base64.RawURLEncoding.Strict()
)

// Credential is a new API key's id and secret. Presented is the only place
// where the secret exists in the clear: it is shown once and never stored.
type Credential struct {
	KeyID      string
	Presented  string // "tgk_<16>.<secret>"
	SecretHash []byte // SHA-256 of the secret's 32 bytes
}

// NewCredential makes a key's id (80 bits) and secret (256 bits) from random,
// which must be crypto/rand.Reader outside tests.
//
// A plain hash is enough to store the secret: it has 256 bits of entropy, so
// there is no dictionary to try and a slow hash would only slow each request.
func NewCredential(random io.Reader) (Credential, error) {
	var raw [10 + 32]byte
	if _, err := io.ReadFull(random, raw[:]); err != nil {
		return Credential{}, fmt.Errorf("read randomness for an API key: %w", err)
	}
	id := keyPrefix + idEncoding.EncodeToString(raw[:10])
	hash := sha256.Sum256(raw[10:])
	return Credential{
		KeyID:      id,
		Presented:  id + "." + secretEncoding.EncodeToString(raw[10:]),
		SecretHash: hash[:],
	}, nil
}

// ParseCredential splits a presented key into its id and the SHA-256 of its
// secret. Anything that NewCredential could not have made is ErrBadKey, with
// no word about what is wrong with it. It does not allocate.
func ParseCredential(presented string) (keyID string, secretHash [sha256.Size]byte, err error) {
	if len(presented) != presentedLen || presented[keyIDLen] != '.' || !validKeyID(presented[:keyIDLen]) {
		return "", secretHash, ErrBadKey
	}
	// The decoder skips line breaks, which would give fewer than 32 bytes, and
	// writes whole groups: hence the length check and the spare byte.
	var secret [33]byte
	n, decodeErr := secretEncoding.Decode(secret[:], []byte(presented[keyIDLen+1:]))
	if decodeErr != nil || n != 32 {
		return "", secretHash, ErrBadKey
	}
	return presented[:keyIDLen], sha256.Sum256(secret[:32]), nil
}

// SecretMatches compares a presented secret's hash with the stored one, in
// time that does not depend on where they differ.
func (k *Key) SecretMatches(secretHash [sha256.Size]byte) bool {
	return subtle.ConstantTimeCompare(k.SecretHash, secretHash[:]) == 1
}

func validKeyID(id string) bool {
	if len(id) != keyIDLen || id[:len(keyPrefix)] != keyPrefix {
		return false
	}
	for i := len(keyPrefix); i < len(id); i++ {
		switch c := id[i]; {
		case c >= '0' && c <= '9':
		case c >= 'a' && c <= 'z' && c != 'i' && c != 'l' && c != 'o' && c != 'u':
		default:
			return false
		}
	}
	return true
}
