package app

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/schemas/openapitest"
)

// getHealth sends a request to the ops handler, and compares the response with the contract.
func getHealth(t *testing.T, h *health, target, accept string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, target, nil)
	if accept != "" {
		r.Header.Set("Accept", accept)
	}
	w := httptest.NewRecorder()
	h.handleHealth(w, r)
	openapitest.Check(t, openapitest.Exchange{Request: r, Status: w.Code, Header: w.Header(), Response: w.Body.String()})
	return w
}

const browserAccept = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"

// Each case has a value of the header Accept, and the media type that the response must have.
func TestHealth_NegotiatesTheMediaType(t *testing.T) {
	h := newHealth(nil, slog.New(slog.DiscardHandler))
	for accept, want := range map[string]string{
		"": "application/json", "*/*": "application/json", "application/json": "application/json", "image/png": "application/json",
		"text/html, application/json": "application/json", "text/html;q=0.5, */*;q=0.8": "application/json", "text/html;q=0": "application/json",
		"text/html;q=high": "application/json", "text/html;q": "application/json", ";;,/,text/html/x,\x00": "application/json", "text/html;q=NaN": "application/json",
		browserAccept: "text/html", "text/html": "text/html", "TEXT/HTML": "text/html", "text/*": "text/html", "text/html, application/json;q=0.9": "text/html", ";;, text/html": "text/html",
	} {
		w := getHealth(t, h, "/healthz", accept)
		if got, _, _ := strings.Cut(w.Header().Get("Content-Type"), ";"); got != want {
			t.Errorf("Accept %q: got %s, want %s", accept, got, want)
		}
		if got := w.Header().Get("Vary"); got != "Accept" {
			t.Errorf("Accept %q: got Vary %q, want Accept", accept, got)
		}
	}
}

func TestHealthPage_HasTheStatusAndRulesOfJSON(t *testing.T) {
	up := func(context.Context) error { return nil }
	down := func(context.Context) error { return errors.New(`refused by <script>alert("x")</script>`) }
	for name, c := range map[string]struct {
		reads, redis func(context.Context) error
		status       int
	}{
		"pass": {up, up, 200}, "warn": {up, down, 200}, "fail": {down, up, 503},
	} {
		h := newHealth(map[string]healthCheck{"redis": {run: c.redis}, "reads": {required: true, run: c.reads}}, slog.New(slog.DiscardHandler))
		plain, verbose := getHealth(t, h, "/healthz", browserAccept), getHealth(t, h, "/healthz?verbose", browserAccept)
		for _, got := range []*httptest.ResponseRecorder{plain, verbose} {
			if got.Code != c.status {
				t.Errorf("%s: got %d, want %d", name, got.Code, c.status)
			}
			if want := fmt.Sprintf(`<h1>freshet: <span class="%s">%[1]s</span></h1>`, name); !strings.Contains(got.Body.String(), want) {
				t.Errorf("%s: got %s, want %s in it", name, got.Body, want)
			}
			if got.Header().Get("Cache-Control") != "no-store" {
				t.Errorf("%s: got Cache-Control %q, want no-store", name, got.Header().Get("Cache-Control"))
			}
			if strings.Contains(got.Body.String(), "<script") {
				t.Errorf("%s: got a script in %s, want none", name, got.Body)
			}
		}
		for _, secret := range []string{"redis", "refused", "version " + Version()} {
			if strings.Contains(plain.Body.String(), secret) {
				t.Errorf("%s: got %q in the page without ?verbose, want no details", name, secret)
			}
		}
		if body := verbose.Body.String(); !strings.Contains(body, ">redis</th>") || !strings.Contains(body, "version "+Version()) {
			t.Errorf("%s: got %s, want the dependencies and the version", name, body)
		}
		if body := verbose.Body.String(); name != "pass" && !strings.Contains(body, "refused by &lt;script&gt;") {
			t.Errorf("%s: got %s, want the escaped error", name, body)
		}
	}
}

// The page may use only its own style sheet, so the policy must have the hash of the text that is sent.
func TestHealthPage_PolicyAllowsOnlyItsStyle(t *testing.T) {
	w := getHealth(t, newHealth(nil, slog.New(slog.DiscardHandler)), "/healthz", browserAccept)
	_, rest, _ := strings.Cut(w.Body.String(), "<style>")
	style, _, _ := strings.Cut(rest, "</style>")
	sum := sha256.Sum256([]byte(style))
	want := "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
	if got := w.Header().Get("Content-Security-Policy"); got != want {
		t.Errorf("got the policy %s, want %s", got, want)
	}
	for _, asset := range []string{" style=", " src=", "url(", "<link"} {
		if strings.Contains(w.Body.String(), asset) {
			t.Errorf("got %q in the page, want no other style and no asset", asset)
		}
	}
}

func TestHealthPage_UpstreamOutageIs200(t *testing.T) {
	for _, state := range []limiter.State{limiter.StateStopped, limiter.StateBreakerOpen, limiter.StateBackingOff} {
		until := time.Date(2026, 11, 20, 20, 38, 0, 0, time.UTC)
		h := newHealth(nil, slog.New(slog.DiscardHandler))
		h.sources = func() map[string]sourceHealth { return map[string]sourceHealth{"a-source": {string(state), &until}} }
		w := getHealth(t, h, "/healthz?verbose", browserAccept)
		if w.Code != http.StatusOK {
			t.Errorf("%s: got %d, want 200", state, w.Code)
		}
		if want := fmt.Sprintf(`>a-source</th><td><span class="%s">%[1]s</span></td><td>2026-11-20 20:38:00</td>`, state); !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s: got %s, want %s in it", state, w.Body, want)
		}
	}
}

func TestHealth_HEADHasTheHeadersOfGET(t *testing.T) {
	p := parts{log: slog.New(slog.DiscardHandler)}
	p.registry, p.reg = newRegistry("")
	server := httptest.NewServer(p.newOpsHandler(newHealth(nil, p.log)))
	defer server.Close()
	for _, accept := range []string{"*/*", browserAccept} {
		header := map[string]http.Header{}
		for _, method := range []string{http.MethodGet, http.MethodHead} {
			r, err := http.NewRequestWithContext(t.Context(), method, server.URL+"/healthz", http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Accept", accept)
			resp, err := server.Client().Do(r)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if err != nil || resp.StatusCode != http.StatusOK || (len(body) == 0) != (method == http.MethodHead) {
				t.Errorf("%s for %s: got %d with %d bytes, %v, want 200, and a body only for GET", method, accept, resp.StatusCode, len(body), err)
			}
			header[method] = resp.Header
		}
		for _, name := range []string{"Content-Type", "Vary", "Cache-Control", "Content-Security-Policy"} {
			if got, want := header[http.MethodHead].Get(name), header[http.MethodGet].Get(name); got != want {
				t.Errorf("HEAD for %s: got %s %q, want %q", accept, name, got, want)
			}
		}
	}
}
