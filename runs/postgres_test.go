package runs

import (
	"bytes"
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/freshet/freshet/servicetest"
	"github.com/freshet/freshet/store"
)

var (
	races     = flag.Int("races", 100, "number of runs whose last two steps end at the same instant")
	seedCount = flag.Uint64("seeds", 0, "number of seeds of the test that cuts connections of commits, with 12 cuts each; 0: one seed with eight cuts")
)

// In the original design (github-collection-v3.md, defect b), the transactions of the last two jobs can
// each see the other job as pending: then the run never completes. Or both see no pending job: then the
// run completes twice. TestOriginalDesign_LastTwoJobsMissTheEnd and
// TestOriginalDesign_LastTwoJobsEndTheRunTwice show these faults.
func TestEnd_LastTwoStepsEndTheRunOnce(t *testing.T) {
	db, _ := openPostgres(t)
	r := newRig(t, db)
	r.config.Steps = map[string]StepConfig{"user": {}}
	all := New(db)
	for i := range *races {
		run, _, err := all.Start(t.Context(), r.order(fmt.Sprintf("a%d", i), fmt.Sprintf("b%d", i)), r.now)
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		begin := make(chan struct{})
		for number := 1; number <= 2; number++ {
			wg.Go(func() {
				<-begin
				if _, err := all.End(t.Context(), run.ID, []StepEnd{{Number: number, State: StepDone}}, r.now); err != nil {
					t.Error(err)
				}
			})
		}
		close(begin)
		wg.Wait()
		if got, err := all.Get(t.Context(), run.ID); err != nil || got.State != Completed {
			t.Fatalf("run %d: got %s, %v; want %s", i, got.State, err, Completed)
		}
	}
	conn := connect(t, db)
	var events, runs int
	if err := conn.QueryRow(t.Context(), "SELECT count(*), count(DISTINCT key) FROM outbox WHERE run <> ''").Scan(&events, &runs); err != nil {
		t.Fatal(err)
	}
	if events != *races || runs != *races {
		t.Errorf("got %d events of %d runs, want %d of each", events, runs, *races)
	}
}

var addresses sync.Map // URL of each database that openPostgres has created, by its *postgres.Store

func connect(t testing.TB, db database) *pgx.Conn {
	t.Helper()
	address, _ := addresses.Load(db)
	conn, err := pgx.Connect(t.Context(), address.(string))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// Defect b. TestEnd_LastTwoStepsEndTheRunOnce shows our rule.
func TestOriginalDesign_LastTwoJobsMissTheEnd(t *testing.T) {
	d := newOriginalDesign(t)
	for user, isolation := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead} {
		run, jobs := d.start(user, "repos", "user")
		first := d.begin(isolation)
		second := d.begin(isolation)
		first.setJob(jobs[0].Values["jobId"], "SUCCEEDED")
		second.setJob(jobs[1].Values["jobId"], "SUCCEEDED")
		first.evaluate(run).do()
		second.evaluate(run).do()
		first.commit()
		second.commit()
		d.wantFault("completions and pending jobs of a run, "+string(isolation), d.completed(run)+d.pending(run), 0)
	}
}

// Defect b. TestEnd_LastTwoStepsEndTheRunOnce shows our rule.
func TestOriginalDesign_LastTwoJobsEndTheRunTwice(t *testing.T) {
	d := newOriginalDesign(t)
	run, jobs := d.start(1, "repos", "user")
	for _, m := range jobs {
		d.end(run, m, "SUCCEEDED", nil)[:3].do()
	}
	first := d.begin(pgx.ReadCommitted)
	second := d.begin(pgx.ReadCommitted)
	completions := 0
	if first.ends(run) && second.ends(run) {
		first.complete(run)
		first.commit()
		second.complete(run)
		second.commit()
		completions = 2
	}
	d.wantFault("completions of a run", completions, 2)
}

