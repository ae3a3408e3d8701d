package credits

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/deadletters"
	"github.com/freshet/freshet/store/sqlite"
)

// rig has services on one database, each like one process. Times are seconds of the rig's clock.
type rig struct {
	testing.TB
	db     database
	clock  atomic.Int64
	config Config

	mu     sync.Mutex
	faults func() fault // returns the fault of the next transaction; nil: there are no faults
	locked string       // client whose account can't be locked
}

// database is the part of a database that the tests use.
type database interface {
	Store
	Snapshots
	Write(ctx context.Context, writes []store.Write) ([]store.Result, error)
	WriteFailure(ctx context.Context, status store.Status, deadLetter *deadletters.DeadLetter) error
}

// fault is a failure of a transaction.
type fault int

const (
	none       fault = iota
	lostBefore       // the connection is lost before the commit
	lostAfter        // the connection is lost after the commit: the caller gets an error
)

var errLost = errors.New("connection lost")

// InUnflushedTx implements Store.
func (r *rig) InUnflushedTx(ctx context.Context, do func(store.Tx) error) error {
	return r.InTx(ctx, do)
}

// InTx implements Store with the faults of the rig.
func (r *rig) InTx(ctx context.Context, do func(store.Tx) error) error {
	r.mu.Lock()
	f, locked := none, r.locked
	if r.faults != nil {
		f = r.faults()
	}
	r.mu.Unlock()
	err := r.db.InTx(ctx, func(tx store.Tx) error {
		if locked != "" {
			tx = lockedTx{tx, locked}
		}
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

// lockedTx is a transaction that waits for the lock of one account until its context ends.
type lockedTx struct {
	store.Tx
	client string
}

func (t lockedTx) Query(ctx context.Context, row func(func(...any) error) error, query string, args ...any) error {
	if query == openAccount && args[0] == t.client {
		return context.DeadlineExceeded
	}
	return t.Tx.Query(ctx, row, query, args...)
}

func newRig(t testing.TB) *rig {
	t.Helper()
	db, err := sqlite.Open(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return newRigOn(t, db)
}

func newRigOn(t testing.TB, db database) *rig {
	r := &rig{TB: t, db: db, config: DefaultConfig()}
	r.config.Plans = map[string]Plan{"default": {Amount: 10, Every: 24 * time.Hour}, "partner": {Amount: 100, Every: 24 * time.Hour}}
	r.clock.Store(1_800_000_000)
	return r
}

func (r *rig) now() time.Time { return time.Unix(r.clock.Load(), 0).UTC() }

// pass moves the clock.
func (r *rig) pass(d time.Duration) { r.clock.Add(int64(d / time.Second)) }

// process returns a new service, as after the start of a process.
func (r *rig) process() *Service { return r.processOn(r, r.db) }

func (r *rig) processOn(s Store, snapshots Snapshots) *Service {
	return New(r.config, Deps{
		Store: s, Snapshots: snapshots, Actor: func(*http.Request) string { return "operator" }, Now: r.now,
		Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
	})
}

func entity(key string) schemas.Entity {
	return schemas.Entity{Source: "nexon", Facet: "character", Key: key}
}

func user(name string) access.Client {
	return access.Client{Name: "key:" + name, Scopes: []access.Scope{access.Refresh}}
}

// refresh reserves credits for a refresh of an entity and confirms that its update request has this
// number. It fails the test if the refresh is refused.
func (r *rig) refresh(s *Service, c access.Client, key string, number int64) {
	r.Helper()
	all := s.Reserve(r.Context(), c, []schemas.Entity{entity(key)}, "")
	if all[0].Err != nil {
		r.Fatalf("refresh of %s: %v", key, all[0].Err)
	}
	s.Confirm(r.Context(), []Enqueued{{Reservation: all[0], Outcome: Queued, Number: number}})
}

// store stores a snapshot with a version.
func (r *rig) store(key string, version int64) {
	r.Helper()
	text := fmt.Appendf(nil, `{"v":%d}`, version)
	_, err := r.db.Write(r.Context(), []store.Write{{
		Entity: entity(key), Version: version, CheckedAt: r.now(), Hash: store.Hash{byte(version)},
		Payload: func() (store.Payload, error) { return store.Encode(text), nil },
	}})
	if err != nil {
		r.Fatal(err)
	}
}

// fail stores the failure of a fetch.
func (r *rig) fail(key string, version int64, state store.StatusState) {
	r.Helper()
	err := r.db.WriteFailure(r.Context(), store.Status{Entity: entity(key), State: state, Version: version, Until: r.now().Add(time.Hour), Lane: schemas.High, Since: r.now(), UpdatedAt: r.now()}, nil)
	if err != nil {
		r.Fatal(err)
	}
}

// want compares the account of a client with the expected one, and verifies the ledger.
func (r *rig) want(c access.Client, balance, held int64) {
	r.Helper()
	l := NewLedger(r.config, r.db, r.now)
	d, err := l.Details(r.Context(), c.Name)
	if err != nil || d.Balance != balance || d.Held != held {
		r.Errorf("account of %s: got %d, held %d, %v, want %d, held %d", c.Name, d.Balance, d.Held, err, balance, held)
	}
	r.verify()
}

func (r *rig) verify() {
	r.Helper()
	if _, wrong, err := NewLedger(r.config, r.db, r.now).Verify(r.Context()); err != nil || len(wrong) != 0 {
		r.Errorf("Verify: got %+v, %v, want no mismatch", wrong, err)
	}
}

// used returns the captured credits of a client.
func (r *rig) used(c access.Client) (n int64) {
	r.Helper()
	d, err := NewLedger(r.config, r.db, r.now).Details(r.Context(), c.Name)
	if err != nil {
		r.Fatal(err)
	}
	for _, u := range d.Use {
		n += u.Credits
	}
	return n
}

func random(t testing.TB, seed uint64) *rand.Rand {
	t.Helper()
	return rand.New(rand.NewPCG(seed, 0))
}
