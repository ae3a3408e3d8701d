package schemas

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// SchemaVersion is the version that this release writes into every UpdateRequest.
const SchemaVersion = "2.0"

// MaxVersion is the largest version of a request. Redis scripts use doubles, which are exact up to
// 2^53. Versions follow Redis' clock in milliseconds, so real versions are far below this limit.
// If a record's version is more than one day ahead of that clock, the script request_begin lowers it.
const MaxVersion = 1 << 52

// MaxLinkDepth is the maximum depth of a request: the number of links that have led to its entity.
const MaxLinkDepth = 10

// UpdateRequest requests one refresh of one entity. Its JSON form is
// update_request.v2.schema.json. Within major version 2, fields are only added.
type UpdateRequest struct {
	SchemaVersion string `json:"schemaVersion"`
	EventID       string `json:"eventId"` // a UUIDv7 that identifies the event
	Entity
	Params        map[string]string `json:"params,omitempty"` // each param replaces the param of the same name in the facet's configuration
	Lane          Lane              `json:"priority"`
	Reason        Reason            `json:"reason"`
	RequestedAt   time.Time         `json:"requestedAt"`
	CorrelationID string            `json:"correlationId"`
	// Version is the number that coalescing assigned to the request; it rises with each request of
	// an entity. 0 means unknown. Then only a fetch that began after RequestedAt satisfies the
	// request.
	Version int64 `json:"version"`
	// Depth is the number of links that have led to the entity, from an entity that was not requested
	// because of a link. It is at most MaxLinkDepth. 0 means that the request does not come from a
	// link.
	Depth int `json:"depth,omitempty"`
	// RunID is the id of the run for which the entity is fetched; empty means that the request belongs
	// to no run.
	RunID string `json:"runId,omitempty"`
	// Page is the name of the page of a collection to fetch (collection.Walk.Name); empty means the
	// next page of the collection.
	Page string `json:"page,omitempty"`
}

// Encode returns the record's value in schema major version 2.
func (r UpdateRequest) Encode() ([]byte, error) {
	r.SchemaVersion = SchemaVersion
	if err := r.check(); err != nil {
		return nil, fmt.Errorf("encode UpdateRequest: %w", err)
	}
	value, err := json.Marshal(r)
	if err == nil && len(value) > MaxRequestBytes {
		err = fmt.Errorf("the value has %d bytes; at most %d are allowed", len(value), MaxRequestBytes)
	}
	if err != nil {
		return nil, fmt.Errorf("encode UpdateRequest: %w", err)
	}
	return value, nil
}

// RecordKey returns facet/key. All requests of an entity have the same key, so they are in one
// partition of each topic and are read in order.
func (r UpdateRequest) RecordKey() []byte { return []byte(r.Facet + "/" + r.Key) }

// ErrUnknownMajor is wrapped by DecodeUpdateRequest's error if this release does not know the
// record's schema major version.
var ErrUnknownMajor = errors.New("unknown major version of the schema")

// DecodeUpdateRequest decodes a record's value. Unknown fields are ignored. A v1.1 record of
// adr-013 is converted to source nexon, facet character. An error means that this release can
// never process the record, so it belongs on the dead-letter topic.
func DecodeUpdateRequest(value []byte) (UpdateRequest, error) {
	var head struct {
		SchemaVersion string `json:"schemaVersion"`
	}
	if err := json.Unmarshal(value, &head); err != nil {
		return UpdateRequest{}, fmt.Errorf("decode UpdateRequest: %w", err)
	}
	major, _, _ := strings.Cut(head.SchemaVersion, ".")
	var r UpdateRequest
	var err error
	switch major {
	case "2":
		err = json.Unmarshal(value, &r)
	case "1":
		r, err = upcastV1(value)
	default:
		err = fmt.Errorf("%w: schemaVersion is %q, this release reads 1 and 2", ErrUnknownMajor, head.SchemaVersion)
	}
	if err == nil {
		err = r.check()
	}
	if err != nil {
		return UpdateRequest{}, fmt.Errorf("decode UpdateRequest: %w", err)
	}
	return r, nil
}

func (r UpdateRequest) check() error {
	if err := r.Entity.Check(); err != nil {
		return err
	}
	switch {
	case r.EventID == "":
		return errors.New("eventId is missing")
	case !r.Lane.Valid():
		return fmt.Errorf("priority is %q; it must be HIGH or LOW", r.Lane)
	case r.Reason == "":
		return errors.New("reason is missing")
	case r.RequestedAt.IsZero():
		return errors.New("requestedAt is missing")
	case r.Version < 0 || r.Version > MaxVersion:
		return fmt.Errorf("version is %d; it must be between 0 and %d", r.Version, int64(MaxVersion))
	case r.Depth < 0 || r.Depth > MaxLinkDepth:
		return fmt.Errorf("depth is %d; it must be between 0 and %d", r.Depth, MaxLinkDepth)
	}
	return nil
}

// v1 is the JSON form of a request of adr-013 §1. The version in a v1 record is a counter that
// restarts, so the converted request gets the version 0 (unknown).
type v1 struct {
	EventID       string      `json:"eventId"`
	CharacterID   json.Number `json:"characterId"`
	OCID          string      `json:"ocid"`
	Lane          Lane        `json:"priority"`
	Reason        Reason      `json:"reason"`
	RequestedAt   time.Time   `json:"requestedAt"`
	CorrelationID string      `json:"correlationId"`
}

func upcastV1(value []byte) (UpdateRequest, error) {
	var old v1
	dec := json.NewDecoder(bytes.NewReader(value))
	dec.UseNumber()
	if err := dec.Decode(&old); err != nil {
		return UpdateRequest{}, err
	}
	if _, err := strconv.ParseUint(old.CharacterID.String(), 10, 64); err != nil {
		return UpdateRequest{}, fmt.Errorf("characterId is %q; it must be a whole number", old.CharacterID)
	}
	r := UpdateRequest{
		SchemaVersion: SchemaVersion,
		EventID:       old.EventID,
		Entity:        Entity{Source: "nexon", Facet: "character", Key: old.CharacterID.String()},
		Lane:          old.Lane,
		Reason:        old.Reason,
		RequestedAt:   old.RequestedAt,
		CorrelationID: old.CorrelationID,
	}
	if old.OCID != "" {
		r.Params = map[string]string{"ocid": old.OCID}
	}
	return r, nil
}
