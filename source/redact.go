package source

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// minRedacted is the minimum length in bytes of a credential that responses are searched for.
// Shorter credentials would match ordinary text.
const minRedacted = 6

// redactedText is written in place of a credential. An upstream may repeat the credential in a
// response, for example in links to itself. All values that leave this package are therefore
// searched: content, samples, errors, validators.
var redactedText = []byte("REDACTED")

var percentHex = regexp.MustCompile("%[0-9A-F]{2}")

// secretForm is one written form of a credential, for example percent-encoded.
type secretForm struct {
	text []byte
	// rare is the index of a byte in the first half of text that is rare in JSON. Searching for
	// text[rare:] is up to ten times faster, because bytes.Index skips quickly to its first
	// byte.
	rare int
}

// rarity lists bytes by their frequency in JSON, the rarest first.
const rarity = "QZXJVKWYqzxjUHGFBPRDMLSTNCOIAE%+=\\98765432"

func newForm(text string) secretForm {
	f, best := secretForm{text: []byte(text)}, len(rarity)
	for i := range len(text) / 2 {
		if rank := strings.IndexByte(rarity, text[i]); rank >= 0 && rank < best {
			f.rare, best = i, rank
		}
	}
	return f
}

// in reports whether the text contains the credential in this written form.
func (f secretForm) in(text []byte) bool {
	head, tail := f.text[:f.rare], f.text[f.rare:]
	for at := 0; ; at++ {
		i := bytes.Index(text[at:], tail)
		if i < 0 {
			return false
		}
		if at += i; bytes.HasSuffix(text[:at], head) {
			return true
		}
	}
}

// formsOf returns the written forms of credentials, longest first: raw, URL-encoded, escaped as
// different JSON encoders do, and base64.
func formsOf(values ...string) (forms []secretForm) {
	add := func(text string) {
		if !slices.ContainsFunc(forms, func(f secretForm) bool { return string(f.text) == text }) {
			forms = append(forms, newForm(text))
		}
	}
	for _, value := range values {
		if len(value) < minRedacted {
			continue
		}
		escaped := jsonEscape(value) // json.Marshal writes <, > and & as \u003c, \u003e and \u0026
		for _, text := range []string{
			value, string(canonicalString(value)), escaped, strings.ReplaceAll(escaped, "/", `\/`), strings.ReplaceAll(string(canonicalString(value)), "/", `\/`),
			percentEncode(value), url.QueryEscape(value), url.PathEscape(value),
			base64.RawStdEncoding.EncodeToString([]byte(value)), base64.RawURLEncoding.EncodeToString([]byte(value)),
		} {
			add(text)
			add(percentHex.ReplaceAllStringFunc(text, strings.ToLower))
		}
	}
	slices.SortStableFunc(forms, func(a, b secretForm) int { return len(b.text) - len(a.text) })
	return forms
}

// canonicalString returns the text as it is written between quotes in canonical JSON.
func canonicalString(text string) (out []byte) {
	for _, r := range text {
		out = appendEscaped(out, r)
	}
	return out
}

// forEachForm calls f with each written form of each credential until f returns false.
func (c *credentials) forEachForm(f func(form []byte) bool) {
	for _, stored := range c.secrets {
		value := stored.Load()
		if value == nil {
			continue
		}
		for _, form := range value.forms {
			if !f(form.text) {
				return
			}
		}
	}
}

// containsCredential reports whether text contains a credential. It does not allocate.
func (c *credentials) containsCredential(text []byte) (found bool) {
	for _, stored := range c.secrets {
		value := stored.Load()
		if value == nil {
			continue
		}
		for _, form := range value.forms {
			if form.in(text) {
				return true
			}
		}
	}
	return false
}

// redact returns text with all credentials replaced.
func (c *credentials) redact(text []byte) []byte {
	c.forEachForm(func(form []byte) bool {
		text = bytes.ReplaceAll(text, form, redactedText)
		return true
	})
	return text
}

// sample returns the first maxSampleBytes of a body with all credentials replaced. A credential
// that is cut by the end of the sample is replaced too.
func (c *credentials) sample(plain []byte) []byte {
	limit := maxSampleBytes
	c.forEachForm(func(form []byte) bool {
		limit = max(limit, maxSampleBytes+len(form))
		return true
	})
	redacted := c.redact(bytes.Clone(plain[:min(len(plain), limit)]))
	return redacted[:min(len(redacted), maxSampleBytes)]
}

