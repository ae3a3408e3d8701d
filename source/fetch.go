package source

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"sync"
	"sync/atomic"
	"time"
)

// Request asks for one entity.
type Request struct {
	Facet  string
	Key    string
	Params map[string]string // win over the facet's own
	// Validator of the stored snapshot; used by conditional facets only.
	Validator Validator
}

// Validator is what an upstream gave to recognise its content by.
type Validator struct {
	ETag         string
	LastModified string
}

// Plan is a Request made into calls; making one sends nothing.
type Plan struct {
	facet     *facet
	validator Validator
	requests  []request // one a document, in the order of its documents
}

// request is what one document is fetched with.
type request struct {
	call Call
	url  *url.URL
}

// Calls returns the number of calls that the plan needs at least: more are made where
// one is resent, or an answer says that there is more to come.
func (p *Plan) Calls() int { return len(p.requests) }

// Permits gives out the right to send.
type Permits interface {
	// Acquire waits until that call may be sent. It fails when ctx ends, or when
	// the fetch is no longer wanted.
	Acquire(ctx context.Context, c Call) (Permit, error)
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
	Finished(e Ended)
}

// Plan returns the calls for a request. An error means that no call could ever
// be made for it: there is no such facet, or a value does not fit.
func (s *Source) Plan(r Request) (*Plan, error) {
	if err := s.CheckKey(r.Facet, r.Key); err != nil {
		return nil, err
	}
	f := s.facets[r.Facet]
	value := func(name string) string {
		if name == keyParam {
			return r.Key
		}
		if v, ok := r.Params[name]; ok {
			return v
		}
		return f.params[name].fill(func(string) string { return r.Key })
	}
	credentials, _ := s.credentials.of(r.Key)
	if len(credentials) == 0 {
		return nil, errNoCredential
	}
	var params map[string]string
	for name := range f.params {
		if params == nil {
			params = make(map[string]string, len(f.params))
		}
		params[name] = value(name)
	}
	p := &Plan{facet: f, requests: make([]request, len(f.documents))}
	if f.Conditional {
		p.validator = r.Validator
	}
	for i, d := range f.documents {
		path, err := d.target.fill(value)
		if err != nil {
			return nil, fmt.Errorf("document %s: %w", d.name, err)
		}
		base := *s.base
		base.Path, base.RawPath = "", ""
		one := &p.requests[i]
		one.call = Call{Facet: r.Facet, Document: d.name, Method: http.MethodGet, Key: r.Key, Params: params, Credentials: credentials}
		if one.url, err = url.Parse(base.String() + trimSlash(s.base.EscapedPath()) + path); err != nil {
			return nil, fmt.Errorf("document %s: %w", d.name, err)
		}
	}
	return p, nil
}

var errNoCredential = errors.New("credentials: the key matches the keys of none of them; list one for it, or one without keys for all others")

func trimSlash(path string) string {
	if n := len(path); n > 0 && path[n-1] == '/' {
		return path[:n-1]
	}
	return path
}

// Answers are what came back for a Plan, bodies as they came: compressed, if the
// upstream compressed them. Read says what they mean.
type Answers struct {
	plan    *Plan
	answers []answer
	// Calls counts the requests that were sent, each on its own permit.
	Calls int
}

// Bytes returns the size of the bodies in memory.
func (a *Answers) Bytes() int {
	n := 0
	for _, one := range a.answers {
		n += len(one.body)
	}
	return n
}

type answer struct {
	status int
	header http.Header
	body   []byte
	err    error // no whole answer came
}

// ErrOversized is wrapped by the Outcome's Err when an answer, compressed or
// not, is larger than the source's MaxBody.
var ErrOversized = errors.New("the answer is larger than maxBody")

