package source

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// An upstream may repeat the credential in its answer, as in links to itself. Whatever is
// made of an answer is searched for the credential's written forms before it leaves this
// package: content, samples, errors, validators.

// minRedacted is the length in bytes from which on a credential is searched for: shorter
// ones are in every text.
const minRedacted = 6

// redactedText takes the place of a credential.
var redactedText = []byte("REDACTED")

var percentHex = regexp.MustCompile("%[0-9A-F]{2}")

// secretForm is one written form of a credential.
type secretForm struct {
	text []byte
	// rare is where in its first half a byte stands that is rare in JSON: bytes.Index looks
	// for a first byte ten times as fast as for a whole word.
	rare int
}

// rarity orders bytes by how rare they are in JSON, the rarest first.
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

// in reports whether a text has the form in it.
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

// formsOf returns the written forms of credentials, the longest first: raw, as a part of a
// URL, as JSON in the ways in which encoders write it, and as base64.
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
		escaped := jsonEscape(value) // with <, > and & as \u003c, \u003e and \u0026
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

// canonicalString returns a text as canonical content has it between the quotes.
func canonicalString(text string) (out []byte) {
	for _, r := range text {
		out = appendEscaped(out, r)
	}
	return out
}

// forEachForm calls f with the written forms of all credentials until it returns false.
func (s *Source) forEachForm(f func(form []byte) bool) {
	for _, one := range s.credentials.secrets {
		value := one.Load()
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

// containsCredential reports whether the text has a credential in it. It allocates nothing.
func (s *Source) containsCredential(text []byte) (found bool) {
	for _, one := range s.credentials.secrets {
		value := one.Load()
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

// redact returns the text without any of the credentials.
func (s *Source) redact(text []byte) []byte {
	s.forEachForm(func(form []byte) bool {
		text = bytes.ReplaceAll(text, form, redactedText)
		return true
	})
	return text
}

// sample returns the beginning of a body without any of the credentials, also of one that
// lies across its end.
func (s *Source) sample(plain []byte) []byte {
	most := maxSampleBytes
	s.forEachForm(func(form []byte) bool {
		most = max(most, maxSampleBytes+len(form))
		return true
	})
	hidden := s.redact(bytes.Clone(plain[:min(len(plain), most)]))
	return hidden[:min(len(hidden), maxSampleBytes)]
}

// redactError returns the error without any of the credentials in its text.
func (s *Source) redactError(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	if hidden := string(s.redact([]byte(text))); hidden != text {
		return &redactedError{hidden, err}
	}
	return err
}

type redactedError struct {
	text string
	err  error
}

func (e *redactedError) Error() string        { return e.text }
func (e *redactedError) Is(target error) bool { return errors.Is(e.err, target) }

// extractDocument extracts one document into the content. A credential that the document repeats is
// replaced, and then the document is extracted once more: what stands where has moved.
func (s *Source) extractDocument(w *workspace, name string, body []byte, root *pathNode) error {
	c := &w.canonical
	before, mark := len(c.out), len(c.ignored)
	if err := c.appendEntry(name, body, root); err != nil || !s.containsCredential(c.out[before:]) {
		return err
	}
	value := before + len(canonicalName(name)) + len(`"":`)
	if before > 1 {
		value++ // the comma
	}
	hidden, n := s.redactJSON(c.out[value:])
	w.redacted += n
	c.out, c.ignored = c.out[:before], c.ignored[:mark]
	return c.appendEntry(name, hidden, root)
}

// punctuation is the bytes of canonical JSON that are part of no value.
const punctuation = `"[]{},:`

// redactJSON returns canonical JSON without any of the credentials in its strings, and
// without numbers that are one; n is how many there were.
func (s *Source) redactJSON(text []byte) (out []byte, n int) {
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
		s.forEachForm(func(form []byte) bool {
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
