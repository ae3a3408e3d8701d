package main

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/freshet/freshet/app"
	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/settings"
)

func settingsCommand(p *program) *cobra.Command {
	c := &cobra.Command{
		Use:   "settings",
		Short: "Show or change the settings of sources while freshet runs",
		Long: `Show or change the quotas and prefetch settings of sources while freshet runs, through a query
service. A change overrides the configuration until it is reset. Limiters and schedulers apply
it within two seconds. An invalid quota or interval is rejected.`,
	}
	c.AddCommand(settingsGet(p), settingsSet(p), settingsAudit(p))
	return c
}

func settingsGet(p *program) *cobra.Command {
	var source string
	var output format
	c := &cobra.Command{
		Use:   "get",
		Short: "Show the configured and the effective settings",
	}
	c.Flags().StringVar(&source, "source", "", "show this source only (default all)")
	output.addFlag(c)
	return p.runWithAPI(c, func(cmd *cobra.Command, api *adminClient, _ []string) error {
		all, err := api.Settings(cmd.Context(), source)
		if err != nil {
			return err
		}
		return printSettings(p, output, all)
	})
}

func settingsSet(p *program) *cobra.Command {
	var source, note string
	c := &cobra.Command{
		Use:   "set SETTING=VALUE...",
		Short: "Change a source's limits and prefetch settings",
		Long: `Change the limits and prefetch settings of a source. The command applies all assignments or
none. An empty value resets a setting to its configured value.

  POLICY.limit, POLICY.target               limit and target of a quota policy
  POLICY.highReserve, POLICY.lowReserve     calls reserved for a lane
  prefetch                                  on or off
  prefetch.FACET.hot, .warm, .cold          interval of each tier
  prefetch.FACET.minInterval, .maxInterval  bounds of the adaptive interval
  prefetch.FACET.active                     JSON rule that selects the prefetched entities

An entity uses a changed interval after its next refresh.`,
		Example: `  freshet settings set --source nexon second.target=400 second.highReserve=120
  freshet settings set --source nexon day.limit=15000000 --note "the upstream asked for less"
  freshet settings set --source nexon second.target=
  freshet settings set --source nexon prefetch=off
  freshet settings set --source nexon prefetch.character.hot=30m prefetch.character.maxInterval=72h
  freshet settings set prefetch.character.active='{"status":{"path":"basic.state","block":["closed"]}}'`,
		Args: cobra.MinimumNArgs(1),
	}
	c.Flags().StringVar(&source, "source", "", "change this source (required if there are several)")
	c.Flags().StringVar(&note, "note", "", "write this reason to the audit")
	var patch settings.Patch
	c.PreRunE = func(_ *cobra.Command, args []string) (err error) {
		if patch, err = parseAssignments(args); err != nil {
			return app.UsageErrorf("%w", err)
		}
		return nil
	}
	return p.runWithAPI(c, func(cmd *cobra.Command, api *adminClient, _ []string) error {
		name, err := resolveSource(cmd.Context(), api, source, "")
		if err != nil {
			return err
		}
		var state settings.State
		if err := api.Call(cmd.Context(), http.MethodPatch, "/settings/"+url.PathEscape(name), settings.PatchRequest{Patch: patch, Note: note}, &state); err != nil {
			return err
		}
		return printSettings(p, "table", []settings.State{state})
	})
}

func settingsAudit(p *program) *cobra.Command {
	var limit int
	var output format
	c := &cobra.Command{
		Use:   "audit",
		Short: "List audit entries, newest first",
	}
	c.Flags().IntVar(&limit, "limit", 20, "print at most this number of entries, up to 1000")
	output.addFlag(c)
	return p.runWithAPI(c, func(cmd *cobra.Command, api *adminClient, _ []string) error {
		var audit struct {
			Entries []settings.Entry `json:"entries"`
		}
		if err := api.Call(cmd.Context(), http.MethodGet, "/audit?limit="+strconv.Itoa(limit), nil, &audit); err != nil {
			return err
		}
		return printAll(p.Stdout, output, audit.Entries, []string{"AT", "ACTOR", "ACTION", "SOURCE", "AFTER", "NOTE"}, func(e settings.Entry) [][]string {
			return [][]string{{e.At.Format(time.RFC3339), e.Actor, e.Action, e.Source, string(e.After), e.Note}}
		})
	})
}

// printSettings prints the settings of sources. For an override that the configuration no
// longer allows it prints a warning to stderr.
func printSettings(p *program, f format, all []settings.State) error {
	for _, s := range all {
		if s.Problem != "" {
			fmt.Fprintf(p.Stderr, "%s: the override is invalid under the current configuration: %s; reset it with `freshet settings set`\n", s.Source, s.Problem)
		}
	}
	return printAll(p.Stdout, f, all, []string{"SOURCE", "SETTING", "CONFIGURED", "NOW"}, settingRows)
}

// settingRows returns the table rows of one source, with the setting names of `settings set`.
func settingRows(s settings.State) [][]string {
	rows := [][]string{{s.Source, "stopped", "false", strconv.FormatBool(s.Stopped)}}
	add := func(name, configured string, now func(settings.Values) string) {
		text := "?" // the effective value is unknown; printSettings prints the reason to stderr
		if s.Effective != nil {
			text = now(*s.Effective)
		}
		rows = append(rows, []string{s.Source, name, configured, text})
	}
	for i, policy := range s.Configured.Policies {
		for _, member := range []struct {
			name string
			of   func(settings.Policy) string
		}{
			{"limit", func(p settings.Policy) string { return strconv.Itoa(p.Limit) }},
			{"target", func(p settings.Policy) string { return strconv.Itoa(p.Target) }},
			{"highReserve", func(p settings.Policy) string { return p.HighReserve.String() }},
			{"lowReserve", func(p settings.Policy) string { return strconv.Itoa(p.LowReserve) }},
		} {
			if policy.Window == limiter.Day.String() && (member.name == "target" || member.name == "lowReserve") {
				continue // a day policy has no target and no lowReserve
			}
			add(policy.Name+"."+member.name, member.of(policy), func(q settings.Values) string { return member.of(q.Policies[i]) })
		}
	}
	add(prefetchSetting, onOrOff(s.Configured.Prefetch.Enabled), func(q settings.Values) string { return onOrOff(q.Prefetch.Enabled) })
	for _, facet := range slices.Sorted(maps.Keys(s.Configured.Prefetch.Facets)) {
		for _, member := range prefetchMembers {
			add(prefetchSetting+"."+facet+"."+member.name, member.of(s.Configured.Prefetch.Facets[facet]), func(q settings.Values) string {
				return member.of(q.Prefetch.Facets[facet])
			})
		}
	}
	if s.Revision > 0 {
		rows = append(rows, []string{s.Source, "revision", "0", fmt.Sprintf("%d, %s by %s", s.Revision, s.ChangedAt.Format(time.RFC3339), *s.ChangedBy)})
	}
	return rows
}

// prefetchMembers are the settings of one prefetched facet.
var prefetchMembers = []struct {
	name string
	of   func(settings.PrefetchFacet) string
}{
	{"hot", func(f settings.PrefetchFacet) string { return f.Hot.String() }},
	{"warm", func(f settings.PrefetchFacet) string { return f.Warm.String() }},
	{"cold", func(f settings.PrefetchFacet) string { return f.Cold.String() }},
	{"minInterval", func(f settings.PrefetchFacet) string { return f.MinInterval.String() }},
	{"maxInterval", func(f settings.PrefetchFacet) string { return f.MaxInterval.String() }},
	{"active", func(f settings.PrefetchFacet) string { return f.Active.String() }},
}

func onOrOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}
