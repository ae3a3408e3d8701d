package source

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
)

// Permits issues permits to send calls.
type Permits interface {
	// Acquire waits until the call may be sent. It returns an error if ctx ends or the fetch is
	// no longer needed.
	Acquire(ctx context.Context, c Call) (Permit, error)
}

// MemoryLimiter bounds the memory for response bodies. An implementation of Permits may also
// implement MemoryLimiter; otherwise only Config.MaxBody bounds the bodies.
type MemoryLimiter interface {
	// Grow waits until n more bytes of a body may be read into memory. If ctx ends it returns
	// an error, and the body is not read further.
	Grow(ctx context.Context, n int64) error
}

// Permit is the right to send one call.
type Permit interface {
	callEvents
	// Spend is called with an open connection, directly before the request is written. If the
	// permit has expired, Spend waits for another permit. If Spend returns an error, nothing is
	// sent.
	Spend(ctx context.Context) error
	// Credential returns the name of the credential to use, one of Call.Credentials. It is
	// valid only after Spend, which may replace the permit by one for another credential.
	Credential() string
	// Release returns an unspent permit to the limiter. After Spend it does nothing.
	Release()
}

// callEvents follows the call that uses the permit.
type callEvents interface {
	// Written is called when the request has been written, and Answered when the first byte of
	// the response has arrived.
	Written()
	Answered()
	// Finished is called exactly once for each spent permit, after the whole response was read
	// or the call failed.
	Finished(e CallResult)
}

// Responses are the responses to a Plan. Bodies are kept as received, so they may be
// compressed. Source.Read interprets them.
type Responses struct {
	plan      *Plan
	responses []response
	// Calls is the number of requests that were sent, each with its own permit.
	Calls int
}

// Bytes returns the memory that the bodies of all responses use, in bytes.
func (a *Responses) Bytes() int {
	n := 0
	for _, resp := range a.responses {
		n += resp.bytes()
	}
	return n
}

type response struct {
	status int
	header http.Header
	body   []byte
	err    error // set if the response is missing or incomplete
	permit Permit

	url  *url.URL   // URL of the request, without the credential
	more []response // the responses for the second and later pages
	// URL of the next page, which is not fetched; set only for a collection or with Plan.OnePage; nil
	// if there is none
	next *url.URL
	// position is the position of the next page of a collection; empty means that there is none.
	position string
	linkErr  error // reason for which a redirect or the link to the next page was not followed
}

func (a response) bytes() int {
	n := len(a.body)
	for _, page := range a.more {
		n += len(page.body)
	}
	return n
}

// failed reports whether the response or one of its further pages has an error, a status other than
// 200, or a link that could not be followed. It does not read the body.
func (a response) failed() bool {
	return a.err != nil || a.linkErr != nil || a.status != http.StatusOK || slices.ContainsFunc(a.more, response.failed)
}

// ErrOversized is wrapped by Outcome.Err if a response, compressed or decompressed, is larger
// than Config.MaxBody.
var ErrOversized = errors.New("the response is larger than maxBody")

// caller makes the calls of one Fetch.
type caller struct {
	*Source
	plan    *Plan
	permits Permits
}

// Fetch makes the calls of the plan concurrently, each with its own permit.
//
// If one document fails, the unsent calls of the other documents are not required any more and are
// cancelled. Fetch returns an error only if a required call was not sent, because ctx ended or
// Permits returned an error. A sent call continues after ctx ends, bounded by Config.Timeout.
func (s *Source) Fetch(ctx context.Context, p *Plan, permits Permits) (*Responses, error) {
	a := &Responses{plan: p, responses: make([]response, len(p.requests))}
	caller := caller{s, p, permits}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var (
		wg     sync.WaitGroup
		mu     sync.Mutex
		unsent error
	)
	fetch := func(i int) {
		resp, calls, err := caller.fetchDocument(ctx, p.requests[i])
		mu.Lock()
		defer mu.Unlock()
		a.Calls += calls
		a.responses[i] = resp
		switch {
		case errors.Is(err, errUseless):
			a.responses[i].err = err
		case err != nil:
			unsent = errors.Join(unsent, err)
			stop(err)
		case resp.failed():
			stop(errUseless)
		}
	}
	for i := 1; i < len(p.requests); i++ {
		wg.Go(func() { fetch(i) })
	}
	if len(p.requests) > 0 {
		fetch(0) // in this goroutine, because most plans have one document, and a new goroutine begins with a small stack
	}
	wg.Wait()
	if unsent != nil {
		return nil, unsent
	}
	return a, nil
}

// errUseless is the reason with which unsent calls are cancelled after another document of the
// entity has failed.
var errUseless = errors.New("not sent, because another document of the entity failed")

// callFollowingRedirect makes one call and follows at most one redirect within baseURL. Only a GET
// is redirected, because repeating a POST may not be safe. The parameter `room` is the maximum length
// of the body in bytes. The result `last` is the last request that was sent: r, or its redirect. An error
// means that the call or the redirected call was not sent.
func (s caller) callFollowingRedirect(ctx context.Context, r documentRequest, room int64) (resp response, last documentRequest, calls int, err error) {
	for range 2 {
		var sent int
		resp, sent, err = s.send(ctx, r, room)
		calls += sent
		if err != nil || resp.err != nil || resp.status < 300 || resp.status > 399 || resp.status == http.StatusNotModified || r.call.Method != http.MethodGet {
			return resp, r, calls, err
		}
		var to *url.URL
		if to, resp.linkErr = s.resolveLink(r, resp.header.Get("Location")); to == nil {
			break
		}
		r.url = to
	}
	return resp, r, calls, nil
}

// resolveLink returns the target of a redirect or link of a request, or nil if location is empty. A
// target on another host is an error, because the credential must not be sent to another server. A
// target outside baseURL's path is an error too, because it may belong to another tenant of the same host.
func (s caller) resolveLink(r documentRequest, location string) (*url.URL, error) {
	if location == "" {
		return nil, nil //nolint:nilnil // no target
	}
	to, err := r.url.Parse(location)
	switch {
	case err != nil:
		return nil, errors.New("points to an invalid URL")
	case to.Scheme != r.url.Scheme || to.Host != r.url.Host || to.User != nil:
		return nil, errors.New("points to another host, where the credential must not be sent")
	case !isBelow(to, r.base):
		return nil, fmt.Errorf("points outside the path %s of baseURL, and the credential is sent only below that path; to allow it, shorten baseURL and extend the documents' paths", r.base.EscapedPath())
	}
	if s.config.Auth.Query != "" { // remove a credential that the upstream repeats in the link
		to.RawQuery = replaceParameter(to.RawQuery, s.config.Auth.Query, "")
	}
	return to, nil
}

// isBelow reports whether every server would interpret the path of the URL as the base path or as a
// path below it. Some servers decode %2e%2e, treat a backslash as a slash, or cut a segment at a
// semicolon.
func isBelow(to, base *url.URL) bool {
	root := trimSlash(base.EscapedPath())
	if path := to.EscapedPath(); path != root && !strings.HasPrefix(path, root+"/") {
		return false
	}
	if root == "" {
		return true
	}
	isSlash := func(r rune) bool { return r == '/' || r == '\\' }
	return !slices.ContainsFunc(strings.FieldsFunc(to.Path, isSlash), func(segment string) bool {
		name, _, _ := strings.Cut(segment, ";")
		return name == ".."
	})
}
