package runs

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/servicetest"
)

// originalDesign executes rules of the original design (github-collection-v3.md), which package runs
// replaces. Its tables are in PostgreSQL, and its stream of jobs is in Redis. Numbers such as 5.3 are
// sections of that document. A rule that consists of several operations returns them as steps. So a test
// can stop between two steps, like a process that crashes, or execute the steps of another process there.
type originalDesign struct {
	testing.TB
	db     *pgx.Conn
	rdb    *redis.Client
	stream string
	events int // number of events that the listener in memory got (5.6)
}

type steps []func()

func (s steps) do() {
	for _, step := range s {
		step()
	}
}

const originalTables = `
CREATE TABLE collection_runs (id serial PRIMARY KEY, user_id int NOT NULL, status text NOT NULL);
CREATE UNIQUE INDEX ON collection_runs (user_id, status) WHERE status IN ('CREATED', 'PLANNING', 'RUNNING');
CREATE TABLE page_jobs (id serial PRIMARY KEY, run_id int NOT NULL, resource_key text NOT NULL, page_key text, status text NOT NULL DEFAULT 'READY', UNIQUE (run_id, resource_key, page_key));
CREATE TABLE collection_cursors (resource_key text PRIMARY KEY, last_timestamp int NOT NULL);
CREATE TABLE upstream (item text PRIMARY KEY, changed_at int NOT NULL);
CREATE TABLE documents (item text PRIMARY KEY, changed_at int NOT NULL)`

func newOriginalDesign(t *testing.T) *originalDesign {
	t.Helper()
	d := &originalDesign{TB: t, stream: servicetest.Name("jobs")}
	d.rdb = redis.NewClient(&redis.Options{Addr: servicetest.RedisAddress(t)})
	t.Cleanup(func() { d.rdb.Del(context.Background(), d.stream, d.stream+":delayed"); _ = d.rdb.Close() })
	d.db = d.dial(servicetest.Postgres(t))
	d.exec(originalTables)
	d.check(d.rdb.XGroupCreateMkStream(t.Context(), d.stream, "workers", "0").Err())
	return d
}

