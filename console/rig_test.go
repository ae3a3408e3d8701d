package console

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/html"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/letters"
	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/settings"
	"github.com/freshet/freshet/store"
)

// then is when everything in the tests happens.
var then = time.Date(2026, 1, 27, 12, 0, 30, 0, time.UTC)

// rig is an installation that says what a test wants.
type rig struct {
	t *testing.T
	*Console
	mu sync.Mutex

	lanes    map[string][]Lane
	sched    map[string]Scheduled
	reads    []Reads
	depends  []Dependency
	entity   Entity
	keyWrong error
	told     string
	views    map[string]limiter.View
	states   map[string]settings.State
	audit    []settings.Entry
	list     []store.Letter
	groups   []store.LetterGroup
	shown    schemas.DeadLetter
	planned  letters.Planned
	jobs     []store.LetterJob
	broken   error // of whatever is asked
	refusing error // of what is ordered
	// uncounted is why letters can't be counted. together, unless it is nil, is closed when
	// four reads of letters have begun; until then they wait.
	uncounted error
	together  chan struct{}
	met       atomic.Int32
	asks      bool      // who they are
	expires   time.Time // of a token
	revoked   bool      // whatever token there is
	weather   string
	looks     int
	most      int                              // requests that a client may make; 0: any number
	view      func(source string) limiter.View // instead of views

	// What was done.
	refreshed  []schemas.Entity
	orders     []settings.Order
	patches    []settings.Patch
	ordered    []letters.Order
	actors     []string
	filters    []store.LetterFilter
	switched   []store.JobState
	counted    []string // clients that made requests
	identified int
}

func newRig(t *testing.T, changes ...func(*Needs)) *rig {
	r := &rig{t: t, lanes: map[string][]Lane{}, sched: map[string]Scheduled{"github": restingSchedule(), "nexon": theSchedule()}, views: map[string]limiter.View{}, states: map[string]settings.State{}, weather: "fair"}
	for _, source := range []string{"github", "nexon"} {
		r.lanes[source] = []Lane{laneOf(schemas.High, 0, 0), laneOf(schemas.Low, 12_480, 35*time.Second)}
		r.states[source] = settings.State{Source: source, Configured: theQuota(), Effective: new(theQuota())}
		r.views[source] = theView(source, 0)
	}
	r.depends = []Dependency{{"Kafka", ""}, {"PostgreSQL", ""}, {"Redis", ""}}
	r.reads = []Reads{{"nexon", 9_120_551, 80_211, 3_012, 41, 11 * time.Minute, 52 * time.Minute}}
	needs := Needs{
		Sources: []string{"github", "nexon"}, Facets: map[string][]string{"github": {"repository", "user"}, "nexon": {"character"}},
		Now: (*fakeNow)(r), Known: (*fakeKnown)(r), Limits: (*fakeLimits)(r), Schedule: (*fakeSchedule)(r), Letters: (*fakeLetters)(r), Guard: (*fakeGuard)(r), Meters: (*fakeMeters)(r),
		Process: "query-1", Version: "v1.2.3", Clock: func() time.Time { return then }, Log: slog.New(slog.DiscardHandler),
	}
	for _, change := range changes {
		change(&needs)
	}
	if needs.Weather != nil {
		needs.Weather = (*fakeWeather)(r)
	}
	r.Console = New(needs)
	return r
}

// laneOf is a lane on which is worked.
func laneOf(l schemas.Lane, records int64, wait time.Duration) Lane {
	return Lane{Lane: l, Records: records, Wait: wait, Known: true, WaitKnown: records > 0}
}

// standing is a lane on which nobody has worked for so long.
func standing(l schemas.Lane, records int64, unworked time.Duration) Lane {
	return Lane{Lane: l, Records: records, Known: true, Unworked: unworked}
}

// weathered gives the rig its weather.
func weathered(n *Needs) { n.Weather = (*fakeWeather)(nil) }

func readOnly(n *Needs) { n.ReadOnly = true }

// renewed gives the rig a console that has not looked at anything yet.
func renewed(r *rig) *rig {
	r.Console = New(r.Needs)
	return r
}

