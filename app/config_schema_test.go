package app

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/freshet/freshet/presets"
	"github.com/freshet/freshet/reference"
)

// compileSchema returns the schema of the configuration file.
func compileSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	text, err := Schema()
	if err != nil {
		t.Fatal(err)
	}
	document, err := jsonschema.UnmarshalJSON(strings.NewReader(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("urn:freshet:schemas:config", document); err != nil {
		t.Fatal(err)
	}
	schema, err := c.Compile("urn:freshet:schemas:config")
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

// validate returns an error if a YAML text violates the schema.
func validate(t *testing.T, schema *jsonschema.Schema, text string) error {
	t.Helper()
	var content any
	if err := yaml.Unmarshal([]byte(text), &content); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	encoded, err := json.Marshal(content)
	if err != nil {
		t.Fatal(err)
	}
	document, err := jsonschema.UnmarshalJSON(strings.NewReader(string(encoded)))
	if err != nil {
		t.Fatal(err)
	}
	return schema.Validate(document)
}

func TestSchema_AcceptsPresets(t *testing.T) {
	schema := compileSchema(t)
	for name, preset := range presets.All() {
		if err := validate(t, schema, string(presets.File(name, preset))); err != nil {
			t.Errorf("preset %s: %v", name, err)
		}
	}
}

// yamlBlock matches a YAML block of a document.
var yamlBlock = regexp.MustCompile("(?s)```yaml\n(.*?)```")

func TestSchema_AcceptsExamplesOfDocuments(t *testing.T) {
	schema := compileSchema(t)
	files, err := filepath.Glob("../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, file := range append(files, "../README.md") {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range yamlBlock.FindAllStringSubmatch(string(text), -1) {
			for example := range strings.SplitSeq(block[1], "\n---\n") {
				found++
				if regexp.MustCompile(`(?m)^token:`).MatchString(example) { // the block is only a part of a credential
					example = "credentials:\n  - name: example\n    " + strings.ReplaceAll(example, "\n", "\n    ")
				}
				if regexp.MustCompile(`(?m)^(announced|credentials|rules|facets|prefetch|webhooks):`).MatchString(example) { // the example is a part of the configuration of a source
					example = string(presets.File("example", []byte(example)))
				}
				if err := validate(t, schema, example); err != nil {
					t.Errorf("%s: %v\n%s", file, err, example)
				}
			}
		}
	}
	if found < 6 {
		t.Errorf("examples: got %d, want at least 6", found)
	}
}

func TestSchema_AcceptsPrintedDefaults(t *testing.T) {
	c, err := loadConfig("", nil, builtInSources)
	if err != nil {
		t.Fatal(err)
	}
	printed, err := yaml.Marshal(c.Redacted())
	if err != nil {
		t.Fatal(err)
	}
	if err := validate(t, compileSchema(t), string(printed)); err != nil {
		t.Errorf("output of config print: %v", err)
	}
}

func TestSchema_RejectsPlantedMistakes(t *testing.T) {
	schema := compileSchema(t)
	if err := validate(t, schema, planted); err != nil {
		t.Fatalf("valid configuration: %v", err)
	}
	for _, m := range plantedMistakes {
		if err := validate(t, schema, m.plant(t)); (err != nil) == m.beyondSchema {
			t.Errorf("%s: got %v, want an error: %v", m.name, err, !m.beyondSchema)
		}
	}
}

func TestSchema_EnumsAreThoseOfTheChecks(t *testing.T) {
	for setting, valid := range map[string]string{
		"redis.mode":                                     "redis: {mode: VALUE, masterName: m}",
		"kafka.groupProtocol":                            "kafka: {groupProtocol: VALUE}",
		"kafka.sasl.mechanism":                           "kafka: {sasl: {mechanism: VALUE}}",
		"query.console":                                  "query: {console: VALUE}",
		"query.tls.clientAuth":                           "query: {tls: {clientAuth: VALUE, clientCAFile: a, certFile: a, keyFile: a}}",
		"log.format":                                     "log: {format: VALUE}",
		"log.level":                                      "log: {level: VALUE}",
		"access.require":                                 "access: {require: VALUE}",
		"access.algorithms[]":                            "access: {algorithms: [VALUE], jwksURL: 'https://a.example/keys', issuer: a, audience: a}",
		"sources.NAME.prefetch.facets.NAME.mode":         minimal + "    prefetch: {facets: {repo: {mode: VALUE}}}",
		"sources.NAME.rules[].class":                     minimal + "    rules: [{status: 418, class: VALUE}]",
		"sources.NAME.rules[].block":                     minimal + "    rules: [{status: 418, class: quota, block: VALUE}]",
		"sources.NAME.quota.policies[].match.methods[]":  strings.Replace(minimal, "window: 1h", "window: 1h, match: {methods: [VALUE]}", 1),
		"sources.NAME.facets.NAME.documents.NAME.method": strings.Replace(minimal, `{path: "/repos/{key}"}`, `{path: "/repos/{key}", method: VALUE}`, 1),
	} {
		enum := enumOf(t, setting)
		for _, word := range append(enum, "nonsense") {
			_, err := loadConfig(write(t, strings.ReplaceAll(valid, "VALUE", `"`+word+`"`)), nil, OptionalSources)
			if (err != nil) != (word == "nonsense") {
				t.Errorf("%s: %q: got %v, want an error: %v", setting, word, err, word == "nonsense")
			}
		}
	}
}

// enumOf returns the values that the description of a setting lists.
func enumOf(t *testing.T, path string) (enum []string) {
	t.Helper()
	Reference().Walk(func(s *reference.Setting) {
		if s.Path == path {
			enum = s.Enum()
		}
	})
	if len(enum) < 2 {
		t.Fatalf("%s: got the values %q, want at least two", path, enum)
	}
	return enum
}
