package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/freshet/freshet/source/trial"
)

// shopAPI imitates an API with a key in a header, a limit of 60 calls a minute and an ETag.
func shopAPI(t *testing.T) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Type", "application/json")
		h.Set("X-RateLimit-Limit", "60")
		h.Set("X-RateLimit-Remaining", "41")
		h.Set("X-RateLimit-Reset", "45")
		switch {
		case strings.HasPrefix(r.URL.Path, "/docs"):
			h.Set("Content-Type", "text/html")
			_, _ = w.Write([]byte("<html>"))
		case r.Header.Get("X-Api-Key") != "s3cret-key":
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = w.Write([]byte(`{"error": "invalid key"}`))
		case r.URL.Path == "/products/42":
			h.Set("Etag", `"a1"`)
			_, _ = w.Write([]byte(`{"id": 42, "name": "Ball", "echo": "` + r.Header.Get("X-Api-Key") + `"}`))
		default:
			w.WriteHeader(http.StatusNotFound)
			_, _ = w.Write([]byte(`{}`))
		}
	}))
	t.Cleanup(s.Close)
	return s.URL
}

func shopConfig(t *testing.T, base string) string {
	t.Helper()
	return write(t, `
sources:
  shop:
    baseURL: `+base+`
    auth: {header: X-Api-Key, secretEnv: SHOP_KEY}
    quota: {policies: [{name: second, limit: 10, window: 1s}]}
    facets:
      product: {documents: {product: {path: "/products/{key}?signature=abcdef123456"}}}
      docs: {documents: {docs: {path: "/docs/{key}"}}}
      issues: {documents: {issues: {path: "/{owner}/{key}"}}, params: {owner: ""}}
`)
}

func TestTry_ExitCodes(t *testing.T) {
	file := shopConfig(t, shopAPI(t))
	for name, c := range map[string]struct {
		key            string
		args           []string
		code           int
		stdout, stderr string
	}{
		"content":           {"s3cret-key", []string{"shop/product/42"}, 0, "200 OK", "did not pass its limiter"},
		"twice":             {"s3cret-key", []string{"shop/product/42", "--twice", "--pause", "0s"}, 0, "both contents are equal", ""},
		"wrong key":         {"wrong-key", []string{"shop/product/42"}, 1, "check the value of SHOP_KEY", "the upstream answered 401"},
		"no key":            {"", []string{"shop/product/42"}, 1, "", "SHOP_KEY is not set"},
		"HTML":              {"s3cret-key", []string{"shop/docs/42"}, 1, "HTML, not JSON", "not valid JSON"},
		"not found":         {"s3cret-key", []string{"shop/product/43"}, 3, "404 Not Found", "no such entity"},
		"no such source":    {"s3cret-key", []string{"shopp/product/43"}, 3, "", `no source "shopp"; it has shop`},
		"no such facet":     {"s3cret-key", []string{"shop/products/43"}, 3, "", `no facet "products"; it has docs, issues, product`},
		"invalid key":       {"s3cret-key", []string{"shop/product/4 3"}, 2, "", "keyPattern"},
		"incomplete":        {"s3cret-key", []string{"shop/product"}, 2, "", "source/facet/key"},
		"format":            {"s3cret-key", []string{"shop/product/42", "-o", "xml"}, 2, "", "table or json"},
		"pause":             {"s3cret-key", []string{"shop/product/42", "--pause", "-1s"}, 2, "", "from 0s to 1h"},
		"missing param":     {"s3cret-key", []string{"shop/issues/42"}, 2, "", "--param NAME=VALUE"},
		"unknown param":     {"s3cret-key", []string{"shop/issues/42", "--param", "x=y"}, 2, "", `no param "x"; it has owner`},
		"param of no value": {"s3cret-key", []string{"shop/issues/42", "--param", "owner"}, 2, "", "NAME=VALUE"},
		"param":             {"s3cret-key", []string{"shop/issues/42", "--param", "owner=products"}, 0, "/products/42", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("SHOP_KEY", c.key)
			code, stdout, stderr := command(t, nil, append([]string{"try", "--config", file}, c.args...)...)
			if code != c.code {
				t.Errorf("exit code: got %d, want %d", code, c.code)
			}
			if !strings.Contains(stdout, c.stdout) {
				t.Errorf("stdout: got %s, want %q in it", stdout, c.stdout)
			}
			if !strings.Contains(stderr, c.stderr) {
				t.Errorf("stderr: got %s, want %q in it", stderr, c.stderr)
			}
			if all := stdout + stderr; strings.Contains(all, "s3cret-key") || strings.Contains(all, "wrong-key") || strings.Contains(all, "abcdef123456") {
				t.Errorf("output: got %s, want no secret in it", all)
			}
		})
	}
}

func TestTry_PrintsJSON(t *testing.T) {
	t.Setenv("SHOP_KEY", "s3cret-key")
	_, stdout, _ := command(t, nil, "try", "shop/product/42", "-o", "json", "--config", shopConfig(t, shopAPI(t)))
	var report trial.Report
	if err := json.Unmarshal([]byte(stdout), &report); err != nil {
		t.Fatalf("got %v for %s, want JSON", err, stdout)
	}
	if report.Class != "ok" {
		t.Errorf("class: got %s, want ok", report.Class)
	}
	if len(report.Hash) != 64 {
		t.Errorf("hash: got %q, want 64 digits", report.Hash)
	}
}
