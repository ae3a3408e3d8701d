package main

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/freshet/freshet/source"
)

func TestAChangedSecretFileIsUsedWithinSeconds(t *testing.T) {
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
		config.Auth = source.Auth{Header: "x-key", SecretFile: file}
		f := source.DefaultFacet()
		f.Documents = map[string]source.Document{"d": {Path: "/{key}"}}
		config.Facets = map[string]source.Facet{"f": f}
		s, err := source.New("a", config, map[string]string{"": "old"}, 1)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		changes := 0
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- followSecret(ctx, places(config)[0], s, func(string) { changes++ }, slog.New(slog.DiscardHandler))
		}()
		see := func(want int, what string) {
			time.Sleep(2 * secretEvery)
			synctest.Wait()
			if changes != want {
				t.Errorf("%s: told of %d changes, want %d", what, changes, want)
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
