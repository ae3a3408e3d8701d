// Package links finds the keys of other entities in the content of an entity.
package links

import (
	"cmp"
	"fmt"
	"regexp"
)

// Config configures the search for keys in new content of a raw facet. Each key that is found is
// requested in the lane LOW, unless its snapshot is fresh.
type Config struct {
	// Match is a regular expression with one group. In each match, the text of the group is a key. The
	// text is used as it is written: character references such as &amp; are not replaced.
	Match string `yaml:"match"`
	// Facet is the facet of the keys.
	Facet string `yaml:"facet"`
	// MaxKeys is the maximum number of keys of one content, at most 1,000; 0: 100. Further keys are not
	// requested.
	MaxKeys int `yaml:"maxKeys,omitempty"`
	// MaxDepth is the maximum number of links in a row that are followed from an entity that was
	// requested for another reason, at most 10; 0: 3.
	MaxDepth int `yaml:"maxDepth,omitempty"`

	expr *regexp.Regexp // Match, after Compile
}

const (
	defaultKeys, maxKeys   = 100, 1000
	defaultDepth, maxDepth = 3, 10 // maxDepth is schemas.MaxLinkDepth
	// maxMatches is the maximum number of matches in one content that are examined. It bounds the
	// memory that hostile content can occupy.
	maxMatches = 10_000
	// maxTextBytes is the maximum length of a text that can be a key. It exceeds the maximum length of a
	// key, because folding can shorten a text.
	maxTextBytes = 1 << 10
)

// Compile returns the configuration with its defaults, ready for Find, or an error that begins with the
// name of an invalid setting.
func (c Config) Compile() (Config, error) {
	c.MaxKeys, c.MaxDepth = cmp.Or(c.MaxKeys, defaultKeys), cmp.Or(c.MaxDepth, defaultDepth)
	var err error
	if c.expr, err = regexp.Compile(c.Match); err != nil {
		return c, fmt.Errorf("match: %q is not a regular expression: %w", c.Match, err)
	}
	switch {
	case c.expr.NumSubexp() != 1:
		return c, fmt.Errorf(`match: %q has %d groups; write one group around the key, as in src="/ui/([^"]+\.xml)", and (?:…) for other parentheses`, c.Match, c.expr.NumSubexp())
	case c.MaxKeys < 1 || c.MaxKeys > maxKeys:
		return c, fmt.Errorf("maxKeys: %d must be from 1 to %d", c.MaxKeys, maxKeys)
	case c.MaxDepth < 1 || c.MaxDepth > maxDepth:
		return c, fmt.Errorf("maxDepth: %d must be from 1 to %d", c.MaxDepth, maxDepth)
	}
	return c, nil
}

// Found are the links in one content.
type Found struct {
	// Keys are different valid keys in canonical form, in the order of the content.
	Keys []string
	// Invalid is the number of texts that are no valid key. Excess is the number of valid keys that
	// exceed MaxKeys. A text that occurs several times counts once, unless it is too long for a key.
	Invalid, Excess int
}

// Rules are the rules for the keys of the facet Config.Facet.
type Rules struct {
	Fold  func(key string) string // returns the canonical form of a key
	Check func(key string) error  // returns an error for a key that is not valid
	// Own is the key of the content itself, which is not a link. It is empty if the content belongs to
	// another facet.
	Own string
}

// Find returns the links in content. c must come from Compile. The time is proportional to the length of
// content, and the memory is bounded.
func (c Config) Find(content []byte, rules Rules) (found Found) {
	seen := map[string]bool{rules.Own: rules.Own != ""}
	for _, at := range c.expr.FindAllSubmatchIndex(content, maxMatches) {
		if at[2] < 0 || at[3]-at[2] > maxTextBytes { // -1: the group took no part in the match
			found.Invalid++
			continue
		}
		link := rules.Fold(string(content[at[2]:at[3]]))
		switch {
		case seen[link]:
			continue
		case rules.Check(link) != nil:
			found.Invalid++
		case len(found.Keys) == c.MaxKeys:
			found.Excess++
		default:
			found.Keys = append(found.Keys, link)
		}
		seen[link] = true
	}
	return found
}
