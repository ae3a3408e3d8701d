package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// scenario describes one scenario that the program can run.
type scenario struct {
	name     string
	adr      int      // number in the verification plan of adr-013; 0 if it is not in the plan
	summary  string   // one sentence that describes the scenario
	parts    []string // names of the scenarios that this scenario runs in order on one site
	run      func(ctx context.Context, s *site, o options) error
	notInAll bool // the argument "all" does not run this scenario, because it has its own make target
}

// scenarios lists all scenarios. A scenario reports its judgement with site.addResult. It
// returns an error only if it could not be run to its end.
var scenarios = []scenario{
	{name: "reads", summary: "many users (k6) read during a refresh flood, then also with a slow Kafka and without Redis", parts: []string{phaseFlood, phaseKafka, phaseRedis}, run: reads(phaseFlood, phaseKafka, phaseRedis)},
	{name: phaseFlood, summary: "many users (k6) read while refreshes use the upstream's whole quota", run: reads(phaseFlood)},
	{name: phaseKafka, adr: 9, summary: "as flood, and a produce to Kafka takes one second", run: reads(phaseKafka)},
	{name: phaseRedis, adr: 10, summary: "as flood, and Redis is killed: reads continue from the database, refreshes are rejected", run: reads(phaseRedis)},
	{name: "normal", adr: 1, summary: "50 HIGH and 200 LOW requests a second, and 100 reads a second of stored snapshots", run: normal},
	{name: "slow-database", adr: 5, summary: "the database does not respond for 10 s (locked tables) during 50 HIGH requests a second: their records wait and are processed afterwards", run: slowDatabase},
	{name: "stale-loop", adr: 6, summary: "twenty entities that never change are read continuously and become stale after 2 s", run: loop},
	{name: "priority", adr: 7, summary: "fifty entities have LOW locks and a LOW backlog of 5,000 records before them; readers request them in HIGH; then the same without a backlog", run: priority},
	{name: "herd", adr: 3, summary: "1,000 identical reads at once through four query processes", run: herd},
	{name: "killed", adr: 4, summary: "one of two workers is killed (SIGKILL) after half of 2,000 refreshes", run: killed},
	{name: "dedup", adr: 12, summary: "ten query processes receive a read of the same key at the same moment, for 100 keys, five times", run: dedup},
	{name: "versions", adr: 13, summary: "five query processes receive refreshes of the same fifty entities; half-way Redis is killed and restarted empty", run: versions},
	{name: "cluster", adr: 14, summary: "2,000 refreshes on a Redis Cluster of three nodes", run: cluster},
	{name: "release", adr: 15, summary: "twenty clients release the same lock at the same moment with freshet's Lua scripts, for 300 locks", run: release},
	{name: "peak", adr: 2, summary: "200 HIGH and 300 LOW requests a second", run: peak},
	{name: "two-buckets", adr: 8, summary: "LOW uses its cap and has a backlog of thousands; HIGH requests the remaining 100 a second", run: bothBuckets},
	{name: "low-alone", adr: 11, summary: "only LOW has requests, more than its cap", run: lowAlone},
	{name: "isolation", adr: 16, summary: "HIGH has a lag of 10,000 records while LOW has a backlog of 20,000", run: isolation},
	{name: "hostile", adr: 17, summary: "one client reads 2,000 keys for which the upstream returns 400; another reads 200 for which it returns 401, 429, HTML, truncated JSON or 16 MB; 20 other clients read new keys", run: hostile},
	{name: "documents", summary: "up to 3,000 users (k6) read 39 XML layouts; 33 are static files, and 6 come from an upstream that allows three calls at once", run: documents, notInAll: true},
	{name: "torture", summary: "random faults of all components under load, reproducible by a seed; afterwards the state is judged", run: torture, notInAll: true},
	{name: "observe", summary: "dashboards, rules and alerts show six outages", run: observe, notInAll: true},
}

func (sc scenario) title() string {
	if sc.adr == 0 {
		return sc.name
	}
	return fmt.Sprintf("%d %s", sc.adr, sc.name)
}

// find returns the scenario with a name.
func find(name string) (scenario, bool) {
	i := slices.IndexFunc(scenarios, func(sc scenario) bool { return sc.name == name })
	if i < 0 {
		return scenario{}, false
	}
	return scenarios[i], true
}

// choose returns the scenarios with these names, each once. It omits a scenario that another chosen
// scenario runs as one of its parts.
func choose(names []string) ([]scenario, error) {
	var chosen []scenario
	for _, sc := range scenarios {
		if slices.Contains(names, sc.name) || slices.Contains(names, "all") && !sc.notInAll {
			chosen = append(chosen, sc)
		}
	}
	for _, name := range names {
		if _, known := find(name); !known && name != "all" {
			return nil, fmt.Errorf("no scenario is called %q; --list lists all", name)
		}
	}
	if len(chosen) == 0 {
		return nil, errors.New("name one or more scenarios, or all; --list lists them")
	}
	return slices.DeleteFunc(slices.Clone(chosen), func(sc scenario) bool {
		return slices.ContainsFunc(chosen, func(other scenario) bool { return slices.Contains(other.parts, sc.name) })
	}), nil
}

// failedResults returns an empty result for each part of the scenario that was not completed.
func (sc scenario) failedResults(completed []result) (all []result) {
	names := sc.parts
	if len(names) == 0 {
		names = []string{sc.name}
	}
	for _, name := range names {
		if !slices.ContainsFunc(completed, func(r result) bool { return r.name == name }) {
			all = append(all, result{name: name})
		}
	}
	return all
}

// number returns the scenario's number in the verification plan as text, or an empty string.
func (sc scenario) number() string {
	if sc.adr == 0 {
		return ""
	}
	return strconv.Itoa(sc.adr)
}

func list(out io.Writer) {
	for _, sc := range sorted() {
		fmt.Fprintf(out, "%3s  %-*s  %s\n", sc.number(), longestName(), sc.name, sc.summary)
	}
}

// sorted returns the scenarios by their numbers, then the scenarios without a number.
func sorted() []scenario {
	return slices.SortedStableFunc(slices.Values(scenarios), func(a, b scenario) int {
		return (a.adr+99)%100 - (b.adr+99)%100
	})
}

func longestName() (n int) {
	for _, sc := range scenarios {
		n = max(n, len(sc.name))
	}
	return n
}

// The names of the seven targets of the verification plan in adr-013.
const (
	highP95     = "HIGH request until stored, p95"
	readP95     = "read during a refresh flood, p95"
	contract    = "calls in any second"
	lowLag      = "LOW lag"
	duplicates  = "duplicates removed"
	lightWrites = "unchanged responses written without a payload"
	staleLoops  = "stale loops"
)

// targets contains the name and the limit of each target, in the order of the verification plan.
var targets = [][2]string{
	{highP95, "<3 s"},
	{readP95, "<100 ms"},
	{contract, "<=500"},
	{lowLag, "<30 min"},
	{duplicates, ">99.9 %"},
	{lightWrites, "100 %"},
	{staleLoops, "0"},
}

func oneLine(text string) string {
	return strings.Join(strings.Fields(strings.ReplaceAll(text, "|", "/")), " ")
}
