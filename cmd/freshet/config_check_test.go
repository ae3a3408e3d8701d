package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/freshet/freshet/app"
)

// fixture returns the text of a configuration file in app/testdata.
func fixture(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "app", "testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// load returns the configuration of a file.
func load(t *testing.T, file string) app.Config {
	t.Helper()
	p := app.NewProcess(nil, io.Discard, io.Discard)
	p.ConfigFile = file
	c, err := p.Load(app.OptionalSources)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestConfigCheck_PrintsClientBounds(t *testing.T) {
	text := strings.NewReplacer("LIMITS", "", "POLICIES", "{name: minute, limit: 60, window: 1m}").Replace(fixture(t, "bounded.yaml"))
	code, stdout, stderr := command(t, nil, "config", "check", "--config", write(t, text))
	want := "  client  one: at most 10 requests outstanding, shared with other active clients, but 10 in any case; 15 new keys at once and 15 a minute\n"
	if code != 0 || !strings.Contains(stdout, want) {
		t.Errorf("got %d %s%s, want %s", code, stdout, stderr, want)
	}
}

func TestConfig_RefusesACredentialOverPlainHTTP(t *testing.T) {
	const key = "auth: {header: X-Key, secretEnv: A_KEY}"
	for _, c := range []struct {
		name, baseURL, settings string
		refused                 bool
	}{
		{"another machine", "http://api.example/v3", key, true},
		{"a name of the cluster", "http://upstream:9090", key, true},
		{"an address", "http://10.0.0.7", key, true},
		{"a file with the secret", "http://api.example", "auth: {header: X-Key, secretFile: /run/key}", true},
		{"several credentials", "http://api.example", "auth: {header: X-Key}\n    credentials: [{name: a, secretEnv: A}]", true},
		{"a header of one's own", "http://api.example", "headers: {authorization: Bearer x}", true},
		{"meant", "http://api.example", key + "\n    insecure: true", false},
		{"https", "https://api.example", key, false},
		{"loopback", "http://127.0.0.1:9090", key, false},
		{"loopback by name", "http://localhost:9090", key, false},
		{"no credential", "http://api.example", "headers: {User-Agent: x}", false},
	} {
		text := strings.Replace(fixture(t, "minimal.yaml"), "    baseURL: https://api.example/v3\n", "    baseURL: "+c.baseURL+"\n    "+c.settings+"\n", 1)
		code, stdout, stderr := command(t, nil, "config", "check", "--config", write(t, text))
		if (code != 0) != c.refused {
			t.Errorf("%s: got exit %d, want refused %v: %s%s", c.name, code, c.refused, stdout, stderr)
		}
		for _, want := range []string{"sources.mine.baseURL: the source would send its credential unencrypted over http", "insecure: true", "^"} {
			if c.refused && !strings.Contains(stderr, want) {
				t.Errorf("%s: got %q, want it to mention %q", c.name, stderr, want)
			}
		}
	}
}

func TestDev_RefusesACredentialOverPlainHTTP(t *testing.T) {
	code, _, stderr := command(t, nil, "dev", "--listen", "127.0.0.1:0", "--upstream", "http://api.example")
	if code != 2 || !strings.Contains(stderr, "--upstream: sources.nexon.baseURL") {
		t.Errorf("got exit %d and %q, want 2 and the source named", code, stderr)
	}
}

func TestConfigCheck_PrintsPrefetch(t *testing.T) {
	const rest = "{facets: {progress: {triggers: {general: }, active: {status: {path: case.status, block: [x]}, unless: [case.end], params: [token]}}}"
	for text, want := range map[string]string{
		rest + "}": `  prefetch progress: every 1h, 6h or 24h, by how much it is read
           active entities only, by case.status, case.end, param token
           a change of progress refreshes general
           changes of progress are published to court.changes
           with the remaining quota of LOW
`,
		"{facets: {progress: {triggers: {general: {quiet: 5m}}}}}":                  "a change of progress refreshes general, once changes pause for 5m, after 50m at most\n",
		rest + ", rateCaps: [{rate: 900/s}]}":                                       "quota of LOW, at all hours at most 900/s\n",
		rest + ", rateCaps: []}":                                                    "with the remaining quota of LOW\n",
		rest + ", timeZone: Europe/Paris, rateCaps: [{from: 1, to: 2, rate: 3/s}]}": "quota of LOW, at most 3/s from 1 to 2 h, hours of Europe/Paris\n",
		"{facets: {general: {mode: adaptive, notBefore: 02:00}}}": `  prefetch general: every 30m to 168h, by how often it changes and is read, not before 02:00 in UTC
           changes of progress are published to court.changes
           with the remaining quota of LOW`,
		"{}": `  facet   progress: case; fresh for 1h
           changes of progress are published to court.changes
  note    progress can't be read: nothing provides token; add a named group to its keyPattern, a default to its params, or prefetch it and register its entities with a value
the configuration is valid
`,
	} {
		code, stdout, stderr := command(t, nil, "config", "check", "--config", write(t, strings.TrimSuffix(fixture(t, "cases.yaml"), "{}\n")+text))
		if code != 0 || !strings.Contains(stdout, want) {
			t.Errorf("%s: got exit %d\n%s%s\nwant %s", text, code, stdout, stderr, want)
		}
	}
}

// nexonSource is a configuration file whose only source is a preset.
const nexonSource = "sources: {nexon: {preset: nexon}}"

func TestCommand_NeedsAConfiguredSource(t *testing.T) {
	for _, args := range [][]string{
		{"query"}, {"worker"}, {"scheduler"}, {"topics", "ensure"}, {"topics", "lag"}, {"config", "check"}, {"config", "print"}, {"try", "nexon/character/a"},
	} {
		for file, where := range map[string]string{"": "; write a file with `freshet init URL`", write(t, "log: {format: json}"): " in /"} {
			want := "freshet: sources: no source is configured" + where
			code, stdout, stderr := command(t, []string{"FRESHET_CONFIG=" + file}, args...)
			if code != 1 || stdout != "" || !strings.HasPrefix(stderr, want) || !strings.Contains(stderr, nexonSource) {
				t.Errorf("%q, file %q: got exit %d, stdout %q, stderr %q; want 1, none, %q", args, file, code, stdout, stderr, want)
			}
		}
	}
}

func TestConfigPrint_RoundTripsWithoutSecrets(t *testing.T) {
	file := write(t, nexonSource)
	code, stdout, stderr := command(t, []string{"FRESHET_DATABASE_URL=postgres://u:hunter2@db/x", "FRESHET_DATABASE_DIRECT_URL=postgres://u:hunter2@db/y"}, "config", "print", "--config", file)
	if code != 0 || strings.Contains(stdout+stderr, "hunter2") || !strings.Contains(stdout, "postgres://u:REDACTED@db/x") {
		t.Fatalf("got exit %d, output %s%s; want 0, a text that contains postgres://u:REDACTED@db/x, not hunter2", code, stdout, stderr)
	}
	printed, want := load(t, write(t, stdout)), load(t, file)
	printed.Database = want.Database
	one, err := yaml.Marshal(printed)
	if err != nil {
		t.Fatal(err)
	}
	two, err := yaml.Marshal(want)
	if err != nil || string(one) != string(two) {
		t.Errorf("after a round trip: got\n%s\nwant\n%s", one, two)
	}
}

func TestConfigCheck_PrintsQuota(t *testing.T) {
	code, stdout, stderr := command(t, nil, "config", "check", "--config", write(t, nexonSource))
	for _, want := range []string{"500 in 1s", "449.9 are used", "100 of them reserved for HIGH", "at most 497", "item-equipment", "NEXON_API_KEY is not set", "valid"} {
		if code != 0 || !strings.Contains(stdout, want) {
			t.Errorf("got exit %d, stdout %q, stderr %q; want 0, a text that contains %q", code, stdout, stderr, want)
		}
	}
}
