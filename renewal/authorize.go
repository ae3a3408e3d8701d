package renewal

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/freshet/freshet/source/token"
)

// Authorize obtains tokens with the authorization code flow and PKCE (RFC 7636). It listens on
// loopback, and calls the function `show` with the URL of the page on which a person grants the
// access. Then it waits until that page redirects the browser back, or until ctx ends.
func Authorize(ctx context.Context, c token.Config, secrets map[string]string, client *http.Client, show func(page string)) (token.Answer, error) {
	redirect := c.Consent.RedirectURL
	if redirect == "" {
		redirect = "http://127.0.0.1:0/callback"
	}
	at, err := url.Parse(redirect)
	if err != nil {
		return token.Answer{}, fmt.Errorf("consent.redirectURL: %w", err)
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", at.Host)
	if err != nil {
		return token.Answer{}, fmt.Errorf("listen on the address of consent.redirectURL: %w", err)
	}
	if at.Port() == "0" {
		at.Host = l.Addr().String()
	}
	state, verifier := rand.Text(), rand.Text()+rand.Text()
	sum := sha256.Sum256([]byte(verifier))
	page, err := c.AuthorizeURL(secrets, state, base64.RawURLEncoding.EncodeToString(sum[:]), at.String())
	if err != nil {
		_ = l.Close()
		return token.Answer{}, err
	}
	codes := make(chan codeAnswer, 1)
	server := &http.Server{Handler: callback(at.Path, state, codes), ReadHeaderTimeout: 5 * time.Second}
	go func() { _ = server.Serve(l) }()
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = server.Shutdown(ctx)
	}()
	show(page)
	var got codeAnswer
	select {
	case got = <-codes:
	case <-ctx.Done():
		return token.Answer{}, errors.New("nobody gave consent; nothing was changed")
	}
	if got.err != nil {
		return token.Answer{}, got.err
	}
	req, err := c.NewCodeRequest(ctx, secrets, got.code, verifier, at.String())
	if err != nil {
		return token.Answer{}, err
	}
	hidden := []string{got.code, verifier}
	for _, text := range secrets {
		hidden = append(hidden, text)
	}
	answer, err := c.Do(client, req, hidden)
	if err == nil && answer.Refresh == "" {
		return answer, errors.New("the token endpoint returned no refresh token; many APIs need a scope or parameter for it, such as offline_access (token.scopes, token.consent.params)")
	}
	return answer, err
}

type codeAnswer struct {
	code string
	err  error
}

// callback returns the handler to which the browser is redirected. It accepts one response, whose
// parameter state must have the right value.
func callback(path, state string, codes chan<- codeAnswer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		if r.URL.Path != path || subtle.ConstantTimeCompare([]byte(query.Get("state")), []byte(state)) != 1 {
			http.Error(w, "this page accepts only the redirect of the running command `freshet credentials authorize`; start the command again", http.StatusBadRequest)
			return
		}
		a := codeAnswer{code: query.Get("code")}
		if a.code == "" {
			a.err = fmt.Errorf("the upstream refused the authorization: %.80q", query.Get("error"))
		}
		select {
		case codes <- a:
			_, _ = w.Write([]byte("freshet has received the answer. You can close this page.\n"))
		default:
			http.Error(w, "freshet has already received an answer to this authorization; close this page", http.StatusConflict)
		}
	})
}
