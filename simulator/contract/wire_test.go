package contract

import (
	"io"
	"net"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

func TestHeaders_KeepSpelling(t *testing.T) {
	spelt := map[string][]string{
		"court": {"Set-Cookie"}, "data-go-kr": nil, "nexon-development": nil, "nexon": nil, "shopify-graphql": nil, "stripe": nil,
		"discord":        {"X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset", "X-RateLimit-Reset-After", "X-RateLimit-Bucket"},
		"github-graphql": {"x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-used", "x-ratelimit-reset", "x-ratelimit-resource"},
		"github-rest":    {"x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-used", "x-ratelimit-reset", "x-ratelimit-resource", "ETag"},
		"hubspot": {
			"X-HubSpot-RateLimit-Max", "X-HubSpot-RateLimit-Remaining", "X-HubSpot-RateLimit-Interval-Milliseconds",
			"X-HubSpot-RateLimit-Daily", "X-HubSpot-RateLimit-Daily-Remaining",
		},
		"ietf": {"RateLimit", "RateLimit-Policy"},
		"jira": {"Beta-Ratelimit", "Beta-Ratelimit-Policy", "X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Reset"},
		"openai": {
			"x-ratelimit-limit-requests", "x-ratelimit-limit-tokens", "x-ratelimit-remaining-requests", "x-ratelimit-remaining-tokens",
			"x-ratelimit-reset-requests", "x-ratelimit-reset-tokens",
		},
		"reddit":       {"X-Ratelimit-Used", "X-Ratelimit-Remaining", "X-Ratelimit-Reset"},
		"riot":         {"X-App-Rate-Limit", "X-App-Rate-Limit-Count", "X-Method-Rate-Limit", "X-Method-Rate-Limit-Count"},
		"shopify-rest": {"X-Shopify-Shop-Api-Call-Limit"},
	}
	for _, x := range examples {
		u, err := New(x.name, Options{})
		if err != nil {
			t.Fatal(err)
		}
		server := httptest.NewServer(u)
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		q := x.call()
		q.Close = true
		if err := q.Write(conn); err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(conn)
		if err != nil {
			t.Fatal(err)
		}
		head, _, _ := strings.Cut(string(text), "\r\n\r\n")
		for _, name := range spelt[x.name] {
			if !strings.Contains(head, "\r\n"+name+": ") {
				t.Errorf("%s: header %s is missing: %s", x.name, name, head)
			}
		}
		if _, known := spelt[x.name]; !known {
			t.Errorf("%s: the test lists no headers", x.name)
		}
		if len(spelt[x.name]) == 0 && strings.Contains(strings.ToLower(head), "rate") {
			t.Errorf("%s: got rate-limit headers: %s", x.name, head)
		}
		server.Close()
	}
}

func TestUpstream_IsConcurrencySafe(t *testing.T) {
	for _, x := range examples {
		u, err := New(x.name, Options{MaxExtraLatency: 1})
		if err != nil {
			t.Fatal(err)
		}
		r := rig{t, u}
		call := x.call
		var mu sync.Mutex // guards call, because a function from alternate is not safe for concurrent use
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for range 20 {
					mu.Lock()
					q := call()
					mu.Unlock()
					r.do(q)
					r.do(newRequest("GET /_stats"))
				}
			})
		}
		all.Wait()
		if s := u.Stats(); s.Arrivals != 160 || u.inFlight != 0 || s.MaxInFlight > 8 {
			t.Errorf("%s: got stats %+v", x.name, s)
		}
	}
}
