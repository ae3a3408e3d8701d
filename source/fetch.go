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

// Permits gives out the right to send.
type Permits interface {
	// Acquire waits until that call may be sent. It fails when ctx ends, or when
	// the fetch is no longer wanted.
	Acquire(ctx context.Context, c Call) (Permit, error)
}

// MemoryLimiter is what Permits may be besides: then bodies are read into memory only as it says.
type MemoryLimiter interface {
	// Grow waits until n more bytes of a body may be read into memory. It fails when ctx
	// ends, and then the body is not read any further.
	Grow(ctx context.Context, n int64) error
}

// Permit is the right to send one call.
type Permit interface {
	// Spend is asked with the connection in hand, directly before the request is
	// written. If the permit has lapsed meanwhile it waits for another. An error
	// means that nothing may be sent.
	Spend(ctx context.Context) error
	// Credential returns the name of the credential that the call is to be made with,
	// one of its Call's. It is asked for after Spend, for the permit that took the place
	// of a lapsed one may be for another.
	Credential() string
	// Release gives back a permit that was not spent; after Spend it does nothing.
	Release()
	// Written and Answered are told when the request that it was spent on has been
	// written, and when the first byte of the answer has come.
	Written()
	Answered()
	// Finished is told when the whole answer has been read, or why there is none:
	// once for each permit that was spent.
	Finished(e CallResult)
}

// Responses are what came back for a Plan, bodies as they came: compressed, if the
// upstream compressed them. Read says what they mean.
type Responses struct {
	plan      *Plan
	responses []response
	// Calls counts the requests that were sent, each on its own permit.
	Calls int
}

// Bytes returns the size of the bodies in memory.
func (a *Responses) Bytes() int {
	n := 0
	for _, one := range a.responses {
		n += one.bytes()
	}
	return n
}

type response struct {
	status int
	header http.Header
	body   []byte
	err    error // no whole answer came
	permit Permit

	more    []response // the pages that follow
	linkErr error      // why the redirect or the link to the next page was not followed
}

func (a response) bytes() int {
	n := len(a.body)
	for _, page := range a.more {
		n += len(page.body)
	}
	return n
}

// failed reports whether the status alone shows that there is no content.
func (a response) failed() bool {
	return a.err != nil || a.linkErr != nil || a.status != http.StatusOK || slices.ContainsFunc(a.more, response.failed)
}

// ErrOversized is wrapped by the Outcome's Err when an answer, compressed or
// not, is larger than the source's MaxBody.
var ErrOversized = errors.New("the answer is larger than maxBody")

// Fetch makes the calls of the plan at the same time, a permit each. It returns
// an error only if a call was not sent although it was needed: ctx ended first,
// or Permits refused. What has been sent runs to its end under the source's
// timeout, also when ctx ends. Once one document's answer makes the others
// useless, those not yet sent stay unsent.
func (s *Source) Fetch(ctx context.Context, p *Plan, permits Permits) (*Responses, error) {
	a := &Responses{plan: p, responses: make([]response, len(p.requests))}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var (
		wg     sync.WaitGroup
		mu     sync.Mutex
		unsent error
	)
	for i := range p.requests {
		wg.Go(func() {
			one, calls, err := s.fetchDocument(ctx, p, p.requests[i], permits)
			mu.Lock()
			defer mu.Unlock()
			a.Calls += calls
			a.responses[i] = one
			switch {
			case errors.Is(err, errUseless):
				a.responses[i].err = err
			case err != nil:
				unsent = errors.Join(unsent, err)
				stop(err)
			case one.failed():
				stop(errUseless)
			}
		})
	}
	wg.Wait()
	if unsent != nil {
		return nil, unsent
	}
	return a, nil
}

// errUseless ends the documents that are not yet sent when another has failed.
var errUseless = errors.New("not sent: another document of the entity failed first")

// callFollowingRedirect makes one call, following one redirect on the same host, if it is a GET: what
// another one would do there nobody has said. The body of the answer may have room
// bytes. at is what was asked last. An error means that a request which was needed was
// not sent.
func (s *Source) callFollowingRedirect(ctx context.Context, p *Plan, r documentRequest, room int64, permits Permits) (one response, at documentRequest, calls int, err error) {
	for range 2 {
		var sent int
		one, sent, err = s.send(ctx, p, r, room, permits)
		calls += sent
		if err != nil || one.err != nil || one.status < 300 || one.status > 399 || one.status == http.StatusNotModified || r.call.Method != http.MethodGet {
			return one, r, calls, err
		}
		var to *url.URL
		if to, one.linkErr = s.resolveLink(r.url, one.header.Get("Location")); to == nil {
			break
		}
		r.url = to
	}
	return one, r, calls, nil
}

// resolveLink returns the target of a redirect or a link. The credential must not leave
// baseURL, so an error says why a target can't be followed: it is on another host, or
// outside baseURL's path, where tenants may share a host. Nil and no error: there is none.
func (s *Source) resolveLink(from *url.URL, location string) (*url.URL, error) {
	if location == "" {
		return nil, nil //nolint:nilnil // it leads nowhere
	}
	to, err := from.Parse(location)
	switch {
	case err != nil:
		return nil, errors.New("leads to an address that can't be read")
	case to.Scheme != from.Scheme || to.Host != from.Host || to.User != nil:
		return nil, errors.New("leads to another host, where the credential must not go")
	case !isBelow(to, s.base):
		return nil, fmt.Errorf("leads outside baseURL's path, %s, where the credential must not go; if it may, shorten baseURL and lengthen the documents' paths", s.base.EscapedPath())
	}
	if s.config.Auth.Query != "" { // an upstream may repeat it
		to.RawQuery = replaceParameter(to.RawQuery, s.config.Auth.Query, "")
	}
	return to, nil
}

// isBelow reports whether a URL's path is the base's or below it, however a server reads it:
// some decode %2e%2e, take a backslash for a slash, or drop what follows a semicolon.
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
