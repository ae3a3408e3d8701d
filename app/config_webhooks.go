package app

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/webhooks"
)

// checkWebhooks returns all errors in the webhooks of a source.
func checkWebhooks(s SourceConfig) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(s.Webhooks)) {
		if err := webhooks.CheckName(name); err != nil {
			errs = append(errs, fmt.Errorf("webhooks.%s: %w", name, err))
		}
		err := s.Webhooks[name].Check(func(facet string) (open []string, known bool) {
			f, known := s.Facets[facet]
			return openParams(f), known
		})
		if err == nil {
			continue
		}
		for line := range strings.SplitSeq(err.Error(), "\n") {
			errs = append(errs, fmt.Errorf("webhooks.%s.%s", name, line))
		}
	}
	return errors.Join(errs...)
}

// openParams returns the sorted names of the params for which neither the configuration nor the key of an
// entity has a value.
func openParams(f source.Facet) (open []string) {
	for name, value := range f.Params {
		if value == (source.Param{}) && !slices.Contains(f.ProvidedParams(), name) {
			open = append(open, name)
		}
	}
	slices.Sort(open)
	return open
}

// redactWebhooks redacts the texts that can hold a secret by mistake.
func redactWebhooks(all map[string]webhooks.Config) map[string]webhooks.Config {
	out := maps.Clone(all)
	for name, c := range out {
		v := &c.Verify
		v.SecretFile, v.SecretEnv = redactValue(v.SecretFile, "secretFile"), redactValue(v.SecretEnv, "secretEnv")
		v.Header, v.Prefix = redactValue(v.Header), redactValue(v.Prefix, "prefix")
		out[name] = c
	}
	return out
}
