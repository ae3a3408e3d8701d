package app

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/scheduler"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/source/derived"
	"github.com/freshet/freshet/source/links"
)

// Explain prints the effects of the configuration: for each source its quota, the limits of clients,
// its facets, credentials and prefetch intervals, and the credentials that are missing in env.
func (c Config) Explain(to io.Writer, env []string) error {
	for _, name := range slices.Sorted(maps.Keys(c.Sources)) {
		s := c.Sources[name]
		quota, err := limiter.NewQuota(s.quota())
		if err != nil {
			return err
		}
		fmt.Fprintf(to, "%s: %s\n", name, redactValue(s.BaseURL, "baseURL"))
		explainQuota(to, s, quota)
		explainClients(to, s, quota, c.Access.Limits)
		for _, facet := range slices.Sorted(maps.Keys(s.Facets)) {
			f := s.Facets[facet]
			fmt.Fprintf(to, "  facet   %s: %s; %s\n", facet, describeDocuments(f), describeDelivery(f))
			explainAliases(to, s.Facets, facet)
			if f.Links != nil {
				explainLinks(to, *f.Links)
			}
			if f.Derived != nil {
				explainDerived(to, f.Derived)
			}
		}
		explainCredentials(to, s.Credentials)
		explainPrefetch(to, s, name)
		explainUnreadable(to, s)
		explainWebhooks(to, s, name, env)
		for _, at := range secretRefs(s.Config) {
			if at.env != "" && at.file == "" && Lookup(env, at.env) == "" {
				fmt.Fprintf(to, "  note    %s is not set in this environment; workers do not start without it\n", redactValue(at.env, "secretEnv"))
			}
		}
	}
	return nil
}

// explainAliases prints the facets that a facet takes params from, and the minimum number of calls of a
// first read.
func explainAliases(to io.Writer, facets map[string]source.Facet, facet string) {
	var from []string
	for _, name := range slices.Sorted(maps.Keys(facets[facet].Params)) {
		if p := facets[facet].Params[name]; p.From != "" {
			from = append(from, fmt.Sprintf("{%s} comes from %s", name, p.From))
		}
	}
	if from != nil {
		fmt.Fprintf(to, "          %s; the first read of a key takes %d calls\n", strings.Join(from, ", "), firstReadCalls(facets, facet))
	}
}

// explainLinks prints which facet the links request, and the limits of the links.
func explainLinks(to io.Writer, c links.Config) {
	if l, err := c.Compile(); err == nil { // the configuration was checked before, so there is no error
		fmt.Fprintf(to, "          links in new content request %s: at most %d keys of one content, up to %d links away\n", l.Facet, l.MaxKeys, l.MaxDepth)
	}
}

// explainDerived prints when the content of a derived facet is computed.
func explainDerived(to io.Writer, c *derived.Config) {
	every, all := c.Delays()
	fmt.Fprintf(to, "          computed %s after the first change of an input, without a call", schemas.FormatDuration(every))
	if all > 0 {
		fmt.Fprintf(to, "; the key %s covers all keys, after %s", derived.AllKey, schemas.FormatDuration(all))
	}
	fmt.Fprintln(to)
}

// explainCredentials prints the visibility of each credential, and the entity keys for which it is
// used.
func explainCredentials(to io.Writer, all []source.Credential) {
	for _, c := range all {
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
func explainPrefetch(to io.Writer, s SourceConfig, source string) {
	some := false
	for _, facet := range slices.Sorted(maps.Keys(s.Facets)) {
		c := s.Prefetch.Facets[facet]
		var how string
		switch c.Mode {
		case scheduler.Off:
		case scheduler.Tiers:
			how = fmt.Sprintf("every %s, %s or %s, by how much it is read", schemas.FormatDuration(c.Tiers.Hot.Every), schemas.FormatDuration(c.Tiers.Warm.Every), schemas.FormatDuration(c.Tiers.Cold.Every))
		case scheduler.Adaptive:
			how = fmt.Sprintf("every %s to %s, by how often it changes and is read", schemas.FormatDuration(c.MinInterval), schemas.FormatDuration(c.MaxInterval))
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
				when = fmt.Sprintf(", once changes pause for %s, after %s at most", schemas.FormatDuration(quiet), schemas.FormatDuration(longest))
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
func explainUnreadable(to io.Writer, s SourceConfig) {
	for _, facet := range slices.Sorted(maps.Keys(s.Facets)) {
		if open := s.unfillableParams(facet); len(open) > 0 {
			fmt.Fprintf(to, "  note    %s can't be read: nothing provides %s; add a named group to its keyPattern, a default to its params, or prefetch it and register its entities with a value\n",
				facet, strings.Join(open, " and "))
		}
	}
}

// activeCriteria lists the paths and params by which the setting `active` decides whether an entity
// is prefetched.
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
