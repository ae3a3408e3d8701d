package token

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tidwall/gjson"

	"github.com/freshet/freshet/source/announced"
)

// Answer is a token that the token endpoint has returned, with its lifetime.
type Answer struct {
	Value string
	// Refresh is the new refresh token; empty means that the previous refresh token stays valid.
	Refresh  string
	Lifetime time.Duration
	// Assumed says why Lifetime is not the lifetime in the response; empty means that it is.
	Assumed string
}

// FailureError says why a request for a token returned no token, and whether the request can be
// repeated.
type FailureError struct {
	text string
	// NeedsOperator is true if repeating the request cannot succeed, such as a revoked refresh token.
	NeedsOperator bool
	// RetryAfter is the delay that the endpoint requests; 0 means none.
	RetryAfter time.Duration
	// ClockOffset is the endpoint's clock minus the clock of this process, if the answer has it.
	ClockOffset time.Duration
}

func (f *FailureError) Error() string { return f.text }

// maxAnswer is the maximum size of an answer in bytes, maxToken that of a token.
const maxAnswer, maxToken = 1 << 20, 16 << 10

// Do sends the request and reads the answer. `secrets` are removed from the error's text.
func (c Config) Do(client *http.Client, req *http.Request, secrets []string) (Answer, error) {
	resp, err := client.Do(req) //nolint:gosec // the URL comes from the configuration
	if err != nil {
		if u, ok := errors.AsType[*url.Error](err); ok {
			err = u.Err // use only the cause of the error, because the URL in u can contain a secret
		}
		return Answer{}, &FailureError{text: "the token endpoint did not answer: " + redact(err.Error(), secrets)}
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	received := time.Now()
	if err != nil || len(body) > maxAnswer {
		return Answer{}, &FailureError{text: fmt.Sprintf("the token endpoint answered %d with an incomplete body, or one above 1 MiB", resp.StatusCode)}
	}
	answer, err := c.read(resp, body, received, secrets)
	if f, ok := errors.AsType[*FailureError](err); ok {
		f.RetryAfter = announced.RetryAfter(true, resp.Header, received)
		if at, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
			f.ClockOffset = at.Sub(received)
		}
	}
	return answer, err
}

func (c Config) read(resp *http.Response, body []byte, now time.Time, secrets []string) (Answer, error) {
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return Answer{}, c.failure(resp.StatusCode, body, secrets)
	}
	read := func(setting string) string {
		p, _ := parsePlace(setting) // no error is possible: Check has rejected invalid places
		return p.read(resp, body)
	}
	valuePlace := cmp.Or(c.Value, "body:access_token")
	value := read(valuePlace)
	if value == "" {
		if code := gjson.GetBytes(body, "error"); gjson.ValidBytes(body) && code.Type == gjson.String {
			return Answer{}, c.failure(resp.StatusCode, body, secrets)
		}
		return Answer{}, &FailureError{text: fmt.Sprintf("the token endpoint answered %d (content type %.60q) without a token at %s", resp.StatusCode, redact(resp.Header.Get("Content-Type"), secrets), valuePlace)}
	}
	if len(value) > maxToken || strings.ContainsFunc(value, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return Answer{}, &FailureError{text: "the token endpoint returned a token that a header must not contain, or one above 16 KiB"}
	}
	a := Answer{Value: value, Refresh: read(cmp.Or(c.Refresh, "body:refresh_token"))}
	a.Lifetime, a.Assumed = c.lifetime(resp, body, now, append(slices.Clone(secrets), a.Value, a.Refresh))
	return a, nil
}

