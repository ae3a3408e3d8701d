package webhooks

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/schemas"
)

// Config configures one webhook. A query service receives its deliveries at POST
// /hooks/{source}/{name}.
type Config struct {
	// Verify configures how freshet checks that the upstream has sent a delivery.
	Verify Verify `yaml:"verify"`
	// Map lists rules. A rule whose condition is true chooses entities to refresh. Several rules can
	// apply to one delivery.
	Map []Rule `yaml:"map"`
	// NewKeys is the maximum rate of refreshes of keys that are neither stored nor registered, such as
	// 60/m. 0 means that such keys are not refreshed. Each process has its own limit.
	NewKeys access.Rate `yaml:"newKeys,omitempty"`
}

// Verify configures the verification of deliveries.
type Verify struct {
	// Scheme names the way in which the upstream signs a delivery. github: the header
	// X-Hub-Signature-256 has the signature. standard-webhooks: the headers webhook-id,
	// webhook-timestamp and webhook-signature. stripe: the header Stripe-Signature. hmac: the header
	// that the setting header names has an HMAC of the body. token: this header has the secret itself.
	Scheme Scheme `yaml:"scheme" enum:"github,standard-webhooks,stripe,hmac,token"`
	// SecretFile is the path of a file with the secret. A second line of the file is a second valid
	// secret, so that the secret can be replaced without a gap. Changes of the file are noticed within
	// seconds.
	SecretFile string `yaml:"secretFile,omitempty"`
	// SecretEnv is the name of the environment variable with the secret. It is used if secretFile is
	// not set.
	SecretEnv string `yaml:"secretEnv,omitempty"`
	// Header is the name of the header with the signature (scheme hmac) or the secret (scheme token).
	Header string `yaml:"header,omitempty"`
	// Prefix is the text in that header before the signature or the secret, such as "sha256=" or
	// "Bearer ".
	Prefix string `yaml:"prefix,omitempty"`
	// Algorithm is the hash function of the scheme hmac. The default is sha256.
	Algorithm string `yaml:"algorithm,omitempty" enum:",sha256,sha512"`
	// Encoding is the encoding of the signature of the scheme hmac. The default is hex.
	Encoding string `yaml:"encoding,omitempty" enum:",hex,base64"`
}

// Rule chooses the entities that a delivery refreshes.
type Rule struct {
	// When is the condition of the rule; without it, the rule applies to each delivery.
	When Condition `yaml:"when,omitempty"`
	// Facet is the facet of the entities that are refreshed.
	Facet string `yaml:"facet"`
	// Key says where the delivery has the key: "body:" and a path in the JSON body, or "header:" and a
	// name. A path has names and indexes joined by dots. # stands for each element of an array, as in
	// body:events.#.id. A delivery can have up to 1000 keys.
	Key string `yaml:"key"`
	// Delay is the time to wait after a delivery for an entity before the entity is refreshed. Each
	// further delivery for the entity starts the wait again. From 1s to 24h; 0s means no delay.
	Delay time.Duration `yaml:"delay,omitempty"`
	// MaxDelay is the maximum time from the first delivery to the refresh. 0s means ten times delay,
	// at most 24h.
	MaxDelay time.Duration `yaml:"maxDelay,omitempty"`
	// Lane is the lane of the refresh. The default is LOW. A refresh in the lane HIGH delays the
	// requests of waiting clients.
	Lane schemas.Lane `yaml:"lane,omitempty" enum:",HIGH,LOW"`
}

// Condition compares one value of a delivery. The value comes from a header or from the body, so
// exactly one of these two settings must be set.
type Condition struct {
	// Header is the name of a header, such as X-GitHub-Event.
	Header string `yaml:"header,omitempty"`
	// Body is a path in the JSON body, such as type.
	Body string `yaml:"body,omitempty"`
	// Equals lists texts. The condition is true if the value is one of them.
	Equals []string `yaml:"equals,omitempty"`
}

// Scheme is the method by which the deliveries of a webhook are signed.
type Scheme string

