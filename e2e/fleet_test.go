package e2e

import (
	"context"
	"errors"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/freshet/freshet/e2e/harness"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/simulator"
)

// timeout is the maximum time that a test waits for an expected event.
const timeout = harness.Timeout

// fleet is the installation of one test. Its methods call methods of harness.Site, and end the test if
// harness.Site returns an error.
type fleet struct {
	testing.TB
	*harness.Site
	client *http.Client
	admin  *kadm.Client
	db     *pgx.Conn
}

// newSite returns an installation without tables and processes. If a required service, such as
// Kafka, is missing, the test is skipped. If FRESHET_TEST_REQUIRE is set, the test fails instead.
func newSite(t testing.TB) *fleet {
	t.Helper()
	program, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	f := &fleet{TB: t, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1000}, Timeout: timeout}}
	f.Site, err = harness.New(t.Context(), t.Output(), program)
	t.Cleanup(func() {
		f.client.CloseIdleConnections()
		f.Close(t.Failed())
		if t.Failed() {
			f.logWarnings()
		}
	})
	if errors.Is(err, harness.ErrMissing) && os.Getenv("FRESHET_TEST_REQUIRE") == "" {
		t.Skip(err)
	}
	f.check(err)
	return f
}

// logWarnings logs the last warnings of each process of freshet.
func (f *fleet) logWarnings() {
	for _, p := range f.Processes() {
		if p.Path != f.Binary {
			continue
		}
		for _, line := range p.Warnings() {
			f.Logf("%s: %s", p.Name, line)
		}
	}
}

// newFleet returns an installation with the reference source. Its upstream is `freshet simulate`;
// the argument `simulate` lists additional flags of that command. The test starts the workers and
// query services.
func newFleet(t testing.TB, simulate ...string) *fleet {
	t.Helper()
	f := newSite(t)
	f.prepare(simulate...)
	return f
}

// newClusterFleet is like newFleet, but the installation uses the Redis Cluster.
func newClusterFleet(t testing.TB, simulate ...string) *fleet {
	t.Helper()
	f := newSite(t)
	f.check(f.UseRedisCluster())
	f.prepare(simulate...)
	return f
}

func (f *fleet) prepare(simulate ...string) {
	f.Helper()
	f.check(f.Prepare(f.Context(), map[string]string{"character": "item-equipment"}, simulate...))
	f.connect()
}

// prepareSource prepares an installation with one source, configured by the text `config` (YAML).
func (f *fleet) prepareSource(config string) {
	f.Helper()
	f.Sources = map[string]string{f.Source: config}
	f.check(f.CreateTables(f.Context()))
	f.connect()
}

// connect opens the test's own connections to Kafka and to the database.
func (f *fleet) connect() {
	f.Helper()
	client, err := f.ConnectKafka()
	f.check(err)
	f.OnClose(client.Close)
	f.admin = kadm.NewClient(client)
	f.db, err = pgx.Connect(f.Context(), f.Database)
	f.check(err)
	f.OnClose(func() { _ = f.db.Close(context.Background()) })
}

