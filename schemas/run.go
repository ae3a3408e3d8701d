package schemas

import (
	"encoding/json"
	"fmt"
	"time"
)

// RunEvent is published on the source's topic of runs when an attempt of a run has ended.
// run.v1.schema.json describes its JSON form. The event of an attempt can be published several times,
// always with the same content. A reader recognises such duplicates by ID and Attempt.
type RunEvent struct {
	SchemaVersion int    `json:"schemaVersion"`
	ID            string `json:"id"` // id of the run (UUIDv7)
	Source        string `json:"source"`
	Name          string `json:"name"`
	// Scope identifies the set of keys of the run: the only key, a prefix followed by *, or a hash of
	// several keys.
	Scope   string `json:"scope"`
	Attempt int    `json:"attempt"`
	State   string `json:"state"` // state of the run at the end of the attempt: COMPLETED, FAILED or CANCELLED
	// Error is why the run has failed; empty means that it has not failed, or its failed steps are the
	// reason.
	Error string `json:"error,omitempty"`
	// StartedAt is the start of the attempt.
	StartedAt time.Time `json:"startedAt"`
	EndedAt   time.Time `json:"endedAt"`
	Steps     RunSteps  `json:"steps"`
	// Failures are the first 100 failed steps.
	Failures []RunFailure `json:"failures"`
}

// RunSteps says how many steps of a run there are, in total and in each state.
type RunSteps struct {
	Total     int `json:"total"`
	Done      int `json:"done"`
	NotFound  int `json:"notFound"`
	Failed    int `json:"failed"`
	Cancelled int `json:"cancelled"`
}

// RunFailure says which entity a run could not fetch, and why.
type RunFailure struct {
	Facet string `json:"facet"`
	Key   string `json:"key"`
	Error string `json:"error"`
}

// runMajor is the major version of the schema.
const runMajor = 1

// Encode returns the Kafka record's key (the id of the run) and its value (JSON).
func (e RunEvent) Encode() (key, value []byte, err error) {
	e.SchemaVersion = runMajor
	e.StartedAt, e.EndedAt = e.StartedAt.UTC(), e.EndedAt.UTC()
	e.Failures = append([]RunFailure{}, e.Failures...) // so that the JSON has an empty list instead of null
	value, err = json.Marshal(e)
	return []byte(e.ID), value, err
}

// DecodeRunEvent decodes the value of a record that Encode has created. It ignores unknown members.
func DecodeRunEvent(value []byte) (RunEvent, error) {
	var e RunEvent
	if err := json.Unmarshal(value, &e); err != nil {
		return RunEvent{}, fmt.Errorf("decode the end of a run: %w", err)
	}
	switch {
	case e.SchemaVersion != runMajor:
		return RunEvent{}, fmt.Errorf("decode the end of a run: its schemaVersion is %d; this release reads %d", e.SchemaVersion, runMajor)
	case e.ID == "" || e.Attempt < 1 || e.EndedAt.IsZero():
		return RunEvent{}, fmt.Errorf("decode the end of run %q: id, attempt and endedAt are required, and attempt must be at least 1", e.ID)
	}
	return e, nil
}