// In the original design (github-collection-v3.md), a listener in memory publishes the end of the run
// after the commit (defect e), and the request of a job is published before its row is committed
// (defect d). A crash between two of these steps loses one of them. Here one transaction writes the
// run, its steps and its event.
func TestTransactions_AreWhole(t *testing.T) {
	eachDatabase(t, func(r *rig) {
		for _, f := range []fault{lostBefore, lostAfter} {
			failOnce := func() {
				next := f
				r.faults = func() fault {
					now := next
					next = none
					return now
				}
			}
			failOnce()
			o := r.order(fmt.Sprint("octocat", f))
			_, _, err := New(r).Start(r.Context(), o, r.now)
			if err == nil {
				t.Fatal("start: got no error, want the lost connection")
			}
			all, err := New(r.db).List(r.Context(), Filter{Source: "github", State: Running, Limit: 10})
			if want := int(f) - int(lostBefore); err != nil || len(all) != want {
				t.Fatalf("%d: got %d runs, %v; want %d", f, len(all), err, want)
			}
			if f == lostBefore {
				r.work()
				r.wantRequests()
			}
			run, _, err := New(r).Start(r.Context(), o, r.now) // the client repeats its request after the error
			if err != nil {
				t.Fatal(err)
			}
			r.wantCounts(run.ID, Running, Counts{Open: 2})
			ends := []StepEnd{{Number: 1, State: StepDone}, {Number: 2, State: StepDone}}
			failOnce()
			if _, err := New(r).End(r.Context(), run.ID, ends, r.now); err == nil {
				t.Fatal("end: got no error, want the lost connection")
			}
			if f == lostBefore {
				r.wantCounts(run.ID, Running, Counts{Open: 2})
				r.wantEnds(run)
			}
			if _, err := New(r).End(r.Context(), run.ID, ends, r.now); err != nil {
				t.Fatal(err)
			}
			r.wantCounts(run.ID, Completed, Counts{Done: 2})
			r.wantEnds(run, "COMPLETED 1")
			r.take()
		}
	})
}

// cutter is a proxy in front of PostgreSQL that closes the connection of one commit.
type cutter struct {
	commits atomic.Int64 // number of commits since the last call of the method `arm`
	at      atomic.Int64 // number of the commit whose connection is closed, from 1; 0 means none
	after   atomic.Bool  // true if the connection is closed after PostgreSQL has committed, and before the client gets the reply
}

func (c *cutter) arm(n int64, after bool) {
	c.after.Store(after)
	c.at.Store(n)
	c.commits.Store(0)
}

// filters returns the filters for the requests and replies of a new connection.
func (c *cutter) filters() (request, reply servicetest.Filter) {
	var swallow atomic.Bool // true if the next reply is not forwarded, and the connection is closed
	request = func(piece []byte) bool {
		if !commits(piece) || c.commits.Add(1) != c.at.Load() {
			return true
		}
		swallow.Store(c.after.Load())
		return c.after.Load()
	}
	return request, func([]byte) bool { return !swallow.Load() }
}

// commits reports whether a piece of a connection's bytes contains a message of the PostgreSQL protocol
// that executes a commit.
func commits(piece []byte) bool {
	parsed := false
	for len(piece) >= 5 && piece[0] != 0 { // a message begins with its type, except the first message of a connection
		size := 1 + int(binary.BigEndian.Uint32(piece[1:]))
		if size > len(piece) {
			return false
		}
		switch message := piece[5:size]; piece[0] {
		case 'P': // the message Parse: the name of a statement, and its text
			parsed = bytes.Contains(message, []byte("commit\x00"))
		case 'E': // the message Execute: it executes a parsed statement
			if parsed {
				return true
			}
		}
		piece = piece[size:]
	}
	return false
}

