package source

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/tidwall/gjson"

	"github.com/freshet/freshet/source/announced"
)

// Class is what an answer means; what follows from each is decided in one place
// by the consumer.
type Class string

// The classes, from the one that decides an entity of several documents first to
// the one that decides it last: as long as a credential is refused, say, nothing
// else that the answers say can be trusted.
const (
	AuthRefused Class = "auth"         // the credential is refused
	Maintenance Class = "maintenance"  // the upstream as a whole is closed
	Quota       Class = "quota"        // too many calls
	Transient   Class = "transient"    // may well succeed the next time
	BadContent  Class = "bad-content"  // not what was expected
	Permanent   Class = "permanent"    // refused for good
	NotReady    Class = "not-ready"    // the content comes later
	NotFound    Class = "not-found"    // there is no such entity
	NotModified Class = "not-modified" // as the validator says
	OK          Class = "ok"
)

// Classes are all of them, in that order.
var Classes = []Class{AuthRefused, Maintenance, Quota, Transient, BadContent, Permanent, NotReady, NotFound, NotModified, OK}

// Failed reports whether an answer of the class brought nothing that can be stored.
func (c Class) Failed() bool { return c != OK && c != NotModified && c != NotFound }

// Rule gives a class to the answers that fit all of its conditions. A rule
// without a status fits every status.
type Rule struct {
	Status int `yaml:"status"`
	// Header and Body are conditions on one header and on one member of a JSON
	// body, named by a gjson path.
	Header *Match `yaml:"header"`
	Body   *Match `yaml:"body"`
	// ContentType is the beginning of the content type.
	ContentType string `yaml:"contentType"`
	// Text is a regular expression that something in the first 64 KiB of the body
	// matches, whatever kind of text it is.
	Text  string `yaml:"text,omitempty"`
	Class Class  `yaml:"class"`
	// Block is what the class quota or auth stops; empty: what is usual for the class.
	Block string `yaml:"block,omitempty"`
	// Wait is for how long at least, also where the answer names a shorter time.
	Wait time.Duration `yaml:"wait,omitempty"`
}

// What an answer of the class quota or auth stops.
const (
	BlockCall       = "call"       // the call itself
	BlockEndpoint   = "endpoint"   // the document of the facet, for all keys
	BlockResource   = "resource"   // what is charged to the same budget
	BlockCredential = "credential" // what is called with the same credential
	BlockSource     = "source"     // everything
)

var allBlocks = []string{BlockCall, BlockEndpoint, BlockResource, BlockCredential, BlockSource}

// defaultBlock returns what answers of a class stop that no rule says it of; empty: nothing.
func defaultBlock(c Class) string {
	switch c {
	case Quota:
		return BlockSource
	case AuthRefused:
		return BlockCredential
	case Maintenance, Transient, BadContent, Permanent, NotReady, NotFound, NotModified, OK:
	}
	return ""
}

// Match is a condition on a named value: equal, or matching a regular
// expression; with neither, that it is there, or that it is missing.
type Match struct {
	Name    string `yaml:"name"`
	Equals  string `yaml:"equals"`
	Matches string `yaml:"matches"`
	// Missing is the condition that there is no such header or member; one that is
	// null is there. Of a body that is not JSON it says nothing: whatever such an
	// answer means, it is not that one member is missing.
	Missing bool `yaml:"missing"`
}

type compiledRule struct {
	Rule
	header, body, text *regexp.Regexp
}

// maxTextBytes is how much of a body a rule's text is looked for in.
const maxTextBytes = 64 << 10

func compileRules(rules []Rule) ([]compiledRule, error) {
	compiled := make([]compiledRule, len(rules))
	for i, r := range rules {
		compiled[i].Rule = r
		if !slices.Contains(Classes, r.Class) {
			return nil, fmt.Errorf("rules[%d].class: %q is not one of %v", i, r.Class, Classes)
		}
		if r.Class == OK || r.Class == NotModified {
			return nil, fmt.Errorf("rules[%d].class: %s is decided by the status alone", i, r.Class)
		}
		var err error
		if compiled[i].header, err = r.Header.compile(); err != nil {
			return nil, fmt.Errorf("rules[%d].header: %w", i, err)
		}
		if compiled[i].body, err = r.Body.compile(); err != nil {
			return nil, fmt.Errorf("rules[%d].body: %w", i, err)
		}
		if r.Body != nil {
			if err := announced.CheckPath(r.Body.Name); err != nil {
				return nil, fmt.Errorf("rules[%d].body.name: %w", i, err)
			}
		}
		if compiled[i].text, err = regexp.Compile(r.Text); err != nil {
			return nil, fmt.Errorf("rules[%d].text: %w", i, err)
		}
		if err := r.checkBlockAndWait(); err != nil {
			return nil, fmt.Errorf("rules[%d].%w", i, err)
		}
		if r.Block == "" {
			compiled[i].Block = defaultBlock(r.Class)
		}
	}
	return compiled, nil
}

