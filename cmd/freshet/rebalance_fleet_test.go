package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"
)

// TestWorkersComeAndGo plays what the processes of workers are told to do, all at once, for
// they mostly wait.
func TestWorkersComeAndGo(t *testing.T) {
	t.Parallel()
	var tests sync.WaitGroup
	for name, test := range map[string]func(*testing.T){
		"consumer":      func(t *testing.T) { workersComeAndGo(t, "consumer", "consumer") },
		"both":          func(t *testing.T) { workersComeAndGo(t, "classic", "consumer") },
		"one signal":    aStopWaitsForTheAnswersAndLeavesNothingToRepeat,
		"second signal": aSecondSignalEndsAtOnceAndItsRecordsAreReadAgain,
	} {
		tests.Go(func() { t.Run(name, test) })
	}
	tests.Wait()
}

// workersComeAndGo has workers of these group protocols, in turn, join and leave while
// the upstream is slow, and at last all end at once, as when a release is rolled out.
func workersComeAndGo(t *testing.T, protocols ...string) {
	f := newFleet(t, false, "--latency", "500ms-4s")
	started, speaks := 0, map[*process]string{}
	start := func() *process {
		started++
		protocol := protocols[started%len(protocols)]
		f.env = append(f.env, "FRESHET_KAFKA_GROUP_PROTOCOL="+protocol)
		w := f.worker()
		speaks[w] = protocol
		return w
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	api := f.query()
	workers := []*process{start(), start()}
	var keys []string
	for step := range 2 {
		more := characters(fmt.Sprintf("k%d-", step), 100)
		keys = append(keys, more...)
		f.ask(api, more, 20)
		f.until(patience, "some calls", func() bool { return f.stats().Arrivals > len(keys)-80 })
		if before := f.stats().Arrivals; len(workers) < 3 && rng.IntN(3) > 0 {
			workers = append(workers, start())
		} else {
			i := rng.IntN(len(workers))
			took, code := workers[i].asked(t, false)
			t.Logf("one of %d left after %v, %d calls meanwhile", len(workers), took.Round(10*time.Millisecond), f.stats().Arrivals-before)
			if code != 0 {
				t.Errorf("it ended with %d", code)
			}
			workers[i] = start()
		}
	}
	// Of classic members alone one of them does, and the broker hands it on as they leave.
	if slices.ContainsFunc(workers, func(w *process) bool { return speaks[w] == "consumer" }) {
		f.until(patience, "the broker to share out the partitions", func() bool {
			groups, err := f.admin.ListGroupsByType(t.Context(), []string{"consumer"})
			_, listed := groups[f.source+".high-worker"]
			return err == nil && listed
		})
	}
	ended := make(chan int, len(workers))
	for _, w := range workers { // all at once
		go func() { _, code := w.asked(t, false); ended <- code }()
	}
	for range workers {
		if code := <-ended; code != 0 {
			t.Errorf("one of those that were ended at once ended with %d", code)
		}
	}
	t.Logf("after all have ended %d records are not committed, and %d of %d stored", f.behind(), f.one(storedPayloads), len(keys))
	start()
	f.until(2*time.Minute, "a snapshot of each", func() bool { return f.one(storedPayloads) == int64(len(keys)) })
	f.until(patience, "the commit of every offset", func() bool { return f.behind() == 0 })
	s := f.stats()
	t.Logf("%d calls for %d entities", s.Arrivals, len(keys))
	if s.Arrivals > len(keys) || f.letters() > 0 {
		t.Errorf("%d calls for %d entities, %d letters", s.Arrivals, len(keys), f.letters())
	}
}
