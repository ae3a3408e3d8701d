package client

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/freshet/freshet/problem"
)

// Problem is an error response (RFC 9457). Code identifies its kind; the constants of package
// problem are its values. After is the delay of Retry-After, and Header has the response headers.
type Problem = problem.HTTPError //nolint:errname // the name of RFC 9457

// Response is an HTTP response whose body has been read and decompressed.
type Response struct {
	Code   int
	Status string
	Header http.Header
	Text   []byte
}

// Problem returns the problem that the response contains. The error is a *Problem, or, if the
// response contains none, an error that names the status.
func (r Response) Problem() error {
	var p Problem
	if err := json.Unmarshal(r.Text, &p); err != nil || p.Code == "" || p.Detail == "" {
		return fmt.Errorf("unexpected response %s; it does not come from a freshet query service of this release: check the address", r.Status)
	}
	p.Status, p.Header, p.After = r.Code, r.Header, retryAfter(r.Header)
	return &p
}

// code returns the problem code of the response, or an empty code.
func (r Response) code() problem.Code {
	if p, ok := errors.AsType[*Problem](r.Problem()); ok {
		return p.Code
	}
	return ""
}

// retryAfter returns the delay of the header Retry-After, in seconds or as a time, or 0.
func retryAfter(h http.Header) time.Duration {
	value := h.Get("Retry-After")
	if seconds, err := strconv.ParseInt(value, 10, 32); err == nil {
		return max(0, time.Duration(seconds)*time.Second)
	}
	if at, err := http.ParseTime(value); err == nil {
		return max(0, time.Until(at))
	}
	return 0
}

// request is one call of the API. It may be sent several times.
type request struct {
	method, path string
	body         []byte
	etag         string        // value of the header If-None-Match; empty: no such header
	lastEventID  string        // value of the header Last-Event-ID; empty: no such header
	idempotency  string        // value of the header Idempotency-Key; empty: no such header
	stream       bool          // true: the response is a stream of events, so its body has no timeout
	wait         time.Duration // how long the service may delay its response, as the caller of Wait requested
	safe         bool          // the request may be sent again after any failure: it changes nothing, or has an idempotency key
}

// Send sends any request to the API and returns the response, which may have any status. The path
// begins with a slash. The request has a JSON body unless `body` is nil. GET and HEAD are repeated like
// other reads.
func (c *Client) Send(ctx context.Context, method, path string, body any) (Response, error) {
	if !strings.HasPrefix(path, "/") {
		return Response{}, errors.New("the path of a request must begin with a slash") // without the slash, the path could change the host of the URL, and the token would be sent to that host
	}
	r := request{method: method, path: path, safe: method == http.MethodGet || method == http.MethodHead}
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return Response{}, fmt.Errorf("encode the body of the request: %w", err)
		}
		r.body = text
	}
	return c.do(ctx, &r)
}

// do sends a request, and reads the response.
func (c *Client) do(ctx context.Context, r *request) (answer Response, err error) {
	err = c.attempts(ctx, r, func(token string) (Response, error) {
		limited, cancel := context.WithTimeout(ctx, c.options.Timeout+r.wait)
		defer cancel()
		resp, err := c.send(limited, r, token) //nolint:bodyclose // read closes the body
		if err == nil {
			answer, err = c.read(resp)
		}
		if err != nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		} else if err != nil && limited.Err() != nil {
			err = &ConnectionError{c.name, fmt.Errorf("the timeout of %v has expired: %w", c.options.Timeout+r.wait, context.DeadlineExceeded)}
		}
		return answer, err
	})
	return answer, err
}

// attempts calls `send` until it succeeds or must not be repeated. An error response is a success
// here, unless it may be repeated.
func (c *Client) attempts(ctx context.Context, r *request, send func(token string) (Response, error)) error {
	c.budget.deposit()
	renewed := false
	for retries := 0; ; {
		if err := c.pause.wait(ctx); err != nil {
			return err
		}
		token, generation, err := c.tokens.get(ctx)
		if err != nil {
			return err
		}
		answer, err := send(token)
		if err == nil && answer.Code == http.StatusUnauthorized && c.tokens.renew != nil && answer.code() == problem.TokenExpired {
			if renewed {
				return c.tokens.reject(generation, answer.Problem())
			}
			if err := c.tokens.renewAfter(ctx, generation); err != nil {
				return err
			}
			if ctx.Value(sensitiveKey{}) != nil {
				return ErrConfirm
			}
			renewed = true
			continue
		}
		c.pause.observe(answer)
		delay, again := r.retryDelay(answer, err, retries)
		if !again || retries >= c.options.MaxRetries || !fits(ctx, delay) || !c.budget.withdraw() {
			return err
		}
		retries++
		c.options.Log.Debug("request failed; repeating it", "method", r.method, "status", answer.Code, "retry", retries, "delay", delay, "err", err)
		if err := sleep(ctx, delay); err != nil {
			return err
		}
	}
}

