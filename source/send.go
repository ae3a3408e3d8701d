package source

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"time"
)

// send makes one HTTP request. The transport resends the request by itself if a reused connection
// turns out to be closed. Each permit is therefore spent in the httptrace hook GotConn, which runs for
// every attempt before anything is written. `room` is the maximum length of the response body in
// bytes.
func (s caller) send(ctx context.Context, r documentRequest, room int64) (resp response, calls int, err error) {
	permit, err := s.permits.Acquire(ctx, r.call)
	if err != nil {
		return response{}, 0, unsentCause(ctx, err)
	}
	defer func() { permit.Release() }()

	// Until the permit is spent, the end of ctx cancels the request. Afterwards only Config.Timeout
	// ends it, because the upstream counts a sent call even if it is cancelled.
	callCtx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	detach := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	defer detach()
	var timer *time.Timer
	defer func() {
		if timer != nil {
			timer.Stop()
		}
	}()

	var generation atomic.Int64
	var spent atomic.Pointer[Permit] // the spent permit; it is shared with the goroutines of the transport
	var req *http.Request
	var abortErr error
	abort := func(conn net.Conn, err error) {
		abortErr = err
		cancel(err)
		// The request must not be sent. Calling cancel does not prevent that, because the transport
		// may already be writing the request. Closing the connection prevents it.
		_ = conn.Close()
	}
	trace := &httptrace.ClientTrace{GotConn: func(got httptrace.GotConnInfo) {
		spendCtx := ctx
		if calls > 0 { // the transport resends the request, which is a second call
			spendCtx = callCtx
			if p := spent.Swap(nil); p != nil {
				(*p).Finished(CallResult{URL: r.url, Err: errConnectionClosed})
			}
			next, err := s.permits.Acquire(callCtx, r.call)
			if err != nil {
				abort(got.Conn, err)
				return
			}
			permit = next
		} else if !detach() {
			// A successful detach keeps the end of ctx from cancelling the call. Here detach returned
			// false, because ctx has ended already.
			abort(got.Conn, context.Cause(ctx))
			return
		}
		if err := permit.Spend(spendCtx); err != nil {
			abort(got.Conn, err)
			return
		}
		used := permit
		spent.Store(&used)
		calls++
		// The credential may have changed while the call waited for its permit.
		sentGeneration, err := s.authorize(req, permit.Credential())
		if err != nil {
			abort(got.Conn, err)
			return
		}
		generation.Store(sentGeneration)
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
		body = bytes.NewReader(r.body) // a type for which net/http sets GetBody, so that the body can be resent
	}
	req, err = http.NewRequestWithContext(httptrace.WithClientTrace(callCtx, trace), r.call.Method, r.url.String(), body)
	if err != nil {
		return response{}, 0, err
	}
	s.setHeaders(req, r)
	defer func() {
		if p := spent.Load(); p != nil {
			result := CallResult{URL: r.url, Status: resp.status, Bytes: len(resp.body), Err: resp.err, Notices: readNotices(s.Source, resp), Generation: generation.Load()}
			if resp.header != nil {
				result.classify = func() classification { return classificationOf(s.Source, resp) }
			}
			(*p).Finished(result)
		}
	}()

	// Use RoundTrip and not Client.Do, because a Client would follow redirects without a permit.
	httpResp, err := s.transport.RoundTrip(req)
	if err != nil {
		switch {
		case abortErr != nil:
			err = abortErr
		case calls == 0 && ctx.Err() != nil:
			abortErr = unsentCause(ctx, err)
		}
		if calls == 0 && abortErr != nil {
			return response{}, 0, abortErr
		}
		return response{url: r.url, err: s.credentials.redactError(cancelCause(callCtx, err)), permit: lastPermit(&spent)}, calls, nil
	}
	defer func() { _ = httpResp.Body.Close() }()
	resp = response{url: r.url, status: httpResp.StatusCode, header: httpResp.Header, permit: lastPermit(&spent)}
	grow := func(int64) error { return nil }
	if memory, bounded := s.permits.(MemoryLimiter); bounded {
		grow = func(n int64) error { return memory.Grow(callCtx, n) }
	}
	resp.body, resp.err = readBody(httpResp, room, r.lastBody, grow)
	if resp.err != nil {
		resp.err = s.credentials.redactError(cancelCause(callCtx, resp.err))
	}
	return resp, calls, nil
}

// lastPermit returns the most recently spent permit, or nil.
func lastPermit(spent *atomic.Pointer[Permit]) Permit {
	if p := spent.Load(); p != nil {
		return *p
	}
	return nil
}

// errConnectionClosed is the CallResult.Err of an attempt that got no response, if the transport
// sends the request again.
var errConnectionClosed = errors.New("the connection was closed before a response arrived")

var errTimeout = errors.New("no complete response within the source's timeout")

// unsentCause returns the cause of ctx's cancellation if there is one, otherwise err.
func unsentCause(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// cancelCause replaces "context canceled" by its cause, for example the timeout.
func cancelCause(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && errors.Is(err, context.Canceled) {
		return cause
	}
	return err
}

func (s caller) setHeaders(req *http.Request, r documentRequest) {
	req.Header.Set("User-Agent", "freshet")
	req.Header.Set("Accept", cmp.Or(s.plan.facet.MediaType(), "application/json"))
	if len(r.body) > 0 {
		req.Header.Set("Content-Type", r.contentType)
	}
	for _, headers := range []map[string]string{s.config.Headers, r.header} {
		for name, value := range headers {
			req.Header.Set(name, value)
		}
	}
	// With an explicit Accept-Encoding header the transport does not decompress the response. The
	// body stays compressed until it is read, which takes a fraction of the memory.
	if s.config.Gzip {
		req.Header.Set("Accept-Encoding", "gzip")
	} else {
		req.Header.Set("Accept-Encoding", "identity")
	}
	if v := s.plan.validator; v.ETag != "" {
		req.Header.Set("If-None-Match", v.ETag)
	} else if v.LastModified != "" {
		req.Header.Set("If-Modified-Since", v.LastModified)
	}
}

// minReadBuffer is the initial size of the buffer for a body, in bytes. If the Content-Length is
// larger, the initial size is larger too, but at most maxFirstReadBuffer, because the header may
// claim more bytes than the body has.
const minReadBuffer, maxFirstReadBuffer = 4 << 10, 64 << 10

// readBody reads at most `limit` bytes of a body as they were sent, possibly compressed. Before it
// allocates n more bytes it calls grow(n). Without a Content-Length it expects a body that is a little
// longer than the document's last body, and then updates lastBody.
func readBody(httpResp *http.Response, limit int64, lastBody *atomic.Int64, grow func(n int64) error) ([]byte, error) {
	last := lastBody.Load()
	size := min(max(minReadBuffer, last+last/16+1), limit+1, maxFirstReadBuffer)
	if n := httpResp.ContentLength; n >= 0 && n <= limit {
		size = min(n+1, maxFirstReadBuffer) // one byte more than the body, so that the read reaches EOF
	}
	var body []byte
	for {
		if len(body) == cap(body) {
			more := min(max(int64(cap(body)), size), limit+1-int64(cap(body)))
			if n := httpResp.ContentLength; n >= int64(cap(body)) && n <= limit {
				more = min(more, n+1-int64(cap(body)))
			}
			if err := grow(more); err != nil {
				return body, err
			}
			body = append(make([]byte, 0, int64(cap(body))+more), body...)
		}
		n, err := httpResp.Body.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		switch {
		case int64(len(body)) > limit:
			return body[:limit], ErrOversized
		case errors.Is(err, io.EOF):
			if httpResp.ContentLength < 0 {
				lastBody.Store(int64(len(body)))
			}
			return body, nil
		case err != nil:
			return body, err
		}
	}
}

// newTransport returns a transport that keeps up to inFlight idle connections. If dial is nil, it opens
// connections over TCP.
func newTransport(inFlight int, dial func(ctx context.Context, network, address string) (net.Conn, error)) *http.Transport {
	if dial == nil {
		dial = (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	}
	protocols := new(http.Protocols)
	// Use HTTP/1 only. Its connections carry one call at a time, and the transport writes the
	// request directly after it calls GotConn.
	protocols.SetHTTP1(true)
	return &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           dial,
		TLSHandshakeTimeout:   5 * time.Second,
		MaxIdleConns:          0, // with 0 the number of idle connections of all hosts together is unlimited
		MaxIdleConnsPerHost:   inFlight,
		IdleConnTimeout:       90 * time.Second,
		ExpectContinueTimeout: time.Second,
		DisableCompression:    true,
		Protocols:             protocols,
	}
}
