package console

import (
	"context"
	"html/template"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/settings"
	"github.com/freshet/freshet/status"
	"github.com/freshet/freshet/status/clients"
	"github.com/freshet/freshet/status/find"
)

const (
	root = "/console"
	// requestTimeout bounds the time that one HTTP request to the console may spend on reads and
	// changes in other services.
	requestTimeout = 5 * time.Second
	maxFormBytes   = 64 << 10
)

// contentSecurityPolicy is the Content-Security-Policy header of every page. It forbids inline
// scripts and styles, and no page contains any.
const contentSecurityPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// Console serves the operator pages below /console.
type Console struct {
	Deps
	mux         http.Handler
	pages       map[string]*template.Template
	sampler     *sampler
	viewers     viewers
	lastCalls   status.Cached[status.Calls]
	lastChanges status.Cached[[]settings.Entry] // newest audit entries
	shares      status.Cached[clients.Shares]
	ages        map[string]*status.Cached[find.Ages] // ages of the snapshots, by source
}

// New returns the console. It starts no goroutine until a page with live content is opened.
func New(deps Deps) *Console {
	c := &Console{Deps: deps, pages: parsePages(), sampler: newSampler(deps), viewers: viewers{byClient: map[string]int{}}}
	c.lastCalls.Read, c.lastCalls.Timeout, c.lastCalls.Clock, c.lastCalls.Log = deps.Cluster.Calls, sampleTimeout, deps.Clock, deps.Log
	c.lastChanges.Read = func(ctx context.Context) ([]settings.Entry, error) { return deps.Limits.Audit(ctx, maxMarks) }
	c.lastChanges.Timeout, c.lastChanges.Clock, c.lastChanges.Log = sampleTimeout, deps.Clock, deps.Log
	if deps.Clients != nil {
		c.shares.Read, c.shares.Timeout, c.shares.Clock, c.shares.Log = deps.Clients.Shares, sampleTimeout, deps.Clock, deps.Log
	}
	c.ages = map[string]*status.Cached[find.Ages]{}
	for _, source := range deps.Sources {
		c.ages[source] = &status.Cached[find.Ages]{Timeout: sampleTimeout, Clock: deps.Clock, Log: deps.Log, Read: func(ctx context.Context) (find.Ages, error) { return deps.Items.Ages(ctx, source) }}
	}
	foreign := http.NewCrossOriginProtection()
	foreign.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.reject(w, r, http.StatusForbidden, "A cross-site request is not allowed.")
	}))
	c.mux = foreign.Handler(c.routes())
	return c
}

// routes returns the handler of all paths. Each group of pages is a type of its own.
func (c *Console) routes() http.Handler {
	mux, users := http.NewServeMux(), &signIn{c}
	live, deadLetters, settings, entities := &livePages{c}, newDLQPages(c), &settingsPages{c}, &entityPages{c}
	for pattern, h := range map[string]pageHandler{
		"GET " + root:                                        live.overview,
		"GET " + root + "/queues":                            live.queues,
		"GET " + root + "/limiter":                           live.limiter,
		"GET " + root + "/schedule":                          live.schedule,
		"GET " + root + "/live":                              live.live,
		"GET " + root + "/lookup":                            entities.lookup,
		"GET " + root + "/dlq":                               deadLetters.dlqOverview,
		"GET " + root + "/dlq/plan":                          deadLetters.plan,
		"GET " + root + "/dlq/jobs/{id}":                     deadLetters.job,
		"GET " + root + "/dlq/{source}/{partition}/{offset}": deadLetters.deadLetter,
		"GET " + root + "/live/jobs/{id}":                    deadLetters.liveJob,
		"GET " + root + "/settings":                          settings.settings,
		"GET " + root + "/activity":                          settings.activity,
	} {
		mux.Handle(pattern, users.authorize(canView, h))
	}
	for name, h := range map[string]func(*Console, http.ResponseWriter, *http.Request, access.Client){
		"items": showItems, "collection": showCollection, "calls": showCalls, "processes": showProcesses, "clients": showClients, "clients/account": showClient,
		"runs": showRuns, "runs/{id}": showRun,
	} {
		mux.Handle("GET "+root+"/"+name, users.authorize(canView, func(w http.ResponseWriter, r *http.Request, client access.Client) { h(c, w, r, client) }))
	}
	for pattern, h := range map[string]pageHandler{
		"POST " + root + "/dlq/start":                deadLetters.start,
		"POST " + root + "/dlq/jobs/{id}/stop":       deadLetters.stopJob,
		"POST " + root + "/dlq/jobs/{id}/resume":     deadLetters.resumeJob,
		"POST " + root + "/settings/{source}":        settings.changeSettings,
		"POST " + root + "/settings/{source}/stop":   settings.stop,
		"POST " + root + "/settings/{source}/resume": settings.resume,
		"POST " + root + "/fault-scenario":           live.setFaultScenario,
		"POST " + root + "/runs/{id}/cancel":         changeRun(c, Runs.Cancel, "run-cancelled"),
		"POST " + root + "/runs/{id}/retry":          changeRun(c, Runs.Retry, "run-retried"),
	} {
		mux.Handle(pattern, users.authorize(canAct, h))
	}
	mux.Handle("POST "+root+"/lookup", users.authorize(canRefresh, entities.refresh))
	mux.Handle("POST "+root+"/refresh", users.authorize(canRefresh, entities.refreshMany))
	mux.HandleFunc("GET "+root+"/login", users.loginPage)
	mux.HandleFunc("POST "+root+"/login", users.login)
	mux.HandleFunc("POST "+root+"/logout", users.logout)
	mux.HandleFunc("GET "+root+"/assets/{name...}", c.asset)
	mux.Handle(root+"/", users.authorize(canView, func(w http.ResponseWriter, r *http.Request, _ access.Client) {
		if r.URL.Path == root+"/" {
			http.Redirect(w, r, root, http.StatusPermanentRedirect)
			return
		}
		c.reject(w, r, http.StatusNotFound, "Page not found.")
	}))
	return mux
}

// ServeHTTP serves /console and all paths below it.
func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", contentSecurityPolicy)
	h.Set("X-Content-Type-Options", "nosniff")
	// With the policy no-referrer, browsers would send "Origin: null" with the forms of the
	// console, and the console would reject them as cross-site.
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	r.Body = http.MaxBytesReader(w, r.Body, maxFormBytes)
	c.mux.ServeHTTP(w, r)
}

// pageHandler handles a request whose client was authenticated and has permission.
type pageHandler func(w http.ResponseWriter, r *http.Request, client access.Client)

// requestContext returns the context for reads and changes during one HTTP request. The context of
// a POST is not cancelled when the client disconnects, so that an action is never half done.
func requestContext(r *http.Request) (context.Context, context.CancelFunc) {
	ctx := r.Context()
	if r.Method == http.MethodPost {
		ctx = context.WithoutCancel(ctx)
	}
	return context.WithTimeout(ctx, requestTimeout)
}

// hasSource reports whether the configuration contains the source.
func (c *Console) hasSource(source string) bool { return slices.Contains(c.Sources, source) }

// selectedSource returns the source that the request names, or the first source if it names none.
// The second result is false if the source does not exist.
func (c *Console) selectedSource(r *http.Request) (string, bool) {
	source := strings.TrimSpace(r.FormValue("source"))
	if source == "" && len(c.Sources) > 0 {
		return c.Sources[0], true
	}
	return source, c.hasSource(source)
}
