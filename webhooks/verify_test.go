package webhooks

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// vector is a signed delivery for tests. Its signature comes from a public specification or from
// openssl, and not from the code under test.
type vector struct {
	name   string
	verify Verify
	secret string // text of the secret file; or "hex:" and the bytes of the secret in hexadecimal
	header map[string]string
	body   string
	at     time.Time
}

var vectors = []vector{
	{ // GitHub's documentation, "Validating webhook deliveries"
		name: "github", verify: Verify{Scheme: GitHub}, secret: "It's a Secret to Everybody", body: "Hello, World!",
		header: map[string]string{"X-Hub-Signature-256": "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"},
	},
	{ // the test vector of the libraries of Standard Webhooks
		name: "standard-webhooks", verify: Verify{Scheme: StandardWebhooks}, secret: "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", body: `{"test": 2432232314}`,
		header: map[string]string{"webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek", "webhook-timestamp": "1614265330", "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="},
		at:     time.Unix(1614265330, 0),
	},
	// Stripe publishes no test vector; this signature was computed with openssl dgst -sha256 -hmac from
	// "1614265330." and the body
	{
		name: "stripe", verify: Verify{Scheme: Stripe}, secret: "whsec_test_secret_of_stripe", body: `{"id":"evt_1"}`,
		header: map[string]string{"Stripe-Signature": "t=1614265330,v0=00,v1=fa24a3923b918c79e70d2e3b6088e6e35141c66306a1d5de5d2f6f290eeb949c"},
		at:     time.Unix(1614265330, 0),
	},
	{ // RFC 4231, test case 2
		name: "hmac sha256 hex", verify: Verify{Scheme: HMAC, Header: "X-Signature", Prefix: "v1="}, secret: "hex:" + hex.EncodeToString([]byte("Jefe")), body: "what do ya want for nothing?",
		header: map[string]string{"X-Signature": "v1=5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"},
	},
	{ // RFC 4231, test case 6
		name: "hmac sha512 hex", verify: Verify{Scheme: HMAC, Header: "X-Signature", Algorithm: "sha512", Encoding: "hex"}, secret: "hex:" + strings.Repeat("aa", 131),
		body:   "Test Using Larger Than Block-Size Key - Hash Key First",
		header: map[string]string{"X-Signature": "80b24263c7c1a3ebb71493c1dd7be8b49b46d1f41b4aeec1121b013783f8f3526b56d037e05f2598bd0fd2215d6a1e5295e64f73f63f0aec8b915a985d786598"},
	},
	{ // RFC 4231, test case 2, in base64
		name: "hmac sha256 base64", verify: Verify{Scheme: HMAC, Header: "X-Shopify-Hmac-Sha256", Encoding: "base64"}, secret: "hex:" + hex.EncodeToString([]byte("Jefe")), body: "what do ya want for nothing?",
		header: map[string]string{"X-Shopify-Hmac-Sha256": "W9zBRr9gdU5qBCQmCJV1x1oAPwidJzmDnexYuWTsOEM="},
	},
}

func (v vector) secrets(t testing.TB) [][]byte {
	t.Helper()
	if digits, isHex := strings.CutPrefix(v.secret, "hex:"); isHex {
		secret, err := hex.DecodeString(digits)
		if err != nil {
			t.Fatal(err)
		}
		return [][]byte{secret}
	}
	secrets, err := parseSecrets(v.verify.Scheme, v.secret)
	if err != nil {
		t.Fatal(err)
	}
	return secrets
}

func headerOf(all map[string]string) http.Header {
	h := http.Header{}
	for name, value := range all {
		h.Set(name, value)
	}
	return h
}

// verified checks a delivery completely: its headers, and its body if the scheme signs the body.
func (v Verify) verified(h http.Header, body []byte, secrets [][]byte, now time.Time) error {
	s, err := v.readHeader(h, secrets, now)
	if err == nil && !s.valid(body, secrets) {
		err = errSignature
	}
	return err
}

func TestVerify_AcceptsPublishedVectors(t *testing.T) {
	for _, v := range vectors {
		if err := v.verify.verified(headerOf(v.header), []byte(v.body), v.secrets(t), v.at); err != nil {
			t.Errorf("%s: got %v, want a valid delivery", v.name, err)
		}
	}
}

