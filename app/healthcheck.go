package app

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
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
	insecure := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true} //nolint:gosec // see above
	caller := &http.Client{Timeout: 3 * time.Second, Transport: &http.Transport{TLSClientConfig: insecure, DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/readyz", http.NoBody)
	if err != nil {
		return "", err
	}
	resp, err := caller.Do(req)
	if err != nil {
		return "", fmt.Errorf("no response: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 1000))
	if resp.StatusCode != http.StatusOK {
		return "", errors.New(strings.TrimSpace(string(text)))
	}
	return string(text), nil
}
