package settings

import (
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/freshet/freshet/admin"
	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/store"
)

var _ limiter.Settings = (*Settings)(nil)

func target(n int) Patch {
	return Patch{Policies: Set(map[string]Member[PolicyPatch]{"second": Set(PolicyPatch{Target: Set(n)})})}
}

func TestQuota_ReturnsNewestOverride(t *testing.T) {
	r := newRig(t)
	if o, revision, err := r.Quota(t.Context(), "nexon"); err != nil || revision != 0 || o.Stopped || o.Policies != nil {
		t.Errorf("before any change: %+v, %d, %v", o, revision, err)
	}
	if _, err := r.Change(t.Context(), ChangeRequest{Source: "nexon"}, target(400)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Stop(t.Context(), ChangeRequest{Source: "nexon"}); err != nil {
		t.Fatal(err)
	}
	if o, revision, err := r.Quota(t.Context(), "nexon"); err != nil || revision != 2 || !o.Stopped || *o.Policies["second"].Target != 400 {
		t.Errorf("%+v, %d, %v", o, revision, err)
	}
}

func TestChange_RetriesAfterConflict(t *testing.T) {
	r := newRig(t)
	r.before = func() error {
		r.before = nil
		_, err := r.Change(t.Context(), ChangeRequest{Source: "nexon", Actor: "b"}, target(400))
		return err
	}
	state, err := r.Stop(t.Context(), ChangeRequest{Source: "nexon", Actor: "a"})
	if err != nil || !state.Stopped || state.Revision != 2 || state.Effective.Policies[0].Target != 400 || *state.ChangedBy != "a" {
		t.Errorf("got %+v, %v", state, err)
	}
}

func TestChange_WithRevisionIsNotRetried(t *testing.T) {
	r := newRig(t)
	r.before = func() error {
		r.before = nil
		_, err := r.Change(t.Context(), ChangeRequest{Source: "nexon"}, target(400))
		return err
	}
	_, err := r.Change(t.Context(), ChangeRequest{Source: "nexon", Revision: new(int64(0))}, target(401))
	if conflict, ok := errors.AsType[*ConflictError](err); !ok || conflict.Actual != 1 || conflict.Expected != 0 {
		t.Errorf("got %v", err)
	}
}

func TestChange_ReturnsErrBusyAfterMaxAttempts(t *testing.T) {
	r := newRig(t)
	n := 0
	r.before = func() error { n++; return store.ErrConflict }
	if _, err := r.Stop(t.Context(), ChangeRequest{Source: "nexon"}); !errors.Is(err, ErrBusy) || n != maxAttempts {
		t.Errorf("got %v after %d attempts, want ErrBusy after %d", err, n, maxAttempts)
	}
	if a := r.act("stop", ""); a.StatusCode != 409 || a.Code != "busy" || a.Header.Get("Retry-After") != "1" {
		t.Errorf("got %d %s", a.StatusCode, a.text)
	}
}

func TestChange_ConcurrentChangesAllApply(t *testing.T) {
	r := newRig(t)
	members := []Patch{target(400), {Policies: Set(map[string]Member[PolicyPatch]{"second": Set(PolicyPatch{HighReserve: Set(limiter.Reserve{Calls: 90})})})}, {Policies: Set(map[string]Member[PolicyPatch]{"day": Set(PolicyPatch{Limit: Set(15_000_000)})})}}
	var wg sync.WaitGroup
	for _, p := range members {
		wg.Go(func() {
			if _, err := r.Change(t.Context(), ChangeRequest{Source: "nexon"}, p); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Go(func() {
		if _, err := r.Stop(t.Context(), ChangeRequest{Source: "nexon"}); err != nil {
			t.Error(err)
		}
	})
	wg.Wait()
	a := r.get()
	if want := `{"stopped":true,"policies":{"day":{"limit":15000000},"second":{"target":400,"highReserve":90}}}`; r.override(a) != want || a.Revision != 4 {
		t.Errorf("%s; want %s", a.text, want)
	}
}

// After a deployment the configuration may no longer have a policy that an override changes.
// State then shows the problem. An emergency stop, and a reset of that policy, still succeed.
func TestState_ShowsOverrideThatNoLongerFits(t *testing.T) {
	r := newRig(t)
	r.patch(`{"policies":{"second":{"target":400},"day":{"limit":15000000}}}`)
	source := r.sources["nexon"]
	source.Quota.Policies = source.Quota.Policies[:1]
	r.sources["nexon"] = source
	a := r.get()
	if a.StatusCode != 200 || a.Effective != nil || !strings.Contains(a.Problem, `there is no policy "day"`) {
		t.Errorf("got %d %s", a.StatusCode, a.text)
	}
	if a := r.act("stop", ""); a.StatusCode != 200 || !a.Stopped {
		t.Errorf("stop: %d %s", a.StatusCode, a.text)
	}
	if a := r.patch(`{"policies":{"second":{"target":401}}}`); a.StatusCode != 422 {
		t.Errorf("change of another policy: %d %s", a.StatusCode, a.text)
	}
	if a := r.patch(`{"policies":{"day":null}}`); a.StatusCode != 200 || a.Problem != "" || a.Effective.Policies[0].Target != 400 || !a.Stopped {
		t.Errorf("reset: %d %s", a.StatusCode, a.text)
	}
}

func TestGet_UnreadableRowIsNamed(t *testing.T) {
	r := newRig(t)
	err := r.store.ChangeSetting(t.Context(), store.Setting{Source: "nexon", Value: []byte(`{"policies":7}`), Revision: 1}, store.AuditEntry{})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := r.Quota(t.Context(), "nexon"); err == nil || !strings.Contains(err.Error(), "correct or delete the row in the table settings") {
		t.Errorf("got %v", err)
	}
}

func TestStop_WorksWithUnreadableRow(t *testing.T) {
	r := newRig(t)
	unread := `{"policies":7,"lowShare":0.5}`
	if err := r.store.ChangeSetting(t.Context(), store.Setting{Source: "nexon", Value: []byte(unread), Revision: 1}, store.AuditEntry{}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Resume(t.Context(), ChangeRequest{Source: "nexon", Actor: "me"}); err == nil {
		t.Error("Resume: got nil, want an error for the unreadable row")
	}
	if s, err := r.Stop(t.Context(), ChangeRequest{Source: "nexon", Actor: "me"}); err != nil || !s.Stopped || s.Revision != 2 {
		t.Errorf("got %+v, %v", s, err)
	}
	if o, _, err := r.Quota(t.Context(), "nexon"); err != nil || !o.Stopped {
		t.Errorf("got %+v, %v", o, err)
	}
	entries, err := r.store.Audit(t.Context(), 10)
	if err != nil || len(entries) == 0 || string(entries[0].Before) != unread {
		t.Errorf("audit entry does not hold the unreadable value: %+v, %v", entries, err)
	}
}

func TestPatch_JSONRoundTrip(t *testing.T) {
	for _, text := range []string{
		`{}`, `{"policies":null}`, `{"prefetch":null}`,
		`{"policies":{"day":null,"second":{"limit":5,"target":null,"highReserve":"25/s","lowReserve":0}}}`,
	} {
		var p Patch
		if err := admin.Decode([]byte(text), &p); err != nil {
			t.Fatal(err)
		}
		if got, err := json.Marshal(p); err != nil || string(got) != text {
			t.Errorf("%s became %s, %v", text, got, err)
		}
	}
}
