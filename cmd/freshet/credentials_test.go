package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/servicetest"
	"github.com/freshet/freshet/simulator/oauth"
	"github.com/freshet/freshet/status"
	"github.com/freshet/freshet/store/postgres"
)

const renewingSource = `
secrets: {keyFile: KEYS}
sources:
  api:
    baseURL: UPSTREAM/api
    auth: {header: Authorization, prefix: "Bearer "}
    credentials:
      - name: person
        keys: "p-.*"
        token: {grant: refresh-token, tokenURL: UPSTREAM/token, clientId: app, clientSecretEnv: APP_SECRET, consent: {authorizeURL: UPSTREAM/authorize, revokeURL: UPSTREAM/revoke}}
      - {name: machine, token: {grant: client-credentials, tokenURL: UPSTREAM/token, clientId: app, clientSecretEnv: APP_SECRET}}
    quota: {policies: [{name: second, limit: 50, window: 1s}]}
    facets: {item: {documents: {item: {path: "/item/{key}"}}}}
`

// consent runs commands against an upstream with two credentials that renew themselves.
type consent struct {
	*testing.T
	server *oauth.Server
	config string
	env    []string
}

const appSecret = "client-secret-4c1d"

// newConsent starts an upstream and writes the configuration for it. edits are pairs of texts: the
// first text of a pair is replaced by the second one in the configuration.
func newConsent(t *testing.T, c oauth.Config, edits ...string) *consent {
	t.Helper()
	c.ClientID, c.ClientSecret, c.Lifetime, c.Rotate = "app", appSecret, time.Hour, true
	s := &consent{T: t, server: oauth.New(c, "")}
	upstream := httptest.NewServer(s.server)
	t.Cleanup(upstream.Close)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	keys := write(t, "k1 "+base64.StdEncoding.EncodeToString([]byte(strings.Repeat("k", 32)))+"\n")
	s.config = write(t, strings.NewReplacer("UPSTREAM", upstream.URL, "KEYS", keys).Replace(strings.NewReplacer(edits...).Replace(renewingSource)))
	t.Setenv("APP_SECRET", appSecret)
	return s
}

// migrated makes an empty database and Redis available to the commands.
func (s *consent) migrated() {
	s.Helper()
	s.env = []string{"FRESHET_REDIS_ADDRESSES=" + servicetest.RedisAddress(s), "FRESHET_DATABASE_URL=" + servicetest.Postgres(s)}
	s.must(0, "applied", "migrate", "up")
}

// must runs a command. It fails the test if the exit code or the output is not as expected, or if the
// output has a secret. It returns stdout.
func (s *consent) must(code int, want string, args ...string) string {
	s.Helper()
	got, stdout, stderr := command(s.T, s.env, append(args, "--config", s.config)...)
	s.want(args, got, code, stdout+stderr, want)
	return stdout
}

func (s *consent) want(args []string, got, code int, text, want string) {
	s.Helper()
	if got != code || !strings.Contains(text, want) {
		s.Errorf("%v: got exit %d, %s; want %d, %q", args, got, text, code, want)
	}
	for _, secret := range append(s.server.Secrets(), appSecret) {
		if secret != "" && strings.Contains(text, secret) {
			s.Errorf("%v: got the secret %s in the output", args, secret)
		}
	}
}

// authorize runs `credentials authorize`. The function `agree` gets the URL of the printed page, and
// a function that ends the command. authorize returns the exit code and the output.
func (s *consent) authorize(agree func(page *url.URL, end func())) (code int, text string) {
	s.Helper()
	ctx, end := context.WithCancel(s.Context())
	defer end()
	reader, writer := io.Pipe()
	var all, stderr strings.Builder
	read := make(chan struct{})
	go func() {
		defer close(read)
		lines := bufio.NewScanner(reader)
		for lines.Scan() {
			all.WriteString(lines.Text() + "\n")
			if !strings.HasPrefix(lines.Text(), "http") {
				continue
			}
			page, err := url.Parse(lines.Text())
			if err != nil {
				s.Error(err)
				end()
				continue
			}
			agree(page, end)
		}
	}()
	code = run(ctx, []string{"credentials", "authorize", "api/person", "--config", s.config}, s.env, writer, &stderr)
	_ = writer.Close()
	<-read
	return code, all.String() + stderr.String()
}

// open opens a page, as the browser of a person does, and returns the text of the last answer.
func (s *consent) open(page string) string {
	s.Helper()
	resp, err := http.Get(page)
	if err != nil {
		s.Error(err)
		return ""
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		s.Error(err)
	}
	return string(text)
}

// person returns the state of the credential with the refresh token.
func (s *consent) person() status.Credential {
	s.Helper()
	var all []status.Credential
	text := s.must(0, "", "credentials", "list", "-o", "json")
	if err := json.Unmarshal([]byte(text), &all); err != nil || len(all) != 2 || all[1].Credential != "person" && all[0].Credential != "person" {
		s.Fatalf("credentials list: got %s, %v, want two credentials", text, err)
	}
	if all[0].Credential == "person" {
		return all[0]
	}
	return all[1]
}

