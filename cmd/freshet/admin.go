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

// adminClient calls the HTTP API of a running query service.
type adminClient struct {
	base   string
	token  string
	client *http.Client
}

func addAddrFlag(c *cobra.Command, addr *string) {
	c.Flags().StringVar(addr, "addr", "", "address of a query service (default FRESHET_ADDR, or query.listen); FRESHET_TOKEN holds the API key or token")
}

// runWithAPI makes c a command that calls a query service: it adds --addr, and passes a client for
// that address to run.
func (p *program) runWithAPI(c *cobra.Command, run func(cmd *cobra.Command, api *adminClient, args []string) error) *cobra.Command {
	var addr string
	addAddrFlag(c, &addr)
	c.RunE = func(cmd *cobra.Command, args []string) error {
		api, err := p.newAdminClient(addr)
		if err != nil {
			return err
		}
		return run(cmd, api, args)
	}
	return c
}

// newAdminClient returns a client for the query service at addr. An empty addr means the address in
// FRESHET_ADDR, and if that is not set, query.listen in the configuration. It reads the
// configuration only in the last case, so an invalid one does not prevent an emergency stop.
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
		fmt.Fprintf(p.stderr, "warning: FRESHET_TOKEN is sent to %s unencrypted; use https\n", host)
	}
	secured, err := p.clientTLS()
	if err != nil {
		return nil, err
	}
	return &adminClient{base, token, &http.Client{
		Timeout:   adminTimeout,
		Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true, TLSClientConfig: secured},
		// Do not follow redirects: the token must not be sent to another address.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// parseBaseURL returns the base URL for addr, which is host:port or already a URL. A listen address
// for all interfaces, such as :8080, becomes a loopback address.
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

// isRemotePlainHTTP returns the host of the URL base, and whether requests to it leave this machine
// unencrypted.
func isRemotePlainHTTP(base string) (host string, plain bool) {
	u, err := url.Parse(base)
	if err != nil {
		return "", false // impossible: parseBaseURL has checked the URL
	}
	return u.Host, u.Scheme == "http" && !access.Loopback(u.Host)
}

// call sends a request to the admin API, with a JSON body unless body is nil, and decodes the
// response into answer.
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

// response is an HTTP response whose body has been read.
type response struct {
	code   int
	status string
	text   []byte
}

// send sends a request, with a JSON body unless body is nil, and reads the response.
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
			return response{}, fmt.Errorf("verify the certificate of %s: %w; set FRESHET_CA_FILE to the certificate of its authority, or --addr to a name in the certificate", a.base, unverified.Err)
		}
		return response{}, fmt.Errorf("no response from %s: %w; start `freshet query`, or set --addr or FRESHET_ADDR to its address", a.base, unwrapOpError(err))
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxResponseBytes+1))
	if err != nil {
		return response{}, fmt.Errorf("read the response of %s: %w", a.base, err)
	}
	if len(text) > maxResponseBytes {
		return response{}, fmt.Errorf("the response of %s is larger than %d MiB; check --addr and FRESHET_ADDR, or request less, for example with --limit", a.base, maxResponseBytes>>20)
	}
	return response{resp.StatusCode, resp.Status, text}, nil
}

// invalidItemsError is the error for a problem response that has one error for each invalid item of
// the request.
type invalidItemsError struct {
	error
	items []problem.Error
}

// problemError converts a problem response to an error. scope is the client scope that the request
// needs; the error text names it.
func (a *adminClient) problemError(r response, scope access.Scope) error {
	var p problem.HTTPError
	if err := json.Unmarshal(r.text, &p); err != nil || p.Detail == "" || p.Code == "no-such-path" {
		return a.unexpectedResponse(r)
	}
	switch string(p.Code) {
	case "no-such-source", "no-such-facet", "no-such-key", "no-such-snapshot", "no-such-dead-letter", "no-such-job":
		return notFoundError{errors.New(p.Detail)}
	case "token-missing", "token-invalid", "token-expired", "insufficient-scope":
		return fmt.Errorf("%s rejected the credentials: %s Set FRESHET_TOKEN to an API key or token with the scope %s", a.base, p.Detail, scope)
	}
	if len(p.Errors) > 0 || p.Code == "unreadable-dead-letter" {
		return invalidItemsError{errors.New(p.Detail), p.Errors}
	}
	return errors.New(p.Detail)
}

func (a *adminClient) unexpectedResponse(r response) error {
	return fmt.Errorf("unexpected response %s from %s: it is not a freshet query service of this release; check --addr and FRESHET_ADDR", r.status, a.base)
}

// settings returns the settings of one source, or of all sources if source is empty.
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

// resolveSource returns source, or the name of the only configured source if source is empty. With
// several configured sources and no name it returns a usageError. The parameter "instead" is the end
// of the error's text. It may name another flag, such as ", or use --all".
func (a *adminClient) resolveSource(ctx context.Context, source, instead string) (string, error) {
	if source != "" {
		return source, nil
	}
	all, err := a.sourceNames(ctx)
	if err != nil {
		return "", err
	}
	if len(all) != 1 {
		return "", usageError{fmt.Errorf("there are several sources; choose one of %s with --source%s", strings.Join(all, ", "), instead)}
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

// keepAlive enables HTTP keep-alive, for commands that send many requests. The returned function
// closes the idle connections.
func (a *adminClient) keepAlive() (leave func()) {
	transport := a.client.Transport.(*http.Transport).Clone()
	transport.DisableKeepAlives, transport.MaxIdleConnsPerHost = false, maxBatchesInFlight
	a.client.Transport = transport
	return transport.CloseIdleConnections
}
