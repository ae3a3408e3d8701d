package credits

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// repeatPeriod is how long a refresh that is repeated with its Idempotency-Key uses the first hold. It
// is as long as package producer keeps the keys.
const repeatPeriod = 10 * time.Minute

// Store runs transactions in the database.
type Store interface {
	// InTx calls the function `do` in a transaction. It commits if `do` returns nil, and rolls back
	// otherwise. After an error of the commit, the transaction may be committed or not.
	InTx(ctx context.Context, do func(store.Tx) error) error
	// InUnflushedTx is like InTx, but may return before the commit is on disk. A crash of the database
	// loses the last of these transactions, each as a whole.
	InUnflushedTx(ctx context.Context, do func(store.Tx) error) error
}

// Ledger changes accounts. Each method is one transaction, which writes the entries of its changes. Its
// methods may be called concurrently, by any number of processes.
type Ledger struct {
	store  Store
	config Config
	now    func() time.Time
}

// NewLedger returns the ledger in a database. The function `now` returns the current time.
func NewLedger(config Config, s Store, now func() time.Time) *Ledger {
	return &Ledger{s, config, func() time.Time { return now().UTC().Truncate(time.Microsecond) }}
}

// HoldResult is the result of a hold for one refresh: a hold, or the fact that the credits are used up.
type HoldResult struct {
	Hold Hold
	// Exhausted is set if the client has too few credits. Then there is no Hold, Plan is the plan of
	// the client, and After is the time until its next grant.
	Exhausted bool
	Plan      Plan
	After     time.Duration
	// IsRepeated is set if Hold belongs to an earlier refresh with the same idempotency key.
	IsRepeated bool
}

