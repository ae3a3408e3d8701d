package app

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/presets"
	"github.com/freshet/freshet/runs"
	"github.com/freshet/freshet/scheduler"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/webhooks"
)

// SourceConfig configures one source: the upstream, its quota, workers and prefetching.
type SourceConfig struct {
	// Preset is the ready-made configuration that the settings of the source override: sections and
	// settings by name are merged, and a list replaces the whole list. Only the file can set it.
	Preset        Preset `yaml:"preset,omitempty"`
	source.Config `yaml:",inline"`
	Quota         limiter.Config `yaml:"quota"`
	Workers       WorkersConfig  `yaml:"workers"`
	Prefetch      PrefetchConfig `yaml:"prefetch,omitempty"`
	// Webhooks maps the name of each webhook to its configuration. The upstream sends the webhook's
	// deliveries to POST /hooks/SOURCE/NAME. A delivery refreshes the entities that it names.
	Webhooks map[string]webhooks.Config `yaml:"webhooks,omitempty"`
	// Runs maps the name of each kind of run to its definition. POST /v1/runs/SOURCE/NAME starts such a
	// run.
	Runs map[string]runs.Config `yaml:"runs,omitempty"`
}

// PrefetchConfig configures prefetching: how much of the quota it may use, and the facets to
// prefetch.
type PrefetchConfig struct {
	scheduler.BudgetConfig `yaml:",inline"`
	// Facets has an entry for each facet that is prefetched, by the name of the facet. An entry without
	// settings means mode tiers with its defaults.
	Facets map[string]scheduler.Config `yaml:"facets,omitempty"`
}

// WorkersConfig limits the work of one worker process.
type WorkersConfig struct {
	// High configures the lane HIGH: requests of clients.
	High LaneConfig `yaml:"high"`
	// Low configures the lane LOW: prefetching, retries, replays and triggers.
	Low LaneConfig `yaml:"low"`
	// MaxBodyMemory is the maximum memory of response bodies in each lane. It must be at least maxBody.
	MaxBodyMemory source.Bytes `yaml:"maxBodyMemory"`
}

// LaneConfig limits the work in one lane.
type LaneConfig struct {
	// MaxInFlight is the maximum number of requests that one process works on at the same time.
	MaxInFlight int `yaml:"maxInFlight"`
}

// UnmarshalYAML sets the defaults and the settings of the preset before it reads a source.
func (s *SourceConfig) UnmarshalYAML(unmarshal func(any) error) error {
	type plain SourceConfig
	defaults := plain{
		Config:  source.DefaultConfig(),
		Quota:   limiter.DefaultConfig(),
		Workers: WorkersConfig{High: LaneConfig{512}, Low: LaneConfig{1024}, MaxBodyMemory: 128 << 20},
	}
	p := defaults
	err := unmarshal(&p)
	if err == nil && p.Preset != "" {
		var text []byte
		if text, err = withPreset(p.Preset, unmarshal); err == nil {
			p = defaults
			err = yaml.UnmarshalWithOptions(text, &p, yaml.Strict())
		}
	}
	*s = SourceConfig(p)
	return err
}

func (s SourceConfig) check(name string) error {
	errs := []error{s.checkInsecure()}
	if s.Workers.High.MaxInFlight < 1 || s.Workers.Low.MaxInFlight < 1 {
		errs = append(errs, fmt.Errorf("workers: high.maxInFlight and low.maxInFlight are %d and %d; they must be at least 1", s.Workers.High.MaxInFlight, s.Workers.Low.MaxInFlight))
	}
	if s.Workers.MaxBodyMemory < s.MaxBody {
		errs = append(errs, fmt.Errorf("workers.maxBodyMemory: %d must be at least maxBody (%d), or the largest allowed response would never fit", s.Workers.MaxBodyMemory, s.MaxBody))
	}
	for facet := range s.Facets {
		if err := schemas.CheckName("facet", facet); err != nil {
			errs = append(errs, fmt.Errorf("facets.%s: %w", facet, err))
		}
	}
	if _, err := limiter.NewQuota(s.quota()); err != nil {
		for line := range strings.SplitSeq(err.Error(), "\n") {
			errs = append(errs, fmt.Errorf("quota.%s", line))
		}
	}
	for _, err := range s.checkQuota() {
		errs = append(errs, fmt.Errorf("quota.%w", err))
	}
	errs = append(errs, checkCosts(s.Facets, s.Quota.Policies)...)
	errs = append(errs, checkAnnounced(s.Announced, s.Quota.Policies))
	if _, err := s.newSchedule(); err != nil {
		for line := range strings.SplitSeq(err.Error(), "\n") {
			errs = append(errs, fmt.Errorf("prefetch.%s", line))
		}
	}
	errs = append(errs, checkWebhooks(s), checkRuns(s))
	src, err := source.New(name, s.Config, nil, s.maxConnections())
	if err != nil {
		if s.Preset == "" && len(s.Facets) == 0 && slices.Contains(presets.Names(), name) {
			err = fmt.Errorf("%w; write `preset: %s` into the source to use the preset of this name", err, name)
		}
		errs = append(errs, err)
	} else {
		src.Close()
	}
	return errors.Join(errs...)
}

