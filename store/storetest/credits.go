package storetest

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/freshet/freshet/credits"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/shared"
)

// runCredits runs the tests of transactions and of credits.
func runCredits(t *testing.T, open func(t *testing.T) Store) {
	for _, test := range []struct {
		name string
		run  func(b suite)
	}{
		{"InTx commits or rolls back", testInTx},
		{"credits are held and given back", testCredits},
		{"credits expire and are voided", testCreditsExpire},
		{"repeated refresh holds once", testCreditsRepeated},
		{"credits: random changes match the model", testCreditsModel},
		{"credits: concurrent holds", testCreditsHoldRace},
		{"credits: concurrent ends", testCreditsEndRace},
		{"Verify finds a wrong balance", testCreditsVerify},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(suite{t, open(t)}) })
	}
}

func testInTx(b suite) {
	setting := func(source string) store.Statement {
		s := store.Setting{Source: source, Value: []byte("{}"), Revision: 1, ChangedAt: at(1), ChangedBy: "somebody"}
		return store.Statement{Text: shared.InsertSetting, Args: shared.SettingArgs(s)}
	}
	failed := errors.New("failed")
	for source, result := range map[string]error{"kept": nil, "undone": failed} {
		err := b.store.InTx(b.Context(), func(tx store.Tx) error {
			written, err := tx.Exec(b.Context(), setting(source), setting(source+"2"))
			if err != nil || !slices.Equal(written, []int64{1, 1}) {
				b.Fatalf("Exec: got %v, %v, want 1 and 1", written, err)
			}
			return result
		})
		if !errors.Is(err, result) {
			b.Errorf("%s: got %v, want %v", source, err, result)
		}
	}
	var all []string
	err := b.store.InTx(b.Context(), func(tx store.Tx) error {
		return tx.Query(b.Context(), func(scan func(...any) error) error {
			var source string
			err := scan(&source)
			all = append(all, source)
			return err
		}, "SELECT source FROM settings WHERE revision = $1 ORDER BY source", int64(1))
	})
	if err != nil || !slices.Equal(all, []string{"kept", "kept2"}) {
		b.Errorf("settings: got %v, %v, want kept and kept2", all, err)
	}
}

// creditsSuite is a ledger with plans and a clock. Its methods fail the test if a method of the ledger fails.
type creditsSuite struct {
	suite
	*credits.Ledger
	clock *atomic.Int64 // seconds, as the argument of at
}

const client = "key:1 somebody"

func (b suite) credits() creditsSuite {
	config := credits.DefaultConfig()
	config.Costs.Refresh = 2
	config.Plans = map[string]credits.Plan{"default": {Amount: 10, Every: time.Hour}, "partner": {Amount: 50, Every: 2 * time.Hour}}
	if err := config.Check(); err != nil {
		b.Fatal(err)
	}
	clock := &atomic.Int64{}
	return creditsSuite{b, credits.NewLedger(config, b.store, func() time.Time { return at(clock.Load()) }), clock}
}

func (c creditsSuite) hold(of string, keys ...string) []credits.HoldResult {
	c.Helper()
	return c.holdWith("", of, keys...)
}

func (c creditsSuite) holdWith(idempotencyKey, of string, keys ...string) []credits.HoldResult {
	c.Helper()
	entities := make([]schemas.Entity, len(keys))
	for i, key := range keys {
		entities[i] = schemas.Entity{Source: "nexon", Facet: "character", Key: key}
	}
	results, err := c.Hold(c.Context(), of, "", entities, idempotencyKey)
	if err != nil {
		c.Fatal(err)
	}
	return results
}

// end ends a hold and returns whether it had not ended before.
func (c creditsSuite) end(h credits.Hold, state credits.State) bool {
	c.Helper()
	ended, err := c.End(c.Context(), h.Client, map[string]credits.State{h.ID: state})
	if err != nil {
		c.Fatal(err)
	}
	return len(ended) == 1
}

