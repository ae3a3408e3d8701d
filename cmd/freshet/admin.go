package main

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

	"github.com/spf13/cobra"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/settings"
)

const (
	adminTimeout     = 10 * time.Second
	maxResponseBytes = 16 << 20
)

// adminClient calls the admin API of a running query service.
type adminClient struct {
	base   string
	token  string
	client *http.Client
}

func addAddrFlag(c *cobra.Command, addr *string) {
	c.Flags().StringVar(addr, "addr", "", "address of a query service (default FRESHET_ADDR, or query.listen); a token in FRESHET_TOKEN is sent along")
}

// newAdminClient returns the API at addr, at FRESHET_ADDR or where the configuration has a
// query service listen. Only the last needs a configuration that can be read: a
// stop must not fail for a mistake in it.
func (p *program) newAdminClient(addr string) (*adminClient, error) {
	if addr == "" {
		addr = lookup(p.env, "FRESHET_ADDR")
	}
	if addr == "" {
		config, err := p.load()
		if err != nil {
			return nil, err
		}
		addr = config.Query.TLS.dialURL(config.Query.Listen)
	}
	base, err := parseBaseURL(addr)
	if err != nil {
		return nil, err
	}
	token := strings.TrimSpace(lookup(p.env, "FRESHET_TOKEN"))
	if host, plain := isRemotePlainHTTP(base); plain && token != "" {
		fmt.Fprintf(p.stderr, "warning: FRESHET_TOKEN travels in clear to %s, and whoever is on the way can read it; use https\n", host)
	}
	secured, err := p.clientTLS()
	if err != nil {
		return nil, err
	}
	return &adminClient{base, token, &http.Client{
		Timeout:   adminTimeout,
		Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true, TLSClientConfig: secured},
		// The token is for this address and for no other.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// parseBaseURL reads host:port or a URL. An address that listens everywhere is called
// on this machine.
func parseBaseURL(addr string) (string, error) {
	wrong := usageError{fmt.Errorf("--addr is %q; it must be host:port or a URL, as in 127.0.0.1:8080 or https://freshet.example", addr)}
	if !strings.Contains(addr, "://") {
		if _, _, err := net.SplitHostPort(addr); err != nil {
			return "", wrong
		}
		return "http://" + dialAddress(addr), nil
	}
	u, err := url.Parse(addr)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return "", wrong
	}
	return strings.TrimRight(addr, "/"), nil
}

// isRemotePlainHTTP reports whether what is sent there leaves this machine unencrypted.
func isRemotePlainHTTP(base string) (host string, plain bool) {
	u, err := url.Parse(base)
	if err != nil {
		return "", false // it was read before
	}
	return u.Host, u.Scheme == "http" && !access.Loopback(u.Host)
}

// call sends a request to the admin API with a body, if there is one, and reads the
// answer.
func (a *adminClient) call(ctx context.Context, method, path string, body, answer any) error {
	r, err := a.send(ctx, method, "/admin/v1"+path, body)
	if err != nil {
		return err
	}
	if r.code != http.StatusOK && r.code != http.StatusCreated {
		return a.problemError(r, access.Admin)
	}
	if err := json.Unmarshal(r.text, answer); err != nil {
		return a.unexpectedResponse(r)
	}
	return nil
}

// response is an answer that was read.
type response struct {
	code   int
	status string
	text   []byte
}

// send sends a request with a body, if there is one, and reads the answer.
func (a *adminClient) send(ctx context.Context, method, path string, body any) (response, error) {
	var content io.Reader = http.NoBody
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return response{}, err
		}
		content = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, a.base+path, content)
	if err != nil {
		return response{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	if a.token != "" {
		req.Header.Set("Authorization", "Bearer "+a.token)
	}
	resp, err := a.client.Do(req)
	if ctx.Err() != nil {
		return response{}, context.Cause(ctx)
	}
	if err != nil {
		if failed, ok := errors.AsType[*url.Error](err); ok {
			err = failed.Err
		}
		if unverified, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
			return response{}, fmt.Errorf("the certificate of %s cannot be verified: %w; set FRESHET_CA_FILE to the certificate of its authority, or --addr to a name that it is for", a.base, unverified.Err)
		}
		return response{}, fmt.Errorf("nothing answers at %s: %w; start `freshet query`, or say where one runs with --addr or FRESHET_ADDR", a.base, unwrapOpError(err))
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxResponseBytes+1))
	if err != nil {
		return response{}, fmt.Errorf("read the answer of %s: %w", a.base, err)
	}
	if len(text) > maxResponseBytes {
		return response{}, fmt.Errorf("the answer of %s has more than %d MiB, which no query service gives; check --addr and FRESHET_ADDR, or ask for less, as with --limit", a.base, maxResponseBytes>>20)
	}
	return response{resp.StatusCode, resp.Status, text}, nil
}

