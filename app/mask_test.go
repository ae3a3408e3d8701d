package app

import (
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
)

func TestLogger_LogsNoSecret(t *testing.T) {
	var stderr strings.Builder
	p := NewProcess(nil, io.Discard, &stderr)
	p.ConfigFile = "testdata/secrets.yaml"
	c, err := p.Load(OptionalSources)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("SHOP_KEY", "CredentialHunter14")
	if _, err := p.requireSecret(secretRef{env: "SHOP_KEY"}); err != nil {
		t.Fatal(err)
	}
	for _, format := range []string{"text", "json"} {
		log := p.logger(t.Context(), LogConfig{Format: format}, "worker")
		log.Error("a bug", "panic", fmt.Sprint(c.Database, c.Sources["shop"].Headers, c.Sources["shop"].Facets["items"].Documents["one"]), "credential", "CredentialHunter14",
			"err", os.ErrNotExist)
	}
	text := stderr.String()
	for _, secret := range []string{"Db-Passw0rd", "DirectHunter3", "SslHunter4", "HeaderHunter6", "BearerHunter7", "PathHunter9", "8f3a1c5e7b9d2f4a6c8e", "DocHunter8", "CredentialHunter14"} {
		if strings.Contains(text, secret) {
			t.Errorf("log: got %s, want a text without %s", text, secret)
		}
	}
	if !strings.Contains(text, "file does not exist") {
		t.Errorf("got %s, want the rest of the log as it was", text)
	}
}

// An error about a wrong setting quotes lines of the file. In these lines, text that only resembles a
// secret must not be redacted: the user could otherwise not find the wrong setting.
func TestLoad_ErrorShowsSettingsWithoutSecret(t *testing.T) {
	const text = `
sources:
  shop:
    baseURL: https://shop.example/api
    auth: {header: X-Shop, secretEnv: SHOP_KEY}
    quota: {policies: [{name: second, limit: 10, window: 1s}]}
    facets:
      items: {params: {lang: Hunter-1}, keepFor: 720h, documents: {list: {path: /items, paging: {items: all, cursor: next, param: cursor, maxPagez: 3}}}}
      again: {params: {lang: Hunter-2}, documents: {list: {path: /again, headers: {X-Shelf: Hunter-3}, paging: {items: all, cursor: next, param: cursor}}}}
      posts:
        paramss: {lang: Hunter-4}
        documents:
          list: {path: /posts, header: {X-Shelf: Hunter-5}}
`
	p := NewProcess(nil, io.Discard, io.Discard)
	p.ConfigFile = write(t, text)
	_, err := p.Load(OptionalSources)
	if err == nil {
		t.Fatal("error: got none, want unknown settings")
	}
	for _, part := range []string{"paging: {items: all, cursor: next, param: cursor, maxPagez: 3}", "keepFor: 720h"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error: got %v, want %q in it", err, part)
		}
	}
	for _, secret := range []string{"Hunter-1", "Hunter-2", "Hunter-3", "Hunter-4", "Hunter-5"} {
		if strings.Contains(p.mask.text(text, true), secret) {
			t.Errorf("masked file: got %s, want it redacted", secret)
		}
	}
	for _, shown := range []string{"header: X-Shop", "keepFor: 720h", "param: cursor"} {
		if !strings.Contains(p.mask.text(text, true), shown) {
			t.Errorf("masked file: got %s, want %s in it", p.mask.text(text, true), shown)
		}
	}
}
