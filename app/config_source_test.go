package app

import (
	_ "embed"
	"strings"
	"testing"
)

//go:embed testdata/cases.yaml
var casesFile string

// cases is the configuration of a source with two facets. It ends with the key prefetch; a test
// appends the value of that key.
var cases = strings.TrimSuffix(casesFile, "{}\n")

func TestConfig_RejectsInvalidPrefetch(t *testing.T) {
	const usesPreset = "; write `preset: nexon` into the source to use the preset of this name"
	for text, want := range map[string]string{
		cases + `{facets: {progress: }}`:                                   "",
		cases + `{facets: {progress: {}, general: {mode: off}}}`:           "",
		cases + `{facets: {progress: {active: {params: [token]}}}}`:        "",
		cases + `{facets: {progress: {tiers: {hot: {every: 1m}}}}}`:        "",
		cases + `{facets: {progress: {active: {unless: [case.result]}}}}`:  "",
		cases + `{facets: {general: {active: {unless: ['b\.c.result']}}}}`: "",

		cases + `{facets: {progress: {active: {params: [token, tokn]}}}}`:           `facets.progress.active.params[1]: the facet has no param "tokn"; it has token`,
		cases + `{facets: {general: {active: {params: [token]}}}}`:                  `facets.general.active.params[0]: the facet has no param "token"; it has none`,
		cases + `{facets: {progress: {active: {params: [""]}}}}`:                    "facets.progress.active: the lists `unless` and `params` must not contain an empty name",
		cases + `{facets: {progress: {active: {status: {path: a.b, block: [x]}}}}}`: `facets.progress.active.status.path: "a.b" must begin with a document of the facet, which has case`,
		cases + `{facets: {general: {active: {unless: [a.b, b.c.d]}}}}`:             `facets.general.active.unless[1]: "b.c.d" must begin with a document of the facet, which has a, b.c`,
		cases + `{facets: {general: {active: {unless: [result]}}}}`:                 `facets.general.active: "result" must be a path as in document.member`,
		cases + `{facets: {general: {active: {unless: [.b]}}}}`:                     `facets.general.active: ".b" must be a path as in document.member`,

		cases + `{facets: {progress: {tiers: {cold: {every: 720h}}}}}`:                                                        "",
		cases + `{facets: {general: {tiers: {cold: {every: 721h}}}}}`:                                                         "",
		cases + `{facets: {progress: {maxInterval: 721h}}}`:                                                                   "",
		cases + `{facets: {progress: {mode: off, maxInterval: 721h}}}`:                                                        "",
		cases + `{facets: {progress: {tiers: {cold: {every: 721h}}}}}`:                                                        "facets.progress.tiers.cold.every: 721h0m0s is longer than the facet's keepFor, 720h0m0s: ",
		cases + `{facets: {progress: {mode: adaptive, maxInterval: 721h}}}`:                                                   "facets.progress.maxInterval: 721h0m0s is longer than the facet's keepFor, 720h0m0s: ",
		cases + `{rateCaps: [{from: 19, to: 23}]}`:                                                                            "rateCaps[0] has no rate; write one as in {from: 19, to: 23, rate: 150/s}",
		cases + `{rateCaps: [{rate: 1/s}, {rate: 2/s}]}`:                                                                      "rateCaps[1] never applies",
		cases + `{facets: {progress: {triggers: {nothing: }}}}`:                                                               `facets.progress.triggers.nothing: there is no facet "nothing"; the facets are: general, progress`,
		cases + `{facets: {progres: {}}}`:                                                                                     "facets.progres: unknown facet; the source has general, progress",
		cases + `{facets: {progress: {mode: adaptive, minInterval: 30m, maxInterval: 10m}}}`:                                  "facets.progress.maxInterval: minInterval and maxInterval are 30m0s and 10m0s; they must rise",
		cases + `{facets: {progress: {tiers: {hot: {every: 7h}, warm: {every: 6h}}}}}`:                                        "facets.progress.tiers: hot.every, warm.every and cold.every are 7h0m0s, 6h0m0s and 24h0m0s; they must rise",
		cases + `{facets: {progress: {mode: adaptive, minInterval: 200h, maxInterval: 168h}}}`:                                "facets.progress.minInterval: minInterval and maxInterval are 200h0m0s and 168h0m0s; they must rise",
		cases + `{facets: {progress: {minInterval: 0}}}`:                                                                      "\"0\" is not a duration; write a duration as in 500ms, 30s or 1h",
		cases + `{facets: {progress: {triggers: {general: {maxDelay: 5m}}}}}`:                                                 "general.maxDelay: 5m0s bounds how long a refresh waits for quiet; set quiet too",
		cases + `{facets: {progress: {triggers: {general: {quiet: 5m, maxDelay: 1m}}}}}`:                                      "general.maxDelay: 1m0s must be from quiet, 5m0s, to",
		cases + `{facets: {progress: {triggers: {general: {quiet: 1ms}}}}}`:                                                   "general.quiet: 1ms must be from 1s to 24h0m0s",
		cases + `{facets: {progress: {triggers: {general: {quite: 1m}}}}}`:                                                    "quite",
		cases + `{facets: {progress: {tiers: {hot: {every: 1.5}}}}}`:                                                          "\"1.5\" is not a duration; write a duration as in 500ms, 30s or 1h",
		strings.Replace(cases, "general: {", "general: {keyFold: nfc, ", 1) + `{facets: {progress: {triggers: {general: }}}}`: "facets.progress.triggers.general: the two facets must have the same keyFold",
		"sources: {nexon: {prefetch: {facets: {character: }}}}":                                                               "facets.character: unknown facet; the source has no facets",
		"sources: {nexon: {quota: {policies: []}}}":                                                                           "facets: a source needs at least one" + usesPreset,
		"sources: {nexon: {baseURL: 'http://a', facets: {a: {documents: {}}}}}":                                               "facets.a.documents: a facet needs at least one document",
		"sources: {mine: {baseURL: 'http://a'}}":                                                                              "facets: a source needs at least one",
	} {
		_, err := loadConfig(write(t, text), nil, OptionalSources)
		if want == "" {
			if err != nil {
				t.Errorf("%s\n%v", text, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "^") {
			t.Errorf("%s\ngot %v, want an error that contains %q and ^", text, err, want)
			continue
		}
		n := strings.Count(err.Error(), usesPreset)
		if asked := strings.Contains(text, "nexon: {") && !strings.Contains(text, "documents"); (n == 1) != asked || n > 1 {
			t.Errorf("%s\nhint about the preset: got it %d times, want it once: %v; error: %v", text, n, asked, err)
		}
		if wrong := strings.Count(err.Error(), "^"); strings.Contains(text, "court:") && wrong != 1 {
			t.Errorf("%s\nerrors: got %d, want 1: %v", text, wrong, err)
		}
	}
}
