package settings

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
)

// problem is an error of the admin API, as RFC 9457 has it. Code tells programs
// what Title and Detail tell people.
type problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	Code   string `json:"code"`
}

func (p *problem) Error() string { return p.Code + ": " + p.Detail }

func newProblem(status int, code, detail string) *problem {
	return &problem{"urn:freshet:problem:" + code, http.StatusText(status), status, detail, code}
}

func badBody(err error) *problem {
	if large, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return newProblem(http.StatusRequestEntityTooLarge, "body-too-large", fmt.Sprintf("The body may have %d bytes.", large.Limit))
	}
	return newProblem(http.StatusBadRequest, "bad-body", err.Error())
}

// problemOf returns what a caller is told. Whatever is not the caller's doing is
// for the log, since it may name what lies behind.
func problemOf(err error) (p *problem, logged bool) {
	if p, ok := errors.AsType[*problem](err); ok {
		return p, false
	}
	if err, ok := errors.AsType[*NoSourceError](err); ok {
		return newProblem(http.StatusNotFound, "no-such-source", err.Error()), false
	}
	if err, ok := errors.AsType[*RefusedError](err); ok {
		return newProblem(http.StatusUnprocessableEntity, "quota-refused", err.Error()), false
	}
	if err, ok := errors.AsType[*ConflictError](err); ok {
		return newProblem(http.StatusPreconditionFailed, "revision-conflict", err.Error()), false
	}
	if errors.Is(err, ErrBusy) {
		return newProblem(http.StatusConflict, "busy", err.Error()), false
	}
	return newProblem(http.StatusServiceUnavailable, "store-unavailable", "The settings can't be read or written at the moment; the query service's log says why. If the release is new, run `freshet migrate up`."), true
}

func (a *admin) fail(w http.ResponseWriter, r *http.Request, err error) {
	p, logged := problemOf(err)
	if logged {
		a.log.Error("the admin API failed", "path", r.URL.Path, "correlation_id", w.Header().Get("X-Correlation-Id"), "err", err)
	}
	if p.Status == http.StatusServiceUnavailable || p.Status == http.StatusConflict {
		w.Header().Set("Retry-After", "1")
	}
	a.write(w, p.Status, "application/problem+json", p)
}

func (a *admin) write(w http.ResponseWriter, status int, contentType string, body any) {
	text, err := json.Marshal(body)
	if err != nil {
		a.log.Error("write an answer of the admin API", "err", err)
		status, contentType, text = http.StatusInternalServerError, "application/problem+json", []byte(`{"type":"about:blank","title":"Internal Server Error","status":500,"code":"internal"}`)
	}
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	if _, err := w.Write(append(text, '\n')); err != nil {
		a.log.Debug("the client left before its answer", "err", err)
	}
}