// Fetch makes the calls of the plan at the same time, a permit each. It returns
// an error only if a call was not sent although it was needed: ctx ended first,
// or Permits refused. What has been sent runs to its end under the source's
// timeout, also when ctx ends. Once one document's answer makes the others
// useless, those not yet sent stay unsent.
func (s *Source) Fetch(ctx context.Context, p *Plan, permits Permits) (*Answers, error) {
	a := &Answers{plan: p, answers: make([]answer, len(p.requests))}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var (
		wg     sync.WaitGroup
		mu     sync.Mutex
		unsent error
	)
	for i := range p.requests {
		wg.Go(func() {
			one, calls, err := s.call(ctx, p, p.requests[i], permits)
			mu.Lock()
			defer mu.Unlock()
			a.Calls += calls
			a.answers[i] = one
			switch {
			case errors.Is(err, errUseless):
				a.answers[i].err = err
			case err != nil:
				unsent = errors.Join(unsent, err)
				stop(err)
			case one.err != nil || one.status != http.StatusOK:
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

// call fetches one document, following one redirect on the same host. An error
// means that a request which was needed was not sent.
func (s *Source) call(ctx context.Context, p *Plan, r request, permits Permits) (one answer, calls int, err error) {
	for range 2 {
		var sent int
		one, sent, err = s.send(ctx, p, r, permits)
		calls += sent
		if err != nil || one.err != nil || one.status < 300 || one.status > 399 || one.status == http.StatusNotModified {
			return one, calls, err
		}
		to := redirection(r.url, one.header.Get("Location"))
		if to == nil {
			break
		}
		r.url = to
	}
	return one, calls, nil
}

// redirection returns where a redirect leads, or nil if that is nowhere or on
// another host: the credential must not follow there.
func redirection(from *url.URL, location string) *url.URL {
	to, err := from.Parse(location)
	if err != nil || location == "" || to.Scheme != from.Scheme || to.Host != from.Host {
		return nil
	}
	return to
}

// send makes one request. The transport sends it again by itself when a reused
// connection turns out to be closed, so the permit is asked for where every
// sending passes: after a connection is obtained and before anything is written.
func (s *Source) send(ctx context.Context, p *Plan, r request, permits Permits) (one answer, calls int, err error) {
	permit, err := permits.Acquire(ctx, r.call)
	if err != nil {
		return answer{}, 0, unsentCause(ctx, err)
	}
	defer func() { permit.Release() }()

	// Until its permit is spent the request ends with ctx; then only with its own timeout.
	call, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	detach := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	defer detach()
	var timer *time.Timer
	defer func() {
		if timer != nil {
			timer.Stop()
		}
	}()

	var spent atomic.Pointer[Permit] // the transport writes and reads in goroutines of its own
	var req *http.Request
	var refused error
	refuse := func(conn net.Conn, err error) {
		refused = err
		cancel(err)
		// Cancelling races with the write; on a closed connection nothing is written.
		_ = conn.Close()
	}
	trace := &httptrace.ClientTrace{GotConn: func(got httptrace.GotConnInfo) {
		waiting := ctx
		if calls > 0 { // the transport sends it again: a second call, a second permit
			waiting = call
			if p := spent.Swap(nil); p != nil {
				(*p).Finished(Ended{Err: errUnanswered})
			}
			again, err := permits.Acquire(call, r.call)
			if err != nil {
				refuse(got.Conn, err)
				return
			}
			permit = again
		} else if !detach() { // before the permit is spent: nothing spent is cut off
			refuse(got.Conn, context.Cause(ctx))
			return
		}
		if err := permit.Spend(waiting); err != nil {
			refuse(got.Conn, err)
			return
		}
		used := permit
		spent.Store(&used)
		calls++
		// What waited for its permit until now is sent with the credential of now.
		if err := s.authorize(req, permit.Credential()); err != nil {
			refuse(got.Conn, err)
			return
		}
		if timer == nil {
			timer = time.AfterFunc(s.config.Timeout, func() { cancel(errTimeout) })
		}
	}}
	trace.WroteRequest = func(w httptrace.WroteRequestInfo) {
		if p := spent.Load(); p != nil && w.Err == nil {
			(*p).Written()
		}
	}
	trace.GotFirstResponseByte = func() {
		if p := spent.Load(); p != nil {
			(*p).Answered()
		}
	}
	req, err = http.NewRequestWithContext(httptrace.WithClientTrace(call, trace), http.MethodGet, r.url.String(), http.NoBody)
	if err != nil {
		return answer{}, 0, err
	}
	s.dress(req, p.validator)
	defer func() {
		if p := spent.Load(); p != nil {
			(*p).Finished(Ended{Status: one.status, Err: one.err, Notices: s.notices(one)})
		}
	}()

	// RoundTrip and not a Client: nothing here may send a request of its own.
	resp, err := s.transport.RoundTrip(req)
	if err != nil {
		switch {
		case refused != nil:
			err = refused
		case calls == 0 && ctx.Err() != nil:
			refused = unsentCause(ctx, err)
		}
		if calls == 0 && refused != nil {
			return answer{}, 0, refused
		}
		return answer{err: plainError(call, err)}, calls, nil
	}
	defer func() { _ = resp.Body.Close() }()
	one = answer{status: resp.StatusCode, header: resp.Header}
	one.body, one.err = readBody(resp, int64(s.config.MaxBody))
	if one.err != nil {
		one.err = plainError(call, one.err)
	}
	return one, calls, nil
}

// errUnanswered ends a call that the transport sends again by itself.
var errUnanswered = errors.New("the connection was closed before there was an answer")

var errTimeout = errors.New("no whole answer within the source's timeout")

// unsentCause prefers why the request was given up over how that surfaced.
func unsentCause(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// plainError names the timeout instead of a cancelled context.
func plainError(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && errors.Is(err, context.Canceled) {
		return cause
	}
	return err
}

func (s *Source) dress(req *http.Request, v Validator) {
	req.Header.Set("User-Agent", "freshet")
	req.Header.Set("Accept", "application/json")
	// Set explicitly, so that the transport leaves the body compressed: it waits
	// for its turn to be read in a fraction of the memory.
	if s.config.Gzip {
		req.Header.Set("Accept-Encoding", "gzip")
	} else {
		req.Header.Set("Accept-Encoding", "identity")
	}
	if v.ETag != "" {
		req.Header.Set("If-None-Match", v.ETag)
	} else if v.LastModified != "" {
		req.Header.Set("If-Modified-Since", v.LastModified)
	}
}

// readBody reads at most limit bytes, as they come on the wire.
func readBody(resp *http.Response, limit int64) ([]byte, error) {
	var b bytes.Buffer
	if n := resp.ContentLength; n > 0 && n <= limit {
		b.Grow(int(n) + bytes.MinRead)
	}
	n, err := b.ReadFrom(io.LimitReader(resp.Body, limit+1))
	if err == nil && n > limit {
		b.Truncate(int(limit))
		err = ErrOversized
	}
	return b.Bytes(), err
}

func newTransport(inFlight int) *http.Transport {
	dialer := &net.Dialer{Timeout: 5 * time.Second, KeepAlive: 30 * time.Second}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true) // one call a connection: the moment of writing is known
	return &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           dialer.DialContext,
		TLSHandshakeTimeout:   5 * time.Second,
		MaxIdleConns:          0, // no limit but the one below
		MaxIdleConnsPerHost:   inFlight,
		IdleConnTimeout:       90 * time.Second,
		ExpectContinueTimeout: time.Second,
		DisableCompression:    true,
		Protocols:             protocols,
	}
}
