package runs

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
)

// Config defines a kind of run: the entities and collections that a run fetches as one unit of work,
// with one event at its end.
type Config struct {
	// Steps maps the name of each facet that a run fetches to the configuration of its steps.
	Steps map[string]StepConfig `yaml:"steps"`
	// Tolerate is the maximum share of failed steps of a COMPLETED run, such as 10%. With more failed steps
	// the run is FAILED. A step whose entity is not found has not failed.
	Tolerate Percent `yaml:"tolerate,omitempty"`
	// Parallel is the maximum number of steps of one run that are requested at the same time.
	Parallel int `yaml:"parallel"`
	// Overlap decides what happens if a run starts while an earlier run of the same keys is active.
	// skip: no new run starts, and the earlier run continues. buffer-one: one new run waits for the end
	// of the earlier run. cancel-other: the earlier run is cancelled.
	Overlap string `yaml:"overlap,omitempty" enum:"skip,buffer-one,cancel-other"`
	// Deadline is the maximum duration of a run. The steps that are open at the deadline fail.
	Deadline time.Duration `yaml:"deadline"`
	// Every is the interval at which runs are started without a request of a client. Such a run
	// fetches all registered entities of the facets whose steps have no setting `each`. 0s means that
	// runs start only on request.
	Every time.Duration `yaml:"every,omitempty"`
}

// StepConfig configures the steps of one facet.
type StepConfig struct {
	// Each is the name of another facet of the run. That facet must be a collection. The run then has
	// a step of this facet for each item of these collections. Without Each, the run has a step for
	// each of its keys.
	Each string `yaml:"each,omitempty"`
	// Key is the key of the step for an item. {PATH} is replaced by the item's value at this gjson
	// path, as in "{full_name}". Key is required with Each.
	Key string `yaml:"key,omitempty"`
	// Unless is a list of gjson paths. If an item has the value true at one of the paths, no step is
	// added for the item.
	Unless []string `yaml:"unless,omitempty"`
}

// The values of Config.Overlap. An empty value is OverlapSkip.
const (
	OverlapSkip   = "skip"
	OverlapBuffer = "buffer-one"
	OverlapCancel = "cancel-other"
)

// UnmarshalYAML reads a definition. Settings that are missing in the YAML get their defaults.
func (c *Config) UnmarshalYAML(unmarshal func(any) error) error {
	type plain Config
	p := plain{Parallel: 8, Deadline: 24 * time.Hour}
	err := unmarshal(&p)
	*c = Config(p)
	return err
}

// maxParallel is the maximum of Config.Parallel.
const maxParallel = 1000

// Check returns all errors in the settings. `facets` are the facets of the source.
func (c Config) Check(facets map[string]source.Facet) error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	roots := 0
	for _, name := range slices.Sorted(maps.Keys(c.Steps)) {
		if _, known := facets[name]; !known {
			fail("steps.%s: unknown facet; the source has %s", name, strings.Join(slices.Sorted(maps.Keys(facets)), ", "))
		}
		if c.Steps[name].Each == "" {
			roots++
		}
		if err := c.checkStep(name, facets); err != nil {
			fail("steps.%s.%w", name, err)
		}
	}
	switch {
	case len(c.Steps) == 0:
		fail("steps: is empty; write a facet, as in steps: {user: {}}")
	case roots == 0:
		fail("steps: each step has the setting each; remove it from the step that a run begins with")
	}
	if c.Parallel < 1 || c.Parallel > maxParallel {
		fail("parallel: %d must be from 1 to %d", c.Parallel, maxParallel)
	}
	if !slices.Contains([]string{"", OverlapSkip, OverlapBuffer, OverlapCancel}, c.Overlap) {
		fail("overlap: %q must be %s, %s or %s", c.Overlap, OverlapSkip, OverlapBuffer, OverlapCancel)
	}
	if c.Deadline < time.Minute {
		fail("deadline: %v must be at least 1m", c.Deadline)
	}
	if c.Every != 0 && c.Every < time.Minute {
		fail("every: %v must be at least 1m, or 0s for no scheduled run", c.Every)
	}
	return errors.Join(errs...)
}

func (c Config) checkStep(name string, facets map[string]source.Facet) error {
	s := c.Steps[name]
	if s.Each == "" {
		if s.Key != "" || len(s.Unless) > 0 {
			return errors.New("each: is missing; key and unless need the step whose items they read")
		}
		return nil
	}
	switch parent, known := c.Steps[s.Each]; {
	case !known:
		return fmt.Errorf("each: the run has no step %q; it has %s", s.Each, strings.Join(slices.Sorted(maps.Keys(c.Steps)), ", "))
	case parent.Each != "":
		return fmt.Errorf("each: the step %s has the setting `each` itself, so it is added by items and cannot be named here; name a step without `each`", s.Each)
	case facets[s.Each].Collection == nil:
		return fmt.Errorf("each: the facet %s is no collection, so it has no items; give it the setting collection", s.Each)
	}
	if _, err := parseTemplate(s.Key); err != nil {
		return fmt.Errorf("key: %w", err)
	}
	if slices.Contains(s.Unless, "") {
		return errors.New("unless: has an empty path; write the path of a member, such as fork")
	}
	return nil
}