// TestCommits_SurviveACutConnection executes a run for each of some commits, which a seed selects of the
// run's 50 commits. It closes the connection of this commit, either before PostgreSQL receives the commit
// or after PostgreSQL has committed. Each attempt of the run must end once, with one event.
func TestCommits_SurviveACutConnection(t *testing.T) {
	direct, address := openPostgres(t)
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	var c cutter
	u.Host = servicetest.Proxy(t, u.Host, c.filters)
	r := newRig(t, direct)
	proxied := openStore(t, u.String())
	for seed := range max(*seedCount, 1) {
		c.arm(0, false)
		r.wholeRun(proxied, fmt.Sprintf("%d-none", seed), seed)
		total := c.commits.Load()
		if total < 8 {
			t.Fatalf("commits of the run: got %d, want at least 8", total)
		}
		cuts := 6
		if *seedCount == 0 {
			cuts = 4
		}
		for _, i := range rand.New(rand.NewPCG(seed, 1)).Perm(int(total))[:cuts] {
			for _, after := range []bool{false, true} {
				c.arm(int64(i)+1, after)
				r.wholeRun(proxied, fmt.Sprintf("%d-%d-%t", seed, i+1, after), seed)
				if t.Failed() {
					t.Fatalf("seed %d, commit %d, after=%t", seed, i+1, after)
				}
			}
		}
	}
}

// wholeRun executes a run to its end. `proxied` is the database behind a proxy that can close
// connections. The order in which requests are answered depends on the seed.
func (r *rig) wholeRun(proxied database, user string, seed uint64) {
	r.Helper()
	random := rand.New(rand.NewPCG(seed, 0))
	direct := r.db
	defer func() { r.db = direct }()
	r.db = proxied
	again := func(do func() error) {
		r.Helper()
		for range 5 {
			if err := do(); err == nil {
				return
			}
		}
		r.Fatal("the operation fails five times")
	}
	work := func() { again(func() error { _, err := r.process().Work(r.Context(), r.now); return err }) }
	var run Run
	again(func() (err error) { run, _, err = New(r).Start(r.Context(), r.order(user), r.now); return err })
	for range 200 {
		work()
		stored, err := New(direct).Get(r.Context(), run.ID)
		if err != nil {
			r.Fatal(err)
		}
		if stored.Ended() {
			break
		}
		r.mu.Lock()
		requests := r.requests
		r.requests = nil
		r.mu.Unlock()
		random.Shuffle(len(requests), func(i, j int) { requests[i], requests[j] = requests[j], requests[i] })
		for _, q := range requests {
			switch {
			case random.IntN(4) == 0: // nothing is stored: the record of the request is lost
			case q.Entity.Facet == "repos" && q.Page == "":
				r.tryPage(run, q, "2", repo(1, user+"/a"), repo(2, user+"/b"))
			case q.Entity.Facet == "repos":
				r.tryPage(run, q, "", repo(3, user+"/c"))
			case q.Entity.Facet == "issues":
				r.tryPage(run, q, "", `{"id":1}`)
			default:
				again(func() error {
					r.version++
					_, err := r.db.Write(r.Context(), []store.Write{{Entity: q.Entity, Version: r.version, CheckedAt: r.now, Kind: store.KindNotFound}})
					return err
				})
				_ = New(r.db).Answered(r.Context(), []Ref{q.Ref}, r.now) // an error loses the worker's message; then the step is due after its lease
			}
		}
		r.pass(11 * lease)
	}
	r.db = direct
	r.wantCounts(run.ID, Completed, Counts{Done: 4, NotFound: 1})
	r.wantEnds(run, "COMPLETED 1")
}

// tryPage stores a page of a step's collection. If this fails, the poller requests the page again after
// the lease.
func (r *rig) tryPage(run Run, q Request, next string, contents ...string) {
	defer func() { _ = New(r.db).Answered(r.Context(), []Ref{{run.ID, q.Entity}}, r.now) }()
	_, _ = r.writePage(run, q.Entity.Facet, q.Entity.Key, next, contents...)
}