// Each changed bit of the body, and each changed byte of a header, must make a delivery invalid.
func TestVerify_RefusesEachChangedByte(t *testing.T) {
	for _, v := range vectors {
		secrets := v.secrets(t)
		for i := range len(v.body) {
			for bit := range 8 {
				body := []byte(v.body)
				body[i] ^= 1 << bit
				if err := v.verify.verified(headerOf(v.header), body, secrets, v.at); !errors.Is(err, errSignature) {
					t.Fatalf("%s: bit %d of body byte %d changed: got %v, want %v", v.name, bit, i, err, errSignature)
				}
			}
		}
		for _, body := range []string{"", v.body + " ", v.body + "\n", v.body[1:]} {
			if err := v.verify.verified(headerOf(v.header), []byte(body), secrets, v.at); !errors.Is(err, errSignature) {
				t.Errorf("%s: body %q: got %v, want %v", v.name, body, err, errSignature)
			}
		}
		for name, value := range v.header {
			for i := range len(value) {
				changed := []byte(value)
				changed[i] ^= 0x01
				h := headerOf(v.header)
				h.Set(name, string(changed))
				err := v.verify.verified(h, []byte(v.body), secrets, v.at)
				if unsigned := v.verify.Scheme == Stripe && i > strings.Index(value, ",v0") && i < strings.Index(value, ",v1"); unsigned || equivalent(v, value, string(changed)) {
					continue // the byte belongs to an ignored signature, or the changed header encodes the same signature
				}
				if err == nil {
					t.Errorf("%s: %s with byte %d changed: got a valid delivery, want an error", v.name, name, i)
				}
			}
			h := headerOf(v.header)
			h.Del(name)
			if err := v.verify.verified(h, []byte(v.body), secrets, v.at); err == nil {
				t.Errorf("%s: without %s: got a valid delivery, want an error", v.name, name)
			}
			h = headerOf(v.header)
			h.Add(name, value)
			if err := v.verify.verified(h, []byte(v.body), secrets, v.at); err == nil {
				t.Errorf("%s: %s sent twice: got a valid delivery, want an error", v.name, name)
			}
		}
	}
}

// equivalent reports whether two values of a header encode the same signature. This is possible because
// the last digit of base64 has unused bits, and hexadecimal digits can be written in upper or lower
// case.
func equivalent(v vector, a, b string) bool {
	if strings.EqualFold(a, b) && a != b {
		return true
	}
	at := strings.LastIndex(a, ",") + 1
	x, errX := base64.StdEncoding.DecodeString(a[at:])
	y, errY := base64.StdEncoding.DecodeString(b[min(at, len(b)):])
	return v.verify.Scheme != GitHub && errX == nil && errY == nil && bytes.Equal(x, y)
}

func TestVerify_RefusesOldAndFutureTimestamps(t *testing.T) {
	for _, v := range vectors {
		if v.at.IsZero() {
			continue
		}
		for skew, want := range map[time.Duration]error{
			0: nil, maxAge: nil, -maxAge: nil, maxAge + time.Second: errAge, -maxAge - time.Second: errAge, 24 * time.Hour: errAge,
		} {
			if err := v.verify.verified(headerOf(v.header), []byte(v.body), v.secrets(t), v.at.Add(skew)); !errors.Is(err, want) {
				t.Errorf("%s after %v: got %v, want %v", v.name, skew, err, want)
			}
		}
		for _, timestamp := range []string{"", "now", "1e9", "99999999999999999999", "-1", " 1614265330", "1614265330.5"} {
			h := headerOf(v.header)
			if v.verify.Scheme == Stripe {
				h.Set("Stripe-Signature", strings.Replace(h.Get("Stripe-Signature"), "1614265330", timestamp, 1))
			} else {
				h.Set("webhook-timestamp", timestamp)
			}
			if err := v.verify.verified(h, []byte(v.body), v.secrets(t), v.at); err == nil {
				t.Errorf("%s with the time %q: got a valid delivery, want an error", v.name, timestamp)
			}
		}
	}
}

func TestVerify_AcceptsBothSecretsOfARotation(t *testing.T) {
	const old, next, third = "the-old-secret-00", "the-next-secret-0", "another-secret-000"
	body := []byte(`{"a":1}`)
	sign := func(secret string) http.Header {
		m := hmac.New(sha256.New, []byte(secret))
		m.Write(body)
		return headerOf(map[string]string{"X-Hub-Signature-256": "sha256=" + hex.EncodeToString(m.Sum(nil)), "X-Token": secret})
	}
	for _, v := range []Verify{{Scheme: GitHub}, {Scheme: Token, Header: "X-Token"}} {
		secrets, err := parseSecrets(v.Scheme, old+"\n"+next+"\n")
		if err != nil {
			t.Fatal(err)
		}
		for secret, want := range map[string]error{old: nil, next: nil, third: errSignature, "": errSignature, old[:16]: errSignature, old + "x": errSignature} {
			if err := v.verified(sign(secret), body, secrets, time.Time{}); !errors.Is(err, want) {
				t.Errorf("%s: signed with %q: got %v, want %v", v.Scheme, secret, err, want)
			}
		}
	}
}

