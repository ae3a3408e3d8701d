// Package admin implements the features that all parts of the admin API share: JSON requests and
// responses, problems, timeouts, size limits and cross-origin protection. The parts implement
// the handlers; the HTTP server authenticates the clients.
package admin

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/freshet/freshet/problem"
)

const (
	maxBodyBytes = 64 << 10 // default maximum size of a request body, in bytes
	// requestTimeout is the maximum duration of one request of the admin API.
	requestTimeout = 5 * time.Second
)

// Answer is the response of a handler of the admin API. Body is written as JSON.
type Answer struct {
	Status int    // HTTP status of the response; 0 means 200
	ETag   string // value of the header ETag; empty means no such header
	Body   any
}

// Handle handles one request. An error that is a *problem.HTTPError is sent unchanged.
type Handle func(r *http.Request) (Answer, error)

// API is the paths and handlers of one part of the admin API, such as the dead letters.
type API struct {
	// Paths has the handler for each pattern (http.ServeMux) and method. The handler of GET also
	// handles HEAD.
	Paths map[string]map[string]Handle
	// Bodies has the maximum body size in bytes, by pattern, for the paths that accept more than
	// 64 KiB.
	Bodies map[string]int64
	// Explain returns the problem for an error that the client caused, else nil. If it returns nil,
	// the error is logged and not sent to the client, because it may contain internal details. The
	// client then gets status 503, with the field Unavailable as the detail text.
	Explain     func(error) *problem.HTTPError
	Unavailable string
	// CrossSite is the detail text of the problem that rejects a request from a web page of another
	// site.
	CrossSite string
	Log       *slog.Logger
}

// Handler returns the HTTP handler of all paths.
func (a API) Handler() http.Handler {
	mux := http.NewServeMux()
	for path, methods := range a.Paths {
		maxBytes := max(a.Bodies[path], maxBodyBytes)
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			r.Body = http.MaxBytesReader(w, r.Body, maxBytes)
			a.serve(w, r, methods)
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { a.fail(w, r, problem.NoPath()) })
	crossOrigin := http.NewCrossOriginProtection()
	crossOrigin.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.fail(w, r, problem.New(http.StatusForbidden, problem.CrossSite, a.CrossSite))
	}))
	return crossOrigin.Handler(mux)
}

func (a API) serve(w http.ResponseWriter, r *http.Request, methods map[string]Handle) {
	method := r.Method
	if method == http.MethodHead {
		method = http.MethodGet
	}
	h, known := methods[method]
	if !known {
		allowed := slices.Sorted(maps.Keys(methods))
		if _, ok := methods[http.MethodGet]; ok {
			allowed = append(allowed, http.MethodHead)
		}
		w.Header().Set("Allow", strings.Join(allowed, ", "))
		a.fail(w, r, problem.NoMethod())
		return
	}
	// ctx does not end when the client disconnects, so that a change is completed anyway.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), requestTimeout)
	defer cancel()
	answer, err := h(r.WithContext(ctx))
	if err != nil {
		a.fail(w, r, err)
		return
	}
	body, err := json.Marshal(answer.Body)
	if err != nil {
		panic(err) // encoding the types of this project can't fail
	}
	if answer.ETag != "" {
		w.Header().Set("ETag", answer.ETag)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(max(answer.Status, http.StatusOK))
	if _, err := w.Write(append(body, '\n')); err != nil {
		a.Log.Debug("client disconnected before the response", "err", err)
	}
}

// fail writes the problem of an error as the response.
func (a API) fail(w http.ResponseWriter, r *http.Request, err error) {
	p, known := errors.AsType[*problem.HTTPError](err)
	if !known {
		p = a.Explain(err)
	}
	if p == nil {
		a.Log.Error("admin request failed", "path", r.URL.Path, "correlation_id", w.Header().Get("X-Correlation-Id"), "err", err)
		p = problem.New(http.StatusServiceUnavailable, problem.StoreUnavailable, a.Unavailable)
	}
	if p.Status == http.StatusServiceUnavailable || p.Status == http.StatusConflict {
		p.After = time.Second
	}
	if err := p.Write(w, r); err != nil {
		a.Log.Debug("client disconnected before the response", "err", err)
	}
}
