package access

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/schemas/openapitest"
	"github.com/freshet/freshet/store"
)

type answer struct {
	*httptest.ResponseRecorder
	Key
	Made struct {
		Key      Key
		Secret   string
		Required bool
	}
	Keys         []Key
	Code, Detail string
}

// do sends a request to the admin API with a key, and checks the response against the OpenAPI
// document.
func (r *rig) do(key, method, path, body string, headers ...string) (a answer) {
	r.Helper()
	req := httptest.NewRequestWithContext(r.Context(), method, path, strings.NewReader(body))
	req.Header.Set("Content-Type", "application/json")
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	a.ResponseRecorder = httptest.NewRecorder()
	r.Handler(func(r *http.Request) string { c, _ := ClientFromContext(r.Context()); return c.Name }).ServeHTTP(a, req)
	text := a.Body.String()
	for _, into := range []any{&a.Made, &struct {
		Keys         *[]Key
		Code, Detail *string
	}{&a.Keys, &a.Code, &a.Detail}} {
		if err := json.Unmarshal([]byte(text), into); err != nil {
			r.Fatalf("%s %s: %s: %v", method, path, text, err)
		}
	}
	if method == http.MethodDelete && a.ResponseRecorder.Code == 200 {
		_ = json.Unmarshal([]byte(text), &a.Key)
	}
	if a.Header().Get("Cache-Control") != "no-store" {
		r.Errorf("%s %s: got headers %v", method, path, a.Header())
	}
	openapitest.Check(r, openapitest.Exchange{Request: req, Body: body, Status: a.ResponseRecorder.Code, Header: a.Header(), Response: text})
	return a
}

const keysPath = "/admin/v1/keys"

// newAdminRig returns a guard with an API key that has the scope admin.
func newAdminRig(t *testing.T) (r *rig, id, admin string) {
	t.Helper()
	r = newRig(t, nil)
	id, admin = r.createKey("on call", time.Time{}, "admin")
	if err := r.readLiveKeys(t.Context()); err != nil {
		t.Fatal(err)
	}
	return r, id, admin
}

func TestHandler_CreatesListsAndRevokesKeys(t *testing.T) {
	r, id, admin := newAdminRig(t)
	a := r.do(admin, "POST", keysPath, `{"name":"a dashboard","scopes":["read","refresh"],"expiresIn":"90d"}`)
	made := a.Made.Key
	if a.ResponseRecorder.Code != 201 || !a.Made.Required || made.Name != "a dashboard" || !slices.Equal(made.Scopes, []Scope{Read, Refresh}) ||
		made.CreatedBy != "key:"+id+" on call" || !made.ExpiresAt.Equal(now.Add(90*24*time.Hour)) || !strings.HasPrefix(a.Made.Secret, "fsk_"+made.ID+"_") {
		t.Fatalf("got %d %s, want 201 with the key", a.ResponseRecorder.Code, a.Body)
	}
	r.accepts("at once", "key:"+made.ID+" a dashboard", "Bearer "+a.Made.Secret, Read, Refresh)

	list := r.do(admin, "GET", keysPath, "")
	if len(list.Keys) != 2 || strings.Contains(list.Body.String(), a.Made.Secret[20:]) || strings.Contains(list.Body.String(), "hash") {
		t.Errorf("got %s, want 2 keys without secrets", list.Body)
	}
	for range 2 { // revoking the key a second time changes nothing
		gone := r.do(admin, "DELETE", keysPath+"/"+made.ID, "")
		if gone.ResponseRecorder.Code != 200 || gone.ID != made.ID || !gone.RevokedAt.Equal(now) || *gone.RevokedBy != "key:"+id+" on call" {
			t.Errorf("got %d %s, want 200 with the revoked key", gone.ResponseRecorder.Code, gone.Body)
		}
		r.rejects("revoked", 401, problem.TokenInvalid, "Bearer "+a.Made.Secret)
		r.at = now.Add(time.Minute)
	}
	entries, err := r.db.Audit(t.Context(), 10)
	if err != nil || len(entries) != 3 || entries[0].Action != "key-revoke" || entries[1].Action != "key-create" || entries[1].Actor != "key:"+id+" on call" ||
		entries[1].Source != "" || !strings.Contains(string(entries[0].After), `"revokedBy":"key:`) || !strings.Contains(string(entries[0].Before), `"revokedBy":null`) {
		t.Fatalf("got the audit entries %+v, %v", entries, err)
	}
	for _, e := range entries {
		if strings.Contains(string(e.After), a.Made.Secret[20:]) {
			t.Error("the audit contains a secret")
		}
	}
	if a := r.do(admin, "DELETE", keysPath+"/aaaaaaaaaaaa", ""); a.ResponseRecorder.Code != 404 || a.Code != "no-such-key" {
		t.Errorf("got %s, want 404 no-such-key", a.Body)
	}
	if a := r.do(admin, "PUT", keysPath, ""); a.ResponseRecorder.Code != 405 || a.Header().Get("Allow") != "GET, POST, HEAD" {
		t.Errorf("got %s, want 405", a.Body)
	}
}