// The values of Scheme.
const (
	GitHub           Scheme = "github"
	StandardWebhooks Scheme = "standard-webhooks"
	Stripe           Scheme = "stripe"
	HMAC             Scheme = "hmac"
	Token            Scheme = "token"
)

var schemes = []Scheme{GitHub, StandardWebhooks, Stripe, HMAC, Token}

const (
	minDelay, maxDelay = time.Second, 24 * time.Hour
	// delaysUntilMax times Delay is the default of MaxDelay.
	delaysUntilMax = 10
)

// Delays returns Delay and MaxDelay. For a MaxDelay of 0 it returns the default.
func (r Rule) Delays() (delay, longest time.Duration) {
	if r.MaxDelay == 0 {
		return r.Delay, min(delaysUntilMax*r.Delay, maxDelay)
	}
	return r.Delay, r.MaxDelay
}

var (
	headerName = regexp.MustCompile("^[0-9A-Za-z!#$%&'*+.^_`|~-]{1,128}$") // a token of RFC 9110 §5.6.2
	// hookName is a name that needs no escaping in a path and a metric label.
	hookName = regexp.MustCompile("^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")
)

// CheckName returns an error if a webhook can't have this name.
func CheckName(name string) error {
	if !hookName.MatchString(name) {
		return fmt.Errorf("the webhook's name %.80q may contain only lower-case letters, digits and inner hyphens, at most 63", name)
	}
	return nil
}

// Check returns all errors that can be found without the secret. Each error begins with the path of
// the wrong setting within the webhook. For a facet of the source, the function `openParams` returns
// the params that get no value from the configuration or the key. For an unknown facet, `known` is
// false.
func (c Config) Check(openParams func(facet string) (open []string, known bool)) error {
	errs := c.Verify.check()
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if calls, _ := c.NewKeys.Parse(); calls == 0 && c.NewKeys != "" && c.NewKeys != "0" {
		fail("newKeys: %q must be a whole number per second, minute or hour, as in 60/m, or 0 for known keys only", string(c.NewKeys))
	}
	if len(c.Map) == 0 {
		fail(`map: at least one rule is required, as in [{facet: issues, key: "body:repository.full_name"}]`)
	}
	for i, r := range c.Map {
		for _, err := range r.check() {
			fail("map[%d].%w", i, err)
		}
		open, known := openParams(r.Facet)
		calls, _ := c.NewKeys.Parse()
		switch {
		case !known:
			fail("map[%d].facet: there is no facet %q in the source", i, r.Facet)
		case calls > 0 && len(open) > 0:
			fail("map[%d].facet: newKeys can't fetch a new key of %s, because the configuration has no value for %s; register the entities, or remove newKeys", i, r.Facet, strings.Join(open, " and "))
		}
	}
	return errors.Join(errs...)
}

func (v Verify) check() (errs []error) {
	fail := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("verify."+format, args...))
	}
	if !slices.Contains(schemes, v.Scheme) {
		fail("scheme: %q must be github, standard-webhooks, stripe, hmac or token", string(v.Scheme))
	}
	switch {
	case v.SecretFile == "" && v.SecretEnv == "":
		fail("secretFile: is missing; name a file with the secret that the upstream signs with, or a variable with secretEnv")
	case v.SecretFile != "" && v.SecretEnv != "":
		fail("secretEnv: secretFile is set too; remove one of them")
	}
	own := v.Scheme == HMAC || v.Scheme == Token
	switch {
	case own && !headerName.MatchString(v.Header):
		fail("header: %.80q must be the name of the header with the %s, as in X-Signature", v.Header, map[Scheme]string{HMAC: "signature", Token: "secret"}[v.Scheme])
	case !own && (v.Header != "" || v.Prefix != ""):
		fail("header: the scheme %s defines its headers; remove header and prefix", v.Scheme)
	}
	if v.Scheme != HMAC && (v.Algorithm != "" || v.Encoding != "") {
		fail("algorithm: only the scheme hmac has algorithm and encoding; remove them")
	}
	if v.Scheme == HMAC && !slices.Contains([]string{"", "sha256", "sha512"}, v.Algorithm) {
		fail("algorithm: %q must be sha256 or sha512", v.Algorithm)
	}
	if v.Scheme == HMAC && !slices.Contains([]string{"", "hex", "base64"}, v.Encoding) {
		fail("encoding: %q must be hex or base64", v.Encoding)
	}
	return errs
}

