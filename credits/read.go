package credits

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/freshet/freshet/store"
)

// sortByExpiry sorts grants in the order in which they are used: the grant that expires first is first.
func sortByExpiry(grants []Grant) {
	slices.SortStableFunc(grants, func(a, b Grant) int {
		return cmp.Or(cmp.Compare(never(a), never(b)), cmp.Compare(optionalMicros(a.ExpiresAt), optionalMicros(b.ExpiresAt)), cmp.Compare(a.ID, b.ID))
	})
}

// never returns 1 for a grant that never expires, else 0.
func never(g Grant) int {
	if g.ExpiresAt == nil {
		return 1
	}
	return 0
}

// Use is the number of captured credits within an hour.
type Use struct {
	Hour    time.Time `json:"hour"` // start of the hour
	Credits int64     `json:"credits"`
}

// Details are an account with its grants, its newest open holds and its use by hour.
type Details struct {
	Account
	Grants []Grant `json:"grants"`
	Holds  []Hold  `json:"holds"`
	Use    []Use   `json:"use"`
}

// maxHoldsShown is the maximum number of open holds in Details.
const maxHoldsShown = 100

// usePeriod is the period of Details.Use.
const usePeriod = 7 * 24 * time.Hour

// Details returns the account of a client, or ErrNoAccount.
func (l *Ledger) Details(ctx context.Context, client string) (Details, error) {
	d := Details{}
	err := l.store.InTx(ctx, func(tx store.Tx) error {
		d = Details{Grants: []Grant{}, Holds: []Hold{}, Use: []Use{}}
		now := l.now()
		if err := l.readAccount(ctx, tx, client, now, &d.Account); err != nil {
			return err
		}
		err := tx.Query(ctx, func(scan func(...any) error) error {
			var g Grant
			if err := g.scan(scan); err != nil || g.expired(now) {
				return err
			}
			d.Grants = append(d.Grants, g)
			return nil
		}, selectGrants, client)
		if err != nil {
			return err
		}
		err = tx.Query(ctx, func(scan func(...any) error) error {
			var h Hold
			err := h.scan(scan)
			d.Holds = append(d.Holds, h)
			return err
		}, selectHoldsOf, client, maxHoldsShown)
		if err != nil {
			return err
		}
		return tx.Query(ctx, func(scan func(...any) error) error {
			var hour int64
			var u Use
			err := scan(&hour, &u.Credits)
			u.Hour = time.Unix(hour*3600, 0).UTC()
			d.Use = append(d.Use, u)
			return err
		}, selectUse, client, hourOf(now.Add(-usePeriod)))
	})
	if err != nil {
		return Details{}, fmt.Errorf("read the credits of %s: %w", client, err)
	}
	return d, nil
}

// hourOf returns the number of full hours between 1970-01-01 UTC and t.
func hourOf(t time.Time) int64 { return t.Unix() / 3600 }

// startOfDay returns the last midnight UTC.
func startOfDay(now time.Time) time.Time { return now.UTC().Truncate(24 * time.Hour) }

// readAccount reads the account of a client. It returns ErrNoAccount if there is none.
func (l *Ledger) readAccount(ctx context.Context, tx store.Tx, client string, now time.Time, a *Account) error {
	err := tx.Query(ctx, func(scan func(...any) error) error { return a.scanView(scan, now) }, selectAccount, now.UnixMicro(), hourOf(startOfDay(now)), client)
	if err == nil && a.Client == "" {
		return ErrNoAccount
	}
	return err
}

// scanView reads the columns viewColumns.
func (a *Account) scanView(scan func(...any) error, now time.Time) error {
	err := a.scan(scan, &a.UsedToday)
	if a.RenewsAt != nil && !a.RenewsAt.After(now) {
		a.RenewsAt = nil
	}
	return err
}

// Available returns the account of a client as its next refresh will find it: it includes the credits
// that the plan would grant then. It changes nothing.
func (l *Ledger) Available(ctx context.Context, client, planName string) (Account, error) {
	var a Account
	err := l.store.InTx(ctx, func(tx store.Tx) error {
		a = Account{}
		return l.readAccount(ctx, tx, client, l.now(), &a)
	})
	if err != nil && !errors.Is(err, ErrNoAccount) {
		return Account{}, fmt.Errorf("read the credits of %s: %w", client, err)
	}
	a.Client = client
	name, p := l.config.plan(planName)
	if a.Plan = name; a.RenewsAt == nil {
		a.Balance += p.Amount
	}
	return a, nil
}

