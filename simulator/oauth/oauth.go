// Package oauth simulates a token endpoint and an API that accepts its tokens. It counts wrong uses
// of the tokens.
//
//	POST /token      a token, by any grant; counts renewals
//	POST /app/installations/ID/access_tokens  a token of a GitHub App, for a JWT as the bearer token
//	POST /revoke     revokes a token; a refresh token revokes all tokens (RFC 7009)
//	GET  /authorize  redirects to redirect_uri with a code, as if a person agreed
//	GET  /api/…      200 with a JSON object, or 401 for a token that is not valid
package oauth

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

// Config configures the simulated token endpoint.
type Config struct {
	// Lifetime is the lifetime of a token.
	Lifetime time.Duration
	// If Rotate is true, each renewal replaces the refresh token. The replaced refresh token is still
	// accepted for the time ReuseGrace. A later use of it revokes all tokens (reuse detection).
	Rotate     bool
	ReuseGrace time.Duration
	// ClientID and ClientSecret are the only accepted client id and secret; empty: every client is
	// accepted.
	ClientID, ClientSecret string
	// ClientAuth says where the client must send its id and secret: basic (in the Authorization
	// header) or body; empty: either of the two.
	ClientAuth string
	// JWTKey verifies JWTs; nil: their signature is not checked.
	JWTKey *rsa.PublicKey
	// Deny makes GET /authorize redirect with an error, as if the person had refused.
	Deny bool
	// Delay is the time until each answer of the token endpoint.
	Delay time.Duration
	// ClockOffset is the time by which the clock of the endpoint is ahead of the real clock;
	// negative: it is behind.
	ClockOffset time.Duration
}

// Answer replaces the next answers of the token endpoint.
type Answer struct {
	Status      int
	ContentType string
	Body        string
	// Expires replaces only the member expires_in of an otherwise normal response; nil: it replaces
	// nothing. An empty text omits the member.
	Expires *string
	// Hang closes the connection after the renewal, without an answer.
	Hang bool
}

// Stats has the numbers of calls that the simulated endpoint and API have received.
type Stats struct {
	Requests    int // calls of the token endpoint
	Renewals    int // tokens issued
	MaxInFlight int // maximum number of concurrent calls of the token endpoint
	Reuses      int // uses of a replaced refresh token after its grace
	Calls       int // calls of the API
	Refused     int // calls of the API that were answered 401
	Expired     int // calls of the API with an expired token
}

// Server is the simulated upstream. Its methods may be called concurrently.
type Server struct {
	config Config

	mu       sync.Mutex
	stats    Stats
	inFlight int
	tokens   map[string]time.Time // valid access tokens and when they expire
	current  string               // the valid refresh token; empty: none
	replaced map[string]time.Time // replaced refresh tokens and the ends of their grace
	codes    map[string]string    // authorization codes and their PKCE challenges
	answer   *Answer
	secrets  []string // every secret that was issued or received
}

// New returns a server whose first refresh token is the argument `first`.
func New(c Config, first string) *Server {
	return &Server{
		config: c, current: first, tokens: map[string]time.Time{},
		replaced: map[string]time.Time{}, codes: map[string]string{}, secrets: []string{first},
	}
}

// Stats returns the counts.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stats
}

// Secrets returns every token that the server issued, so that a test can search for them.
func (s *Server) Secrets() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.secrets...)
}

// SetAnswer replaces the answers of the token endpoint; nil restores them.
func (s *Server) SetAnswer(a *Answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = a
}

// RevokeTokens revokes all access tokens and, if `refresh` is true, the refresh token too.
func (s *Server) RevokeTokens(refresh bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.revoke(refresh)
}

// EndTokens sets the expiry time of all valid access tokens.
func (s *Server) EndTokens(at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for token := range s.tokens {
		s.tokens[token] = at
	}
}

func (s *Server) revoke(refresh bool) {
	clear(s.tokens)
	if refresh {
		s.current = ""
	}
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Date", time.Now().Add(s.config.ClockOffset).UTC().Format(http.TimeFormat))
	if strings.HasPrefix(r.URL.Path, "/app/installations/") {
		s.serveToken(w, r)
		return
	}
	switch r.URL.Path {
	case "/token":
		s.serveToken(w, r)
	case "/revoke":
		s.serveRevoke(w, r)
	case "/authorize":
		s.authorize(w, r)
	default:
		s.serveAPI(w, r)
	}
}

