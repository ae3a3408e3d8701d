package main

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/credits"
	"github.com/freshet/freshet/servicetest"
)

func TestCredits_ShowGrantVoidVerify(t *testing.T) {
	t.Parallel()
	token := strings.Repeat("0123456789abcdef", 4)
	d := startDev(t, "--no-demo", "--config", write(t, "access: {adminTokenFile: "+write(t, token+"\n")+"}\ncredits: {plans: {default: {amount: 100, every: 24h}}}\n"))
	run := func(code int, want string, args ...string) string {
		t.Helper()
		got, stdout, stderr := d.as(token, args...)
		if text := strings.Join(strings.Fields(stdout+stderr), " "); got != code || !strings.Contains(text, want) {
			t.Errorf("%q: got exit %d, %q, want %d and %q", args, got, text, code, want)
		}
		return stdout
	}
	run(0, "CLIENT PLAN BALANCE HELD USED TODAY NEXT CREDITS", "credits", "show")
	run(3, "The client has no credits yet", "credits", "show", "key:nobody")
	_, key, _ := d.as(token, "keys", "create", "--name", "partner", "--scopes", "read,refresh")
	key = strings.TrimSpace(key)
	client := "key:" + key[4:16] + " partner"

	granted := run(0, "granted 7 credits to "+client+"; the grant", "credits", "grant", client, "7", "--expires", "30d", "--note", "outage")
	_, grant, _ := strings.Cut(granted, "the grant ")
	grant, _, _ = strings.Cut(grant, " ")
	run(2, `AMOUNT is "many"; it must be a whole number`, "credits", "grant", client, "many")
	run(2, `AMOUNT is "0"`, "credits", "grant", client, "0")
	run(1, "client must be the name of a client", "credits", "grant", "partner", "5")
	run(1, "expiresIn is", "credits", "grant", client, "5", "--expires", "soon")

	// wait=20s is not always enough: on a slow machine the refresh can take longer, and the response is
	// 202.
	if status := d.post(key, "/v1/nexon/character/paid/refresh?wait=20s"); status != http.StatusOK && status != http.StatusAccepted {
		t.Errorf("refresh: got %d, want 200 or 202", status)
	}
	var all []credits.Details
	servicetest.WaitFor(t, time.Minute, "the hold is captured", func() bool {
		_, text, _ := d.as(token, "credits", "show", client, "-o", "json")
		all = nil
		return json.Unmarshal([]byte(text), &all) == nil && len(all) == 1 && all[0].Held == 0
	})
	if len(all) != 1 || all[0].Balance != 106 || all[0].UsedToday != 1 || all[0].Plan != "default" {
		t.Errorf("account after a refresh: got %+v, want balance 106 and 1 used today", all)
	}
	run(0, client+": balance 106, held 0, used today 1, plan default, next credits 20", "credits", "show", client)
	run(0, client+" default 106 0 1 20", "credits", "show")
	run(2, "--yes", "credits", "void", grant)
	run(0, "grant "+grant+" is voided; "+client+" had 7 of its 7 credits left", "credits", "void", grant, "--yes")
	run(3, "There is no such grant, or it is voided", "credits", "void", grant, "--yes")
	run(0, "1 accounts match their ledger", "credits", "verify")
	run(0, "credits-void", "settings", "audit")
}

// post sends a POST request without a body as the client with a key, and returns the status.
func (d *dev) post(key, path string) int {
	d.Helper()
	req, err := http.NewRequestWithContext(d.Context(), http.MethodPost, d.api+path, http.NoBody)
	if err != nil {
		d.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+key)
	resp, err := d.client.Do(req)
	if err != nil {
		d.Fatal(err)
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}
