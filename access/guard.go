package access

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/store"
)

const (
	// lookEvery is within how long a key that was made or revoked elsewhere holds
	// or ceases to; lookPatience bounds one look.
	lookEvery    = 5 * time.Second
	lookPatience = 3 * time.Second
	// adminTokenLeast is in characters: 32 of hex are 128 bits.
	adminTokenLeast = 32
	// tokenMost is the length of the longest token that is looked at, in bytes.
	tokenMost = 16 << 10
)

// Guard knows who a request is from.
type Guard struct {
	config  Config
	store   KeyStore
	log     *slog.Logger
	metrics *metrics
	now     func() time.Time
	issuer  *issuer // nil: JWTs are not taken

	required atomic.Bool
	admin    atomic.Pointer[[sha256.Size]byte] // of the admin token; nil: there is none
	looking  sync.Mutex                        // serialises what replaces the keys
	keys     atomic.Pointer[map[string]store.APIKey]
}

// New returns a guard that has not looked at the keys yet. It fails if the admin
// token can't be read.
func New(config Config, keys KeyStore, log *slog.Logger, reg prometheus.Registerer) (*Guard, error) {
	g := &Guard{config: config, store: keys, log: log, metrics: newMetrics(reg), now: time.Now}
	g.required.Store(config.Require != Never)
	g.keys.Store(&map[string]store.APIKey{})
	if config.AdminTokenFile != "" {
		sum, err := readAdminToken(config.AdminTokenFile)
		if err != nil {
			return nil, fmt.Errorf("access.adminTokenFile: %w", err)
		}
		g.admin.Store(&sum)
	}
	if config.JWKSURL != "" {
		var err error
		if g.issuer, err = newIssuer(config, log); err != nil {
			return nil, err
		}
	}
	return g, nil
}

func readAdminToken(file string) (sum [sha256.Size]byte, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return sum, err
	}
	token := strings.TrimSpace(string(text))
	if len(token) < adminTokenLeast || strings.ContainsAny(token, " \t\r\n") {
		return sum, fmt.Errorf("%s must hold one word of at least %d characters; make one with `openssl rand -hex 32`", file, adminTokenLeast)
	}
	return sha256.Sum256([]byte(token)), nil
}

// Load has the first look at the keys, and at those that sign JWTs; without the
// latter the service starts all the same.
func (g *Guard) Load(ctx context.Context) error {
	if err := g.look(ctx); err != nil {
		return fmt.Errorf("%w; if the release is new, run `freshet migrate up`", err)
	}
	if g.issuer != nil {
		g.issuer.fetch(ctx)
	}
	return nil
}

func (g *Guard) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, lookPatience)
	defer cancel()
	g.looking.Lock()
	defer g.looking.Unlock()
	all, err := g.store.Keys(ctx, true)
	if err != nil {
		return err
	}
	next := make(map[string]store.APIKey, len(all))
	for _, k := range all {
		next[k.ID] = k
	}
	g.know(next)
	g.metrics.lookedAt.SetToCurrentTime()
	return nil
}

// know takes these for the keys that are not revoked.
func (g *Guard) know(keys map[string]store.APIKey) {
	g.keys.Store(&keys)
	g.metrics.keys.Set(float64(len(keys)))
}

// Listen tells the guard, after Load, at which address the service listens. It
// fails if that would be open to everybody by mistake, or shut to everybody.
func (g *Guard) Listen(address string) error {
	asks, err := g.config.asks(address, g.holding())
	if err != nil {
		return err
	}
	g.required.Store(asks)
	if !asks && !Loopback(address) {
		g.log.Warn("access.require is never: whoever reaches the service may read, refresh and administer", "listen", address)
	}
	return nil
}

// Required reports whether anybody is asked who they are; until Listen, unless
// access.require is never, everybody is.
func (g *Guard) Required() bool { return g.required.Load() }

