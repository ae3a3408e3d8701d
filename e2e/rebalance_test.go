package e2e

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/freshet/freshet/e2e/harness"
	"github.com/freshet/freshet/schemas"
)

// Workers join and leave their consumer groups while the upstream is slow. They use one Kafka
// group protocol, or the two protocols in turn. Finally all workers end at the same time, as in a
// rollout, and a new worker processes the remaining records. Each entity must be fetched exactly
// once.
func TestRebalance_RepeatsNoCall(t *testing.T) {
	t.Parallel()
	for name, protocols := range map[string][]string{"consumer": {"consumer"}, "both": {"classic", "consumer"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rebalance(t, protocols)
		})
	}
}

// joined is a worker process and the Kafka group protocol that it uses.
type joined struct {
	*harness.Process
	protocol string
}

func rebalance(t *testing.T, protocols []string) {
	f := newFleet(t, "--latency", "500ms-4s")
	started := 0
	start := func() joined {
		started++
		protocol := protocols[started%len(protocols)]
		f.Env = []string{"FRESHET_KAFKA_GROUP_PROTOCOL=" + protocol}
		return joined{f.worker(), protocol}
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	api := f.query()
	workers := []joined{start(), start()}
	var keys []string
	for step := range 2 {
		more := harness.Keys(fmt.Sprintf("k%d-", step), 100)
		keys = append(keys, more...)
		f.read(api, more, 20)
		f.until(timeout, "some calls", func() bool { return f.stats().Arrivals > len(keys)-80 })
		if len(workers) < 3 && rng.IntN(3) > 0 {
			workers = append(workers, start())
			continue
		}
		i := rng.IntN(len(workers))
		took, code := f.terminate(workers[i].Process, false)
		t.Logf("one of %d workers left after %v", len(workers), took.Round(10*time.Millisecond))
		equal(t, "exit code of a worker that left", code, 0)
		workers[i] = start()
	}
	// If a worker uses the Kafka group protocol "consumer", the broker must list the group under the
	// type "consumer". It lists a group with the protocol "classic" under another type.
	if slices.ContainsFunc(workers, func(w joined) bool { return w.protocol == "consumer" }) {
		f.until(timeout, "an assignment by the broker", func() bool {
			groups, err := f.admin.ListGroupsByType(t.Context(), []string{"consumer"})
			_, listed := groups[schemas.Group(f.Source, schemas.High)]
			return err == nil && listed
		})
	}
	codes := make(chan int, len(workers))
	for _, w := range workers { // end all workers at the same time
		go func() { _, code := f.terminate(w.Process, false); codes <- code }()
	}
	for range workers {
		equal(t, "exit code of workers that were stopped at once", <-codes, 0)
	}
	t.Logf("after the end of all workers %d records are not committed, %d of %d snapshots are stored", f.lag(), f.one(storedPayloads), len(keys))
	start()
	f.untilStored(2*time.Minute, len(keys))
	f.untilCommitted()
	atMost(t, "calls", f.stats().Arrivals, len(keys))
	equal(t, "dead letters", f.deadLetters(), 0)
}
