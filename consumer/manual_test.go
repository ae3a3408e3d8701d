package consumer_test

import (
	"testing"

	"github.com/freshet/freshet/schemas"
)

func TestWrite_MarksRequestsOfReaders(t *testing.T) {
	r := newRig(t)
	r.newUpstream("/x?key={key}", nil)
	stop := r.work(schemas.High)
	defer stop()
	for _, c := range []struct {
		reason schemas.Reason
		want   bool
	}{
		{schemas.UserRequest, true},
		{schemas.Prefetch, false},
		{schemas.CacheMiss, true},
		{schemas.Trigger, false},
		{schemas.Stale, true},
		{schemas.Retry, false},
	} {
		if got := r.checkedFor(c.reason, "key-of-"+string(c.reason), nil).Manual; got != c.want {
			t.Errorf("check for %s: manual: got %v, want %v", c.reason, got, c.want)
		}
	}
}
