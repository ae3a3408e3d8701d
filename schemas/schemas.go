// Package schemas holds every format that outlives a deployment: the records on the topics and
// their JSON Schemas, topic and header names, the SQL migrations and the OpenAPI document. It
// imports only the standard library, so that any program can read freshet's data.
package schemas

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Lane says whether a person waits for the request (HIGH) or not (LOW). It determines the topic,
// the consumer group and the share of the upstream's quota. On the wire it is the request's
// priority.
type Lane string

// The two lanes of a source.
const (
	High Lane = "HIGH"
	Low  Lane = "LOW"
)

// Valid reports whether l is one of the two lanes.
func (l Lane) Valid() bool { return l == High || l == Low }

// Reason says why a refresh was requested.
type Reason string

// The reasons that this release knows. A newer release of the same major version may write other
// reasons. Unknown reasons are kept, and requests with an unknown reason are strict.
const (
	CacheMiss   Reason = "CACHE_MISS"
	Stale       Reason = "STALE"
	Prefetch    Reason = "PREFETCH"
	UserRequest Reason = "USER_REQUEST"
	Retry       Reason = "RETRY"
	Replay      Reason = "REPLAY"
	Trigger     Reason = "TRIGGER"
	Link        Reason = "LINK"
	NextPage    Reason = "NEXT_PAGE"
	RunStep     Reason = "RUN"
)

// Relaxed reports whether a request for this reason is also satisfied by a fetch that was in flight
// when the request was made. For the other, strict, reasons the fetch must begin after the request.
func (r Reason) Relaxed() bool {
	return r == CacheMiss || r == Stale || r == Prefetch || r == Link
}

// PassesHolds reports whether a request for this reason is accepted although the entity has a hold.
// That is the case for explicit refreshes, replays, retries and runs.
func (r Reason) PassesHolds() bool {
	return r == UserRequest || r == Replay || r == Retry || r == RunStep
}

// Manual reports whether a reader or a person made the request, and not the schedule, a trigger, a
// retry or a replay.
func (r Reason) Manual() bool {
	return r == CacheMiss || r == Stale || r == UserRequest
}

// Entity identifies one snapshot: a key of one facet of one source.
type Entity struct {
	Source string `json:"source"`
	Facet  string `json:"facet"`
	Key    string `json:"key"`
}

// String returns source/facet/key, for logs and error messages.
func (e Entity) String() string { return e.Source + "/" + e.Facet + "/" + e.Key }

// Compare returns -1, 0 or +1: it orders entities by source, facet and key.
func (e Entity) Compare(other Entity) int {
	return cmp.Or(strings.Compare(e.Source, other.Source), strings.Compare(e.Facet, other.Facet), strings.Compare(e.Key, other.Key))
}

// Check returns nil if e is well formed, and otherwise an error that names the fault.
func (e Entity) Check() error {
	if err := CheckName("source", e.Source); err != nil {
		return err
	}
	if err := CheckName("facet", e.Facet); err != nil {
		return err
	}
	return CheckKey(e.Key)
}

// MaxKeyBytes is the length of the longest key, in bytes of UTF-8.
const MaxKeyBytes = 256

// CheckKey returns nil if `key` has 1 to MaxKeyBytes bytes of UTF-8 without control characters. Keys
// with a part "." or ".." are invalid: servers and proxies that unescape slashes and backslashes
// would remove such a part, and so change a URL path. A facet may restrict its keys further with a
// pattern.
func CheckKey(key string) error {
	switch {
	case key == "":
		return errors.New("the key is empty")
	case len(key) > MaxKeyBytes:
		return fmt.Errorf("the key has %d bytes; at most %d are allowed", len(key), MaxKeyBytes)
	case !utf8.ValidString(key):
		return errors.New("the key is not valid UTF-8")
	case strings.ContainsFunc(key, unicode.IsControl):
		return errors.New("the key contains a control character")
	}
	for part := range strings.FieldsFuncSeq(key, func(r rune) bool { return r == '/' || r == '\\' }) {
		if part == "." || part == ".." {
			return fmt.Errorf("the key may not have the part %q", part)
		}
	}
	return nil
}

// maxNameBytes is the maximum length of a source's or facet's name. It keeps topic names within
// Kafka's limit of 249 characters.
const maxNameBytes = 63

// CheckName returns nil if `name` is valid for a source or a facet: at most 63 lower-case letters,
// digits and inner hyphens. Such a name needs no escaping in a topic, a path, a metric label or a
// Redis key.
func CheckName(kind, name string) error {
	if name == "" {
		return fmt.Errorf("the %s has no name", kind)
	}
	if len(name) > maxNameBytes {
		return fmt.Errorf("the %s's name has %d characters; at most %d are allowed", kind, len(name), maxNameBytes)
	}
	for i, c := range []byte(name) {
		inner := i > 0 && i < len(name)-1
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && (c != '-' || !inner) {
			return fmt.Errorf("the %s's name %q may contain only lower-case letters, digits and inner hyphens", kind, name)
		}
	}
	return nil
}
