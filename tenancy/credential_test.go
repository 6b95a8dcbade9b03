package tenancy

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"strings"
	"testing"
)

func TestNewCredentialRoundTrip(t *testing.T) {
	seen := map[string]bool{}
	for range 200 {
		c, err := NewCredential(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		if len(c.Presented) != 64 || !strings.HasPrefix(c.Presented, c.KeyID+".") || len(c.KeyID) != 20 {
			t.Fatalf("presented key %q of id %q has the wrong shape", c.Presented, c.KeyID)
		}
		if seen[c.KeyID] || seen[string(c.SecretHash)] {
			t.Fatal("a key or secret came twice")
		}
		seen[c.KeyID], seen[string(c.SecretHash)] = true, true

		id, hash, err := ParseCredential(c.Presented)
		if err != nil || id != c.KeyID {
			t.Fatalf("ParseCredential = %q, %v; want %q", id, err, c.KeyID)
		}
		key := Key{SecretHash: c.SecretHash}
		if !key.SecretMatches(hash) {
			t.Fatal("the key's own secret does not match")
		}
		hash[31] ^= 1
		if key.SecretMatches(hash) {
			t.Fatal("another hash matches")
		}
	}
}

func TestNewCredentialFailsWithoutRandomness(t *testing.T) {
	if _, err := NewCredential(bytes.NewReader(make([]byte, 41))); err == nil {
		t.Fatal("41 random bytes were enough")
	}
}

func TestSecretMatchesRefusesEmptyStoredHash(t *testing.T) {
	key := Key{}
	if key.SecretMatches(sha256.Sum256(nil)) {
		t.Fatal("a key without a stored hash was opened")
	}
}

func TestParseCredentialRefuses(t *testing.T) {
	c, err := NewCredential(bytes.NewReader(make([]byte, 42)))
	if err != nil {
		t.Fatal(err)
	}
	good := c.Presented
	if _, _, err := ParseCredential(good); err != nil {
		t.Fatalf("the example itself is refused: %v", err)
	}
	for name, presented := range map[string]string{
		"empty":                 "",
		"id only":               good[:20],
		"id and dot":            good[:21],
		"secret only":           good[21:],
		"one byte short":        good[:63],
		"one byte long":         good + "A",
		"megabyte":              strings.Repeat(good, 16384),
		"upper-case prefix":     "TGK_" + good[4:],
		"other prefix":          "sk-_" + good[4:],
		"upper-case id":         good[:4] + "A" + good[5:],
		"letter left out of id": good[:4] + "l" + good[5:],
		"no dot":                good[:20] + "-" + good[21:],
		"standard base64":       good[:63] + "+",
		"padding":               good[:63] + "=",
		"line break in secret":  good[:63] + "\n",
		"line break inside":     good[:40] + "\n" + good[41:],
		"set trailing bits":     good[:63] + "B",
		"leading space":         " " + good[:63],
		"NUL":                   good[:30] + "\x00" + good[31:],
		"not UTF-8":             good[:30] + "\xff" + good[31:],
		"NUL in id":             good[:10] + "\x00" + good[11:],
		"Bearer and key":        "Bearer " + good,
	} {
		if id, _, err := ParseCredential(presented); !errors.Is(err, ErrBadKey) || id != "" {
			t.Errorf("%s: got %q, %v; want ErrBadKey", name, id, err)
		}
	}
}

func FuzzParseCredential(f *testing.F) {
	c, err := NewCredential(rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(c.Presented)
	f.Add("")
	f.Add(c.Presented[:63] + "\n")
	f.Fuzz(func(t *testing.T, presented string) {
		id, hash, err := ParseCredential(presented)
		if err != nil {
			if !errors.Is(err, ErrBadKey) {
				t.Fatalf("refused with %v", err)
			}
			return
		}
		// What is accepted has exactly one spelling.
		secret, decodeErr := secretEncoding.DecodeString(presented[21:])
		if decodeErr != nil || id+"."+secretEncoding.EncodeToString(secret) != presented {
			t.Fatalf("accepted %q, which is not how it would be written", presented)
		}
		if hash != sha256.Sum256(secret) {
			t.Fatal("hash of something else")
		}
	})
}

func BenchmarkParseCredential(b *testing.B) {
	c, err := NewCredential(rand.Reader)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := ParseCredential(c.Presented); err != nil {
			b.Fatal(err)
		}
	}
}

func TestParseCredentialDoesNotAllocate(t *testing.T) {
	c, err := NewCredential(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() { _, _, _ = ParseCredential(c.Presented) }); n != 0 {
		t.Fatalf("allocates %.0f times a call", n)
	}
}
