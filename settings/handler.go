package settings

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"regexp"
	"strconv"
	"strings"

	"github.com/freshet/freshet/admin"
	"github.com/freshet/freshet/problem"
)

const (
	// defaultAuditLimit and maxAuditLimit are the default and the maximum number of entries in
	// a response of GET /admin/v1/audit (query parameter "limit").
	defaultAuditLimit, maxAuditLimit = 100, 1000
)

// ReadLimiter returns the current state of a source's limiter, in a form that is encoded as JSON.
type ReadLimiter func(ctx context.Context, source string) (any, error)

// api implements the settings, stop, audit and limiter routes of the admin API.
type api struct {
	settings    *Settings
	readLimiter ReadLimiter
	actor       func(*http.Request) string
	log         *slog.Logger
}

// Handler returns the handler of this package's admin API routes, below /admin/v1. If `look` is
// nil, the route /admin/v1/limiter/{source} responds with 501. The function `actor` returns the
// name of the caller, for the audit log.
func (s *Settings) Handler(look ReadLimiter, actor func(*http.Request) string, log *slog.Logger) http.Handler {
	p := &api{s, look, actor, log}
	return admin.API{
		Paths: map[string]map[string]admin.Handle{
			"/admin/v1/settings":                {http.MethodGet: withETag(p.listStates)},
			"/admin/v1/settings/{source}":       {http.MethodGet: withETag(p.getState), http.MethodPatch: withETag(p.patchState)},
			"/admin/v1/sources/{source}/stop":   {http.MethodPost: withETag(p.handleAction(s.Stop))},
			"/admin/v1/sources/{source}/resume": {http.MethodPost: withETag(p.handleAction(s.Resume))},
			"/admin/v1/audit":                   {http.MethodGet: withETag(p.listAudit)},
			"/admin/v1/limiter/{source}":        {http.MethodGet: withETag(p.getLimiter)},
		},
		Explain:     toProblem,
		Unavailable: "The settings can't be read or written now; the query service's log has the error. After an upgrade, run `freshet migrate up`.",
		CrossSite:   "Cross-site requests may not change settings.",
		Log:         log,
	}.Handler()
}

// handlerFunc handles one request. Its first result is encoded as the JSON response.
type handlerFunc func(r *http.Request) (any, error)

// withETag returns a handler that calls h and, if h returns a State, sends its revision in the
// header ETag.
func withETag(h handlerFunc) admin.Handle {
	return func(r *http.Request) (admin.Answer, error) {
		body, err := h(r)
		answer := admin.Answer{Body: body}
		if state, ok := body.(State); ok {
			answer.ETag = `"` + strconv.FormatInt(state.Revision, 10) + `"`
		}
		return answer, err
	}
}

func (p *api) listStates(r *http.Request) (any, error) {
	states, err := p.settings.All(r.Context())
	return map[string]any{"settings": states}, err
}

func (p *api) getState(r *http.Request) (any, error) {
	return p.settings.Get(r.Context(), r.PathValue("source"))
}

func (p *api) patchState(r *http.Request) (any, error) {
	o, err := p.parseRequest(r)
	if err != nil {
		return nil, err
	}
	var body PatchRequest
	err = admin.DecodeBody(r.Body, &body, "; the members are note, policies.{name}.limit, target, highReserve and lowReserve, prefetch.enabled, and prefetch.facets.{name}.hot, warm, cold, minInterval, maxInterval and active")
	if err != nil {
		return nil, err
	}
	if err := admin.CheckNote(body.Note); err != nil {
		return nil, problem.Body(err)
	}
	o.Note = body.Note
	return p.settings.Change(r.Context(), o, body.Patch)
}

// handleAction returns the handler of the route stop or resume. The handler calls the function `do`.
// The request body is empty or has only the member "note".
func (p *api) handleAction(do func(context.Context, ChangeRequest) (State, error)) handlerFunc {
	return func(r *http.Request) (any, error) {
		o, err := p.parseRequest(r)
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
			if err := admin.DecodeBody(bytes.NewReader(text), &body, `; the body must be empty or {"note":"why"}`); err != nil {
				return nil, err
			}
			if err := admin.CheckNote(body.Note); err != nil {
				return nil, problem.Body(err)
			}
			o.Note = body.Note
		}
		return do(r.Context(), o)
	}
}

func (p *api) listAudit(r *http.Request) (any, error) {
	limit := defaultAuditLimit
	if query := r.URL.Query(); query.Has("limit") {
		text := query.Get("limit")
		var err error
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 || limit > maxAuditLimit {
			return nil, problem.New(http.StatusBadRequest, problem.BadLimit, fmt.Sprintf("limit is %.20q; it must be between 1 and %d.", text, maxAuditLimit))
		}
	}
	entries, err := p.settings.Audit(r.Context(), limit)
	return map[string]any{"entries": entries}, err
}

func (p *api) getLimiter(r *http.Request) (any, error) {
	source := r.PathValue("source")
	if _, err := p.settings.source(source); err != nil {
		return nil, err
	}
	if p.readLimiter == nil {
		return nil, problem.New(http.StatusNotImplemented, problem.LimiterUnsupported, "This process can't read the limiter's state.")
	}
	answer, err := p.readLimiter(r.Context(), source)
	if err != nil {
		p.log.Warn("limiter state read failed", "source", source, "err", err)
		return nil, problem.New(http.StatusServiceUnavailable, problem.LimiterUnavailable, "The limiter's state can't be read now; the query service's log has the error.")
	}
	return answer, nil
}

// ifMatchPattern matches an If-Match header with one revision. An empty header does not match, and
// the request is rejected: a client that sends If-Match wants to change one certain revision only.
var ifMatchPattern = regexp.MustCompile(`^("[0-9]{1,18}"|[0-9]{1,18})$`)

// parseRequest returns the source, the actor and the expected revision of a request.
func (p *api) parseRequest(r *http.Request) (ChangeRequest, error) {
	o := ChangeRequest{Source: r.PathValue("source"), Actor: p.actor(r)}
	tags := r.Header.Values("If-Match")
	tag := strings.Join(tags, ", ")
	if len(tags) == 0 || tag == "*" {
		return o, nil
	}
	revision, err := strconv.ParseInt(strings.Trim(tag, `"`), 10, 64)
	if err != nil || !ifMatchPattern.MatchString(tag) {
		return o, problem.New(http.StatusBadRequest, problem.BadIfMatch, fmt.Sprintf(`If-Match is %.40q; it must be one revision, as in the ETag header: "7".`, tag))
	}
	o.Revision = &revision
	return o, nil
}
