package e2e

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/freshet/freshet/simulator"
)

// paid is an installation whose clients pay for refreshes. Each client has 100,000 credits a day.
type paid struct {
	*fleet
	secret string // value of the header X-Cron-Secret
}

// newPaid returns an installation with credits.
func newPaid(t testing.TB) *paid {
	t.Helper()
	f := newSite(t)
	p := &paid{f, rand.Text() + rand.Text()}
	file := filepath.Join(f.Dir, "cron-secret")
	f.check(os.WriteFile(file, []byte(p.secret), 0o600))
	f.Token = rand.Text() + rand.Text()
	f.Env = []string{"FRESHET_TOKEN=" + f.Token, "FRESHET_ACCESS_CRON_SECRET_FILE=" + file}
	f.Settings = "credits: {plans: {default: {amount: 100000, every: 24h}}}\n"
	f.Edits = []string{"cooldown: 1m", "cooldown: 1s"}
	f.prepare("--latency", "30ms-300ms")
	return p
}

// key creates an API key that may refresh. It returns the token and the name of the client.
func (p *paid) key(api, name string) (token, client string) {
	p.Helper()
	token, err := p.CreateKey(p.Context(), api, name, "read", "refresh")
	p.check(err)
	id, _, _ := strings.Cut(strings.TrimPrefix(token, "fsk_"), "_")
	return token, "key:" + id + " " + name
}

// send sends a request and returns the status and the body. The arguments `header` are names and values.
func (p *paid) send(ctx context.Context, method, url, body string, header ...string) (int, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader([]byte(body)))
	if err != nil {
		return 0, nil, err
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, text, err
}

// refresh requests refreshes of keys, which must all be queued.
func (p *paid) refresh(api, token string, keys ...string) {
	p.Helper()
	body, err := json.Marshal(map[string][]string{"keys": keys})
	p.check(err)
	status, text, err := p.send(p.Context(), http.MethodPost, api+"/v1/"+p.Source+"/character/refresh", string(body), "Authorization", "Bearer "+token, "Content-Type", "application/json")
	p.check(err)
	if n := strings.Count(string(text), `"status":202`); n != len(keys) {
		p.Fatalf("refresh of %d keys: got %d queued refreshes, %d %.300s, want all queued", len(keys), n, status, text)
	}
}

// reaped is the response of the maintenance endpoint, which runs the credits reaper.
type reaped struct {
	Status  int      `json:"-"`
	Message string   `json:"message"`
	Count   int      `json:"cleaned_count"`
	Users   []string `json:"users_affected"`
}

// reap runs the credits reaper of a query service.
func (p *paid) reap(api string, header ...string) (r reaped) {
	p.Helper()
	status, text, err := p.send(p.Context(), http.MethodPost, api+"/admin/v1/maintenance/reap", "", header...)
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err != nil {
		p.Errorf("reap: got %d %.200s: %v, want a JSON response", status, text, err)
	}
	r.Status = status
	return r
}

func (p *paid) reapBySecret(api string) reaped {
	p.Helper()
	return p.reap(api, "X-Cron-Secret", p.secret)
}

// age makes the open holds of a client older.
func (p *paid) age(client string, by time.Duration) {
	p.Helper()
	_, err := p.db.Exec(p.Context(), "UPDATE credit_holds SET created_at = created_at - $2, expires_at = expires_at - $2 WHERE client = $1 AND state = 'HELD'", client, by.Microseconds())
	p.check(err)
}

func (p *paid) balance(client string) int64 {
	p.Helper()
	return p.one("SELECT balance FROM credit_accounts WHERE client = $1", client)
}

// wantReaped compares the response of the maintenance endpoint with the expected one.
func (p *paid) wantReaped(what string, got reaped, count int, users ...string) {
	p.Helper()
	if got.Status != http.StatusOK || got.Message != "Cleanup completed" || got.Count != count || strings.Join(got.Users, ",") != strings.Join(users, ",") {
		p.Errorf("%s: got %+v, want 200 with %d holds of %v", what, got, count, users)
	}
}

