package app

import (
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/freshet/freshet/source"
)

func write(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestConfig_BuiltInSourceIsValid(t *testing.T) {
	c, err := loadConfig("", nil, builtInSources)
	if err != nil {
		t.Fatal(err)
	}
	nexon := c.Sources["nexon"]
	if len(c.Sources) != 1 || nexon.BaseURL != "https://open.api.nexon.com/maplestory/v1" || nexon.Quota.Policies[0].Target != 450 ||
		nexon.Facets["character"].KeepFor != 720*time.Hour || nexon.Workers.MaxBodyMemory != 128<<20 || c.Query.Listen != "127.0.0.1:8080" {
		t.Errorf("default configuration: got %+v,\nwant only source nexon with its base URL, target 450, keepFor 720h, %s", c,
			"maxBodyMemory 128 MiB; query.listen 127.0.0.1:8080")
	}
}

//go:embed testdata/minimal.yaml
var minimal string

func TestConfig_FileReplacesDefaultSource(t *testing.T) {
	c, err := loadConfig(write(t, minimal+"query: {listen: \"127.0.0.1:1\"}\n"), nil, builtInSources)
	if err != nil {
		t.Fatal(err)
	}
	mine, there := c.Sources["mine"]
	if len(c.Sources) != 1 || !there || mine.Timeout != 10*time.Second || !mine.Gzip || mine.Quota.Jitter != 10*time.Millisecond ||
		mine.Facets["repo"].FreshFor != time.Hour || mine.Facets["repo"].KeyPattern != source.DefaultFacet().KeyPattern ||
		mine.Workers.Low.MaxInFlight != 1024 || c.Query.Listen != "127.0.0.1:1" || c.Ops.Listen != "127.0.0.1:9464" {
		t.Errorf("configuration: got %+v,\nwant only source mine with timeout 10s, gzip, jitter 10ms, freshFor 1h, %s", c,
			"the default keyPattern, 1024 LOW in flight; query.listen 127.0.0.1:1; ops.listen 127.0.0.1:9464")
	}
}

func TestConfig_RetryReplacesDefault(t *testing.T) {
	minutes := []time.Duration{time.Minute, 2 * time.Minute, 4 * time.Minute}
	for text, want := range map[string][]time.Duration{
		"":                                 minutes,
		"        retry: [1m, 2m, 4m]\n":    minutes,
		"        retry: [30s, 500ms]\n":    {30 * time.Second, 500 * time.Millisecond},
		"        retry: []\n":              {},
		"        shrinkGuard: 0.25\n":      minutes,
		"        retry:\n          - 5s\n": {5 * time.Second},
	} {
		c, err := loadConfig(write(t, minimal+text), nil, OptionalSources)
		if err != nil {
			t.Fatalf("%s%v", text, err)
		}
		f := c.Sources["mine"].Facets["repo"]
		if len(f.Retry) != len(want) || len(want) > 0 && !reflect.DeepEqual(f.Retry, want) || (f.ShrinkGuard == 0.25) != strings.Contains(text, "0.25") {
			t.Errorf("%s: got retry %v, shrink guard %v; want retry %v, shrink guard 0.25: %v",
				text, f.Retry, f.ShrinkGuard, want, strings.Contains(text, "0.25"))
		}
		printed, err := yaml.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		again, err := loadConfig(write(t, string(printed)), nil, OptionalSources)
		if err != nil || !reflect.DeepEqual(again.Sources["mine"].Facets["repo"].Retry, f.Retry) {
			t.Errorf("retry after a round trip: got %v, %v, want %v:\n%s", again.Sources["mine"].Facets["repo"].Retry, err, f.Retry, printed)
		}
	}
	for text, mention := range map[string]string{
		"        retry: [1m, 0s]\n":   "sources.mine.facets.repo.retry[1]: 0s must be positive",
		"        retry: [1m, soon]\n": `retry[1]: "soon" is not a duration; write a duration as in 500ms`,
		"        shrinkGuard: 50\n":   "sources.mine.facets.repo.shrinkGuard: 50 must be a fraction of the stored size",
	} {
		_, err := loadConfig(write(t, minimal+text), nil, OptionalSources)
		if err == nil || !strings.Contains(err.Error(), mention) || !strings.Contains(err.Error(), "^") {
			t.Errorf("%s: got %v, want an error that contains %q and ^", text, err, mention)
		}
	}
}

func TestConfig_EnvironmentOverridesFile(t *testing.T) {
	c, err := loadConfig(write(t, minimal), []string{
		"PATH=/bin", "FRESHET_KAFKA_BROKERS=a:1, b:2", "FRESHET_DATABASE_URL_FILE=" + write(t, "postgres://u:p@db/x\n"),
		"FRESHET_SOURCES_MINE_WORKERS_HIGH_MAX_IN_FLIGHT=7", "FRESHET_SOURCES_MINE_TIMEOUT=3s", "FRESHET_SOURCES_MINE_WORKERS_MAX_BODY_MEMORY=64MiB",
		"FRESHET_SOURCES_MINE_GZIP=false", "FRESHET_SOURCES_MINE_BASE_URL=http://127.0.0.1:9/x", "FRESHET_LOG_LEVEL=debug",
		"FRESHET_KAFKA_REPLICATION_FACTOR=2", "FRESHET_METRICS_NAMESPACE=", "FRESHET_REDIS_MODE=cluster", "FRESHET_REDIS_ADDRESSES=a:1,b:1",
		// These variables begin with FRESHET_ but are not settings, so they must not cause an
		// error.
		"FRESHET_SERVICE_HOST=10.0.0.1", "FRESHET_SERVICE_PORT=8080", "FRESHET_SERVICE_PORT_HTTP=8080", "FRESHET_PORT=tcp://10.0.0.1:8080",
		"FRESHET_PORT_8080_TCP_ADDR=10.0.0.1", "FRESHET_QUERY_SERVICE_HOST=10.0.0.1", "FRESHET_ADDR=x", "FRESHET_TOKEN=x", "FRESHET_TEST_KAFKA=x",
	}, OptionalSources)
	if err != nil {
		t.Fatal(err)
	}
	mine := c.Sources["mine"]
	if !reflect.DeepEqual(c.Kafka.Brokers, []string{"a:1", "b:2"}) || c.Database.URL != "postgres://u:p@db/x" || mine.Workers.High.MaxInFlight != 7 ||
		mine.Timeout != 3*time.Second || mine.Workers.MaxBodyMemory != 64<<20 || mine.Gzip || mine.BaseURL != "http://127.0.0.1:9/x" ||
		c.Kafka.ReplicationFactor != 2 || c.Metrics.Namespace != "" || len(c.Redis.Addresses) != 2 || c.Log.Level.String() != "DEBUG" {
		t.Errorf("configuration: got %+v,\nwant brokers a:1 and b:2, database postgres://u:p@db/x, 7 HIGH in flight, %s", c,
			"timeout 3s, maxBodyMemory 64 MiB, no gzip, base URL http://127.0.0.1:9/x, "+
				"2 replicas, no metrics namespace, 2 Redis addresses, log level DEBUG")
	}
	if mine.Facets["repo"].FreshFor != time.Hour {
		t.Errorf("freshFor of facet repo: got %v, want 1h", mine.Facets["repo"].FreshFor)
	}
}

func TestWorker_RequiresSecret(t *testing.T) {
	t.Setenv("A_KEY", "")
	if _, err := requireSecret(secretRef{setting: "auth", env: "A_KEY"}); err == nil || !strings.Contains(err.Error(), "A_KEY is not set") {
		t.Errorf("unset: got %v, want an error that contains %q", err, "A_KEY is not set")
	}
	if secret, err := optionalSecret(secretRef{setting: "auth", env: "A_KEY"}); err != nil || secret != "" {
		t.Errorf("dev: got %q, %v, want no secret and no error", secret, err)
	}
	if secret, err := requireSecret(secretRef{setting: "auth", file: write(t, " key\n")}); err != nil || secret != "key" {
		t.Errorf("from a file: got %q, %v, want %q", secret, err, "key")
	}
	if _, err := requireSecret(secretRef{setting: "auth", file: write(t, "\n")}); err == nil {
		t.Error("empty file: got no error, want one")
	}
	t.Setenv("A_KEY", "k")
	if secret, err := requireSecret(secretRef{setting: "auth", env: "A_KEY"}); err != nil || secret != "k" {
		t.Errorf("set: got %q, %v, want %q", secret, err, "k")
	}
}

func TestConfig_VisibilityNeedsAccessControl(t *testing.T) {
	limited := strings.Replace(minimal, "    facets:\n", "    auth: {header: X-Key}\n    credentials:\n      - {name: all, secretEnv: A}\n      - {name: some, secretEnv: B, visibility: partner}\n    facets:\n", 1)
	for require, mistaken := range map[string]bool{"never": true, "always": false, "auto": false} {
		_, err := loadConfig(write(t, limited+"access:\n  require: "+require+"\n"), nil, OptionalSources)
		if (err != nil) != mistaken {
			t.Errorf("access.require %s: got %v, want an error: %v", require, err, mistaken)
		}
		for _, mention := range []string{"sources.mine.credentials[1].visibility", "partner", "set access.require to always or auto", "^"} {
			if mistaken && (err == nil || !strings.Contains(err.Error(), mention)) {
				t.Errorf("access.require %s: got %v, want an error that contains %q", require, err, mention)
			}
		}
		if mistaken && strings.Contains(err.Error(), "credentials[0]") {
			t.Errorf("access.require %s: got %v, want an error without credentials[0]", require, err)
		}
	}
	if _, err := loadConfig(write(t, minimal+"access:\n  require: never\n"), nil, OptionalSources); err != nil {
		t.Errorf("without a visibility: %v", err)
	}
}

func TestConfig_ConsoleDefaultsToOn(t *testing.T) {
	for text, want := range map[string]string{"": "on", "query: {console: on}\n": "on", "query: {console: read-only}\n": "read-only", "query: {console: off}\n": "off"} {
		c, err := loadConfig(write(t, minimal+text), nil, OptionalSources)
		if err != nil || c.Query.Console != want {
			t.Errorf("%q: console: got %q, %v, want %q", text, c.Query.Console, err, want)
		}
		printed, err := yaml.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := loadConfig(write(t, string(printed)), nil, OptionalSources); err != nil || again.Query.Console != want {
			t.Errorf("%q: console after a round trip: got %q, %v, want %q", text, again.Query.Console, err, want)
		}
	}
	if c, err := loadConfig("", []string{"FRESHET_QUERY_CONSOLE=off"}, OptionalSources); err != nil || c.Query.Console != "off" {
		t.Errorf("console from the environment: got %q, %v, want %q", c.Query.Console, err, "off")
	}
	for _, text := range []string{"query: {console: false}\n", "query: {console: readonly}\n", "query: {console: \"\"}\n"} {
		if _, err := loadConfig(write(t, minimal+text), nil, OptionalSources); err == nil || !strings.Contains(err.Error(), "must be on, read-only or off") {
			t.Errorf("%q: got %v, want an error that contains %q", text, err, "must be on, read-only or off")
		}
	}
}

// A pipe, as in --config <(command), can be read only once.
func TestLoad_ReadsAPipe(t *testing.T) {
	if _, err := os.Stat("/dev/fd"); err != nil {
		t.Skip("this system has no /dev/fd")
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	_, err = w.WriteString(minimal)
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	p := NewProcess(nil, io.Discard, io.Discard)
	p.ConfigFile = fmt.Sprintf("/dev/fd/%d", r.Fd())
	c, err := p.Load(OptionalSources)
	if _, there := c.Sources["mine"]; !there || err != nil {
		t.Errorf("sources: got %v, %v, want mine", c.Sources, err)
	}
}
