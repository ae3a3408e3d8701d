package e2e

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/freshet/freshet/e2e/harness"
	"github.com/freshet/freshet/servicetest"
	"github.com/freshet/freshet/simulator/oauth"
)

// renewingSource is the configuration of a source whose credential has a refresh token that rotates.
const renewingSource = `baseURL: UPSTREAM/api
auth: {header: Authorization, prefix: "Bearer "}
credentials:
  - name: app
    token: {grant: refresh-token, tokenURL: UPSTREAM/token, clientId: app, clientSecretEnv: APP_SECRET, refreshTokenFile: REFRESH, consent: {authorizeURL: UPSTREAM/authorize, revokeURL: UPSTREAM/revoke}}
quota: {policies: [{name: second, limit: 200, window: 1s}]}
facets:
  item:
    documents: {one: {path: "/one/{key}"}}
    retry: [1s]
`

// renewing is an installation whose credential renews itself.
type renewing struct {
	*fleet
	server   *oauth.Server
	onToken  atomic.Pointer[func()]  // called before each answer of the token endpoint
	down     atomic.Bool             // true: the token endpoint answers with status 503
	hold     atomic.Pointer[barrier] // calls of the API wait at this barrier; nil: they do not wait
	traces   traces
	api      string
	keyFile  string
	secret   string
	searched int
}

// barrier delays calls until a number of them are in flight. Later calls are not delayed.
type barrier struct {
	waiting atomic.Int64
	want    int64
	open    chan struct{}
}

func (b *barrier) wait(ctx context.Context) {
	if b.waiting.Add(1) == b.want {
		close(b.open)
	}
	select {
	case <-b.open:
	case <-ctx.Done():
	}
}

const firstRefreshToken = "first-refresh-token-7f3a"

func newRenewing(t *testing.T, c oauth.Config) *renewing {
	t.Helper()
	r := &renewing{fleet: newSite(t), secret: "client-secret-91c2"}
	c.ClientID, c.ClientSecret, c.Rotate = "app", r.secret, true
	r.server = oauth.New(c, firstRefreshToken)
	upstream := httptest.NewServer(http.HandlerFunc(r.serve))
	r.OnClose(upstream.Close)
	r.Source = servicetest.Name("renewing")
	r.keyFile = filepath.Join(r.Dir, "keys")
	r.writeKeys("one")
	refresh := filepath.Join(r.Dir, "refresh")
	r.check(os.WriteFile(refresh, []byte(firstRefreshToken), 0o600))
	r.Sources = map[string]string{r.Source: strings.NewReplacer("UPSTREAM", upstream.URL, "REFRESH", refresh).Replace(renewingSource)}
	collector := httptest.NewServer(&r.traces)
	r.OnClose(collector.Close)
	r.Env = []string{
		"APP_SECRET=" + r.secret, "FRESHET_SECRETS_KEY_FILE=" + r.keyFile, "FRESHET_LOG_LEVEL=debug",
		"FRESHET_TRACING_ENDPOINT=" + collector.URL, "FRESHET_TRACING_SAMPLE_RATIO=1",
	}
	r.check(r.CreateTables(t.Context()))
	r.connect()
	return r
}

func (r *renewing) serve(w http.ResponseWriter, req *http.Request) {
	switch b := r.hold.Load(); {
	case req.URL.Path == "/token" && r.down.Load():
		http.Error(w, "down", http.StatusServiceUnavailable)
		return
	case req.URL.Path == "/token":
		if f := r.onToken.Load(); f != nil {
			defer func() { (*f)() }()
		}
	case strings.Contains(req.URL.Path, "bad-"): // this request becomes a dead letter; its copy of the response contains the token
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		_, _ = fmt.Fprintf(w, `{"error": "the token %s is not for this", "request": %q}`, strings.TrimPrefix(req.Header.Get("Authorization"), "Bearer "), fmt.Sprint(req.Header))
		return
	case b != nil:
		b.wait(req.Context())
	}
	r.server.ServeHTTP(w, req)
}

// writeKeys writes the file with the encryption keys. The first key encrypts new tokens.
func (r *renewing) writeKeys(ids ...string) {
	r.Helper()
	var text strings.Builder
	for _, id := range ids {
		key := make([]byte, 32)
		copy(key, id)
		fmt.Fprintln(&text, id, base64.StdEncoding.EncodeToString(key))
	}
	r.check(os.WriteFile(r.keyFile, []byte(text.String()), 0o600))
}

// workers starts n workers. It returns the processes and the URLs of their metrics.
func (r *renewing) workers(n int, name string) (all []*harness.Process, metrics []string) {
	r.Helper()
	for i := range n {
		p, url := r.startTarget("worker", fmt.Sprint(name, "-", i))
		all, metrics = append(all, p), append(metrics, url)
	}
	return all, metrics
}

