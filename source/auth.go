package source

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
)

// Auth says how the credential travels and where it is found; the value is read by
// whoever builds the Source.
type Auth struct {
	// Header or Query name the header or the query parameter that carries it.
	Header string `yaml:"header"`
	Query  string `yaml:"query,omitempty"`
	// Prefix stands before it in the header, as in "Bearer ".
	Prefix     string `yaml:"prefix,omitempty"`
	SecretEnv  string `yaml:"secretEnv"`
	SecretFile string `yaml:"secretFile"`
}

func (a Auth) check() error {
	switch {
	case !headerName.MatchString(a.Header):
		return fmt.Errorf("auth.header: %q can't be the name of a header", a.Header)
	case a.Header != "" && a.Query != "":
		return errors.New("auth.query: the credential travels in the header or in the query, not in both; leave one of them out")
	case a.Prefix != "" && a.Header == "":
		return errors.New("auth.prefix: it stands before the credential in a header, and auth.header is empty")
	case strings.ContainsFunc(a.Prefix, isControl):
		return errors.New("auth.prefix: it holds a control character, such as a line's end; a header can't carry it")
	}
	return nil
}

func isControl(r rune) bool { return r < ' ' || r == 0x7f }

// secret is one credential's value as it is now; printing it shows nothing.
type secret struct{ atomic.Pointer[secretValue] }

type secretValue struct {
	text string
	// forms are the written forms of the value and of the one before it: calls under way end
	// with that.
	forms []secretForm
}

func (s *secret) current() string {
	if value := s.Load(); value != nil {
		return value.text
	}
	return ""
}

func (s *secret) set(text string) {
	s.Store(&secretValue{text, formsOf(text, s.current())})
}

func (s *Source) setCredentials(secrets map[string]string) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(secrets)) {
		errs = append(errs, s.SetCredential(name, secrets[name]))
	}
	return errors.Join(errs...)
}

// SetCredential puts another value in the place of the present one of the credential
// of that name; empty: none. Calls under way end with the one they began with. It
// refuses what New does, and then nothing changes; its error does not show the value.
func (s *Source) SetCredential(name, value string) error {
	at := s.credentials.secrets[name]
	switch {
	case at == nil:
		return fmt.Errorf("credentials: there is none of the name %q", name)
	case value != "" && s.config.Auth.Header == "" && s.config.Auth.Query == "":
		return errors.New("auth.header: a credential is configured, but not the header that carries it")
	case strings.ContainsFunc(value, isControl):
		return errors.New("auth: the credential holds a control character, such as a line's end; a header can't carry it")
	}
	at.set(value)
	return nil
}

// authorize gives the request the credential of that name as it is now. An error means
// that the source has none of the name.
func (s *Source) authorize(req *http.Request, name string) error {
	at := s.credentials.secrets[name]
	if at == nil {
		return fmt.Errorf("the permit is for a credential of the name %q, and the source has none", name)
	}
	auth, value := s.config.Auth, at.current()
	switch {
	case auth.Query != "":
		// The transport holds the URL by this pointer and writes it after this.
		req.URL.RawQuery = replaceParameter(req.URL.RawQuery, auth.Query, value)
	case value != "":
		req.Header.Set(auth.Header, auth.Prefix+value)
	case auth.Header != "":
		req.Header.Del(auth.Header)
	}
	return nil
}

// replaceParameter returns a query with one parameter of that name, at its end, in the
// place of all that are there; empty: with none.
func replaceParameter(query, name, value string) string {
	var kept []string
	for pair := range strings.SplitSeq(query, "&") {
		written, _, _ := strings.Cut(pair, "=")
		if plain, err := url.QueryUnescape(written); pair != "" && (err != nil || plain != name) {
			kept = append(kept, pair)
		}
	}
	if value != "" {
		kept = append(kept, percentEncode(name)+"="+percentEncode(value))
	}
	return strings.Join(kept, "&")
}
