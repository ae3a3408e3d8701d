package app

import (
	"regexp"
	"strings"
	"testing"
)

// planted is a valid configuration. Each test plants a mistake in one of its lines.
const planted = `kafka:
  brokers: ["localhost:9092"]
redis:
  mode: single
query:
  console: on
log:
  level: info
access:
  limits: {requests: 100/s}
sources:
  shop:
    baseURL: https://api.example.com
    auth: {header: X-Key, secretEnv: SHOP_KEY}
    timeout: 10s
    rules:
      - {status: 400, class: permanent}
    quota:
      jitter: 10ms
      policies:
        - {name: second, limit: 10, window: 1s}
        - {name: day, limit: 100000, window: day, highReserve: 1/s}
    workers:
      maxBodyMemory: 64MiB
    prefetch:
      rateCaps: [{rate: 5/s}]
      facets:
        product:
          mode: tiers
          notBefore: "02:00"
    facets:
      product:
        documents:
          product: {path: "/products/{key}"}
        freshFor: 10m
        retry: [1m]
`

// plantedMistake is a mistake in the configuration `planted`: its text `from` is replaced by the wrong
// text `to`.
type plantedMistake struct {
	name, from, to string
	path           string // path of the setting that the error names
	caret          string // text of the file that begins where the caret in the error points
	hint           string // text in the error that helps to correct the mistake
	beyondSchema   bool   // a JSON Schema cannot find this mistake
}

var plantedMistakes = []plantedMistake{
	{"a wrong name", "baseURL: https", "url: https", "sources.shop.url", "url: https", "did you mean baseURL?", false},
	{"a shortened name", "secretEnv:", "env:", "sources.shop.auth.env", "env: SHOP", "did you mean secretEnv?", false},
	{"a typo", "brokers:", "brokres:", "kafka.brokres", "brokres:", "did you mean brokers?", false},
	{"a wrong case", "freshFor:", "fresh_for:", "sources.shop.facets.product.fresh_for", "fresh_for:", "did you mean freshFor?", false},
	{"a setting one level too high", "jitter: 10ms", "limit: 10", "sources.shop.quota.limit", "limit: 10", "did you mean sources.NAME.quota.policies[].limit?", false},
	{"a setting of another section", "console: on", "timeout: 5s", "query.timeout", "timeout: 5s", "did you mean sources.NAME.timeout?", false},
	{"a path without a document", "freshFor: 10m", "path: /products", "sources.shop.facets.product.path", "path: /products", "did you mean sources.NAME.facets.NAME.documents.NAME.path?", false},
	{"an unknown section", "log:\n", "elastic:\n", "elastic", "elastic:", "the settings here are kafka, redis, database, secrets, query,", false},
	{"a number as duration", "timeout: 10s", "timeout: 10", "sources.shop.timeout", "10", "write a duration as in 500ms, 30s or 1h", false},
	{"a word as size", "64MiB", "lots", "sources.shop.workers.maxBodyMemory", "lots", "as in 128MiB", false},
	{"an unknown level", "level: info", "level: loud", "log.level", "loud", "write debug, info, warn or error", false},
	{"an unknown word", "console: on", "console: maybe", "query.console", "maybe", "must be on, read-only or off", false},
	{"an unknown mode", "mode: single", "mode: clustered", "redis.mode", "clustered", "must be single, sentinel or cluster", false},
	{"a text as list", `["localhost:9092"]`, "localhost:9092", "kafka.brokers", "localhost", "must be a list, as in [a, b]", false},
	{"a text as section", "{header: X-Key, secretEnv: SHOP_KEY}", "SHOP_KEY", "sources.shop.auth", "SHOP_KEY", "must be a section, as in {header: …}", false},
	{"a section as list", "policies:\n        - {name: second, limit: 10, window: 1s}\n        - {name: day, limit: 100000, window: day, highReserve: 1/s}", "policies: {second: {limit: 10}}", "sources.shop.quota.policies", "{second:", "must be a list, as in [a, b], not a section", false},
	{"a word as number", "limit: 10,", "limit: many,", "sources.shop.quota.policies[0].limit", "many", "must be a whole number", false},
	{"an unknown window", "window: 1s", "window: minute", "sources.shop.quota.policies[0].window", "minute", "must be day, in-flight, or a duration as in 1s or 1m", false},
	{"a reserve without unit", "highReserve: 1/s", "highReserve: 1/day", "sources.shop.quota.policies[1].highReserve", "1/day", "a rate as in 25/s", false},
	{"a rate without unit", "rate: 5/s", "rate: 5", "sources.shop.prefetch.rateCaps[0].rate", "5}", "must be a rate as in 25/s, 90/m or 5000/h", false},
	{"a rate of clients", "requests: 100/s", "requests: 100/d", "access.limits.requests", "100/d", "a whole number per second, minute or hour", false},
	{"a time of day", `"02:00"`, "2am", "sources.shop.prefetch.facets.product.notBefore", "2am", "must be a time of day as in 02:00", false},
	{"an unknown prefetch mode", "mode: tiers", "mode: fast", "sources.shop.prefetch.facets.product.mode", "fast", "must be off, tiers or adaptive", false},
	{"an unknown class", "class: permanent", "class: fatal", "sources.shop.rules[0].class", "fatal", "not-found", false},
	{"yes for true", "timeout: 10s", "gzip: yes", "sources.shop.gzip", "yes", "must be true or false", false},
	{"an unknown facet", "        product:\n          mode", "        products:\n          mode", "sources.shop.prefetch.facets.products", "products:", "the source has product", true},
	{"a name of a source", "  shop:\n", "  my_shop:\n", "sources.my_shop", "my_shop:", "may contain only lower-case letters, digits and inner hyphens", true},
	{"a missing section", "        documents:\n          product: {path: \"/products/{key}\"}\n", "", "sources.shop.facets.product.documents", "product:", "a facet needs at least one", true},
	{"a URL without scheme", "https://api.example.com", "api.example.com", "sources.shop.baseURL", "api.example.com", "as in https://api.example.com", true},
}

