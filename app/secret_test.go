package app

import (
	"context"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/freshet/freshet/source"
)

func TestSecretRefs_PerCredential(t *testing.T) {
	t.Setenv("A_KEY", " one ")
	config := source.Config{Credentials: []source.Credential{{Name: "a", SecretEnv: "A_KEY"}, {Name: "b", SecretFile: write(t, "two\n")}}}
	found, err := parts{secret: requireSecret}.secrets(config)
	if want := map[string]string{"a": "one", "b": "two"}; err != nil || !maps.Equal(found, want) {
		t.Errorf("secrets: got %v, %v, want %v", found, err, want)
	}
	config.Credentials[1] = source.Credential{Name: "b", SecretEnv: "B_KEY"}
	if _, err := (parts{secret: requireSecret}).secrets(config); err == nil || !strings.HasPrefix(err.Error(), "credentials[1].secretEnv: B_KEY is not set") {
		t.Errorf("missing secret: got %v, want an error that begins with %q", err, "credentials[1].secretEnv: B_KEY is not set")
	}
	if found, err := (parts{secret: optionalSecret}).secrets(config); err != nil || found["a"] != "one" || found["b"] != "" {
		t.Errorf("optional secret: got %v, %v, want one for a, none for b", found, err)
	}
}

func TestReloadSecret_UsesChangedFile(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	file := filepath.Join(t.TempDir(), "secret")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("old\n")
	synctest.Test(t, func(t *testing.T) {
		config := source.DefaultConfig()
		config.BaseURL = server.URL
		config.Auth = source.Auth{Header: "x-key"}
		config.Credentials = []source.Credential{{Name: "one", SecretFile: file}}
		f := source.DefaultFacet()
		f.Documents = map[string]source.Document{"d": {Path: "/{key}"}}
		config.Facets = map[string]source.Facet{"f": f}
		s, err := source.New("a", config, map[string]string{"one": "old"}, 1)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		changes := 0
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- reloadSecret(ctx, secretRefs(config)[0], s, func(name string) {
				if changes++; name != "one" {
					t.Errorf("changed credential: got %q, want %q", name, "one")
				}
			}, slog.New(slog.DiscardHandler))
		}()
		see := func(want int, what string) {
			time.Sleep(2 * secretReloadInterval)
			synctest.Wait()
			if changes != want {
				t.Errorf("%s: changes: got %d, want %d", what, changes, want)
			}
		}
		see(0, "unchanged")
		write("")
		see(0, "being written")
		write("new\x01")
		see(0, "not to be used in a header")
		write("new\n")
		see(1, "changed")
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		see(1, "gone")
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