// An upstream that replaces its secret signs each delivery with both secrets.
func TestVerify_AcceptsOneOfSeveralSignatures(t *testing.T) {
	now := time.Unix(1614265330, 0)
	standard, stripe := vectors[1], vectors[2]
	h := headerOf(standard.header)
	h.Set("webhook-signature", "v1,AAAA v1a,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE= "+standard.header["webhook-signature"])
	if err := standard.verify.verified(h, []byte(standard.body), standard.secrets(t), now); err != nil {
		t.Errorf("standard-webhooks: got %v, want a valid delivery", err)
	}
	h.Set("webhook-signature", "v1a,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=")
	if err := standard.verify.verified(h, []byte(standard.body), standard.secrets(t), now); err == nil {
		t.Error("standard-webhooks with another version only: got a valid delivery, want an error")
	}
	h = headerOf(stripe.header)
	h.Set("Stripe-Signature", strings.Replace(h.Get("Stripe-Signature"), "v0=00", "v1=00", 1))
	if err := stripe.verify.verified(h, []byte(stripe.body), stripe.secrets(t), now); err != nil {
		t.Errorf("stripe: got %v, want a valid delivery", err)
	}
	h.Set("Stripe-Signature", "t=1,"+stripe.header["Stripe-Signature"]) // a header with two times is refused
	if err := stripe.verify.verified(h, []byte(stripe.body), stripe.secrets(t), now); err == nil {
		t.Error("stripe with two times: got a valid delivery, want an error")
	}
	h.Set("Stripe-Signature", "t="+strconv.FormatInt(now.Unix(), 10)+strings.Repeat(",v1=00", 1000)+","+strings.SplitAfterN(stripe.header["Stripe-Signature"], ",", 2)[1])
	if err := stripe.verify.verified(h, []byte(stripe.body), stripe.secrets(t), now); err == nil {
		t.Error("stripe with 1000 signatures: got a valid delivery, want an error")
	}
}

func TestVerify_AcceptsRecordedPayloads(t *testing.T) {
	const secret = "a-secret-of-sixteen"
	for _, name := range []string{"webhook.issues.edited.json", "webhook.pull_request.closed.json", "webhook.push.json"} {
		body, err := os.ReadFile("testdata/" + name)
		if err != nil {
			t.Fatal(err)
		}
		m := hmac.New(sha256.New, []byte(secret))
		m.Write(body)
		h := headerOf(map[string]string{"X-Hub-Signature-256": "sha256=" + hex.EncodeToString(m.Sum(nil))})
		v := Verify{Scheme: GitHub}
		if err := v.verified(h, body, [][]byte{[]byte(secret)}, time.Time{}); err != nil {
			t.Errorf("%s: got %v, want a valid delivery", name, err)
		}
		for i := 0; i < len(body); i += 7 { // Each check reads the whole body, so the test changes only every seventh byte.
			body[i] ^= 0x20
			if err := v.verified(h, body, [][]byte{[]byte(secret)}, time.Time{}); err == nil {
				t.Fatalf("%s with byte %d changed: got a valid delivery, want an error", name, i)
			}
			body[i] ^= 0x20
		}
	}
}

func TestSecrets_RefusesUnusableFiles(t *testing.T) {
	for _, bad := range []struct {
		scheme Scheme
		text   string
	}{
		{GitHub, ""},
		{GitHub, "\n \n"},
		{GitHub, "short-secret-15"},
		{GitHub, "a-secret-of-sixteen\nanother-secret-of-16\na-third-secret-of-16\n"},
		{StandardWebhooks, "whsec_not base64 at all!"},
		{StandardWebhooks, "whsec_AAAA"},
	} {
		secrets, err := parseSecrets(bad.scheme, bad.text)
		if err == nil {
			t.Errorf("%s %q: got %d secrets, want an error", bad.scheme, bad.text, len(secrets))
			continue
		}
		for line := range strings.Lines(bad.text) {
			if line = strings.TrimSpace(line); len(line) > 4 && strings.Contains(err.Error(), line) {
				t.Errorf("error of %q: got %v, want it without the secret", bad.text, err)
			}
		}
	}
	if got, err := parseSecrets(Token, " first-secret-0016 \r\n\r\nsecond-secret-016\r\n"); err != nil || len(got) != 2 || string(got[0]) != "first-secret-0016" || string(got[1]) != "second-secret-016" {
		t.Errorf("secrets: got %q, %v, want two without white space", got, err)
	}
}
