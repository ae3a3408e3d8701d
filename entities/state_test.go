package entities

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/prefetched"
)

// stateOf requests the state of an entity.
func (r *rig) stateOf(path string) (State, answer) {
	r.Helper()
	got := r.do(http.MethodGet, "/snapshots/"+path, "")
	var s State
	if got.status == http.StatusOK {
		if err := json.Unmarshal([]byte(got.text), &s); err != nil {
			r.Fatal(err)
		}
	}
	return s, got
}

func (r *rig) write(w store.Write) {
	r.Helper()
	if _, err := r.db.Write(r.Context(), []store.Write{w}); err != nil {
		r.Fatal(err)
	}
}

func TestState_HasLastFetchAndRegistration(t *testing.T) {
	r := newRig(t)
	e := schemas.Entity{Source: "nexon", Facet: "a", Key: "x/y"}
	if _, err := r.db.RegisterEntities(t.Context(), []prefetched.RegisteredEntity{{Entity: e, Enabled: true, Due: start.Add(time.Hour)}}); err != nil {
		t.Fatal(err)
	}
	r.write(store.Write{Entity: e, Kind: store.KindNotFound, Version: 5, CheckedAt: start})
	got, answer := r.stateOf("nexon/a/x%2Fy")
	if answer.status != http.StatusOK || got.Snapshot == nil || !got.Snapshot.CheckedAt.Equal(start) || !got.Snapshot.NotFound || got.Snapshot.UpdatedAt != nil {
		t.Errorf("got %d %s, want a fetch at %v that found nothing", answer.status, answer.text, start)
	}
	if got.Registration == nil || !got.Registration.DueAt.Equal(start.Add(time.Hour)) {
		t.Errorf("got registration %+v, want it due at %v", got.Registration, start.Add(time.Hour))
	}
	if got.Failure != nil {
		t.Errorf("got failure %+v, want none", got.Failure)
	}
}

func TestState_HasFailure(t *testing.T) {
	r := newRig(t)
	e := schemas.Entity{Source: "nexon", Facet: "a", Key: "x"}
	failed := store.Status{Entity: e, State: store.Failed, Reason: "UPSTREAM_4XX", Error: "403 Forbidden", Rounds: 2, Version: 7, Until: start.Add(time.Hour), Lane: schemas.High, Since: start, UpdatedAt: start}
	if err := r.db.WriteFailure(t.Context(), failed, nil); err != nil {
		t.Fatal(err)
	}
	got, answer := r.stateOf("nexon/a/x")
	if f := got.Failure; f == nil || f.State != store.Failed || f.Error != "403 Forbidden" || f.Until == nil || !f.Until.Equal(start.Add(time.Hour)) {
		t.Errorf("got %d %s, want the failure until %v", answer.status, answer.text, start.Add(time.Hour))
	}
	if got.Registration != nil || got.Snapshot != nil {
		t.Errorf("got %s, want neither a registration nor a snapshot", answer.text)
	}
}

func TestState_UnknownEntityIsNotFound(t *testing.T) {
	r := newRig(t)
	if _, got := r.stateOf("nexon/a/nobody"); got.status != http.StatusNotFound || got.Code != "no-such-snapshot" {
		t.Errorf("got %d %s, want 404 no-such-snapshot", got.status, got.Code)
	}
}
