package clients

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/freshet/freshet/credits"
)

var now = time.Date(2026, 11, 26, 13, 30, 0, 0, time.UTC)

// fakeLedger is a Ledger whose methods return its fields.
type fakeLedger struct {
	accounts int
	use      []credits.Use
	total    credits.Total
	err      error
}

func (f fakeLedger) Accounts(_ context.Context, _ string, limit int) (all []credits.Account, err error) {
	for i := range min(limit, f.accounts) {
		all = append(all, credits.Account{Client: fmt.Sprintf("key:%02d", i)})
	}
	return all, f.err
}

func (f fakeLedger) Details(_ context.Context, client string) (credits.Details, error) {
	return credits.Details{Account: credits.Account{Client: client}, Use: f.use}, f.err
}

func (f fakeLedger) Total(_ context.Context, since time.Time, _ int) (credits.Total, error) {
	f.total.Since = since
	return f.total, f.err
}

func reader(f fakeLedger) Reader { return Reader{f, func() time.Time { return now }} }

func TestList_EndsWithTheLastClient(t *testing.T) {
	for accounts, want := range map[int]string{0: "", 49: "", 50: "", 51: "key:49"} {
		got, err := reader(fakeLedger{accounts: accounts}).List(t.Context(), "")
		if err != nil || len(got.Clients) != min(accounts, MaxClients) || got.Next != want {
			t.Errorf("%d accounts: got %d and next %q, %v, want %d and %q", accounts, len(got.Clients), got.Next, err, min(accounts, MaxClients), want)
		}
	}
}

func TestShares_AddUpToTheTotal(t *testing.T) {
	total := credits.Total{Clients: 12, Credits: 200, Top: []credits.ClientUse{{Client: "key:a", Credits: 120}, {Client: "key:b", Credits: 50}}}
	got, err := reader(fakeLedger{total: total}).Shares(t.Context())
	if err != nil || got.Others != 30 || got.Clients != 12 || len(got.Top) != 2 || got.Top[0].Percent != 60 || !got.Since.Equal(now.Add(-24*time.Hour-30*time.Minute)) {
		t.Errorf("got %+v, %v, want 60 %% of key:a and 30 credits of others since 13:00 of yesterday", got, err)
	}
}

func TestClient_SumsUseByPeriod(t *testing.T) {
	hour := func(d time.Duration) time.Time { return now.Truncate(time.Hour).Add(-d) }
	use := []credits.Use{{Hour: hour(7 * 24 * time.Hour), Credits: 1000}, {Hour: hour(2 * time.Hour), Credits: 3}, {Hour: hour(time.Hour), Credits: 5}, {Hour: hour(0), Credits: 7}}
	got, found, err := reader(fakeLedger{use: use}).Client(t.Context(), "key:a")
	if err != nil || !found || len(got.Use) != 28 || got.Used != 15 {
		t.Fatalf("got %+v, %t, %v, want 28 periods with 15 credits", got, found, err)
	}
	last, before := got.Use[27], got.Use[26]
	if !last.From.Equal(now.Truncate(PeriodLength)) || last.Credits != 12 || before.Credits != 3 {
		t.Errorf("last periods: got %+v and %+v, want 3 credits, and 12 since 12:00", before, last)
	}
	if _, found, err := reader(fakeLedger{err: fmt.Errorf("read: %w", credits.ErrNoAccount)}).Client(t.Context(), "key:x"); found || err != nil {
		t.Errorf("unknown client: got %t, %v, want false without error", found, err)
	}
}