// lifetime returns the lifetime of the token, within its limits. If the response has no readable
// lifetime, it returns an assumed lifetime and no error. The token must be stored nevertheless, because
// the response may contain a new refresh token.
func (c Config) lifetime(resp *http.Response, body []byte, now time.Time, secrets []string) (time.Duration, string) {
	fallback := cmp.Or(c.Lifetime, defaultLifetime)
	setting := cmp.Or(c.Expires, "body:expires_in")
	p, _ := parsePlace(setting) // no error is possible: Check has rejected invalid places
	var seconds float64
	var ok bool
	text := strings.TrimSpace(p.read(resp, body))
	if p.kind == "cookie" {
		if seconds, ok = cookieLifetime(resp, p.name, now); !ok {
			text = ""
		}
	} else {
		seconds, ok = secondsOf(text, resp, now)
	}
	text = redact(text, secrets)
	switch {
	case !ok && text == "":
		return fallback, fmt.Sprintf("the answer has no %s; the lifetime is taken to be %v (token.lifetime)", setting, fallback)
	case !ok:
		return fallback, fmt.Sprintf("%s is %.40q, which is neither seconds nor a time; the lifetime is taken to be %v (token.lifetime)", setting, text, fallback)
	case seconds < minLifetime.Seconds():
		return minLifetime, fmt.Sprintf("%s is %.40q, below the minimum; the lifetime is taken to be %v", setting, text, minLifetime)
	case seconds > maxLifetime.Seconds():
		return maxLifetime, fmt.Sprintf("%s is %.40q, above the maximum; the lifetime is taken to be %v", setting, text, maxLifetime)
	}
	return time.Duration(seconds * float64(time.Second)), ""
}

// secondsOf reads seconds, or a time relative to the clock of the endpoint.
func secondsOf(text string, resp *http.Response, now time.Time) (float64, bool) {
	const epochStart = 1e9 // a larger number is a time, in seconds since 1970
	n, err := strconv.ParseFloat(text, 64)
	if err == nil && (math.IsNaN(n) || math.IsInf(n, 0)) {
		return 0, false
	}
	if err == nil && n < epochStart {
		return n, true
	}
	if at, dateErr := http.ParseTime(resp.Header.Get("Date")); dateErr == nil {
		now = at
	}
	switch {
	case err == nil && n > 1e12: // the number is so large that it is a time in milliseconds
		return n/1000 - float64(now.Unix()), true
	case err == nil:
		return n - float64(now.Unix()), true
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02 15:04:05"} {
		if at, err := time.Parse(layout, text); err == nil {
			return at.Sub(now).Seconds(), true
		}
	}
	if at, err := http.ParseTime(text); err == nil {
		return at.Sub(now).Seconds(), true
	}
	return 0, false
}

func cookieLifetime(resp *http.Response, name string, now time.Time) (float64, bool) {
	for _, cookie := range resp.Cookies() {
		switch {
		case cookie.Name != name:
		case cookie.MaxAge != 0:
			return float64(cookie.MaxAge), true
		case !cookie.Expires.IsZero():
			return secondsOf(cookie.Expires.UTC().Format(time.RFC3339), resp, now)
		}
	}
	return 0, false
}

func (p place) read(resp *http.Response, body []byte) string {
	switch p.kind {
	case "header":
		return resp.Header.Get(p.name)
	case "cookie":
		for _, cookie := range resp.Cookies() {
			if cookie.Name == p.name {
				return cookie.Value
			}
		}
		return ""
	}
	if !json.Valid(body) {
		return ""
	}
	return gjson.GetBytes(bytes.TrimSpace(body), p.name).String()
}

// failure describes an error answer (RFC 6749 §5.2).
func (c Config) failure(status int, body []byte, secrets []string) *FailureError {
	code, description := "", ""
	if json.Valid(body) {
		code, description = gjson.GetBytes(body, "error").String(), gjson.GetBytes(body, "error_description").String()
	}
	f := &FailureError{text: fmt.Sprintf("the token endpoint answered %d %s", status, http.StatusText(status))}
	if code != "" {
		f.text += fmt.Sprintf(": %.80s", printable(redact(code, secrets)))
	}
	if description != "" {
		f.text += fmt.Sprintf(" (%.200s)", printable(redact(description, secrets)))
	}
	refused := status == http.StatusBadRequest || status == http.StatusUnauthorized || status == http.StatusForbidden
	switch c.Grant {
	case RefreshToken:
		f.NeedsOperator = code == "invalid_grant" || code == "consent_required" || code == "interaction_required"
	case Login: // repeated logins with a wrong password can lock an account
		f.NeedsOperator = refused
	}
	return f
}

func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, text)
}

// redact replaces each secret and its encoded forms.
func redact(text string, secrets []string) string {
	secrets = slices.Clone(secrets)
	slices.SortFunc(secrets, func(a, b string) int { return len(b) - len(a) })
	for _, secret := range secrets {
		if len(secret) < 4 {
			continue
		}
		for _, form := range []string{secret, url.QueryEscape(secret), escapeJSON(secret), base64.StdEncoding.EncodeToString([]byte(secret))} {
			text = strings.ReplaceAll(text, form, "REDACTED")
		}
	}
	return text
}
