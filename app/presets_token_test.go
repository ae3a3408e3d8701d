package app

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/presets"
	"github.com/freshet/freshet/renewal"
	"github.com/freshet/freshet/servicetest"
	"github.com/freshet/freshet/simulator/contract"
	"github.com/freshet/freshet/simulator/oauth"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/source/token"
	"github.com/freshet/freshet/store/sqlite"
	"github.com/freshet/freshet/store/tokens"
)

// renewingPreset is a preset whose credential renews itself.
type renewingPreset struct {
	facet string
	oauth oauth.Config
	// secrets are the values of its environment variables.
	secrets map[string]string
	// consent is true if a person has to grant the access once.
	consent bool
}

func renewingPresets(t *testing.T) map[string]renewingPreset {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	text := string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}))
	client := func(c oauth.Config) oauth.Config {
		c.ClientID, c.ClientSecret, c.Lifetime = "an-id", "a-secret", time.Hour
		return c
	}
	return map[string]renewingPreset{
		"reddit":        {"subreddit", client(oauth.Config{ClientAuth: "basic"}), map[string]string{"REDDIT_ID": "an-id", "REDDIT_SECRET": "a-secret"}, false},
		"hubspot-oauth": {"contact", client(oauth.Config{ClientAuth: "body"}), map[string]string{"HUBSPOT_ID": "an-id", "HUBSPOT_SECRET": "a-secret"}, true},
		"jira-oauth":    {"issue", client(oauth.Config{ClientAuth: "body", Rotate: true}), map[string]string{"JIRA_ID": "an-id", "JIRA_SECRET": "a-secret"}, true},
		"github-app":    {"user", oauth.Config{JWTKey: &key.PublicKey, Lifetime: time.Hour}, map[string]string{"GITHUB_APP_ID": "an-id", "GITHUB_APP_KEY": text}, false},
	}
}

// Each preset whose credential is a token is used unchanged, except for its hosts. The simulated token
// endpoint checks how freshet authenticates. The simulated API checks the token and the limits of its
// contract.
func TestPresets_RenewTheirTokens(t *testing.T) {
	all := renewingPresets(t)
	for _, name := range presets.Names() {
		c, err := parseConfig("f.yaml", presets.File(name, presets.All()[name]), nil, RequiredSources)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		test, known := all[name]
		if renews := len(renewing(c.Sources[name])) > 0; renews != known {
			t.Errorf("%s: got a credential that renews itself: %v, want %v", name, renews, known)
			continue
		}
		if known {
			t.Run(name, func(t *testing.T) { test.run(t, name, c.Sources[name]) })
		}
	}
}

