package renewal

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/simulator/oauth"
	"github.com/freshet/freshet/source/token"
	"github.com/freshet/freshet/store/sqlite"
	"github.com/freshet/freshet/store/tokens"
)

// direct calls a handler without a network, so that virtual time does not wait for one.
type direct struct {
	handler http.Handler
	down    func() bool
}

func (d direct) RoundTrip(req *http.Request) (resp *http.Response, err error) {
	if d.down != nil && d.down() {
		return nil, errors.New("connection refused")
	}
	defer func() {
		if recover() != nil {
			resp, err = nil, errors.New("connection closed")
		}
	}()
	w := httptest.NewRecorder()
	d.handler.ServeHTTP(w, req)
	return w.Result(), nil
}

// bus is a Notifier for the processes of one test.
type bus struct {
	mu   sync.Mutex
	all  []chan time.Time
	lost bool // true: notifications do not reach other processes
}

type busClient struct {
	*bus
	wake chan time.Time
}

func (b *bus) client() *busClient {
	c := &busClient{b, make(chan time.Time, 1)}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all = append(b.all, c.wake)
	return c
}

func (c *busClient) WakeLocal(at time.Time) {
	select {
	case c.wake <- at:
	default:
	}
}

func (c *busClient) WakeAt(_ context.Context, at time.Time) {
	c.WakeLocal(at)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, other := range c.all {
		if c.lost {
			return
		}
		select {
		case other <- at:
		default:
		}
	}
}

func (c *busClient) Run(ctx context.Context, interval time.Duration, work func(context.Context, time.Time) (time.Time, error)) error {
	for ctx.Err() == nil {
		next, err := work(ctx, time.Now())
		if err != nil {
			next = time.Now().Add(time.Second)
		}
		timer := time.NewTimer(min(interval, time.Until(next)))
		select {
		case <-ctx.Done():
		case <-c.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
	return nil
}

// fleet is several processes with one database and one token endpoint.
type fleet struct {
	testing.TB
	db       *sqlite.Store
	server   *oauth.Server
	handler  http.Handler // replaces the handler of the token endpoint
	bus      *bus
	config   token.Config
	keyFile  string
	logs     *safeBuffer
	down     func() bool
	saveFunc func(Store) Store // wraps the store of the next process
}

// shifted is the store of a process whose clock differs from the clock of the database. The process
// reads the database's time only with Tokens. So a shift of the times that Tokens returns has the
// same effect as a shift of the process's clock.
type shifted struct {
	Store
	by time.Duration
}

func (s shifted) Tokens(ctx context.Context, source string) ([]tokens.Token, time.Time, error) {
	rows, now, err := s.Store.Tokens(ctx, source)
	for i := range rows {
		for _, at := range []*time.Time{&rows[i].ExpiresAt, &rows[i].RenewAt, &rows[i].RenewedAt, &rows[i].ClaimedUntil, &rows[i].Since} {
			if !at.IsZero() {
				*at = at.Add(s.by)
			}
		}
	}
	return rows, now.Add(s.by), err
}

type safeBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

func (b *safeBuffer) text() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.String()
}

const firstRefresh, clientSecret = "refresh-token-of-the-file", "client/secret+x"

func keyLine(id string, fill byte) string {
	return id + " " + base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{fill}, 32)) + "\n"
}

func newFleet(t testing.TB, c oauth.Config) *fleet {
	t.Helper()
	db, err := sqlite.Open(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	c.ClientID, c.ClientSecret = "app", clientSecret
	f := &fleet{
		TB: t, db: db, server: oauth.New(c, firstRefresh), bus: &bus{}, logs: &safeBuffer{},
		config:  token.Config{Grant: token.RefreshToken, TokenURL: "https://auth.example/token", ClientID: "app", ClientSecretEnv: "secret", RefreshTokenEnv: "refresh"},
		keyFile: filepath.Join(t.TempDir(), "keys"),
	}
	f.handler = f.server
	f.writeKeys(keyLine("k1", 1))
	return f
}

func (f *fleet) writeKeys(text string) {
	f.Helper()
	if err := os.WriteFile(f.keyFile, []byte(text), 0o600); err != nil {
		f.Fatal(err)
	}
}

// process is one process of the fleet.
type process struct {
	*Renewer
	f       *fleet
	mu      sync.Mutex
	current Token
	stop    func()
}

func (f *fleet) start(name string) *process {
	f.Helper()
	keys, err := NewKeyring(f.keyFile)
	if err != nil {
		f.Fatal(err)
	}
	p := &process{f: f}
	var db Store = f.db
	if f.saveFunc != nil {
		db = f.saveFunc(db)
	}
	p.Renewer = New("api", []Credential{{"app", f.config}}, Deps{
		Store: db, Keys: keys, Notifier: f.bus.client(),
		Spend: func(context.Context, string) (func(int), error) { return func(int) {}, nil },
		Secret: func(at token.Secret) (string, error) {
			return map[string]string{"secret": clientSecret, "refresh": firstRefresh, "key": testKey}[at.Env], nil
		},
		Use: func(_ string, t Token) error {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.current = t
			return nil
		},
		Client: &http.Client{Transport: direct{f.handler, f.down}}, Process: name,
		Log: slog.New(slog.NewTextHandler(f.logs, &slog.HandlerOptions{Level: slog.LevelDebug})), Metrics: prometheus.NewRegistry(),
	})
	ctx, cancel := context.WithCancel(f.Context())
	done := make(chan struct{})
	go func() { _ = p.Run(ctx); close(done) }()
	p.stop = func() { cancel(); <-done }
	return p
}

// call sends a call of the API, as the consumer does. It reports whether the call succeeded.
func (p *process) call(ctx context.Context) error {
	for range 3 {
		if _, err := p.Await(ctx, []string{"app"}); err != nil {
			return err
		}
		p.mu.Lock()
		t := p.current
		p.mu.Unlock()
		if !time.Now().Before(t.Until) { // source.authorize makes the same check
			continue
		}
		req := httptest.NewRequest(http.MethodGet, "/api/x", http.NoBody)
		req.Header.Set("Authorization", "Bearer "+t.Value)
		w := httptest.NewRecorder()
		p.f.server.ServeHTTP(w, req)
		if w.Code == http.StatusOK {
			return nil
		}
		if !p.Refused(ctx, "app", t.Generation) {
			return fmt.Errorf("the API answered %d", w.Code)
		}
	}
	return errors.New("the API refuses each token")
}

// row returns the stored token.
func (f *fleet) row() tokens.Token {
	f.Helper()
	rows, _, err := f.db.Tokens(f.Context(), "api")
	if err != nil || len(rows) != 1 {
		f.Fatalf("Tokens: got %d rows, %v", len(rows), err)
	}
	return rows[0]
}

// wantNoSecret fails the test if a text contains a secret of the server or of the configuration.
func (f *fleet) wantNoSecret(what, text string) {
	f.Helper()
	for _, secret := range append(f.server.Secrets(), clientSecret) {
		if strings.Contains(text, secret) {
			f.Errorf("%s contains the secret %s: %s", what, secret, text)
		}
	}
}