// Hold sets credits aside for a refresh of each entity. It grants the credits of the plan first, if
// they are due. The plan is the part NAME of the client's scope plan:NAME; empty: the plan default. A
// refresh with the same idempotency key as an earlier one gets the hold of that refresh, unless the
// credits of that hold were given back.
func (l *Ledger) Hold(ctx context.Context, client, plan string, entities []schemas.Entity, idempotencyKey string) ([]HoldResult, error) {
	results := make([]HoldResult, len(entities))
	err := l.change(ctx, l.store.InUnflushedTx, client, func(b *book) error {
		if err := b.renew(ctx, l.config, plan); err != nil {
			return err
		}
		for i, e := range entities {
			idempotency := idempotencyOf(client, e, idempotencyKey)
			if idempotency != "" {
				earlier, err := b.findRepeated(ctx, idempotency)
				if err != nil {
					return err
				}
				if earlier != nil {
					results[i] = HoldResult{Hold: *earlier, IsRepeated: true}
					continue
				}
			}
			h := Hold{ID: newID(), Client: client, Entity: e, Amount: l.config.Costs.Refresh, State: Held, CreatedAt: b.now, ExpiresAt: b.now.Add(l.config.Hold)}
			if results[i] = (HoldResult{Hold: h}); !b.hold(h, idempotency) {
				_, p := l.config.plan(plan)
				results[i] = HoldResult{Exhausted: true, Plan: p, After: b.account.RenewsAt.Sub(b.now)}
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("hold credits of %s: %w", client, err)
	}
	return results, nil
}

// SetNumbers writes the numbers of the update requests of holds. A number that is set already stays.
func (l *Ledger) SetNumbers(ctx context.Context, numbers map[string]int64) error {
	var statements []store.Statement
	for _, id := range slices.Sorted(maps.Keys(numbers)) { // rows are locked in one order, which prevents deadlocks
		statements = append(statements, statement(setNumber, id, numbers[id]))
	}
	err := l.store.InUnflushedTx(ctx, func(tx store.Tx) error { return tx.Commit(ctx, statements...) })
	if err != nil {
		return fmt.Errorf("write the request numbers of %d holds: %w", len(numbers), err)
	}
	return nil
}

// End ends holds of one client with a state: it spends their credits (Captured), or gives them back. It
// returns the holds that it ended. A hold that has ended before is left out.
func (l *Ledger) End(ctx context.Context, client string, ends map[string]State) (ended []Hold, err error) {
	ids := slices.Sorted(maps.Keys(ends))
	err = l.change(ctx, l.store.InUnflushedTx, client, func(b *book) error {
		ended = nil
		for _, id := range ids {
			h, err := b.end(ctx, id, ends[id])
			if err != nil {
				return err
			}
			if h != nil {
				ended = append(ended, *h)
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("end holds of %s: %w", client, err)
	}
	return ended, nil
}

// Grant gives a client credits and writes the audit entry that the function `entry` returns. Grant
// sets the ID and the times of the grant, except ExpiresAt.
func (l *Ledger) Grant(ctx context.Context, g Grant, entry func(Grant) store.AuditEntry) (Grant, error) {
	g.ID, g.CreatedAt, g.Remaining = newID(), l.now(), g.Amount
	err := l.change(ctx, l.store.InTx, g.Client, func(b *book) error {
		b.grant(g)
		b.statements = append(b.statements, statement(store.InsertAudit, entry(g).AuditArgs()...))
		return nil
	})
	if err != nil {
		return Grant{}, fmt.Errorf("grant credits to %s: %w", g.Client, err)
	}
	return g, nil
}

// Void takes the remaining credits of a grant away and writes the audit entry that the function
// `entry` returns. Credits that open holds have taken from the grant are not affected; if such a hold
// is released, its credits are taken away too. It returns the grant before the change, or ErrNoGrant.
func (l *Ledger) Void(ctx context.Context, id string, entry func(Grant) store.AuditEntry) (Grant, error) {
	var g Grant
	find := func(tx store.Tx) error {
		g = Grant{}
		if err := tx.Query(ctx, g.scan, selectGrant, id); err != nil {
			return err
		}
		if g.ID == "" {
			return ErrNoGrant
		}
		return nil
	}
	err := l.store.InTx(ctx, find) // finds the client, whose account must be locked first
	if err == nil {
		err = l.change(ctx, l.store.InTx, g.Client, func(b *book) error {
			if err := find(b.tx); err != nil {
				return err
			}
			b.statements = append(b.statements, statement(voidGrant, id, b.now.UnixMicro()), statement(store.InsertAudit, entry(g).AuditArgs()...))
			b.expire(g, kindVoid)
			return nil
		})
	}
	if err != nil {
		return Grant{}, fmt.Errorf("void the grant %.50s: %w", id, err)
	}
	return g, nil
}

// change locks the account of a client and calls the function `do`. It creates the account if there
// is none, and writes the changes that `do` has made to the book. The parameter inTx is a method of
// Store.
//
// A refresh does not wait for the disk, which would double its duration. If its hold is lost, the refresh
// is free. If the end of a hold is lost, it is repeated, because the outcome is read again.
func (l *Ledger) change(ctx context.Context, inTx func(context.Context, func(store.Tx) error) error, client string, do func(*book) error) error {
	return inTx(ctx, func(tx store.Tx) error {
		b := &book{tx: tx}
		if err := tx.Query(ctx, func(scan func(...any) error) error { return b.account.scan(scan) }, openAccount, client); err != nil {
			return err
		}
		b.now = l.now() // after the wait for the lock, so that times of entries rise
		before := b.account
		if err := do(b); err != nil {
			return err
		}
		if b.account != before {
			a := b.account
			b.statements = append(b.statements, statement(updateAccount, a.Client, a.Plan, a.Balance, a.Held, optionalMicros(a.RenewsAt)))
		}
		if b.used > 0 {
			b.statements = append(b.statements, statement(addUse, client, hourOf(b.now), b.used))
		}
		if len(b.statements) == 0 {
			return nil
		}
		return tx.Commit(ctx, b.statements...)
	})
}

// newID returns an ID that increases with time, so that an index grows at its end.
func newID() string { return uuid.Must(uuid.NewV7()).String() } // fails only if the system has no randomness

// idempotencyOf returns the text by which a repeated refresh is found. It is a hash, because clients
// choose the text of the key.
func idempotencyOf(client string, e schemas.Entity, key string) string {
	if key == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(client + "\x00" + e.String() + "\x00" + key))
	return hex.EncodeToString(sum[:16])
}
