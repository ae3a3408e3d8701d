package source

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"time"
)

// send makes one request. The transport sends it again by itself when a reused
// connection turns out to be closed, so the permit is asked for where every
// sending passes: after a connection is obtained and before anything is written.
// The body may have room bytes.
func (s *Source) send(ctx context.Context, p *Plan, r documentRequest, room int64, permits Permits) (one response, calls int, err error) {
	permit, err := permits.Acquire(ctx, r.call)
	if err != nil {
		return response{}, 0, unsentCause(ctx, err)
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
				(*p).Finished(CallResult{Err: errConnectionClosed})
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
	body := io.Reader(http.NoBody)
	if len(r.body) > 0 {
		body = bytes.NewReader(r.body) // of which the request knows how to send it again
	}
	req, err = http.NewRequestWithContext(httptrace.WithClientTrace(call, trace), r.call.Method, r.url.String(), body)
	if err != nil {
		return response{}, 0, err
	}
	s.setHeaders(req, r, p.validator)
	defer func() {
		if p := spent.Load(); p != nil {
			(*p).Finished(CallResult{Status: one.status, Err: one.err, Notices: s.readNotices(one)})
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
			return response{}, 0, refused
		}
		return response{err: s.redactError(plainError(call, err)), permit: lastPermit(&spent)}, calls, nil
	}
	defer func() { _ = resp.Body.Close() }()
	one = response{status: resp.StatusCode, header: resp.Header, permit: lastPermit(&spent)}
	grow := func(int64) error { return nil }
	if memory, bounded := permits.(MemoryLimiter); bounded {
		grow = func(n int64) error { return memory.Grow(call, n) }
	}
	one.body, one.err = readBody(resp, room, grow)
	if one.err != nil {
		one.err = s.redactError(plainError(call, one.err))
	}
	return one, calls, nil
}

// lastPermit returns the permit that was spent last, or nil.
func lastPermit(spent *atomic.Pointer[Permit]) Permit {
	if p := spent.Load(); p != nil {
		return *p
	}
	return nil
}

// errConnectionClosed ends a call that the transport sends again by itself.
var errConnectionClosed = errors.New("the connection was closed before there was an answer")

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

func (s *Source) setHeaders(req *http.Request, r documentRequest, v Validator) {
	req.Header.Set("User-Agent", "freshet")
	req.Header.Set("Accept", "application/json")
	if len(r.body) > 0 {
		req.Header.Set("Content-Type", r.contentType)
	}
	for _, headers := range []map[string]string{s.config.Headers, r.header} {
		for name, value := range headers {
			req.Header.Set(name, value)
		}
	}
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

// minReadBuffer is how many bytes are made ready for a body before it is read. What an answer
// says of its length may be false, so it is believed up to knownRead only.
const minReadBuffer, maxFirstReadBuffer = 4 << 10, 64 << 10

// readBody reads at most limit bytes, as they come on the wire. Memory is asked for before
// it is used.
func readBody(resp *http.Response, limit int64, grow func(n int64) error) ([]byte, error) {
	size := int64(minReadBuffer)
	if n := resp.ContentLength; n >= 0 && n <= limit {
		size = min(n+1, maxFirstReadBuffer) // one more, so that the end is seen
	}
	var body []byte
	for {
		if len(body) == cap(body) {
			more := min(max(int64(cap(body)), size), limit+1-int64(cap(body)))
			if n := resp.ContentLength; n >= int64(cap(body)) && n <= limit {
				more = min(more, n+1-int64(cap(body)))
			}
			if err := grow(more); err != nil {
				return body, err
			}
			body = append(make([]byte, 0, int64(cap(body))+more), body...)
		}
		n, err := resp.Body.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		switch {
		case int64(len(body)) > limit:
			return body[:limit], ErrOversized
		case errors.Is(err, io.EOF):
			return body, nil
		case err != nil:
			return body, err
		}
	}
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
