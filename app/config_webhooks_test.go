package app

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const hookConfig = `sources:
  shop:
    baseURL: https://api.example.com
    quota: {policies: [{name: second, limit: 10, window: 1s}]}
    facets:
      product: {documents: {product: {path: "/products/{key}"}}}
      price: {documents: {price: {path: "/prices/{key}?list={list}"}}, params: {list: ""}}
    webhooks:
      changes:
        verify: {scheme: hmac, header: X-Signature, secretEnv: SHOP_HOOK_SECRET}
        newKeys: 60/m
        map:
          - {when: {body: type, equals: [changed]}, facet: product, key: "body:products.#.id", delay: 5s, maxDelay: 1m, lane: HIGH}
          - {facet: product, key: "header:X-Product"}
`

func loadHooks(t *testing.T, text string) (Config, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "freshet.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return loadConfig(file, nil, RequiredSources)
}

func TestWebhooks_AreChecked(t *testing.T) {
	if _, err := loadHooks(t, hookConfig); err != nil {
		t.Fatalf("valid webhook: got %v, want no error", err)
	}
	for _, m := range []struct{ name, from, to, path, hint string }{
		{"name", "changes:", "Changes_1:", "webhooks.Changes_1", "lower-case letters"},
		{"no rule", hookConfig[strings.Index(hookConfig, "          - {when"):], "", "webhooks.changes.map", "at least one rule"},
		{"scheme", "scheme: hmac", "scheme: hub", "verify.scheme", "standard-webhooks"},
		{"no secret", ", secretEnv: SHOP_HOOK_SECRET", "", "verify.secretFile", "name a file with the secret"},
		{"two secrets", "secretEnv:", "secretFile: /etc/secret, secretEnv:", "verify.secretEnv", "remove one of them"},
		{"no header", "header: X-Signature, ", "", "verify.header", "as in X-Signature"},
		{"header with a space", "header: X-Signature", "header: X Signature", "verify.header", "as in X-Signature"},
		{"header of github", "scheme: hmac", "scheme: github", "verify.header", "defines its headers"},
		{"algorithm", "scheme: hmac", "scheme: hmac, algorithm: md5", "verify.algorithm", "sha256"},
		{"algorithm of token", "scheme: hmac", "scheme: token, algorithm: sha256", "verify.algorithm", "only the scheme hmac"},
		{"encoding", "scheme: hmac", "scheme: hmac, encoding: base32", "verify.encoding", "base64"},
		{"new keys", "newKeys: 60/m", "newKeys: yes", "newKeys", "as in 60/m"},
		{"facet", "facet: product, key: \"header", "facet: products, key: \"header", "map[1].facet", "there is no facet"},
		{"open param", "facet: product, key: \"header", "facet: price, key: \"header", "map[1].facet", "has no value for list"},
		{"place", "body:products", "products", "map[0].key", "must begin with body: or header:"},
		{"count of an array", "products.#.id", "products.#", "map[0].key", "ends with #"},
		{"modifier", "products.#.id", "products|@this", "map[0].key", "joined by dots"},
		{"empty name", "products.#.id", "products..id", "map[0].key", "empty name"},
		{"two conditions", "{body: type", "{header: X-Type, body: type", "map[0].when", "either a header or a path"},
		{"no values", ", equals: [changed]", "", "map[0].when.equals", "list the values"},
		{"short delay", "delay: 5s", "delay: 5ms", "map[0].delay", "from 1s"},
		{"short bound", "maxDelay: 1m", "maxDelay: 1s", "map[0].maxDelay", "from delay"},
		{"bound without delay", "delay: 5s, ", "", "map[0].maxDelay", "set delay"},
		{"lane", "lane: HIGH", "lane: high", "map[0].lane", "HIGH or LOW"},
	} {
		text := strings.Replace(hookConfig, m.from, m.to, 1)
		if text == hookConfig {
			t.Fatalf("%s: the configuration has no %q", m.name, m.from)
		}
		_, err := loadHooks(t, text)
		if err == nil || !strings.Contains(err.Error(), m.path) || !strings.Contains(err.Error(), m.hint) || strings.Contains(err.Error(), redacted) {
			t.Errorf("%s: got %v, want an error about %s with %q", m.name, err, m.path, m.hint)
		}
	}
}

func TestWebhooks_NeedTheirSecret(t *testing.T) {
	c, err := loadHooks(t, hookConfig)
	if err != nil {
		t.Fatal(err)
	}
	p := parts{config: c, secret: noSecret}
	sources, err := p.sources()
	if err == nil {
		_, err = newHooks(p, sources)
	}
	if err == nil || !strings.Contains(err.Error(), "sources.shop.webhooks.changes.verify.secretEnv: SHOP_HOOK_SECRET is not set") {
		t.Errorf("missing secret: got %v, want an error that names the variable", err)
	}
	t.Setenv("SHOP_HOOK_SECRET", "hunter2")
	if _, err = newHooks(p, sources); err == nil || strings.Contains(err.Error(), "hunter2") || !strings.Contains(err.Error(), "at least 16") {
		t.Errorf("short secret: got %v, want an error without the secret", err)
	}
	s := c.Sources["shop"]
	hook := s.Webhooks["changes"]
	hook.Verify.SecretEnv, hook.Verify.SecretFile = "", filepath.Join(t.TempDir(), "missing")
	s.Webhooks["changes"] = hook
	if _, err = newHooks(p, sources); err == nil || !strings.Contains(err.Error(), "verify.secretFile") {
		t.Errorf("missing file: got %v, want an error that names the setting", err)
	}
}

func TestWebhooks_HaveNoSecretsInThePrintedConfiguration(t *testing.T) {
	c, err := loadHooks(t, strings.Replace(hookConfig, "secretEnv: SHOP_HOOK_SECRET", "secretEnv: s3cr3t-9f8e7d6c5b, prefix: \"Bearer s3cr3t-0a1b2c3d4e\"", 1))
	if err != nil {
		t.Fatal(err)
	}
	v := c.Redacted().Sources["shop"].Webhooks["changes"].Verify
	if strings.Contains(v.SecretEnv+v.Prefix, "s3cr3t") || v.Header != "X-Signature" {
		t.Errorf("printed verify: got %+v, want it without the secrets", v)
	}
	if c.Sources["shop"].Webhooks["changes"].Verify.SecretEnv != "s3cr3t-9f8e7d6c5b" {
		t.Error("configuration in use: got the redacted one, want it unchanged")
	}
}

func TestWebhooks_AreExplained(t *testing.T) {
	c, err := loadHooks(t, hookConfig)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []struct{ env, text string }{
		{"", "  webhook POST /hooks/shop/changes (hmac): refreshes product once deliveries pause for 5s, after 1m at most; product\n" +
			"          also keys that are neither stored nor registered: 60 at once, and each 1m, in each query service\n" +
			"  note    SHOP_HOOK_SECRET is not set in this environment; query services do not start without it\n"},
		{"SHOP_HOOK_SECRET=x", "in each query service\n"},
	} {
		var out strings.Builder
		if err := c.Explain(&out, []string{want.env}); err != nil || !strings.Contains(out.String(), want.text) || strings.Contains(out.String(), "note    SHOP") != strings.Contains(want.text, "note") {
			t.Errorf("explanation with %q: got %v\n%s\nwant\n%s", want.env, err, out.String(), want.text)
		}
	}
}
