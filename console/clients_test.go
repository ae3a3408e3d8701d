package console

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/html"

	"github.com/freshet/freshet/credits"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/status/clients"
)

// partner is the name of the client whose page the tests read.
const partner = "key:0199c8a06f3e a-partner"

// fillClients sets the clients of a rig.
func fillClients(r *rig) {
	at := func(d time.Duration) time.Time { return testNow.Add(d) }
	account := credits.Account{Client: partner, Plan: "partner", Balance: 8_122, Held: 3, RenewsAt: new(at(20 * 24 * time.Hour)), UsedToday: 412}
	r.accounts = clients.List{Next: "jwt:user 9", Clients: []credits.Account{
		account,
		{Client: "key:0199c8a0dd11 a-dashboard", Plan: "default", RenewsAt: new(at(3 * time.Hour)), UsedToday: 100},
		{Client: "jwt:user 9", Balance: 500},
	}}
	r.shareList = clients.Shares{Since: at(-24 * time.Hour), Clients: 14, Credits: 1_000, Others: 40, Top: []clients.Share{
		{ClientUse: credits.ClientUse{Client: partner, Credits: 860}, Percent: 86},
		{ClientUse: credits.ClientUse{Client: "key:0199c8a0dd11 a-dashboard", Credits: 100}, Percent: 10},
	}}
	r.account = clients.Client{Account: account, Grants: []credits.Grant{
		{ID: "0199c8a0-1", Client: partner, Amount: 10_000, Remaining: 7_622, CreatedAt: at(-10 * 24 * time.Hour), CreatedBy: "plan:partner", ExpiresAt: new(at(20 * 24 * time.Hour))},
		{ID: "0199c8a0-2", Client: partner, Amount: 500, Remaining: 500, CreatedAt: at(-time.Hour), CreatedBy: "admin-token", Note: "outage of Monday"},
	}}
	for i := range 3 {
		r.account.Holds = append(r.account.Holds, credits.Hold{
			ID: fmt.Sprint("hold-", i), Client: partner, Entity: schemas.Entity{Source: "nexon", Facet: "character", Key: fmt.Sprint("3fa8b1c2d", i)},
			Number: int64(i), Amount: 1, State: credits.Held, CreatedAt: at(-time.Duration(i) * time.Minute), ExpiresAt: at(30*time.Minute - time.Duration(i)*time.Minute),
		})
	}
	for i := range 28 {
		p := clients.Period{From: testNow.Truncate(clients.PeriodLength).Add(-time.Duration(27-i) * clients.PeriodLength), Credits: int64(i % 4 * (30 + i))}
		r.account.Use, r.account.Used = append(r.account.Use, p), r.account.Used+p.Credits
	}
}

func TestClients_ShowAccountsAndShares(t *testing.T) {
	r := newRig(t)
	fillRig(r)
	d := r.get(root + "/clients?after=jwt:a")
	for _, want := range []string{"a-partner", "8,122", "412", "with the next refresh", "15:00"} {
		if got := d.textByID("clients"); !strings.Contains(got, want) {
			t.Errorf("table: got %q, want it to contain %q", got, want)
		}
	}
	for _, want := range []string{"14 clients used 1,000 credits in the last 24 hours", partner + " (86 %) 860", "all other clients 40"} {
		if got := strings.Join(strings.Fields(d.text()), " "); !strings.Contains(got, want) {
			t.Errorf("page: got %q, want it to contain %q", got, want)
		}
	}
	for href, want := range map[string]int{clientLink(partner): 2, root + "/clients?after=jwt%3Auser+9": 1} {
		if n := d.linksTo(href); n != want {
			t.Errorf("links to %s: got %d, want %d", href, n, want)
		}
	}
	if r.clientQueries[0] != "jwt:a" {
		t.Errorf("query: got %q, want jwt:a", r.clientQueries)
	}
}

func TestClient_ShowsUseHoldsAndGrants(t *testing.T) {
	r := newRig(t)
	fillRig(r)
	d := r.get(clientLink(partner))
	for id, want := range map[string]string{"account": "8,122", "holds": "nexon/character/3fa8b1c2d0", "grants": "outage of Monday"} {
		if got := d.textByID(id); !strings.Contains(got, want) {
			t.Errorf("%s: got %q, want it to contain %q", id, got, want)
		}
	}
	bars := 0
	d.each(func(n *html.Node) {
		if n.Data == "rect" && attr(n, "class") == useClass {
			bars++
		}
	})
	if bars != 21 {
		t.Errorf("bars: got %d, want one for each of the 21 periods with use", bars)
	}
	if !strings.Contains(d.text(), "2026-01-27 12:00–18:00") {
		t.Error("the table of the use has no row for the last period")
	}
}

func TestClient_HasTheJSONOfItsStatus(t *testing.T) {
	r := newRig(t)
	fillRig(r)
	var got clients.Client
	answer := r.do("GET", clientLink(partner), nil, "Accept", "application/json")
	if err := json.Unmarshal([]byte(answer.body), &got); err != nil || got.Balance != 8122 || len(got.Use) != 28 || len(got.Holds) != 3 || got.Holds[0].Entity.Key != "3fa8b1c2d0" {
		t.Errorf("got %+v, %v, want the account with 28 periods and 3 holds", got, err)
	}
	var list struct {
		Enabled bool
		Clients []credits.Account
		Shares  clients.Shares
	}
	answer = r.do("GET", root+"/clients", nil, "Accept", "application/json")
	if err := json.Unmarshal([]byte(answer.body), &list); err != nil || !list.Enabled || len(list.Clients) != 3 || list.Clients[0].UsedToday != 412 || list.Shares.Credits != 1000 {
		t.Errorf("got %+v, %v, want 3 clients and 1,000 used credits", list, err)
	}
}

func TestClients_WithoutDataSayWhy(t *testing.T) {
	off := newRig(t, func(d *Deps) { d.Clients = nil })
	if text := off.get(root + "/clients").text(); !strings.Contains(text, "Credits are off") {
		t.Errorf("without plans: got %q, want that credits are off", text)
	}
	if got := off.get(clientLink("key:x")).status; got != http.StatusNotFound {
		t.Errorf("a client without plans: got the status %d, want 404", got)
	}
	r := newRig(t)
	if text := r.get(root + "/clients").text(); !strings.Contains(text, "No client has credits yet.") || !strings.Contains(text, "No refresh has spent credits") {
		t.Errorf("without clients: got %q, want that there are none", text)
	}
	if got := r.get(clientLink("key:x")).status; got != http.StatusNotFound {
		t.Errorf("an unknown client: got the status %d, want 404", got)
	}
	r.readErr = errBroken
	for _, path := range []string{root + "/clients", clientLink("key:x")} {
		if got := r.get(path).status; got != http.StatusServiceUnavailable {
			t.Errorf("%s without a database: got the status %d, want 503", path, got)
		}
	}
}
