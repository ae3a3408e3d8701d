package source

import (
	"errors"
	"fmt"
	"regexp"
)

// Credential is one of several that a source calls with.
type Credential struct {
	// Name tells it apart, in the limiter's policies and in what operators see.
	Name string `yaml:"name"`
	// SecretEnv or SecretFile say where it is found.
	SecretEnv  string `yaml:"secretEnv,omitempty"`
	SecretFile string `yaml:"secretFile,omitempty"`
	// Keys is a regular expression of the whole keys that it is used for; empty: of
	// all. Of the credentials whose keys match, those that see what the first of them
	// sees are used. It is case-sensitive: where the upstream's keys are not, ACME/x passes
	// by "acme/.*" to the next credential. Write (?i) in front, as in "(?i)acme/.*".
	Keys string `yaml:"keys,omitempty"`
	// Visibility names who may see what is fetched with it; empty: every reader.
	Visibility string `yaml:"visibility,omitempty"`
}

// credentials are those of a source, ready for use.
type credentials struct {
	all     []Credential
	keys    []*regexp.Regexp
	secrets map[string]*secret // by name; of a source that lists none, by the empty one
}

func newCredentials(all []Credential, auth Auth) (credentials, error) {
	c := credentials{all: all, keys: make([]*regexp.Regexp, len(all)), secrets: map[string]*secret{}}
	if len(all) == 0 {
		c.secrets[""] = &secret{}
	}
	if len(all) > 0 && (auth.SecretEnv != "" || auth.SecretFile != "") {
		return c, errors.New("auth.secretEnv and auth.secretFile: say of each credential where it is found, or list no credentials")
	}
	if len(all) > 0 && auth.Header == "" && auth.Query == "" {
		return c, errors.New("auth.header: credentials are listed, but not the header, or auth.query, that carries them")
	}
	for i, one := range all {
		switch {
		case !credentialName.MatchString(one.Name):
			return c, fmt.Errorf("credentials[%d].name: %q must be 1 to 40 letters, digits, - and _", i, one.Name)
		case c.secrets[one.Name] != nil:
			return c, fmt.Errorf("credentials[%d].name: %q is taken by another one", i, one.Name)
		case one.Visibility != "" && !credentialName.MatchString(one.Visibility):
			return c, fmt.Errorf("credentials[%d].visibility: %q must be 1 to 40 letters, digits, - and _", i, one.Visibility)
		case (one.SecretEnv == "") == (one.SecretFile == ""):
			return c, fmt.Errorf("credentials[%d]: write either secretEnv or secretFile", i)
		}
		c.secrets[one.Name] = &secret{}
		pattern := one.Keys
		if pattern == "" {
			pattern = ".*"
		}
		var err error
		if c.keys[i], err = regexp.Compile("^(?:" + pattern + ")$"); err != nil {
			return c, fmt.Errorf("credentials[%d].keys: %w", i, err)
		}
	}
	return c, nil
}

var credentialName = regexp.MustCompile("^[0-9A-Za-z_-]{1,40}$")

// forKey returns the names of the credentials that an entity is fetched with, and who may
// see what they fetch. A source that lists none has one of the empty name.
func (c credentials) forKey(key string) (names []string, visibility string) {
	if len(c.all) == 0 {
		return []string{""}, ""
	}
	for i, one := range c.all {
		if !c.keys[i].MatchString(key) {
			continue
		}
		if len(names) == 0 {
			visibility = one.Visibility
		}
		if one.Visibility == visibility {
			names = append(names, one.Name)
		}
	}
	return names, visibility
}

// Visibility returns who may see what is fetched for an entity of that key; empty: every
// reader.
func (s *Source) Visibility(key string) string {
	_, visibility := s.credentials.forKey(key)
	return visibility
}