// maxRuleWait bounds what a rule may have wait: a mistake must not stop a source for years.
const maxRuleWait = 24 * time.Hour

func (r Rule) checkBlockAndWait() error {
	waits := r.Class == Quota || r.Class == AuthRefused || r.Class == Maintenance || r.Class == NotReady
	switch {
	case r.Block != "" && !slices.Contains(allBlocks, r.Block):
		return fmt.Errorf("block: %q is not one of %v", r.Block, allBlocks)
	case r.Block != "" && defaultBlock(r.Class) == "":
		return fmt.Errorf("block: an answer of class %s stops nothing; only one of %s or %s does", r.Class, Quota, AuthRefused)
	case r.Wait < 0 || r.Wait > maxRuleWait:
		return fmt.Errorf("wait: %v must be from 0 to %v", r.Wait, maxRuleWait)
	case r.Wait > 0 && !waits:
		return fmt.Errorf("wait: after an answer of class %s nothing waits; it does after %s, %s, %s and %s", r.Class, Quota, AuthRefused, Maintenance, NotReady)
	}
	return nil
}

func (m *Match) compile() (*regexp.Regexp, error) {
	switch {
	case m == nil:
		return nil, nil //nolint:nilnil // no condition
	case m.Name == "":
		return nil, errors.New("name is missing")
	case m.Equals != "" && m.Matches != "":
		return nil, errors.New("equals and matches exclude each other")
	case m.Missing && (m.Equals != "" || m.Matches != ""):
		return nil, errors.New("missing excludes equals and matches: what is not there has no value")
	case m.Equals != "":
		return regexp.Compile("^" + regexp.QuoteMeta(m.Equals) + "$")
	}
	return regexp.Compile(m.Matches)
}

func (r compiledRule) matches(status int, header http.Header, body []byte) bool {
	if r.Status != 0 && r.Status != status {
		return false
	}
	if !strings.HasPrefix(header.Get("Content-Type"), r.ContentType) {
		return false
	}
	if r.Text != "" && !r.text.Match(body[:min(len(body), maxTextBytes)]) {
		return false
	}
	if r.header != nil {
		values, there := header[http.CanonicalHeaderKey(r.Header.Name)]
		if r.Header.Missing == there || there && !slices.ContainsFunc(values, r.header.MatchString) {
			return false
		}
	}
	if r.body != nil {
		member := gjson.GetBytes(body, r.Body.Name)
		if r.Body.Missing == member.Exists() || member.Exists() && !r.body.MatchString(member.String()) {
			return false
		}
		if r.Body.Missing && !isJSON(body) {
			return false
		}
	}
	return true
}

// classification is what an answer means, and what it stops for how long at least.
type classification struct {
	class Class
	block string
	wait  time.Duration
}

// classify says what an answer means: by the source's rules in order, then by
// its status. body is decompressed. A 200 that no rule matches is OK here; its
// content is judged when it is read.
func (s *Source) classify(status int, header http.Header, body []byte) classification {
	for _, r := range s.rules {
		if r.matches(status, header, body) {
			return classification{r.Class, r.Block, r.Wait}
		}
	}
	class := classifyStatus(status, header)
	return classification{class: class, block: defaultBlock(class)}
}

func classifyStatus(status int, header http.Header) Class {
	switch {
	case status == http.StatusOK:
		return OK
	case status == http.StatusNotModified:
		return NotModified
	case status == http.StatusTooManyRequests:
		return Quota
	case status == http.StatusForbidden && (header.Get("Retry-After") != "" || header.Get("X-Ratelimit-Remaining") == "0"):
		return Quota
	case status == http.StatusUnauthorized:
		return AuthRefused
	case status == http.StatusNotFound || status == http.StatusGone:
		return NotFound
	case status == http.StatusRequestTimeout || status == http.StatusTooEarly || status >= 500:
		return Transient
	case status >= 200 && status < 300:
		return BadContent // no content, a part of it, or something else
	}
	return Permanent
}

// moreSevere returns the class that decides for an entity of several documents.
func moreSevere(a, b Class) Class {
	return Classes[min(slices.Index(Classes, a), slices.Index(Classes, b))]
}