// newSchedule returns the prefetch schedule of the source, or all errors in its configuration.
func (s SourceConfig) newSchedule() (*scheduler.Schedule, error) {
	var errs []error
	facets := map[string]scheduler.Facet{}
	for name, f := range s.Facets {
		facets[name] = scheduler.Facet{Config: scheduler.DefaultConfig(), Cost: len(f.Documents), FirstCost: firstReadCalls(s.Facets, name)}
	}
	available := "the source has no facets"
	if len(facets) > 0 {
		available = "the source has " + strings.Join(slices.Sorted(maps.Keys(facets)), ", ")
	}
	for _, name := range slices.Sorted(maps.Keys(s.Prefetch.Facets)) {
		f, known := facets[name]
		if !known {
			errs = append(errs, fmt.Errorf("facets.%s: unknown facet; %s", name, available))
			continue
		}
		f.Config = s.Prefetch.Facets[name]
		facets[name] = f
		for _, err := range checkPrefetchFacet(f.Config, s.Facets[name]) {
			errs = append(errs, fmt.Errorf("facets.%s.%w", name, err))
		}
		for _, other := range slices.Sorted(maps.Keys(f.Config.Triggers)) {
			if s.Facets[other].Derived != nil {
				errs = append(errs, fmt.Errorf("facets.%s.triggers.%s: %s is derived, so changes of its inputs refresh it; remove the trigger", name, other, other))
			}
			if triggered, known := s.Facets[other]; known && cmp.Or(triggered.KeyFold, source.FoldNone) != cmp.Or(s.Facets[name].KeyFold, source.FoldNone) {
				errs = append(errs, fmt.Errorf("facets.%s.triggers.%s: the two facets must have the same keyFold, because the trigger refreshes the facet with the same key", name, other))
			}
		}
	}
	schedule, err := scheduler.NewSchedule(s.spending(), facets)
	return schedule, errors.Join(append(errs, err)...)
}

// firstReadCalls returns the number of calls of an entity's first fetch: the documents of the facet and
// of all facets that it takes params from.
func firstReadCalls(facets map[string]source.Facet, facet string) (calls int) {
	counted := map[string]bool{}
	var count func(facet string)
	count = func(facet string) {
		if counted[facet] {
			return
		}
		counted[facet] = true
		calls += len(facets[facet].Documents)
		for _, p := range facets[facet].Params {
			if p.From != "" {
				count(p.From)
			}
		}
	}
	count(facet)
	return calls
}

// checkPrefetchFacet returns an error for each setting in a facet's prefetch configuration that
// contradicts the facet's own configuration.
func checkPrefetchFacet(c scheduler.Config, f source.Facet) (errs []error) {
	if c.Mode != scheduler.Off && f.Derived != nil {
		errs = append(errs, errors.New("mode: the facet is derived, so changes of its inputs refresh it; remove the section, or set `mode: off`"))
	}
	if c.Mode != scheduler.Off && f.Immutable {
		errs = append(errs, errors.New("mode: the facet is immutable, so it is never prefetched; remove the section, or set `mode: off`"))
	}
	if f.Raw != nil && (c.Active.Status.Path != "" || len(c.Active.Unless) > 0) {
		errs = append(errs, errors.New("active: the content of the facet is raw and has no members; remove the paths"))
	}
	for i, name := range c.Active.Params {
		if _, known := f.Params[name]; !known && name != "" { // an empty param name is skipped here, because NewSchedule returns an error for it
			errs = append(errs, fmt.Errorf("active.params[%d]: the facet has no param %q; it has %s", i, name, joinNames(f.Params)))
		}
	}
	paths := map[string]string{"active.status.path": c.Active.Status.Path}
	for i, path := range c.Active.Unless {
		paths[fmt.Sprintf("active.unless[%d]", i)] = path
	}
	for _, of := range slices.Sorted(maps.Keys(paths)) {
		document, _, member := strings.Cut(strings.ReplaceAll(paths[of], `\.`, "\x00"), ".")
		document = strings.ReplaceAll(document, "\x00", ".")
		if _, known := f.Documents[document]; !known && member && document != "" { // a path without a document or a member is skipped here, because NewSchedule returns an error for it
			errs = append(errs, fmt.Errorf("%s: %q must begin with a document of the facet, which has %s", of, paths[of], joinNames(f.Documents)))
		}
	}
	longest, of := c.Tiers.Cold.Every, "tiers.cold.every"
	if c.Mode == scheduler.Adaptive {
		longest, of = c.MaxInterval, "maxInterval"
	}
	if c.Mode != scheduler.Off && f.KeepFor > 0 && longest > f.KeepFor {
		errs = append(errs, fmt.Errorf("%s: %v is longer than the facet's keepFor, %v: snapshots without reads would be deleted before they are due; shorten the interval, or increase keepFor", of, longest, f.KeepFor))
	}
	return errs
}

