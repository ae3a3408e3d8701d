package app

import (
	"log/slog"
	"reflect"
	"sync"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/presets"
	"github.com/freshet/freshet/reference"
	"github.com/freshet/freshet/runs"
	"github.com/freshet/freshet/scheduler"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/source/derived"
)

// Reference returns the description of all settings. The caller must not change it.
var Reference = sync.OnceValue(func() *reference.Setting {
	return reference.New(defaultConfig(), forms)
})

// Schema returns the JSON Schema of the configuration file.
func Schema() ([]byte, error) {
	return Reference().Schema("urn:freshet:schemas:config", "configuration of freshet")
}

// SchemaComment is the beginning of generated configuration files. It names the schema for editors
// with the YAML language server.
const SchemaComment = `# yaml-language-server: $schema=freshet.schema.json
# An editor checks this file after: freshet config schema > freshet.schema.json
`

const (
	number       = `[0-9]+(\.[0-9]+)?`
	durationText = `(` + number + `(ns|us|µs|ms|s|m|h))+`
	rateText     = number + `/[smh]`
)

// forms describes the valid values of each setting type that has its own parser. The key of the map
// is the type.
var forms = map[reflect.Type]reference.Form{
	reflect.TypeFor[Auto]():            {Name: "a whole number or auto", Pattern: `^auto$`, Integer: true},
	reflect.TypeFor[access.Rate]():     {Name: "a rate", Pattern: `^(|0|auto|[0-9]+/[smh])$`, Integer: true},
	reflect.TypeFor[access.Require]():  {Name: "text", Enum: []string{string(access.Auto), string(access.Always), string(access.Never)}},
	reflect.TypeFor[derived.Period]():  {Name: "text", Enum: []string{string(derived.Year), string(derived.Month), string(derived.Week), string(derived.Day)}},
	reflect.TypeFor[limiter.Rate]():    {Name: "a rate", Pattern: `^` + rateText + `$`},
	reflect.TypeFor[limiter.Reserve](): {Name: "a whole number or a rate", Pattern: `^([0-9]+|` + rateText + `)$`, Integer: true},
	reflect.TypeFor[limiter.Window]():  {Name: "a duration, day or in-flight", Pattern: `^(day|in-flight|` + durationText + `)$`},
	reflect.TypeFor[scheduler.Clock](): {Name: "a time of day", Pattern: `^([01]?[0-9]|2[0-3]):[0-5][0-9]$`},
	reflect.TypeFor[runs.Percent]():    {Name: "a percentage", Pattern: `^` + number + `%$`},
	reflect.TypeFor[scheduler.Mode]():  {Name: "text", Enum: []string{string(scheduler.Off), string(scheduler.Tiers), string(scheduler.Adaptive)}},
	reflect.TypeFor[slog.Level]():      {Name: "a log level", Hint: "write debug, info, warn or error", Enum: []string{"debug", "info", "warn", "error", "DEBUG", "INFO", "WARN", "ERROR"}},
	reflect.TypeFor[Preset]():          {Name: "the name of a preset", Enum: presets.Names()},
	reflect.TypeFor[source.Bytes]():    {Name: "a size", Pattern: `^[0-9]+ *(B|KB|MB|GB|KiB|MiB|GiB)?$`, Integer: true},
	reflect.TypeFor[source.Param]():    {Name: "text or a section", Section: true},
	reflect.TypeFor[source.Class]():    {Name: "text", Enum: ruleClasses()},
}

// ruleClasses returns the response classes that a rule in the configuration can assign.
func ruleClasses() (all []string) {
	for _, class := range source.Classes {
		if class != source.OK && class != source.NotModified {
			all = append(all, string(class))
		}
	}
	return all
}
