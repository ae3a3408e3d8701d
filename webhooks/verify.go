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
	// maxAge is the maximum difference between the signed time of a delivery and the clock of this
	// process. Stripe and Standard Webhooks recommend 5 minutes.
	maxAge = 5 * time.Minute
	// maxSignatures is the maximum number of signatures in one header. An upstream that replaces its
	// secret signs with two secrets.
	maxSignatures = 8
)

// errSignature and errAge say why a delivery is refused. They do not say which part of the signature is
// wrong, because this would help an attacker.
var (
	errSignature = errors.New("the signature is missing or wrong")
	errAge       = errors.New("the delivery was signed more than 5 minutes ago, or in the future")
)

// parseSecrets returns the secrets in a text, one per line, decoded as the scheme requires. Its errors
// do not contain the secrets.
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

// signature contains the signatures of one delivery, as they are in its headers.
type signature struct {
	hash   func() hash.Hash
	prefix []byte   // bytes that were signed before the body
	macs   [][]byte // signatures; one of them must be correct
}

// readHeader checks the headers of a delivery before its body is read. With the scheme token this
// check is complete, and the field hash of the result is nil. With the other schemes the caller must
// also call the method `valid` with the body.
func (v Verify) readHeader(h http.Header, secrets [][]byte, now time.Time) (signature, error) {
	one := func(name string) string {
		// If a header occurs twice, a proxy could check the first value and freshet the second one. So
		// such a header is refused.
		if all := h.Values(name); len(all) == 1 {
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

// single returns the signature in the value of a header that has only one signature.
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

// standardSignature returns the signatures of a delivery by Standard Webhooks 1.0: the HMAC-SHA256 of
// id.timestamp.body, in base64 after "v1,". The header can have several signatures, separated by
// spaces. Signatures that do not begin with "v1," are ignored.
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

// stripeSignature returns the signatures of a delivery by Stripe's scheme v1: the HMAC-SHA256 of
// timestamp.body, in hexadecimal. The header has the form t=TIME,v1=SIGNATURE, with one v1 for each
// secret of the sender.
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

// checkAge returns an error if the time of a delivery, in Unix seconds, differs too much from the time
// `now`.
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

// valid reports whether one of the signatures was made with the body and one of the secrets. It
// compares all signatures in constant time.
func (s signature) valid(body []byte, secrets [][]byte) bool {
	if s.hash == nil { // the scheme is token, and readHeader has checked everything
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

// isOneOf reports whether a token is one of the secrets. It compares the hashes of the token and of all
// secrets in constant time, so the time of the comparison does not reveal the length of a secret.
func isOneOf(token []byte, secrets [][]byte) bool {
	sum, found := sha256.Sum256(token), false
	for _, secret := range secrets {
		if want := sha256.Sum256(secret); hmac.Equal(sum[:], want[:]) {
			found = true
		}
	}
	return found
}
