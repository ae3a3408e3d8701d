package e2e

import (
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/freshet/freshet/e2e/harness"
)

const (
	readRounds = 3
	hotKeys    = 16
	// nginxTimes is the bar: of fresh hits that are sent as they are stored, nginx
	// may serve so many times as many as we do.
	nginxTimes = 1.5
)

// The encodings that readers ask for; identity is to ask for none.
var encodings = []string{"zstd", "gzip", "identity"}

// readsOf are those who are measured beside each other, on snapshots of one size.
type readsOf struct {
	size    string
	rivals  []*rival
	figures map[*rival][]figures
}

// rival serves reads in one encoding.
type rival struct {
	who, how string // as in freshet, hot
	encoding string // that is asked for
	beside   *rival // nginx in the same encoding
	judged   bool
	answer   answered
	measure  func() figures
}

// answered is what a rival answers to one read.
type answered struct {
	encoding string
	bytes    int
}

// figures are of one round.
type figures struct {
	perSecond, p50, p99 float64 // ms
	cpu                 float64 // µs a request
	memory              float64 // MB
}

// TestReads_CompareWithNginx measures fresh hits beside nginx' cache with the same bytes and
// beside the least that a handler on the same database can do, and prints all in
// one table. The rounds take turns, so that the machine's noise hits all alike.
func TestReads_CompareWithNginx(t *testing.T) {
	longOnly(t)
	round := *round
	if round < time.Second || round%time.Second != 0 {
		t.Fatalf("-round=%v: want whole seconds, as in 5s", round)
	}
	w, x, f := newWrk(t, round), newNginx(t), newFleet(t)
	bare := f.bareServer()
	began := time.Now()
	var all []*readsOf
	for _, s := range []readSize{
		{"item-equipment", 10_000 * int(round.Seconds())},
		{"stat", 20_000 * int(round.Seconds())},
	} {
		all = append(all, f.compareReads(t, w, x, bare, s))
	}
	where := fmt.Sprintf("%s, %s, %d threads and %d connections, %d rounds of %v, %d cores, %.0f s",
		x.version, w.version, wrkThreads, wrkConnections, readRounds, round, runtime.NumCPU(), time.Since(began).Seconds())
	for _, missed := range printReads(t.Output(), where, all) {
		if *quietMachine {
			t.Error(missed)
		}
	}
}

// compareReads measures all rivals with snapshots of one size.
func (f *fleet) compareReads(t *testing.T, w *wrk, x *nginx, bare *harness.Process, s readSize) *readsOf {
	t.Helper()
	hot, cold := f.storeReads(t, s)
	ours := f.queryProcess()
	api, front := ours.URL(), x.warm(f, ours.URL(), hot)
	r := &readsOf{size: s.describe(t), figures: map[*rival][]figures{}}

	add := func(who, how, encoding, at string, keys keyRange, pids func() []int) *rival {
		v := &rival{who: who, how: how, encoding: encoding}
		v.answer = f.onlyAnswer(at+keys.path(f.Source, 0), encoding)
		if pids != nil {
			v.measure = func() figures { return w.run(t, at, f.Source, keys, encoding, pids()) }
		}
		r.rivals = append(r.rivals, v)
		return v
	}
	only := func(p *harness.Process) func() []int { return func() []int { return []int{p.Process.Pid} } }
	for _, encoding := range encodings { // those that are compared are neighbours in time
		mirror := add("nginx", "hot", encoding, front, hot, func() []int { return x.processes(t) })
		ours := add("freshet", "hot", encoding, api, hot, only(ours))
		ours.beside, ours.judged = mirror, encoding == "zstd"
		ours = add("freshet", "cold", encoding, api, hot, nil)
		ours.beside, ours.measure = mirror, func() figures { return f.coldRound(t, w, cold, hot, encoding) }
		if encoding == "zstd" {
			add("echo, from memory", "hot", encoding, bare.Match+memory, hot, only(bare)).beside = mirror
			add("echo and pgx", "hot", encoding, bare.Match, hot, only(bare)).beside = mirror
			add("echo and pgx", "cold", encoding, bare.Match, cold, only(bare)).beside = mirror
		}
	}
	for range readRounds {
		for _, v := range r.rivals {
			r.figures[v] = append(r.figures[v], v.measure())
		}
	}
	if n := x.asked.Load(); n != x.warmed {
		t.Errorf("nginx asked its origin %d times, %d of them to be warmed: not all came from its cache", n, x.warmed)
	}
	ours.Stop()
	return r
}

