package app

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/freshet/freshet/schemas"
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

// explainWebhooks prints the path of each webhook, and the facets that the webhook refreshes. It also
// names the environment variables with secrets that are missing in env.
func explainWebhooks(to io.Writer, s SourceConfig, source string, env []string) {
	for _, name := range slices.Sorted(maps.Keys(s.Webhooks)) {
		c := s.Webhooks[name]
		var refreshed []string
		for _, r := range c.Map {
			text := r.Facet
			if delay, longest := r.Delays(); delay > 0 {
				text += fmt.Sprintf(" once deliveries pause for %s, after %s at most", schemas.FormatDuration(delay), schemas.FormatDuration(longest))
			}
			if !slices.Contains(refreshed, text) {
				refreshed = append(refreshed, text)
			}
		}
		fmt.Fprintf(to, "  webhook POST /hooks/%s/%s (%s): refreshes %s\n", source, name, c.Verify.Scheme, strings.Join(refreshed, "; "))
		if calls, window := c.NewKeys.Parse(); calls > 0 {
			fmt.Fprintf(to, "          also keys that are neither stored nor registered: %d at once, and each %s, in each query service\n", calls, schemas.FormatDuration(window))
		}
		if at := c.Verify.SecretEnv; at != "" && Lookup(env, at) == "" {
			fmt.Fprintf(to, "  note    %s is not set in this environment; query services do not start without it\n", redactValue(at, "secretEnv"))
		}
	}
}

// openParams returns the names of the params that get a value neither from the configuration nor from
// the key of an entity, sorted.
func openParams(f source.Facet) (open []string) {
	for name, value := range f.Params {
		if value == (source.Param{}) && !slices.Contains(f.ProvidedParams(), name) {
			open = append(open, name)
		}
	}
	slices.Sort(open)
	return open
}

// redactWebhooks redacts texts of webhooks that can contain a secret by mistake.
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
