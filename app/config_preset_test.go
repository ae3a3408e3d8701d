package app

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/freshet/freshet/presets"
)

func TestPreset_SourceHasAllSettingsOfIt(t *testing.T) {
	for name, text := range presets.All() {
		written, err := loadConfig(write(t, string(presets.File("mine", text))), nil, OptionalSources)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got, err := loadConfig(write(t, "secrets: {keyFile: /etc/freshet/keys}\nsources: {mine: {preset: "+name+"}}"), nil, OptionalSources)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		want := written.Sources["mine"]
		want.Preset = Preset(name)
		if !reflect.DeepEqual(got.Sources["mine"], want) {
			t.Errorf("%s: got %+v, want %+v", name, got.Sources["mine"], want)
		}
	}
}

const adapted = `
sources:
  nexon: &nexon
    preset: nexon
    baseURL: https://upstream.example
    timeout:
    quota: {policies: [{name: second, limit: 7, window: 1s}]}
    facets: &facets
      character: {freshFor: 5m}
      guild: {documents: {guild: {path: "/guild/{key}"}}}
  again:
    preset: nexon
    facets: *facets
  merged:
    <<: *nexon
    gzip: false
  another: {preset: stripe}
`

func TestPreset_FileOverridesIt(t *testing.T) {
	c, err := loadConfig(write(t, adapted), []string{"FRESHET_SOURCES_NEXON_WORKERS_LOW_MAX_IN_FLIGHT=3"}, OptionalSources)
	if err != nil {
		t.Fatal(err)
	}
	s := c.Sources["nexon"]
	for _, check := range []struct {
		name      string
		got, want any
	}{
		{"a setting of the file", s.BaseURL, "https://upstream.example"},
		{"a setting of the preset", s.Auth.Header, "x-nxopen-api-key"},
		{"a setting without a value", s.Timeout, 10 * time.Second},
		{"a list of the file", len(s.Quota.Policies), 1},
		{"a list of the preset", len(s.Rules), 6},
		{"the file's setting of a facet of the preset", s.Facets["character"].FreshFor, 5 * time.Minute},
		{"the preset's setting of the same facet", s.Facets["character"].KeepFor, 720 * time.Hour},
		{"the documents of the preset", len(s.Facets["character"].Documents), 1},
		{"facets", len(s.Facets), 4},
		{"a variable", s.Workers.Low.MaxInFlight, 3},
		{"facets of an alias", len(c.Sources["again"].Facets), 4},
		{"a setting of another source with the preset", c.Sources["again"].BaseURL, "https://open.api.nexon.com/maplestory/v1"},
		{"preset of a merged source", c.Sources["merged"].Preset, Preset("nexon")},
		{"facet of a merged source", c.Sources["merged"].Facets["character"].FreshFor, 5 * time.Minute},
		{"facets of another preset", len(c.Sources["another"].Facets), 5},
	} {
		if !reflect.DeepEqual(check.got, check.want) {
			t.Errorf("%s: got %v, want %v", check.name, check.got, check.want)
		}
	}
	printed, err := yaml.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	again, err := loadConfig(write(t, string(printed)), nil, OptionalSources)
	if err != nil {
		t.Fatal(err)
	}
	if reprinted, err := yaml.Marshal(again); err != nil || string(reprinted) != string(printed) {
		t.Errorf("configuration after a round trip: got %v\n%s\nwant\n%s", err, reprinted, printed)
	}
}

func TestPreset_MistakesAreExplained(t *testing.T) {
	for text, want := range map[string]string{
		"sources: {a: {preset: nexn}}":                                  `sources.a.preset: there is no preset "nexn"; the presets are `,
		"sources: {a: {preset: [nexon]}}":                               "sources.a.preset: must be the name of a preset, not a list",
		"sources: {a: {preset: ''}}":                                    "sources.a.preset: there is no preset",
		"sources: {a: {preset: nexon, timout: 1s}}":                     "sources.a.timout: unknown setting; did you mean timeout?",
		"sources: {a: {preset: nexon, timeout: soon}}":                  `sources.a.timeout: "soon" is not a duration`,
		"sources: {a: {preset: nexon, quota: {polices: }}}":             "did you mean policies?",
		"sources: {a: {preset: nexon, workers: {maxBodyMemory: 1MiB}}}": "sources.a.workers.maxBodyMemory: 1048576 must be at least maxBody",
	} {
		if _, err := loadConfig(write(t, text), nil, OptionalSources); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "^") {
			t.Errorf("%s\ngot %v, want an error that contains %q and ^", text, err, want)
		}
	}
}

func TestPreset_OnlyTheFileCanSetIt(t *testing.T) {
	for _, variable := range []string{"FRESHET_SOURCES_MINE_PRESET=nexon", "FRESHET_SOURCES_OTHER_PRESET=nexon"} {
		if _, err := loadConfig(write(t, minimal), []string{variable}, OptionalSources); err == nil || !strings.Contains(err.Error(), "unknown setting") {
			t.Errorf("%s: got %v, want an error that contains \"unknown setting\"", variable, err)
		}
	}
}

func TestConfig_HasNoSourceUnlessOneIsConfigured(t *testing.T) {
	for name, text := range map[string]string{"no file": "", "an empty file": "# nothing\n", "no sources": "sources:\n", "an empty section": "sources: {}\n", "other settings": "log: {format: json}\n"} {
		file := ""
		if text != "" {
			file = write(t, text)
		}
		if c, err := loadConfig(file, nil, OptionalSources); err != nil || len(c.Sources) != 0 {
			t.Errorf("%s: got sources %v, error %v; want none", name, c.Sources, err)
		}
		if _, err := loadConfig(file, nil, RequiredSources); err == nil || !strings.HasPrefix(err.Error(), "sources: no source is configured") {
			t.Errorf("%s: got %v, want an error that no source is configured", name, err)
		}
	}
}
