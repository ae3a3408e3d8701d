package schemas

import (
	"bytes"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"
)

func exampleRun() RunEvent {
	return RunEvent{
		SchemaVersion: 1, ID: "01980000-0000-7000-8000-000000000001", Source: "github", Name: "profile", Scope: "octocat", Attempt: 2, State: "COMPLETED",
		StartedAt: time.Date(2026, 9, 21, 14, 13, 20, 0, time.UTC), EndedAt: time.Date(2026, 9, 21, 14, 20, 0, 0, time.UTC),
		Steps: RunSteps{Total: 52, Done: 50, NotFound: 1, Failed: 1}, Failures: []RunFailure{{"issues", "octocat/gone", "PARSE_ERROR: no JSON"}},
	}
}

// The golden record has a member that this release does not know, as a later release could write it.
// Decoding must ignore this member.
func TestRunEvent_GoldenFitsSchemaAndDecodes(t *testing.T) {
	golden, err := os.ReadFile("golden/run/v1.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := validate(t, compile(t, "run.v1.schema.json"), golden); err != nil {
		t.Error(err)
	}
	if got, err := DecodeRunEvent(golden); err != nil || !reflect.DeepEqual(got, exampleRun()) {
		t.Errorf("%v\n got %+v\nwant %+v", err, got, exampleRun())
	}
	_, value, err := exampleRun().Encode()
	if want := strings.Replace(string(bytes.TrimSpace(golden)), `,"added":"later"`, "", 1); err != nil || string(value) != want {
		t.Errorf("encodes to %s, %v\n golden is %s", value, err, want)
	}
}

func TestRunEvent_WithoutFailuresFitsSchema(t *testing.T) {
	e := exampleRun()
	e.Failures = nil
	key, value, err := e.Encode()
	if err != nil || string(key) != e.ID {
		t.Fatalf("got key %q and %v, want %q", key, err, e.ID)
	}
	if err := validate(t, compile(t, "run.v1.schema.json"), value); err != nil {
		t.Error(err)
	}
}

func TestDecodeRunEvent_RejectsInvalid(t *testing.T) {
	_, valid, err := exampleRun().Encode()
	if err != nil {
		t.Fatal(err)
	}
	for old, by := range map[string]string{
		`"schemaVersion":1`: `"schemaVersion":2`, `"attempt":2`: `"attempt":0`, `"id":"01980000-0000-7000-8000-000000000001"`: `"id":""`,
		`"endedAt":"2026-09-21T14:20:00Z",`: "", `{`: `[`,
	} {
		value := strings.Replace(string(valid), old, by, 1)
		if _, err := DecodeRunEvent([]byte(value)); err == nil {
			t.Errorf("%s: got no error, want one", value)
		}
		if by != `[` && validate(t, compile(t, "run.v1.schema.json"), []byte(value)) == nil {
			t.Errorf("%s: fits the schema, want it rejected", value)
		}
	}
}
