package access

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/poll"
	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/store"
)

const (
	// keyReadInterval is the interval between two reads of the API keys. A key that another
	// process creates or revokes takes effect in this process within that time. keyReadTimeout is
	// the timeout of one read.
	keyReadInterval = 5 * time.Second
	keyReadTimeout  = 3 * time.Second
	// minSecretSize is the minimum length of the admin token and the cron secret in characters. 32
	// hexadecimal digits have 128 bits.
	minSecretSize = 32
	// maxTokenSize is the maximum length of a token in bytes.
	maxTokenSize = 8 << 10
)

// Guard authenticates requests. Its methods may be called concurrently.
type Guard struct {
	config   Config
	store    KeyStore
	log      *slog.Logger
	metrics  *metrics
	now      func() time.Time
	verifier *verifier // verifies JWTs; nil: the guard rejects all JWTs

	required    atomic.Bool
	admin, cron *secretFile
	readMu      sync.Mutex // held during each update of the field `keys`
	keys        atomic.Pointer[cachedKeys]
	keyCreated  bool            // true: Load found an API key, which may be revoked or expired
	invalidKeys map[string]bool // ids of keys that were already logged as invalid; guarded by readMu
}

// New returns a guard without API keys; Load reads them. It fails if the admin token can't be
// read.
func New(config Config, keys KeyStore, log *slog.Logger, reg prometheus.Registerer) (*Guard, error) {
	g := &Guard{
		config: config, store: keys, log: log, metrics: newMetrics(reg), now: time.Now, invalidKeys: map[string]bool{},
		admin: &secretFile{path: config.AdminTokenFile, name: "admin token"}, cron: &secretFile{path: config.CronSecretFile, name: "cron secret"},
	}
	g.required.Store(config.Require != Never)
	g.keys.Store(&cachedKeys{})
	if err := g.admin.load(); err != nil {
		return nil, fmt.Errorf("access.adminTokenFile: %w", err)
	}
	if err := g.cron.load(); err != nil {
		return nil, fmt.Errorf("access.cronSecretFile: %w", err)
	}
	if config.JWKSURL != "" {
		g.verifier = newVerifier(config, log, g.metrics.signingKeysReadAt)
	}
	return g, nil
}

// Load reads the API keys and fetches the signing keys for the first time. It does not fail if
// the signing keys can't be fetched.
func (g *Guard) Load(ctx context.Context) error {
	keys, err := g.readKeys(ctx, false)
	if err != nil {
		return fmt.Errorf("%w; after an upgrade, run `freshet migrate up`", err)
	}
	g.keyCreated = len(keys) > 0
	if g.verifier != nil {
		g.verifier.fetch(ctx)
	}
	return nil
}

// CheckIssuer returns the error of the last fetch of the signing keys. It returns nil if that fetch
// succeeded, or without access.jwksURL. It does not call the issuer.
func (g *Guard) CheckIssuer(context.Context) error {
	if g.verifier == nil {
		return nil
	}
	return g.verifier.lastError()
}

// readLiveKeys reads and caches the API keys that are not revoked.
func (g *Guard) readLiveKeys(ctx context.Context) error {
	_, err := g.readKeys(ctx, true)
	return err
}

// readKeys reads all API keys or, if `live` is true, only the keys that are not revoked. It caches
// the keys that are not revoked.
func (g *Guard) readKeys(ctx context.Context, live bool) ([]store.APIKey, error) {
	ctx, cancel := context.WithTimeout(ctx, keyReadTimeout)
	defer cancel()
	g.readMu.Lock()
	defer g.readMu.Unlock()
	began := g.now()
	keys, err := g.store.Keys(ctx, live)
	if err != nil {
		return nil, err
	}
	next := make(map[string]cachedKey, len(keys))
	for _, k := range keys {
		switch {
		case !k.RevokedAt.IsZero():
		case k.Hash != [32]byte{}:
			next[k.ID] = newCachedKey(k)
		case !g.invalidKeys[k.ID]:
			g.invalidKeys[k.ID] = true
			g.log.Error("api key without a SHA-256 hash ignored; revoke the key", "key", k.ID)
		}
	}
	g.setKeys(cachedKeys{next, began})
	g.metrics.keysReadAt.SetToCurrentTime()
	return keys, nil
}

// setKeys replaces the cached keys.
func (g *Guard) setKeys(keys cachedKeys) {
	g.keys.Store(&keys)
	g.metrics.keys.Set(float64(len(keys.byID)))
}

// SetListenAddress decides whether authentication is required, from the address on which the
// service listens. It must be called after Load. It fails if the service would be open by
// mistake, or if every request would be rejected.
func (g *Guard) SetListenAddress(address string) error {
	required, err := g.config.requiresAuth(address, g.keyCreated)
	if err != nil {
		return err
	}
	g.required.Store(required)
	switch {
	case required && g.config.JWKSURL == "" && g.config.AdminTokenFile == "" && g.countUsableKeys() == 0:
		g.log.Warn("no valid credential: all api keys are expired or revoked; set access.adminTokenFile to create another")
	case required:
	case !Loopback(address):
		g.log.Warn("authentication disabled: every client that reaches the service may read, refresh and administer", "listen", address)
	case g.config.Require == Never:
		g.log.Info("authentication disabled", "listen", address, "reason", "access.require is never")
	default:
		g.log.Info("authentication disabled", "listen", address, "reason", "the service listens on loopback, and no api key, admin token or issuer is configured")
	}
	return nil
}

