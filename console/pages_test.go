package console

import (
	"testing"
)

func TestEveryPageIsMade(t *testing.T) {
	r := newRig(t)
	for _, path := range []string{"", "/look", "/look?facet=nexon/character&key=somebody", "/queues", "/limiter", "/letters", "/letters/nexon/3/120", "/letters/plan?source=nexon&kind=REPLAY&lane=LOW", "/settings", "/activity"} {
		d := r.get(root + path)
		if d.status != 200 || d.byID("main") == nil {
			t.Errorf("%s: %d %s", path, d.status, d.text())
		}
	}
}
