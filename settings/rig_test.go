package settings

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/schemas/openapitest"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/sqlite"
)

// rig serves the settings of two sources from an in-memory database.
type rig struct {
	*testing.T
	*Settings
	handler     http.Handler
	readLimiter ReadLimiter
	log         bytes.Buffer
	// The function `before` is called before each write of a setting; nil: it is not called. Its
	// error fails the write.
	before func() error
}

// hookedStore calls rig.before between the read of a setting and its write. A test can thus store a
// concurrent change, or fail the write.
type hookedStore struct {
	*sqlite.Store
	rig *rig
}

func (s hookedStore) ChangeSetting(ctx context.Context, setting store.Setting, entry store.AuditEntry) error {
	if s.rig.before != nil {
		if err := s.rig.before(); err != nil {
			return err
		}
	}
	return s.Store.ChangeSetting(ctx, setting, entry)
}

func second(limit, target, reserve int) limiter.Policy {
	return limiter.Policy{Name: "second", Limit: limit, Window: limiter.Window(time.Second), Target: target, HighReserve: limiter.Reserve{Calls: reserve}}
}

func newRig(t *testing.T) *rig {
	t.Helper()
	db, err := sqlite.Open(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	r := &rig{T: t}
	nexon, other := limiter.DefaultConfig(), limiter.DefaultConfig()
	nexon.Policies = []limiter.Policy{
		second(500, 450, 100),
		{Name: "day", Limit: 20_000_000, Window: limiter.Day, TimeZone: "Asia/Seoul", HighReserve: limiter.Reserve{Rate: 25}},
	}
	other.Policies = []limiter.Policy{second(50, 0, 0)}
	r.Settings = New(hookedStore{db, r}, map[string]Source{"nexon": {nexon, prefetchOf("character")}, "other": {other, prefetchOf()}})
	r.readLimiter = func(_ context.Context, source string) (any, error) {
		return limiter.View{Source: source, State: "unused", Policies: []limiter.PolicyView{}, Processes: []limiter.ProcessView{}}, nil
	}
	r.handler = r.Handler(func(ctx context.Context, source string) (any, error) { return r.readLimiter(ctx, source) }, func(*http.Request) string { return "somebody" }, slog.New(slog.NewTextHandler(&r.log, nil)))

	return r
}

// prefetchOf returns a function for Source.Prefetch. The function returns the given facets, each
// with the intervals 1h (hot), 6h (warm) and 24h (cold), changed by the override. It returns an
// error if the changed intervals do not increase from hot to cold.
func prefetchOf(facets ...string) func(PrefetchOverride) (Prefetch, error) {
	return func(o PrefetchOverride) (Prefetch, error) {
		p := Prefetch{Enabled: o.Enabled == nil || *o.Enabled, Facets: map[string]PrefetchFacet{}}
		for _, name := range facets {
			f := PrefetchFacet{Mode: "tiers", Hot: hour, Warm: 6 * hour, Cold: 24 * hour, MinInterval: hour / 2, MaxInterval: 168 * hour}
			change := o.Facets[name]
			for to, from := range map[*Duration]*Duration{&f.Hot: change.Hot, &f.Warm: change.Warm, &f.Cold: change.Cold, &f.MinInterval: change.MinInterval, &f.MaxInterval: change.MaxInterval} {
				if from != nil {
					*to = *from
				}
			}
			if change.Active != nil {
				f.Active = *change.Active
			}
			if f.Hot > f.Warm || f.Warm > f.Cold {
				return p, errors.New("tiers: they must rise")
			}
			p.Facets[name] = f
		}
		for name := range o.Facets {
			if _, known := p.Facets[name]; !known {
				return p, fmt.Errorf("facets.%s: there is no such facet", name)
			}
		}
		return p, nil
	}
}

const hour = Duration(time.Hour)

type response struct {
	StatusCode int         `json:"-"`
	Header     http.Header `json:"-"`
	text       string
	State
	Code     string  `json:"code"`
	Detail   string  `json:"detail"`
	Settings []State `json:"settings"`
	Entries  []Entry `json:"entries"`
}

// do sends a request and checks the response against the OpenAPI document. It checks the
// request body too if the request succeeds.
func (r *rig) do(method, target, body string, headers ...string) response {
	r.Helper()
	req := httptest.NewRequestWithContext(r.Context(), method, target, strings.NewReader(body))
	req.RemoteAddr = "192.0.2.7:1234"
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	rec := httptest.NewRecorder()
	r.handler.ServeHTTP(rec, req)
	a := response{StatusCode: rec.Code, Header: rec.Header(), text: rec.Body.String()}
	if err := json.Unmarshal(rec.Body.Bytes(), &a); err != nil {
		r.Fatalf("%s %s: %s: %v", method, target, a.text, err)
	}
	want := "application/json"
	if a.StatusCode >= 400 {
		want = "application/problem+json"
	}
	if a.Header.Get("Content-Type") != want || a.Header.Get("Cache-Control") != "no-store" {
		r.Errorf("%s %s: headers %v", method, target, a.Header)
	}
	openapitest.Check(r, openapitest.Exchange{Request: req, Body: body, Status: a.StatusCode, Header: a.Header, Response: a.text})
	return a
}

func (r *rig) get() response {
	r.Helper()
	return r.do(http.MethodGet, "/admin/v1/settings/nexon", "")
}

func (r *rig) patch(body string, headers ...string) response {
	r.Helper()
	return r.do(http.MethodPatch, "/admin/v1/settings/nexon", body, headers...)
}

func (r *rig) override(a response) string {
	r.Helper()
	text, err := json.Marshal(a.Override)
	if err != nil {
		r.Fatal(err)
	}
	return string(text)
}

var errDown = errors.New("connection refused to postgres://secret@db")