func (c creditsSuite) want(of string, balance, held int64) {
	c.Helper()
	d, err := c.Details(c.Context(), of)
	if err != nil || d.Balance != balance || d.Held != held {
		c.Errorf("account of %s: got %d, held %d, %v, want %d, held %d", of, d.Balance, d.Held, err, balance, held)
	}
	c.verify()
}

func (c creditsSuite) verify() {
	c.Helper()
	if _, wrong, err := c.Verify(c.Context()); err != nil || len(wrong) != 0 {
		c.Errorf("Verify: got %+v, %v, want no mismatch", wrong, err)
	}
}

func audit(credits.Grant) store.AuditEntry { return auditEntry("credits-grant") }

func testCredits(b suite) {
	c := b.credits()
	if _, err := c.Details(c.Context(), client); !errors.Is(err, credits.ErrNoAccount) {
		b.Errorf("Details before the first hold: got %v, want ErrNoAccount", err)
	}
	all := c.hold(client, "a", "b", "c")
	c.want(client, 4, 6)
	if d, _ := c.Details(c.Context(), client); len(d.Holds) != 3 || len(d.Grants) != 1 || d.Grants[0].CreatedBy != "plan:default" || d.RenewsAt == nil || !d.RenewsAt.Equal(at(3600)) {
		b.Errorf("details: got %+v, want 3 holds and one grant until %v", d, at(3600))
	}
	for i, state := range []credits.State{credits.Captured, credits.Released, credits.Expired} {
		if !c.end(all[i].Hold, state) || c.end(all[i].Hold, credits.Released) || c.end(all[i].Hold, credits.Captured) {
			b.Errorf("%s: want the first end to end the hold, and no further one", state)
		}
	}
	c.want(client, 8, 0)
	if d, _ := c.Details(c.Context(), client); len(d.Use) != 1 || d.Use[0].Credits != 2 || len(d.Holds) != 0 || d.UsedToday != 2 {
		b.Errorf("use: got %+v, want 2 credits in one hour", d)
	}
	if all, err := c.Accounts(c.Context(), "", 2); err != nil || len(all) != 1 || all[0].Balance != 8 || all[0].UsedToday != 2 {
		b.Errorf("accounts: got %+v, %v, want one with balance 8 and 2 used today", all, err)
	}
	all = c.hold(client, "a", "b", "c", "d", "e")
	if last := all[4]; !last.Exhausted || last.After != time.Hour || last.Plan.Amount != 10 || all[3].Exhausted {
		b.Errorf("hold without credits: got %+v, want it exhausted for an hour", last)
	}
	c.want(client, 0, 8)
	open, err := c.OpenHolds(c.Context(), at(1800), credits.Hold{}, 3)
	if err != nil || len(open) != 3 {
		b.Fatalf("OpenHolds: got %+v, %v, want 3", open, err)
	}
	if rest, err := c.OpenHolds(c.Context(), at(1800), open[2], 3); err != nil || len(rest) != 1 {
		b.Errorf("OpenHolds after the third: got %+v, %v, want 1", rest, err)
	}
	if early, err := c.OpenHolds(c.Context(), at(1799), credits.Hold{}, 3); err != nil || len(early) != 0 {
		b.Errorf("OpenHolds before the expiry: got %+v, %v, want none", early, err)
	}
	if err := c.SetNumbers(c.Context(), map[string]int64{open[0].ID: 70, open[1].ID: 71}); err != nil {
		b.Fatal(err)
	}
	if err := c.SetNumbers(c.Context(), map[string]int64{open[0].ID: 80}); err != nil {
		b.Fatal(err)
	}
	if again, err := c.OpenHolds(c.Context(), at(1800), credits.Hold{}, 3); err != nil || again[0].Number != 70 || again[1].Number != 71 || again[2].Number != 0 {
		b.Errorf("numbers: got %+v, %v, want 70, 71 and 0", again, err)
	}
}

