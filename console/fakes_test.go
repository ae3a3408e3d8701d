package console

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/dlq"
	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/settings"
	"github.com/freshet/freshet/store"
)

type (
	fakeNow     rig
	fakeKnown   rig
	fakeAudit   rig
	fakeLimits  rig
	fakeLetters rig
	fakeGuard   rig
	fakeMeters  rig
	fakeWeather rig
)

func (f *fakeNow) Lanes(source string) []LaneLag             { return f.lanes[source] }
func (f *fakeNow) Reads() []ReadStats                        { return f.reads }
func (f *fakeNow) Dependencies(context.Context) []Dependency { return f.depends }
func (f *fakeGuard) AuthRequired() bool                      { return f.asks }
func (f *fakeWeather) Current() string                       { return f.weather }
func (f *fakeKnown) CheckKey(e schemas.Entity) error {
	return errors.Join(f.keyWrong, f.keyWrongs[e.Key])
}

func (f *fakeLetters) Jobs(ctx context.Context) ([]store.DLQJob, error) {
	f.meet(ctx)
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]store.DLQJob{}, f.jobs...), f.broken
}

func (f *fakeLetters) Job(_ context.Context, id string) (store.DLQJob, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, j := range f.jobs {
		if j.ID == id {
			return j, f.broken
		}
	}
	return store.DLQJob{}, errors.Join(f.broken, store.ErrJobNotFound)
}

func (f *fakeMeters) AllowRequests(client string, n int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.counted = append(f.counted, slices.Repeat([]string{client}, n)...)
	if f.most > 0 && len(f.counted) > f.most {
		p := problem.New(http.StatusTooManyRequests, "too-many-requests", "This is more than they may.")
		p.After = 90 * time.Second
		return p
	}
	return nil
}

func (f *fakeKnown) Entity(_ context.Context, e schemas.Entity, c access.Client) (Entity, error) {
	known := f.entity
	known.Entity = e
	if !f.Sees(c, e, known.State.Visibility) {
		known = Entity{Entity: e}
	}
	return known, f.broken
}

// Sees limits the keys that begin with "hr." to the visibility hr.
func (*fakeKnown) Sees(c access.Client, e schemas.Entity, visibility string) bool {
	return c.Sees(visibility) && (!strings.HasPrefix(e.Key, "hr.") || c.Sees("hr"))
}

func (f *fakeKnown) Refresh(_ context.Context, all []schemas.Entity, _ access.Client) ([]RefreshResult, error) {
	f.refreshed = append(f.refreshed, all...)
	results := make([]RefreshResult, len(all))
	for i, e := range all {
		results[i] = RefreshResult{Queued: e.Key != "cooling", Message: f.told}
	}
	return results, f.broken
}

func (f *fakeAudit) WriteAudit(_ context.Context, entry store.AuditEntry) error {
	if f.broken == nil {
		f.noted = append(f.noted, entry)
	}
	return f.broken
}