// unfillableParams returns the sorted names of the facet's params that can never have a value. Such a
// param is empty in the setting params, and no group of keyPattern provides it. No registration of an
// entity sets it, because the facet is not prefetched, and no trigger sets it.
func (s SourceConfig) unfillableParams(facet string) []string {
	if c, ok := s.Prefetch.Facets[facet]; ok && c.Mode != scheduler.Off {
		return nil
	}
	for _, other := range s.Prefetch.Facets {
		if _, triggered := other.Triggers[facet]; triggered {
			return nil
		}
	}
	return openParams(s.Facets[facet])
}

// describeDocuments lists the documents of a facet, or the inputs of a derived facet. If a document
// needs more than one GET request to the host of the source, it also names the kind of request, such as
// a POST request or several pages.
func describeDocuments(f source.Facet) string {
	if f.Derived != nil {
		return f.Derived.Describe()
	}
	var all []string
	for _, name := range slices.Sorted(maps.Keys(f.Documents)) {
		d := f.Documents[name]
		var how []string
		switch {
		case d.GraphQL != nil:
			how = append(how, "a GraphQL query")
		case d.Method == http.MethodPost:
			how = append(how, "a POST")
		}
		if d.BaseURL != "" {
			how = append(how, "from "+hostOf(d.BaseURL))
		}
		if d.Paging != nil {
			how = append(how, fmt.Sprintf("1 to %d pages, one call each", d.Paging.PageLimit()))
		}
		if len(how) > 0 {
			name += " (" + strings.Join(how, ", ") + ")"
		}
		all = append(all, name)
	}
	return strings.Join(all, ", ")
}

// describeDelivery returns how long snapshots of a facet are fresh, and the form and the files of raw
// content.
func describeDelivery(f source.Facet) string {
	text := "fresh for " + schemas.FormatDuration(f.FreshFor)
	if f.Immutable {
		text = "immutable"
	}
	if f.Raw != nil {
		text += "; served unchanged as " + f.Raw.MediaType
	}
	if f.Static != nil {
		text += "; files of " + f.Static.Dir
	}
	if f.Wait > 0 {
		text += "; reads wait " + schemas.FormatDuration(f.Wait) + " for the first snapshot"
	}
	return text
}

// joinNames returns the sorted keys of a map as a comma-separated list, or "none".
func joinNames[T any](all map[string]T) string {
	if len(all) == 0 {
		return "none"
	}
	return strings.Join(slices.Sorted(maps.Keys(all)), ", ")
}

// spending returns the configuration of the prefetch budget. If the configured budget has no time
// zone, spending adds the time zone of the quota's day policy.
func (s SourceConfig) spending() scheduler.BudgetConfig {
	spending := s.Prefetch.BudgetConfig
	for _, p := range s.Quota.Policies {
		if spending.TimeZone == "" && p.Window == limiter.Day {
			spending.TimeZone = p.TimeZone
		}
	}
	return spending
}

// maxConnections returns the maximum number of concurrent upstream calls of one process.
func (s SourceConfig) maxConnections() int {
	return (s.Workers.High.MaxInFlight + s.Workers.Low.MaxInFlight) * maxDocuments(s.Facets)
}

// maxDocuments returns the number of documents of the facet with the most documents, at least 1. A
// fetch of an entity makes one call for each document.
func maxDocuments(facets map[string]source.Facet) int {
	n := 1
	for _, f := range facets {
		n = max(n, len(f.Documents))
	}
	return n
}
