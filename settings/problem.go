package settings

import (
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/freshet/freshet/problem"
)

// problemOf returns what a caller is told. Whatever is not the caller's doing is
// for the log, since it may name what lies behind.
func problemOf(err error) (p *problem.HTTPError, logged bool) {
	if p, ok := errors.AsType[*problem.HTTPError](err); ok {
		return p, false
	}
	if err, ok := errors.AsType[*NoSourceError](err); ok {
		return problem.New(http.StatusNotFound, "no-such-source", err.Error()), false
	}
	if err, ok := errors.AsType[*RefusedError](err); ok {
		return problem.New(http.StatusUnprocessableEntity, "quota-refused", err.Error()), false
	}
	if err, ok := errors.AsType[*ConflictError](err); ok {
		return problem.New(http.StatusPreconditionFailed, "revision-conflict", err.Error()), false
	}
	if errors.Is(err, ErrBusy) {
		return problem.New(http.StatusConflict, "busy", err.Error()), false
	}
	return problem.New(http.StatusServiceUnavailable, "store-unavailable", "The settings can't be read or written at the moment; the query service's log says why. If the release is new, run `freshet migrate up`."), true
}

func (a *admin) fail(w http.ResponseWriter, r *http.Request, err error) {
	p, logged := problemOf(err)
	if logged {
		a.log.Error("the admin API failed", "path", r.URL.Path, "correlation_id", w.Header().Get("X-Correlation-Id"), "err", err)
	}
	if p.Status == http.StatusServiceUnavailable || p.Status == http.StatusConflict {
		p.After = time.Second
	}
	if err := p.Write(w, r); err != nil {
		a.log.Debug("the client left before its answer", "err", err)
	}
}

func (a *admin) write(w http.ResponseWriter, body any) {
	text, err := json.Marshal(body)
	if err != nil {
		panic(err) // the answers are of our own types
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	if _, err := w.Write(append(text, '\n')); err != nil {
		a.log.Debug("the client left before its answer", "err", err)
	}
}
