package dlq

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store/deadletters"
)

// TestPlan_CountsGroupsBeyondTheLimit: the number that an operator confirms must include the dead
// letters of groups that the plan does not list.
func TestPlan_CountsGroupsBeyondTheLimit(t *testing.T) {
	c := newClient(t)
	const kinds = MaxGroups + 20
	for n := range int64(kinds) {
		c.deadLetter(idOf(0, n), func(l *deadletters.DeadLetter, r *ReadResult) {
			l.Fingerprint = fmt.Sprint("f", n)
			switch {
			case n < 7:
				l.Entity = schemas.Entity{Source: theSource}
			case n < 12:
				r.DeadLetter.Headers = schemas.ReplayMark{ID: "x", Count: schemas.MaxReplays}.Headers()
			}
		})
	}
	var groups Groups
	if c.do(http.MethodGet, dlqPath+"/groups", "", 200, &groups); groups.Total != kinds || !groups.More || len(groups.Groups) != MaxGroups {
		t.Errorf("groups: got total %d, more %v, %d groups", groups.Total, groups.More, len(groups.Groups))
	}
	var plan Plan
	c.do(http.MethodPost, dlqPath+"/plan", `{"kind":"REPLAY","lane":"LOW"}`, 200, &plan)
	if plan.Total != kinds || plan.Count != kinds-12 || plan.IfReadable != 7 || !plan.More {
		t.Errorf("replay plan: got %+v", plan)
	}
	plan = Plan{}
	if c.do(http.MethodPost, dlqPath+"/plan", `{"kind":"PURGE"}`, 200, &plan); plan.Total != kinds || plan.Count != kinds || plan.IfReadable != 0 {
		t.Errorf("purge plan: got %+v", plan)
	}
	if j := c.of.start(JobSpec{Kind: deadletters.PurgeJob}); j.Total != kinds {
		t.Errorf("total of the purge: got %d", j.Total)
	}
}
