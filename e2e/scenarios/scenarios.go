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

// scenario is one that can be named.
type scenario struct {
	name     string
	adr      int      // its number in the verification plan of adr-013; 0: it has none
	summary  string   // it plays, in a sentence
	parts    []string // scenarios that it plays one after the other on one site
	run      func(ctx context.Context, s *site, o options) error
	notInAll bool // all leaves it out: it judges something else, and has a target of its own
}

// scenarios are all of them. One judges by site.judged; an error means that it could
// not be played.
var scenarios = []scenario{
	{name: "reads", summary: "many users (k6) read through a refresh flood, and then also with a slow Kafka and without Redis", parts: []string{phaseFlood, phaseKafka, phaseRedis}, run: reads(phaseFlood, phaseKafka, phaseRedis)},
	{name: phaseFlood, summary: "many users (k6) read while refreshes use the whole budget of the upstream", run: reads(phaseFlood)},
	{name: phaseKafka, adr: 9, summary: "the same, and a produce to Kafka takes a second", run: reads(phaseKafka)},
	{name: phaseRedis, adr: 10, summary: "the same, and Redis is killed: reads go on from the database, refreshes are refused", run: reads(phaseRedis)},
	{name: "normal", adr: 1, summary: "HIGH asks for 50 a second and LOW for 200, and 100 reads a second of what is stored", run: normal},
	{name: "slow-database", adr: 5, summary: "the database answers nothing for 10 s (a lock on its tables) while HIGH asks for 50 a second: that is held, and served afterwards", run: slowDatabase},
	{name: "stale-loop", adr: 6, summary: "twenty entities that never change are read on and on, and are stale after 2 s", run: loop},
	{name: "priority", adr: 7, summary: "LOW holds the locks of fifty entities behind a backlog of 5,000, and readers ask for them; then the same without a backlog", run: priority},
	{name: "herd", adr: 3, summary: "1,000 identical requests at once over four query processes", run: herd},
	{name: "killed", adr: 4, summary: "one of two workers is killed (SIGKILL) half-way through 2,000 refreshes", run: killed},
	{name: "dedup", adr: 12, summary: "ten query processes are asked for the same keys at the same moment, five times", run: dedup},
	{name: "versions", adr: 13, summary: "five query processes are asked to refresh the same fifty entities, and Redis is killed half-way and comes back empty", run: versions},
	{name: "cluster", adr: 14, summary: "2,000 refreshes on a Redis Cluster of three nodes", run: cluster},
	{name: "release", adr: 15, summary: "twenty release each of 300 locks at the same moment, by the scripts of the product", run: release},
	{name: "peak", adr: 2, summary: "HIGH asks for 200 a second and LOW for 300", run: peak},
	{name: "two-buckets", adr: 8, summary: "LOW is at its cap with thousands waiting, and HIGH asks for the 100 a second that are left", run: bothBuckets},
	{name: "low-alone", adr: 11, summary: "nobody but LOW asks, for more than it may have", run: lowAlone},
	{name: "isolation", adr: 16, summary: "HIGH falls 10,000 requests behind while LOW has a backlog of 20,000", run: isolation},
	{name: "hostile", adr: 17, summary: "one client reads 2,000 keys that the upstream answers with 400, another one 200 that it answers with 401, 429, HTML, truncated JSON and 16 MB; beside them 20 clients read new keys", run: hostile},
	{name: "torture", summary: "random faults of everything, by a seed, under load, and what they leave behind", run: torture, notInAll: true},
	{name: "observe", summary: "operators see what happens, through six outages", run: observe, notInAll: true},
}

func (sc scenario) title() string {
	if sc.adr == 0 {
		return sc.name
	}
	return fmt.Sprintf("%d %s", sc.adr, sc.name)
}

// find returns the scenario of a name.
func find(name string) (scenario, bool) {
	i := slices.IndexFunc(scenarios, func(sc scenario) bool { return sc.name == name })
	if i < 0 {
		return scenario{}, false
	}
	return scenarios[i], true
}

// choose returns the scenarios that were named, each once, and none that another of
// them plays.
func choose(names []string) ([]scenario, error) {
	var chosen []scenario
	for _, sc := range scenarios {
		if slices.Contains(names, sc.name) || slices.Contains(names, "all") && !sc.notInAll {
			chosen = append(chosen, sc)
		}
	}
	for _, name := range names {
		if _, known := find(name); !known && name != "all" {
			return nil, fmt.Errorf("there is no scenario %q; --list tells of all", name)
		}
	}
	if len(chosen) == 0 {
		return nil, errors.New("name a scenario or several, or all; --list tells of them")
	}
	return slices.DeleteFunc(slices.Clone(chosen), func(sc scenario) bool {
		return slices.ContainsFunc(chosen, func(other scenario) bool { return slices.Contains(other.parts, sc.name) })
	}), nil
}

// failedResults are the results of what it should have played and has not.
func (sc scenario) failedResults(played []result) (all []result) {
	names := sc.parts
	if len(names) == 0 {
		names = []string{sc.name}
	}
	for _, name := range names {
		if !slices.ContainsFunc(played, func(r result) bool { return r.name == name }) {
			all = append(all, result{name: name})
		}
	}
	return all
}

// number is the plan's, or empty.
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

// sorted are the scenarios by their numbers, and then those that have none.
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

// The seven targets of the verification plan.
const (
	highP95     = "a HIGH request is stored, 95 of 100"
	readP95     = "a read is answered in a refresh flood, 95 of 100"
	contract    = "calls in any second"
	lowLag      = "LOW is behind"
	duplicates  = "duplicates removed"
	lightWrites = "unchanged answers written without their payload"
	staleLoops  = "stale loops"
)

// targets with their limits, in the plan's order.
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
