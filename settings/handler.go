package settings

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/freshet/freshet/problem"
)

const (
	bodyMost = 64 << 10
	noteMost = 1000 // characters
	// patience bounds what the store may take for one request.
	patience = 5 * time.Second
	// auditUsual and auditMost are how many entries are answered.
	auditUsual, auditMost = 100, 1000
)

// Look returns what the limiter of a source is doing, to be written as JSON.
type Look func(ctx context.Context, source string) (any, error)

// admin is the admin API.
type admin struct {
	settings *Settings
	look     Look
	actor    func(*http.Request) string
	log      *slog.Logger
}

// Handler returns the admin API, below /admin/v1. A nil look answers that nobody
// looks; actor names who asks, for the audit. Browsers can't be made to call it from another site.
func (s *Settings) Handler(look Look, actor func(*http.Request) string, log *slog.Logger) http.Handler {
	a := &admin{s, look, actor, log}
	mux := http.NewServeMux()
	for path, methods := range map[string]map[string]handle{
		"/admin/v1/settings":                {http.MethodGet: a.all},
		"/admin/v1/settings/{source}":       {http.MethodGet: a.one, http.MethodPatch: a.patch},
		"/admin/v1/sources/{source}/stop":   {http.MethodPost: a.act(s.Stop)},
		"/admin/v1/sources/{source}/resume": {http.MethodPost: a.act(s.Resume)},
		"/admin/v1/audit":                   {http.MethodGet: a.audit},
		"/admin/v1/limiter/{source}":        {http.MethodGet: a.limiter},
	} {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) { a.serve(w, r, methods) })
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		a.fail(w, r, problem.NoPath())
	})
	foreign := http.NewCrossOriginProtection()
	foreign.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.fail(w, r, problem.New(http.StatusForbidden, "cross-site", "A page of another site may not change settings."))
	}))
	return foreign.Handler(mux)
}

// handle answers one request with what is to be written as JSON.
type handle func(r *http.Request) (any, error)

func (a *admin) serve(w http.ResponseWriter, r *http.Request, methods map[string]handle) {
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
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), patience)
	defer cancel()
	r.Body = http.MaxBytesReader(w, r.Body, bodyMost)
	answer, err := h(r.WithContext(ctx))
	if err != nil {
		a.fail(w, r, err)
		return
	}
	if state, ok := answer.(State); ok {
		w.Header().Set("ETag", `"`+strconv.FormatInt(state.Revision, 10)+`"`)
	}
	a.write(w, answer)
}

func (a *admin) all(r *http.Request) (any, error) {
	states, err := a.settings.All(r.Context())
	return map[string]any{"settings": states}, err
}

func (a *admin) one(r *http.Request) (any, error) {
	return a.settings.Get(r.Context(), r.PathValue("source"))
}

func (a *admin) patch(r *http.Request) (any, error) {
	o, err := a.orderOf(r)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, problem.Body(err)
	}
	if !isObject(text) {
		return nil, problem.Body(errors.New(`the body must be an object, as in {"policies":{"second":{"target":400}}}`))
	}
	var p Patch
	if err := decode(text, &p); err != nil {
		return nil, problem.Body(fmt.Errorf("%w; there are policies.{name}.limit, target, highReserve and lowReserve, and lowCeilings", err))
	}
	return a.settings.Change(r.Context(), o, p)
}

// isObject reports whether a JSON text is an object; null would else be an empty one.
func isObject(text []byte) bool { return strings.HasPrefix(strings.TrimSpace(string(text)), "{") }

// act returns the handler of what an order alone says.
func (a *admin) act(do func(context.Context, Order) (State, error)) handle {
	return func(r *http.Request) (any, error) {
		o, err := a.orderOf(r)
		if err != nil {
			return nil, err
		}
		text, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, problem.Body(err)
		}
		if len(text) > 0 {
			var body struct {
				Note string `json:"note"`
			}
			if !isObject(text) {
				return nil, problem.Body(errors.New(`the body must be an object, as in {"note":"why"}`))
			}
			if err := decode(text, &body); err != nil {
				return nil, problem.Body(fmt.Errorf(`%w; the body may be {"note":"why"}`, err))
			}
			if utf8.RuneCountInString(body.Note) > noteMost || strings.ContainsFunc(body.Note, unicode.IsControl) {
				return nil, problem.Body(fmt.Errorf("the note must be one line of at most %d characters", noteMost))
			}
			o.Note = body.Note
		}
		return do(r.Context(), o)
	}
}

func (a *admin) audit(r *http.Request) (any, error) {
	limit := auditUsual
	if query := r.URL.Query(); query.Has("limit") {
		text := query.Get("limit")
		var err error
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 || limit > auditMost {
			return nil, problem.New(http.StatusBadRequest, "bad-limit", fmt.Sprintf("limit is %.20q; it must lie between 1 and %d.", text, auditMost))
		}
	}
	entries, err := a.settings.Audit(r.Context(), limit)
	return map[string]any{"entries": entries}, err
}

func (a *admin) limiter(r *http.Request) (any, error) {
	source := r.PathValue("source")
	if _, err := a.settings.config(source); err != nil {
		return nil, err
	}
	if a.look == nil {
		return nil, problem.New(http.StatusNotImplemented, "not-here", "This process can't look into the limiter.")
	}
	answer, err := a.look(r.Context(), source)
	if err != nil {
		a.log.Warn("the limiter can't be looked into", "source", source, "err", err)
		return nil, problem.New(http.StatusServiceUnavailable, "limiter-unavailable", "The limiter can't be looked into at the moment; the log says why.")
	}
	return answer, nil
}

// oneRevision is an If-Match that is believed. An empty one is none of these:
// who sends it had a revision in mind, and would overwrite whatever there is.
var oneRevision = regexp.MustCompile(`^("[0-9]{1,18}"|[0-9]{1,18})$`)

// orderOf returns who wants what to be changed.
func (a *admin) orderOf(r *http.Request) (Order, error) {
	o := Order{Source: r.PathValue("source"), Actor: a.actor(r)}
	tags := r.Header.Values("If-Match")
	tag := strings.Join(tags, ", ")
	if len(tags) == 0 || tag == "*" {
		return o, nil
	}
	revision, err := strconv.ParseInt(strings.Trim(tag, `"`), 10, 64)
	if err != nil || !oneRevision.MatchString(tag) {
		return o, problem.New(http.StatusBadRequest, "bad-if-match", fmt.Sprintf(`If-Match is %.40q; it must be one revision as ETag has it, as in "7".`, tag))
	}
	o.Revision = &revision
	return o, nil
}
