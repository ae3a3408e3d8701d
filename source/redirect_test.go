package source

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// outsideTenantA lists redirect targets that at least one server may interpret as a path outside of
// /tenants/a.
var outsideTenantA = []string{
	"/tenants/b/item", "/tenants/ab/item", "/tenants", "/", "../../../b/item", "/tenants/a/../b/item", "/tenants/a/%2e%2e/b/item",
	"/tenants/a/.%2E/b/item", "/tenants/a/..%2fb/item", "/tenants/a/..%5cb/item", `/tenants/a/..\b/item`, "/tenants/a/..;/b/item",
	"/tenants/a/..;x=1/b/item", "/tenants%2fa/item", "/TENANTS/a/item", "//HOST/tenants/b",
}

func TestRedirect_StaysBelowBaseURL(t *testing.T) {
	var location string
	var arrivals atomic.Int64
	at := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if arrivals.Add(1); r.URL.Query().Get("final") != "" {
			_, _ = w.Write([]byte("{}"))
			return
		}
		w.Header().Set("Location", strings.ReplaceAll(location, "HOST", r.Host))
		w.WriteHeader(http.StatusFound)
	})
	read := func(base, to string) Outcome {
		location = to
		arrivals.Store(0)
		s := testSource(t, at+base, nil)
		a, err := fetch(t, t.Context(), s, &testPermits{})
		if err != nil {
			t.Fatal(err)
		}
		return s.Read(a, time.Now())
	}
	for _, base := range []string{"/tenants/a", "/tenants/a/"} {
		for _, to := range outsideTenantA {
			o := read(base, to+"?final=1")
			if o.Class != Permanent || arrivals.Load() != 1 || !strings.Contains(o.Err.Error(), "302 Found; the redirect points outside the path /tenants/a") {
				t.Errorf("base %s to %s: got %s (%v) after %d calls, want permanent after 1", base, to, o.Class, o.Err, arrivals.Load())
			}
		}
		for _, to := range []string{"/tenants/a?final=1", "/tenants/a/v2/item?final=1", "/tenants/a/b..c/...?final=1", "http://HOST/tenants/a/x?final=1", "?final=1"} {
			if o := read(base, to); o.Class != OK || arrivals.Load() != 2 {
				t.Errorf("base %s to %s: got %s (%v) after %d calls, want ok after 2", base, to, o.Class, o.Err, arrivals.Load())
			}
		}
	}
	for to, want := range map[string]string{
		"http://elsewhere.example/x":       "the redirect points to another host",
		"http://user:word@HOST/v1?final=1": "the redirect points to another host",
		"http://[::bad":                    "the redirect points to an invalid URL",
	} {
		if o := read("", to); o.Class != Permanent || !strings.Contains(o.Err.Error(), want) || arrivals.Load() != 1 {
			t.Errorf("to %s: got %s (%v), want %q", to, o.Class, o.Err, want)
		}
	}
	if o := read("", "/anywhere/..;/x?final=1"); o.Class != OK {
		t.Errorf("without a path in baseURL: got %s (%v), want ok", o.Class, o.Err)
	}
}

func TestPaging_LinkStaysBelowBaseURL(t *testing.T) {
	for _, to := range outsideTenantA {
		b := &pagedUpstream{items: 100, respond: func(w http.ResponseWriter, r *http.Request, _ int) bool {
			w.Header().Set("Link", "<"+strings.ReplaceAll(to, "HOST", r.Host)+">; rel=next")
			_, _ = w.Write([]byte("[]"))
			return true
		}}
		s := testSource(t, serve(t, b.ServeHTTP)+"/tenants/a", documentOf(Document{Path: "/issues", Paging: &Paging{Link: true}}))
		a, err := fetch(t, t.Context(), s, &testPermits{})
		if err != nil {
			t.Fatal(err)
		}
		o := s.Read(a, time.Now())
		if o.Class != BadContent || b.arrivals.Load() != 1 || !strings.Contains(o.Err.Error(), "the link to the next page points outside the path") {
			t.Errorf("to %s: got %s (%v) after %d calls, want bad-content after 1", to, o.Class, o.Err, b.arrivals.Load())
		}
	}
}

func TestRedirect_IsFollowedOnceWithOwnPermit(t *testing.T) {
	elsewhere := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("got a request to another host with credential %q", r.Header.Get("X-Api-Key"))
	})
	var location string
	var arrivals atomic.Int64
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		arrivals.Add(1)
		if r.URL.Path == "/final" {
			_, _ = w.Write([]byte("{}"))
			return
		}
		w.Header().Set("Location", location)
		w.WriteHeader(http.StatusFound)
	})
	s := testSource(t, url, nil)
	for _, c := range []struct {
		location string
		arrivals int64
		want     Class
	}{
		{"/final", 2, OK},
		{url + "/final", 2, OK},
		{"/again", 2, Permanent},
		{elsewhere + "/final", 1, Permanent},
		{"", 1, Permanent},
		{"http://[::bad", 1, Permanent},
	} {
		location = c.location
		arrivals.Store(0)
		b := &testPermits{}
		a, err := fetch(t, t.Context(), s, b)
		if err != nil {
			t.Fatal(err)
		}
		o := s.Read(a, time.Now())
		if o.Class != c.want || arrivals.Load() != c.arrivals || b.spent.Load() != c.arrivals || int64(a.Calls) != c.arrivals {
			t.Errorf("redirect to %q: got %s (%v) after %d arrivals with %d permits", c.location, o.Class, o.Err, arrivals.Load(), b.spent.Load())
		}
	}
}