// invalidItemsError is what a query service says is wrong, one by one.
type invalidItemsError struct {
	error
	items []problem.Error
}

// problemError returns the error that a problem is; scope is what was to be allowed.
func (a *adminClient) problemError(r response, scope access.Scope) error {
	var p problem.HTTPError
	if err := json.Unmarshal(r.text, &p); err != nil || p.Detail == "" || p.Code == "no-such-path" {
		return a.unexpectedResponse(r)
	}
	switch p.Code {
	case "no-such-source", "no-such-facet", "no-such-key", "no-such-snapshot", "no-such-dead-letter", "no-such-job":
		return notFoundError{errors.New(p.Detail)}
	case "TOKEN_MISSING", "INVALID_TOKEN", "TOKEN_EXPIRED", "insufficient-scope":
		return fmt.Errorf("%s asks who calls: %s Set FRESHET_TOKEN to an API key or token that has the scope %s", a.base, p.Detail, scope)
	}
	if len(p.Errors) > 0 || p.Code == "unreadable-dead-letter" {
		return invalidItemsError{errors.New(p.Detail), p.Errors}
	}
	return errors.New(p.Detail)
}

func (a *adminClient) unexpectedResponse(r response) error {
	return fmt.Errorf("%s answered %s, and not as a query service of this release does; check --addr and FRESHET_ADDR", a.base, r.status)
}

// settings returns the named source's settings, or those of all.
func (a *adminClient) settings(ctx context.Context, source string) ([]settings.State, error) {
	if source != "" {
		var one settings.State
		err := a.call(ctx, http.MethodGet, "/settings/"+url.PathEscape(source), nil, &one)
		return []settings.State{one}, err
	}
	var all struct {
		Settings []settings.State `json:"settings"`
	}
	err := a.call(ctx, http.MethodGet, "/settings", nil, &all)
	return all.Settings, err
}

// resolveSource returns the named source, or the only one that there is. instead says what
// else could be done if there are several.
func (a *adminClient) resolveSource(ctx context.Context, source, instead string) (string, error) {
	if source != "" {
		return source, nil
	}
	all, err := a.sourceNames(ctx)
	if err != nil {
		return "", err
	}
	if len(all) != 1 {
		return "", usageError{fmt.Errorf("which source? name one of %s with --source%s", strings.Join(all, ", "), instead)}
	}
	return all[0], nil
}

func (a *adminClient) sourceNames(ctx context.Context) ([]string, error) {
	all, err := a.settings(ctx, "")
	var names []string
	for _, s := range all {
		names = append(names, s.Source)
	}
	return names, err
}

// keepAlive has connections last from one call to the next, for who makes many, until the
// returned function is called.
func (a *adminClient) keepAlive() (leave func()) {
	transport := a.client.Transport.(*http.Transport).Clone()
	transport.DisableKeepAlives, transport.MaxIdleConnsPerHost = false, maxBatchesInFlight
	a.client.Transport = transport
	return transport.CloseIdleConnections
}
