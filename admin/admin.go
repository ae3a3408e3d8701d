// Package admin is how every part of the admin API answers: JSON in, JSON or a
// problem out, for a caller who may hang up and for no page of another site. What
// the parts do is theirs; who may call is asked by whoever serves them.
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
	maxBodyBytes = 64 << 10 // bytes, where a path does not say otherwise
	// requestTimeout bounds what the store may take for one request.
	requestTimeout = 5 * time.Second
)

// Answer is what is answered, written as JSON.
type Answer struct {
	Status int    // 0: 200
	ETag   string // empty: none
	Body   any
}

// Handle answers one request. An error that is a problem is told as it is.
type Handle func(r *http.Request) (Answer, error)

// API is a part of the admin API.
type API struct {
	// Paths are the handlers by pattern (http.ServeMux) and method; GET takes HEAD too.
	Paths map[string]map[string]Handle
	// Bodies are how many bytes a body may have, by pattern, of the paths that take
	// more than 64 KiB.
	Bodies map[string]int64
	// Explain returns the problem that an error is to a caller; nil if it is none of
	// the caller's doing. That is for the log, since it may name what lies behind, and
	// the caller is told what Unavailable says.
	Explain     func(error) *problem.HTTPError
	Unavailable string
	// CrossSite is told to pages of another site.
	CrossSite string
	Log       *slog.Logger
}

// Handler returns the handler of the API's paths.
func (a API) Handler() http.Handler {
	mux := http.NewServeMux()
	for path, methods := range a.Paths {
		most := max(a.Bodies[path], maxBodyBytes)
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			r.Body = http.MaxBytesReader(w, r.Body, most)
			a.serve(w, r, methods)
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { a.fail(w, r, problem.NoPath()) })
	foreign := http.NewCrossOriginProtection()
	foreign.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.fail(w, r, problem.New(http.StatusForbidden, "cross-site", a.CrossSite))
	}))
	return foreign.Handler(mux)
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
	// What was ordered is done, also if who ordered it has hung up since.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), requestTimeout)
	defer cancel()
	answer, err := h(r.WithContext(ctx))
	if err != nil {
		a.fail(w, r, err)
		return
	}
	text, err := json.Marshal(answer.Body)
	if err != nil {
		panic(err) // the answers are of our own types
	}
	if answer.ETag != "" {
		w.Header().Set("ETag", answer.ETag)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(max(answer.Status, http.StatusOK))
	if _, err := w.Write(append(text, '\n')); err != nil {
		a.Log.Debug("the client left before its answer", "err", err)
	}
}

// fail answers with the problem that an error is.
func (a API) fail(w http.ResponseWriter, r *http.Request, err error) {
	p, known := errors.AsType[*problem.HTTPError](err)
	if !known {
		p = a.Explain(err)
	}
	if p == nil {
		a.Log.Error("the admin API failed", "path", r.URL.Path, "correlation_id", w.Header().Get("X-Correlation-Id"), "err", err)
		p = problem.New(http.StatusServiceUnavailable, "store-unavailable", a.Unavailable)
	}
	if p.Status == http.StatusServiceUnavailable || p.Status == http.StatusConflict {
		p.After = time.Second
	}
	if err := p.Write(w, r); err != nil {
		a.Log.Debug("the client left before its answer", "err", err)
	}
}
