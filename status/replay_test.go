package status

import (
	"testing"
	"time"

	"github.com/freshet/freshet/store"
)

func TestOutcomeOfReplay_ComparesWithTheStart(t *testing.T) {
	began := time.Unix(1_800_000_000, 0)
	before, after := began.Add(-time.Second), began.Add(time.Second)
	checked := func(version int64, at time.Time) store.State { return store.State{Version: version, CheckedAt: at} }
	failed := func(version int64, at time.Time, state store.StatusState) store.Status {
		return store.Status{State: state, Version: version, UpdatedAt: at}
	}
	for name, test := range map[string]struct {
		state  store.State
		status store.Status
		want   ReplayOutcome
	}{
		"nothing stored":                {want: ReplayPending},
		"fetched before":                {state: checked(1, before), want: ReplayPending},
		"fetched after":                 {state: checked(2, after), want: ReplaySucceeded},
		"failed before, not since":      {status: failed(1, before, store.Failed), want: ReplayPending},
		"failed again":                  {status: failed(2, after, store.Failed), want: ReplayFailedAgain},
		"suspended again":               {state: checked(1, before), status: failed(2, after, store.Suspended), want: ReplayFailedAgain},
		"retry scheduled":               {status: failed(2, after, store.Retrying), want: ReplayPending},
		"fetched, then failed":          {state: checked(2, after), status: failed(3, after, store.Failed), want: ReplayFailedAgain},
		"failed, then fetched":          {state: checked(3, after), status: failed(2, after, store.Failed), want: ReplaySucceeded},
		"fetched when the replay began": {state: checked(2, began), want: ReplaySucceeded},
		"failed before, fetched after":  {state: checked(3, after), status: failed(1, before, store.Failed), want: ReplaySucceeded},
	} {
		if got := OutcomeOfReplay(began, test.state, test.status); got != test.want {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
}