// AuthRequired reports whether requests must authenticate. Before SetListenAddress it is true,
// unless access.require is "never".
func (g *Guard) AuthRequired() bool { return g.required.Load() }

// Run keeps the API keys, the admin token and the signing keys up to date until ctx ends. Keys
// that can't be read again stay valid for access.maxAge, so that reads continue while the
// database is unavailable.
func (g *Guard) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	if g.verifier != nil {
		wg.Go(func() { g.verifier.run(ctx) })
	}
	var keyFailures failures
	var tooOld bool
	poll.Every(ctx, keyReadInterval, func(ctx context.Context) {
		if err := g.readLiveKeys(ctx); keyFailures.isSecond(err) {
			g.log.Warn("api keys can't be read; cached keys stay valid until access.maxAge", "err", err)
		}
		tooOld = g.reportAge(tooOld)
		g.admin.reread(g.log)
		g.cron.reread(g.log)
	})
	return nil
}

// reportAge reports whether the cached API keys are older than MaxAge.AdminKeys. It logs an error
// when the keys become older than that, and an info line when they have been read again. The
// argument `before` is the result of the previous call.
func (g *Guard) reportAge(before bool) bool {
	age := g.now().Sub(g.keys.Load().readAt)
	tooOld := age > g.config.MaxAge.AdminKeys
	switch {
	case tooOld && !before:
		g.log.Error("api keys not read from the database for too long: requests with admin keys get 503; requests with other keys get 503 after max_age", "age", age.Round(time.Second), "max_age", g.config.MaxAge.APIKeys)
	case before && !tooOld:
		g.log.Info("reading the api keys from the database works again", "age", age.Round(time.Second))
	}
	return tooOld
}

// failures counts consecutive failures.
type failures int

// isSecond counts a failure, and reports whether it is the second consecutive one. If err is nil,
// it resets the count to 0. Only the second failure is logged, because a single failure may be
// harmless: for example, another program was writing the file.
func (f *failures) isSecond(err error) bool {
	if *f++; err == nil {
		*f = 0
	}
	return *f == 2
}

var adminScopes = []Scope{Admin}

// Authenticate returns the client of a request that came from this IP address. Its errors are
// *problem.HTTPError. A token is accepted only in the header Authorization, because URLs are
// stored in logs, histories and referrers. A browser's EventSource can't set that header; a page
// must read the event stream with fetch instead.
func (g *Guard) Authenticate(r *http.Request, address string) (c Client, err error) {
	if g.AuthRequired() {
		if c, err = g.clientOfToken(r.Context(), r.Header.Values("Authorization")); err == nil {
			c, err = c.delegated(g.config.ClientHeader, r)
		}
	} else if err = g.config.checkOpenRequest(r); err == nil {
		c = Client{Name: AddressName(address), Scopes: adminScopes}
	}
	if p, refused := errors.AsType[*problem.HTTPError](err); refused {
		g.metrics.refused.WithLabelValues(string(p.Code)).Inc()
	}
	return c, err
}

func (g *Guard) clientOfToken(ctx context.Context, headers []string) (Client, error) {
	if len(headers) == 0 {
		return Client{}, missingToken()
	}
	scheme, token, _ := strings.Cut(headers[0], " ")
	token = strings.Trim(token, " ")
	if !strings.EqualFold(scheme, "Bearer") || token == "" {
		return Client{}, missingToken()
	}
	if len(headers) > 1 || len(token) > maxTokenSize {
		return Client{}, invalidToken() // two Authorization headers are rejected: a proxy may have checked only one of the tokens
	}
	if g.admin.matches(token) {
		return Client{Name: "admin-token", Scopes: []Scope{Admin}}, nil
	}
	if strings.HasPrefix(token, keyPrefix) || g.verifier == nil {
		return g.clientOfKey(token)
	}
	return g.verifier.client(ctx, token, g.now())
}

// Admin returns a handler that requires the scope admin and then calls next. It uses the client
// in the request's context if there is one, and authenticates the request otherwise.
func (g *Guard) Admin(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, known := ClientFromContext(r.Context())
		var err error
		if !known {
			c, err = g.Authenticate(r, hostOf(r.RemoteAddr))
		}
		if err == nil && !c.May(Admin) {
			err = Forbid(Admin)
		}
		if p, refused := errors.AsType[*problem.HTTPError](err); refused {
			if err := p.Write(w, r); err != nil {
				g.log.Debug("client disconnected before the response", "err", err)
			}
			return
		}
		next.ServeHTTP(w, r.WithContext(WithClient(r.Context(), c)))
	})
}
