package console

import (
	"encoding/base64"
	"net/http"
	"net/url"
	"testing"
)

func TestCookie_IsHostBoundOverHTTPS(t *testing.T) {
	r := newRig(t)
	r.loginRequired = true
	for _, c := range []struct {
		name, path, origin string
		want               http.Cookie
	}{
		{"plain", root + "/login", "", http.Cookie{Name: "freshet-console", Path: "/console"}},
		{"plain, from a page", root + "/login", "http://example.com", http.Cookie{Name: "freshet-console", Path: "/console"}},
		{"TLS", "https://example.com" + root + "/login", "", http.Cookie{Name: "__Host-freshet-console", Path: "/", Secure: true}},
		{"behind a proxy with TLS", root + "/login", "https://example.com", http.Cookie{Name: "__Host-freshet-console", Path: "/", Secure: true}},
	} {
		var headers []string
		if c.origin != "" {
			headers = []string{"Origin", c.origin, "Sec-Fetch-Site", "same-origin"}
		}
		for _, path := range []string{c.path, c.path[:len(c.path)-len("/login")] + "/logout"} {
			cookies := r.do("POST", path, url.Values{"token": {"inspect"}}, headers...).cookies
			if len(cookies) != 1 {
				t.Fatalf("%s %s: got %d cookies, want 1", c.name, path, len(cookies))
			}
			got := cookies[0]
			if got.Name != c.want.Name || got.Path != c.want.Path || got.Secure != c.want.Secure || got.Domain != "" || !got.HttpOnly || got.SameSite != http.SameSiteStrictMode {
				t.Errorf("%s %s: got %s, want the name %s, the path %s, Secure %v, HttpOnly, SameSite=Strict and no domain", c.name, path, got, c.want.Name, c.want.Path, c.want.Secure)
			}
		}
	}
}

func TestCookie_IgnoresPlainCookieOverTLS(t *testing.T) {
	r := newRig(t)
	r.loginRequired = true
	cookie := func(name, token string) string {
		return name + "=" + base64.RawURLEncoding.EncodeToString([]byte(token))
	}
	const own, planted = "__Host-freshet-console", "freshet-console"
	for _, c := range []struct {
		name, path, cookies string
		want                int
	}{
		{"its own over TLS", "https://example.com" + root, cookie(own, "inspect"), 200},
		{"planted over TLS", "https://example.com" + root, cookie(planted, "inspect"), 303},
		{"both, its own invalid", root, cookie(planted, "inspect") + "; " + cookie(own, "wrong"), 303},
		{"both, the planted one invalid", root, cookie(planted, "wrong") + "; " + cookie(own, "inspect"), 200},
		{"plain HTTP", root, cookie(planted, "inspect"), 200},
	} {
		if got := r.get(c.path, "Cookie", c.cookies).status; got != c.want {
			t.Errorf("%s: got %d, want %d", c.name, got, c.want)
		}
	}
}
