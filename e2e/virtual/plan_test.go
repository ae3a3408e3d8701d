package virtual

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// quietEnd is the length of the last part of a run. This part has no faults. So the oracle can check
// that the effects of all faults end.
const quietEnd = 75 * time.Minute

// fault is one fault of a plan. If it has no victim, it affects all processes.
type fault struct {
	at, lasts time.Duration
	kind      string
	victim    string
	percent   float64       // share of the upstream's calls that fail, in percent
	by        time.Duration // step of the clock, or delay of a statement
}

func (f fault) String() string {
	text := fmt.Sprintf("%9s  %s", f.at.Truncate(time.Second), f.kind)
	if f.victim != "" {
		text += " of " + f.victim
	}
	if f.percent > 0 {
		text += fmt.Sprintf(", %.0f %% of the calls", f.percent)
	}
	if f.by != 0 {
		text += fmt.Sprintf(" by %v", f.by)
	}
	if f.lasts > 0 {
		text += fmt.Sprintf(" for %v", f.lasts)
	}
	return text
}

// processNames are the processes of the world.
var processNames = []string{"query-1", "query-2", "worker-1", "worker-2", "scheduler-1", "scheduler-2"}

// The kinds of faults that a plan can have.
const (
	killed          = "kill"
	stopped         = "stop"
	redisCut        = "cut of Redis"
	redisStalled    = "stall of Redis"
	redisEmptied    = "loss of Redis' data"
	redisClock      = "clock step of Redis"
	kafkaCut        = "cut of Kafka"
	kafkaStalled    = "stall of Kafka"
	kafkaErrors     = "errors of the group coordinator"
	kafkaTimeouts   = "timeouts of Kafka's appends"
	databaseFailing = "failing database"
	databaseSlow    = "slow database"
	databaseUnknown = "unknown commits of the database"
	upstreamCut     = "cut of the upstream"
	upstreamErrors  = "errors 500 of the upstream"
	upstreamKeys    = "errors 500 of the upstream for a fifth of the keys"
	upstreamHangs   = "hanging upstream"
	upstreamSlow    = "slow upstream"
	upstreamResets  = "resets of the upstream"
	upstreamRefuses = "refusals 429 of the upstream"
	upstreamHTML    = "HTML pages of the upstream"
	readBurst       = "burst of reads"
)

// kind describes how the random faults of one kind are chosen.
type kind struct {
	name       string
	weight     int // how often the kind is chosen, relative to the other kinds
	minLength  time.Duration
	maxLength  time.Duration
	everywhere bool // the fault affects all processes instead of one victim
}

var kinds = []kind{
	{killed, 6, 2 * time.Second, 5 * time.Minute, false},
	{stopped, 3, 2 * time.Second, time.Minute, false},
	{redisCut, 2, time.Second, 10 * time.Minute, false},
	{redisStalled, 2, time.Second, 2 * time.Minute, false},
	{redisEmptied, 1, 0, 0, true},
	{redisClock, 2, 0, 0, true},
	{kafkaCut, 2, time.Second, 15 * time.Minute, false},
	{kafkaStalled, 2, time.Second, 2 * time.Minute, false},
	{kafkaErrors, 1, 10 * time.Second, 10 * time.Minute, true},
	{kafkaTimeouts, 2, 10 * time.Second, 5 * time.Minute, true},
	{databaseFailing, 2, time.Second, 10 * time.Minute, false},
	{databaseSlow, 2, 10 * time.Second, 20 * time.Minute, false},
	{databaseUnknown, 2, 10 * time.Second, 5 * time.Minute, false},
	{upstreamCut, 1, 10 * time.Second, 30 * time.Minute, true},
	{upstreamErrors, 2, time.Minute, time.Hour, true},
	{upstreamKeys, 3, 10 * time.Minute, 2 * time.Hour, true},
	{upstreamHangs, 2, time.Minute, 30 * time.Minute, true},
	{upstreamSlow, 3, 10 * time.Minute, 2 * time.Hour, true},
	{upstreamResets, 1, time.Minute, 30 * time.Minute, true},
	{upstreamRefuses, 2, time.Minute, 30 * time.Minute, true},
	{upstreamHTML, 1, time.Minute, 20 * time.Minute, true},
	{readBurst, 3, 5 * time.Minute, 90 * time.Minute, true},
}

// faultsPerDay is the number of faults in a day, and minFaults the number in a short run.
const faultsPerDay, minFaults = 40, 8

// draw returns the random faults of a run of this length. The same seed and length always give the same
// faults.
func draw(seed uint64, length time.Duration) []fault {
	r := rand.New(rand.NewPCG(seed, 1))
	var deck []kind
	for _, k := range kinds {
		for range k.weight {
			deck = append(deck, k)
		}
	}
	n := max(minFaults, int(faultsPerDay*length.Hours()/24))
	all := make([]fault, 0, n)
	for range n {
		k := deck[r.IntN(len(deck))]
		f := fault{kind: k.name, at: between(r, 5*time.Minute, length-quietEnd), lasts: between(r, k.minLength, k.maxLength).Truncate(time.Second)}
		if !k.everywhere && (r.IntN(3) > 0 || k.name == killed || k.name == stopped) {
			f.victim = processNames[r.IntN(len(processNames))]
		}
		f.at = f.at.Truncate(time.Millisecond)
		f.lasts = min(f.lasts, length-quietEnd-f.at).Truncate(time.Second)
		switch k.name {
		case redisClock:
			f.by = between(r, -900*time.Millisecond, 900*time.Millisecond).Truncate(time.Millisecond)
		case databaseSlow:
			f.by = between(r, 20*time.Millisecond, 4*time.Second).Truncate(time.Millisecond)
		case upstreamErrors, upstreamHangs, upstreamResets, upstreamRefuses, upstreamHTML:
			f.percent = []float64{10, 50, 100}[r.IntN(3)]
		}
		all = append(all, f)
	}
	slices.SortStableFunc(all, func(a, b fault) int { return cmp.Compare(a.at, b.at) })
	return all
}

// between returns a random duration.
func between(r *rand.Rand, shortest, longest time.Duration) time.Duration {
	return shortest + time.Duration(r.Int64N(int64(max(0, longest-shortest))+1))
}