// The test runs the test cases 1 to 3 of the source document (§6.1). It also tests the secret of the
// maintenance endpoint, three reapers at the same time, and a locked account. No worker runs, so no
// refresh ends.
func TestCredits_ReaperGivesBackByRecord(t *testing.T) {
	t.Parallel()
	p := newPaid(t)
	one := p.query()
	user, client := p.key(one, "user")
	other, _ := p.key(one, "other")
	two := p.query()

	p.refresh(one, user, "a", "b", "c")
	equal(t, "balance with three refreshes in progress", p.balance(client), 99_997)
	p.age(client, 35*time.Minute)
	p.refresh(two, other, "a")
	p.wantReaped("TC1: three refreshes of one user, 35 minutes old", p.reapBySecret(one), 3, client)
	equal(t, "TC1: balance", p.balance(client), 100_000)
	equal(t, "TC1: holds in the history", p.one("SELECT count(*) FROM credit_holds WHERE client = $1 AND state = 'EXPIRED'", client), 3)

	p.refresh(one, user, "d", "e")
	p.age(client, 15*time.Minute)
	p.wantReaped("TC2: two refreshes, 15 minutes old", p.reapBySecret(one), 0)
	equal(t, "TC2: balance", p.balance(client), 99_998)

	p.wantReaped("TC3: a second run", p.reapBySecret(two), 0)
	equal(t, "TC3: balance", p.balance(client), 99_998)

	for name, secret := range map[string]string{"wrong": strings.Repeat("x", len(p.secret)), "empty": "", "60 KB": strings.Repeat("x", 60_000)} {
		equal(t, "status with a secret that is "+name, p.reap(one, "X-Cron-Secret", secret).Status, http.StatusUnauthorized)
	}
	// The HTTP server refuses 1 MB of headers before it calls a handler.
	status, _, err := p.send(t.Context(), http.MethodPost, one+"/admin/v1/maintenance/reap", "", "X-Cron-Secret", strings.Repeat("x", 1<<20))
	if err == nil {
		equal(t, "status with a secret of 1 MB", status, http.StatusRequestHeaderFieldsTooLarge)
	}

	p.testConcurrentReapers(one, two)
	p.testLockedAccount(one)
	if text := p.must("credits", "verify", "--addr", one); !strings.Contains(text, "match their ledger") {
		t.Errorf("freshet credits verify: got %q, want no mismatch", text)
	}
}

// testConcurrentReapers runs the credits reaper three times at once: in two processes with the
// secret of the maintenance endpoint, and once with the token of an admin.
func (p *paid) testConcurrentReapers(one, two string) {
	p.Helper()
	const clients, refreshes = 20, 15
	var names []string
	for i := range clients {
		token, name := p.key(one, fmt.Sprint("many", i))
		var keys []string
		for j := range refreshes {
			keys = append(keys, fmt.Sprintf("many-%d-%d", i, j))
		}
		p.refresh(one, token, keys...)
		names = append(names, name)
	}
	for _, name := range names {
		p.age(name, 31*time.Minute)
	}
	var all sync.WaitGroup
	var counts [3]int
	for i, call := range []func() reaped{
		func() reaped { return p.reapBySecret(one) }, func() reaped { return p.reapBySecret(two) },
		func() reaped { return p.reap(two, "Authorization", "Bearer "+p.Token) },
	} {
		all.Go(func() { counts[i] = call().Count })
	}
	all.Wait()
	equal(p, "holds that three reapers ended", counts[0]+counts[1]+counts[2], clients*refreshes)
	for _, name := range names {
		equal(p, "balance of "+name, p.balance(name), 100_000)
	}
}

// testLockedAccount locks the account of one of four clients.
func (p *paid) testLockedAccount(api string) {
	p.Helper()
	var names []string
	for i := range 4 {
		token, name := p.key(api, fmt.Sprint("locked", i))
		p.refresh(api, token, "locked")
		p.age(name, 31*time.Minute)
		names = append(names, name)
	}
	tx, err := p.db.Begin(p.Context())
	p.check(err)
	var locked string
	p.check(tx.QueryRow(p.Context(), "SELECT client FROM credit_accounts WHERE client = $1 FOR UPDATE", names[1]).Scan(&locked))
	equal(p, "holds that end while one account is locked", p.reapBySecret(api).Count, 3)
	p.check(tx.Rollback(p.Context()))
	p.wantReaped("after the lock", p.reapBySecret(api), 1, names[1])
}

