package runs

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/collection"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/source/items"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/deadletters"
	"github.com/freshet/freshet/store/postgres"
	"github.com/freshet/freshet/store/sqlite"
)

// database is a store with the tables of runs, collections and snapshots.
type database interface {
	Store
	Write(ctx context.Context, writes []store.Write) ([]store.Result, error)
	WriteFailure(ctx context.Context, status store.Status, deadLetter *deadletters.DeadLetter) error
}

// rig executes runs on one database. It also implements the enqueuer of its pollers: it records their
// requests, and the tests store the results of these requests. Time passes only when a test calls the
// method `pass`.
type rig struct {
	testing.TB
	db      database
	source  *source.Source
	rdb     redis.UniversalClient
	config  Config
	version int64

	mu       sync.Mutex
	now      time.Time
	requests []Request
	outcome  Enqueued     // the Enqueued that RequestSteps returns for each request
	faults   func() fault // returns the fault of the next transaction; nil means that transactions have no faults
}

// fault says when the simulated connection to the database is lost during a transaction.
type fault int

const (
	none       fault = iota
	lostBefore       // the connection is lost before the commit, so nothing is stored
	lostAfter        // the connection is lost after the commit: the data is stored, but the caller gets an error
)

var errLost = errors.New("connection lost")

// InTx implements Store. It injects the faults of the field faults.
func (r *rig) InTx(ctx context.Context, do func(store.Tx) error) error {
	r.mu.Lock()
	f := none
	if r.faults != nil {
		f = r.faults()
	}
	r.mu.Unlock()
	err := r.db.InTx(ctx, func(tx store.Tx) error {
		if err := do(tx); err != nil || f != lostBefore {
			return err
		}
		return errLost
	})
	if err == nil && f == lostAfter {
		return errLost
	}
	return err
}

