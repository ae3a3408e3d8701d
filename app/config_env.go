package app

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/freshet/freshet/reference"
)

const envPrefix = "FRESHET_"

// nonSettingVariables matches FRESHET_ variables that are not configuration settings: commands,
// tests and scripts read them directly.
var nonSettingVariables = regexp.MustCompile(`^FRESHET_(CONFIG|ADDR|TOKEN|(CA|CERT|KEY)_FILE|TEST_.*|SERVICES_DIR)$`)

// kubernetesVariables matches variables that Kubernetes sets in containers for a Service whose
// name begins with freshet.
var kubernetesVariables = regexp.MustCompile(`^FRESHET(_[A-Z0-9]+)*_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_[0-9]+_(TCP|UDP)(_(PROTO|PORT|ADDR))?)?)$`)

// readEnv applies environment variables to the configuration. The variable of a setting is its
// path in upper case, with underscores: FRESHET_KAFKA_BROKERS. With the suffix _FILE the value is
// read from the file that the variable names. Lists are comma-separated.
func (c *Config) readEnv(env []string) error {
	settings := map[string]setting{}
	collectSettings(reflect.ValueOf(c).Elem(), "", settings)
	for name := range c.Sources {
		s := c.Sources[name]
		copied := reflect.ValueOf(&s).Elem()
		own := map[string]setting{}
		collectSettings(copied, "SOURCES_"+reference.EnvName(name), own)
		for variable, target := range own {
			target.done = func() { c.Sources[name] = copied.Interface().(SourceConfig) }
			settings[variable] = target
		}
	}
	var errs []error
	for _, entry := range env {
		variable, value, _ := strings.Cut(entry, "=")
		key, ours := strings.CutPrefix(variable, envPrefix)
		if !ours || nonSettingVariables.MatchString(variable) || kubernetesVariables.MatchString(variable) {
			continue
		}
		target, known := settings[key]
		if fromFile, isFile := strings.CutSuffix(key, "_FILE"); !known && isFile {
			if target, known = settings[fromFile]; known {
				text, err := os.ReadFile(value)
				if err != nil {
					errs = append(errs, fmt.Errorf("%s: %w", variable, err))
					continue
				}
				value = strings.TrimSpace(string(text))
			}
		}
		if !known {
			errs = append(errs, fmt.Errorf("%s: unknown setting; %s", variable, suggestSetting(key, settings)))
			continue
		}
		if err := target.set(value); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", variable, err))
		}
	}
	return errors.Join(errs...)
}

// setting is a configuration field that an environment variable can set. Fields in the map
// Config.Sources can't be set in place. The field of a source is thus set in a copy of the
// SourceConfig, and the function done stores this copy in the map. For all other fields done is nil.
type setting struct {
	field reflect.Value
	done  func()
}

func (s setting) set(value string) error {
	if s.field.Kind() == reflect.Slice {
		list := strings.Split(value, ",")
		for i := range list {
			list[i] = strings.TrimSpace(list[i])
		}
		s.field.Set(reflect.ValueOf(list))
	} else if s.field.Kind() == reflect.String {
		s.field.SetString(value)
	} else if err := yaml.Unmarshal([]byte(value), s.field.Addr().Interface()); err != nil {
		return errors.New(reference.FormOf(s.field.Type(), forms).Explain(value, err))
	}
	if s.done != nil {
		s.done()
	}
	return nil
}

// collectSettings adds the fields of a struct to the map "into", by the names of their environment
// variables. It skips fields that the configuration file can't set. It also skips maps, lists of anything
// other than strings, and presets, because only the file can set them.
func collectSettings(v reflect.Value, prefix string, into map[string]setting) {
	for i := range v.NumField() {
		field := v.Type().Field(i)
		name, options, _ := strings.Cut(field.Tag.Get("yaml"), ",")
		if !field.IsExported() || name == "-" {
			continue
		}
		path := prefix
		if options != "inline" {
			path = strings.TrimPrefix(prefix+"_"+reference.EnvName(name), "_")
		}
		value := v.Field(i)
		switch {
		case value.Kind() == reflect.Struct:
			collectSettings(value, path, into)
		case value.Kind() == reflect.Map || value.Type() == reflect.TypeFor[Preset]():
		case value.Kind() == reflect.Slice && value.Type().Elem().Kind() != reflect.String:
		default:
			into[path] = setting{field: value}
		}
	}
}

// suggestSetting returns a hint for an environment variable of an unknown setting, for example the
// variable of a similar setting.
func suggestSetting(key string, settings map[string]setting) string {
	if found := reference.Suggest(key, slices.Collect(maps.Keys(settings))); found != "" {
		return "did you mean " + envPrefix + found + "?"
	}
	if strings.HasPrefix(key, "SOURCES_") {
		return "a variable changes a source of the configuration file (--config FILE), and cannot add one"
	}
	return "see `freshet config print`"
}
