package query

import (
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"
)

// problem is an answer that is not a snapshot, as RFC 9457 has it. Code tells
// programs what Title and Detail tell people.
type problem struct {
	status int
	after  time.Duration // Retry-After; 0: none
	body   problemBody
}

type problemBody struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
	Code   string `json:"code"`
	// The members of a read's answer, where there is one.
	*readBody
}

func (p *problem) Error() string { return p.body.Code + ": " + p.body.Detail }

func newProblem(status int, code, detail string) *problem {
	return &problem{status: status, body: problemBody{
		Type: "urn:freshet:problem:" + code, Title: http.StatusText(status), Status: status, Detail: detail, Code: code,
	}}
}

// handleError writes every error as a problem, the router's own included.
func (s *Server) handleError(err error, c echo.Context) {
	if c.Response().Committed {
		return
	}
	var p *problem
	var own *echo.HTTPError
	switch {
	case errors.As(err, &p):
	case errors.As(err, &own) && own.Code == http.StatusNotFound:
		p = newProblem(http.StatusNotFound, "no-such-path", "There is nothing at this path. See /openapi.yaml.")
	case errors.As(err, &own) && own.Code == http.StatusMethodNotAllowed:
		p = newProblem(http.StatusMethodNotAllowed, "method-not-allowed", "This path does not take the method. See /openapi.yaml.")
	case errors.As(err, &own):
		p = newProblem(own.Code, "refused", http.StatusText(own.Code))
	default:
		s.log.Error("request failed", "path", c.Path(), "correlation_id", c.Get(correlationKey), "err", err)
		p = newProblem(http.StatusInternalServerError, "internal", "Something went wrong here; the log has it under the correlation id.")
	}
	body, err := json.Marshal(p.body)
	if err != nil {
		s.log.Error("write a problem", "err", err)
		body = []byte(`{"status":500}`)
	}
	h := c.Response().Header()
	h.Set("Cache-Control", "no-store")
	if p.after > 0 {
		h.Set("Retry-After", strconv.Itoa(seconds(p.after)))
	}
	if c.Request().Method == http.MethodHead {
		body = nil
	}
	if err := c.Blob(p.status, "application/problem+json", body); err != nil {
		s.log.Debug("the client left before its answer", "err", err)
	}
}

// seconds rounds up, for a client that comes back too early comes in vain.
func seconds(d time.Duration) int { return int(math.Ceil(d.Seconds())) }
