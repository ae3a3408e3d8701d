package e2e

import (
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
	onToken  atomic.Pointer[func()] // called before each answer of the token endpoint
	down     atomic.Bool            // the token endpoint answers 503
	api      string
	keyFile  string
	secret   string
	searched int
}

const firstRefreshToken = "first-refresh-token-7f3a"

func newRenewing(t *testing.T, c oauth.Config) *renewing {
	t.Helper()
	r := &renewing{fleet: newSite(t), secret: "client-secret-91c2"}
	c.ClientID, c.ClientSecret, c.Rotate = "app", r.secret, true
	r.server = oauth.New(c, firstRefreshToken)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		switch {
		case req.URL.Path == "/token" && r.down.Load():
			http.Error(w, "down", http.StatusServiceUnavailable)
			return
		case req.URL.Path == "/token":
			if f := r.onToken.Load(); f != nil {
				defer func() { (*f)() }()
			}
		}
		r.server.ServeHTTP(w, req)
	}))
	r.OnClose(upstream.Close)
	r.Source = servicetest.Name("renewing")
	r.keyFile = filepath.Join(r.Dir, "keys")
	r.writeKeys("one")
	refresh := filepath.Join(r.Dir, "refresh")
	r.check(os.WriteFile(refresh, []byte(firstRefreshToken), 0o600))
	r.Sources = map[string]string{r.Source: strings.NewReplacer("UPSTREAM", upstream.URL, "REFRESH", refresh).Replace(renewingSource)}
	r.Env = []string{"APP_SECRET=" + r.secret, "FRESHET_SECRETS_KEY_FILE=" + r.keyFile, "FRESHET_LOG_LEVEL=debug"}
	r.check(r.CreateTables(t.Context()))
	r.connect()
	return r
}

// writeKeys writes the key file. The first id encrypts.
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