func openSQLite(t testing.TB) database {
	t.Helper()
	db, err := sqlite.Open(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// openPostgres creates a database in the real PostgreSQL. It returns the database and its URL.
func openPostgres(t testing.TB) (*postgres.Store, string) {
	t.Helper()
	address := servicetest.Postgres(t)
	if _, err := postgres.Migrate(t.Context(), address); err != nil {
		t.Fatal(err)
	}
	db := openStore(t, address)
	addresses.Store(database(db), address)
	return db, address
}

func openStore(t testing.TB, address string) *postgres.Store {
	t.Helper()
	db, err := postgres.Open(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	return db
}

// sharedPostgres is the PostgreSQL database that eachDatabase uses. It is set only while TestPostgres
// runs.
var sharedPostgres *postgres.Store

// eachDatabase runs a test on SQLite. If TestPostgres calls the test, it runs the test on PostgreSQL
// instead.
func eachDatabase(t *testing.T, test func(r *rig)) {
	if sharedPostgres == nil {
		test(newRig(t, openSQLite(t)))
		return
	}
	_, err := connect(t, sharedPostgres).Exec(t.Context(), "TRUNCATE runs, run_steps, run_schedules, outbox, snapshot_state, snapshot_payload, update_status, collections, items, walk_pages, entities")
	if err != nil {
		t.Fatal(err)
	}
	test(newRig(t, sharedPostgres))
}

// TestPostgres runs the tests that use eachDatabase on one PostgreSQL database. They share it, because
// the creation of a database takes seconds.
func TestPostgres(t *testing.T) {
	sharedPostgres, _ = openPostgres(t)
	defer func() { sharedPostgres = nil }()
	for name, test := range map[string]func(*testing.T){
		"TestRun_EndsWithItsLastStep":                 TestRun_EndsWithItsLastStep,
		"TestStep_IsOpenBetweenTwoPages":              TestStep_IsOpenBetweenTwoPages,
		"TestStep_LostRequestIsRepeatedAfterTheLease": TestStep_LostRequestIsRepeatedAfterTheLease,
		"TestStep_EndsWithoutTheWorkersNotification":  TestStep_EndsWithoutTheWorkersNotification,
		"TestStep_OldDataDoesNotEndIt":                TestStep_OldDataDoesNotEndIt,
		"TestStep_WaitsForItsScheduledRetry":          TestStep_WaitsForItsScheduledRetry,
		"TestRun_RequestsAtMostParallelSteps":         TestRun_RequestsAtMostParallelSteps,
		"TestStart_OneActiveRunOfAScope":              TestStart_OneActiveRunOfAScope,
		"TestOverlap_BufferOneWaits":                  TestOverlap_BufferOneWaits,
		"TestOverlap_CancelOther":                     TestOverlap_CancelOther,
		"TestIdempotencyKey_ReturnsTheFirstRun":       TestIdempotencyKey_ReturnsTheFirstRun,
		"TestCancel_StoresNoFurtherPage":              TestCancel_StoresNoFurtherPage,
		"TestRetry_OpensOnlyFailedSteps":              TestRetry_OpensOnlyFailedSteps,
		"TestDeadline_FailsOpenSteps":                 TestDeadline_FailsOpenSteps,
		"TestFan_BadItemsFailTheirSteps":              TestFan_BadItemsFailTheirSteps,
		"TestFan_ChildrenAreAllStoredItems":           TestFan_ChildrenAreAllStoredItems,
		"TestSchedule_StartsOneRunPerInterval":        TestSchedule_StartsOneRunPerInterval,
		"TestTransactions_AreWhole":                   TestTransactions_AreWhole,
	} {
		t.Run(name, test)
	}
}

func newRig(t testing.TB, db database) *rig {
	t.Helper()
	c := source.DefaultConfig()
	c.BaseURL = "http://127.0.0.1:1"
	list := func(path string) source.Facet {
		f := source.DefaultFacet()
		f.Documents = map[string]source.Document{"list": {Path: path, Paging: &source.Paging{Link: true}}}
		f.Collection = &items.Collection{ID: "id"}
		return f
	}
	user := source.DefaultFacet()
	user.Documents = map[string]source.Document{"user": {Path: "/users/{key}"}}
	repos, issues := list("/users/{key}/repos"), list("/repos/{+key}/issues")
	issues.KeyPattern = "[a-z0-9-]{1,40}/[a-z0-9-]{1,40}"
	c.Facets = map[string]source.Facet{"user": user, "repos": repos, "issues": issues}
	s, err := source.New("github", c, nil, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	rdb, _ := servicetest.MiniRedis(t)
	return &rig{
		TB: t, db: db, source: s, rdb: rdb, outcome: Published, now: time.UnixMilli(1_800_000_000_000).UTC(), version: 1_800_000_000_000,
		config: Config{
			Steps:    map[string]StepConfig{"user": {}, "repos": {}, "issues": {Each: "repos", Key: "{full_name}", Unless: []string{"fork"}}},
			Parallel: 8, Deadline: 24 * time.Hour,
		},
	}
}

// pass moves the clock of the test forward.
func (r *rig) pass(d time.Duration) { r.now = r.now.Add(d) }

// process returns a new poller, like a process that has just started.
func (r *rig) process() *Poller {
	return NewPoller(r.source, map[string]Config{"profile": r.config}, r, r, r.rdb, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
}

// RequestSteps implements Enqueuer.
func (r *rig) RequestSteps(_ context.Context, requests []Request) []Enqueued {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests = append(r.requests, requests...)
	return slices.Repeat([]Enqueued{r.outcome}, len(requests))
}

// take returns the requests since the last call, sorted, as facet/key. " page" follows if the
// request names a page.
func (r *rig) take() (requests []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, q := range r.requests {
		text := q.Entity.Facet + "/" + q.Entity.Key
		if q.Page != "" {
			text += " page"
		}
		requests = append(requests, text)
	}
	slices.Sort(requests)
	r.requests = nil
	return requests
}

func (r *rig) wantRequests(want ...string) {
	r.Helper()
	if got := r.take(); !slices.Equal(got, want) {
		r.Errorf("requests: got %q, want %q", got, want)
	}
}

func (r *rig) order(keys ...string) Order {
	return Order{Source: r.source, Name: "profile", Config: r.config, Keys: Keys{List: keys}, TriggeredBy: "key:a"}
}

// start starts a run. Then a poller works once, so that the first steps are requested.
func (r *rig) start(keys ...string) Run {
	r.Helper()
	run, started, err := New(r).Start(r.Context(), r.order(keys...), r.now)
	if err != nil || !started {
		r.Fatalf("got started %t and %v, want a new run", started, err)
	}
	r.work()
	return run
}

// work makes a poller do all work that is due now.
func (r *rig) work() {
	r.Helper()
	if _, err := r.process().Work(r.Context(), r.now); err != nil {
		r.Fatal(err)
	}
}

func (r *rig) get(id string) Run {
	r.Helper()
	run, err := New(r.db).Get(r.Context(), id)
	if err != nil {
		r.Fatal(err)
	}
	faults, err := New(r.db).Verify(r.Context(), id)
	if err != nil || len(faults) > 0 {
		r.Fatalf("verify: got %v, %q, want none", err, faults)
	}
	return run
}

func (r *rig) wantCounts(id string, state State, want Counts) {
	r.Helper()
	want.Total = want.Open + want.Done + want.NotFound + want.Failed + want.Cancelled
	if got := r.get(id); got.State != state || got.Counts != want {
		r.Errorf("run: got %s %+v, want %s %+v", got.State, got.Counts, state, want)
	}
}

func (r *rig) entity(facet, key string) schemas.Entity {
	return schemas.Entity{Source: "github", Facet: facet, Key: key}
}

func (r *rig) answer(run Run, facet, key string) {
	r.Helper()
	if err := New(r.db).Answered(r.Context(), []Ref{{run.ID, r.entity(facet, key)}}, r.now); err != nil {
		r.Fatal(err)
	}
}

// fetched stores the result of a fetch that began now, as a worker does, and makes the step due.
func (r *rig) fetched(run Run, facet, key string, kind store.Kind) {
	r.Helper()
	r.version++
	w := store.Write{Entity: r.entity(facet, key), Version: r.version, CheckedAt: r.now, Kind: kind}
	if kind == store.Content {
		w.Hash, w.ExtractVersion = sha256.Sum256([]byte(key)), 1
		w.Payload = func() (store.Payload, error) { return store.Encode([]byte(`{}`)), nil }
	}
	if _, err := r.db.Write(r.Context(), []store.Write{w}); err != nil {
		r.Fatal(err)
	}
	r.answer(run, facet, key)
}

// fail stores that a fetch has failed, as a worker does, and makes the step due.
func (r *rig) fail(run Run, facet, key string, state store.StatusState, until time.Duration) {
	r.Helper()
	r.version++
	err := r.db.WriteFailure(r.Context(), store.Status{
		Entity: r.entity(facet, key), State: state, Reason: "PARSE_ERROR", Error: "no JSON", Version: r.version, Until: r.now.Add(until), Lane: schemas.Low, Since: r.now, UpdatedAt: r.now,
	}, nil)
	if err != nil {
		r.Fatal(err)
	}
	r.answer(run, facet, key)
}

var rules = collection.Rules{Order: collection.OrderNone, Deletes: collection.DeletesNone, ExtractVersion: 1}

func item(content string) collection.Fetched {
	var id struct {
		ID json.Number `json:"id"`
	}
	if err := json.Unmarshal([]byte(content), &id); err != nil {
		panic(err)
	}
	return collection.Fetched{ID: id.ID.String(), Hash: sha256.Sum256([]byte(content)), Content: []byte(content)}
}

// repo returns an item of the facet repos.
func repo(id int, name string) string { return fmt.Sprintf(`{"full_name":%q,"id":%d}`, name, id) }

// page stores a page of a list as the worker of a run's request does, and makes the step due. It
// reports whether the page was stored.
func (r *rig) page(run Run, facet, key, next string, contents ...string) bool {
	r.Helper()
	stored, err := r.writePage(run, facet, key, next, contents...)
	if err != nil {
		r.Fatal(err)
	}
	r.answer(run, facet, key)
	return stored
}

func (r *rig) writePage(run Run, facet, key, next string, contents ...string) (stored bool, err error) {
	all := collection.New(r.db)
	before, err := all.State(r.Context(), r.entity(facet, key))
	if err != nil {
		return false, err
	}
	r.version++
	before = before.Begin(rules, r.now, false)
	page := collection.Page{Version: r.version, Began: r.now, Next: next}
	for _, c := range contents {
		page.Items = append(page.Items, item(c))
	}
	after, err := before.After(rules, page)
	if err != nil {
		return false, err
	}
	step := StorePage(Ref{run.ID, r.entity(facet, key)}, r.now)
	written, err := all.Write(r.Context(), []collection.Write{{Entity: r.entity(facet, key), Rules: rules, Before: before, After: after, Page: page, Step: &step}})
	return err == nil && written[0].Result == collection.Stored, err
}

// events returns the events of a run that are in the outbox.
func (r *rig) events(run Run) (events []schemas.RunEvent) {
	r.Helper()
	err := r.db.InTx(r.Context(), func(tx store.Tx) error {
		return tx.Query(r.Context(), func(scan func(...any) error) error {
			var value string
			var publish bool
			if err := scan(&value, &publish); err != nil {
				return err
			}
			event, err := schemas.DecodeRunEvent([]byte(value))
			if event.ID != run.ID || !publish {
				r.Errorf("outbox: got the event of run %s with the key %s, publish %t; want one id, and true", event.ID, run.ID, publish)
			}
			events = append(events, event)
			return err
		}, "SELECT run, publish_change FROM outbox WHERE key = $1 AND run <> '' ORDER BY id", run.ID)
	})
	if err != nil {
		r.Fatal(err)
	}
	return events
}

// wantEnds fails the test unless the events of a run have these states and attempts. Each text has the
// form "STATE ATTEMPT".
func (r *rig) wantEnds(run Run, want ...string) {
	r.Helper()
	var got []string
	for _, e := range r.events(run) {
		got = append(got, fmt.Sprint(e.State, " ", e.Attempt))
	}
	if !slices.Equal(got, want) {
		r.Errorf("events of the run: got %q, want %q", got, want)
	}
}
