//go:build !production

package app

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/client"
	"github.com/freshet/freshet/presets"
	"github.com/freshet/freshet/simulator/contract"
)

// hostSetting matches the setting of a base URL up to its host.
var hostSetting = regexp.MustCompile(`baseURL: "?https?://[^/\s",}]+`)

// All presets run in one process. Each preset calls a simulator of its contract. The simulators have
// one address and different URL paths.
func TestPresets_ReadEveryFacetAsShipped(t *testing.T) {
	var file strings.Builder
	file.WriteString("secrets: {keyFile: /etc/freshet/keys}\nsources:\n")
	upstreams := http.NewServeMux()
	names := slices.DeleteFunc(presets.Names(), func(name string) bool { return name != baseOf(name) }) // the other presets are tested by TestPresets_RenewTheirTokens
	for _, name := range names {
		c, shipped := preset(t, name), string(presets.File(name, presets.All()[name]))
		file.WriteString(hostSetting.ReplaceAllString(shipped[strings.Index(shipped, "  "+name+":"):], "${0}/"+name))
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
	reader, err := client.New(startDev(t, config, server.URL), client.Options{MaxRetries: -1, Transport: http.DefaultTransport})
	if err != nil {
		t.Fatal(err)
	}
	for _, derived := range []bool{false, true} { // first the fetched facets, then the derived ones, which are computed from the fetched ones
		t.Run(fmt.Sprint("derived ", derived), func(t *testing.T) {
			for _, name := range names {
				for facet, f := range preset(t, name).Facets {
					if (f.Derived != nil) != derived {
						continue
					}
					t.Run(name+"/"+facet, func(t *testing.T) {
						t.Parallel()
						readFresh(t, reader, client.Entity{Source: name, Facet: facet, Key: exampleKeys[name][facet]})
					})
				}
			}
		})
	}
}

// startDev runs dev with a configuration file and an upstream until the test ends, and returns the URL
// of its query API.
func startDev(t *testing.T, config, upstream string) (api string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	p := NewProcess(nil, io.Discard, t.Output())
	p.ConfigFile = config
	started, ended := make(chan string, 1), make(chan error, 1)
	o := DevOptions{Listen: "127.0.0.1:0", Upstream: upstream, Browser: func(_ context.Context, console string) error {
		started <- strings.TrimSuffix(console, consolePath)
		return nil
	}}
	go func() { ended <- p.RunDev(ctx, o, time.Now()) }()
	t.Cleanup(func() {
		cancel()
		http.DefaultClient.CloseIdleConnections()
		if err := <-ended; err != nil {
			t.Errorf("end of dev: got %v, want no error", err)
		}
	})
	select {
	case api = <-started:
	case err := <-ended:
		ended <- err
		t.Fatalf("start of dev: got %v, want it ready", err)
	}
	return api
}

// readFresh reads an entity until its snapshot is FRESH.
func readFresh(t *testing.T, c *client.Client, e client.Entity) {
	deadline := time.Now().Add(eventTimeout)
	for {
		got, err := c.Get(t.Context(), e, client.Wait(30*time.Second))
		if err == nil && got.Freshness == client.Fresh {
			return
		}
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("%v: got %s, %v, want a FRESH snapshot", e, got.Freshness, err)
		}
	}
}
