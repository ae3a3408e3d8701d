// Package client calls the HTTP API of a running query service, as the commands do.
package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/problem"
)

const (
	requestTimeout   = 10 * time.Second
	maxResponseBytes = 16 << 20
)

// Client calls the HTTP API of one query service.
type Client struct {
	base  string
	token string
	http  *http.Client
}

// New returns a client for a base URL of BaseURL. token is an API key or access token, or empty.
func New(base, token string, secured *tls.Config) *Client {
	return &Client{base, token, &http.Client{
		Timeout:   requestTimeout,
		Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true, TLSClientConfig: secured},
		// Do not follow redirects: the token must not be sent to another address.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// AllowWait extends the time that a response can take by the time for which the request asks the
// query service to wait.
func (c *Client) AllowWait(d time.Duration) { c.http.Timeout += d }

// BaseURL returns the base URL for addr, which is host:port or already a URL. A listen address for
// all interfaces, such as :8080, becomes a loopback address.
func BaseURL(addr string) (string, error) {
	if !strings.Contains(addr, "://") {
		addr = "http://" + addr
		if _, _, err := net.SplitHostPort(strings.TrimPrefix(addr, "http://")); err != nil {
			return "", errAddress
		}
	}
	u, err := url.Parse(addr)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return "", errAddress
	}
	u.Host = dialAddress(u.Host)
	return strings.TrimRight(u.String(), "/"), nil
}

var errAddress = errors.New("it must be host:port or a URL, as in 127.0.0.1:8080 or https://freshet.example")

// dialAddress returns the address to call for a listen address. An address for all interfaces
// becomes a loopback address.
func dialAddress(address string) string {
	host, port, err := net.SplitHostPort(address)
	if ip := net.ParseIP(host); err == nil && (host == "" || (ip != nil && ip.IsUnspecified())) {
		return net.JoinHostPort("127.0.0.1", port)
	}
	return address
}

// Call sends a request to the admin API, with a JSON body unless body is nil, and decodes the
// response into answer.
func (c *Client) Call(ctx context.Context, method, path string, body, answer any) error {
	r, err := c.Send(ctx, method, "/admin/v1"+path, body)
	if err != nil {
		return err
	}
	if r.Code != http.StatusOK && r.Code != http.StatusCreated {
		return c.ProblemError(r, access.Admin)
	}
	if err := json.Unmarshal(r.Text, answer); err != nil {
		return c.UnexpectedResponse(r)
	}
	return nil
}

// Response is an HTTP response whose body has been read.
type Response struct {
	Code   int
	Status string
	Text   []byte
}

// Send sends a request, with a JSON body unless body is nil, and reads the response.
func (c *Client) Send(ctx context.Context, method, path string, body any) (Response, error) {
	var content io.Reader = http.NoBody
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return Response{}, err
		}
		content = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, content)
	if err != nil {
		return Response{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	resp, err := c.http.Do(req)
	if ctx.Err() != nil {
		return Response{}, context.Cause(ctx)
	}
	if err != nil {
		if failed, ok := errors.AsType[*url.Error](err); ok {
			err = failed.Err
		}
		if unverified, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
			return Response{}, fmt.Errorf("verify the certificate of %s: %w; set FRESHET_CA_FILE to the certificate of its authority, or --addr to a name in the certificate", c.base, unverified.Err)
		}
		if failed, ok := errors.AsType[*net.OpError](err); ok { // its operation and address repeat the text below
			err = failed.Err
		}
		return Response{}, fmt.Errorf("no response from %s: %w; start `freshet query`, or set --addr or FRESHET_ADDR to its address", c.base, err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxResponseBytes+1))
	if err != nil {
		return Response{}, fmt.Errorf("read the response of %s: %w", c.base, err)
	}
	if len(text) > maxResponseBytes {
		return Response{}, fmt.Errorf("the response of %s is larger than %d MiB; check --addr and FRESHET_ADDR, or request less, for example with --limit", c.base, maxResponseBytes>>20)
	}
	return Response{resp.StatusCode, resp.Status, text}, nil
}

// InvalidItemsError is the error for a problem response that has one error for each invalid item of
// the request.
type InvalidItemsError struct {
	error
	Items []problem.Error
}

// NotFoundError reports that the named object does not exist.
type NotFoundError struct{ Err error }

func (e NotFoundError) Error() string { return e.Err.Error() }

func (e NotFoundError) Unwrap() error { return e.Err }

// ProblemError converts a problem response to an error. scope is the client scope that the request
// needs; the error text names it.
func (c *Client) ProblemError(r Response, scope access.Scope) error {
	var p problem.HTTPError
	if err := json.Unmarshal(r.Text, &p); err != nil || p.Detail == "" || p.Code == "no-such-path" {
		return c.UnexpectedResponse(r)
	}
	switch string(p.Code) {
	case "no-such-source", "no-such-facet", "no-such-key", "no-such-snapshot", "no-such-dead-letter", "no-such-job":
		return NotFoundError{errors.New(p.Detail)}
	case "token-missing", "token-invalid", "token-expired", "insufficient-scope":
		return fmt.Errorf("%s rejected the credentials: %s Set FRESHET_TOKEN to an API key or token with the scope %s", c.base, p.Detail, scope)
	}
	if len(p.Errors) > 0 || p.Code == "unreadable-dead-letter" {
		return InvalidItemsError{errors.New(p.Detail), p.Errors}
	}
	return errors.New(p.Detail)
}

// UnexpectedResponse is the error for a response that no query service of this release sends.
func (c *Client) UnexpectedResponse(r Response) error {
	return fmt.Errorf("unexpected response %s from %s: it is not a freshet query service of this release; check --addr and FRESHET_ADDR", r.Status, c.base)
}
