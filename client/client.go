package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// The default values of fields of Options.
const (
	DefaultTimeout          = 10 * time.Second
	DefaultMaxRetries       = 2
	DefaultMaxResponseBytes = 16 << 20
	DefaultMaxCacheBytes    = 16 << 20
)

// Options configure a Client. The zero value is valid.
type Options struct {
	// Token is an API key or access token. It may be empty if Renew returns the first token, or if
	// the service has no authentication.
	Token Token
	// Renew returns a new token. It is called if there is no token, if the service rejects the token
	// as expired, and in the background before the token expires. See Client for the rules.
	Renew func(ctx context.Context) (Token, error)
	// OnSignedOut is called once, in its own goroutine, when the client is signed out.
	OnSignedOut func()

	// Timeout limits one attempt of a request, with the response body. The time that a request asks
	// the service to wait is added. 0 means DefaultTimeout.
	Timeout time.Duration
	// MaxRetries limits how often a failed read is repeated. 0 means DefaultMaxRetries; a negative
	// value disables retries.
	MaxRetries int
	// MaxResponseBytes limits the decompressed size of one response. 0 means
	// DefaultMaxResponseBytes.
	MaxResponseBytes int64
	// MaxCacheBytes limits the memory for snapshots that conditional reads use. 0 means
	// DefaultMaxCacheBytes; with a negative value, reads are not conditional.
	MaxCacheBytes int64

	// Transport sends the requests. The default uses the proxy of the environment and keeps
	// connections open.
	Transport http.RoundTripper
	// Zstd decompresses zstd. If it is set, the client requests snapshots in the form in which the
	// service stores them.
	Zstd func(io.Reader) (io.ReadCloser, error)
	// Traceparent returns the header traceparent (W3C Trace Context) for the context of a call, or
	// an empty string.
	Traceparent func(context.Context) string
	// Log receives retries and reconnects at the level DEBUG, and failed renewals at WARN. It never
	// receives a token or a key. The default discards all records.
	Log *slog.Logger
}

// Client calls the HTTP API of one query service. Several goroutines may use it at the same time.
type Client struct {
	base, name string // `name` is the base URL without a password
	options    Options
	http       *http.Client
	tokens     *tokens
	cache      *cache
	budget     retryBudget
	pause      pause
}

// New returns a client for the base URL of a query service, such as https://freshet.example.
func New(base string, options Options) (*Client, error) {
	u, err := url.Parse(base)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") || u.RawQuery != "" || u.Fragment != "" {
		return nil, errors.New("invalid base URL; it must have the form https://freshet.example, without a query")
	}
	setDefault(&options.Timeout, DefaultTimeout)
	setDefault(&options.MaxRetries, DefaultMaxRetries)
	setDefault(&options.MaxResponseBytes, DefaultMaxResponseBytes)
	setDefault(&options.MaxCacheBytes, DefaultMaxCacheBytes)
	if options.Log == nil {
		options.Log = slog.New(slog.DiscardHandler)
	}
	if options.Transport == nil {
		options.Transport = defaultTransport()
	}
	c := &Client{
		base: strings.TrimRight(u.String(), "/"), name: strings.TrimRight(u.Redacted(), "/"), options: options,
		http: &http.Client{
			Transport: options.Transport,
			// Do not follow redirects: the token must not be sent to another address.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		cache:  newCache(options.MaxCacheBytes),
		budget: retryBudget{left: maxRetryBudget},
	}
	c.tokens = newTokens(options)
	return c, nil
}

func setDefault[T comparable](value *T, instead T) {
	var zero T
	if *value == zero {
		*value = instead
	}
}

// maxIdleConnections is the maximum number of idle connections to the query service. The default of
// net/http, 2, would close most connections of a program with many goroutines.
const maxIdleConnections = 100

func defaultTransport() http.RoundTripper {
	shared, ok := http.DefaultTransport.(*http.Transport)
	if !ok {
		return http.DefaultTransport
	}
	own := shared.Clone()
	own.MaxIdleConnsPerHost = maxIdleConnections
	return own
}

// Format writes the name of the client for every verb, so that no formatted text contains the token.
func (c *Client) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte("freshet client of " + c.name)) }

// SetToken replaces the token. It ends the state "signed out".
func (c *Client) SetToken(t Token) { c.tokens.set(t) }

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

// ConnectionError reports that a request got no complete response.
type ConnectionError struct {
	Address string // base URL of the query service
	Err     error
}

func (e *ConnectionError) Error() string {
	return fmt.Sprintf("no response from %s: %v; check its address, and whether it runs", e.Address, e.Err)
}

func (e *ConnectionError) Unwrap() error { return e.Err }
