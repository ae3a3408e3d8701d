package settings

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// Prefetch has the prefetch settings of a source. Facets has the facets that the configuration
// prefetches.
type Prefetch struct {
	Enabled bool                     `json:"enabled"`
	Facets  map[string]PrefetchFacet `json:"facets"`
}

// PrefetchFacet is how one facet is prefetched: the intervals of the tiers and the bounds of
// the adaptive interval, and which entities are active.
type PrefetchFacet struct {
	Mode        string   `json:"mode"` // tiers or adaptive
	Hot         Duration `json:"hot"`
	Warm        Duration `json:"warm"`
	Cold        Duration `json:"cold"`
	MinInterval Duration `json:"minInterval"`
	MaxInterval Duration `json:"maxInterval"`
	Active      Active   `json:"active"`
}

// Active says which entities are prefetched, as scheduler.Active does.
type Active struct {
	Status Status   `json:"status,omitzero"`
	Unless []string `json:"unless,omitempty"`
	Params []string `json:"params,omitempty"`
}

// Status is a word of the content that says whether an entity is active.
type Status struct {
	Path  string   `json:"path,omitempty"`
	Allow []string `json:"allow,omitempty"`
	Block []string `json:"block,omitempty"`
}

// IsZero reports whether there is no status.
func (s Status) IsZero() bool { return s.Path == "" && len(s.Allow)+len(s.Block) == 0 }

// String is the rule as JSON; {} has every entity prefetched.
func (a Active) String() string {
	text, err := json.Marshal(a)
	if err != nil {
		panic(err) // it is of strings
	}
	return string(text)
}

// ParseActive reads what String writes.
func ParseActive(text string) (a Active, err error) {
	if !isObject([]byte(text)) {
		return a, fmt.Errorf(`%.80q must be an object, as in {"status":{"path":"case.status","block":["closed"]}}, or {} for every entity`, text)
	}
	if err := decode([]byte(text), &a); err != nil {
		return a, fmt.Errorf("%w; there are status.path, status.allow, status.block, unless and params", err)
	}
	return a, nil
}

// Duration is a duration whose text form is as in 90m, 1h30m or 24h.
type Duration time.Duration

// ParseDuration reads the text form.
func ParseDuration(text string) (Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, fmt.Errorf("%.40q must be a duration as in 90m, 6h or 168h", text)
	}
	return Duration(d), nil
}

func (d Duration) String() string {
	text := time.Duration(d).String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// MarshalText writes the text form.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads the text form.
func (d *Duration) UnmarshalText(text []byte) (err error) {
	*d, err = ParseDuration(string(text))
	return err
}

// PrefetchOverride has the changed prefetch settings of a source. A nil member is as configured.
type PrefetchOverride struct {
	Enabled *bool                    `json:"enabled,omitempty"`
	Facets  map[string]FacetOverride `json:"facets,omitempty"`
}

// FacetOverride changes how one facet is prefetched.
type FacetOverride struct {
	Hot         *Duration `json:"hot,omitempty"`
	Warm        *Duration `json:"warm,omitempty"`
	Cold        *Duration `json:"cold,omitempty"`
	MinInterval *Duration `json:"minInterval,omitempty"`
	MaxInterval *Duration `json:"maxInterval,omitempty"`
	Active      *Active   `json:"active,omitempty"`
}

// PrefetchPatch changes how a source's entities are prefetched.
type PrefetchPatch struct {
	Enabled Member[bool]                          `json:"enabled,omitzero"`
	Facets  Member[map[string]Member[FacetPatch]] `json:"facets,omitzero"`
}

// FacetPatch changes how one facet is prefetched.
type FacetPatch struct {
	Hot         Member[Duration] `json:"hot,omitzero"`
	Warm        Member[Duration] `json:"warm,omitzero"`
	Cold        Member[Duration] `json:"cold,omitzero"`
	MinInterval Member[Duration] `json:"minInterval,omitzero"`
	MaxInterval Member[Duration] `json:"maxInterval,omitzero"`
	Active      Member[Active]   `json:"active,omitzero"`
}

func (p FacetPatch) onto(o FacetOverride) FacetOverride {
	p.Hot.onto(&o.Hot)
	p.Warm.onto(&o.Warm)
	p.Cold.onto(&o.Cold)
	p.MinInterval.onto(&o.MinInterval)
	p.MaxInterval.onto(&o.MaxInterval)
	p.Active.onto(&o.Active)
	return o
}

// applyPrefetch changes what was changed before; an override that says nothing is nil.
func applyPrefetch(m Member[PrefetchPatch], to **PrefetchOverride) {
	if !m.given {
		return
	}
	if m.value == nil {
		*to = nil
		return
	}
	var o PrefetchOverride
	if *to != nil {
		o = **to
	}
	m.value.Enabled.onto(&o.Enabled)
	switch facets := m.value.Facets; {
	case !facets.given:
	case facets.value == nil:
		o.Facets = nil
	default:
		if o.Facets == nil {
			o.Facets = map[string]FacetOverride{}
		}
		for name, change := range *facets.value {
			var of FacetOverride // as it is configured, if change is null
			if change.value != nil {
				of = change.value.onto(o.Facets[name])
			}
			if o.Facets[name] = of; of == (FacetOverride{}) {
				delete(o.Facets, name) // nothing of it is changed any more
			}
		}
	}
	if *to = &o; o.Enabled == nil && len(o.Facets) == 0 {
		*to = nil
	}
}