// coldRound reads each key once, from a process whose cache is empty, and looks
// whether it is the database that was read.
func (f *fleet) coldRound(t *testing.T, w *wrk, cold, hot keyRange, encoding string) figures {
	t.Helper()
	p := f.queryProcess()
	for i := range hot.count { // opens the pool's connections
		f.onlyAnswer(p.URL()+hot.path(f.Source, i), encoding)
	}
	before := f.payloadsRead()
	got := w.run(t, p.URL(), f.Source, cold, encoding, []int{p.Process.Pid})
	p.Stop() // its sessions end, and with them the delay of the statistics
	requests := int64(got.perSecond * w.round.Seconds())
	if requests > int64(cold.count) {
		t.Errorf("%d reads of %d cold keys: some were read twice; store more of them", requests, cold.count)
	}
	if read := f.payloadsRead() - before; read < requests*95/100 {
		t.Errorf("%d payloads were read for %d reads of cold keys: those were not cold", read, requests)
	}
	return got
}

// payloadsRead returns how many payloads the database has read.
func (f *fleet) payloadsRead() int64 {
	f.Helper()
	return f.one("SELECT coalesce(sum(coalesce(idx_tup_fetch, 0) + seq_tup_read), 0)::bigint FROM pg_stat_user_tables WHERE relname LIKE 'snapshot_payload_%'")
}

// of is the median over the rounds.
func (r *readsOf) of(v *rival, figure func(f figures) float64) float64 {
	var all []float64
	for _, f := range r.figures[v] {
		all = append(all, figure(f))
	}
	slices.Sort(all)
	return all[len(all)/2]
}

// ratio is a rival's rate over that of nginx, the median of the rounds' own.
func (r *readsOf) ratio(v *rival) float64 {
	var all []float64
	for i, f := range r.figures[v] {
		all = append(all, f.perSecond/r.figures[v.beside][i].perSecond)
	}
	slices.Sort(all)
	return math.Round(100*all[len(all)/2]) / 100
}

// printReads prints the table, and returns what misses the bar.
func printReads(to io.Writer, where string, all []*readsOf) (missed []string) {
	bar := math.Round(100/nginxTimes) / 100
	table := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	line := func(format string, args ...any) { _, _ = fmt.Fprintf(table, format+"\n", args...) }
	_, _ = fmt.Fprintf(to, "THE BAR OF READS (%s)\n", where)
	for _, r := range all {
		_ = table.Flush()
		_, _ = fmt.Fprintf(to, "\n%s\n", r.size)
		line("asked for\tfrom\tkeys\tanswered\tbytes\trequests/s\tp50 ms\tp99 ms\tCPU us\tMB\tx nginx\tlimit\t")
		for _, v := range r.rivals {
			ratio, limit, verdict := "", "", ""
			if v.beside != nil {
				ratio = strconv.FormatFloat(r.ratio(v), 'f', 2, 64)
			}
			if v.judged {
				limit, verdict = fmt.Sprintf(">= %.2f", bar), "ok"
				if r.ratio(v) < bar {
					verdict = "MISSED"
					missed = append(missed, fmt.Sprintf("%s, %s, %s keys of %s: %s x nginx, and the bar is %s", v.who, v.encoding, v.how, r.size, ratio, limit))
				}
			}
			line("%s\t%s\t%s\t%s\t%d\t%.0f\t%.2f\t%.2f\t%.0f\t%.0f\t%s\t%s\t%s", v.encoding, v.who, v.how, v.answer.encoding, v.answer.bytes,
				r.of(v, func(f figures) float64 { return f.perSecond }),
				r.of(v, func(f figures) float64 { return f.p50 }), r.of(v, func(f figures) float64 { return f.p99 }),
				r.of(v, func(f figures) float64 { return f.cpu }), r.of(v, func(f figures) float64 { return f.memory }),
				ratio, limit, verdict)
		}
	}
	_ = table.Flush()
	_, _ = fmt.Fprintf(to, `
CPU a request and memory (the most that was resident) are those of the serving processes, of nginx all workers. What
PostgreSQL takes is not in them, nor is nginx' cache, which is the kernel's page cache. wrk shares the cores with all.
hot: %d keys, read before; cold: each key once, of freshet from a process with an empty cache. "echo, from memory" is
what the HTTP server costs a program in Go; "echo and pgx" reads the payload by its key and caches nothing.
`, hotKeys)
	return missed
}
