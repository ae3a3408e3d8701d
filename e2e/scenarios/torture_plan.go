package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// faultKind is a kind of fault: its name, the component that it affects, the processes that can be
// its victims, and the range of its length.
type faultKind struct {
	name      string
	component string // two faults of one component are never injected at once
	victims   []string
	min, max  time.Duration
}

// failover is the name of the fault that loses the last acknowledged writes of Redis. Its length is
// the time for which the replica does not receive the writes.
const failover = "Redis fails over to its replica"

// allProcesses is the victim of a fault that affects every process.
const allProcesses = "all"

var (
	workers       = []string{"worker-1", "worker-2"}
	queries       = []string{"query-1", "query-2"}
	processes     = slices.Concat(workers, queries)
	anyConnection = append([]string{allProcesses, allProcesses, allProcesses}, processes...)
)

// faultKinds lists all kinds of faults. Each length is clearly below or above ten seconds,
// because two timeouts are ten seconds long. A consumer that is frozen for longer than its
// session timeout loses its partitions. A producer drops a record that is not delivered within
// the delivery timeout.
var faultKinds = []faultKind{
	{"killed", "process", workers, 0, 2 * time.Second},
	{"killed", "process", queries, 0, 2 * time.Second},
	{"terminated", "process", workers, 0, 2 * time.Second},
	{"terminated", "process", queries, 0, 2 * time.Second},
	{"frozen", "process", workers, time.Second, 4 * time.Second},
	{"frozen for longer than a session", "process", workers, 11 * time.Second, 14 * time.Second},
	{"frozen", "process", queries, time.Second, 4 * time.Second},
	{"Redis killed, its data lost", "redis", []string{allProcesses}, 0, 3 * time.Second},
	{"Redis killed, its data kept", "redis", []string{allProcesses}, 0, 3 * time.Second},
	{"Redis frozen", "redis", []string{allProcesses}, time.Second, 4 * time.Second},
	{failover, "redis", []string{allProcesses}, 200 * time.Millisecond, time.Second},
	{"Redis cut", "redis", anyConnection, 0, 2 * time.Second},
	{"Redis stalled", "redis", anyConnection, time.Second, 4 * time.Second},
	{"Redis stalled, then cut", "redis", anyConnection, time.Second, 4 * time.Second},
	{"database cut", "database", anyConnection, 0, 3 * time.Second},
	{"database stalled", "database", anyConnection, time.Second, 4 * time.Second},
	{"database stalled, then cut", "database", anyConnection, time.Second, 4 * time.Second},
	{"tables locked", "database", []string{allProcesses}, time.Second, 4 * time.Second},
	{"Kafka cut", "kafka", anyConnection, 0, 3 * time.Second},
	{"Kafka stalled", "kafka", anyConnection, time.Second, 4 * time.Second},
	{"Kafka stalled, then cut", "kafka", anyConnection, time.Second, 4 * time.Second},
	{"Kafka stalled for longer than a delivery", "kafka", append([]string{allProcesses}, queries...), 11 * time.Second, 13 * time.Second},
	{"Kafka slow by 0.7 s", "kafka", anyConnection, time.Second, 4 * time.Second},
	{"broker frozen", "kafka", []string{allProcesses}, time.Second, 4 * time.Second},
	{"broker frozen for longer than a session", "kafka", []string{allProcesses}, 11 * time.Second, 14 * time.Second},
	{"broker killed", "kafka", []string{allProcesses}, 0, 2 * time.Second}, // the fault lasts longer than the planned length, because the broker then needs time to start again
	{"500", "upstream", []string{allProcesses}, time.Second, 3 * time.Second},
	{"a reset of half the calls", "upstream", []string{allProcesses}, time.Second, 3 * time.Second},
	{"hangs", "upstream", []string{allProcesses}, time.Second, 3 * time.Second},
	{"429 with Retry-After", "upstream", []string{allProcesses}, time.Second, 2 * time.Second},
	{"slow answers", "upstream", []string{allProcesses}, time.Second, 4 * time.Second},
}

// fault is one fault of a plan.
type fault struct {
	faultKind
	victim string
	length time.Duration
}

func (f fault) String() string {
	victim := f.victim
	if victim == allProcesses {
		victim = f.component
	}
	return fmt.Sprintf("%s: %s, %v", victim, f.name, f.length)
}

// step is one fault, or two concurrent faults, after a pause.
type step struct {
	pause  time.Duration
	faults []fault
}

// plan returns the steps for a number of faults. It depends only on the seed and on the table
// faultKinds, so the same seed gives the same faults in the same order. With the same seed, a plan
// with more faults begins with the steps of a plan with fewer faults. Each kind occurs once, in
// random order, before any kind occurs again.
func plan(seed uint64, faults int) (all []step) {
	rng := rand.New(rand.NewPCG(seed, 0))
	between := func(shortest, longest time.Duration) time.Duration {
		const precision = 10 * time.Millisecond
		return (shortest + time.Duration(rng.Int64N(int64(longest-shortest)+1))).Truncate(precision)
	}
	var deck []faultKind
	next := func() fault {
		if len(deck) == 0 {
			deck = slices.Clone(faultKinds)
			rng.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
		}
		kind := deck[0]
		deck = deck[1:]
		return fault{kind, kind.victims[rng.IntN(len(kind.victims))], between(kind.min, kind.max)}
	}
	for n := 0; n < faults; {
		s := step{pause: between(200*time.Millisecond, 2*time.Second), faults: []fault{next()}}
		if second := rng.IntN(5) == 0; second && len(deck) > 0 && deck[0].component != s.faults[0].component {
			s.faults = append(s.faults, next())
		}
		s.faults = s.faults[:min(len(s.faults), faults-n)]
		n += len(s.faults)
		all = append(all, s)
	}
	return all
}
