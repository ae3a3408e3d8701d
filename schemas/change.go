package schemas

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"
)

// Change is published on a source's change topic when an entity's stored content was replaced by
// different content, or its first content was stored. Its JSON form is change.v1.schema.json. A
// change may be published more than once, and the changes of one entity may arrive out of order.
// Entity and Version identify a change, and a later change of the entity has a higher version.
type Change struct {
	Entity Entity
	// Item is the id of the changed item of a collection; empty means that the entity's content has
	// changed.
	Item    string
	Version int64 // version of the snapshot with the new content
	// At is the time at which the fetch that found the change began.
	At time.Time
	// Before and After are SHA-256 hashes of the entity's canonical content before and after the
	// change. Members that the facet ignores are left out. Before is empty if no content was
	// stored. After is empty if an item was deleted.
	Before, After []byte
}

// changeMajor is the major version of the schema.
const changeMajor = 1

type changeJSON struct {
	SchemaVersion int       `json:"schemaVersion"`
	Source        string    `json:"source"`
	Facet         string    `json:"facet"`
	Key           string    `json:"key"`
	Item          string    `json:"item,omitempty"`
	Deleted       bool      `json:"deleted,omitempty"`
	Version       int64     `json:"version"`
	ChangedAt     time.Time `json:"changedAt"`
	OldHash       *string   `json:"oldHash"`
	NewHash       *string   `json:"newHash"`
}

// Encode returns the Kafka record's key (facet/key) and its value (JSON).
func (c Change) Encode() (key, value []byte, err error) {
	j := changeJSON{
		SchemaVersion: changeMajor, Source: c.Entity.Source, Facet: c.Entity.Facet, Key: c.Entity.Key,
		Item: c.Item, Deleted: c.Item != "" && len(c.After) == 0, Version: c.Version, ChangedAt: c.At.UTC(), OldHash: hexOf(c.Before), NewHash: hexOf(c.After),
	}
	value, err = json.Marshal(j)
	return []byte(c.Entity.Facet + "/" + c.Entity.Key), value, err
}

// DecodeChange decodes a record value that Encode has returned. Unknown members are ignored.
func DecodeChange(value []byte) (Change, error) {
	var j changeJSON
	if err := json.Unmarshal(value, &j); err != nil {
		return Change{}, fmt.Errorf("decode change: %w", err)
	}
	if j.SchemaVersion != changeMajor {
		return Change{}, fmt.Errorf("decode change: its schemaVersion is %d; this release reads %d", j.SchemaVersion, changeMajor)
	}
	c := Change{Entity: Entity{Source: j.Source, Facet: j.Facet, Key: j.Key}, Item: j.Item, Version: j.Version, At: j.ChangedAt}
	if err := c.Entity.Check(); err != nil {
		return Change{}, fmt.Errorf("decode change: %w", err)
	}
	if c.Version < 1 || c.At.IsZero() {
		return Change{}, fmt.Errorf("decode change of %s: version is %d and changedAt is %s; both are required and version must be at least 1", c.Entity, c.Version, c.At.Format(time.RFC3339))
	}
	if j.NewHash == nil && !j.Deleted {
		return Change{}, fmt.Errorf("decode change of %s: newHash is missing", c.Entity)
	}
	var err error
	if j.NewHash != nil {
		c.After, err = hashOf("newHash", *j.NewHash)
	}
	if err == nil && j.OldHash != nil {
		c.Before, err = hashOf("oldHash", *j.OldHash)
	}
	if err != nil {
		return Change{}, fmt.Errorf("decode change of %s: %w", c.Entity, err)
	}
	return c, nil
}

// hexOf returns a hash in hexadecimal; nil if the hash is empty.
func hexOf(hash []byte) *string {
	if len(hash) == 0 {
		return nil
	}
	text := hex.EncodeToString(hash)
	return &text
}

// hashOf decodes a SHA-256 hash in hexadecimal. `name` is the name of its JSON member, for errors.
func hashOf(name, text string) ([]byte, error) {
	hash, err := hex.DecodeString(text)
	if err == nil && len(hash) != sha256.Size {
		err = fmt.Errorf("has %d bytes, want %d", len(hash), sha256.Size)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return hash, nil
}