func (r *renewing) workers(n int, name string) (all []*harness.Process) {
	r.Helper()
	for i := range n {
		p, err := r.Worker(r.Context(), fmt.Sprint(name, "-", i))
		r.check(err)
		all = append(all, p)
	}
	return all
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

// age is the age of the token in seconds by the database's clock.
func (r *renewing) age() int64 {
	return r.one("SELECT ((extract(epoch FROM clock_timestamp()) * 1000000 - max(renewed_at)) / 1000000)::bigint FROM tokens")
}

func (r *renewing) wantRenewals(what string, want int) {
	r.Helper()
	if got := r.server.Stats(); got.Renewals != want || got.MaxInFlight > 1 || got.Expired != 0 {
		r.Errorf("%s: got %+v, want %d renewals, at most 1 in flight, no call with an expired token", what, got, want)
	}
}

// showsNone fails the test if the text contains a secret.
func (r *renewing) showsNone(what, text string) {
	r.Helper()
	r.searched++
	for _, secret := range append(r.server.Secrets(), r.secret) {
		for _, form := range []string{secret, base64.StdEncoding.EncodeToString([]byte(secret)), fmt.Sprintf("%x", secret)} {
			if strings.Contains(text, form) {
				r.Errorf("%s shows the secret %s", what, secret)
			}
		}
	}
}

// dump returns all rows of all tables as text.
func (r *renewing) dump() string {
	r.Helper()
	rows, err := r.db.Query(r.Context(), "SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
	r.check(err)
	var tables []string
	for rows.Next() {
		var name string
		r.check(rows.Scan(&name))
		tables = append(tables, name)
	}
	r.check(rows.Err())
	var all strings.Builder
	for _, name := range tables {
		var text string
		r.check(r.db.QueryRow(r.Context(), "SELECT coalesce(string_agg(t::text, E'\\n'), '') FROM "+name+" t").Scan(&text))
		all.WriteString(text)
	}
	return all.String()
}

// Five workers run without a token, then with an expired one, then with a revoked one and a hundred
// calls. Each time exactly one worker renews the credential. Then the test changes the encryption key
// while the workers run, and searches all outputs for secrets.
func TestCredentials_FiveWorkersRenewOnce(t *testing.T) {
	t.Parallel()
	r := newRenewing(t, oauth.Config{Lifetime: time.Hour, Delay: 2 * time.Second})
	r.api = r.query()
	all := r.workers(5, "first")
	if failed := r.reads("start-", 20); failed != 0 {
		t.Errorf("reads at the start: got %d without data", failed)
	}
	r.wantRenewals("five workers without a token", 1)
	for _, p := range all {
		r.terminate(p, false)
	}
	_, err := r.db.Exec(t.Context(), "UPDATE tokens SET expires_at = 1, renew_at = 1")
	r.check(err)
	r.workers(5, "second")
	if failed := r.reads("ended-", 20); failed != 0 {
		t.Errorf("reads with an expired token: got %d without data", failed)
	}
	r.wantRenewals("five workers with an expired token", 2)

	for generation := 3; generation < 6; generation++ {
		r.until(timeout, "a token that may be renewed", func() bool { return r.age() > 13 })
		r.server.RevokeTokens(false)
		before := r.server.Stats()
		if failed := r.reads(fmt.Sprint("storm-", generation, "-"), 100); failed != 0 {
			t.Errorf("reads with a revoked token: got %d without data", failed)
		}
		r.wantRenewals("100 calls with a revoked token", generation)
		t.Logf("generation %d: %d calls got 401, %d renewals", generation, r.server.Stats().Refused-before.Refused, r.server.Stats().Renewals)
	}

	r.writeKeys("two", "one")
	t.Log(r.must("credentials", "rotate-keys"))
	if n := r.one("SELECT count(*) FROM tokens WHERE key_id = 'two'"); n != 1 {
		t.Errorf("tokens with the new key: got %d, want 1", n)
	}
	r.writeKeys("two")
	r.must("credentials", "renew", r.Source+"/app")
	r.until(timeout, "a renewal with the new key", func() bool { return r.generation() == 6 })
	if failed := r.reads("rotated-", 20); failed != 0 {
		t.Errorf("reads after the rotation: got %d without data", failed)
	}
	r.wantRenewals("after the rotation of the key", 6)

	r.showsNone("the database", r.dump())
	list := r.must("credentials", "list")
	if !strings.Contains(list, "ACTIVE") {
		t.Errorf("credentials list: got %s", list)
	}
	r.showsNone("credentials list", list)
	for _, args := range []string{"config print", "config check", "dlq list --addr " + r.api, "settings audit --addr " + r.api} {
		r.showsNone(args, r.must(strings.Fields(args)...))
	}
	for _, path := range []string{"/console", "/console/dlq", "/console/activity", "/console/limiter", "/metrics"} {
		resp, err := r.client.Get(r.api + path)
		r.check(err)
		var text strings.Builder
		r.check(resp.Write(&text))
		_ = resp.Body.Close()
		r.showsNone(path, text.String())
	}
	r.showsNoneInLogs()
	t.Logf("%d texts searched for %d secrets; %+v", r.searched, len(r.server.Secrets())+1, r.server.Stats())
}

func (r *renewing) showsNoneInLogs() {
	r.Helper()
	logs, err := filepath.Glob(filepath.Join(r.Dir, "*.log"))
	r.check(err)
	for _, name := range logs {
		text, err := os.ReadFile(name)
		r.check(err)
		r.showsNone(name, string(text))
	}
	atLeast(r, "searched logs", len(logs), 1)
}

// The worker that renews is killed (SIGKILL) after the answer and before the commit. A server with reuse
// grace accepts the replaced refresh token, and another worker renews. One without grace refuses it, and
// the credential stops.
func TestCredentials_KillBetweenAnswerAndCommit(t *testing.T) {
	for name, grace := range map[string]time.Duration{"with reuse grace": 10 * time.Minute, "without reuse grace": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRenewing(t, oauth.Config{Lifetime: time.Hour, ReuseGrace: grace})
			r.check(r.UseProxies(t.Context()))
			cut := func() { r.DatabaseProxy.Refuse(true); r.DatabaseProxy.Cut() }
			r.onToken.Store(&cut)
			victim := r.workers(1, "victim")[0]
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
					t.Errorf("reads after the kill: got %d without data", failed)
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

// The token endpoint is down from before the renewal until the token has nearly expired. No read
// fails.
func TestCredentials_EndpointDownInsideMargin(t *testing.T) {
	t.Parallel()
	r := newRenewing(t, oauth.Config{Lifetime: 80 * time.Second})
	r.api = r.query()
	r.workers(2, "worker")
	if failed := r.reads("start-", 5); failed != 0 {
		t.Fatalf("reads at the start: got %d without data", failed)
	}
	r.down.Store(true)
	total, failed := 0, int64(0)
	for r.age() < 70 {
		failed += r.reads(fmt.Sprint("margin-", total, "-"), 5)
		total += 5
	}
	failures := r.one("SELECT failures FROM tokens")
	if failed != 0 || failures < 1 {
		t.Errorf("%d reads while the token endpoint is down: got %d without data, %d failed renewals", total, failed, failures)
	}
	r.down.Store(false)
	r.until(2*time.Minute, "a renewal", func() bool { return r.generation() == 2 })
	t.Logf("%d reads, %d failed, %d failed renewals, %+v", total, failed, failures, r.server.Stats())
	if got := r.server.Stats(); got.Expired != 0 {
		t.Errorf("calls with an expired token: got %d, want 0", got.Expired)
	}
}
