package entities

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/schemas/openapitest"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/prefetched"
	"github.com/freshet/freshet/store/sqlite"
)

var errDown = errors.New("connection refused to postgres://secret@db")

// start is the fixed time of the rig's clock.
var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// rig is an Entities with two sources on an in-memory database. The facets a and b of the source
// nexon are prefetched, its facet c is not.
type rig struct {
	*testing.T
	*Entities
	handler  http.Handler
	db       *sqlite.Store
	down     bool
	filled   int // number of audit entries that the function fill has written
	notified []string
	log      bytes.Buffer
}

// failingStore is a store in which registrations and audit entries fail while rig.down is set.
type failingStore struct {
	*sqlite.Store
	rig *rig
}

func (s failingStore) RegisterEntities(ctx context.Context, all []prefetched.RegisteredEntity) (int, error) {
	if s.rig.down {
		return 0, errDown
	}
	return s.Store.RegisterEntities(ctx, all)
}

func (s failingStore) WriteAudit(ctx context.Context, entry store.AuditEntry) error {
	if s.rig.down {
		return errDown
	}
	return s.Store.WriteAudit(ctx, entry)
}

// fakeSchedule implements Schedule. Its value is the list of prefetched facets. The first due time
// is an hour after the registration, plus a second for each byte of the key.
type fakeSchedule []string

func (f fakeSchedule) Prefetches(facet string) bool { return slices.Contains(f, facet) }

func (f fakeSchedule) FirstDue(r prefetched.RegisteredEntity, now time.Time) (time.Time, bool) {
	return now.Add(time.Hour + time.Duration(len(r.Entity.Key))*time.Second), f.Prefetches(r.Entity.Facet)
}

// ReadsMakeDue returns true for the tenth read of a cold entity.
func (f fakeSchedule) ReadsMakeDue(r prefetched.RegisteredEntity, before, after float64) bool {
	return r.Tier == prefetched.Cold && before < 10 && after >= 10
}

// keyRules implements Keys, and rejects keys with a space.
type keyRules struct{}

func (keyRules) CheckKey(_, key string) error {
	if strings.Contains(key, " ") {
		return errors.New("the key does not match the pattern")
	}
	return nil
}

func (r *rig) WakeAt(_ context.Context, source string, at time.Time) {
	r.notified = append(r.notified, fmt.Sprintf("%s in %v", source, at.Sub(start)))
}

func (r *rig) Invalidate(_ context.Context, e schemas.Entity) {
	r.notified = append(r.notified, "forget "+e.String())
}

func newRig(t *testing.T) *rig {
	t.Helper()
	db, err := sqlite.Open(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	r := &rig{T: t, db: db}
	r.Entities = New(Deps{
		Store: failingStore{db, r}, States: db, Notifier: r, Actor: func(*http.Request) string { return "somebody" }, Now: func() time.Time { return start },
		Log: slog.New(slog.NewTextHandler(&r.log, nil)),
		Sources: map[string]Source{
			"nexon": {Facets: map[string][]string{"a": {"ocid", "p"}, "b": nil, "c": nil}, Keys: keyRules{}, Fold: foldKey, Schedule: fakeSchedule{"a", "b"}},
			"other": {Facets: map[string][]string{"a": nil}, Keys: keyRules{}, Fold: foldKey, Schedule: fakeSchedule{"a"}},
		},
	})
	r.handler = r.Handler()
	return r
}

type answer struct {
	status int
	text   string
	RegisterResult
	Entities []Entity        `json:"entities"`
	Next     *string         `json:"next"`
	Count    int             `json:"count"`
	Exact    bool            `json:"exact"`
	Changed  int             `json:"changed"`
	Done     bool            `json:"done"`
	Deleted  bool            `json:"deleted"`
	Code     string          `json:"code"`
	Detail   string          `json:"detail"`
	Errors   []problem.Error `json:"errors"`
}

// do sends a request. It checks the request and the response against the OpenAPI document.
func (r *rig) do(method, target, body string) answer {
	r.Helper()
	req := httptest.NewRequestWithContext(r.Context(), method, "/admin/v1"+target, strings.NewReader(body))
	req.Header.Set("Content-Type", "application/json")
	rec := httptest.NewRecorder()
	r.handler.ServeHTTP(rec, req)
	a := answer{status: rec.Code, text: rec.Body.String()}
	if err := json.Unmarshal(rec.Body.Bytes(), &a); err != nil {
		r.Fatalf("%s %s: %d %s: %v", method, target, rec.Code, a.text, err)
	}
	openapitest.Check(r.T, openapitest.Exchange{Request: req, Body: body, Status: a.status, Header: rec.Header(), Response: a.text})
	return a
}

// ok sends a request as do does, and fails the test unless the request succeeds.
func (r *rig) ok(method, target, body string) answer {
	r.Helper()
	a := r.do(method, target, body)
	if a.status != http.StatusOK {
		r.Fatalf("%s %s: %d %s", method, target, a.status, a.text)
	}
	return a
}

// put registers entities of a facet. Each argument is the JSON object of one entity.
func (r *rig) put(facet string, entities ...string) answer {
	r.Helper()
	return r.ok(http.MethodPost, "/entities", `{"source":"nexon","facet":"`+facet+`","entities":[`+strings.Join(entities, ",")+`]}`)
}

// wantList reads all pages of the list, and fails the test unless they contain exactly these
// entities. An entity is written as facet/key.
func (r *rig) wantList(query string, want ...string) {
	r.Helper()
	var got []string
	for after := ""; ; {
		a := r.ok(http.MethodGet, "/entities?"+query+"&after="+after, "")
		for _, e := range a.Entities {
			got = append(got, e.Facet+"/"+e.Key)
		}
		if a.Next == nil {
			break
		}
		after = *a.Next
	}
	if !slices.Equal(got, want) {
		r.Errorf("%s lists %q, want %q", query, got, want)
	}
	query = strings.Split(query, "limit=")[0]
	if n := r.ok(http.MethodGet, "/entities/count?"+strings.TrimRight(query, "&"), ""); n.Count != len(want) || !n.Exact {
		r.Errorf("%s counts %s, want %d", query, n.text, len(want))
	}
}

// audit returns the audit entries that were written after fill, the oldest first.
func (r *rig) audit() (all []string) {
	r.Helper()
	entries, err := r.db.Audit(r.Context(), 100)
	if err != nil {
		r.Fatal(err)
	}
	for _, e := range slices.Backward(entries) {
		all = append(all, fmt.Sprintf("%s %s %s %s", e.Actor, e.Action, e.Source, e.After))
	}
	return all[r.filled:]
}

// wantProblem fails the test unless the request is rejected with this status and problem code, and
// the problem contains these words.
func (r *rig) wantProblem(status int, code, words, method, target, body string) {
	r.Helper()
	a := r.do(method, target, body)
	if a.status != status || a.Code != code || !strings.Contains(a.Detail, words) {
		r.Errorf("%s %s %.200s: %d %s", method, target, body, a.status, a.text)
	}
}

// newForeign returns a request that a browser would send from another site.
func newForeign(ctx context.Context, path, body string) *http.Request {
	req := httptest.NewRequestWithContext(ctx, http.MethodPost, path, strings.NewReader(body))
	req.Header.Set("Sec-Fetch-Site", "cross-site")
	return req
}

func (r *rig) serve(req *http.Request) int {
	rec := httptest.NewRecorder()
	r.handler.ServeHTTP(rec, req)
	return rec.Code
}

// foldKey folds the keys of facet b to lower case.
func foldKey(facet, key string) string {
	if facet == "b" {
		return strings.ToLower(key)
	}
	return key
}
