package virtual

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

var (
	seedFlag     = flag.Uint64("seed", 0, "seed of the first run; 0: a random seed")
	seedsFlag    = flag.Uint64("seeds", 1, "number of runs, with consecutive seeds")
	lengthFlag   = flag.Duration("length", 3*time.Hour, "virtual time of a run")
	entitiesFlag = flag.Int("entities", 1000, "number of prefetched entities")
	logFlag      = flag.String("log", "", "file for the log of all processes")
	shrinkFlag   = flag.Bool("shrink", false, "drop faults from the plan of a failing seed while it still fails")
)

const lengthOfDay = 24 * time.Hour

// TestMain collects garbage less often, which saves a sixth of the processor time.
func TestMain(m *testing.M) {
	flag.Parse()
	debug.SetGCPercent(800)
	os.Exit(m.Run())
}

// runOptions are the parameters of one run.
type runOptions struct {
	seed     uint64
	entities int
	length   time.Duration
	plan     []fault
	dir      string
	log      *slog.Logger // log of all processes
	out      io.Writer    // the writer for the timeline: one line for each event of the run
}

// result is the outcome of a run.
type result struct {
	took     time.Duration // virtual time that the run has taken
	findings []finding
	err      error
}

// run executes a plan of faults in a bubble of package synctest, whose clock is virtual. The run ends
// early after an hour in which the oracle has found a violation.
func run(t *testing.T, o runOptions) (r result) {
	o.dir = t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		r = o.play(t)
	})
	return r
}

func (o runOptions) play(t *testing.T) (r result) {
	// A bubble begins in 2000. A run begins shortly before midnight in the zone of the quota, so that a
	// run of three hours contains a midnight and then has calls during its faults.
	rng := rand.New(rand.NewPCG(o.seed, 3))
	before := between(rng, 10*time.Minute, 40*time.Minute).Truncate(time.Second)
	midnight := time.Date(2027, 3, 1, 0, 0, 0, 0, seoul)
	time.Sleep(time.Until(midnight.Add(-before)))
	w := newWorld(t, o)
	if r.err = w.oracle.useDay(midnight, dayLimit-rng.IntN(dayLimit/10)); r.err != nil {
		return r
	}
	for _, name := range processNames {
		w.launch(name)
	}
	if r.err = w.startReaders(); r.err != nil {
		return r
	}
	ctx, cancel := context.WithCancel(context.Background())
	w.running.Go(func() { w.inject(ctx, o.plan) })
	for at := time.Hour; at <= o.length && len(r.findings) == 0 && r.err == nil; at += time.Hour {
		time.Sleep(time.Until(w.start.Add(at)))
		r.took = at
		var line string
		if r.findings, line, r.err = w.oracle.judge(); r.err == nil {
			w.say("%s", line)
		}
	}
	cancel()
	w.close()
	return r
}

func TestDay_ViolatesNoInvariant(t *testing.T) {
	if *lengthFlag < time.Hour || *lengthFlag%time.Hour != 0 {
		t.Fatalf("-length=%v: want whole hours, as in 24h, because each hour is judged at its end", *lengthFlag)
	}
	seed := *seedFlag
	if seed == 0 {
		seed = 1 + rand.Uint64N(1_000_000)
	}
	log := slog.New(slog.DiscardHandler)
	if *logFlag != "" {
		f, err := os.Create(*logFlag)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.Close() }()
		log = slog.New(slog.NewTextHandler(f, nil))
	}
	for range *seedsFlag {
		o := runOptions{seed: seed, entities: *entitiesFlag, length: *lengthFlag, plan: draw(seed, *lengthFlag), log: log, out: t.Output()}
		_, _ = fmt.Fprintf(o.out, "seed %d: %v of %d entities; plan:\n%s", seed, o.length, o.entities, planText(o.plan))
		began, used := time.Now(), cpu()
		r := run(t, o)
		_, _ = fmt.Fprintf(o.out, "seed %d: took %v, %v of processor time\n", seed, time.Since(began).Round(time.Second), (cpu() - used).Round(time.Second))
		report(t, o, r)
		seed++
	}
}

func planText(plan []fault) string {
	var text strings.Builder
	for _, f := range plan {
		fmt.Fprintln(&text, f)
	}
	return text.String()
}

// report fails the test and prints the findings. With the flag -shrink it also searches for a shorter
// plan with the same finding.
func report(t *testing.T, o runOptions, r result) {
	if r.err != nil {
		t.Fatalf("seed %d: %v", o.seed, r.err)
	}
	if len(r.findings) == 0 {
		return
	}
	for i, f := range r.findings {
		if i == 10 {
			t.Errorf("and %d more findings", len(r.findings)-i)
			break
		}
		t.Errorf("seed %d: %v", o.seed, f)
	}
	t.Logf("to repeat it: make virtual-day SEED=%d LENGTH=%v ENTITIES=%d", o.seed, o.length, o.entities)
	if !*shrinkFlag {
		return
	}
	again := o
	again.length, again.out = r.took, io.Discard
	again.plan = shrink(o.plan, func(plan []fault) bool {
		again.plan = plan
		found := run(t, again)
		return found.err == nil && len(found.findings) > 0 && found.findings[0].check == r.findings[0].check
	})
	t.Logf("these faults are enough for a finding of %q:\n%s", r.findings[0].check, planText(again.plan))
}

// cpu returns the processor time that this process has used.
func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