// Definition is the copy of a Config that is stored with a run. So a change of the configuration does
// not affect runs that have started before.
type Definition struct {
	Steps    []StepDefinition `json:"steps"` // the steps, sorted by their facets
	Tolerate float64          `json:"tolerate"`
	Parallel int              `json:"parallel"`
	Deadline time.Duration    `json:"deadline"`
}

// StepDefinition is the copy of a StepConfig that is stored with a run.
type StepDefinition struct {
	Facet  string   `json:"facet"`
	Each   string   `json:"each,omitempty"`
	Key    string   `json:"key,omitempty"`
	Unless []string `json:"unless,omitempty"`
}

// Definition returns the copy of the configuration that is stored with a run.
func (c Config) Definition() Definition {
	d := Definition{Tolerate: float64(c.Tolerate), Parallel: c.Parallel, Deadline: c.Deadline}
	for _, facet := range slices.Sorted(maps.Keys(c.Steps)) {
		s := c.Steps[facet]
		d.Steps = append(d.Steps, StepDefinition{Facet: facet, Each: s.Each, Key: s.Key, Unless: s.Unless})
	}
	return d
}

// roots returns the facets that have a step for each key of the run.
func (d Definition) roots() (facets []string) {
	for _, s := range d.Steps {
		if s.Each == "" {
			facets = append(facets, s.Facet)
		}
	}
	return facets
}

// childrenOf returns the definitions of the steps that are added for each item of the collection facet.
func (d Definition) childrenOf(facet string) (children []StepDefinition) {
	for _, s := range d.Steps {
		if s.Each == facet {
			children = append(children, s)
		}
	}
	return children
}

// failed reports whether a run with this number of failed steps has failed. If all its steps have
// failed, the run has failed whatever Tolerate is.
func (d Definition) failed(failed, total int) bool {
	return failed > 0 && (failed == total || float64(failed) > d.Tolerate*float64(total))
}

// Percent is a share, written as a percentage such as 10%.
type Percent float64

// UnmarshalYAML reads a percentage.
func (p *Percent) UnmarshalYAML(unmarshal func(any) error) error {
	var text string
	if err := unmarshal(&text); err != nil {
		return err
	}
	number, found := strings.CutSuffix(text, "%")
	value, err := strconv.ParseFloat(number, 64)
	if !found || err != nil || !(value >= 0 && value <= 100) {
		return fmt.Errorf("%q must be a percentage from 0%% to 100%%, such as 10%%", text)
	}
	*p = Percent(value / 100)
	return nil
}

// MarshalYAML writes the form that UnmarshalYAML reads.
func (p Percent) MarshalYAML() (any, error) {
	return strconv.FormatFloat(float64(p)*100, 'f', -1, 64) + "%", nil
}

// Keys selects the keys of a run. Exactly one field is set. All selects each registered key.
type Keys struct {
	List   []string
	Prefix string
	All    bool
}

// MaxKeys is the maximum number of keys in a request that starts a run. MaxRegistered is the maximum
// number of registered keys that a run can have if it was started with a prefix.
const (
	MaxKeys       = 10_000
	MaxRegistered = 100_000
)

// check returns the keys sorted and without duplicates. It fails if a key is invalid for a facet that
// has a step for each key of the run.
func (k Keys) check(d Definition, s *source.Source) (Keys, error) {
	set := 0
	for _, is := range []bool{len(k.List) > 0, k.Prefix != "", k.All} {
		if is {
			set++
		}
	}
	switch {
	case set != 1:
		return k, fmt.Errorf("%w: write either keys or prefix", ErrInvalid)
	case len(k.List) > MaxKeys:
		return k, fmt.Errorf("%w: %d keys; at most %d are allowed; start several runs, or register the entities and write their prefix", ErrInvalid, len(k.List), MaxKeys)
	case len(k.Prefix) > schemas.MaxKeyBytes:
		return k, fmt.Errorf("%w: the prefix has %d bytes; at most %d are allowed", ErrInvalid, len(k.Prefix), schemas.MaxKeyBytes)
	}
	for _, key := range k.List {
		for _, facet := range d.roots() {
			f, _ := s.Facet(facet)
			if err := s.CheckKey(facet, f.FoldKey(key)); err != nil {
				return k, fmt.Errorf("%w: key %q of facet %s: %w", ErrInvalid, key, facet, err)
			}
		}
	}
	k.List = slices.Compact(slices.Sorted(slices.Values(k.List)))
	return k, nil
}
