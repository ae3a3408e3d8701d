package credits

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/schemas/openapitest"
)

// answer is a response of the admin API.
type answer struct {
	status   int
	text     string
	page     Page
	account  Details
	verified Verification
	grant    Grant
}

// do sends a request to a handler, and checks the exchange against the contract.
func (r *rig) do(h http.Handler, method, path, body string) (a answer) {
	r.Helper()
	req := httptest.NewRequestWithContext(r.Context(), method, path, strings.NewReader(body))
	req.Header.Set("Content-Type", "application/json")
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, req)
	a.status, a.text = rec.Code, rec.Body.String()
	for _, into := range []any{&a.page, &a.account, &a.verified, &a.grant} {
		_ = json.Unmarshal([]byte(a.text), into) // fails if the response is of another type
	}
	openapitest.Check(r, openapitest.Exchange{Request: req, Body: body, Status: rec.Code, Header: rec.Header(), Response: a.text})
	return a
}

const grants = "/admin/v1/credits/grants"

func TestHandler_GrantsShowsAndVoids(t *testing.T) {
	r := newRig(t)
	s := r.process()
	made := r.do(s.Handler(), http.MethodPost, grants, `{"client":"key:1","amount":5,"expiresIn":"2d","note":"outage"}`)
	if made.status != http.StatusCreated || made.grant.Amount != 5 || made.grant.CreatedBy != "operator" || !made.grant.ExpiresAt.Equal(r.now().Add(48*time.Hour)) {
		t.Fatalf("grant: got %d %s, want 201 with 5 credits for two days", made.status, made.text)
	}
	r.refresh(s, user("1"), "a", 100)
	r.refresh(s, user("2"), "a", 100)
	r.store("a", 100)
	if _, err := s.endDecided(t.Context(), r.open(), map[string]bool{}); err != nil {
		t.Fatal(err)
	}
	shown := r.do(s.Handler(), http.MethodGet, "/admin/v1/credits/account?client="+url.QueryEscape("key:1"), "")
	if shown.status != http.StatusOK || shown.account.Balance != 14 || shown.account.UsedToday != 1 || len(shown.account.Grants) != 2 || len(shown.account.Use) != 1 {
		t.Errorf("account: got %d %s, want balance 14 of two grants, and 1 used today", shown.status, shown.text)
	}
	first := r.do(s.Handler(), http.MethodGet, "/admin/v1/credits?limit=1", "")
	if first.status != http.StatusOK || len(first.page.Accounts) != 1 || first.page.Next == nil || first.page.Accounts[0].UsedToday != 1 {
		t.Fatalf("list: got %d %s, want one account and the position of the next", first.status, first.text)
	}
	last := r.do(s.Handler(), http.MethodGet, "/admin/v1/credits?limit=2&after="+url.QueryEscape(*first.page.Next), "")
	if len(last.page.Accounts) != 1 || last.page.Next != nil || last.page.Accounts[0].Client != "key:2" {
		t.Errorf("second page: got %s, want key:2 only", last.text)
	}
	voided := r.do(s.Handler(), http.MethodDelete, grants+"/"+made.grant.ID, "")
	if voided.status != http.StatusOK || voided.grant.Remaining != 5 {
		t.Errorf("void: got %d %s, want 200 with the 5 credits that were left", voided.status, voided.text)
	}
	r.want(user("1"), 9, 0)
	verified := r.do(s.Handler(), http.MethodGet, "/admin/v1/credits/verify", "")
	if verified.status != http.StatusOK || verified.verified.Accounts != 2 || len(verified.verified.Mismatches) != 0 {
		t.Errorf("verify: got %d %s, want two accounts without mismatch", verified.status, verified.text)
	}
}

func TestHandler_RefusesBadRequests(t *testing.T) {
	r := newRig(t)
	h := r.process().Handler()
	for name, test := range map[string]struct {
		method, path, body string
		status             int
		detail             string
	}{
		"no body":           {http.MethodPost, grants, "", 400, "the body must be"},
		"no client":         {http.MethodPost, grants, `{"amount":5}`, 400, "client must be the name"},
		"no kind of client": {http.MethodPost, grants, `{"client":"somebody","amount":5}`, 400, "client must be the name"},
		"control character": {http.MethodPost, grants, `{"client":"key:\u0007","amount":5}`, 400, "client must be the name"},
		"no amount":         {http.MethodPost, grants, `{"client":"key:1"}`, 400, "amount is 0; it must be from 1"},
		"negative amount":   {http.MethodPost, grants, `{"client":"key:1","amount":-1}`, 400, "amount is -1"},
		"amount too large":  {http.MethodPost, grants, `{"client":"key:1","amount":1000000000001}`, 400, "amount is 1000000000001"},
		"no lifetime":       {http.MethodPost, grants, `{"client":"key:1","amount":1,"expiresIn":"soon"}`, 400, "expiresIn is"},
		"negative lifetime": {http.MethodPost, grants, `{"client":"key:1","amount":1,"expiresIn":"-3d"}`, 400, "expiresIn is"},
		"long lifetime":     {http.MethodPost, grants, `{"client":"key:1","amount":1,"expiresIn":"5000d"}`, 400, "expiresIn is"},
		"no such grant":     {http.MethodDelete, grants + "/0199c8a0", "", 404, "There is no such grant"},
		"no such client":    {http.MethodGet, "/admin/v1/credits/account?client=key:9", "", 404, "GET /admin/v1/credits lists the clients"},
		"limit 0":           {http.MethodGet, "/admin/v1/credits?limit=0", "", 400, "limit must be a number from 1 to 1000"},
		"limit too large":   {http.MethodGet, "/admin/v1/credits?limit=1001", "", 400, "limit must be a number from 1 to 1000"},
	} {
		got := r.do(h, test.method, test.path, test.body)
		if got.status != test.status || !strings.Contains(got.text, test.detail) {
			t.Errorf("%s: got %d %s, want %d and %q", name, got.status, got.text, test.status, test.detail)
		}
	}
}

