package query

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/freshet/freshet/problem"
)

// readError is a problem with the fields of a read response.
type readError struct {
	*problem.HTTPError
	*readBody
}

func (p *readError) Unwrap() error { return p.HTTPError }

// withBody adds the fields of a read response to a problem.
func withBody(err error, body *readBody) error {
	if p, ok := errors.AsType[*problem.HTTPError](err); ok {
		return &readError{p, body}
	}
	return err
}

// handleError responds with the problem for an error. The error may come from a handler or from
// the router.
func (s *Server) handleError(err error, c echo.Context) {
	if c.Response().Committed {
		if _, panicked := errors.AsType[*panicError](err); panicked {
			s.log.Error("request failed after the response had begun", "path", c.Path(), "err", err)
		}
		return // an error after the start of the response, other than a panic, means that the client disconnected; it is not logged
	}
	var body any
	correlationOf(c)
	p := problemOf(s.log, err, c)
	if of, ok := errors.AsType[*readError](err); ok {
		body = of
	} else {
		body = p
	}
	text, err := json.Marshal(body)
	if err != nil {
		s.log.Error("error response not encoded; sent without details", "err", err)
		text = []byte(`{"status":500}`)
	}
	p.Headers(c.Response().Header())
	if c.Request().Method == http.MethodHead {
		text = nil
	}
	if err := c.Blob(p.Status, problem.ContentType, text); err != nil {
		s.log.Debug("client disconnected before the response", "err", err)
	}
}

// problemOf returns the problem for an error. An error that the client did not cause is logged,
// and its details are not sent.
func problemOf(log *slog.Logger, err error, c echo.Context) *problem.HTTPError {
	if p, ok := errors.AsType[*problem.HTTPError](err); ok {
		return p
	}
	if own, ok := errors.AsType[*echo.HTTPError](err); ok {
		switch own.Code {
		case http.StatusNotFound:
			return problem.NoPath()
		case http.StatusMethodNotAllowed:
			return problem.NoMethod()
		}
	}
	log.Error("request failed", "path", c.Path(), "correlation_id", correlationOf(c), "err", err)
	return problem.New(http.StatusInternalServerError, problem.Internal, "Internal error. The log has the details under the correlation id.")
}
