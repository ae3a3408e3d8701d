// Package store defines what is kept of an entity: its snapshot, and the rules
// by which the result of a fetch is written over it. The rules are the same for
// every database; storetest is the suite that each one passes.
package store

import (
	"crypto/sha256"
	"errors"
	"time"

	"github.com/freshet/freshet/schemas"
)

// Hash is the SHA-256 of an entity's canonical content.
type Hash [sha256.Size]byte

// State is what is known of an entity besides its content.
type State struct {
	Entity schemas.Entity
	// Version is the number of the fetch that wrote the state last.
	Version int64
	// Hash, ExtractVersion, Encoding and Size describe the payload; zero if only
	// an absence is known.
	Hash           Hash
	ExtractVersion int64
	Encoding       string
	Size           int // bytes of JSON
	// FetchedAt, CheckedAt and UpdatedAt say when the last fetch began that
	// brought content, that had any result, and that brought a change. The first
	// and the last are zero until there is content.
	FetchedAt, CheckedAt, UpdatedAt time.Time
	// Absent: the upstream said, the last time, that there is no such entity.
	// Content from before, of the same visibility, is kept.
	Absent bool
	// ETag and LastModified are the upstream's own validators.
	ETag, LastModified string
	// Visibility names who may see what is known, content and absence alike: it is that
	// of the fetch that wrote the state last. Empty: every reader.
	Visibility string
	// Manual: the last check was made for a reader or a person. The schedule's own checks,
	// triggers, retries and replays are not.
	Manual bool
}

// HasContent reports whether a payload is stored.
func (s State) HasContent() bool { return s.Encoding != "" }

// Snapshot is the last extracted copy of an entity.
type Snapshot struct {
	State
	Payload []byte // encoded as State.Encoding says
}

// Kind is what a fetch found.
type Kind int

// The kinds of result that are written. NotModified is an answer without a body
// to a validator that came with the state whose Hash the Write carries.
const (
	Content Kind = iota
	NotModified
	Absence
)

// Write is the result of one fetch of one entity.
type Write struct {
	Entity schemas.Entity
	Kind   Kind
	// Version is the fetch's own number. A state of a higher version is never
	// overwritten; one of the same version is the same write repeated.
	Version int64
	// CheckedAt is when the fetch began, not when it is written: what waited for
	// an hour in front of a stopped database is not fresh.
	CheckedAt          time.Time
	Hash               Hash
	ExtractVersion     int64
	ETag, LastModified string
	// Visibility names who may see what was fetched; empty: every reader. A row has one:
	// content that is as it was before is seen by those whom the later fetch is for, and
	// an absence ends content of another visibility. A NotModified that refers to limited
	// content of another visibility is Lost: whoever asked has not been given that.
	Visibility string
	// Manual: the fetch was made for a reader or a person (State.Manual).
	Manual bool
	// Payload encodes the content. It is called for content that differs from
	// what is stored, and for no other.
	Payload func() (Payload, error)
	// Outbox are what is to follow if the write's result is Changed, and only then. They
	// are written down with it (Effect).
	Outbox OutboxEvents
}

// Payload is encoded content.
type Payload struct {
	Encoding string
	Bytes    []byte
	Size     int // before encoding
}

// Result says what became of a Write.
type Result int

// The results. Whatever it is, the request that led to the fetch can be settled,
// except after Lost: there the state that the NotModified referred to is gone, or is
// for others to see, and the entity has to be fetched in full.
const (
	Touched       Result = iota + 1 // unchanged: times and version were written, and nothing else
	Changed                         // new content was stored
	Rewritten                       // the same entity, extracted by other settings, was stored
	AbsenceStored                   // the absence was recorded
	Superseded                      // the result of a later fetch is stored
	BaseMissing
)

var resultNames = [...]string{"", "touched", "changed", "rewritten", "not_found", "superseded", "base_missing"}

// Stored reports whether the write is what is stored now. It is also what ends the
// entity's failures.
func (r Result) Stored() bool { return r != Superseded && r != BaseMissing }

func (r Result) String() string { return resultNames[r] }

// ErrRejected is wrapped by the error of a Write that the database refuses for
// what a row holds, and will refuse again; other rows of the batch may be fine.
var ErrRejected = errors.New("the database refuses what the row holds")

// ErrContention is wrapped by the error of a transaction that met another one
// (serialisation failure, deadlock): the same again is likely to succeed, and the
// database is well.
var ErrContention = errors.New("two transactions met")

// ErrNotFound is returned for an entity of which nothing is stored.
var ErrNotFound = errors.New("nothing is stored for this entity")
