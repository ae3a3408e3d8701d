// Package links finds the keys of other entities in the content of an entity.
package links

import (
	"cmp"
	"fmt"
	"regexp"
)

// Config configures the search for keys in new content of a raw facet. Each entity whose key is found
// is requested in the lane LOW, unless its snapshot is fresh.
type Config struct {
	// Match is a regular expression with one group. The text of the group is a key. Character
	// references in the text, such as &amp;, are not replaced.
	Match string `yaml:"match"`
	// Facet is the facet of the entities with these keys.
	Facet string `yaml:"facet"`
	// MaxKeys is the maximum number of keys that are requested when new content is stored. It is at
	// most 1,000; 0 means 100.
	MaxKeys int `yaml:"maxKeys,omitempty"`
	// MaxDepth is the maximum length of a chain of links. A chain begins at an entity that was not
	// requested because of a link. It is at most 10; 0 means 3.
	MaxDepth int `yaml:"maxDepth,omitempty"`

	expr *regexp.Regexp // Match as a compiled expression; set by Compile
}

const (
	defaultKeys, maxKeys   = 100, 1000
	defaultDepth, maxDepth = 3, 10 // maxDepth equals schemas.MaxLinkDepth
	// maxMatches is the maximum number of matches that are examined in one content. It limits the
	// memory for hostile content.
	maxMatches = 10_000
	// maxTextBytes is the maximum length of a text that is examined as a key. It is greater than the
	// maximum length of a key, because the canonical key can be shorter than the text.
	maxTextBytes = 1 << 10
)

// Compile returns the configuration with its defaults, ready for Find. Its error begins with the name
// of the invalid setting.
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

// Found is the result of the search for links in one content.
type Found struct {
	// Keys are the valid keys in canonical form, without duplicates, in the order of the content.
	Keys []string
	// Invalid is the number of texts that are no valid key. Excess is the number of valid keys beyond
	// MaxKeys. A text that occurs several times counts once, unless it is longer than maxTextBytes.
	Invalid, Excess int
}

// Rules are the rules for the keys of the facet that Config.Facet names.
type Rules struct {
	Fold  func(key string) string // returns the canonical form of a key
	Check func(key string) error  // returns an error for a key that is not valid
	// Own is the key of the content's own entity. A link to it does not count. Own is empty if the
	// content belongs to another facet.
	Own string
}

// Find returns the links in content. `c` must be a result of Compile. The time is proportional to the
// length of the content, and the memory is limited.
func (c Config) Find(content []byte, rules Rules) (found Found) {
	seen := map[string]bool{rules.Own: rules.Own != ""}
	for _, at := range c.expr.FindAllSubmatchIndex(content, maxMatches) {
		if at[2] < 0 || at[3]-at[2] > maxTextBytes { // -1: this match has no text for the group
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