func theQuota() settings.Quota {
	return settings.Quota{Policies: []settings.Policy{
		{Name: "second", Window: "1s", Limit: 500, Target: 450, HighReserve: limiter.Reserve{Calls: 100}},
		{Name: "day", Window: "day", TimeZone: "Asia/Seoul", Limit: 20_000_000, HighReserve: limiter.Reserve{Rate: 25}},
	}, LowCeilings: []limiter.Ceiling{{From: 19, To: 23, Rate: 150}}}
}

// theView is a limiter that flows; since is for how long its process has gone on.
func theView(source string, since time.Duration) limiter.View {
	at := then.Add(since)
	return limiter.View{
		Source: source, State: "flowing", At: at, Rate: 1, High: limiter.Share{PerSecond: 448}, Low: lowShare(),
		Policies: []limiter.PolicyView{
			{Name: "second", Window: "1s", Limit: 500, Target: 450, Left: 138, LeftForLow: 50},
			{Name: "day", Window: "day", Limit: 20_000_000, Used: new(int64(16_900_000)), Left: 3_100_000, LeftForLow: 2_290_000, ResetsAt: new(then.Add(9*time.Hour - 30*time.Second))},
		},
		Processes: []limiter.ProcessView{{
			Process: "worker-1", At: at, High: limiter.LaneView{Granted: int64(12 * since.Seconds())},
			Low: limiter.LaneView{Waiting: 212, OldestMS: 640, Why: "the policy second has no room before", Granted: int64(300 * since.Seconds())},
		}},
	}
}

// reply is an answer as it came.
type reply struct {
	status  int
	header  http.Header
	cookies []*http.Cookie
	body    string
}

func (r *rig) do(method, path string, form url.Values, headers ...string) reply {
	r.t.Helper()
	var body io.Reader
	if form != nil {
		body = strings.NewReader(form.Encode())
	}
	q := httptest.NewRequestWithContext(r.t.Context(), method, path, body)
	q.RemoteAddr = "192.0.2.7:4711"
	if form != nil {
		q.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for i := 0; i < len(headers); i += 2 {
		q.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	r.ServeHTTP(w, q)
	kept := http.Response{Header: w.Header()}
	return reply{w.Code, w.Header(), kept.Cookies(), w.Body.String()}
}

// page is an answer that was read as a document.
type document struct {
	status int
	header http.Header
	root   *html.Node
}

func (r *rig) open(method, path string, form url.Values, headers ...string) document {
	r.t.Helper()
	answer := r.do(method, path, form, headers...)
	root, err := html.Parse(strings.NewReader(answer.body))
	if err != nil {
		r.t.Fatal(err)
	}
	return document{answer.status, answer.header, root}
}

// linksTo counts the links that lead there.
func (d document) linksTo(path string) (n int) {
	d.each(func(e *html.Node) {
		if e.Data == "a" && attr(e, "href") == path {
			n++
		}
	})
	return n
}

// formOf is what the hidden fields of the form hold that leads there.
func (d document) formOf(action string) url.Values {
	form := url.Values{}
	d.each(func(n *html.Node) {
		if n.Data != "form" || attr(n, "action") != action || attr(n, "method") != "post" {
			return
		}
		for c := range n.Descendants() {
			if c.Data == "input" && attr(c, "type") == "hidden" {
				form.Set(attr(c, "name"), attr(c, "value"))
			}
		}
	})
	return form
}

func (r *rig) get(path string, headers ...string) document {
	return r.open("GET", path, nil, headers...)
}

// each calls f for all elements of the document.
func (d document) each(f func(n *html.Node)) {
	for n := range d.root.Descendants() {
		if n.Type == html.ElementNode {
			f(n)
		}
	}
}

func (d document) byID(id string) *html.Node {
	var found *html.Node
	d.each(func(n *html.Node) {
		if attr(n, "id") == id && found == nil {
			found = n
		}
	})
	return found
}

// says is the text of an element, its spaces made one.
func (d document) says(id string) string { return textOf(d.byID(id)) }

func (d document) text() string { return textOf(d.root) }

func textOf(n *html.Node) string {
	if n == nil {
		return "(there is no such element)"
	}
	var all strings.Builder
	for c := range n.Descendants() {
		if c.Type == html.TextNode {
			all.WriteString(c.Data + " ")
		}
	}
	return strings.Join(strings.Fields(all.String()), " ")
}

func attr(n *html.Node, name string) string {
	for _, a := range n.Attr {
		if a.Key == name {
			return a.Val
		}
	}
	return ""
}

type (
	fakeNow     rig
	fakeKnown   rig
	fakeLimits  rig
	fakeLetters rig
	fakeGuard   rig
	fakeMeters  rig
	fakeWeather rig
)

func (f *fakeNow) Lanes(source string) []Lane                { return f.lanes[source] }
func (f *fakeNow) Reads() []Reads                            { return f.reads }
func (f *fakeNow) Dependencies(context.Context) []Dependency { return f.depends }
func (f *fakeKnown) CheckKey(schemas.Entity) error           { return f.keyWrong }
func (f *fakeGuard) Required() bool                          { return f.asks }
func (f *fakeWeather) Now() string                           { return f.weather }
func (f *fakeLetters) Jobs(ctx context.Context) ([]store.LetterJob, error) {
	f.meet(ctx)
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]store.LetterJob{}, f.jobs...), f.broken
}