// TestCredits_AddUpAcrossKills sends refreshes while all processes are killed with SIGKILL. One fifth of
// the entities fails permanently.
func TestCredits_AddUpAcrossKills(t *testing.T) {
	t.Parallel()
	clients, perClient, kills := size(10, 100), size(20, 100), size(1, 10)
	p := newPaid(t)
	p.control(simulator.Control{Faults: []simulator.Fault{{Key: "^no-", Kind: simulator.BadParameter}}})
	var mu sync.RWMutex
	apis := []string{p.query()}
	tokens := make([]string, clients)
	for i := range tokens {
		tokens[i], _ = p.key(apis[0], fmt.Sprint("client", i))
	}
	apis = append(apis, p.query())
	p.worker()
	killAll := func() {
		mu.Lock() // no request is sent until the processes run again; requests in flight fail
		defer mu.Unlock()
		for _, process := range p.Processes() {
			if process.Path == p.Binary && !strings.HasPrefix(process.Name, "simulate") {
				process.Kill()
			}
		}
		apis = []string{p.query(), p.query()}
		p.worker()
	}
	type task struct{ client, n int }
	tasks := make(chan task)
	var workers sync.WaitGroup
	for range 16 {
		workers.Go(func() {
			for k := range tasks {
				name := "ok"
				if k.n%5 == 0 {
					name = "no"
				}
				p.refreshUntilQueued(func() string {
					mu.RLock()
					defer mu.RUnlock()
					return apis[k.n%len(apis)]
				}, tokens[k.client], fmt.Sprintf("%s-%d-%d", name, k.client, k.n))
			}
		})
	}
	total := clients * perClient
	for i := range total {
		tasks <- task{i % clients, i / clients}
		if i > 0 && i%(total/(kills+1)) == 0 {
			killAll()
		}
	}
	close(tasks)
	workers.Wait()
	p.untilCommitted()
	p.judgeCredits(apis[0], total)
}

// refreshUntilQueued repeats a refresh with one idempotency key until it is accepted.
func (p *paid) refreshUntilQueued(api func() string, token, key string) {
	p.Helper()
	id := rand.Text()
	p.until(3*time.Minute, "the refresh of "+key+" is queued", func() bool {
		status, _, err := p.send(p.Context(), http.MethodPost, api()+"/v1/"+p.Source+"/character/"+key+"/refresh", "", "Authorization", "Bearer "+token, "Idempotency-Key", id)
		return err == nil && status == http.StatusAccepted
	})
}

// judgeCredits lets all open holds expire, and compares the ledger with the stored snapshots.
func (p *paid) judgeCredits(api string, total int) {
	p.Helper()
	const (
		open    = "SELECT count(*) FROM credit_holds WHERE state = 'HELD'"
		brought = "SELECT count(*) FROM credit_holds h JOIN snapshot_state s USING (source, facet, key) WHERE h.number > 0 AND s.version >= h.number"
		wrong   = `SELECT count(*) FROM credit_accounts a WHERE a.held <> 0
	OR a.balance <> (SELECT sum(amount) FROM credit_entries e WHERE e.client = a.client)
	OR a.balance <> (SELECT sum(amount) FROM credit_grants g WHERE g.client = a.client) - (SELECT coalesce(sum(amount), 0) FROM credit_holds h WHERE h.client = a.client AND h.state = 'CAPTURED')`
	)
	// Refreshes whose outcome is known have ended their holds: at the settle message, or at the next
	// start of a query service. The other holds are made to expire now.
	_, err := p.db.Exec(p.Context(), "UPDATE credit_holds SET expires_at = $1 WHERE state = 'HELD'", time.Now().UnixMicro())
	p.check(err)
	p.until(timeout, "no open hold", func() bool { p.reapBySecret(api); return p.one(open) == 0 })
	captured := p.one("SELECT count(*) FROM credit_holds WHERE state = 'CAPTURED'")
	stored := p.one("SELECT count(*) FROM snapshot_state WHERE key LIKE 'ok-%'")
	p.Logf("%d refreshes: %d snapshots, %d captured, %d released, %d expired holds", total, stored, captured,
		p.one("SELECT count(*) FROM credit_holds WHERE state = 'RELEASED'"), p.one("SELECT count(*) FROM credit_holds WHERE state = 'EXPIRED'"))
	equal(p, "accounts that do not add up", p.one(wrong), 0)
	equal(p, "stored snapshots", stored, int64(total*4/5))
	equal(p, "captured holds, against refreshes that brought a later version", captured, p.one(brought))
	atLeast(p, "captured holds", captured, int64(math.Floor(0.98*float64(stored))))
	equal(p, "captured holds of failing entities", p.one("SELECT count(*) FROM credit_holds WHERE state = 'CAPTURED' AND key LIKE 'no-%'"), 0)
	equal(p, "captured holds, against the use by hour", p.one("SELECT sum(used)::bigint FROM credit_use"), captured)
	if text := p.must("credits", "verify", "--addr", api); !strings.Contains(text, "match their ledger") {
		p.Errorf("freshet credits verify: got %q, want no mismatch", text)
	}
}