// Accounts returns at most limit accounts in the order of their clients, after the client `after`.
func (l *Ledger) Accounts(ctx context.Context, after string, limit int) (all []Account, err error) {
	err = l.store.InTx(ctx, func(tx store.Tx) error {
		all = []Account{}
		now := l.now()
		return tx.Query(ctx, func(scan func(...any) error) error {
			var a Account
			err := a.scanView(scan, now)
			all = append(all, a)
			return err
		}, selectAccounts, now.UnixMicro(), hourOf(startOfDay(now)), after, limit)
	})
	if err != nil {
		return nil, fmt.Errorf("list the accounts: %w", err)
	}
	return all, nil
}

// Total is the use of credits by all clients since a time.
type Total struct {
	Since   time.Time   `json:"since"`
	Clients int64       `json:"clients"` // number of clients that used credits
	Credits int64       `json:"credits"` // number of credits that they used
	Top     []ClientUse `json:"top"`     // the clients that used the most credits, in that order
}

// ClientUse is the number of captured credits of one client.
type ClientUse struct {
	Client  string `json:"client"`
	Credits int64  `json:"credits"`
}

// Total returns the use of credits since a time, which must be the start of an hour. Total.Top has at
// most limit clients.
func (l *Ledger) Total(ctx context.Context, since time.Time, limit int) (t Total, err error) {
	err = l.store.InTx(ctx, func(tx store.Tx) error {
		t = Total{Since: since, Top: []ClientUse{}}
		return tx.Query(ctx, func(scan func(...any) error) error {
			var u ClientUse
			err := scan(&u.Client, &u.Credits, &t.Credits, &t.Clients)
			t.Top = append(t.Top, u)
			return err
		}, selectTop, hourOf(since), limit)
	})
	if err != nil {
		return Total{}, fmt.Errorf("read the use of credits: %w", err)
	}
	return t, nil
}

// OpenHolds returns at most limit open holds that expire until the given time, in the order of their
// expiry, after the hold `after`.
func (l *Ledger) OpenHolds(ctx context.Context, until time.Time, after Hold, limit int) (all []Hold, err error) {
	err = l.store.InTx(ctx, func(tx store.Tx) error {
		all = nil
		return tx.Query(ctx, func(scan func(...any) error) error {
			var h Hold
			err := h.scan(scan)
			all = append(all, h)
			return err
		}, selectOpenHolds, until.UnixMicro(), store.ToMicros(after.ExpiresAt), after.ID, limit)
	})
	if err != nil {
		return nil, fmt.Errorf("read open holds: %w", err)
	}
	return all, nil
}

// HeldCredits returns the credits of all open holds.
func (l *Ledger) HeldCredits(ctx context.Context) (held int64, err error) {
	err = l.store.InTx(ctx, func(tx store.Tx) error {
		return tx.Query(ctx, func(scan func(...any) error) error { return scan(&held) }, selectHeld)
	})
	if err != nil {
		return 0, fmt.Errorf("read the held credits: %w", err)
	}
	return held, nil
}

// Mismatch is an account whose balance or held credits differ from the sums of the ledger.
type Mismatch struct {
	Client string `json:"client"`
	Detail string `json:"detail"`
}

// Verify compares each account with the sums of its entries, its grants and its open holds. It returns
// the number of accounts and the mismatches.
func (l *Ledger) Verify(ctx context.Context) (accounts int, wrong []Mismatch, err error) {
	const page = 100
	wrong = []Mismatch{}
	for after, n := "", page; n == page; accounts += n {
		n = 0
		err := l.store.InTx(ctx, func(tx store.Tx) error {
			return tx.Query(ctx, func(scan func(...any) error) error {
				var balance, held, entries, entriesHeld, remaining, holds int64
				if err := scan(&after, &balance, &held, &entries, &entriesHeld, &remaining, &holds); err != nil {
					return err
				}
				n++
				if balance != entries || balance != remaining || held != entriesHeld || held != holds {
					wrong = append(wrong, Mismatch{after, fmt.Sprintf("balance %d, by entries %d, by grants %d; held %d, by entries %d, by open holds %d",
						balance, entries, remaining, held, entriesHeld, holds)})
				}
				return nil
			}, selectSums, after, page)
		})
		if err != nil {
			return 0, nil, fmt.Errorf("verify the ledger: %w", err)
		}
	}
	return accounts, wrong, nil
}
