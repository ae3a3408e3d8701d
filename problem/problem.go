// Package problem has the error responses of all HTTP interfaces: problem details (RFC 9457)
// with an additional code for programs.
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

// HTTPError is a problem: an error that handlers return, and the response body for it.
type HTTPError struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	Code   string `json:"code"`
	// Errors lists the single errors, if there are several.
	Errors []Error `json:"errors,omitempty"`
	// After is the value of Retry-After, which has whole seconds and is rounded up; 0: none.
	After time.Duration `json:"-"`
	// Header has additional response headers, such as WWW-Authenticate.
	Header http.Header `json:"-"`
}

// Error is one error in a request body; Pointer is its position (RFC 6901, after a #).
type Error struct {
	Detail  string `json:"detail"`
	Pointer string `json:"pointer"`
}

// New returns a problem. Programs evaluate code; detail is a sentence for people.
func New(status int, code, detail string) *HTTPError {
	return &HTTPError{Type: "urn:freshet:problem:" + code, Title: http.StatusText(status), Status: status, Detail: detail, Code: code}
}

func (p *HTTPError) Error() string { return p.Code + ": " + p.Detail }

// NoPath returns the problem of an unknown path.
func NoPath() *HTTPError {
	return New(http.StatusNotFound, "no-such-path", "Unknown path. /openapi.yaml lists the paths.")
}

// NoMethod returns the problem of a method that the path does not support.
func NoMethod() *HTTPError {
	return New(http.StatusMethodNotAllowed, "method-not-allowed", "This path does not support the method. /openapi.yaml lists the methods.")
}

// Body returns the problem of a request body that can't be read, with the reason err.
func Body(err error) *HTTPError {
	if large, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return New(http.StatusRequestEntityTooLarge, "body-too-large", fmt.Sprintf("The body must not be longer than %d bytes.", large.Limit))
	}
	return New(http.StatusBadRequest, "bad-body", err.Error())
}

// Headers sets the response headers of the problem.
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