// check ends the test if err is not nil.
func (f *fleet) check(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

// must runs a freshet command and returns its output. It ends the test if the command fails.
func (f *fleet) must(args ...string) string {
	f.Helper()
	text, err := f.Command(f.Context(), args...)
	f.check(err)
	return text
}

// query starts a query service and returns its URL.
func (f *fleet) query() string {
	f.Helper()
	return f.queryProcess().URL()
}

func (f *fleet) queryProcess() *harness.Process {
	f.Helper()
	p, err := f.StartQuery(f.Context(), "query", "")
	f.check(err)
	return p
}

func (f *fleet) worker() *harness.Process {
	f.Helper()
	p, err := f.Worker(f.Context(), "worker")
	f.check(err)
	return p
}

// startTarget starts a process with this role and name. It returns the process and the URL of its
// metrics.
func (f *fleet) startTarget(role, name string) (*harness.Process, string) {
	f.Helper()
	port, err := f.FreePort(f.Context())
	f.check(err)
	process, err := f.StartTarget(f.Context(), name, role, "127.0.0.1:"+port)
	f.check(err)
	return process, "http://127.0.0.1:" + port + "/metrics"
}

// terminate sends SIGTERM to a process and waits for its end. If `repeat` is true, it sends SIGTERM
// every 200 ms until then.
func (f *fleet) terminate(p *harness.Process, repeat bool) (took time.Duration, code int) {
	f.Helper()
	took, code, err := p.Terminate(repeat)
	if err != nil {
		f.Error(err)
	}
	return took, code
}

// reader returns a harness.Reader that uses the query service at the URL api.
func (f *fleet) reader(api string) harness.Reader {
	return harness.Reader{API: api + "/v1/" + f.Source, Facet: "character", Client: f.client}
}

// read reads all keys with inFlight requests at a time, and counts the responses by freshness.
func (f *fleet) read(api string, keys []string, inFlight int) map[string]int {
	f.Helper()
	return f.readTagged(api, keys, inFlight, "")
}

// readTagged reads all keys with inFlight requests at a time, and counts the responses by freshness.
// Each request has `tag` in If-None-Match, like the request of a client that has a snapshot.
func (f *fleet) readTagged(api string, keys []string, inFlight int, tag string) map[string]int {
	f.Helper()
	count, err := f.reader(api).CountFreshness(f.Context(), keys, inFlight, tag)
	if err != nil {
		f.Error(err)
	}
	return count
}

// until waits until the function `holds` returns true. If the limit passes first, it fails the
// test.
func (f *fleet) until(limit time.Duration, what string, holds func() bool) {
	f.Helper()
	f.check(harness.Until(f.Context(), limit, what, func() (bool, error) { return holds(), nil }))
}

// untilCommitted waits until the offset of every record in both lanes is committed.
func (f *fleet) untilCommitted() {
	f.Helper()
	f.check(f.UntilCommitted(f.Context(), timeout))
}

// untilStored waits until at least `want` snapshots have a stored payload.
func (f *fleet) untilStored(limit time.Duration, want int) {
	f.Helper()
	f.until(limit, "a snapshot of each entity", func() bool { return f.one(storedPayloads) == int64(want) })
}

// one runs a query of the database that returns one number, and returns the number.
func (f *fleet) one(sql string, args ...any) (n int64) {
	f.Helper()
	if err := f.db.QueryRow(f.Context(), sql, args...).Scan(&n); err != nil {
		f.Fatalf("%s: %v", sql, err)
	}
	return n
}

func (f *fleet) stats() simulator.Stats {
	f.Helper()
	s, err := f.Stats(f.Context())
	f.check(err)
	return s
}

func (f *fleet) control(c simulator.Control) {
	f.Helper()
	f.check(f.Control(f.Context(), c))
}

// lag returns the number of records in both lanes whose offsets are not committed. It returns -1
// while Kafka's group coordinator moves to another broker.
func (f *fleet) lag() int64 {
	f.Helper()
	n, err := f.Lag(f.Context(), schemas.High, schemas.Low)
	if err != nil {
		f.Log(err)
		return -1
	}
	return n
}

func (f *fleet) deadLetters() int {
	f.Helper()
	n, err := f.DeadLetters(f.Context())
	f.check(err)
	return n
}

// equal fails the test if `got` is not equal to `want`. `what` is the name of the checked value.
func equal[V comparable](t testing.TB, what string, got, want V) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// atMost fails the test if got is above the limit.
func atMost[N int | int64 | time.Duration | float64](t testing.TB, what string, got, limit N) {
	t.Helper()
	if got > limit {
		t.Errorf("%s: got %v, want at most %v", what, got, limit)
	}
}

// atLeast fails the test if got is below the limit.
func atLeast[N int | int64 | time.Duration | float64](t testing.TB, what string, got, limit N) {
	t.Helper()
	if got < limit {
		t.Errorf("%s: got %v, want at least %v", what, got, limit)
	}
}
