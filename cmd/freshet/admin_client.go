package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/app"
	"github.com/freshet/freshet/client"
	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/settings"
	"github.com/freshet/freshet/store/deadletters"
)

// adminClient calls a query service for the commands. Its errors name the flags and the variables
// of the commands.
type adminClient struct {
	*client.Client
	base      string
	options   client.Options
	transport *http.Transport
}

// newClient returns a client for the base URL `base`, which client.BaseURL has returned. The client
// retries no request, because the user of a command sees the error and can run the command again.
func newClient(base, token string, secured *tls.Config) (*adminClient, error) {
	c := &adminClient{
		base: base, options: client.Options{Token: client.Token{Value: token}, Timeout: client.DefaultTimeout, MaxRetries: -1, MaxCacheBytes: -1},
		transport: &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true, TLSClientConfig: secured},
	}
	return c, c.configure()
}

// configure creates the client with the current options.
func (c *adminClient) configure() (err error) {
	c.options.Transport = c.transport
	c.Client, err = client.New(c.base, c.options)
	return err
}

// AllowWait extends the timeout of each request by d, the time that the request asks the query
// service to wait.
func (c *adminClient) AllowWait(d time.Duration) error {
	c.options.Timeout += d
	return c.configure()
}

// KeepAlive enables HTTP keep-alive, for many requests with up to `connections` at once. The
// returned function closes the idle connections.
func (c *adminClient) KeepAlive(connections int) (leave func()) {
	c.transport = c.transport.Clone()
	c.transport.DisableKeepAlives, c.transport.MaxIdleConnsPerHost = false, connections
	if err := c.configure(); err != nil {
		panic(err) // impossible: newClient has already accepted this base URL
	}
	return c.transport.CloseIdleConnections
}

// Send sends a request and reads the response. The request has a JSON body unless `body` is nil.
func (c *adminClient) Send(ctx context.Context, method, path string, body any) (client.Response, error) {
	r, err := c.Client.Send(ctx, method, path, body)
	if failed, ok := errors.AsType[*client.ConnectionError](err); ok {
		if unverified, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
			return r, fmt.Errorf("verify the certificate of %s: %w; set FRESHET_CA_FILE to the certificate of its authority, or --addr to a name in the certificate", c.base, unverified.Err)
		}
		return r, fmt.Errorf("no response from %s: %w; start `freshet query`, or set --addr or FRESHET_ADDR to its address", c.base, failed.Err)
	}
	return r, err
}

// Call sends a request to the admin API and decodes the response into `answer`. The request has a
// JSON body unless `body` is nil.
func (c *adminClient) Call(ctx context.Context, method, path string, body, answer any) error {
	r, err := c.Send(ctx, method, "/admin/v1"+path, body)
	if err != nil {
		return err
	}
	if r.Code != http.StatusOK && r.Code != http.StatusCreated && r.Code != http.StatusAccepted {
		return c.ProblemError(r, access.Admin)
	}
	if err := json.Unmarshal(r.Text, answer); err != nil {
		return c.UnexpectedResponse(r)
	}
	return nil
}

// invalidItemsError is the error for a problem response that has one error for each invalid item of
// the request.
type invalidItemsError struct {
	error
	Items []problem.Error
}

// ProblemError converts a problem response to an error. The argument `scope` is the client scope
// that the request needs; the error text names it.
func (c *adminClient) ProblemError(r client.Response, scope access.Scope) error {
	p, ok := errors.AsType[*client.Problem](r.Problem())
	if !ok || p.Code == problem.NoSuchPath {
		return c.UnexpectedResponse(r)
	}
	switch p.Code {
	case problem.NoSuchSource, problem.NoSuchFacet, problem.NoSuchKey, problem.NoSuchSnapshot, problem.NoSuchDeadLetter, problem.NoSuchJob, problem.NoSuchCredits:
		return app.NotFoundError{Err: errors.New(p.Detail)}
	case problem.TokenMissing, problem.TokenInvalid, problem.TokenExpired, problem.InsufficientScope:
		return fmt.Errorf("%s rejected the credentials: %s Set FRESHET_TOKEN to an API key or token with the scope %s", c.base, p.Detail, scope)
	default:
	}
	if len(p.Errors) > 0 || p.Code == problem.UnreadableDeadLetter {
		return invalidItemsError{errors.New(p.Detail), p.Errors}
	}
	return errors.New(p.Detail)
}

// UnexpectedResponse is the error for a response that no query service of this release sends.
func (c *adminClient) UnexpectedResponse(r client.Response) error {
	return fmt.Errorf("unexpected response %s from %s: it is not a freshet query service of this release; check --addr and FRESHET_ADDR", r.Status, c.base)
}

// Settings returns the settings of one source, or of all sources if `source` is empty.
func (c *adminClient) Settings(ctx context.Context, source string) ([]settings.State, error) {
	if source != "" {
		var one settings.State
		err := c.Call(ctx, http.MethodGet, "/settings/"+url.PathEscape(source), nil, &one)
		return []settings.State{one}, err
	}
	var all struct {
		Settings []settings.State `json:"settings"`
	}
	err := c.Call(ctx, http.MethodGet, "/settings", nil, &all)
	return all.Settings, err
}

// Sources returns the names of all sources.
func (c *adminClient) Sources(ctx context.Context) ([]string, error) {
	all, err := c.Settings(ctx, "")
	var names []string
	for _, s := range all {
		names = append(names, s.Source)
	}
	return names, err
}

// Limiters returns the limiter's state of one source, or of all sources if `source` is empty.
func (c *adminClient) Limiters(ctx context.Context, source string) ([]limiter.View, error) {
	names := []string{source}
	if source == "" {
		var err error
		if names, err = c.Sources(ctx); err != nil {
			return nil, err
		}
	}
	all := make([]limiter.View, len(names))
	for i, name := range names {
		if err := c.Call(ctx, http.MethodGet, "/limiter/"+url.PathEscape(name), nil, &all[i]); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// Job reads a job.
func (c *adminClient) Job(ctx context.Context, id string) (j deadletters.Job, err error) {
	err = c.Call(ctx, http.MethodGet, "/dlq-jobs/"+url.PathEscape(id), nil, &j)
	return j, err
}

// ChangeJob stops or resumes a job.
func (c *adminClient) ChangeJob(ctx context.Context, id, verb string) (j deadletters.Job, err error) {
	err = c.Call(ctx, http.MethodPost, "/dlq-jobs/"+url.PathEscape(id)+"/"+verb, map[string]string{}, &j)
	return j, err
}
