package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
)

// Bearer is an http.RoundTripper that adds a bearer token to each request.
type Bearer struct{ Token string }

// RoundTrip implements http.RoundTripper.
func (b Bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.Token)
	return http.DefaultTransport.RoundTrip(r)
}

// CreateKey creates an API key with the given scopes and returns its token. api is the URL of a
// query service. The site must have an admin token (Site.Token).
func (s *Site) CreateKey(ctx context.Context, api, name string, scopes ...string) (token string, err error) {
	body, err := json.Marshal(map[string]any{"name": name, "scopes": scopes})
	if err != nil {
		return "", err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, api+"/admin/v1/keys", bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := (&http.Client{Transport: Bearer{s.Token}, Timeout: Timeout}).Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	var made struct{ Secret string }
	err = json.NewDecoder(resp.Body).Decode(&made)
	if err == nil && made.Secret == "" {
		err = errors.New("no token in the response")
	}
	if err != nil {
		return "", fmt.Errorf("create the API key %s: %s: %w", name, resp.Status, err)
	}
	return made.Secret, nil
}
