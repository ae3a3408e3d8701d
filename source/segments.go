package source

import (
	"fmt"
	"regexp/syntax"
	"strings"
)

// keyPathParam is the placeholder for a key that has several path segments (reserved expansion, RFC
// 6570 §3.2.3): its slashes are kept.
const keyPathParam = "+" + keyParam

// excludedInSegments are characters that servers and proxies may treat as the end of a path, as a slash
// or as the begin of an escape. A key that is filled into several segments must have none of them.
const excludedInSegments = `\%?#`

// checkSegments returns an error if a key that the pattern matches could have a character of
// excludedInSegments or a control character. The check is syntactic: each character class of the
// pattern must exclude them.
func (p keyPattern) checkSegments() error {
	parsed, err := syntax.Parse(p.expr.String(), syntax.Perl)
	if err != nil {
		return err
	}
	if c, found := matchesExcluded(parsed); found {
		return fmt.Errorf("a key of {+key} must not contain %q, and the pattern allows it; write the allowed characters, as in [a-z0-9]{1,20}/[A-Za-z0-9_.-]{1,40}", c)
	}
	return nil
}

// matchesExcluded returns an excluded character that a part of the expression matches.
func matchesExcluded(re *syntax.Regexp) (rune, bool) {
	switch re.Op { //nolint:exhaustive // other operators match no character themselves
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		return rune(excludedInSegments[0]), true
	case syntax.OpLiteral:
		for _, c := range re.Rune {
			if isExcluded(c) {
				return c, true
			}
		}
	case syntax.OpCharClass:
		for i := 0; i < len(re.Rune); i += 2 {
			for c := re.Rune[i]; c <= min(re.Rune[i+1], 0x9f); c++ { // all excluded characters are below 0xa0
				if isExcluded(c) {
					return c, true
				}
			}
		}
	}
	for _, sub := range re.Sub {
		if c, found := matchesExcluded(sub); found {
			return c, true
		}
	}
	return 0, false
}

func isExcluded(c rune) bool {
	return strings.ContainsRune(excludedInSegments, c) || c < ' ' || (c >= 0x7f && c <= 0x9f)
}

// encodeSegments percent-encodes each part between two slashes.
func encodeSegments(value string) string {
	parts := strings.Split(value, "/")
	for i, part := range parts {
		parts[i] = percentEncode(part)
	}
	return strings.Join(parts, "/")
}