// send sends a request once. The caller closes the body of the response.
func (c *Client) send(ctx context.Context, r *request, token string) (*http.Response, error) {
	var body io.Reader = http.NoBody
	if r.body != nil {
		body = bytes.NewReader(r.body)
	}
	req, err := http.NewRequestWithContext(ctx, r.method, c.base+r.path, body)
	if err != nil {
		return nil, fmt.Errorf("the path of the request to %s is invalid", c.name)
	}
	h := req.Header
	if r.body != nil || r.method == http.MethodPost {
		h["Content-Type"] = jsonType
	}
	if token != "" {
		h["Authorization"] = []string{"Bearer " + token}
	}
	if r.etag != "" {
		h["If-None-Match"] = []string{r.etag}
	}
	if r.wait > 0 {
		h["Prefer"] = []string{"wait=" + strconv.Itoa(problem.Seconds(r.wait))}
	}
	if r.stream {
		h["Accept"] = eventStreamType
	} else if c.options.Zstd != nil {
		h["Accept-Encoding"] = zstdOrGzip
	}
	if r.lastEventID != "" {
		h["Last-Event-Id"] = []string{r.lastEventID}
	}
	if r.idempotency != "" {
		h["Idempotency-Key"] = []string{r.idempotency}
	}
	if c.options.Traceparent != nil {
		if parent := c.options.Traceparent(ctx); parent != "" {
			h["Traceparent"] = []string{parent}
		}
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, &ConnectionError{c.name, causeOf(err)}
	}
	return resp, nil
}

// Header values, allocated once.
var (
	jsonType        = []string{"application/json"}
	eventStreamType = []string{"text/event-stream"}
	zstdOrGzip      = []string{"zstd, gzip"}
)

// causeOf returns the cause of a failed request without the URL and the operation. The URL is
// removed because it contains the key of the entity. The caller of causeOf adds the address to the
// error.
func causeOf(err error) error {
	if failed, ok := errors.AsType[*url.Error](err); ok {
		err = failed.Err
	}
	if failed, ok := errors.AsType[*net.OpError](err); ok {
		err = failed.Err
	}
	return err
}

// read reads, decompresses and closes the body of a response.
func (c *Client) read(resp *http.Response) (Response, error) {
	answer := Response{Code: resp.StatusCode, Status: resp.Status, Header: resp.Header}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode == http.StatusNotModified || resp.StatusCode == http.StatusNoContent {
		return answer, nil
	}
	body, err := c.decompressed(resp)
	if err != nil {
		return Response{}, fmt.Errorf("decompress the response of %s: %w", c.name, err)
	}
	defer func() { _ = body.Close() }()
	answer.Text, err = io.ReadAll(io.LimitReader(body, c.options.MaxResponseBytes+1))
	if err != nil {
		return Response{}, &ConnectionError{c.name, fmt.Errorf("read the response: %w", err)}
	}
	if int64(len(answer.Text)) > c.options.MaxResponseBytes {
		return Response{}, fmt.Errorf("the response of %s is larger than %s; request less, or raise MaxResponseBytes", c.name, sizeText(c.options.MaxResponseBytes))
	}
	return answer, nil
}

func sizeText(bytes int64) string {
	if bytes < 1<<20 {
		return strconv.FormatInt(bytes, 10) + " bytes"
	}
	return strconv.FormatInt(bytes>>20, 10) + " MiB"
}

// decompressed returns the decompressed body of a response. If the client sent no Accept-Encoding
// of its own, net/http has already decompressed the body and removed the header Content-Encoding.
func (c *Client) decompressed(resp *http.Response) (io.ReadCloser, error) {
	switch encoding := resp.Header.Get("Content-Encoding"); encoding {
	case "", "identity":
		return io.NopCloser(resp.Body), nil
	case "gzip":
		return gzip.NewReader(resp.Body)
	case "zstd":
		if c.options.Zstd != nil {
			return c.options.Zstd(resp.Body)
		}
		fallthrough
	default:
		return nil, fmt.Errorf("unsupported Content-Encoding %q", encoding)
	}
}
