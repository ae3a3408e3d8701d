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

// Class is the classification of a response. The consumer decides in one place how to handle
// each class.
type Class string

// The classes, most severe first. An entity has the most severe class of its documents. For
// example, if the upstream refuses the credential for one document of an entity, its responses for
// the other documents are not reliable either.
const (
	AuthRefused Class = "auth"         // the upstream refused the credential
	Maintenance Class = "maintenance"  // the whole upstream is in maintenance
	Quota       Class = "quota"        // a rate limit or quota was exceeded
	Transient   Class = "transient"    // temporary failure; a retry may succeed
	BadContent  Class = "bad-content"  // the body is not the expected content
	Permanent   Class = "permanent"    // permanent failure; a retry does not help
	NotReady    Class = "not-ready"    // the upstream does not have the content yet
	Handle      Class = "handle"       // the upstream does not know the alias that the call used
	NotFound    Class = "not-found"    // the upstream has no such entity
	NotModified Class = "not-modified" // the content is unchanged since the response with the stored validator (ETag or Last-Modified)
	OK          Class = "ok"
)

// Classes lists all classes, most severe first.
var Classes = []Class{AuthRefused, Maintenance, Quota, Transient, BadContent, Permanent, NotReady, Handle, NotFound, NotModified, OK}

// Failed reports whether the class is a failure. OK, NotModified, NotFound and Handle are successes: the
// response has new content, confirms the stored content, or reports that the entity was not found.
func (c Class) Failed() bool { return c != OK && c != NotModified && c != NotFound && c != Handle }

// Rule assigns a class to responses that match all of its conditions.
type Rule struct {
	// Status is the HTTP status that the response must have; 0 means any status.
	Status int `yaml:"status"`
	// Header is a condition that one header of the response must meet.
	Header *Match `yaml:"header"`
	// Body is a condition on one member of a JSON body. The name is a gjson path, such as error.code.
	Body *Match `yaml:"body"`
	// ContentType is the text that the header Content-Type must begin with.
	ContentType string `yaml:"contentType"`
	// Text is a regular expression that must match in the first 64 KiB of the body.
	// The content type does not matter.
	Text string `yaml:"text,omitempty"`
	// Class is the class of the responses. It decides between a retry, a dead letter, a not-found result
	// and a pause of the source (docs/faults.md).
	Class Class `yaml:"class"`
	// Block is the scope that a response of class quota or auth blocks. Without it, class quota blocks
	// the source, and class auth the credential.
	Block string `yaml:"block,omitempty" enum:"call,endpoint,resource,credential,source"`
	// Wait is the minimum duration of the block, even if the response requests a shorter delay; at most
	// 24h.
	Wait time.Duration `yaml:"wait,omitempty"`
}

// The scopes that a response of class quota or auth can block.
const (
	BlockCall       = "call"       // nothing is blocked: only this call has failed
	BlockEndpoint   = "endpoint"   // this document of the facet, for all keys
	BlockResource   = "resource"   // all calls charged to the resource of this call
	BlockCredential = "credential" // all calls with the credential of this call
	BlockSource     = "source"     // all calls of the source are blocked
)

var allBlocks = []string{BlockCall, BlockEndpoint, BlockResource, BlockCredential, BlockSource}

// defaultBlock returns the scope that a class blocks if no rule sets one; empty means none.
func defaultBlock(c Class) string {
	switch c {
	case Quota:
		return BlockSource
	case AuthRefused:
		return BlockCredential
	case Maintenance, Transient, BadContent, Permanent, NotReady, Handle, NotFound, NotModified, OK:
	}
	return ""
}

// Match is a condition on a named value. The value must equal Equals or match the regular
// expression Matches. If both are empty, the value must exist, or must not exist if Missing is
// set.
type Match struct {
	// Name is the name of the header or the path of the member.
	Name string `yaml:"name"`
	// Equals is the text that must be equal to the whole value.
	Equals string `yaml:"equals"`
	// Matches is a regular expression that must match the value.
	Matches string `yaml:"matches"`
	// Missing requires that the header or member does not exist. A member with the value null
	// exists. A body that is not JSON never satisfies the condition.
	Missing bool `yaml:"missing"`
}

type compiledRule struct {
	Rule
	header, body, text *regexp.Regexp
}

// maxTextBytes is the length of the body prefix that Rule.Text is matched against.
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

// maxRuleWait bounds Rule.Wait, so that a typo cannot block a source for years.
const maxRuleWait = 24 * time.Hour

func (r Rule) checkBlockAndWait() error {
	waits := r.Class == Quota || r.Class == AuthRefused || r.Class == Maintenance || r.Class == NotReady
	switch {
	case r.Block != "" && !slices.Contains(allBlocks, r.Block):
		return fmt.Errorf("block: %q is not one of %v", r.Block, allBlocks)
	case r.Block != "" && defaultBlock(r.Class) == "":
		return fmt.Errorf("block: not allowed for class %s, only for %s and %s", r.Class, Quota, AuthRefused)
	case r.Wait < 0 || r.Wait > maxRuleWait:
		return fmt.Errorf("wait: %v must be from 0 to %v", r.Wait, maxRuleWait)
	case r.Wait > 0 && !waits:
		return fmt.Errorf("wait: not allowed for class %s, only for %s, %s, %s and %s", r.Class, Quota, AuthRefused, Maintenance, NotReady)
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
		return nil, errors.New("`equals` and `matches` can't be used together; remove one of them")
	case m.Missing && (m.Equals != "" || m.Matches != ""):
		return nil, errors.New("a rule with `missing` can have neither `equals` nor `matches`, because a missing header or member has no value")
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

// classification is the class of a response, the scope that it blocks and the minimum duration
// of the block.
type classification struct {
	class Class
	block string
	wait  time.Duration
}

// rules are the compiled rules of a source.
type rules []compiledRule

// classify classifies a response by the rules in order, then by its status. `body` is
// decompressed. A 200 that matches no rule is OK here; its content is validated when it is extracted.
func (all rules) classify(status int, header http.Header, body []byte) classification {
	if i := all.match(status, header, body); i >= 0 {
		r := all[i]
		return classification{r.Class, r.Block, r.Wait}
	}
	class := classifyStatus(status, header)
	return classification{class: class, block: defaultBlock(class)}
}

// match returns the index of the first rule that matches the response, or -1.
func (all rules) match(status int, header http.Header, body []byte) int {
	return slices.IndexFunc(all, func(r compiledRule) bool { return r.matches(status, header, body) })
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
		return BadContent // only a 200 has the whole content; a 204 has no content, a 206 a part of it
	}
	return Permanent
}

// moreSevere returns the class that comes first in Classes.
func moreSevere(a, b Class) Class {
	return Classes[min(slices.Index(Classes, a), slices.Index(Classes, b))]
}
