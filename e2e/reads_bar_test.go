package e2e

import (
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/freshet/freshet/e2e/harness"
)

const (
	readRounds = 3
	hotKeys    = 16
	// nginxTimes is the limit of this test: the requests per second of nginx, divided by the requests
	// per second of freshet, for fresh reads of stored zstd frames.
	nginxTimes = 1.5
)

// encodings are the values of Accept-Encoding.
var encodings = []string{"zstd", "gzip", "identity"}

// readsOf contains the measurements of all compared servers, with snapshots of one size.
type readsOf struct {
	size    string
	rivals  []*rival
	figures map[*rival][]figures
}

// rival is one measured server, with one encoding and one kind of keys: hot (read repeatedly) or cold
// (read at most once).
type rival struct {
	who, how string // name of the server, such as freshet; kind of keys: hot or cold
	encoding string // content encoding that the reads request
	beside   *rival // the measurements of nginx with the same encoding, with which this server is compared
	judged   bool
	answer   answered
	measure  func() figures
}

// answered contains the encoding and the length of the response body of one read.
type answered struct {
	encoding string
	bytes    int
}

// figures are the measurements of one round.
type figures struct {
	perSecond, p50, p99 float64 // requests per second; median and 99th percentile of the latency in ms
	cpu                 float64 // processor time per request in µs
	memory              float64 // peak of the server's resident memory in MB
}

// TestReads_CompareWithNginx compares fresh reads with the cache of nginx, which serves the same
// bytes, and with a minimal handler on the same database. It prints one table. The servers are
// measured in turn, so that other load on the machine affects all of them.
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

// compareReads measures all servers with snapshots of one size.
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
	for _, encoding := range encodings { // servers with the same encoding are measured one after the other
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
		t.Errorf("requests of nginx to its origin: got %d, want the %d of the warm-up", n, x.warmed)
	}
	ours.Stop()
	return r
}

// coldRound starts a query service with an empty cache and measures the reads of keys that the cache
// does not have (cold keys). Each of these keys is read at most once. coldRound checks that the
// process has read the payloads from the database.
func (f *fleet) coldRound(t *testing.T, w *wrk, cold, hot keyRange, encoding string) figures {
	t.Helper()
	p := f.queryProcess()
	for i := range hot.count { // read other keys first, so that the connection pool is open
		f.onlyAnswer(p.URL()+hot.path(f.Source, i), encoding)
	}
	before := f.payloadsRead()
	got := w.run(t, p.URL(), f.Source, cold, encoding, []int{p.Process.Pid})
	p.Stop() // end the process now, because PostgreSQL adds a session's reads to its statistics when the session ends
	requests := int64(got.perSecond * w.round.Seconds())
	if requests > int64(cold.count) {
		t.Errorf("reads of cold keys: got %d, want at most %d; store more keys", requests, cold.count)
	}
	if read := f.payloadsRead() - before; read < requests*95/100 {
		t.Errorf("payloads read from the database: got %d, want about %d, one for each read", read, requests)
	}
	return got
}

// payloadsRead returns how many payload rows PostgreSQL has read.
func (f *fleet) payloadsRead() int64 {
	f.Helper()
	return f.one("SELECT coalesce(sum(coalesce(idx_tup_fetch, 0) + seq_tup_read), 0)::bigint FROM pg_stat_user_tables WHERE relname LIKE 'snapshot_payload_%'")
}

// of returns one figure of a server: the median of the figure's values in all rounds.
func (r *readsOf) of(v *rival, figure func(f figures) float64) float64 {
	var all []float64
	for _, f := range r.figures[v] {
		all = append(all, figure(f))
	}
	slices.Sort(all)
	return all[len(all)/2]
}

// ratio returns the median, over all rounds, of the server's requests per second divided by the
// requests per second of nginx.
func (r *readsOf) ratio(v *rival) float64 {
	var all []float64
	for i, f := range r.figures[v] {
		all = append(all, f.perSecond/r.figures[v.beside][i].perSecond)
	}
	slices.Sort(all)
	return math.Round(100*all[len(all)/2]) / 100
}

// printReads prints the table of all measurements and returns the figures that miss the limit.
func printReads(to io.Writer, where string, all []*readsOf) (missed []string) {
	bar := math.Round(100/nginxTimes) / 100
	table := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	line := func(format string, args ...any) { _, _ = fmt.Fprintf(table, format+"\n", args...) }
	_, _ = fmt.Fprintf(to, "READS COMPARED WITH NGINX (%s)\n", where)
	for _, r := range all {
		_ = table.Flush()
		_, _ = fmt.Fprintf(to, "\n%s\n", r.size)
		line("requested\tserver\tkeys\tencoding\tbytes\trequests/s\tp50 ms\tp99 ms\tCPU us\tMB\tx nginx\tlimit\t")
		for _, v := range r.rivals {
			ratio, limit, verdict := "", "", ""
			if v.beside != nil {
				ratio = strconv.FormatFloat(r.ratio(v), 'f', 2, 64)
			}
			if v.judged {
				limit, verdict = fmt.Sprintf(">= %.2f", bar), "ok"
				if r.ratio(v) < bar {
					verdict = "MISSED"
					missed = append(missed, fmt.Sprintf("%s, %s, %s keys of %s: got %s x nginx, want %s", v.who, v.encoding, v.how, r.size, ratio, limit))
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
	for _, r := range all { // scripts/benchall reads these lines
		size, _, _ := strings.Cut(r.size, ":")
		for _, v := range r.rivals {
			if v.beside != nil {
				_, _ = fmt.Fprintf(to, "BenchmarkReads/%s/%s/%s/%s 1 %.2f ×nginx\n", size, v.encoding, v.how, strings.Join(strings.Fields(v.who), "_"), r.ratio(v))
			}
		}
	}
	_, _ = fmt.Fprintf(to, `
CPU per request and memory (peak of the resident memory) are those of the serving processes; for nginx, of all workers.
PostgreSQL and the cache of nginx, which is the kernel's page cache, are not included. wrk shares the cores with the servers.
hot: %d keys that were read before; cold: each key once, for freshet from a process with an empty cache. "echo, from memory"
is the cost of the HTTP server in Go; "echo and pgx" reads the payload by its key and has no cache.
`, hotKeys)
	return missed
}
