package console

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/collection"
	"github.com/freshet/freshet/dlq"
	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/settings"
	"github.com/freshet/freshet/status"
	"github.com/freshet/freshet/status/clients"
	"github.com/freshet/freshet/status/find"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/deadletters"
	"github.com/freshet/freshet/webhooks"
)

type (
	fakeOverview      rig
	fakeEntities      rig
	fakeStore         rig
	fakeItems         rig
	fakeClients       rig
	fakeRuns          rig
	fakeLimits        rig
	fakeDLQ           rig
	fakeGuard         rig
	fakeClientLimiter rig
	fakeScenarios     rig
)

func (f *fakeOverview) Lanes(source string) []LaneLag { return f.lanes[source] }
func (f *fakeOverview) Reads() []status.ReadStats     { return f.reads }
func (f *fakeOverview) History(name string, after int64) status.History {
	return testHistory(name, f.Clock(), after)
}

func (f *fakeOverview) Processes(context.Context) (status.Processes, error) {
	return status.Processes{At: f.Clock(), All: f.running}, f.readErr
}

func (f *fakeOverview) Calls(context.Context) (status.Calls, error) {
	return f.upstreamCalls, f.readErr
}

func (f *fakeOverview) Credentials(context.Context) ([]status.Credential, error) {
	return nil, f.readErr
}

func (f *fakeOverview) Hooks(context.Context) ([]webhooks.Deliveries, error) {
	return []webhooks.Deliveries{
		{Source: "nexon", Name: "changes", Last: testNow.Add(-90 * time.Second), Results: map[string]int64{"accepted": 12_345, "bad-signature": 3, "unknown-key": 40, "held": 0}},
		{Source: "nexon", Name: "silent"},
		{Source: "other", Name: "unseen"},
	}, f.readErr
}

func (f *fakeClients) List(_ context.Context, after string) (clients.List, error) {
	f.clientQueries = append(f.clientQueries, after)
	return f.accounts, f.readErr
}

func (f *fakeClients) Shares(context.Context) (clients.Shares, error) {
	return f.shareList, f.readErr
}

func (f *fakeClients) Client(_ context.Context, name string) (clients.Client, bool, error) {
	f.clientQueries = append(f.clientQueries, name)
	return f.account, f.account.Client == name, f.readErr
}

func (f *fakeItems) Ages(_ context.Context, source string) (find.Ages, error) {
	return f.entityAges[source], f.readErr
}

// Collection returns the collection of the rig, and records the parameter l.
func (f *fakeItems) Collection(_ context.Context, _ schemas.Entity, l collection.Listing) (collection.State, []collection.Item, error) {
	f.listings = append(f.listings, l)
	return f.collection, f.items[:min(l.Limit, len(f.items))], f.readErr
}

func (f *fakeItems) Item(_ context.Context, _ schemas.Entity, id string) (*collection.Item, error) {
	for _, i := range f.items {
		if i.ID == id {
			i.Content = []byte(`{"text":"the content"}`)
			return &i, f.readErr
		}
	}
	return nil, f.readErr
}

// Find returns the items of the rig that the client may see, and records the query.
func (f *fakeItems) Find(_ context.Context, q find.ItemQuery, visible func(schemas.Entity, string) bool) (find.ItemPage, error) {
	f.queries = append(f.queries, q)
	page := find.ItemPage{Items: []find.Item{}, Next: f.found.Next}
	for _, item := range f.found.Items {
		if visible(schemas.Entity{Source: q.Source, Facet: q.Facet, Key: item.Key}, "") {
			page.Items = append(page.Items, item)
		}
	}
	return page, errors.Join(f.readErr, f.findErr)
}

func (f *fakeOverview) Dependencies(context.Context) []Dependency { return f.dependencies }
func (f *fakeGuard) AuthRequired() bool                           { return f.loginRequired }
func (f *fakeScenarios) Current() string                          { return f.scenario }
func (f *fakeEntities) CheckKey(e schemas.Entity) error {
	return errors.Join(f.keyError, f.keyErrors[e.Key])
}

func (f *fakeDLQ) Jobs(ctx context.Context) ([]deadletters.Job, error) {
	f.waitForParallel(ctx)
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]deadletters.Job{}, f.jobs...), f.readErr
}

