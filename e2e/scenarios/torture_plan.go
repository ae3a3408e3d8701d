package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// faultKind is a kind of fault. The plan knows its name, whom it can meet, and for how long.
type faultKind struct {
	name      string
	component string // two of one part are not done at once
	victims   []string
	min, max  time.Duration
}

// failover is the fault after which the last writes that were acknowledged are forgotten.
// It is as long as that was.
const failover = "Redis fails over to its replica"

// allProcesses is who is met by a fault of a way that all processes have.
const allProcesses = "all"

var (
	workers       = []string{"worker-1", "worker-2"}
	queries       = []string{"query-1", "query-2"}
	processes     = slices.Concat(workers, queries)
	anyConnection = append([]string{allProcesses, allProcesses, allProcesses}, processes...)
)

// faultKinds are all kinds. What is stopped for longer than a session of ten seconds has
// lost its partitions when it goes on, and does not know; what is not delivered within
// ten seconds is given up.
var faultKinds = []faultKind{
	{"killed", "process", workers, 0, 2 * time.Second},
	{"killed", "process", queries, 0, 2 * time.Second},
	{"told to end", "process", workers, 0, 2 * time.Second},
	{"told to end", "process", queries, 0, 2 * time.Second},
	{"stopped", "process", workers, time.Second, 4 * time.Second},
	{"stopped for longer than a session", "process", workers, 11 * time.Second, 14 * time.Second},
	{"stopped", "process", queries, time.Second, 4 * time.Second},
	{"Redis killed, its data lost", "redis", []string{allProcesses}, 0, 3 * time.Second},
	{"Redis killed, its data kept", "redis", []string{allProcesses}, 0, 3 * time.Second},
	{"Redis stopped", "redis", []string{allProcesses}, time.Second, 4 * time.Second},
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
	{"broker stopped", "kafka", []string{allProcesses}, time.Second, 4 * time.Second},
	{"broker stopped for longer than a session", "kafka", []string{allProcesses}, 11 * time.Second, 14 * time.Second},
	{"broker killed", "kafka", []string{allProcesses}, 0, 2 * time.Second}, // and as long as it takes to start
	{"500", "upstream", []string{allProcesses}, time.Second, 3 * time.Second},
	{"a reset of half the calls", "upstream", []string{allProcesses}, time.Second, 3 * time.Second},
	{"hangs", "upstream", []string{allProcesses}, time.Second, 3 * time.Second},
	{"429 with Retry-After", "upstream", []string{allProcesses}, time.Second, 2 * time.Second},
	{"slow answers", "upstream", []string{allProcesses}, time.Second, 4 * time.Second},
}

// fault is a fault of a plan.
type fault struct {
	faultKind
	victim string
	length time.Duration
}

func (h fault) String() string {
	who := h.victim
	if who == allProcesses {
		who = h.component
	}
	return fmt.Sprintf("%s: %s, %v", who, h.name, h.length)
}

// step is one fault, or two at once, after a pause.
type step struct {
	pause  time.Duration
	faults []fault
}

// plan makes so many faults of a seed, and of nothing else: the same seed has the same
// faults in the same order, for as long as the table above stays as it is. A longer
// plan begins with the shorter one. All kinds come in turn, each time in another order.
func plan(seed uint64, faults int) (all []step) {
	rng := rand.New(rand.NewPCG(seed, 0))
	between := func(least, most time.Duration) time.Duration {
		const grain = 10 * time.Millisecond
		return (least + time.Duration(rng.Int64N(int64(most-least)+1))).Truncate(grain)
	}
	var deck []faultKind
	next := func() fault {
		if len(deck) == 0 {
			deck = slices.Clone(faultKinds)
			rng.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
		}
		of := deck[0]
		deck = deck[1:]
		return fault{of, of.victims[rng.IntN(len(of.victims))], between(of.min, of.max)}
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
