// Package problem is how every HTTP surface of freshet says what went wrong:
// problem details (RFC 9457), with a code for programs beside the sentence for
// people.
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

// ContentType is that of a problem.
const ContentType = "application/problem+json"

// HTTPError is a problem: an answer that tells what is wrong, and an error for handlers
// to return.
type HTTPError struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	Code   string `json:"code"`
	// Errors are what is wrong one by one, of a problem that is several.
	Errors []Error `json:"errors,omitempty"`
	// After is when asking again may help (Retry-After, in whole seconds, rounded
	// up: who comes too early comes in vain); 0: not said.
	After time.Duration `json:"-"`
	// Header has what else the answer's headers say, as WWW-Authenticate.
	Header http.Header `json:"-"`
}

// Error is one mistake in a body, and where it is (RFC 6901, after a #).
type Error struct {
	Detail  string `json:"detail"`
	Pointer string `json:"pointer"`
}

// New returns a problem of a status; code tells programs what detail tells people.
func New(status int, code, detail string) *HTTPError {
	return &HTTPError{Type: "urn:freshet:problem:" + code, Title: http.StatusText(status), Status: status, Detail: detail, Code: code}
}

func (p *HTTPError) Error() string { return p.Code + ": " + p.Detail }

// NoPath is the problem of a path at which there is nothing.
func NoPath() *HTTPError {
	return New(http.StatusNotFound, "no-such-path", "There is nothing at this path. See /openapi.yaml.")
}

// NoMethod is the problem of a method that a path does not take.
func NoMethod() *HTTPError {
	return New(http.StatusMethodNotAllowed, "method-not-allowed", "This path does not take the method. See /openapi.yaml.")
}

// Body is the problem of a body that can't be read for this reason.
func Body(err error) *HTTPError {
	if large, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return New(http.StatusRequestEntityTooLarge, "body-too-large", fmt.Sprintf("The body may have %d bytes.", large.Limit))
	}
	return New(http.StatusBadRequest, "bad-body", err.Error())
}

// Headers sets the headers of an answer that is this problem.
func (p *HTTPError) Headers(h http.Header) {
	maps.Copy(h, p.Header)
	h.Set("Content-Type", ContentType)
	h.Set("Cache-Control", "no-store")
	if p.After > 0 {
		h.Set("Retry-After", strconv.Itoa(Seconds(p.After)))
	}
}

// Write answers with the problem. An error means that the client has left.
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

// Seconds rounds a wait up to whole seconds.
func Seconds(d time.Duration) int { return int(math.Ceil(d.Seconds())) }