func (s *Server) serveToken(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.stats.Requests++
	s.inFlight++
	s.stats.MaxInFlight = max(s.stats.MaxInFlight, s.inFlight)
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.inFlight--
		s.mu.Unlock()
	}()
	status, answer := s.exchange(r)
	if s.config.Delay > 0 {
		select {
		case <-time.After(s.config.Delay):
		case <-r.Context().Done():
		}
	}
	s.mu.Lock()
	replacement := s.answer
	s.mu.Unlock()
	if replacement != nil {
		switch {
		case replacement.Hang:
			panic(http.ErrAbortHandler)
		case replacement.Expires == nil:
			w.Header().Set("Content-Type", replacement.ContentType)
			w.WriteHeader(replacement.Status)
			_, _ = w.Write([]byte(replacement.Body))
			return
		case *replacement.Expires == "":
			delete(answer, "expires_in")
		default:
			answer["expires_in"] = json.RawMessage(*replacement.Expires)
		}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(answer)
}

func refusal(code, description string) (int, map[string]any) {
	return http.StatusBadRequest, map[string]any{"error": code, "error_description": description}
}

// exchange returns the answer to a token request.
func (s *Server) exchange(r *http.Request) (int, map[string]any) {
	_ = r.ParseForm()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.answer != nil && s.answer.Expires == nil && !s.answer.Hang {
		return 0, nil // the endpoint is broken: nothing is issued
	}
	if app := strings.HasPrefix(r.URL.Path, "/app/installations/"); app {
		return s.issueInstallation(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
	}
	if secret, known := s.knowsClient(r); !known {
		return http.StatusUnauthorized, map[string]any{"error": "invalid_client", "error_description": "secret " + secret + " is wrong"}
	}
	switch r.Form.Get("grant_type") {
	case "refresh_token":
		if err := s.use(r.Form.Get("refresh_token")); err != "" {
			return refusal("invalid_grant", err)
		}
	case "authorization_code":
		challenge, known := s.codes[r.Form.Get("code")]
		sum := sha256.Sum256([]byte(r.Form.Get("code_verifier")))
		if delete(s.codes, r.Form.Get("code")); !known || challenge != base64.RawURLEncoding.EncodeToString(sum[:]) {
			return refusal("invalid_grant", "the code or its verifier is wrong")
		}
		s.current = s.issue()
	case "urn:ietf:params:oauth:grant-type:jwt-bearer":
		if err := s.checkJWT(r.Form.Get("assertion")); err != "" {
			return refusal("invalid_grant", err)
		}
	}
	answer := map[string]any{"access_token": s.issueToken(), "token_type": "bearer", "expires_in": s.config.Lifetime.Seconds()}
	if s.current != "" && (s.config.Rotate || r.Form.Get("grant_type") == "authorization_code") {
		answer["refresh_token"] = s.current
	}
	return http.StatusOK, answer
}

// knowsClient returns the client's secret, and whether the client and its authentication method are
// correct.
func (s *Server) knowsClient(r *http.Request) (secret string, known bool) {
	id, secret, basic := r.BasicAuth()
	if basic { // the Authorization header has these two texts in percent-encoding (RFC 6749 §2.3.1)
		id, _ = url.QueryUnescape(id)
		secret, _ = url.QueryUnescape(secret)
	} else {
		id, secret = r.Form.Get("client_id"), r.Form.Get("client_secret")
	}
	wrongPlace := s.config.ClientAuth != "" && basic != (s.config.ClientAuth == "basic")
	return secret, s.config.ClientID == "" || (id == s.config.ClientID && secret == s.config.ClientSecret && !wrongPlace)
}

// issueInstallation returns the answer to a GitHub App, which sends a JWT.
func (s *Server) issueInstallation(jwt string) (int, map[string]any) {
	if err := s.checkJWT(jwt); err != "" {
		return http.StatusUnauthorized, map[string]any{"message": err}
	}
	end := time.Now().Add(s.config.Lifetime + s.config.ClockOffset)
	return http.StatusCreated, map[string]any{"token": s.issueToken(), "expires_at": end.UTC().Format(time.RFC3339)}
}

// issueToken returns a new access token.
func (s *Server) issueToken() string {
	s.stats.Renewals++
	token := s.issue()
	s.tokens[token] = time.Now().Add(s.config.Lifetime)
	return token
}

// issue returns a new secret.
func (s *Server) issue() string {
	text := "tok-" + rand.Text()
	s.secrets = append(s.secrets, text)
	return text
}

// use checks and rotates a refresh token. It returns the reason why the token is refused; empty: it
// is accepted.
func (s *Server) use(refresh string) string {
	grace, wasReplaced := s.replaced[refresh]
	switch {
	case wasReplaced && time.Now().After(grace):
		s.stats.Reuses++
		s.revoke(true)
		return "refresh token " + refresh + " was used twice; all tokens are revoked"
	case wasReplaced:
		return ""
	case refresh == "" || refresh != s.current:
		return "refresh token " + refresh + " is not valid"
	}
	if s.config.Rotate {
		s.replaced[refresh] = time.Now().Add(s.config.ReuseGrace)
		s.current = s.issue()
	}
	return ""
}

// checkJWT checks the signature of a JWT, and compares its times with the clock of the server. It
// returns the reason why the JWT is refused; empty: it is accepted.
func (s *Server) checkJWT(text string) string {
	parts := strings.Split(text, ".")
	var claims struct{ Iat, Exp int64 }
	if len(parts) != 3 {
		return "the assertion is not a JWT"
	}
	if s.config.JWTKey != nil {
		signature, err := base64.RawURLEncoding.DecodeString(parts[2])
		sum := sha256.Sum256([]byte(parts[0] + "." + parts[1]))
		if err != nil || rsa.VerifyPKCS1v15(s.config.JWTKey, crypto.SHA256, sum[:], signature) != nil {
			return "the signature of the assertion is wrong"
		}
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil || json.Unmarshal(payload, &claims) != nil {
		return "the assertion has no claims"
	}
	if now := time.Now().Add(s.config.ClockOffset).Unix(); claims.Iat > now || claims.Exp < now {
		return "iat or exp of the assertion is wrong"
	}
	return ""
}

// serveRevoke revokes a token. The answer to an unknown token is 200 too.
func (s *Server) serveRevoke(w http.ResponseWriter, r *http.Request) {
	_ = r.ParseForm()
	s.mu.Lock()
	defer s.mu.Unlock()
	token := r.Form.Get("token")
	if _, known := s.knowsClient(r); !known {
		http.Error(w, "the client is unknown", http.StatusUnauthorized)
		return
	}
	if token != "" && token == s.current {
		s.revoke(true)
		return
	}
	delete(s.tokens, token)
}

func (s *Server) authorize(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	to, err := url.Parse(query.Get("redirect_uri"))
	if err != nil || query.Get("code_challenge_method") != "S256" || (s.config.ClientID != "" && query.Get("client_id") != s.config.ClientID) {
		http.Error(w, "redirect_uri, client_id or code_challenge_method is wrong", http.StatusBadRequest)
		return
	}
	result := url.Values{"state": {query.Get("state")}}
	if s.config.Deny { // the error code is defined in RFC 6749 §4.1.2.1
		result.Set("error", "access_denied")
	} else {
		s.mu.Lock()
		code := s.issue()
		s.codes[code] = query.Get("code_challenge")
		s.mu.Unlock()
		result.Set("code", code)
	}
	to.RawQuery = result.Encode()
	http.Redirect(w, r, to.String(), http.StatusFound) //nolint:gosec // only tests use this server
}

func (s *Server) serveAPI(w http.ResponseWriter, r *http.Request) {
	token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	s.mu.Lock()
	s.stats.Calls++
	end, known := s.tokens[token]
	expired := known && time.Now().After(end)
	if expired {
		s.stats.Expired++
	}
	if !known || expired {
		s.stats.Refused++
	}
	s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	if !known || expired {
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = fmt.Fprintf(w, `{"error":"invalid_token","message":"the token %s is not valid"}`, token)
		return
	}
	_, _ = fmt.Fprintf(w, `{"path":%q}`, r.URL.Path)
}