func (f *fakeDLQ) Job(_ context.Context, id string) (deadletters.Job, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, j := range f.jobs {
		if j.ID == id {
			return j, f.readErr
		}
	}
	return deadletters.Job{}, errors.Join(f.readErr, deadletters.ErrJobNotFound)
}

func (f *fakeClientLimiter) AllowRequests(client string, n int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.counted = append(f.counted, slices.Repeat([]string{client}, n)...)
	if f.requestLimit > 0 && len(f.counted) > f.requestLimit {
		p := problem.New(http.StatusTooManyRequests, problem.TooManyRequests, "This is more than they may.")
		p.After = 90 * time.Second
		return p
	}
	return nil
}

func (f *fakeEntities) Entity(_ context.Context, e schemas.Entity, c access.Client) (Entity, error) {
	known := f.entity
	known.Entity = e
	if !f.Sees(c, e, known.State.Visibility) {
		known = Entity{Entity: e}
	}
	return known, f.readErr
}

// Sees returns true if the client may see content with the given visibility label. For a key that
// begins with "hr." the client must also be allowed to see content with the label hr.
func (*fakeEntities) Sees(c access.Client, e schemas.Entity, visibility string) bool {
	return c.Sees(visibility) && (!strings.HasPrefix(e.Key, "hr.") || c.Sees("hr"))
}

func (f *fakeEntities) Refresh(_ context.Context, all []schemas.Entity, _ access.Client) ([]RefreshResult, error) {
	f.refreshed = append(f.refreshed, all...)
	results := make([]RefreshResult, len(all))
	for i, e := range all {
		results[i] = RefreshResult{Queued: e.Key != "cooling", Message: f.message}
	}
	return results, f.readErr
}

func (f *fakeStore) WriteAudit(_ context.Context, entry store.AuditEntry) error {
	if f.readErr == nil {
		f.auditEntries = append(f.auditEntries, entry)
	}
	return f.readErr
}

func (f *fakeStore) States(_ context.Context, entities []schemas.Entity) ([]store.State, error) {
	states := make([]store.State, len(entities))
	for i, e := range entities {
		states[i] = store.State{Entity: e, CheckedAt: f.checkedAt[e.Key]}
		if !states[i].CheckedAt.IsZero() {
			states[i].Version = 1
		}
	}
	return states, f.readErr
}