// reads reads n new keys at once and waits for their data. It returns how many were not FRESH.
func (r *renewing) reads(prefix string, n int) (failed int64) {
	r.Helper()
	reader := harness.Reader{API: r.api + "/v1/" + r.Source, Facet: "item", Client: r.client}
	var wg sync.WaitGroup
	var bad atomic.Int64
	for i := range n {
		wg.Go(func() {
			reply, err := reader.Read(r.Context(), fmt.Sprint(prefix, i), "?wait=25s")
			if err != nil || reply.Freshness != "FRESH" {
				bad.Add(1)
			}
		})
	}
	wg.Wait()
	return bad.Load()
}

func (r *renewing) generation() int64 {
	return r.one("SELECT coalesce(max(generation), 0) FROM tokens")
}

// age returns the age of the token in seconds, by the database's clock.
func (r *renewing) age() int64 {
	return r.one("SELECT ((extract(epoch FROM statement_timestamp()) * 1000000 - max(renewed_at)) / 1000000)::bigint FROM tokens")
}

func (r *renewing) wantRenewals(what string, want int) {
	r.Helper()
	if got := r.server.Stats(); got.Renewals != want || got.MaxInFlight > 1 || got.Expired != 0 {
		r.Errorf("%s: got %+v, want %d renewals, at most 1 in flight, no call with an expired token", what, got, want)
	}
}

// endToken makes the token expire after the duration `in`, both at the upstream and in the database,
// and makes its renewal due.
func (r *renewing) endToken(in time.Duration) {
	r.Helper()
	r.server.EndTokens(time.Now().Add(in))
	_, err := r.db.Exec(r.Context(), "UPDATE tokens SET renew_at = 1, expires_at = (extract(epoch FROM statement_timestamp()) * 1000000)::bigint + $1", in.Microseconds())
	r.check(err)
}

// The test starts five workers without a token, with an expired token, and with a revoked token while
// a hundred calls are in flight. Each time, one worker renews the credential. Then the test changes
// the encryption key while the workers run, and searches all outputs for secrets.
func TestCredentials_FiveWorkersRenewOnce(t *testing.T) {
	t.Parallel()
	r := newRenewing(t, oauth.Config{Lifetime: time.Hour, Delay: 2 * time.Second})
	query, queryMetrics := r.startTarget("query", "query")
	r.api = query.URL()
	all, _ := r.workers(5, "first")
	if failed := r.reads("start-", 20); failed != 0 {
		t.Errorf("reads at the start: got %d without data, want none", failed)
	}
	r.wantRenewals("five workers without a token", 1)
	for _, p := range all {
		r.terminate(p, false)
	}
	r.endToken(0)
	all, metrics := r.workers(5, "second")
	if failed := r.reads("ended-", 20); failed != 0 {
		t.Errorf("reads with an expired token: got %d without data, want none", failed)
	}
	r.wantRenewals("five workers with an expired token", 2)

	const storm = 100
	for generation := 3; generation < 6; generation++ {
		r.until(timeout, "a token that may be renewed", func() bool { return r.age() > 13 })
		r.server.RevokeTokens(false)
		r.hold.Store(&barrier{want: storm, open: make(chan struct{})})
		before := r.server.Stats()
		if failed := r.reads(fmt.Sprint("storm-", generation, "-"), storm); failed != 0 {
			t.Errorf("reads with a revoked token: got %d without data, want none", failed)
		}
		r.wantRenewals("100 calls at once with a revoked token", generation)
		refused := r.server.Stats().Refused - before.Refused
		atLeast(t, "calls that got 401 at once", refused, storm)
		t.Logf("generation %d: %d calls got 401 at once, %d renewals", generation, refused, r.server.Stats().Renewals)
	}
	r.hold.Store(nil)

	r.writeKeys("two", "one")
	t.Log(r.must("credentials", "rotate-keys"))
	if n := r.one("SELECT count(*) FROM tokens WHERE key_id = 'two'"); n != 1 {
		t.Errorf("tokens with the new key: got %d, want 1", n)
	}
	r.writeKeys("two")
	r.must("credentials", "renew", r.Source+"/app")
	r.until(timeout, "a renewal with the new key", func() bool { return r.generation() == 6 })
	if failed := r.reads("rotated-", 20); failed != 0 {
		t.Errorf("reads after the rotation: got %d without data, want none", failed)
	}
	r.wantRenewals("after the rotation of the key", 6)
	r.searchAll(append(metrics, queryMetrics), append(all, query))
}

