package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/presets"
	"github.com/freshet/freshet/scheduler"
	"github.com/freshet/freshet/schemas"
)

func (p *program) config() *cobra.Command {
	c := &cobra.Command{Use: "config", Short: "Check or print the configuration"}
	c.AddCommand(&cobra.Command{
		Use:   "check",
		Short: "Check the configuration, and print its effects",
		RunE: func(*cobra.Command, []string) error {
			config, err := p.load()
			if err != nil {
				return err
			}
			for _, name := range slices.Sorted(maps.Keys(config.Sources)) {
				s := config.Sources[name]
				quota, err := limiter.NewQuota(s.quota())
				if err != nil {
					return err
				}
				fmt.Fprintf(p.stdout, "%s: %s\n", name, redactValue(s.BaseURL, "baseURL"))
				s.explainQuota(p.stdout, quota)
				s.explainClients(p.stdout, quota, config.Access.Limits)
				for _, facet := range slices.Sorted(maps.Keys(s.Facets)) {
					f := s.Facets[facet]
					fmt.Fprintf(p.stdout, "  facet   %s: %s; fresh for %v\n", facet, describeDocuments(f), f.FreshFor)
				}
				s.explainCredentials(p.stdout)
				s.explainPrefetch(p.stdout, name)
				s.explainUnreadable(p.stdout)
				for _, at := range secretRefs(s.Config) {
					if at.env != "" && at.file == "" && lookup(p.env, at.env) == "" {
						fmt.Fprintf(p.stdout, "  note    %s is not set in this environment; workers do not start without it\n", redactValue(at.env, "secretEnv"))
					}
				}
			}
			_, err = fmt.Fprintln(p.stdout, "the configuration is valid")
			return err
		},
	}, &cobra.Command{
		Use:   "print",
		Short: "Print the configuration with defaults, without secrets",
		RunE: func(*cobra.Command, []string) error {
			config, err := p.load()
			if err != nil {
				return err
			}
			text, err := yaml.Marshal(config.redacted())
			if err != nil {
				return fmt.Errorf("print the configuration: %w", err)
			}
			_, err = p.stdout.Write(text)
			return err
		},
	})
	preset := &cobra.Command{
		Use:   "preset NAME",
		Short: "Print a ready-made configuration of a well-known upstream",
		Long: `Print the configuration of a well-known upstream as a complete file that you can adapt. The quota
of each preset is tested against a simulator that enforces the upstream's real quota. Without a
name, the command lists the presets.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				_, err := fmt.Fprintln(p.stdout, strings.Join(presets.Names(), "\n"))
				return err
			}
			text, known := presets.All()[args[0]]
			if !known {
				return usageError{fmt.Errorf("unknown preset %q; the presets are %s", args[0], strings.Join(presets.Names(), ", "))}
			}
			_, err := p.stdout.Write(wrapPreset(args[0], text))
			return err
		},
	}
	c.AddCommand(preset)
	return c
}

// wrapPreset returns a preset as a complete configuration file.
func wrapPreset(name string, preset []byte) []byte {
	var out strings.Builder
	fmt.Fprintf(&out, "sources:\n  %s:\n", name)
	for line := range strings.Lines(string(preset)) {
		if strings.TrimSpace(line) != "" {
			out.WriteString("    ")
		}
		out.WriteString(line)
	}
	return []byte(out.String())
}

// explainCredentials prints the visibility of each credential, and the entity keys for which it is
// used.
func (s SourceConfig) explainCredentials(to io.Writer) {
	for _, c := range s.Credentials {
		keys, seen := "all keys", "every reader"
		if c.Keys != "" {
			keys = "keys " + c.Keys
		}
		if c.Visibility != "" {
			seen = c.Visibility
		}
		fmt.Fprintf(to, "  credential %s: for %s, seen by %s\n", c.Name, keys, seen)
	}
}

// explainPrefetch prints the prefetch intervals and the triggers of each facet, and the part of the
// quota that prefetching may use.
func (s SourceConfig) explainPrefetch(to io.Writer, source string) {
	some := false
	for _, facet := range slices.Sorted(maps.Keys(s.Facets)) {
		c := s.Prefetch.Facets[facet]
		var how string
		switch c.Mode {
		case scheduler.Off:
		case scheduler.Tiers:
			how = fmt.Sprintf("every %v, %v or %v, by how much it is read", c.Tiers.Hot.Every, c.Tiers.Warm.Every, c.Tiers.Cold.Every)
		case scheduler.Adaptive:
			how = fmt.Sprintf("every %v to %v, by how often it changes and is read", c.MinInterval, c.MaxInterval)
		}
		if how != "" {
			if c.NotBefore > 0 {
				text, _ := c.NotBefore.MarshalText()
				how += fmt.Sprintf(", not before %s in %s", text, cmp.Or(c.TimeZone, "UTC"))
			}
			some = true
			fmt.Fprintf(to, "  prefetch %s: %s\n", facet, how)
			if by := activeCriteria(c.Active); by != "" {
				fmt.Fprintf(to, "           active entities only, by %s\n", by)
			}
		}
		for _, other := range slices.Sorted(maps.Keys(c.Triggers)) {
			when := ""
			if quiet, longest := c.Triggers[other].Delays(); quiet > 0 {
				when = fmt.Sprintf(", once changes pause for %v, after %v at most", quiet, longest)
			}
			fmt.Fprintf(to, "           a change of %s refreshes %s%s\n", facet, other, when)
		}
		if s.Facets[facet].PublishChanges {
			fmt.Fprintf(to, "           changes of %s are published to %s\n", facet, schemas.ChangeTopic(source))
		}
	}
	if !some {
		return
	}
	spending := s.spending()
	words, hours := []string{""}, false
	for i, c := range spending.RateCaps {
		switch {
		case c.From != c.To:
			hours = true
			words = append(words, fmt.Sprintf("at most %v from %d to %d h", c.Rate, c.From, c.To))
		case i == 0:
			words = append(words, fmt.Sprintf("at all hours at most %v", c.Rate))
		default:
			words = append(words, fmt.Sprintf("else at most %v", c.Rate))
		}
	}
	if hours {
		words = append(words, "hours of "+cmp.Or(spending.TimeZone, "UTC"))
	}
	fmt.Fprintf(to, "           with the remaining quota of LOW%s\n", strings.Join(words, ", "))
}

// explainUnreadable prints the facets that can't be read, because they need params that can never
// have a value.
func (s SourceConfig) explainUnreadable(to io.Writer) {
	for _, facet := range slices.Sorted(maps.Keys(s.Facets)) {
		if open := s.unfillableParams(facet); len(open) > 0 {
			fmt.Fprintf(to, "  note    %s can't be read: nothing provides %s; add a named group to its keyPattern, a default to its params, or prefetch it and register its entities with a value\n",
				facet, strings.Join(open, " and "))
		}
	}
}

// activeCriteria lists the paths and params that decide whether an entity is active.
func activeCriteria(a scheduler.Active) string {
	var by []string
	if a.Status.Path != "" {
		by = append(by, a.Status.Path)
	}
	by = append(by, a.Unless...)
	for _, name := range a.Params {
		by = append(by, "param "+name)
	}
	return strings.Join(by, ", ")
}

// formatCalls writes a number of calls with at most one decimal place.
func formatCalls(n float64) string {
	return strconv.FormatFloat(math.Round(10*n)/10, 'f', -1, 64)
}
