// Package access says who may read, ask for refreshes and administer, and how
// much one client may ask of a process. Who asks shows an API key, a JWT or the
// admin token; none of them costs a look into the database.
package access

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
)

// Scope is something that a client may do.
type Scope string

// The scopes, besides those of See. Inspect is of those who may look at all that operators
// see, and change nothing. Admin includes all others.
const (
	Read    Scope = "read"
	Refresh Scope = "refresh"
	Inspect Scope = "inspect"
	Admin   Scope = "admin"
)

// seePrefix stands before a visibility in the scope of those who may see what was
// fetched within it.
const seePrefix = "see:"

// See returns the scope of those who may see what was fetched within a visibility.
// Whoever has it needs Read, Refresh or Inspect besides.
func See(visibility string) Scope { return Scope(seePrefix + visibility) }

// visibilityName is what package source takes for a visibility.
var visibilityName = regexp.MustCompile("^[0-9A-Za-z_-]{1,40}$")

// known reports whether the scope is one that there is, or that can be.
func (s Scope) known() bool {
	visibility, see := strings.CutPrefix(string(s), seePrefix)
	return (see && visibilityName.MatchString(visibility)) || slices.Contains([]Scope{Read, Refresh, Inspect, Delegate, Admin}, s)
}

// Client is who asks.
type Client struct {
	// Name stands in audits and bounds: "key:<id> <name>", "jwt:<sub>",
	// "admin-token", or "unauthenticated@<address>" where nobody is asked; and " for <hash>"
	// behind it if the request is sent on behalf of another. It is printable and of
	// bounded length.
	Name   string
	Scopes []Scope
	// Expires is the end of the token or key; zero: never.
	Expires time.Time
}

// May reports whether the client may do what the scope says.
func (c Client) May(s Scope) bool {
	return slices.Contains(c.Scopes, s) || slices.Contains(c.Scopes, Admin)
}

// Sees reports whether the client may see what was fetched within a visibility; the
// empty one is every reader's.
func (c Client) Sees(visibility string) bool {
	return visibility == "" || c.May(See(visibility))
}

// Visibilities returns the visibilities that the client may see besides the empty one; nil:
// all of them.
func (c Client) Visibilities() []string {
	if c.May(Admin) {
		return nil
	}
	seen := []string{}
	for _, s := range c.Scopes {
		if visibility, see := strings.CutPrefix(string(s), seePrefix); see {
			seen = append(seen, visibility)
		}
	}
	return seen
}

type clientKey struct{}

// WithClient returns a context that knows who asks.
func WithClient(ctx context.Context, c Client) context.Context {
	return context.WithValue(ctx, clientKey{}, c)
}

// ClientFromContext returns who asks, if the context knows.
func ClientFromContext(ctx context.Context) (Client, bool) {
	c, ok := ctx.Value(clientKey{}).(Client)
	return c, ok
}

// maxNameSize is the greatest length of what a name takes from outside, in bytes.
const maxNameSize = 128

// cleanName returns the text as it may stand in a name. What is too long or can't be
// printed is cut and told apart by its hash: two clients must not share a bound.
func cleanName(text string) string {
	unprintable := func(r rune) bool { return !unicode.IsPrint(r) || r == unicode.ReplacementChar }
	if len(text) <= maxNameSize && !strings.ContainsFunc(text, unprintable) {
		return text
	}
	sum := sha256.Sum256([]byte(text))
	clean := strings.Map(func(r rune) rune {
		if unprintable(r) {
			return -1
		}
		return r
	}, text[:min(len(text), maxNameSize/2)])
	return clean + "~" + hex.EncodeToString(sum[:16])
}