// The worker that renews is killed (SIGKILL) after the answer and before the commit. A server with reuse
// grace accepts the replaced refresh token, and another worker renews. A server without reuse grace
// refuses it, and the credential stops.
func TestCredentials_KillBetweenAnswerAndCommit(t *testing.T) {
	t.Parallel()
	for name, grace := range map[string]time.Duration{"with reuse grace": 10 * time.Minute, "without reuse grace": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRenewing(t, oauth.Config{Lifetime: time.Hour, ReuseGrace: grace})
			r.check(r.UseProxies(t.Context()))
			cut := func() { r.DatabaseProxy.Refuse(true); r.DatabaseProxy.Cut() }
			r.onToken.Store(&cut)
			victims, _ := r.workers(1, "victim")
			victim := victims[0]
			r.until(timeout, "an answer that can't be stored", func() bool {
				return strings.Contains(strings.Join(victim.Warnings(), "\n"), "renewed token not stored")
			})
			victim.Kill()
			r.onToken.Store(nil)
			r.DatabaseProxy.Refuse(false)
			if got := r.generation(); got != 0 {
				t.Fatalf("generation after the kill: got %d, want 0", got)
			}
			r.workers(2, "next")
			if grace > 0 {
				r.until(2*time.Minute, "a renewal by another worker", func() bool { return r.generation() == 1 })
				r.api = r.query()
				if failed := r.reads("after-", 10); failed != 0 {
					t.Errorf("reads after the kill: got %d without data, want none", failed)
				}
				return
			}
			r.until(2*time.Minute, "a stopped credential", func() bool { return r.one("SELECT count(*) FROM tokens WHERE state = 'STOPPED'") == 1 })
			list := r.must("credentials", "list")
			if !strings.Contains(list, "STOPPED") || !strings.Contains(list, "invalid_grant") {
				t.Errorf("credentials list: got %s", list)
			}
			t.Log(list)
			r.showsNone("credentials list", list)
			r.showsNoneInLogs()
		})
	}
}

// moveClock moves the clock of the database forward. The test and the processes that start later use
// the new time.
func (r *renewing) moveClock(by time.Duration) {
	r.Helper()
	const schemas = "skewed, pg_catalog, public" // the schema skewed is first in the search path, so its function replaces the built-in one
	for _, sql := range []string{
		"CREATE SCHEMA skewed",
		fmt.Sprintf("CREATE FUNCTION skewed.statement_timestamp() RETURNS timestamptz LANGUAGE sql STABLE AS $$ SELECT pg_catalog.statement_timestamp() + interval '%d seconds' $$", int(by.Seconds())),
		fmt.Sprintf("DO $$ BEGIN EXECUTE format('ALTER DATABASE %%I SET search_path = %s', current_database()); END $$", schemas),
		"SET search_path = " + schemas,
	} {
		_, err := r.db.Exec(r.Context(), sql)
		r.check(err)
	}
}

// The token endpoint is down from the renewal until after the token has expired. The clocks of the
// database and of the processes differ by 10 minutes. No read fails until 5 s before the expiry, and
// no call is sent after the expiry.
func TestCredentials_EndpointDownInsideMargin(t *testing.T) {
	for name, offset := range map[string]time.Duration{"database ahead": 10 * time.Minute, "database behind": -10 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRenewing(t, oauth.Config{Lifetime: time.Hour})
			r.moveClock(offset)
			r.api = r.query()
			all, _ := r.workers(2, "first")
			if failed := r.reads("start-", 5); failed != 0 {
				t.Fatalf("reads at the start: got %d without data, want none", failed)
			}
			for _, p := range all {
				r.terminate(p, false)
			}
			r.down.Store(true)
			const left = 20 * time.Second
			end := time.Now().Add(left)
			r.endToken(left)
			r.workers(2, "second")
			total, failed := 0, int64(0)
			for time.Until(end) > 5*time.Second {
				failed += r.reads(fmt.Sprint("margin-", total, "-"), 5)
				total += 5
			}
			failures := r.one("SELECT failures FROM tokens")
			if failed != 0 || failures < 1 || total == 0 {
				t.Errorf("%d reads while the token endpoint is down: got %d without data, %d failed renewals, want none without data and a failed renewal", total, failed, failures)
			}
			late := make(chan int64)
			go func() { late <- r.reads("late-", 5) }() // these reads need a call that must wait until the token has expired
			r.until(timeout, "the end of the token", func() bool { return time.Now().After(end.Add(time.Second)) })
			r.down.Store(false)
			r.must("credentials", "renew", r.Source+"/app")
			r.until(timeout, "a renewal", func() bool { return r.generation() == 2 })
			if failed := r.reads("after-", 5); failed != 0 {
				t.Errorf("reads after the renewal: got %d without data, want none", failed)
			}
			t.Logf("%d reads, %d failed; %d failed renewals; %d of 5 late reads failed; %+v", total, failed, failures, <-late, r.server.Stats())
			r.wantRenewals("after the outage", 2)
		})
	}
}