// goWords matches words of the Go language and its libraries in an error.
var goWords = regexp.MustCompile(`unmarshal|struct|Go value|slog|strconv|time\.Duration|interface|uint64|\[\]|map\[|<nil>`)

// caretOf returns the text of the file at the caret of an error, from the caret to the end of the
// line.
func caretOf(message string) string {
	lines := strings.Split(message, "\n")
	for i, line := range lines {
		if column := strings.IndexByte(line, '^'); i > 0 && strings.TrimSpace(line) == "^" && column < len(lines[i-1]) {
			return lines[i-1][column:]
		}
	}
	return ""
}

func TestConfig_PlantedMistakesAreExplained(t *testing.T) {
	if _, err := loadConfig(write(t, planted), nil, OptionalSources); err != nil {
		t.Fatal(err)
	}
	for _, m := range plantedMistakes {
		t.Run(m.name, func(t *testing.T) {
			_, err := loadConfig(write(t, m.plant(t)), nil, OptionalSources)
			if err == nil {
				t.Fatal("got no error, want one")
			}
			first, _, _ := strings.Cut(err.Error(), "\n")
			if !strings.HasPrefix(first, m.path) {
				t.Errorf("setting: got %q, want it to begin with %q", first, m.path)
			}
			if !strings.Contains(first, m.hint) {
				t.Errorf("hint: got %q, want a text that contains %q", first, m.hint)
			}
			if got := caretOf(err.Error()); !strings.HasPrefix(got, m.caret) {
				t.Errorf("text at the caret: got %q, want %q, error:\n%v", got, m.caret, err)
			}
			if word := goWords.FindString(strings.ReplaceAll(first, "policies[]", "")); word != "" {
				t.Errorf("words of Go: got %q, want none, error: %s", word, first)
			}
		})
	}
}

// plant returns the configuration with the mistake.
func (m plantedMistake) plant(t *testing.T) string {
	t.Helper()
	if !strings.Contains(planted, m.from) {
		t.Fatalf("%s: got no text %q in the configuration, want one", m.name, m.from)
	}
	return strings.Replace(planted, m.from, m.to, 1)
}

func TestConfig_AllMistakesAreReportedAtOnce(t *testing.T) {
	text := strings.NewReplacer("baseURL:", "url:", "secretEnv:", "env:", "timeout: 10s", "timeout: 10", "brokers:", "hosts:").Replace(planted)
	_, err := loadConfig(write(t, text), nil, OptionalSources)
	if err == nil {
		t.Fatal("got no error, want one")
	}
	for _, path := range []string{"kafka.hosts: ", "sources.shop.url: ", "sources.shop.auth.env: ", "sources.shop.timeout: "} {
		if !strings.Contains(err.Error(), "\n"+path) && !strings.HasPrefix(err.Error(), path) {
			t.Errorf("error: got\n%v\nwant a line that begins with %q", err, path)
		}
	}
	if got := strings.Count(err.Error(), "^"); got != 4 {
		t.Errorf("carets: got %d, want 4", got)
	}
}