func (d *originalDesign) dial(address string) *pgx.Conn {
	conn, err := pgx.Connect(d.Context(), address)
	d.check(err)
	d.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// begin returns the model with another connection, which is in a transaction.
func (d *originalDesign) begin(isolation pgx.TxIsoLevel) *originalDesign {
	in := *d
	in.db = d.dial(d.db.Config().ConnString())
	in.exec("BEGIN ISOLATION LEVEL " + string(isolation))
	return &in
}

func (d *originalDesign) commit() { d.exec("COMMIT") }

func (d *originalDesign) check(err error) {
	if err != nil {
		d.Helper()
		d.Fatal(err)
	}
}

func (d *originalDesign) exec(sql string, args ...any) {
	d.Helper()
	_, err := d.db.Exec(d.Context(), sql, args...)
	d.check(err)
}

func (d *originalDesign) number(sql string, args ...any) (n int) {
	d.Helper()
	d.check(d.db.QueryRow(d.Context(), sql, args...).Scan(&n))
	return n
}

// wantFault checks that a rule of the original design has its fault.
func (d *originalDesign) wantFault(what string, got, want int) {
	d.Helper()
	if got != want {
		d.Errorf("%s in the original design: got %d, want the fault, which is %d", what, got, want)
	}
}

func (d *originalDesign) newRun(user int, status string) (run int) {
	return d.number("INSERT INTO collection_runs (user_id, status) VALUES ($1, $2) RETURNING id", user, status)
}

// createJob creates a job that does not exist yet (5.4). The page key of a first page is nil.
func (d *originalDesign) createJob(run int, resource string, page any) (job int) {
	return d.number(`INSERT INTO page_jobs (run_id, resource_key, page_key) SELECT $1, $2, $3
		WHERE NOT EXISTS (SELECT FROM page_jobs WHERE run_id = $1 AND resource_key = $2 AND page_key IS NOT DISTINCT FROM $3::text) RETURNING id`, run, resource, page)
}

func (d *originalDesign) setJob(job any, status string) {
	d.exec("UPDATE page_jobs SET status = $2 WHERE id = $1", job, status)
}

// dispatch adds a job to the stream (5.4).
func (d *originalDesign) dispatch(job int) {
	d.setJob(job, "ENQUEUED")
	d.check(d.rdb.XAdd(d.Context(), &redis.XAddArgs{Stream: d.stream, Values: []any{"jobId", job}}).Err())
}

// start starts a run of a user, with one job for each resource. Worker 1 reads these jobs.
func (d *originalDesign) start(user int, resources ...string) (run int, read []redis.XMessage) {
	run = d.newRun(user, "RUNNING")
	for _, resource := range resources {
		d.dispatch(d.createJob(run, resource, nil))
		read = append(read, d.read("worker 1")...)
	}
	return run, read
}

// read returns the next job of the stream, or none (5.1).
func (d *originalDesign) read(worker string) []redis.XMessage {
	streams, err := d.rdb.XReadGroup(d.Context(), &redis.XReadGroupArgs{Group: "workers", Consumer: worker, Streams: []string{d.stream, ">"}, Count: 1, Block: -1}).Result()
	if errors.Is(err, redis.Nil) {
		return nil
	}
	d.check(err)
	return streams[0].Messages
}

// claim returns all jobs that were read but not acknowledged. A worker claims only when it starts (5.3).
func (d *originalDesign) claim(worker string) []redis.XMessage {
	entries, _, err := d.rdb.XAutoClaim(d.Context(), &redis.XAutoClaimArgs{Stream: d.stream, Group: "workers", Consumer: worker, Start: "0-0"}).Result()
	d.check(err)
	return entries
}

func (d *originalDesign) acknowledge(m redis.XMessage) {
	d.check(d.rdb.XAck(d.Context(), d.stream, "workers", m.ID).Err())
}

// end ends a job (5.3). page is the key of the job's next page, or nil.
func (d *originalDesign) end(run int, m redis.XMessage, status string, page any) steps {
	return steps{
		func() { d.setJob(m.Values["jobId"], status) },
		func() { d.acknowledge(m) },
		func() {
			if page != nil {
				d.createJob(run, "repos", page)
			}
		},
		func() { d.evaluate(run).do() },
	}
}

// retry schedules another attempt of a job (5.3).
func (d *originalDesign) retry(m redis.XMessage) steps {
	return steps{
		func() { d.setJob(m.Values["jobId"], "READY") },
		func() { d.acknowledge(m) },
		func() {
			d.check(d.rdb.ZAdd(d.Context(), d.stream+":delayed", redis.Z{Member: m.Values["jobId"]}).Err())
		},
	}
}

// evaluate completes a run without pending jobs (5.5). After the commit the listener gets an event (5.6).
func (d *originalDesign) evaluate(run int) steps {
	events := 0
	return steps{
		func() {
			if d.ends(run) {
				d.complete(run)
				events = 1
			}
		},
		func() { d.events += events },
	}
}

func (d *originalDesign) ends(run int) bool { return d.completed(run) == 0 && d.pending(run) == 0 }

func (d *originalDesign) complete(run int) {
	d.exec("UPDATE collection_runs SET status = 'COMPLETED' WHERE id = $1", run)
}

// completed returns 1 if the run is completed, else 0.
func (d *originalDesign) completed(run int) int {
	return d.number("SELECT count(*) FROM collection_runs WHERE id = $1 AND status = 'COMPLETED'", run)
}

func (d *originalDesign) pending(run int) int {
	return d.number("SELECT count(*) FROM page_jobs WHERE run_id = $1 AND status NOT IN ('SUCCEEDED', 'FAILED')", run)
}

// lost returns the number of pending jobs that neither a new worker nor the scheduler (5.2) finds.
func (d *originalDesign) lost(run int) int {
	delayed, err := d.rdb.ZCard(d.Context(), d.stream+":delayed").Result()
	d.check(err)
	return d.pending(run) - len(d.claim("worker 2")) - len(d.read("worker 2")) - int(delayed)
}

// Defect a. TestStep_IsOpenBetweenTwoPages shows our rule.
func TestOriginalDesign_RunEndsBeforeItsNextPage(t *testing.T) {
	d := newOriginalDesign(t)
	run, jobs := d.start(1, "repos", "user")
	repos := d.end(run, jobs[0], "SUCCEEDED", "2")
	repos[:2].do()
	d.end(run, jobs[1], "SUCCEEDED", nil).do()
	repos[2:].do()
	d.wantFault("pending jobs of a completed run", d.completed(run)*d.pending(run), 1)
}

// Defect a. TestStep_IsOpenBetweenTwoPages shows our rule.
func TestOriginalDesign_CrashLosesTheNextPage(t *testing.T) {
	d := newOriginalDesign(t)
	run, jobs := d.start(1, "repos", "user")
	next := map[string]any{jobs[0].ID: "2"}
	d.end(run, jobs[0], "SUCCEEDED", next[jobs[0].ID])[:2].do() // then the worker crashes
	for _, m := range d.claim("worker 2") {
		d.end(run, m, "SUCCEEDED", next[m.ID]).do()
	}
	d.wantFault("completed runs without page 2", d.completed(run)-d.number("SELECT count(*) FROM page_jobs WHERE page_key = '2'"), 1)
}

// Defect c. TestStep_LostRequestIsRepeatedAfterTheLease shows our rule.
func TestOriginalDesign_CrashLosesARetry(t *testing.T) {
	d := newOriginalDesign(t)
	run, jobs := d.start(1, "user")
	d.retry(jobs[0])[:2].do() // then the worker crashes
	d.wantFault("lost jobs", d.lost(run), 1)
}

// Defect d. TestTransactions_AreWhole shows our rule.
func TestOriginalDesign_UncommittedJobIsLost(t *testing.T) {
	d := newOriginalDesign(t)
	planner := d.begin(pgx.ReadCommitted)
	run := planner.newRun(1, "RUNNING")
	planner.dispatch(planner.createJob(run, "user", nil))
	for _, m := range d.read("worker 1") {
		if d.number("SELECT count(*) FROM page_jobs WHERE id = $1", m.Values["jobId"]) == 0 {
			d.acknowledge(m) // the worker skips a job without a row (5.3)
		}
	}
	planner.commit()
	d.wantFault("lost jobs", d.lost(run), 1)
}

// Defect e. TestTransactions_AreWhole shows our rule.
func TestOriginalDesign_CrashLosesTheCompletion(t *testing.T) {
	d := newOriginalDesign(t)
	run, jobs := d.start(1, "user")
	d.end(run, jobs[0], "SUCCEEDED", nil)[:3].do()
	d.evaluate(run)[:1].do() // then the worker crashes
	d.evaluate(run).do()     // another worker evaluates the run again
	d.wantFault("completed runs without an event", d.completed(run)-d.events, 1)
}

// Defect f. TestCollection_RepeatedRecordOfPageIsSkipped of package consumer shows our rule.
func TestOriginalDesign_FirstPageHasTwoJobs(t *testing.T) {
	d := newOriginalDesign(t)
	run := d.newRun(1, "RUNNING")
	other := d.begin(pgx.ReadCommitted)
	other.createJob(run, "repos", nil)
	d.createJob(run, "repos", nil)
	other.commit()
	d.wantFault("jobs of one page", d.pending(run), 2)
}

// Defect f: two processes have found no active run (5.4). TestStart_OneActiveRunOfAScope shows our rule.
func TestOriginalDesign_TwoActiveRuns(t *testing.T) {
	d := newOriginalDesign(t)
	d.newRun(1, "RUNNING")
	d.newRun(1, "CREATED")
	d.wantFault("active runs of one user", d.number("SELECT count(*) FROM collection_runs WHERE user_id = 1"), 2)
}

// Defect g. TestStep_LostRequestIsRepeatedAfterTheLease shows our rule.
func TestOriginalDesign_JobOfADeadWorkerIsNotClaimed(t *testing.T) {
	d := newOriginalDesign(t)
	found := len(d.claim("worker 2")) // worker 2 starts
	run, _ := d.start(1, "user")      // worker 1 reads the job and crashes
	found += len(d.read("worker 2"))
	d.wantFault("pending jobs that a running worker does not find", d.pending(run)-found, 1)
}

// Defect g: two processes have found the same run in the state PLANNING, and both recover it (11.7).
// TestTransactions_AreWhole shows our rule.
func TestOriginalDesign_RecoveryDeletesDoneJobs(t *testing.T) {
	d := newOriginalDesign(t)
	run, calls := d.newRun(1, "PLANNING"), 0
	for range 2 {
		d.exec("DELETE FROM page_jobs WHERE run_id = $1", run)
		d.dispatch(d.createJob(run, "user", nil))
		for _, m := range d.read("worker 1") {
			d.end(run, m, "SUCCEEDED", nil)[:3].do()
			calls++
		}
	}
	d.wantFault("calls for one page", calls, 2)
}

// Defect h. The document trims the stream to 10,000 entries (11.5), this test to one.
// TestStep_LostRequestIsRepeatedAfterTheLease shows our rule.
func TestOriginalDesign_TrimDeletesPendingJobs(t *testing.T) {
	d := newOriginalDesign(t)
	run, _ := d.start(1, "repos", "user") // worker 1 reads both jobs and crashes
	d.check(d.rdb.XTrimMaxLen(t.Context(), d.stream, 1).Err())
	d.wantFault("lost jobs", d.lost(run), 1)
}

// Defect i. No rule of the document writes the cursor. This test writes the current time at the end of a
// run. TestCursor_AdvancesOnlyOverCompleteItems of package collection shows our rule.
func TestOriginalDesign_CursorSkipsChanges(t *testing.T) {
	d := newOriginalDesign(t)
	fetch := func() {
		d.exec(`INSERT INTO documents SELECT * FROM upstream WHERE changed_at >= COALESCE((SELECT last_timestamp FROM collection_cursors), 0)
			ON CONFLICT (item) DO UPDATE SET changed_at = excluded.changed_at`)
	}
	d.exec("INSERT INTO upstream VALUES ('a', 1)")
	fetch()
	d.exec("UPDATE upstream SET changed_at = 2; INSERT INTO collection_cursors VALUES ('repos', 3)") // a change, then the run's end
	fetch()
	d.wantFault("skipped changes", d.number("SELECT count(*) FROM upstream JOIN documents USING (item) WHERE upstream.changed_at > documents.changed_at"), 1)
}

// Defect j. TestRun_FailsAboveItsTolerance shows our rule.
func TestOriginalDesign_FailedRunIsCompleted(t *testing.T) {
	d := newOriginalDesign(t)
	run, jobs := d.start(1, "user")
	d.end(run, jobs[0], "FAILED", nil).do()
	d.wantFault("completed runs of failed jobs only", d.completed(run), 1)
}

// Defect k: each event causes a computation of the global statistics (5.6).
// TestComputed_ManyInputsCauseOneRequest of package outbox shows our rule.
func TestOriginalDesign_EachRunComputesGlobalStatistics(t *testing.T) {
	d := newOriginalDesign(t)
	for user := range 3 {
		run, jobs := d.start(user, "user")
		d.end(run, jobs[0], "SUCCEEDED", nil).do()
	}
	d.wantFault("computations of the global statistics after three runs", d.events, 3)
}