func testCreditsExpire(b suite) {
	c := b.credits()
	first := c.hold(client, "a")[0].Hold
	end := at(5000)
	extra, err := c.Grant(c.Context(), credits.Grant{Client: client, Amount: 3, CreatedBy: "operator", Note: "sorry"}, audit)
	if err != nil {
		b.Fatal(err)
	}
	until, err := c.Grant(c.Context(), credits.Grant{Client: client, Amount: 5, CreatedBy: "operator", ExpiresAt: &end}, audit)
	if err != nil {
		b.Fatal(err)
	}
	c.want(client, 16, 2)
	c.hold(client, "b", "c", "d", "e", "f") // 8 credits of the plan, and 2 of the grant that expires first
	if d, _ := c.Details(c.Context(), client); len(d.Grants) != 2 || d.Grants[0].ID != until.ID || d.Grants[0].Remaining != 3 || d.Grants[1].ID != extra.ID {
		b.Errorf("grants: got %+v, want 3 remaining of the grant with an end, then the other", d.Grants)
	}
	c.want(client, 6, 12)
	c.clock.Store(4000) // the plan's grant has expired; the credits that return to it expire too
	c.end(first, credits.Released)
	c.want(client, 6, 10)
	if a, err := c.Available(c.Context(), client, ""); err != nil || a.Balance != 16 {
		b.Errorf("available balance: got %+v, %v, want 16", a, err)
	}
	c.hold(client, "g")
	c.want(client, 14, 12)
	if _, err := c.Void(c.Context(), until.ID, audit); err != nil {
		b.Fatal(err)
	}
	c.want(client, 13, 12)
	if _, err := c.Void(c.Context(), until.ID, audit); !errors.Is(err, credits.ErrNoGrant) {
		b.Errorf("second Void: got %v, want ErrNoGrant", err)
	}
	if all := b.audit(10); len(all) != 3 {
		b.Errorf("audit: got %+v, want 3 entries", all)
	}
	c.clock.Store(9000)
	if results, err := c.Hold(c.Context(), client, "partner", []schemas.Entity{entity}, ""); err != nil || results[0].Exhausted {
		b.Fatal(results, err)
	}
	c.want(client, 51, 14) // the grant without an end, and the next plan's grant without the new hold
}

func testCreditsRepeated(b suite) {
	c := b.credits()
	first := c.holdWith("k", client, "a")[0]
	for _, again := range []credits.HoldResult{c.holdWith("k", client, "a")[0], c.holdWith("k", client, "a")[0]} {
		if !again.IsRepeated || again.Hold.ID != first.Hold.ID || first.IsRepeated {
			b.Errorf("repeated hold: got %+v, want the hold %s", again, first.Hold.ID)
		}
	}
	c.want(client, 8, 2)
	for name, other := range map[string]credits.HoldResult{
		"another key": c.holdWith("k2", client, "a")[0], "another entity": c.holdWith("k", client, "b")[0], "another client": c.holdWith("k", "key:2", "a")[0],
	} {
		if other.IsRepeated {
			b.Errorf("%s: got the first hold, want another", name)
		}
	}
	c.end(first.Hold, credits.Released)
	second := c.holdWith("k", client, "a")[0]
	if second.IsRepeated {
		b.Error("hold after the release: got the released hold, want another")
	}
	c.end(second.Hold, credits.Captured)
	if again := c.holdWith("k", client, "a")[0]; !again.IsRepeated || again.Hold.State != credits.Captured {
		b.Errorf("hold after the capture: got %+v, want the captured one", again)
	}
	c.clock.Store(601)
	if again := c.holdWith("k", client, "a")[0]; again.IsRepeated {
		b.Error("hold after ten minutes: got the captured hold, want another")
	}
	c.verify()
}

