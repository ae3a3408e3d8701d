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

// SchemaVersion is what this release writes into every UpdateRequest.
const SchemaVersion = "2.0"

// MaxVersion is the largest version a record may carry. Redis' scripts count in
// doubles, exact to 2^53. Numbers follow Redis' clock in ms, so real ones stay
// far below; request_begin lets no record push them ahead of that clock.
const MaxVersion = 1 << 52

// UpdateRequest asks for one refresh of one entity. Its JSON form is described
// by update_request.v2.schema.json; within major 2 fields are only ever added.
type UpdateRequest struct {
	SchemaVersion string `json:"schemaVersion"`
	EventID       string `json:"eventId"` // UUIDv7
	Entity
	Params        map[string]string `json:"params,omitempty"` // win over the facet's configured ones
	Lane          Lane              `json:"priority"`
	Reason        Reason            `json:"reason"`
	RequestedAt   time.Time         `json:"requestedAt"`
	CorrelationID string            `json:"correlationId"`
	// Version is the number the coalescing step issued; rising per entity. 0
	// means unknown: only a fetch begun after RequestedAt satisfies the request.
	Version int64  `json:"version"`
	RunID   string `json:"runId,omitempty"`
	Page    string `json:"page,omitempty"`
}

// Encode returns the record's value in schema major 2.
func (r UpdateRequest) Encode() ([]byte, error) {
	r.SchemaVersion = SchemaVersion
	if err := r.check(); err != nil {
		return nil, fmt.Errorf("encode UpdateRequest: %w", err)
	}
	value, err := json.Marshal(r)
	if err == nil && len(value) > MaxRequestBytes {
		err = fmt.Errorf("it would have %d bytes, no request may have more than %d", len(value), MaxRequestBytes)
	}
	if err != nil {
		return nil, fmt.Errorf("encode UpdateRequest: %w", err)
	}
	return value, nil
}

// RecordKey returns facet/key: an entity's requests all lie in one partition of
// each topic, and so are read in order.
func (r UpdateRequest) RecordKey() []byte { return []byte(r.Facet + "/" + r.Key) }

// ErrUnknownMajor is wrapped by DecodeUpdateRequest's error for a record whose
// schema major this release does not know.
var ErrUnknownMajor = errors.New("unknown schema major")

// DecodeUpdateRequest reads a record's value. Fields it does not know are
// ignored. A v1.1 record of adr-013 is upcast to source nexon, facet character.
// An error means that the record can never be processed by this release: it
// belongs on the dead-letter topic, byte for byte as it came.
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
		return fmt.Errorf("version is %d; it must lie between 0 and %d", r.Version, int64(MaxVersion))
	}
	return nil
}

// v1 is the record of adr-013 §1. Its version counts something else (an INCR
// that restarts), so the upcast leaves the request's version unknown.
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
