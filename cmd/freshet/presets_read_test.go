package main

import (
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/presets"
	"github.com/freshet/freshet/simulator/contract"
)

// All presets run in one process. Each calls the simulator of its contract below its own path.
func TestPresets_ReadEveryFacetAsShipped(t *testing.T) {
	var file strings.Builder
	file.WriteString("sources:\n")
	upstreams := http.NewServeMux()
	for _, name := range presets.Names() {
		c, shipped := preset(t, name), string(wrapPreset(name, presets.All()[name]))
		host := strings.Join(strings.SplitAfter(c.BaseURL, "/")[:3], "")
		host = strings.TrimSuffix(host, "/")
		file.WriteString(strings.Replace(strings.TrimPrefix(shipped, "sources:\n"), "baseURL: "+host, "baseURL: "+host+"/"+name, 1))
		upstream, err := contract.New(name, contract.Options{})
		if err != nil {
			t.Fatal(err)
		}
		upstreams.Handle("/"+name+"/", http.StripPrefix("/"+name, upstream))
		if c.Auth.SecretEnv != "" {
			t.Setenv(c.Auth.SecretEnv, saturations[name].secret)
		}
	}
	server := httptest.NewServer(upstreams)
	t.Cleanup(server.Close)
	config := filepath.Join(t.TempDir(), "freshet.yaml")
	if err := os.WriteFile(config, []byte(file.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	d := startDev(t, "--no-demo", "--config", config, "--upstream", server.URL)
	t.Run("presets", func(t *testing.T) {
		for _, name := range presets.Names() {
			for _, facet := range slices.Sorted(maps.Keys(preset(t, name).Facets)) {
				t.Run(name+"/"+facet, func(t *testing.T) {
					t.Parallel()
					d.readFresh(t, fmt.Sprintf("/v1/%s/%s/%s", name, facet, exampleKeys[name][facet]))
				})
			}
		}
	})
}

// readFresh reads a path until its snapshot is FRESH.
func (d *dev) readFresh(t *testing.T, path string) {
	deadline := time.Now().Add(eventTimeout)
	for {
		status, text := d.do(http.MethodGet, d.api+path+"?wait=30s")
		if status == http.StatusOK && strings.Contains(string(text), `"freshness":"FRESH"`) {
			return
		}
		if status >= http.StatusBadRequest || time.Now().After(deadline) {
			t.Fatalf("%s: got %d %s, want a FRESH snapshot", path, status, text)
		}
	}
}
