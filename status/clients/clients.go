// Package clients reads the credits of clients for the console: the accounts, the use over time, and
// the clients that use the most credits.
package clients

import (
	"context"
	"errors"
	"time"

	"github.com/freshet/freshet/credits"
)

const (
	// MaxClients is the maximum number of clients of one List.
	MaxClients = 50
	// PeriodLength is the length of each period of Client.Use.
	PeriodLength = 6 * time.Hour

	usePeriods = 28 // periods of Client.Use, which is one week
	maxShares  = 10 // maximum number of clients in Shares
)

// Ledger reads accounts. *credits.Ledger implements it.
type Ledger interface {
	Accounts(ctx context.Context, after string, limit int) ([]credits.Account, error)
	Details(ctx context.Context, client string) (credits.Details, error)
	Total(ctx context.Context, since time.Time, limit int) (credits.Total, error)
}

// Reader reads the credits of clients. Its methods may be called concurrently.
type Reader struct {
	Ledger Ledger
	Now    func() time.Time
}

// List is a part of the list of clients, in the order of their names. Next is the client after which
// the next part begins; empty: this part is the last.
type List struct {
	Clients []credits.Account `json:"clients"`
	Next    string            `json:"next"`
}

// List returns at most MaxClients clients after the client `after`.
func (r Reader) List(ctx context.Context, after string) (List, error) {
	all, err := r.Ledger.Accounts(ctx, after, MaxClients+1)
	l := List{Clients: all}
	if len(all) > MaxClients {
		l.Clients, l.Next = all[:MaxClients], all[MaxClients-1].Client
	}
	return l, err
}

// Shares are the clients that used the most credits in the last 24 hours.
type Shares struct {
	Since time.Time `json:"since"`
	// Clients is the number of clients that used credits, and Credits the number of these credits.
	Clients int64   `json:"clients"`
	Credits int64   `json:"credits"`
	Top     []Share `json:"top"`
	// Others is the number of credits that all other clients used.
	Others int64 `json:"others"`
}

// Share is a client's part of the used credits.
type Share struct {
	credits.ClientUse
	Percent float64 `json:"percent"`
}

// Shares returns the clients that used the most credits in the last 24 full hours and in this hour.
func (r Reader) Shares(ctx context.Context) (Shares, error) {
	total, err := r.Ledger.Total(ctx, r.Now().UTC().Truncate(time.Hour).Add(-24*time.Hour), maxShares)
	if err != nil {
		return Shares{}, err
	}
	s := Shares{Since: total.Since, Clients: total.Clients, Credits: total.Credits, Others: total.Credits, Top: []Share{}}
	for _, u := range total.Top {
		s.Top = append(s.Top, Share{u, 100 * float64(u.Credits) / float64(total.Credits)})
		s.Others -= u.Credits
	}
	return s, nil
}

// Client has the credits of one client.
type Client struct {
	credits.Account
	Grants []credits.Grant `json:"grants"`
	Holds  []credits.Hold  `json:"holds"` // the newest open holds
	Use    []Period        `json:"use"`   // the periods of the last week, the oldest first; the last one has not ended
	Used   int64           `json:"used"`  // sum of the credits in Use
}

// Period is the number of credits that a client used within PeriodLength.
type Period struct {
	From    time.Time `json:"from"`
	Credits int64     `json:"credits"`
}

// Client returns the credits of a client, and whether it has an account.
func (r Reader) Client(ctx context.Context, name string) (c Client, found bool, err error) {
	d, err := r.Ledger.Details(ctx, name)
	if err != nil {
		if errors.Is(err, credits.ErrNoAccount) {
			err = nil
		}
		return Client{}, false, err
	}
	c = Client{Account: d.Account, Grants: d.Grants, Holds: d.Holds, Use: make([]Period, usePeriods)}
	begin := r.Now().UTC().Truncate(PeriodLength).Add(-(usePeriods - 1) * PeriodLength)
	for i := range c.Use {
		c.Use[i].From = begin.Add(time.Duration(i) * PeriodLength)
	}
	for _, u := range d.Use {
		if since := u.Hour.Sub(begin); since >= 0 && since < usePeriods*PeriodLength {
			c.Use[since/PeriodLength].Credits += u.Credits
			c.Used += u.Credits
		}
	}
	return c, true, nil
}
