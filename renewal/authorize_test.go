package renewal

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/simulator/oauth"
	"github.com/freshet/freshet/source/token"
)

func TestAuthorize_ObtainsRefreshToken(t *testing.T) {
	server := oauth.New(oauth.Config{Lifetime: time.Hour, ClientID: "app", ClientSecret: clientSecret}, "")
	upstream := httptest.NewServer(server)
	defer upstream.Close()
	c := token.Config{Grant: token.RefreshToken, TokenURL: upstream.URL + "/token", ClientID: "app", Consent: token.Consent{AuthorizeURL: upstream.URL + "/authorize"}}
	get := func(page string) string {
		resp, err := http.Get(page)
		if err != nil {
			t.Error(err)
			return ""
		}
		defer func() { _ = resp.Body.Close() }()
		text, _ := io.ReadAll(resp.Body)
		return string(text)
	}
	answer, err := Authorize(t.Context(), c, map[string]string{"clientSecret": clientSecret}, token.NewClient(time.Minute), func(page string) {
		u, err := url.Parse(page)
		if err != nil || u.Query().Get("code_challenge_method") != "S256" {
			t.Errorf("page: got %s, %v", page, err)
		}
		go func() {
			forged := u.Query().Get("redirect_uri") + "?code=stolen&state=forged"
			if text := get(forged); !strings.Contains(text, "accepts only") {
				t.Errorf("answer with a forged state: got %s", text)
			}
			if text := get(page); !strings.Contains(text, "freshet has received the answer") {
				t.Errorf("got %s", text)
			}
		}()
	})
	if err != nil || answer.Refresh == "" || answer.Value == "" || server.Stats().Renewals != 1 {
		t.Errorf("got %d bytes, %v, want a refresh token", len(answer.Refresh), err)
	}
}

func TestAuthorize_EndsWithoutConsent(t *testing.T) {
	c := token.Config{Grant: token.RefreshToken, TokenURL: "https://a.example/t", ClientID: "app", Consent: token.Consent{AuthorizeURL: "https://a.example/authorize"}}
	ctx, cancel := context.WithCancel(t.Context())
	_, err := Authorize(ctx, c, nil, token.NewClient(time.Minute), func(string) { cancel() })
	if err == nil || !strings.Contains(err.Error(), "nobody gave consent") {
		t.Errorf("got %v", err)
	}
}
