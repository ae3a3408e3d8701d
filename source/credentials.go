package source

import (
	"errors"
	"fmt"
	"regexp"
	"slices"

	"github.com/freshet/freshet/source/token"
)

// Credential configures one credential of a source that has several credentials.
type Credential struct {
	// Name identifies the credential in limiter policies, metrics and the console. It has 1 to 40
	// letters, digits, - and _.
	Name string `yaml:"name"`
	// SecretEnv is the name of the environment variable with the credential.
	SecretEnv string `yaml:"secretEnv,omitempty"`
	// SecretFile is the path of a file with the credential. A changed file is read within two seconds.
	SecretFile string `yaml:"secretFile,omitempty"`
	// Token makes the credential renew itself. It replaces secretEnv and secretFile, and needs
	// secrets.keyFile.
	Token *token.Config `yaml:"token,omitempty"`
	// Keys is a regular expression that must match an entity's whole key; empty matches all
	// keys. If several credentials match, the first one decides the visibility, and all
	// matching credentials with that visibility are candidates.
	//
	// The expression is case-sensitive. If the upstream ignores case, "acme/.*" does not match
	// ACME/x, and the next credential is used. Write "(?i)acme/.*" to ignore case.
	Keys string `yaml:"keys,omitempty"`
	// Visibility is the name of the group of readers that may see the fetched data; empty means every
	// reader. A reader of the group has the scope see:NAME.
	Visibility string `yaml:"visibility,omitempty"`
}

// credentials has the configured credentials of a source in the form in which calls use them.
type credentials struct {
	all  []Credential
	keys []*regexp.Regexp
	// renewing has the names of the credentials with a token.
	renewing map[string]bool
	// secrets by the names of the credentials; the only name is "" if the source has one credential
	// without a name
	secrets map[string]*secret
}

func newCredentials(all []Credential, auth Auth, insecure bool) (credentials, error) {
	c := credentials{all: all, keys: make([]*regexp.Regexp, len(all)), secrets: map[string]*secret{}, renewing: map[string]bool{}}
	if len(all) == 0 {
		c.secrets[""] = &secret{}
	}
	if len(all) > 0 && (auth.SecretEnv != "" || auth.SecretFile != "") {
		return c, errors.New("auth.secretEnv and auth.secretFile: not allowed with credentials; write secretEnv or secretFile for each credential")
	}
	if len(all) > 0 && auth.Header == "" && auth.Query == "" {
		return c, errors.New("auth.header: is missing; credentials need auth.header or auth.query")
	}
	for i, cred := range all {
		switch {
		case !credentialName.MatchString(cred.Name):
			return c, fmt.Errorf("credentials[%d].name: %q must be 1 to 40 letters, digits, - and _", i, cred.Name)
		case c.secrets[cred.Name] != nil:
			return c, fmt.Errorf("credentials[%d].name: %q is used twice", i, cred.Name)
		case cred.Visibility != "" && !credentialName.MatchString(cred.Visibility):
			return c, fmt.Errorf("credentials[%d].visibility: %q must be 1 to 40 letters, digits, - and _", i, cred.Visibility)
		case cred.Token != nil && (cred.SecretEnv != "" || cred.SecretFile != ""):
			return c, fmt.Errorf("credentials[%d].token: replaces secretEnv and secretFile; remove them", i)
		case cred.Token == nil && (cred.SecretEnv == "") == (cred.SecretFile == ""):
			return c, fmt.Errorf("credentials[%d]: set exactly one of `secretEnv`, `secretFile` and `token`", i)
		}
		if cred.Token != nil {
			c.renewing[cred.Name] = true
			if err := cred.Token.Check(insecure); err != nil {
				return c, fmt.Errorf("credentials[%d].token.%w", i, err)
			}
		}
		c.secrets[cred.Name] = &secret{}
		pattern := cred.Keys
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

// forKey returns the candidate credentials for a key and the visibility of the data that they
// fetch. A source that lists no credentials has one candidate with the empty name.
func (c *credentials) forKey(key string) (names []string, visibility string) {
	if len(c.all) == 0 {
		return []string{""}, ""
	}
	for i, cred := range c.all {
		if !c.keys[i].MatchString(key) {
			continue
		}
		if len(names) == 0 {
			visibility = cred.Visibility
		}
		if cred.Visibility == visibility {
			names = append(names, cred.Name)
		}
	}
	return names, visibility
}

// Visibility returns the visibility of entities with that key; empty allows every reader.
func (s *Source) Visibility(key string) string {
	_, visibility := s.credentials.forKey(key)
	return visibility
}

// Visibilities returns the visibilities that entities of the source can have; an empty one allows
// every reader.
func (s *Source) Visibilities() []string {
	if len(s.credentials.all) == 0 {
		return []string{""}
	}
	var all []string
	for _, cred := range s.credentials.all {
		all = append(all, cred.Visibility)
	}
	slices.Sort(all)
	return slices.Compact(all)
}
