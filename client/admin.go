package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/settings"
	"github.com/freshet/freshet/store"
)

// Settings returns the settings of one source, or of all sources if source is empty.
func (c *Client) Settings(ctx context.Context, source string) ([]settings.State, error) {
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
func (c *Client) Sources(ctx context.Context) ([]string, error) {
	all, err := c.Settings(ctx, "")
	var names []string
	for _, s := range all {
		names = append(names, s.Source)
	}
	return names, err
}

// Limiters returns the limiter's state of one source, or of all sources if source is empty.
func (c *Client) Limiters(ctx context.Context, source string) ([]limiter.View, error) {
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
func (c *Client) Job(ctx context.Context, id string) (j store.DLQJob, err error) {
	err = c.Call(ctx, http.MethodGet, "/dlq-jobs/"+url.PathEscape(id), nil, &j)
	return j, err
}

// ChangeJob stops or resumes a job.
func (c *Client) ChangeJob(ctx context.Context, id, verb string) (j store.DLQJob, err error) {
	err = c.Call(ctx, http.MethodPost, "/dlq-jobs/"+url.PathEscape(id)+"/"+verb, map[string]string{}, &j)
	return j, err
}

// KeepAlive enables HTTP keep-alive, for many requests with up to `connections` at once. The returned function
// closes the idle connections.
func (c *Client) KeepAlive(connections int) (leave func()) {
	transport := c.http.Transport.(*http.Transport).Clone()
	transport.DisableKeepAlives, transport.MaxIdleConnsPerHost = false, connections
	c.http.Transport = transport
	return transport.CloseIdleConnections
}