func (f *fakeLimits) View(_ context.Context, source string) (limiter.View, error) {
	f.mu.Lock()
	f.looks++
	view := f.view
	f.mu.Unlock()
	if view != nil {
		return view(source), f.broken
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.views[source], f.broken
}

func (f *fakeLimits) Get(_ context.Context, source string) (settings.State, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.states[source], f.broken
}

func (f *fakeLimits) Change(_ context.Context, o settings.ChangeRequest, p settings.Patch) (settings.State, error) {
	f.orders, f.patches = append(f.orders, o), append(f.patches, p)
	return f.states[o.Source], errors.Join(f.broken, f.refusing)
}

func (f *fakeLimits) Stop(_ context.Context, o settings.ChangeRequest) (settings.State, error) {
	f.orders = append(f.orders, o)
	return f.states[o.Source], errors.Join(f.broken, f.refusing)
}

func (f *fakeLimits) Resume(ctx context.Context, o settings.ChangeRequest) (settings.State, error) {
	return f.Stop(ctx, o)
}

func (f *fakeLimits) Audit(_ context.Context, limit int) ([]settings.Entry, error) {
	return f.audit[:min(limit, len(f.audit))], f.broken
}

func (f *fakeLetters) List(ctx context.Context, filter store.DeadLetterFilter, _ store.DeadLetter, limit int) ([]store.DeadLetter, error) {
	f.meet(ctx)
	f.filters = append(f.filters, filter)
	return f.list[:min(limit, len(f.list))], f.broken
}

func (f *fakeLetters) Groups(ctx context.Context, filter store.DeadLetterFilter) ([]store.DeadLetterGroup, error) {
	f.meet(ctx)
	if filter.Source != "nexon" {
		return nil, f.broken
	}
	groups, of := slices.Clone(f.groups), store.DeadLetterCount{}
	for _, g := range groups {
		of.All += g.Count
	}
	for i := range groups {
		groups[i].Totals.All = of.All
	}
	return groups, errors.Join(f.broken, f.uncounted)
}

// meet waits until as many of the reads of letters have begun as are to go on together.
func (f *fakeLetters) meet(ctx context.Context) {
	if f.together == nil {
		return
	}
	if f.met.Add(1) == 4 {
		close(f.together)
	}
	select {
	case <-f.together:
	case <-ctx.Done():
	}
}

func (f *fakeLetters) Show(context.Context, store.DeadLetterID) (schemas.DeadLetter, error) {
	return f.shown, f.broken
}

func (f *fakeLetters) Plan(_ context.Context, o dlq.JobSpec) (dlq.Plan, error) {
	f.filters = append(f.filters, o.Filter)
	p := f.planned
	p.Groups = f.groups
	return p, f.broken
}

func (f *fakeLetters) StartJob(_ context.Context, o dlq.JobSpec, actor string) (store.DLQJob, error) {
	f.ordered, f.actors = append(f.ordered, o), append(f.actors, actor)
	return store.DLQJob{ID: "job-1"}, f.broken
}

func (f *fakeLetters) SetJobState(_ context.Context, id string, to store.JobState, actor string) (store.DLQJob, error) {
	f.switched, f.actors = append(f.switched, to), append(f.actors, actor)
	return store.DLQJob{ID: id}, f.broken
}

func (f *fakeWeather) List() []FaultScenario {
	return []FaultScenario{
		{"fair", "Fair", "The upstream answers as it should."},
		{"storm", "429 storm", "It refuses calls for their number: watch the brake on the limiter page."},
		{"outage", "Outage", "It answers 503: the source is stopped and probed, and retries wait."},
		{"slow", "Slow", "It takes seconds: lanes fall behind."},
		{"maintenance", "Maintenance", "It says that it is closed: calls stop until it opens."},
	}
}

func (f *fakeWeather) Set(_ context.Context, name string) error {
	f.weather = name
	return f.broken
}

// Authenticate knows tokens by their scopes: "inspect,refresh" is a token with both.
func (f *fakeGuard) Authenticate(r *http.Request, address string) (access.Client, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.identified++
	if f.revoked {
		return access.Client{}, problem.New(http.StatusUnauthorized, "TOKEN_EXPIRED", "The API key or token has expired. Renew it.")
	}
	if !f.asks && r.Header.Get("Sec-Fetch-Site") == "cross-site" {
		return access.Client{}, problem.New(http.StatusForbidden, "cross-site", "It does not answer pages of other sites.")
	}
	if !f.asks {
		if r.Host == "evil.example" {
			return access.Client{}, problem.New(http.StatusMisdirectedRequest, "misdirected", "By this name it answers nothing.")
		}
		return access.Client{Name: "unauthenticated@" + address, Scopes: []access.Scope{access.Admin}}, nil
	}
	_, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if token == "" || token == "wrong" {
		return access.Client{}, problem.New(http.StatusUnauthorized, "INVALID_TOKEN", "The API key or token does not hold. Get another one.")
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