func (r Rule) check() (errs []error) {
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if err := checkPlace(r.Key); err != nil {
		fail("key: %w", err)
	}
	w := r.When
	switch {
	case w.Header == "" && w.Body == "" && len(w.Equals) == 0: // the rule has no condition
	case (w.Header == "") == (w.Body == ""):
		fail("when: name either a header or a path in the body, as in {header: X-GitHub-Event, equals: [issues]}")
	case len(w.Equals) == 0:
		fail("when.equals: list the values for which the rule applies, as in [issues]")
	case w.Header != "" && !headerName.MatchString(w.Header):
		fail("when.header: %.80q must be the name of a header, as in X-GitHub-Event", w.Header)
	case w.Body != "":
		if err := checkPath(w.Body); err != nil {
			fail("when.body: %w", err)
		}
	}
	if r.Delay != 0 && (r.Delay < minDelay || r.Delay > maxDelay) {
		fail("delay: %v must be from %v to %v, or 0s for no delay", r.Delay, minDelay, maxDelay)
	}
	switch {
	case r.MaxDelay != 0 && r.Delay == 0:
		fail("maxDelay: there is no delay to bound; set delay, or remove maxDelay")
	case r.MaxDelay != 0 && (r.MaxDelay < r.Delay || r.MaxDelay > maxDelay):
		fail("maxDelay: %v must be from delay (%v) to %v", r.MaxDelay, r.Delay, maxDelay)
	}
	if !slices.Contains([]schemas.Lane{"", schemas.High, schemas.Low}, r.Lane) {
		fail("lane: %q must be HIGH or LOW", string(r.Lane))
	}
	return errs
}

const bodyPlace, headerPlace = "body:", "header:"

// checkPlace checks the setting Rule.Key: the place of the key in a delivery.
func checkPlace(place string) error {
	if name, ok := strings.CutPrefix(place, headerPlace); ok {
		if !headerName.MatchString(name) {
			return fmt.Errorf("%.80q must name a header, as in header:X-Shop-Id", place)
		}
		return nil
	}
	path, ok := strings.CutPrefix(place, bodyPlace)
	if !ok {
		return fmt.Errorf("%.80q must begin with body: or header:, as in body:repository.full_name", place)
	}
	return checkPath(path)
}

// maxPathBytes is the maximum length of a path in a body.
const maxPathBytes = 512

// checkPath checks a path of package gjson. Only names, indexes, # and the wildcards * and ? are
// allowed. The other forms (modifiers, queries and several paths in one) would search the whole body
// many times.
func checkPath(path string) error {
	switch {
	case path == "" || len(path) > maxPathBytes:
		return fmt.Errorf("the path has %d bytes; it must have 1 to %d", len(path), maxPathBytes)
	case strings.ContainsAny(path, "@!|{}[]()") || strings.ContainsFunc(path, func(r rune) bool { return r < ' ' }):
		return fmt.Errorf("%.80q must have names joined by dots, as in events.#.id", path)
	case slices.Contains(strings.Split(path, "."), ""):
		return fmt.Errorf("%.80q has an empty name", path)
	case strings.HasSuffix(path, "#"): // such a path returns the length of the array
		return fmt.Errorf("%.80q ends with #; name a member of the elements, or remove the # if the elements are the keys", path)
	case strings.Count(path, "#") > maxArrays:
		return fmt.Errorf("%.80q may have # at most %d times", path, maxArrays)
	}
	return nil
}

// maxArrays is the maximum number of # in a path.
const maxArrays = 3
