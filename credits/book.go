package credits

import (
	"context"
	"time"

	"github.com/freshet/freshet/store"
)

// book has the changes of one account within a transaction, which holds the lock of the account. The
// methods change the fields and collect statements; Ledger.change runs the statements at the end.
type book struct {
	tx         store.Tx
	now        time.Time
	account    Account
	grants     []Grant // usable grants with remaining credits, in the order of their use; set by renew
	used       int64   // number of captured credits
	statements []store.Statement
}

// enter adds an entry to the ledger and changes the account by it.
func (b *book) enter(kind Kind, grant, hold string, amount, held int64) {
	b.account.Balance += amount
	b.account.Held += held
	b.statements = append(b.statements, statement(insertEntry, b.now.UnixMicro(), b.account.Client, string(kind), grant, hold, amount, held, b.account.Balance))
}

// grant adds a grant.
func (b *book) grant(g Grant) {
	b.statements = append(b.statements, statement(insertGrant, g.ID, g.Client, g.Amount, g.Remaining, g.CreatedAt.UnixMicro(), g.CreatedBy, optionalMicros(g.ExpiresAt), g.Note))
	b.enter(kindGrant, g.ID, "", g.Amount, 0)
}

// expire takes the remaining credits of a grant away.
func (b *book) expire(g Grant, kind Kind) {
	if g.Remaining == 0 {
		return
	}
	b.statements = append(b.statements, statement(changeRemaining, g.ID, -g.Remaining))
	b.enter(kind, g.ID, "", -g.Remaining, 0)
}

// renew reads the grants, lets expired ones expire, and grants the credits of the plan if they are due.
func (b *book) renew(ctx context.Context, config Config, planName string) error {
	err := b.tx.Query(ctx, func(scan func(...any) error) error {
		var g Grant
		if err := g.scan(scan); err != nil {
			return err
		}
		if g.expired(b.now) {
			b.expire(g, expiryKind(g))
		} else {
			b.grants = append(b.grants, g)
		}
		return nil
	}, selectGrants, b.account.Client)
	if err != nil {
		return err
	}
	name, p := config.plan(planName)
	b.account.Plan = name
	if b.account.RenewsAt != nil && b.account.RenewsAt.After(b.now) {
		return nil
	}
	end := b.now.Add(p.Every)
	b.account.RenewsAt = &end
	g := Grant{ID: newID(), Client: b.account.Client, Amount: p.Amount, Remaining: p.Amount, CreatedAt: b.now, CreatedBy: "plan:" + name, ExpiresAt: &end}
	b.grant(g)
	b.grants = append(b.grants, g)
	sortByExpiry(b.grants)
	return nil
}

func expiryKind(g Grant) Kind {
	if g.Voided {
		return kindVoid
	}
	return kindExpire
}

// findRepeated returns the hold of an earlier refresh with the idempotency key; nil: there is none.
func (b *book) findRepeated(ctx context.Context, idempotency string) (*Hold, error) {
	var h Hold
	err := b.tx.Query(ctx, h.scan, selectRepeated, idempotency, b.now.Add(-repeatPeriod).UnixMicro())
	if err != nil || h.ID == "" {
		return nil, err
	}
	return &h, nil
}

// hold takes the credits of a hold from the grants. It reports false, and changes nothing, if they have
// too few credits.
func (b *book) hold(h Hold, idempotency string) bool {
	if b.account.Balance < h.Amount {
		return false
	}
	b.statements = append(b.statements, statement(insertHold, h.ID, h.Client, idempotency, h.Entity.Source, h.Entity.Facet, h.Entity.Key, h.Amount, h.CreatedAt.UnixMicro(), h.ExpiresAt.UnixMicro()))
	left := h.Amount
	for i := range b.grants {
		g := &b.grants[i]
		n := min(left, g.Remaining)
		if n == 0 {
			continue
		}
		g.Remaining -= n
		left -= n
		b.statements = append(b.statements, statement(changeRemaining, g.ID, -n))
		b.enter(kindHold, g.ID, h.ID, -n, n)
	}
	return true
}

// end ends a hold. It returns nil if the hold has ended before.
func (b *book) end(ctx context.Context, id string, state State) (*Hold, error) {
	var h Hold
	if err := b.tx.Query(ctx, h.scan, endHold, id, string(state), b.now.UnixMicro()); err != nil || h.ID == "" {
		return nil, err
	}
	if state == Captured {
		b.used += h.Amount
		b.enter(kindCapture, "", h.ID, 0, -h.Amount)
		return &h, nil
	}
	return &h, b.tx.Query(ctx, func(scan func(...any) error) error {
		var grant string
		var n int64
		if err := scan(&grant, &n); err != nil {
			return err
		}
		b.statements = append(b.statements, statement(changeRemaining, grant, n))
		b.enter(kindRelease, grant, h.ID, n, -n)
		return nil
	}, selectParts, id)
}
