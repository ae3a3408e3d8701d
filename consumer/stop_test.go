package consumer_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/freshet/freshet/consumer"
	"github.com/freshet/freshet/schemas"
)

// A revocation holds up the poll, and so the end of the reading; it must not hold up
// a stop for longer than a stop may take.
func TestAStopIsNotHeldUpByARevocationThatWaits(t *testing.T) {
	r := newRig(t)
	c := consumer.DefaultConfig(schemas.High)
	c.Drain = time.Second
	w := r.worker(c, r.db, permits{r.limiter})
	w.SetPatience(2 * patience)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	var keys []string
	for i := range 40 {
		keys = append(keys, fmt.Sprint("k", i))
	}
	r.untilJoined(1, 4)
	r.requests.noSettle.Store(true) // what was sent does not come to its end
	r.wishAll(keys, schemas.High, schemas.CacheMiss)
	r.until("the calls", func() bool { return r.upstream.Stats().Arrivals == 40 })
	r.run(r.worker(consumer.DefaultConfig(schemas.High), r.db, permits{r.limiter}).Run)
	r.untilJoined(2, 2) // the first is told to give two of its four up
	stop()
	select {
	case err := <-ended:
		t.Logf("stopped with %v", err)
	case <-time.After(patience):
		t.Errorf("not stopped within %v", patience)
	}
	r.requests.noSettle.Store(false)
	r.untilStored(keys...)
	r.untilCommitted(schemas.High)
}

// untilJoined waits until the group has so many members with so many partitions.
func (r *rig) untilJoined(members, partitions int) {
	r.Helper()
	group := schemas.Group("nexon", schemas.High)
	r.until("the assignment", func() bool {
		groups, err := r.admin.DescribeGroups(r.Context(), group)
		if err != nil {
			r.Fatal(err)
		}
		g, has := groups[group], 0
		for _, topic := range g.AssignedPartitions() {
			has += len(topic)
		}
		return len(g.Members) == members && has == partitions
	})
}
