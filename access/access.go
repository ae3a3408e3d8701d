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

// Scope is a permission of a client.
type Scope string

// Scopes of a client; Delegate is another scope, and See and Plan return further ones. Read lets a client
// read snapshots. Refresh lets it enqueue refreshes. Inspect lets it read everything that operators
// can see. Admin includes all other scopes.
const (
	Read    Scope = "read"
	Refresh Scope = "refresh"
	Inspect Scope = "inspect"
	Admin   Scope = "admin"
)

// seePrefix is the prefix of the scopes that See returns.
const seePrefix = "see:"

// See returns the scope that allows a client to see entities of a visibility. It is useful only
// together with Read, Refresh or Inspect.
func See(visibility string) Scope { return Scope(seePrefix + visibility) }

// planPrefix is the prefix of a scope that names the client's plan of credits. The scope allows no
// action.
const planPrefix = "plan:"

// Plan returns the name of the client's plan of credits: the first of its scopes plan:NAME. It is empty
// if the client has no such scope.
func (c Client) Plan() string {
	for _, s := range c.Scopes {
		if name, is := strings.CutPrefix(string(s), planPrefix); is {
			return name
		}
	}
	return ""
}

// visibilityName matches the valid names of visibilities and plans. Packages source and credits use
// the same rule.
var visibilityName = regexp.MustCompile("^[0-9A-Za-z_-]{1,40}$")

// known reports whether the scope is valid.
func (s Scope) known() bool {
	for _, prefix := range []string{seePrefix, planPrefix} {
		if name, has := strings.CutPrefix(string(s), prefix); has {
			return visibilityName.MatchString(name)
		}
	}
	return slices.Contains([]Scope{Read, Refresh, Inspect, Delegate, Admin}, s)
}

// Client is the identified sender of a request.
type Client struct {
	// Name identifies the client in audit entries and limits: "key:<id> <name>", "jwt:<sub>",
	// "admin-token", or "unauthenticated@<address>" if authentication is off. If the
	// request is sent on behalf of another client, " for " and a hash of that client's name follow. The name is printable and has a
	// bounded length.
	Name   string
	Scopes []Scope
	// Expires is when the token or key expires; zero: never.
	Expires time.Time
}

// May reports whether the client has the scope.
func (c Client) May(s Scope) bool {
	return slices.Contains(c.Scopes, s) || slices.Contains(c.Scopes, Admin)
}

// Sees reports whether the client may see entities of a visibility. Every client may see entities
// without a visibility (the empty string).
func (c Client) Sees(visibility string) bool {
	return visibility == "" || c.May(See(visibility))
}

// Visibilities returns the visibilities that the client may see. The client may also see all
// entities without a visibility. nil means that the client may see everything.
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

// WithClient returns a context with the client.
func WithClient(ctx context.Context, c Client) context.Context {
	return context.WithValue(ctx, clientKey{}, c)
}

// ClientFromContext returns the client that WithClient stored in ctx, and whether there is one.
func ClientFromContext(ctx context.Context) (Client, bool) {
	c, ok := ctx.Value(clientKey{}).(Client)
	return c, ok
}

// maxNameSize is the maximum length in bytes of a text in a client name, such as the subject of a
// token. cleanName shortens a longer text.
const maxNameSize = 128

// cleanName makes a text usable in a client name. If the text is too long or has unprintable
// characters, it is shortened and a hash is appended, so that two clients never get the same name.
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
