package app

import (
	"context"
	"crypto/tls"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/freshet/freshet/client"
)

// CheckHealth requests the health endpoint of a running role and returns the text of the response.
// It returns an error if the role is not ready. If address is not empty, it replaces ops.listen.
func (p *Process) CheckHealth(ctx context.Context, address string) (string, error) {
	config, err := p.Load(OptionalSources)
	if err != nil {
		return "", err
	}
	override(&config.Ops.Listen, address)
	base, err := client.BaseURL(config.Ops.TLS.DialURL(config.Ops.Listen))
	if err != nil {
		return "", UsageErrorf("--addr is %q; %w", config.Ops.Listen, err)
	}
	// Like the kubelet, do not verify the certificate: it may be issued for other host
	// names than this address, and the request holds no secret.
	insecure := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true} //nolint:gosec // the request holds no secret
	caller, err := client.New(base, client.Options{
		Timeout: 3 * time.Second, MaxRetries: -1, Transport: &http.Transport{TLSClientConfig: insecure, DisableKeepAlives: true},
	})
	if err != nil {
		return "", err
	}
	resp, err := caller.Send(ctx, http.MethodGet, "/readyz", nil)
	if err != nil {
		return "", err
	}
	if resp.Code != http.StatusOK {
		return "", errors.New(strings.TrimSpace(string(resp.Text[:min(len(resp.Text), 1000)])))
	}
	return string(resp.Text), nil
}
