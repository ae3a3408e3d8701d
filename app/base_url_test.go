package app

import (
	"bytes"
	"net/url"
	"strings"
	"testing"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/schemas"
)

const twoHosts = `sources:
  game:
    baseURL: https://kr.api.example
    auth: {header: X-Key, secretEnv: GAME_KEY}
    quota: {policies: [{name: second, limit: 20, window: 1s, scope: "{host}"}]}
    facets:
      account:
        keyPattern: "[a-z]+#[a-z]+"
        documents: {account: {baseURL: "https://asia.api.example/riot", path: "/accounts/{key}"}}
      league:
        keyPattern: "[a-z]+#[a-z]+"
        documents: {entries: {path: "/league/{puuid}"}}
        params: {puuid: {from: account, path: account.puuid}}
`

// A source can have two hosts, because a document can have its own baseURL. `config check`, the limits
// of a client and the flag --upstream must handle both hosts.
func TestBaseURL_OfADocument(t *testing.T) {
	c, err := loadConfig(write(t, twoHosts), nil, OptionalSources)
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if err := c.Explain(&text, nil); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"account: account (from asia.api.example)", "for each host", "{puuid} comes from account; the first read of a key takes 2 calls"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("config check: got\n%s\nwant a line with %q", text.String(), want)
		}
	}
	s := c.Sources["game"]
	quota, err := limiter.NewQuota(s.quota())
	if err != nil {
		t.Fatal(err)
	}
	account, league := s.clientBound(quota, "account", c.Access.Limits), s.clientBound(quota, "league", c.Access.Limits)
	if league.NewKeys != account.NewKeys/2 || league.Outstanding != account.Outstanding || quota.MaxCalls(schemas.High, 1e9) != 40 {
		t.Errorf("limits of a client: got %+v for one call, %+v for two, %v calls a second; want half of the new keys, and 40 calls", account, league, quota.MaxCalls(schemas.High, 1e9))
	}
	if _, err := loadConfig(write(t, strings.Replace(twoHosts, "https://asia", "http://asia", 1)), nil, OptionalSources); err == nil || !strings.Contains(err.Error(), "facets.account.documents.account.baseURL: the source would send its credential unencrypted") {
		t.Errorf("http: got %v, want an error that names the base URL", err)
	}
	if err := redirectSources(c.Sources, "http://127.0.0.1:7"); err != nil {
		t.Fatal(err)
	}
	for _, base := range baseURLsOf(c.Sources["game"].Config) {
		if u, _ := url.Parse(base.url); u.Host != "127.0.0.1:7" || (u.Path == "/riot") != (base.setting != "baseURL") {
			t.Errorf("%s with --upstream: got %s, want the host 127.0.0.1:7 and the same path", base.setting, base.url)
		}
	}
}
