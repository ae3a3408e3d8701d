// Package console is the pages on which operators see what freshet does, and steer it:
// what the budget is doing, why something waits, what died and why.
//
// What a page shows of the present is said once (facts): the page is made with it, and a
// small script puts the newer words in their place as they come. One sampler looks for all
// who watch, and for nobody if nobody does.
package console

import (
	"context"
	"html/template"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/freshet/freshet/access"
)

const (
	root = "/console"
	// patience bounds what one page or act may take of the services behind it.
	patience = 5 * time.Second
	// formMost is in bytes.
	formMost = 64 << 10
)

// policy is what a page may load and do. It is the same for all: none has a script or a
// style of its own.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// Console is the pages.
type Console struct {
	Deps
	mux     http.Handler
	pages   map[string]*template.Template
	sampler *sampler
	viewers viewers
	died    shared[deaths] // what died since yesterday
	// diedPublic is the part of it that every reader may see.
	diedPublic shared[deaths]
}

// New returns the pages, below /console. Nothing runs until somebody looks.
func New(deps Deps) *Console {
	c := &Console{Deps: deps, pages: parsePages(), sampler: newSampler(deps), viewers: viewers{of: map[string]int{}}}
	for died, visibilities := range map[*shared[deaths]][]string{&c.died: nil, &c.diedPublic: {}} {
		died.see = func(ctx context.Context) (deaths, error) { return c.diedSince(ctx, visibilities) }
		died.patience, died.clock, died.log = diedEvery, deps.Clock, deps.Log
	}
	mux := http.NewServeMux()
	for pattern, h := range map[string]handle{
		"GET " + root:                                            c.overview,
		"GET " + root + "/look":                                  c.look,
		"GET " + root + "/queues":                                c.queues,
		"GET " + root + "/limiter":                               c.limiter,
		"GET " + root + "/schedule":                              c.schedule,
		"GET " + root + "/letters":                               c.letters,
		"GET " + root + "/letters/plan":                          c.plan,
		"GET " + root + "/letters/jobs/{id}":                     c.job,
		"GET " + root + "/letters/{source}/{partition}/{offset}": c.letter,
		"GET " + root + "/settings":                              c.settings,
		"GET " + root + "/activity":                              c.activity,
		"GET " + root + "/live":                                  c.live,
		"GET " + root + "/live/jobs/{id}":                        c.liveJob,
	} {
		mux.Handle(pattern, c.guarded(mayLook, h))
	}
	for pattern, h := range map[string]handle{
		"POST " + root + "/letters/start":            c.start,
		"POST " + root + "/letters/jobs/{id}/stop":   c.stopJob,
		"POST " + root + "/letters/jobs/{id}/resume": c.resumeJob,
		"POST " + root + "/settings/{source}":        c.change,
		"POST " + root + "/settings/{source}/stop":   c.stop,
		"POST " + root + "/settings/{source}/resume": c.resume,
		"POST " + root + "/weather":                  c.setWeather,
	} {
		mux.Handle(pattern, c.guarded(mayAct, h))
	}
	mux.Handle("POST "+root+"/look", c.guarded(mayRefresh, c.refresh))
	mux.Handle("POST "+root+"/refresh", c.guarded(mayRefresh, c.refreshMany))
	mux.HandleFunc("GET "+root+"/login", c.loginPage)
	mux.HandleFunc("POST "+root+"/login", c.login)
	mux.HandleFunc("POST "+root+"/logout", c.logout)
	mux.HandleFunc("GET "+root+"/assets/{name...}", c.asset)
	mux.Handle(root+"/", c.guarded(mayLook, func(w http.ResponseWriter, r *http.Request, _ access.Client) {
		if r.URL.Path == root+"/" {
			http.Redirect(w, r, root, http.StatusPermanentRedirect)
			return
		}
		c.refuse(w, r, http.StatusNotFound, "There is no such page.")
	}))
	foreign := http.NewCrossOriginProtection()
	foreign.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.refuse(w, r, http.StatusForbidden, "A page of another site may do nothing here.")
	}))
	c.mux = foreign.Handler(mux)
	return c
}

// ServeHTTP serves /console and everything below it.
func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "same-origin") // with none, a browser says Origin: null of our own forms too
	h.Set("Cache-Control", "no-store")
	r.Body = http.MaxBytesReader(w, r.Body, formMost)
	c.mux.ServeHTTP(w, r)
}

// handle answers one request of somebody who may make it.
type handle func(w http.ResponseWriter, r *http.Request, who access.Client)

// bounded returns a context for what one page asks, and for an act: that is done also if
// who ordered it has hung up since.
func bounded(r *http.Request) (context.Context, context.CancelFunc) {
	ctx := r.Context()
	if r.Method == http.MethodPost {
		ctx = context.WithoutCancel(ctx)
	}
	return context.WithTimeout(ctx, patience)
}

// known reports whether there is such a source.
func (c *Console) known(source string) bool { return slices.Contains(c.Sources, source) }

// chosen is the source that a request names, or the first.
func (c *Console) chosen(r *http.Request) (string, bool) {
	source := strings.TrimSpace(r.FormValue("source"))
	if source == "" && len(c.Sources) > 0 {
		return c.Sources[0], true
	}
	return source, c.known(source)
}
