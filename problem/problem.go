// Package problem defines the error responses of all HTTP interfaces: problem details (RFC 9457)
// with an additional field, code, for programs.
package problem

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"strconv"
	"time"
)

// ContentType is the media type of a problem.
const ContentType = "application/problem+json"

// HTTPError is an error that an HTTP handler returns. Its JSON form is the response body.
type HTTPError struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	Code   Code   `json:"code"`
	// Errors lists the individual errors if the request has several.
	Errors []Error `json:"errors,omitempty"`
	// After is the delay that the header Retry-After states, rounded up to whole seconds. With 0
	// the response has no such header.
	After time.Duration `json:"-"`
	// Header has additional response headers, such as WWW-Authenticate.
	Header http.Header `json:"-"`
}

// Error is one of several errors in a request body. Pointer is the JSON pointer (RFC 6901) to the
// wrong value, with a # before it.
type Error struct {
	Detail  string `json:"detail"`
	Pointer string `json:"pointer"`
}

// New returns a problem with this HTTP status. The code is for programs, and detail is a
// sentence for people.
func New(status int, code Code, detail string) *HTTPError {
	return &HTTPError{Type: "urn:freshet:problem:" + string(code), Title: http.StatusText(status), Status: status, Detail: detail, Code: code}
}

func (p *HTTPError) Error() string { return string(p.Code) + ": " + p.Detail }

// NoPath returns the problem (404) for a request to an unknown path.
func NoPath() *HTTPError {
	return New(http.StatusNotFound, NoSuchPath, "Unknown path. /openapi.yaml lists the paths.")
}

// NoMethod returns the problem (405) for a request with a method that the path does not support.
func NoMethod() *HTTPError {
	return New(http.StatusMethodNotAllowed, MethodNotAllowed, "This path does not support the method. /openapi.yaml lists the methods.")
}

// Body returns the problem for a request body that can't be read because of err: status 413 if
// the body is too long, else 400.
func Body(err error) *HTTPError {
	if large, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return New(http.StatusRequestEntityTooLarge, BodyTooLarge, fmt.Sprintf("The body must not be longer than %d bytes.", large.Limit))
	}
	return New(http.StatusBadRequest, BadBody, err.Error())
}

// Headers sets the response headers of the problem in h.
func (p *HTTPError) Headers(h http.Header) {
	maps.Copy(h, p.Header)
	h.Set("Content-Type", ContentType)
	h.Set("Cache-Control", "no-store")
	if p.After > 0 {
		h.Set("Retry-After", strconv.Itoa(Seconds(p.After)))
	}
}

// Write writes the problem as a response. An error means that the client disconnected.
func (p *HTTPError) Write(w http.ResponseWriter, r *http.Request) error {
	text, err := json.Marshal(p)
	if err != nil {
		return err
	}
	p.Headers(w.Header())
	w.WriteHeader(p.Status)
	if r.Method == http.MethodHead {
		return nil
	}
	_, err = w.Write(append(text, '\n'))
	return err
}

// Seconds returns d in seconds, rounded up.
func Seconds(d time.Duration) int { return int(math.Ceil(d.Seconds())) }