// wantAudit fails the test if the audit does not contain exactly these actions, newest first.
func (s *consent) wantAudit(actions ...string) {
	s.Helper()
	_, address, _ := strings.Cut(s.env[1], "=")
	db, err := postgres.Open(s.Context(), address)
	if err != nil {
		s.Fatal(err)
	}
	defer db.Close()
	entries, err := db.Audit(s.Context(), 100)
	var got []string
	for _, e := range entries {
		got = append(got, e.Action)
		if e.Actor == "" {
			s.Errorf("audit entry %+v: got no actor, want one", e)
		}
	}
	if err != nil || !slices.Equal(got, actions) {
		s.Errorf("audit: got %q, %v, want %q", got, err, actions)
	}
}

func TestCredentials_AuthorizeStoresRefreshToken(t *testing.T) {
	s := newConsent(t, oauth.Config{})
	s.migrated()
	args := []string{"credentials", "authorize"}
	code, text := s.authorize(func(page *url.URL, _ func()) {
		forged := page.Query().Get("redirect_uri") + "?code=stolen&state=forged"
		if got := s.open(forged); !strings.Contains(got, "accepts only the redirect of the running") {
			t.Errorf("answer with a forged state: got %s, want it refused", got)
		}
		if got := s.open(page.String()); !strings.Contains(got, "freshet has received the answer") {
			t.Errorf("page: got %s, want the answer received", got)
		}
	})
	s.want(args, code, 0, text, "the refresh token of api/person is stored")
	if got := s.person(); got.State != status.CredentialActive || got.Generation != 1 {
		t.Errorf("credential: got %+v, want generation 1, ACTIVE", got)
	}

	s.must(2, "name a credential", "credentials", "renew")
	s.must(2, "[api/person api/machine]", "credentials", "renew", "api/other")
	s.must(0, "the renewal of api/person is due", "credentials", "renew", "api/person")
	if got := s.person(); got.RenewAt == nil || got.RenewAt.After(time.Now().Add(time.Minute)) {
		t.Errorf("after renew: got the renewal at %v, want it due", got.RenewAt)
	}
	s.must(2, "only the grant refresh-token needs a person's consent", "credentials", "authorize", "api/machine")

	s.must(2, "--yes", "credentials", "revoke", "api/person")
	s.must(0, "the tokens of api/person are deleted here and at the upstream", "credentials", "revoke", "api/person", "--yes")
	if got := s.person(); got.State != status.CredentialStopped || got.Error != "revoked by an operator" || got.KeyID != "" {
		t.Errorf("after revoke: got %+v, want it stopped, without a token", got)
	}
	s.must(0, "STOPPED", "credentials", "list")
	s.must(0, "", "credentials", "rotate-keys")
	s.wantAudit("credential-rotate-keys", "credential-revoke", "credential-renew", "credential-authorize")
	for _, secret := range s.server.Secrets() {
		req := httptest.NewRequest(http.MethodGet, "/api/x", http.NoBody)
		req.Header.Set("Authorization", "Bearer "+secret)
		w := httptest.NewRecorder()
		if s.server.ServeHTTP(w, req); w.Code != http.StatusUnauthorized {
			t.Errorf("call with a revoked token: got %d, want 401", w.Code)
		}
	}
	if stats := s.server.Stats(); stats.Renewals != 1 {
		t.Errorf("token endpoint: got %+v, want 1 token issued", stats)
	}
}

// Nothing is stored if the person declines, if nobody answers, or if the code belongs to another
// request (its PKCE challenge differs).
func TestCredentials_AuthorizeFails(t *testing.T) {
	for name, test := range map[string]struct {
		server oauth.Config
		agree  func(s *consent, page *url.URL, end func())
		want   string
	}{
		"denied": {oauth.Config{Deny: true}, func(s *consent, page *url.URL, _ func()) { s.open(page.String()) }, `the upstream refused the authorization: "access_denied"`},
		"nobody": {oauth.Config{}, func(_ *consent, _ *url.URL, end func()) { end() }, "nobody gave consent; nothing was changed"},
		"wrong challenge": {oauth.Config{}, func(s *consent, page *url.URL, _ func()) {
			query := page.Query()
			query.Set("code_challenge", "of-another-request")
			page.RawQuery = query.Encode()
			s.open(page.String())
		}, "invalid_grant"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newConsent(t, test.server)
			s.migrated()
			code, text := s.authorize(func(page *url.URL, end func()) { test.agree(s, page, end) })
			s.want([]string{"credentials", "authorize"}, code, 1, text, test.want)
			if got := s.person(); got.State != status.CredentialNew || got.Generation != 0 {
				t.Errorf("credential: got %+v, want it NEW", got)
			}
		})
	}
}

func TestTry_RequestsAToken(t *testing.T) {
	s := newConsent(t, oauth.Config{})
	s.must(0, "200 OK", "try", "api/item/1")
	if got := s.server.Stats(); got.Renewals != 1 || got.Calls != 1 || got.Refused != 0 {
		t.Errorf("upstream: got %+v, want 1 token and 1 call", got)
	}
	s.server.SetAnswer(&oauth.Answer{Status: http.StatusOK, ContentType: "text/html", Body: "<html>"})
	s.must(1, "without a token at body:access_token", "try", "api/item/1")
}

// `freshet try` must not use a refresh token. Otherwise the token endpoint could replace the refresh
// token, and the workers would need the new one.
func TestTry_UsesNoRefreshToken(t *testing.T) {
	s := newConsent(t, oauth.Config{}, "      - {name: machine", "      # {name: machine")
	s.must(1, "a trial does not use a refresh token", "try", "api/item/p-1")
}
