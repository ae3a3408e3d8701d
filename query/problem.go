package query

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/freshet/freshet/problem"
)

// readError is a problem with the members of a read's answer.
type readError struct {
	*problem.HTTPError
	*readBody
}

func (p *readError) Unwrap() error { return p.HTTPError }

// withBody adds what a read tells to a problem.
func withBody(err error, body *readBody) error {
	if p, ok := errors.AsType[*problem.HTTPError](err); ok {
		return &readError{p, body}
	}
	return err
}

// handleError writes every error as a problem, the router's own included.
func (s *Server) handleError(err error, c echo.Context) {
	if c.Response().Committed {
		if _, panicked := errors.AsType[*panicError](err); panicked {
			s.log.Error("request failed after its answer had begun", "path", c.Path(), "err", err)
		}
		return // otherwise the client has left
	}
	var body any
	correlationOf(c)
	p := s.problemOf(err, c)
	if of, ok := errors.AsType[*readError](err); ok {
		body = of
	} else {
		body = p
	}
	text, err := json.Marshal(body)
	if err != nil {
		s.log.Error("write a problem", "err", err)
		text = []byte(`{"status":500}`)
	}
	p.Headers(c.Response().Header())
	if c.Request().Method == http.MethodHead {
		text = nil
	}
	if err := c.Blob(p.Status, problem.ContentType, text); err != nil {
		s.log.Debug("the client left before its answer", "err", err)
	}
}

// problemOf returns what a client is told of an error. Whatever is not the
// client's doing is for the log.
func (s *Server) problemOf(err error, c echo.Context) *problem.HTTPError {
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
		return problem.New(own.Code, "refused", http.StatusText(own.Code))
	}
	s.log.Error("request failed", "path", c.Path(), "correlation_id", correlationOf(c), "err", err)
	return problem.New(http.StatusInternalServerError, "internal", "Something went wrong here; the log has it under the correlation id.")
}