func (p renewingPreset) run(t *testing.T, name string, c SourceConfig) {
	for variable, value := range p.secrets {
		t.Setenv(variable, value)
	}
	one := *c.Credentials[0].Token
	server := oauth.New(p.oauth, "")
	upstream := p.serve(t, name, server, one.TokenURL)
	c.BaseURL = atHost(t, upstream, c.BaseURL)
	one.TokenURL = atHost(t, upstream, one.TokenURL)
	c.Credentials = []source.Credential{{Name: "app", Token: &one}}
	if missing := missingSecrets(one, p.secrets); len(missing) > 0 {
		t.Fatalf("environment variables without a value: got %v, want none", missing)
	}
	src, err := source.New(name, c.Config, nil, 8)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()

	db, err := sqlite.Open(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	keys, err := renewal.NewKeyring(write(t, "k1 "+base64.StdEncoding.EncodeToString(make([]byte, 32))))
	if err != nil {
		t.Fatal(err)
	}
	if p.consent {
		p.agree(t, name, upstream, one, db, keys)
	}
	rdb, _ := servicetest.MiniRedis(t)
	r := renewal.New(name, renewing(c), renewal.Deps{
		Store: db, Keys: keys, Notifier: tokenNotifier(parts{rdb: rdb, log: slog.New(slog.DiscardHandler)}, name),
		Spend:  func(context.Context, string) (func(int), error) { return func(int) {}, nil },
		Secret: readTokenSecret(requireSecret),
		Use: func(credential string, next renewal.Token) error {
			return src.SetToken(credential, next.Value, next.Generation, next.Until)
		},
		Client: token.NewClient(renewal.CallTimeout), Process: "p", Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Metrics: prometheus.NewRegistry(),
	})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	if _, err := r.Await(t.Context(), []string{"app"}); err != nil {
		t.Fatal(err)
	}
	plan, err := src.Plan(source.Request{Facet: p.facet, Key: exampleKeys[baseOf(name)][p.facet]})
	if err != nil {
		t.Fatal(err)
	}
	answers, err := src.Fetch(t.Context(), plan, renewedPermits{})
	if err != nil {
		t.Fatal(err)
	}
	o := src.Read(answers, time.Now())
	if o.Class != source.OK {
		t.Fatalf("fetch with the token: got %s, %v, want ok", o.Class, o.Err)
	}
	o.Content.Release()
	if got := server.Stats(); got.Refused != 0 || got.Calls != 1 {
		t.Errorf("upstream: got %+v, want 1 call, none refused", got)
	}
}

// missingSecrets returns the environment variables of a token that are not in the map.
func missingSecrets(c token.Config, known map[string]string) (missing []string) {
	for _, at := range c.Secrets() {
		if known[at.Env] == "" {
			missing = append(missing, at.Env+at.File)
		}
	}
	return missing
}

// serve serves the token endpoint at the path of the preset, and the API with its contract for valid
// tokens.
func (p renewingPreset) serve(t *testing.T, name string, server *oauth.Server, tokenURL string) string {
	t.Helper()
	api, err := contract.New(baseOf(name), contract.Options{})
	if err != nil {
		t.Fatal(err)
	}
	at, err := url.Parse(tokenURL)
	if err != nil {
		t.Fatal(err)
	}
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/authorize":
			server.ServeHTTP(w, r)
		case at.Path:
			if !strings.HasPrefix(r.URL.Path, "/app/installations/") {
				r.URL.Path = "/token"
			}
			server.ServeHTTP(w, r)
		default:
			check := httptest.NewRequest(http.MethodGet, "/api/x", http.NoBody)
			check.Header = r.Header
			judged := httptest.NewRecorder()
			if server.ServeHTTP(judged, check); judged.Code != http.StatusOK {
				w.WriteHeader(judged.Code)
				return
			}
			api.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(upstream.Close)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	return upstream.URL
}

// atHost returns a URL with the scheme and host of an upstream.
func atHost(t *testing.T, upstream, address string) string {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	return upstream + u.Path
}

// agree obtains the first refresh token as `freshet credentials authorize` does, and stores only this
// token, so that a renewal follows.
func (p renewingPreset) agree(t *testing.T, name, upstream string, c token.Config, db *sqlite.Store, keys *renewal.Keyring) {
	t.Helper()
	c.Consent.AuthorizeURL, c.Consent.RedirectURL = upstream+"/authorize", "" // with an empty RedirectURL, freshet receives the redirect at a free port
	secrets, err := renewal.ReadSecrets(c, readTokenSecret(requireSecret))
	if err != nil {
		t.Fatal(err)
	}
	answer, err := renewal.Authorize(t.Context(), c, secrets, token.NewClient(renewal.CallTimeout), func(page string) {
		go func() {
			resp, err := http.Get(page)
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
		}()
	})
	if err != nil {
		t.Fatal(err)
	}
	next := tokens.Token{Source: name, Credential: "app", Generation: 1}
	if err := keys.Seal(&next, renewal.Secrets{Refresh: answer.Refresh}); err != nil {
		t.Fatal(err)
	}
	if err := db.AddToken(t.Context(), name, "app"); err != nil {
		t.Fatal(err)
	}
	if saved, err := db.SaveToken(t.Context(), next, 0, 0); err != nil || !saved {
		t.Fatalf("SaveToken: got %v, %v, want true", saved, err)
	}
}

// renewedPermits grants each call at once for the credential app.
type renewedPermits struct{}

func (renewedPermits) Acquire(context.Context, source.Call) (source.Permit, error) {
	return renewedPermits{}, nil
}
func (renewedPermits) Spend(context.Context) error { return nil }
func (renewedPermits) Credential() string          { return "app" }
func (renewedPermits) Release()                    {}
func (renewedPermits) Written()                    {}
func (renewedPermits) Answered()                   {}
func (renewedPermits) Finished(source.CallResult)  {}