func (c *credentials) redactText(text string) string { return string(c.redact([]byte(text))) }

func (c *credentials) redactHeader(header http.Header) http.Header {
	redacted := make(http.Header, len(header))
	for name, values := range header {
		redacted[name] = strings.Split(c.redactText(strings.Join(values, "\x00")), "\x00")
	}
	return redacted
}

// storableValidator returns the validator, or "" if it must not be stored and sent again. Such a
// validator is too long, has bytes that are not valid text in a database (RFC 9110 §5.5), or
// contains the credential.
func (c *credentials) storableValidator(validator string) string {
	const maxLength = 1 << 10
	if len(validator) > maxLength || c.containsCredential([]byte(validator)) || strings.ContainsFunc(validator, func(r rune) bool { return r < ' ' || r > '~' }) {
		return ""
	}
	return validator
}

// redactError returns err, with all credentials in its text replaced.
func (c *credentials) redactError(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	if redacted := string(c.redact([]byte(text))); redacted != text {
		return &redactedError{redacted, err}
	}
	return err
}

// secretParameter matches the names of query parameters whose values can be secrets. A link of the
// upstream, for example to the next page, may contain a secret that the configuration does not contain.
var secretParameter = regexp.MustCompile(`(?i)pass|pwd|secret|token|credential|signature|session|auth|api[._-]?key|access[._-]?key|^sig$|^key$|^code$`)

// RedactURL returns a URL for logs and messages, without user and fragment. It replaces all
// credentials, and the values of query parameters whose names secretParameter matches. It returns an
// empty string for nil.
func (s *Source) RedactURL(u *url.URL) string {
	if u == nil {
		return ""
	}
	shown := *u
	shown.User, shown.Fragment, shown.RawFragment = nil, "", ""
	pairs := strings.Split(u.RawQuery, "&")
	for i, pair := range pairs {
		written, _, hasValue := strings.Cut(pair, "=")
		name, err := url.QueryUnescape(written)
		if hasValue && (err != nil || secretParameter.MatchString(name)) {
			pairs[i] = written + "=" + string(redactedText)
		}
	}
	shown.RawQuery = strings.Join(pairs, "&")
	return string(s.credentials.redact([]byte(shown.String())))
}

type redactedError struct {
	text string
	err  error
}

func (e *redactedError) Error() string        { return e.text }
func (e *redactedError) Is(target error) bool { return errors.Is(e.err, target) }

// punctuation lists the bytes of canonical JSON that separate values.
const punctuation = `"[]{},:`

// redactJSON returns canonical JSON with all credentials replaced in strings, and numbers replaced
// that equal a credential. `n` is the number of replacements.
func (c *credentials) redactJSON(text []byte) (out []byte, n int) {
	out = make([]byte, 0, len(text))
	for len(text) > 0 {
		end := 1
		switch {
		case text[0] == '"':
			for text[end] != '"' {
				if text[end] == '\\' {
					end++
				}
				end++
			}
			end++
		case strings.IndexByte(punctuation, text[0]) < 0:
			for end < len(text) && strings.IndexByte(punctuation, text[end]) < 0 {
				end++
			}
		}
		token := text[:end]
		text = text[end:]
		c.forEachForm(func(form []byte) bool {
			switch {
			case token[0] == '"':
				if m := bytes.Count(token, form); m > 0 {
					token, n = bytes.ReplaceAll(token, form, redactedText), n+m
				}
			case bytes.Equal(token, form) && json.Valid(token):
				token, n = []byte(`"`+string(redactedText)+`"`), n+1
			}
			return true
		})
		out = append(out, token...)
	}
	return out, n
}

// extractDocument extracts one document into the content. If the result contains a credential, the
// credential is replaced and the document is extracted again, because the replacement moves the
// positions of the ignored values.
func (w *workspace) extractDocument(secrets *credentials, name string, body []byte, root *pathNode) error {
	c := &w.canonical
	before, mark := len(c.out), len(c.ignored)
	if err := c.appendEntry(name, body, root); err != nil || !secrets.containsCredential(c.out[before:]) {
		return err
	}
	value := before + len(canonicalName(name)) + len(`"":`)
	if before > 1 {
		value++ // count the comma that precedes each member except the first
	}
	redacted, n := secrets.redactJSON(c.out[value:])
	w.redacted += n
	c.out, c.ignored = c.out[:before], c.ignored[:mark]
	return c.appendEntry(name, redacted, root)
}