// Run keeps up with the keys, the admin token's file and the keys that sign JWTs
// until ctx ends. What can't be read stays as it was: reads go on in an outage
// of the database.
func (g *Guard) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	if g.issuer != nil {
		wg.Go(func() { g.issuer.run(ctx) })
	}
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	var looks, reads failures
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if err := g.look(ctx); looks.second(err) {
			g.log.Warn("the API keys can't be read; those known stay in force", "err", err)
		}
		if g.config.AdminTokenFile == "" {
			continue
		}
		sum, err := readAdminToken(g.config.AdminTokenFile)
		if reads.second(err) {
			g.log.Warn("the admin token's file can't be used; the token stays as it was", "err", err)
		}
		if err == nil && sum != *g.admin.Swap(&sum) {
			g.log.Info("the admin token was changed")
		}
	}
}

// failures counts those in a row.
type failures int

// second reports whether this is the second failure in a row: the first may be of
// a file in the middle of being written, and the third is no news.
func (f *failures) second(err error) bool {
	if *f++; err == nil {
		*f = 0
	}
	return *f == 2
}

// unasked stands before the address of a client whom nobody asked who it is: in an
// audit it must not look as if it had shown it.
const unasked = "unauthenticated@"

var everything = []Scope{Admin}

// Identify returns who a request is from; address is the one it came from. Its
// errors are *problem.HTTPError. A token is taken from Authorization alone: one
// in a URL would stand in logs, histories and referrers. A page's EventSource
// can't send the header; one that streams by fetch can.
//
// A service that asks nobody since only this machine reaches it answers to the
// names of this machine alone: a page whose name was made to lead here (DNS
// rebinding) is of one origin with it, and the browser would let it do all.
func (g *Guard) Identify(r *http.Request, address string) (Client, error) {
	if !g.Required() {
		if g.config.Require == Auto && r.Host != "" && !Loopback(r.Host) {
			return Client{}, misdirected()
		}
		return Client{Name: unasked + address, Scopes: everything}, nil
	}
	c, err := g.byToken(r.Context(), r.Header.Values("Authorization"))
	if p, refused := errors.AsType[*problem.HTTPError](err); refused {
		g.metrics.refused.WithLabelValues(p.Code).Inc()
	}
	return c, err
}

func (g *Guard) byToken(ctx context.Context, headers []string) (Client, error) {
	if len(headers) == 0 {
		return Client{}, missing()
	}
	scheme, token, _ := strings.Cut(headers[0], " ")
	token = strings.Trim(token, " ")
	if !strings.EqualFold(scheme, "Bearer") || token == "" {
		return Client{}, missing()
	}
	if len(headers) > 1 || len(token) > tokenMost {
		return Client{}, invalid() // of two it might be another that a proxy has looked at
	}
	if admin := g.admin.Load(); admin != nil {
		sum := sha256.Sum256([]byte(token))
		if subtle.ConstantTimeCompare(sum[:], admin[:]) == 1 {
			return Client{Name: "admin-token", Scopes: []Scope{Admin}}, nil
		}
	}
	if strings.HasPrefix(token, keyPrefix) || g.issuer == nil {
		return g.byKey(token)
	}
	return g.issuer.client(ctx, token, g.now())
}

// Admin returns the handler for those alone who may administer. Where the request
// has been identified already, that holds.
func (g *Guard) Admin(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if g.Required() {
			c, known := ClientOf(r.Context())
			var err error
			if !known {
				c, err = g.Identify(r, r.RemoteAddr)
			}
			if err == nil && !c.May(Admin) {
				err = Forbid(Admin)
			}
			if p, refused := errors.AsType[*problem.HTTPError](err); refused {
				if err := p.Write(w, r); err != nil {
					g.log.Debug("the client left before its answer", "err", err)
				}
				return
			}
			r = r.WithContext(WithClient(r.Context(), c))
		}
		next.ServeHTTP(w, r)
	})
}