// testCreditsModel makes random changes. After each, the balance is the sum of the entries, and the
// credits that were granted are available, held, captured, expired or voided.
func testCreditsModel(b suite) {
	seed := rand.Uint64()
	b.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	c := b.credits()
	open, captured, grants := map[string]credits.Hold{}, map[string]int64{}, []string{}
	for step := range 300 {
		of := fmt.Sprintf("key:%d", r.IntN(3))
		switch r.IntN(10) {
		case 0:
			c.clock.Add(r.Int64N(3000))
		case 1:
			g := credits.Grant{Client: of, Amount: 1 + r.Int64N(20), CreatedBy: "operator"}
			if r.IntN(2) == 0 {
				end := at(c.clock.Load() + r.Int64N(5000))
				g.ExpiresAt = &end
			}
			g, err := c.Grant(c.Context(), g, audit)
			if err != nil {
				b.Fatal(err)
			}
			grants = append(grants, g.ID)
		case 2:
			if len(grants) > 0 {
				if _, err := c.Void(c.Context(), grants[r.IntN(len(grants))], audit); err != nil && !errors.Is(err, credits.ErrNoGrant) {
					b.Fatal(err)
				}
			}
		case 3, 4, 5, 6:
			for _, result := range c.hold(of, "a", "b") {
				if !result.Exhausted {
					open[result.Hold.ID] = result.Hold
				}
			}
		default:
			for _, id := range slices.Sorted(maps.Keys(open))[:min(len(open), r.IntN(3))] {
				state := []credits.State{credits.Captured, credits.Released, credits.Expired}[r.IntN(3)]
				if h := open[id]; c.end(h, state) && state == credits.Captured {
					captured[h.Client] += h.Amount
				}
				delete(open, id)
			}
		}
		if _, wrong, err := c.Verify(c.Context()); err != nil || len(wrong) > 0 {
			b.Fatalf("seed %d, step %d: got %+v, %v, want no mismatch", seed, step, wrong, err)
		}
	}
	sum, most := int64(0), int64(0)
	for _, n := range captured {
		sum, most = sum+n, max(most, n)
	}
	total, err := c.Total(c.Context(), at(0), 1)
	if err != nil || total.Credits != sum || total.Clients != int64(len(captured)) || len(total.Top) != min(1, len(captured)) || len(captured) > 0 && total.Top[0].Credits != most {
		b.Errorf("seed %d: total use: got %+v, %v, want %d credits of %d clients, at most %d of one", seed, total, err, sum, len(captured), most)
	}
	for of := range captured {
		used := int64(0)
		d, err := c.Details(c.Context(), of)
		if err != nil {
			b.Fatal(err)
		}
		for _, u := range d.Use {
			used += u.Credits
		}
		if used != captured[of] {
			b.Errorf("seed %d: captured credits of %s: got %d, want %d", seed, of, used, captured[of])
		}
	}
}

func testCreditsHoldRace(b suite) {
	c := b.credits()
	var got atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 2 {
				if !c.hold(client, "a")[0].Exhausted {
					got.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if got.Load() != 5 {
		b.Errorf("holds of 2 from 10 credits: got %d, want 5", got.Load())
	}
	c.want(client, 0, 10)
}

// testCreditsEndRace ends the same holds in several concurrent calls, with different states: each hold
// ends once.
func testCreditsEndRace(b suite) {
	c := b.credits()
	ends := map[string]credits.State{}
	for _, result := range c.hold(client, "a", "b", "c", "d", "e") {
		ends[result.Hold.ID] = credits.Released
	}
	var ended atomic.Int64
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Go(func() {
			own := maps.Clone(ends)
			for id := range own {
				if i%2 == 1 {
					own[id] = credits.Expired
				}
			}
			all, err := c.End(c.Context(), client, own)
			if err != nil {
				b.Error(err)
			}
			ended.Add(int64(len(all)))
		})
	}
	wg.Wait()
	if ended.Load() != 5 {
		b.Errorf("ended holds: got %d, want 5", ended.Load())
	}
	c.want(client, 10, 0)
}

func testCreditsVerify(b suite) {
	c := b.credits()
	c.hold("key:2", "a")
	c.hold(client, "a")
	err := b.store.InTx(b.Context(), func(tx store.Tx) error {
		_, err := tx.Exec(b.Context(), store.Statement{Text: "UPDATE credit_accounts SET balance = balance + 1 WHERE client = $1", Args: []any{client}})
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	accounts, wrong, err := c.Verify(b.Context())
	if err != nil || accounts != 2 || len(wrong) != 1 || wrong[0].Client != client {
		b.Errorf("Verify: got %d accounts, %+v, %v, want 2 accounts and the mismatch of %s", accounts, wrong, err, client)
	}
}
