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
	"time"
)

// Auth configures how the credential is sent, and from where its value is read.
type Auth struct {
	// Header is the name of the header that contains the credential, such as Authorization.
	Header string `yaml:"header"`
	// Query is the name of the query parameter that contains the credential, if it is not in a header.
	Query string `yaml:"query,omitempty"`
	// Prefix is the text before the credential in the header, as in "Bearer ".
	Prefix string `yaml:"prefix,omitempty"`
	// SecretEnv is the name of the environment variable with the credential.
	SecretEnv string `yaml:"secretEnv"`
	// SecretFile is the path of a file with the credential. It takes precedence over secretEnv. A changed
	// file is read within two seconds.
	SecretFile string `yaml:"secretFile"`
}

func (a Auth) check() error {
	switch {
	case !headerName.MatchString(a.Header):
		return fmt.Errorf("auth.header: %q is not a valid header name", a.Header)
	case a.Header != "" && a.Query != "":
		return errors.New("auth.query: the credential is sent either in a header or in the query; remove `auth.header` or `auth.query`")
	case a.Prefix != "" && a.Header == "":
		return errors.New("auth.prefix: needs auth.header, because the prefix is written before the credential in that header")
	case strings.ContainsFunc(a.Prefix, isControl):
		return errors.New("auth.prefix: contains a control character, such as a line break, which a header must not contain")
	}
	return nil
}

func isControl(r rune) bool { return r < ' ' || r == 0x7f }

// secret is the current value of one credential. Printing a secret does not print the value.
type secret struct{ atomic.Pointer[secretValue] }

type secretValue struct {
	text       string
	generation int64     // the generation of a token; 0 means that the credential does not renew itself
	until      time.Time // when a token expires; zero means never
	// forms are the spellings (raw, percent-encoded, base64 and so on) of this value and of the
	// previous value. Responses are searched for all of them. Calls in flight still use the previous
	// value, so their responses may contain it.
	forms []secretForm
}

func (s *secret) current() secretValue {
	if value := s.Load(); value != nil {
		return *value
	}
	return secretValue{}
}

func setCredentials(s *Source, secrets map[string]string) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(secrets)) {
		errs = append(errs, s.SetCredential(name, secrets[name]))
	}
	return errors.Join(errs...)
}

// SetCredential replaces the value of the named credential; an empty value removes it. Calls in
// flight keep the old value. A value that New would reject returns an error and changes
// nothing. The error never contains the value.
func (s *Source) SetCredential(name, value string) error {
	return s.credentials.set(s.config.Auth, name, secretValue{text: value})
}

// SetToken replaces the token of a credential that renews itself, as SetCredential does. No call is
// sent with the token after the time `until`.
func (s *Source) SetToken(name, value string, generation int64, until time.Time) error {
	return s.credentials.set(s.config.Auth, name, secretValue{text: value, generation: generation, until: until})
}

// ErrTokenEnded is returned for a call that was not sent, because its credential has no valid token.
var ErrTokenEnded = errors.New("the token of the call's credential has expired")

func (c *credentials) set(auth Auth, name string, value secretValue) error {
	entry := c.secrets[name]
	switch {
	case entry == nil:
		return fmt.Errorf("credentials: there is no credential %q", name)
	case value.text != "" && auth.Header == "" && auth.Query == "":
		return errors.New("auth.header: is missing; name the header that the credential is sent in")
	case strings.ContainsFunc(value.text, isControl):
		return errors.New("auth: the credential contains a control character, such as a line break, which a header must not contain")
	}
	value.forms = formsOf(value.text, entry.current().text)
	entry.Store(&value)
	return nil
}

// authorize adds the current value of the named credential to the request. It returns the number
// (generation) of the token that it added, or 0 if the credential does not renew itself. It returns an
// error if the source has no credential with that name, or if the token of the credential has expired.
func (s caller) authorize(req *http.Request, name string) (generation int64, err error) {
	entry := s.credentials.secrets[name]
	if entry == nil {
		return 0, fmt.Errorf("the permit is for credential %q, which the source does not have", name)
	}
	auth, current := s.config.Auth, entry.current()
	if s.credentials.renewing[name] && !time.Now().Before(current.until) {
		return 0, fmt.Errorf("credential %s: %w", name, ErrTokenEnded)
	}
	value := current.text
	switch {
	case auth.Query != "":
		// The transport calls the hook GotConn, which calls authorize, before it writes the URL to the
		// connection. The new query is therefore sent.
		req.URL.RawQuery = replaceParameter(req.URL.RawQuery, auth.Query, value)
	case value != "":
		req.Header.Set(auth.Header, auth.Prefix+value)
	case auth.Header != "":
		req.Header.Del(auth.Header)
	}
	return current.generation, nil
}

// replaceParameter returns the query with all parameters of that name removed and, if value is
// not empty, name=value appended.
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
