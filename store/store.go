package store

import (
	"crypto/sha256"
	"errors"
	"time"

	"github.com/freshet/freshet/schemas"
)

// Hash is the SHA-256 of an entity's canonical content.
type Hash [sha256.Size]byte

// State is the stored data of an entity except its content.
type State struct {
	Entity schemas.Entity
	// Version is the version of the fetch that wrote the state last.
	Version int64
	// Hash, ExtractVersion, Encoding and Size describe the payload. ExtractVersion identifies the
	// facet's settings with which the content was extracted. All four are zero without content.
	Hash           Hash
	ExtractVersion int64
	Encoding       string
	Size           int // length of the content in bytes, before compression
	// MediaType is the media type of raw content. It is empty for JSON, and without content.
	MediaType string
	// FetchedAt is the start of the last fetch that returned content. CheckedAt is the start of the
	// last fetch with any result. UpdatedAt is the start of the last fetch that returned changed
	// content. FetchedAt and UpdatedAt are zero without content.
	FetchedAt, CheckedAt, UpdatedAt time.Time
	// NotFound is true if the upstream answered at the last fetch that the entity does not exist. Older
	// content of the same visibility is kept.
	NotFound bool
	// AliasNotFound is true if the entity counts as not found because the entity of its alias is not
	// found. Then CheckedAt is the check time of the alias.
	AliasNotFound bool
	// ETag and LastModified are validators of the upstream's response (RFC 9110 §8.8).
	ETag, LastModified string
	// Visibility is the visibility of the last fetch: the label of its credential. Only clients with
	// the scope see:LABEL may read the content or the not-found result. Empty means that all clients
	// may.
	Visibility string
	// Manual is set if the last check was made for a reader or an operator. It is not set for
	// scheduled checks, triggers, retries and replays.
	Manual bool
}

// HasContent reports whether a payload is stored.
func (s State) HasContent() bool { return s.Encoding != "" }

// Snapshot is the last extracted copy of an entity.
type Snapshot struct {
	State
	Payload []byte // the content, in the encoding State.Encoding
}

// Kind says whether a fetch has found content, unchanged content, or no entity.
type Kind int

// Kinds of fetch results that are written. NotModified is a response without a body (HTTP 304) to a
// request with validators. Its Write carries the Hash of the stored content to which these
// validators belong.
const (
	Content Kind = iota
	NotModified
	KindNotFound
)

// Write is the result of one fetch of one entity, ready to be written.
type Write struct {
	Entity schemas.Entity
	Kind   Kind
	// Version is the version of the fetch. A write never replaces a state with a higher version. A
	// write with the same version as the stored state repeats an earlier write.
	Version int64
	// CheckedAt is the start of the fetch, not the time of the write: a result that waited an hour
	// for the database is an hour old.
	CheckedAt          time.Time
	Hash               Hash
	ExtractVersion     int64
	ETag, LastModified string
	// Visibility is the group of clients that may read the result; empty means every reader. A row has
	// only one visibility: the visibility of its last fetch. A not-found result deletes content of
	// another visibility. A NotModified results in BaseMissing if the stored content has another
	// visibility that is not empty. The clients that may read this result may not be allowed to read
	// that content.
	Visibility string
	// Manual is set if the fetch was made for a reader or an operator (State.Manual).
	Manual bool
	// AliasNotFound is true for a write of KindNotFound if the entity of the alias was not found.
	AliasNotFound bool
	// Aliases are the states of the facets that the params of the fetch come from. If one of them has
	// another content now, or is not found, the write results in BaseMissing: the result may belong to
	// another key. If one is deleted, only unchanged content is stored (Touched).
	Aliases []State
	// AliasUsers are the facets that take a param from this facet. If the write is stored, retries of
	// these facets that wait for their alias (HoldAlias) become due at once. If the write replaces the
	// stored result, it also marks their entities (Batch.ChangedAliasUsers).
	AliasUsers []string
	// Payload encodes the content. It is called only if the content differs from the stored
	// content.
	Payload func() (Payload, error)
	// Outbox is written in the same transaction if the result of the write is Changed, and ignored
	// otherwise.
	Outbox OutboxEvents
}

// maxAliasPayload is the maximum length of the copy of a payload in snapshot_state. Each check of the
// entity writes the row again, so a long copy would cost more than the look-up that it saves.
const maxAliasPayload = 512

// AliasPayload returns the copy of the write's payload for snapshot_state. It is nil if no facet takes a
// param from the content, or if the payload is too long.
func (w Write) AliasPayload(p Payload) []byte {
	if len(w.AliasUsers) == 0 || len(p.Bytes) > maxAliasPayload {
		return nil
	}
	return p.Bytes
}

// Payload is the content of a snapshot as it is stored, for example compressed.
type Payload struct {
	Encoding string
	Bytes    []byte
	Size     int // size of the content in bytes before it is encoded
	// MediaType is the media type of raw content; empty means JSON.
	MediaType string
}

// Result says which change a Write has made in the database.
type Result int

// Results of a Write. After each of them except BaseMissing, the request of the fetch can be
// settled. After BaseMissing, the entity must be fetched again, with its present alias and without
// validators.
const (
	Touched        Result = iota + 1 // the content is unchanged; only the times, the version and the validators were written
	Changed                          // new content was stored; the entity had no content before, or content with another hash
	Rewritten                        // content was stored; the previous content was extracted with other settings of the facet
	NotFoundStored                   // a not-found result was stored
	Superseded                       // nothing was written, because the result of a later fetch is stored
	// nothing was written, because the content that "not modified" refers to was deleted or has another
	// visibility, or an alias has changed
	BaseMissing
)

var resultNames = [...]string{"", "touched", "changed", "rewritten", "not_found", "superseded", "base_missing"}

// Stored reports whether the write was stored. Such a write also deletes the entity's Status.
func (r Result) Stored() bool { return r != Superseded && r != BaseMissing }

func (r Result) String() string { return resultNames[r] }

// ErrRejected marks an error that the data of a row causes (SQLSTATE classes 22 and 23). The same
// write would fail again. Other rows of the batch may be valid.
var ErrRejected = errors.New("the database rejects the data of a row")

// ErrContention marks the error of a transaction that was rolled back because of a concurrent
// transaction (serialisation failure, deadlock). The database is healthy; retry at once.
var ErrContention = errors.New("the transaction was rolled back because of a concurrent transaction")

// ErrNotFound is returned if neither content nor a not-found result is stored for the entity.
var ErrNotFound = errors.New("nothing is stored for this entity")