func (f *fakeLetters) Job(_ context.Context, id string) (store.LetterJob, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, j := range f.jobs {
		if j.ID == id {
			return j, f.broken
		}
	}
	return store.LetterJob{}, errors.Join(f.broken, store.ErrNoJob)
}

func (f *fakeMeters) Request(client string, n int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.counted = append(f.counted, client)
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

func (f *fakeKnown) Refresh(_ context.Context, e schemas.Entity, _ access.Client) (string, error) {
	f.refreshed = append(f.refreshed, e)
	return f.told, f.broken
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

func (f *fakeLimits) Change(_ context.Context, o settings.Order, p settings.Patch) (settings.State, error) {
	f.orders, f.patches = append(f.orders, o), append(f.patches, p)
	return f.states[o.Source], errors.Join(f.broken, f.refusing)
}

func (f *fakeLimits) Stop(_ context.Context, o settings.Order) (settings.State, error) {
	f.orders = append(f.orders, o)
	return f.states[o.Source], errors.Join(f.broken, f.refusing)
}

func (f *fakeLimits) Resume(ctx context.Context, o settings.Order) (settings.State, error) {
	return f.Stop(ctx, o)
}

func (f *fakeLimits) Audit(_ context.Context, limit int) ([]settings.Entry, error) {
	return f.audit[:min(limit, len(f.audit))], f.broken
}

func (f *fakeLetters) List(ctx context.Context, filter store.LetterFilter, _ store.Letter, limit int) ([]store.Letter, error) {
	f.meet(ctx)
	f.filters = append(f.filters, filter)
	return f.list[:min(limit, len(f.list))], f.broken
}

func (f *fakeLetters) Groups(ctx context.Context, filter store.LetterFilter) ([]store.LetterGroup, error) {
	f.meet(ctx)
	if filter.Source != "nexon" {
		return nil, f.broken
	}
	groups, of := slices.Clone(f.groups), store.LetterCount{}
	for _, g := range groups {
		of.All += g.Count
	}
	for i := range groups {
		groups[i].Of.All = of.All
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

func (f *fakeLetters) Show(context.Context, store.LetterID) (schemas.DeadLetter, error) {
	return f.shown, f.broken
}

func (f *fakeLetters) Plan(_ context.Context, o letters.Order) (letters.Planned, error) {
	f.filters = append(f.filters, o.Filter)
	p := f.planned
	p.Groups = f.groups
	return p, f.broken
}

func (f *fakeLetters) Start(_ context.Context, o letters.Order, actor string) (store.LetterJob, error) {
	f.ordered, f.actors = append(f.ordered, o), append(f.actors, actor)
	return store.LetterJob{ID: "job-1"}, f.broken
}

func (f *fakeLetters) Switch(_ context.Context, id string, to store.JobState, actor string) (store.LetterJob, error) {
	f.switched, f.actors = append(f.switched, to), append(f.actors, actor)
	return store.LetterJob{ID: id}, f.broken
}

func (f *fakeWeather) Kinds() []WeatherKind {
	return []WeatherKind{
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

// Identify knows tokens by their scopes: "inspect,refresh" is a token with both.
func (f *fakeGuard) Identify(r *http.Request, address string) (access.Client, error) {
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