func TestConfig_FileWithoutSettingsIsLikeNone(t *testing.T) {
	want, err := loadConfig("", nil, OptionalSources)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"empty": "", "blank": " \n\n", "comments": "# kafka:\n#   brokers: []\n", "a marker": "---\n", "null": "null\n", "a marker and a comment": "---\n# nothing\n...\n",
		"a section without settings": "kafka:\n  # brokers: []\n", "a list without elements": "kafka:\n  brokers:\n",
	} {
		got, err := loadConfig(write(t, text), nil, OptionalSources)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if len(got.Kafka.Brokers) != 1 || got.Kafka.Brokers[0] != want.Kafka.Brokers[0] || len(got.Sources) != len(want.Sources) {
			t.Errorf("%s: got %+v, want the defaults %+v", name, got.Kafka, want.Kafka)
		}
	}
}

func TestConfig_SecondDocumentIsRejected(t *testing.T) {
	_, err := loadConfig(write(t, "kafka: {brokers: [a:1]}\n---\nredis: {mode: single}\n"), nil, OptionalSources)
	if err == nil || !strings.Contains(err.Error(), "a second document begins here") || caretOf(err.Error()) != "redis: {mode: single}" {
		t.Errorf("got %v, want an error with a caret at redis", err)
	}
}

func TestConfig_AnchorsAndMergesAreChecked(t *testing.T) {
	const text = `
sources:
  one: &one
    baseURL: https://one.example
    quota: {policies: [{name: second, limit: 5, window: 1s}]}
    facets: &facets
      a: {documents: {a: {path: "/a/{key}"}}}
  two:
    <<: *one
  three:
    baseURL: https://three.example
    quota: {policies: [{name: second, limit: 5, window: 1s}]}
    facets: *facets
`
	c, err := loadConfig(write(t, text), nil, OptionalSources)
	if err != nil {
		t.Fatal(err)
	}
	if two := c.Sources["two"]; two.BaseURL != "https://one.example" || len(two.Quota.Policies) != 1 || len(c.Sources["three"].Facets) != 1 {
		t.Errorf("merged source: got %+v, want the settings of one", two)
	}
	for name, wrong := range map[string]string{
		"a mistake below an anchor": strings.Replace(text, "limit: 5", "limti: 5", 1),
		"a missing anchor":          strings.Replace(text, "*facets", "*none", 1),
		"an alias of itself":        strings.Replace(text, "*facets", "&self {a: *self}", 1),
	} {
		if _, err := loadConfig(write(t, wrong), nil, OptionalSources); err == nil || !strings.Contains(err.Error(), "^") {
			t.Errorf("%s: got %v, want an error that contains ^", name, err)
		}
	}
}

func TestConfig_EnvironmentErrorsAreExplained(t *testing.T) {
	for variable, want := range map[string]string{
		"FRESHET_LOG_LEVEL=loud":                     `FRESHET_LOG_LEVEL: "loud" is not a log level; write debug, info, warn or error`,
		"FRESHET_SOURCES_NEXON_TIMEOUT=10":           `FRESHET_SOURCES_NEXON_TIMEOUT: "10" is not a duration; write a duration as in 500ms, 30s or 1h`,
		"FRESHET_SOURCES_NEXON_GZIP=yes":             `FRESHET_SOURCES_NEXON_GZIP: "yes" must be true or false`,
		"FRESHET_QUERY_CACHE_MEMORY=lots":            `FRESHET_QUERY_CACHE_MEMORY: "lots" is not a size`,
		"FRESHET_KAFKA_REPLICATION_FACTOR=0":         `FRESHET_KAFKA_REPLICATION_FACTOR: "0" must be auto or a number of at least 1`,
		"FRESHET_=true":                              "FRESHET_: unknown setting",
		"FRESHET_SOURCES_NEXON_QUOTA__=a":            "FRESHET_SOURCES_NEXON_QUOTA__: unknown setting",
		"FRESHET_KAFKA_BROKRES=a:1":                  "FRESHET_KAFKA_BROKRES: unknown setting; did you mean FRESHET_KAFKA_BROKERS?",
		"FRESHET_SOURCES_NEXON_AUTH_ENV=X":           "did you mean FRESHET_SOURCES_NEXON_AUTH_SECRET_ENV?",
		"FRESHET_SOURCES_NEXON_WORKERS_IN_FLIGHT=10": "did you mean FRESHET_SOURCES_NEXON_WORKERS_HIGH_MAX_IN_FLIGHT?",
	} {
		_, err := loadConfig("", []string{variable}, builtInSources)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want an error that contains %q", variable, err, want)
			continue
		}
		if word := goWords.FindString(err.Error()); word != "" {
			t.Errorf("%s: got %v, want an error without %q", variable, err, word)
		}
	}
}