func (f *fakeLimits) View(_ context.Context, source string) (limiter.View, error) {
	f.mu.Lock()
	f.viewCalls++
	view := f.view
	f.mu.Unlock()
	if view != nil {
		return view(source), f.readErr
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.views[source], f.readErr
}

func (f *fakeLimits) Get(_ context.Context, source string) (settings.State, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.states[source], f.readErr
}

func (f *fakeLimits) Change(_ context.Context, o settings.ChangeRequest, p settings.Patch) (settings.State, error) {
	f.orders, f.patches = append(f.orders, o), append(f.patches, p)
	return f.states[o.Source], errors.Join(f.readErr, f.actionErr)
}

func (f *fakeLimits) Stop(_ context.Context, o settings.ChangeRequest) (settings.State, error) {
	f.orders = append(f.orders, o)
	return f.states[o.Source], errors.Join(f.readErr, f.actionErr)
}

func (f *fakeLimits) Resume(ctx context.Context, o settings.ChangeRequest) (settings.State, error) {
	return f.Stop(ctx, o)
}

func (f *fakeLimits) Audit(_ context.Context, limit int) ([]settings.Entry, error) {
	return f.audit[:min(limit, len(f.audit))], f.readErr
}

func (f *fakeDLQ) List(ctx context.Context, filter deadletters.Filter, _ deadletters.DeadLetter, limit int) ([]deadletters.DeadLetter, error) {
	f.waitForParallel(ctx)
	f.filters = append(f.filters, filter)
	return f.list[:min(limit, len(f.list))], f.readErr
}

func (f *fakeDLQ) Groups(ctx context.Context, filter deadletters.Filter) ([]deadletters.Group, error) {
	f.waitForParallel(ctx)
	if filter.Source != "nexon" {
		return nil, f.readErr
	}
	groups, of := slices.Clone(f.groups), deadletters.Count{}
	for _, g := range groups {
		of.All += g.Count
	}
	for i := range groups {
		groups[i].Totals.All = of.All
	}
	return groups, errors.Join(f.readErr, f.countErr)
}

// waitForParallel blocks each read until four reads have begun, so that a test can check that the
// reads run in parallel. It does nothing if `barrier` is nil.
func (f *fakeDLQ) waitForParallel(ctx context.Context) {
	if f.barrier == nil {
		return
	}
	if f.arrived.Add(1) == 4 {
		close(f.barrier)
	}
	select {
	case <-f.barrier:
	case <-ctx.Done():
	}
}

func (f *fakeDLQ) DeadLetterHours(context.Context, deadletters.Filter) ([]deadletters.Group, error) {
	return f.hours, f.readErr
}

func (f *fakeDLQ) DeadLettersOfJob(context.Context, string, string, int) ([]deadletters.DeadLetter, error) {
	return f.list[:min(3, len(f.list))], f.readErr
}

func (f *fakeStore) Statuses(_ context.Context, entities []schemas.Entity) ([]store.Status, error) {
	all := make([]store.Status, len(entities))
	for i, e := range entities {
		all[i] = f.failures[e.Key]
	}
	return all, f.readErr
}

func (f *fakeDLQ) Show(context.Context, deadletters.ID) (schemas.DeadLetter, error) {
	return f.shown, f.readErr
}

func (f *fakeDLQ) Plan(_ context.Context, o dlq.JobSpec) (dlq.Plan, error) {
	f.filters = append(f.filters, o.Filter)
	return f.planned, f.readErr
}

func (f *fakeDLQ) StartJob(_ context.Context, o dlq.JobSpec, actor string) (deadletters.Job, error) {
	f.ordered, f.actors = append(f.ordered, o), append(f.actors, actor)
	return deadletters.Job{ID: "job-1"}, f.readErr
}

func (f *fakeDLQ) SetJobState(_ context.Context, id string, to deadletters.JobState, actor string) (deadletters.Job, error) {
	f.switched, f.actors = append(f.switched, to), append(f.actors, actor)
	return deadletters.Job{ID: id}, f.readErr
}

func (f *fakeScenarios) List() []FaultScenario {
	return []FaultScenario{
		{"fair", "Fair", "The upstream answers as it should."},
		{"storm", "429 storm", "It refuses calls for their number: watch the backoff on the limiter page."},
		{"outage", "Outage", "It answers 503: the source is stopped and probed, and retries wait."},
		{"slow", "Slow", "It takes seconds: lanes fall behind."},
		{"maintenance", "Maintenance", "It says that it is closed: calls stop until it opens."},
	}
}

func (f *fakeScenarios) Set(_ context.Context, name string) error {
	f.scenario = name
	return f.readErr
}

// Authenticate accepts any list of scopes as a token: the token "inspect,refresh" has these two
// scopes.
func (f *fakeGuard) Authenticate(r *http.Request, address string) (access.Client, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.identified++
	if f.revoked {
		return access.Client{}, problem.New(http.StatusUnauthorized, problem.TokenExpired, "The API key or token has expired. Renew it.")
	}
	if !f.loginRequired && r.Header.Get("Sec-Fetch-Site") == "cross-site" {
		return access.Client{}, problem.New(http.StatusForbidden, problem.CrossSite, "It does not answer pages of other sites.")
	}
	if !f.loginRequired {
		if r.Host == "evil.example" {
			return access.Client{}, problem.New(http.StatusMisdirectedRequest, problem.Misdirected, "By this name it answers nothing.")
		}
		return access.Client{Name: "unauthenticated@" + address, Scopes: []access.Scope{access.Admin}}, nil
	}
	_, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if token == "" || token == "wrong" {
		return access.Client{}, problem.New(http.StatusUnauthorized, problem.TokenInvalid, "The API key or token does not hold. Get another one.")
	}
	c := access.Client{Name: "key:1 " + token, Expires: f.expires}
	if token == "admin" {
		c.Name = adminToken
	}
	for s := range strings.SplitSeq(token, ",") {
		c.Scopes = append(c.Scopes, access.Scope(s))
	}
	return c, nil
}

var errBroken = errors.New("it is broken")
