package token

import (
	"cmp"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"strings"
	"time"
)

// iatMargin is how far the claim iat lies in the past, because servers reject a future one.
const iatMargin = 30 * time.Second

// signJWT returns the JWT of the configuration, signed with the private key (PEM).
func (c Config) signJWT(key, clientID string, now time.Time) (string, error) {
	signer, err := parseKey(key)
	if err != nil {
		return "", err
	}
	header := map[string]string{"typ": "JWT", "alg": "RS256"}
	if _, ok := signer.(*ecdsa.PrivateKey); ok {
		header["alg"] = "ES256"
	}
	if c.JWT.KeyID != "" {
		header["kid"] = c.JWT.KeyID
	}
	lifetime := cmp.Or(c.JWT.Lifetime, defaultJWTLifetime)
	claims := map[string]any{"iat": now.Add(-iatMargin).Unix(), "exp": now.Add(lifetime - iatMargin).Unix()}
	for name, value := range map[string]string{
		"iss": cmp.Or(c.JWT.Issuer, clientID), "sub": c.JWT.Subject, "aud": cmp.Or(c.JWT.Audience, c.TokenURL), "scope": strings.Join(c.Scopes, " "),
	} {
		if value != "" {
			claims[name] = value
		}
	}
	text := encodePart(header) + "." + encodePart(claims)
	sum := sha256.Sum256([]byte(text))
	var signature []byte
	switch key := signer.(type) {
	case *rsa.PrivateKey:
		signature, err = rsa.SignPKCS1v15(rand.Reader, key, crypto.SHA256, sum[:])
	case *ecdsa.PrivateKey:
		r, s, signErr := ecdsa.Sign(rand.Reader, key, sum[:])
		if err = signErr; err == nil {
			signature = append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...) // the two numbers of an ECDSA signature, with 32 bytes each (RFC 7518 §3.4)
		}
	}
	if err != nil {
		return "", errors.New("the private key cannot sign")
	}
	return text + "." + base64.RawURLEncoding.EncodeToString(signature), nil
}

func encodePart(part any) string {
	text, _ := json.Marshal(part) // maps of strings and numbers can always be encoded
	return base64.RawURLEncoding.EncodeToString(text)
}

// parseKey returns an RSA or P-256 key. Its errors do not contain the text.
func parseKey(text string) (crypto.Signer, error) {
	block, _ := pem.Decode([]byte(text))
	if block == nil {
		return nil, errors.New("the private key is not PEM, which begins with -----BEGIN")
	}
	var parsed any
	for _, parse := range []func([]byte) (any, error){
		x509.ParsePKCS8PrivateKey,
		func(der []byte) (any, error) { return x509.ParsePKCS1PrivateKey(der) },
		func(der []byte) (any, error) { return x509.ParseECPrivateKey(der) },
	} {
		if key, err := parse(block.Bytes); err == nil {
			parsed = key
			break
		}
	}
	switch key := parsed.(type) {
	case *rsa.PrivateKey:
		return key, nil
	case *ecdsa.PrivateKey:
		if key.Curve == elliptic.P256() {
			return key, nil
		}
	}
	return nil, errors.New("the private key must be an RSA or a P-256 key without a password")
}
