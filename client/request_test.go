package client

import (
	"net/http"
	"testing"
)

func TestSend_KeepsTheHost(t *testing.T) {
	s := always(200, "{}")
	c := newTestClient(t, s, Options{Token: Token{Value: aToken}})
	for _, path := range []string{"@elsewhere.example/", ".elsewhere.example/", ":81/", ""} {
		if _, err := c.Send(t.Context(), http.MethodGet, path, nil); err == nil {
			t.Errorf("path %q: got no error, want one", path)
		}
	}
	if s.count() != 0 {
		t.Errorf("got %d requests, want none", s.count())
	}
	if _, err := c.Send(t.Context(), http.MethodGet, "//elsewhere.example/", nil); err != nil || s.last().URL.Host != "freshet.example" {
		t.Errorf("got %v, want a request to freshet.example", err)
	}
}

func TestSend_FollowsNoRedirect(t *testing.T) {
	s := always(302, "", "Location", "http://elsewhere.example/")
	r, err := newTestClient(t, s, Options{Token: Token{Value: aToken}}).Send(t.Context(), http.MethodGet, "/v1", nil)
	if err != nil || r.Code != http.StatusFound || s.count() != 1 {
		t.Errorf("got %d, %v after %d requests, want the response 302 after 1", r.Code, err, s.count())
	}
}
