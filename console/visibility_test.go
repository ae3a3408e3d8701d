package console

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/freshet/freshet/dlq"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/settings"
)

// limitedRig returns a rig with a dead letter, a job and an audit entry of the entity hr.kim, which
// only clients with see:hr can see. Clients must authenticate.
func limitedRig(t *testing.T) *rig {
	r := newRig(t)
	fillRig(r)
	r.loginRequired = true
	r.list[0].Entity, r.list[0].Visibility = schemas.Entity{Source: "nexon", Facet: "character", Key: "hr.kim"}, "hr"
	value, err := schemas.UpdateRequest{
		EventID: "01980c3e-7a10-7c3f-9d55-0d5a1d5f2b11", Entity: r.list[0].Entity, Lane: schemas.High, Reason: schemas.CacheMiss, RequestedAt: testNow, Version: 1,
	}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	r.shown.Value = value
	r.jobs[0].Filter.Key = "hr.kim"
	for _, after := range []string{`{"facet":"character","key":"hr.kim"}`, `{"keys":["a","hr.kim"]}`, `{"filter":{"key":"hr.kim"}}`} {
		r.audit = append(r.audit, settings.Entry{Action: "snapshot-delete", Source: "nexon", Actor: "key:1", After: json.RawMessage(after)})
	}
	return r
}

var limitedPages = []string{"/dlq?source=nexon", "/activity", "/dlq/nexon/3/120", "/lookup?facet=nexon/character&key=hr.kim"}

func TestConsole_HidesEntitiesOutsideVisibility(t *testing.T) {
	for token, sees := range map[string]bool{"inspect": false, "inspect,refresh,see:other": false, "inspect,see:hr": true, "admin": true} {
		r := limitedRig(t)
		for _, page := range limitedPages {
			text := r.get(root+page, "Authorization", "Bearer "+token).text()
			// The form repeats the key that the client submitted, so this page may contain the key.
			if strings.HasPrefix(page, "/lookup") {
				if got := strings.Contains(text, "item_equipment"); got != sees {
					t.Errorf("%s as %s: got content %v, want %v", page, token, got, sees)
				}
				continue
			}
			if got := strings.Contains(text, "hr.kim"); got != sees {
				t.Errorf("%s as %s: got hr.kim %v, want %v", page, token, got, sees)
			}
		}
		job := r.get(root+"/dlq/jobs/"+r.jobs[0].ID, "Authorization", "Bearer "+token)
		if got := job.status == 200; got != sees {
			t.Errorf("the job as %s: got %d, want it shown: %v", token, job.status, sees)
		}
	}
}

func TestConsole_HiddenDeadLetterIsNotFound(t *testing.T) {
	r := limitedRig(t)
	unseen := r.get(root+"/dlq/nexon/3/120", "Authorization", "Bearer inspect")
	r.readErr = dlq.ErrGone
	gone := r.get(root+"/dlq/nexon/3/120", "Authorization", "Bearer inspect")
	if unseen.status != gone.status || unseen.text() != gone.text() {
		t.Errorf("got %d %s, want %d %s", unseen.status, unseen.text(), gone.status, gone.text())
	}
}

func TestConsole_FiltersByVisibility(t *testing.T) {
	for token, want := range map[string][]string{"inspect": {}, "inspect,see:hr,see:staff": {"hr", "staff"}, "admin": nil} {
		r := limitedRig(t)
		r.filters = nil
		r.get(root+"/dlq?source=nexon", "Authorization", "Bearer "+token)
		r.get(root+"/dlq/plan?source=nexon&kind=PURGE", "Authorization", "Bearer "+token)
		for _, f := range r.filters {
			if !slices.Equal(f.Visibilities, want) || (f.Visibilities == nil) != (want == nil) {
				t.Errorf("as %s: got dead letters of %v, want of %v", token, f.Visibilities, want)
			}
		}
		if len(r.filters) == 0 {
			t.Errorf("reads of dead letters as %s: got none, want some", token)
		}
	}
}
