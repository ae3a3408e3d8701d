package letters

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// TestAllAreCountedAlsoOfMoreKindsThanAreShown: who confirms a number means all of them.
func TestAllAreCountedAlsoOfMoreKindsThanAreShown(t *testing.T) {
	c := newCounter(t)
	const kinds = GroupsMost + 20
	for n := range int64(kinds) {
		c.bury(idOf(0, n), func(l *store.Letter, r *Read) {
			l.Fingerprint = fmt.Sprint("f", n)
			switch {
			case n < 7:
				l.Entity = schemas.Entity{Source: theSource}
			case n < 12:
				r.Letter.Headers = schemas.ReplayMark{ID: "x", Count: schemas.MaxReplays}.Headers()
			}
		})
	}
	var groups Groups
	if c.do(http.MethodGet, lettersPath+"/groups", "", 200, &groups); groups.Total != kinds || !groups.More || len(groups.Groups) != GroupsMost {
		t.Errorf("%d in all, more: %v, %d groups", groups.Total, groups.More, len(groups.Groups))
	}
	var plan Planned
	c.do(http.MethodPost, lettersPath+"/plan", `{"kind":"REPLAY","lane":"LOW"}`, 200, &plan)
	if plan.Total != kinds || plan.Count != kinds-12 || plan.IfReadable != 7 || !plan.More {
		t.Errorf("%+v", plan)
	}
	plan = Planned{}
	if c.do(http.MethodPost, lettersPath+"/plan", `{"kind":"PURGE"}`, 200, &plan); plan.Total != kinds || plan.Count != kinds || plan.IfReadable != 0 {
		t.Errorf("%+v", plan)
	}
	if j := c.of.start(Order{Kind: store.PurgeJob}); j.Total != kinds {
		t.Errorf("%d are to be purged", j.Total)
	}
}
