package credits

import (
	"bytes"
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/url"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/postgres"
)

var seedCount = flag.Uint64("seeds", 0, "number of seeds of the test that cuts connections of commits, at each commit; 0: one seed and two of its commits")

// openPostgres returns a new database on the real PostgreSQL, and its URL.
func openPostgres(t testing.TB) (*postgres.Store, string) {
	t.Helper()
	address := servicetest.Postgres(t)
	if _, err := postgres.Migrate(t.Context(), address); err != nil {
		t.Fatal(err)
	}
	return openStore(t, address), address
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

// cutter is a proxy to PostgreSQL that closes the connection of one commit.
type cutter struct {
	commits atomic.Int64 // number of commits since the last call of arm
	at      atomic.Int64 // commit whose connection is closed, from 1; 0: none
	after   atomic.Bool  // the connection is closed after PostgreSQL has committed, and before the client gets the reply
}

// arm makes the proxy close the connection of the n-th commit after this call.
func (c *cutter) arm(n int64, after bool) {
	c.after.Store(after)
	c.at.Store(n)
	c.commits.Store(0)
}

// filters returns the filters for the requests and replies of a new connection.
func (c *cutter) filters() (request, reply servicetest.Filter) {
	var swallow atomic.Bool // true: the next reply is not forwarded, and the connection is closed
	request = func(piece []byte) bool {
		if !commits(piece) || c.commits.Add(1) != c.at.Load() {
			return true
		}
		swallow.Store(c.after.Load())
		return c.after.Load()
	}
	return request, func([]byte) bool { return !swallow.Load() }
}

// commits reports whether a piece has messages of the PostgreSQL protocol that execute a commit. A
// commit that is only described, when a connection is new, does not count.
func commits(piece []byte) bool {
	parsed := false
	for len(piece) >= 5 && piece[0] != 0 { // the first message of a connection has no type
		size := 1 + int(binary.BigEndian.Uint32(piece[1:]))
		if size > len(piece) {
			return false
		}
		switch message := piece[5:size]; piece[0] {
		case 'P': // Parse: the name of the statement, and its text
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

// TestCommits_SurviveACutConnection runs a sequence of refreshes once for each of its commits. It closes
// the connection of that commit before PostgreSQL receives it, or after PostgreSQL has committed. No credit may be lost, and none may be charged twice.
func TestCommits_SurviveACutConnection(t *testing.T) {
	db, address := openPostgres(t)
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	var c cutter
	u.Host = servicetest.Proxy(t, u.Host, c.filters)
	proxied := openStore(t, u.String())
	r := newRigOn(t, db)
	for seed := range max(*seedCount, 1) {
		c.arm(0, false)
		if used := r.spend(proxied, fmt.Sprintf("%d-none", seed), seed); used != 1 {
			t.Fatalf("seed %d without a cut: got %d captured credits, want 1", seed, used)
		}
		commits := c.commits.Load()
		if commits < 8 {
			t.Fatalf("commits of the sequence: got %d, want at least 8", commits)
		}
		at := rand.Perm(int(commits))
		if *seedCount == 0 {
			at = at[:2]
		}
		for _, i := range at {
			n := int64(i)
			for _, after := range []bool{false, true} {
				c.arm(n+1, after)
				if used := r.spend(proxied, fmt.Sprintf("%d-%d-%t", seed, n+1, after), seed); used > 1 {
					t.Errorf("seed %d, commit %d, after=%t: got %d captured credits, want at most 1", seed, n+1, after, used)
				}
				if c.commits.Load() <= n {
					t.Errorf("seed %d, commit %d, after=%t: the sequence ended before this commit", seed, n+1, after)
				}
			}
		}
		r.verify()
	}
}

// spend runs a sequence of refreshes of one client on a database whose connections may be closed. Only
// the refresh of the first key brings a version. It compares the account with the outcomes, and returns
// the captured credits.
func (r *rig) spend(db database, name string, seed uint64) int64 {
	r.Helper()
	random, client := random(r, seed), user(name)
	key := func(text string) string { return text + "-" + name }
	s := r.processOn(db, db)
	number := r.clock.Load()
	reserve := func(text string) Reservation {
		var all []Reservation
		for range 3 { // a client repeats the request
			if all = s.Reserve(r.Context(), client, []schemas.Entity{entity(key(text))}, key(text)); all[0].Err == nil {
				break
			}
		}
		return all[0]
	}
	outcomes := map[string]Outcome{"brought": Queued, "refused": NotQueued, "failed": Queued, "lost": Unknown}
	order := []string{"brought", "refused", "failed", "lost"}
	random.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	for _, text := range order {
		if got := reserve(text); got.Err == nil {
			s.Confirm(r.Context(), []Enqueued{{Reservation: got, Outcome: outcomes[text], Number: number}})
		}
	}
	entry := func(g Grant) store.AuditEntry { return auditEntry(actionGrant, "operator", r.now(), nil, &g) }
	if g, err := s.ledger.Grant(r.Context(), Grant{Client: client.Name, Amount: 5}, entry); err == nil && random.IntN(2) == 0 {
		_, _ = s.ledger.Void(r.Context(), g.ID, entry)
	}
	r.store(key("brought"), number+1)
	r.fail(key("failed"), number+1, store.Failed)
	for _, text := range order {
		s.Settled(schemas.Settled{Entity: entity(key(text)), Number: number + 1})
	}
	_ = s.checkDue(r.Context())
	r.pass(31 * time.Minute)
	_, _ = r.processOn(db, db).Reap(r.Context())
	if _, err := r.process().Reap(r.Context()); err != nil { // the next run, without a fault
		r.Fatal(err)
	}
	d, err := NewLedger(r.config, r.db, r.now).Details(r.Context(), client.Name)
	if err != nil {
		r.Fatal(err)
	}
	used, granted := r.used(client), int64(10)
	for _, g := range d.Grants {
		if g.CreatedBy == "" {
			granted += g.Amount
		}
	}
	if d.Held != 0 || d.Balance != granted-used {
		r.Errorf("%s: got balance %d and %d held, want %d granted credits without %d captured ones", name, d.Balance, d.Held, granted, used)
	}
	return used
}

// BenchmarkReap compares a run of the reaper with a thousand and with a million ended holds in the
// database, in alternate rounds. Each run ends 100 holds of 10 clients. It reports the medians and their
// ratio.
func BenchmarkReap(b *testing.B) {
	sizes := []int{1_000, 1_000_000}
	var rigs []*rig
	for _, ended := range sizes {
		db, address := openPostgres(b)
		r := newRigOn(b, db)
		r.config.Plans = map[string]Plan{"default": {Amount: maxAmount, Every: 24 * time.Hour}}
		conn, err := pgx.Connect(b.Context(), address)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := conn.Exec(b.Context(), insertEnded, ended, r.now().UnixMicro()); err != nil {
			b.Fatal(err)
		}
		if _, err := conn.Exec(b.Context(), "VACUUM ANALYZE"); err != nil {
			b.Fatal(err)
		}
		_ = conn.Close(context.Background())
		rigs = append(rigs, r)
	}
	took := make([][]time.Duration, len(sizes))
	number := int64(0)
	for b.Loop() {
		for i, r := range rigs {
			s := r.process()
			for j := range 100 {
				number++
				r.refresh(s, user(fmt.Sprint(j%10)), fmt.Sprint("open", j), number)
			}
			r.pass(31 * time.Minute)
			began := time.Now()
			got, err := s.Reap(b.Context())
			took[i] = append(took[i], time.Since(began))
			if err != nil || got.Holds != 100 {
				b.Fatalf("got %+v, %v, want 100 holds", got, err)
			}
		}
	}
	median := make([]time.Duration, len(sizes))
	for i, size := range sizes {
		slices.Sort(took[i])
		median[i] = took[i][len(took[i])/2]
		b.ReportMetric(median[i].Seconds()*1000, fmt.Sprintf("ms-ended=%d", size))
	}
	b.ReportMetric(float64(median[1])/float64(median[0]), "ratio")
}

// insertEnded inserts ended holds and their entries for 1,000 clients. Arguments: number, time.
const insertEnded = `WITH made AS (
	INSERT INTO credit_holds (id, client, idempotency, source, facet, key, number, amount, state, created_at, expires_at, ended_at)
	SELECT 'ended-' || n, 'key:' || n % 1000, '', 'nexon', 'character', 'ended' || n, n, 1, 'CAPTURED', $2::bigint - n, $2::bigint - n, $2::bigint
	FROM generate_series(1, $1::int) n RETURNING id, client)
INSERT INTO credit_entries (at, client, kind, grant_id, hold_id, amount, held, balance)
SELECT $2::bigint, client, kind, '', id, 0, 0, 0 FROM made, unnest(ARRAY['hold', 'capture']) kind`
