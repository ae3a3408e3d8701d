package webhooks

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const (
	// maxSecrets is the maximum number of secrets that are valid at the same time.
	maxSecrets = 2
	// minSecretBytes is the minimum length of a secret. With one signed delivery,
	// an attacker could find a shorter secret by trying all values.
	minSecretBytes = 16
	// maxAge is how far the time of a delivery may be from this process's clock. Stripe and Standard
	// Webhooks recommend 5 minutes.
	maxAge = 5 * time.Minute
	// maxSignatures is the maximum number of signatures in one header. A sender that rotates its secret
	// sends two.
	maxSignatures = 8
)

// errSignature and errAge are the reasons to refuse a delivery. They do not say which part of a signature is
// wrong: that would help only a forger.
var (
	errSignature = errors.New("the signature is missing or wrong")
	errAge       = errors.New("the delivery was signed more than 5 minutes ago, or in the future")
)

// parseSecrets returns the secrets in the text of a file or an environment variable, one per line, as the
// keys of the scheme. Errors do not show the text.
func parseSecrets(scheme Scheme, text string) (secrets [][]byte, err error) {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		secret := []byte(line)
		if scheme == StandardWebhooks {
			if secret, err = base64.StdEncoding.DecodeString(strings.TrimPrefix(line, "whsec_")); err != nil {
				return nil, fmt.Errorf("the secret in line %d is not valid for Standard Webhooks: it must be base64, with or without the prefix whsec_", len(secrets)+1)
			}
		}
		if len(secret) < minSecretBytes {
			return nil, fmt.Errorf("the secret in line %d has %d bytes; it must have at least %d, or it could be guessed from one delivery", len(secrets)+1, len(secret), minSecretBytes)
		}
		secrets = append(secrets, secret)
	}
	switch n := len(secrets); {
	case n == 0:
		return nil, errors.New("there is no secret; write the secret that the upstream signs with")
	case n > maxSecrets:
		return nil, fmt.Errorf("there are %d secrets, one per line; at most %d may be valid at the same time", n, maxSecrets)
	}
	return secrets, nil
}

// signature is the signature of one delivery, as its headers state it.
type signature struct {
	hash   func() hash.Hash
	prefix []byte   // signed before the body
	macs   [][]byte // signatures of the body; one of them must be right
}

// readHeader checks the headers of a delivery, before its body is read. With the scheme token it verifies
// the delivery completely, and returns a signature without a hash. With the other schemes, the caller must also
// call valid.
func (v Verify) readHeader(h http.Header, secrets [][]byte, now time.Time) (signature, error) {
	one := func(name string) string {
		if all := h.Values(name); len(all) == 1 { // two headers are ambiguous: a proxy may check the first and freshet the second
			return all[0]
		}
		return ""
	}
	switch v.Scheme {
	case GitHub:
		return v.single(one("X-Hub-Signature-256"), "sha256=", sha256.New, hex.DecodeString)
	case HMAC:
		decode := hex.DecodeString
		if v.Encoding == "base64" {
			decode = base64.StdEncoding.DecodeString
		}
		algorithm := sha256.New
		if v.Algorithm == "sha512" {
			algorithm = sha512.New
		}
		return v.single(one(v.Header), v.Prefix, algorithm, decode)
	case StandardWebhooks:
		return standardSignature(one("Webhook-Id"), one("Webhook-Timestamp"), one("Webhook-Signature"), now)
	case Stripe:
		return stripeSignature(one("Stripe-Signature"), now)
	case Token:
		value, ok := strings.CutPrefix(one(v.Header), v.Prefix)
		if !ok || !isOneOf([]byte(value), secrets) {
			return signature{}, errSignature
		}
		return signature{}, nil
	}
	return signature{}, errSignature
}

// single returns the signature of a header with one value.
func (Verify) single(value, prefix string, algorithm func() hash.Hash, decode func(string) ([]byte, error)) (signature, error) {
	encoded, ok := strings.CutPrefix(value, prefix)
	if !ok {
		return signature{}, errSignature
	}
	mac, err := decode(encoded)
	if err != nil || len(mac) == 0 {
		return signature{}, errSignature
	}
	return signature{hash: algorithm, macs: [][]byte{mac}}, nil
}

// standardSignature returns the signature of Standard Webhooks 1.0: HMAC-SHA256 of id.timestamp.body, in
// base64 after "v1,". The header can have several, separated by spaces. Signatures of other versions are ignored.
func standardSignature(id, timestamp, header string, now time.Time) (signature, error) {
	s := signature{hash: sha256.New, prefix: []byte(id + "." + timestamp + ".")}
	for value := range strings.FieldsSeq(header) {
		encoded, isV1 := strings.CutPrefix(value, "v1,")
		if mac, err := base64.StdEncoding.DecodeString(encoded); isV1 && err == nil && len(s.macs) < maxSignatures {
			s.macs = append(s.macs, mac)
		}
	}
	if id == "" || len(s.macs) == 0 {
		return signature{}, errSignature
	}
	return s, checkAge(timestamp, now)
}

// stripeSignature returns the signature of Stripe's scheme v1: HMAC-SHA256 of timestamp.body, in hex. The
// header has the form t=TIME,v1=SIGNATURE, with one v1 for each secret of the sender.
func stripeSignature(header string, now time.Time) (signature, error) {
	s := signature{hash: sha256.New}
	timestamp, times := "", 0
	for part := range strings.SplitSeq(header, ",") {
		name, value, _ := strings.Cut(part, "=")
		switch name {
		case "t":
			timestamp = value
			times++
		case "v1":
			if mac, err := hex.DecodeString(value); err == nil && len(s.macs) < maxSignatures {
				s.macs = append(s.macs, mac)
			}
		}
	}
	if times != 1 || len(s.macs) == 0 {
		return signature{}, errSignature
	}
	s.prefix = []byte(timestamp + ".")
	return s, checkAge(timestamp, now)
}

// checkAge checks a time in Unix seconds.
func checkAge(timestamp string, now time.Time) error {
	seconds, err := strconv.ParseInt(timestamp, 10, 64)
	if err != nil {
		return errSignature
	}
	if age := now.Unix() - seconds; age > int64(maxAge.Seconds()) || age < -int64(maxAge.Seconds()) {
		return errAge
	}
	return nil
}

// valid reports whether one of the signatures of the delivery fits the body and one of the secrets. It
// compares all signatures in constant time.
func (s signature) valid(body []byte, secrets [][]byte) bool {
	if s.hash == nil { // scheme token: readHeader has verified the delivery
		return true
	}
	found := false
	for _, secret := range secrets {
		m := hmac.New(s.hash, secret)
		m.Write(s.prefix)
		m.Write(body)
		want := m.Sum(nil)
		for _, mac := range s.macs {
			if hmac.Equal(mac, want) {
				found = true
			}
		}
	}
	return found
}

// isOneOf reports whether a token is one of the secrets. It compares hashes of all secrets in constant time,
// so that the comparison does not reveal the token's length either.
func isOneOf(token []byte, secrets [][]byte) bool {
	sum, found := sha256.Sum256(token), false
	for _, secret := range secrets {
		if want := sha256.Sum256(secret); hmac.Equal(sum[:], want[:]) {
			found = true
		}
	}
	return found
}