func TestHandler_RejectsInvalidBodies(t *testing.T) {
	r, _, admin := newAdminRig(t)
	for body, words := range map[string]string{
		``:   `{"name":"a-dashboard"`,
		`[]`: `{"name":"a-dashboard"`,
		`{"name":"a","scopes":["read"],"key":"x"}`:                     `unknown field "key"`,
		`{"name":"a","scopes":["read"]} {}`:                            "unexpected data after the JSON value",
		`{"scopes":["read"]}`:                                          "the name must be 1 to 64",
		`{"name":"a\nb","scopes":["read"]}`:                            "printable",
		`{"name":"` + strings.Repeat("a", 65) + `","scopes":["read"]}`: "1 to 64",
		`{"name":"a"}`:                                                   "scopes are required",
		`{"name":"a","scopes":["write"]}`:                                `"write" must be read, refresh, inspect, delegate or admin`,
		`{"name":"a","scopes":["see:"]}`:                                 `or see:NAME or plan:NAME, where NAME`,
		`{"name":"a","scopes":["read","see:a b"]}`:                       `or see:NAME or plan:NAME, where NAME`,
		`{"name":"a","scopes":["read","SEE:a"]}`:                         `or see:NAME or plan:NAME, where NAME`,
		`{"name":"a","scopes":["see:a"]}`:                                "need one of the scopes read, refresh or inspect",
		`{"name":"a","scopes":["read","see:a","see:a"]}`:                 "listed twice",
		`{"name":"a","scopes":["read","read"]}`:                          "listed twice",
		`{"name":"a","scopes":["read"],"expiresIn":"soon"}`:              "from a minute to ten years",
		`{"name":"a","scopes":["read"],"expiresIn":"0d"}`:                "from a minute to ten years",
		`{"name":"a","scopes":["read"],"expiresIn":"-5d"}`:               "from a minute to ten years",
		`{"name":"a","scopes":["read"],"expiresIn":"99999999999999d"}`:   "from a minute to ten years",
		`{"name":"a","scopes":["read"],"expiresIn":"30s"}`:               "from a minute to ten years",
		`{"name":"a","scopes":["read"],"expiresIn":"2562047h47m16854s"}`: "from a minute to ten years",
	} {
		if a := r.do(admin, "POST", keysPath, body); a.ResponseRecorder.Code != 400 || a.Code != "bad-body" || !strings.Contains(a.Detail, words) {
			t.Errorf("%s: got %d %s, want 400 bad-body", body, a.ResponseRecorder.Code, a.Body)
		}
	}
	if a := r.do(admin, "POST", keysPath, `{"name":"`+strings.Repeat("a", 64<<10)+`"}`); a.ResponseRecorder.Code != 413 {
		t.Errorf("large body: got %d", a.ResponseRecorder.Code)
	}
	if all := r.do(admin, "GET", keysPath, "").Keys; len(all) != 1 {
		t.Errorf("got the keys %+v, want 1", all)
	}
}

