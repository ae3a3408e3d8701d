package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// harm is a kind of fault. The plan knows its name, whom it can meet, and for how long.
type harm struct {
	name        string
	part        string // two of one part are not done at once
	victims     []string
	least, most time.Duration
}

// failover is the fault after which the last writes that were acknowledged are forgotten.
// It is as long as that was.
const failover = "Redis fails over to its replica"

// everyone is who is met by a fault of a way that all processes have.
const everyone = "all"

var (
	workers   = []string{"worker-1", "worker-2"}
	queries   = []string{"query-1", "query-2"}
	processes = slices.Concat(workers, queries)
	anyWay    = append([]string{everyone, everyone, everyone}, processes...)
)

// harms are all kinds. What is stopped for longer than a session of ten seconds has
// lost its partitions when it goes on, and does not know; what is not delivered within
// ten seconds is given up.
var harms = []harm{
	{"killed", "process", workers, 0, 2 * time.Second},
	{"killed", "process", queries, 0, 2 * time.Second},
	{"told to end", "process", workers, 0, 2 * time.Second},
	{"told to end", "process", queries, 0, 2 * time.Second},
	{"stopped", "process", workers, time.Second, 4 * time.Second},
	{"stopped for longer than a session", "process", workers, 11 * time.Second, 14 * time.Second},
	{"stopped", "process", queries, time.Second, 4 * time.Second},
	{"Redis killed, its data lost", "redis", []string{everyone}, 0, 3 * time.Second},
	{"Redis killed, its data kept", "redis", []string{everyone}, 0, 3 * time.Second},
	{"Redis stopped", "redis", []string{everyone}, time.Second, 4 * time.Second},
	{failover, "redis", []string{everyone}, 200 * time.Millisecond, time.Second},
	{"Redis cut", "redis", anyWay, 0, 2 * time.Second},
	{"Redis stalled", "redis", anyWay, time.Second, 4 * time.Second},
	{"Redis stalled, then cut", "redis", anyWay, time.Second, 4 * time.Second},
	{"database cut", "database", anyWay, 0, 3 * time.Second},
	{"database stalled", "database", anyWay, time.Second, 4 * time.Second},
	{"database stalled, then cut", "database", anyWay, time.Second, 4 * time.Second},
	{"tables locked", "database", []string{everyone}, time.Second, 4 * time.Second},
	{"Kafka cut", "kafka", anyWay, 0, 3 * time.Second},
	{"Kafka stalled", "kafka", anyWay, time.Second, 4 * time.Second},
	{"Kafka stalled, then cut", "kafka", anyWay, time.Second, 4 * time.Second},
	{"Kafka stalled for longer than a delivery", "kafka", append([]string{everyone}, queries...), 11 * time.Second, 13 * time.Second},
	{"Kafka slow by 0.7 s", "kafka", anyWay, time.Second, 4 * time.Second},
	{"broker stopped", "kafka", []string{everyone}, time.Second, 4 * time.Second},
	{"broker stopped for longer than a session", "kafka", []string{everyone}, 11 * time.Second, 14 * time.Second},
	{"broker killed", "kafka", []string{everyone}, 0, 2 * time.Second}, // and as long as it takes to start
	{"500", "upstream", []string{everyone}, time.Second, 3 * time.Second},
	{"a reset of half the calls", "upstream", []string{everyone}, time.Second, 3 * time.Second},
	{"hangs", "upstream", []string{everyone}, time.Second, 3 * time.Second},
	{"429 with Retry-After", "upstream", []string{everyone}, time.Second, 2 * time.Second},
	{"slow answers", "upstream", []string{everyone}, time.Second, 4 * time.Second},
}

// hurt is a fault of a plan.
type hurt struct {
	harm
	victim string
	length time.Duration
}

func (h hurt) String() string {
	who := h.victim
	if who == everyone {
		who = h.part
	}
	return fmt.Sprintf("%s: %s, %v", who, h.name, h.length)
}

// strike is one fault, or two at once, after a pause.
type strike struct {
	pause time.Duration
	hurts []hurt
}

// plan makes so many faults of a seed, and of nothing else: the same seed has the same
// faults in the same order, for as long as the table above stays as it is. A longer
// plan begins with the shorter one. All kinds come in turn, each time in another order.
func plan(seed uint64, faults int) (all []strike) {
	rng := rand.New(rand.NewPCG(seed, 0))
	between := func(least, most time.Duration) time.Duration {
		const grain = 10 * time.Millisecond
		return (least + time.Duration(rng.Int64N(int64(most-least)+1))).Truncate(grain)
	}
	var deck []harm
	next := func() hurt {
		if len(deck) == 0 {
			deck = slices.Clone(harms)
			rng.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
		}
		of := deck[0]
		deck = deck[1:]
		return hurt{of, of.victims[rng.IntN(len(of.victims))], between(of.least, of.most)}
	}
	for n := 0; n < faults; {
		s := strike{pause: between(200*time.Millisecond, 2*time.Second), hurts: []hurt{next()}}
		if second := rng.IntN(5) == 0; second && len(deck) > 0 && deck[0].part != s.hurts[0].part {
			s.hurts = append(s.hurts, next())
		}
		s.hurts = s.hurts[:min(len(s.hurts), faults-n)]
		n += len(s.hurts)
		all = append(all, s)
	}
	return all
}