func TestHandler_WithoutDatabaseIs503(t *testing.T) {
	r := newRig(t)
	s := r.process()
	r.refresh(s, user("1"), "a", 100)
	h := s.Handler()
	r.faults = func() fault { return lostBefore }
	for _, path := range []string{"/admin/v1/credits", "/admin/v1/credits/account?client=key:1", "/admin/v1/credits/verify"} {
		if got := r.do(h, http.MethodGet, path, ""); got.status != http.StatusServiceUnavailable {
			t.Errorf("%s: got %d %s, want 503", path, got.status, got.text)
		}
	}
}

// The source document (system-management.md, section 1.4) defines these response bodies.
func TestMaintenance_AnswersAsTheSourceDocument(t *testing.T) {
	r := newRig(t)
	s := r.process()
	h := s.MaintenanceHandler()
	const path = "/admin/v1/maintenance/reap"
	if got := r.do(h, http.MethodPost, path, ""); got.status != http.StatusOK || got.text != `{"message":"Cleanup completed","cleaned_count":0,"users_affected":[]}`+"\n" {
		t.Errorf("without holds: got %d %s, want 200 with an empty list", got.status, got.text)
	}
	r.refresh(s, user("1"), "a", 100)
	r.refresh(s, user("1"), "b", 101)
	r.pass(35 * time.Minute)
	if got := r.do(h, http.MethodPost, path, ""); got.text != `{"message":"Cleanup completed","cleaned_count":2,"users_affected":["key:1"]}`+"\n" {
		t.Errorf("with two expired holds: got %s, want 2 of key:1", got.text)
	}
	r.faults = func() fault { return lostBefore }
	got := r.do(h, http.MethodPost, path, "")
	var failure reapFailure
	if err := json.Unmarshal([]byte(got.text), &failure); got.status != http.StatusInternalServerError || err != nil || failure.Error != "CLEANUP_FAILED" || failure.Message == "" || failure.Details == "" {
		t.Errorf("without a database: got %d %s, want 500 CLEANUP_FAILED", got.status, got.text)
	}
}

func TestConfig_ChecksItsSettings(t *testing.T) {
	valid := func() Config {
		c := DefaultConfig()
		c.Plans = map[string]Plan{"default": {Amount: 10, Every: time.Hour}}
		return c
	}
	for name, test := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"valid":             {func(*Config) {}, ""},
		"off":               {func(c *Config) { c.Plans = nil }, ""},
		"free refresh":      {func(c *Config) { c.Costs.Refresh = 0 }, "costs.refresh: 0 must be from 1"},
		"short hold":        {func(c *Config) { c.Hold = time.Second }, "hold: 1s must be from 1m0s"},
		"long hold":         {func(c *Config) { c.Hold = 25 * time.Hour }, "hold: 25h0m0s must be from 1m0s to 24h0m0s"},
		"whenAway":          {func(c *Config) { c.WhenAway = "wait" }, `whenAway: "wait" must be refuse or allow`},
		"no default plan":   {func(c *Config) { c.Plans = map[string]Plan{"partner": {10, time.Hour}} }, "plans: the plan default is missing"},
		"name of a plan":    {func(c *Config) { c.Plans["a b"] = Plan{10, time.Hour} }, "plans.a b: the name must have"},
		"amount below cost": {func(c *Config) { c.Costs.Refresh = 11 }, "plans.default.amount: 10 must be from 11 (costs.refresh)"},
		"short interval":    {func(c *Config) { c.Plans["default"] = Plan{10, time.Second} }, "plans.default.every: 1s must be from 1m0s"},
	} {
		c := valid()
		test.change(&c)
		if err := c.Check(); test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: got %v, want %q", name, err, test.want)
		}
	}
}

// open returns all open holds.
func (r *rig) open() []Hold {
	r.Helper()
	all, err := NewLedger(r.config, r.db, r.now).OpenHolds(r.Context(), r.now().Add(maxHold), Hold{}, 1000)
	if err != nil {
		r.Fatal(err)
	}
	return all
}