func TestHandler_LimitsScopesToTheCreators(t *testing.T) {
	r, _, admin := newAdminRig(t)
	reader := r.do(admin, "POST", keysPath, `{"name":"reader","scopes":["read","refresh"]}`).Made.Secret
	for method, path := range map[string]string{"GET": keysPath, "POST": keysPath, "DELETE": keysPath + "/x"} {
		if a := r.do("", method, path, ""); a.ResponseRecorder.Code != 401 || a.Code != string(problem.TokenMissing) {
			t.Errorf("%s without authentication: got %s", method, a.Body)
		}
		if a := r.do(reader, method, path, ""); a.ResponseRecorder.Code != 403 || a.Code != string(problem.InsufficientScope) {
			t.Errorf("%s with the scope read: got %s", method, a.Body)
		}
	}
	a := r.do(admin, "POST", keysPath, `{"name":"a","scopes":["read"]}`, "Sec-Fetch-Site", "cross-site")
	if a.ResponseRecorder.Code != 403 || a.Code != "cross-site" {
		t.Errorf("page of another site: got %s", a.Body)
	}
	if all := r.do(admin, "GET", keysPath, "").Keys; len(all) != 2 {
		t.Errorf("got the keys %+v, want 2", all)
	}
}

func TestHandler_KeyExpiresWithItsCreator(t *testing.T) {
	r, _, _ := newAdminRig(t)
	end := now.Add(time.Hour)
	_, brief := r.createKey("for an hour", end, "admin")
	if err := r.readLiveKeys(t.Context()); err != nil {
		t.Fatal(err)
	}
	for body, want := range map[string]time.Time{
		`{"name":"a","scopes":["admin"]}`:                  end,
		`{"name":"b","scopes":["read"],"expiresIn":"90d"}`: end,
		`{"name":"c","scopes":["read"],"expiresIn":"30m"}`: now.Add(30 * time.Minute),
	} {
		a := r.do(brief, "POST", keysPath, body)
		if made := a.Made.Key; a.ResponseRecorder.Code != 201 || made.ExpiresAt == nil || !made.ExpiresAt.Equal(want) {
			t.Errorf("%s: got %d %s, want 201 with the expiry of its creator", body, a.ResponseRecorder.Code, a.Body)
		}
		entries, err := r.db.Audit(t.Context(), 1)
		if err != nil || !strings.Contains(string(entries[0].After), `"expiresAt":"`+want.Format(time.RFC3339)) {
			t.Errorf("%s: %+v, %v", body, entries, err)
		}
	}
}

// revokingStore lets another process revoke every key right after it is inserted.
type revokingStore struct{ KeyStore }

func (s revokingStore) AddKey(ctx context.Context, k store.APIKey, e store.AuditEntry) error {
	if err := s.KeyStore.AddKey(ctx, k, e); err != nil {
		return err
	}
	return s.RevokeKey(ctx, k.ID, "another", now, auditEntry(actionRevoke, "another", now, nil, &k))
}

func TestHandler_KeyRevokedAtOnceIsInvalid(t *testing.T) {
	r, _, admin := newAdminRig(t)
	r.store = revokingStore{r.db}
	a := r.do(admin, "POST", keysPath, `{"name":"a","scopes":["admin"]}`)
	if a.ResponseRecorder.Code != 201 {
		t.Fatalf("got %d %s, want 201", a.ResponseRecorder.Code, a.Body)
	}
	r.rejects("revoked meanwhile", 401, problem.TokenInvalid, "Bearer "+a.Made.Secret)
}

func TestHandler_HidesDatabaseErrors(t *testing.T) {
	r, _, admin := newAdminRig(t)
	if err := r.db.Close(); err != nil {
		t.Fatal(err)
	}
	for method, path := range map[string]string{"GET": keysPath, "POST": keysPath, "DELETE": keysPath + "/x"} {
		a := r.do(admin, method, path, `{"name":"a","scopes":["read"]}`)
		if a.ResponseRecorder.Code != 503 || a.Code != "store-unavailable" || a.Header().Get("Retry-After") != "1" || strings.Contains(a.Detail, "closed") {
			t.Errorf("%s: got %d %s, want 503 store-unavailable without details", method, a.ResponseRecorder.Code, a.Body)
		}
	}
	if !strings.Contains(r.log.String(), "closed") {
		t.Error(r.log.String())
	}
}
