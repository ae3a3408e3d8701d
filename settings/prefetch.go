package settings

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/freshet/freshet/admin"
	"github.com/freshet/freshet/schemas"
)

// Prefetch holds the prefetch settings of one source. Facets holds the facets for which the
// configuration enables prefetching, by name.
type Prefetch struct {
	Enabled bool                     `json:"enabled"`
	Facets  map[string]PrefetchFacet `json:"facets"`
}

// PrefetchFacet holds the prefetch settings of one facet: the interval of each tier (mode tiers),
// the bounds of the adaptive interval (mode adaptive), and the rule that selects the entities to
// prefetch.
type PrefetchFacet struct {
	Mode        string   `json:"mode"` // prefetch mode of the facet: tiers or adaptive
	Hot         Duration `json:"hot"`
	Warm        Duration `json:"warm"`
	Cold        Duration `json:"cold"`
	MinInterval Duration `json:"minInterval"`
	MaxInterval Duration `json:"maxInterval"`
	Active      Active   `json:"active"`
}

// Active is the rule that selects the entities to prefetch; see scheduler.Active.
type Active struct {
	Status Status   `json:"status,omitzero"`
	Unless []string `json:"unless,omitempty"`
	Params []string `json:"params,omitempty"`
}

// Status decides by the text value at Path in an entity's content whether the entity is active.
// The value must be in Allow, if Allow is not empty, and must not be in Block. An entity without
// a value at Path is active.
type Status struct {
	Path  string   `json:"path,omitempty"`
	Allow []string `json:"allow,omitempty"`
	Block []string `json:"block,omitempty"`
}

// IsZero reports whether s is empty, which means that the rule does not depend on a status.
func (s Status) IsZero() bool { return s.Path == "" && len(s.Allow)+len(s.Block) == 0 }

// String returns the rule as JSON. {} means that every entity is prefetched.
func (a Active) String() string {
	text, err := json.Marshal(a)
	if err != nil {
		panic(err) // strings can always be encoded
	}
	return string(text)
}

// ParseActive parses a rule in JSON, the form that Active.String returns.
func ParseActive(text string) (a Active, err error) {
	if !admin.IsObject([]byte(text)) {
		return a, fmt.Errorf(`%.80q must be an object, as in {"status":{"path":"case.status","block":["closed"]}}, or {} for every entity`, text)
	}
	if err := admin.Decode([]byte(text), &a); err != nil {
		return a, fmt.Errorf("%w; the members are status.path, status.allow, status.block, unless and params", err)
	}
	return a, nil
}

// Duration is a time.Duration with a short text form, such as 90m, 1h30m or 24h.
type Duration time.Duration

// ParseDuration parses a duration in the form that time.ParseDuration accepts, such as 90m.
func ParseDuration(text string) (Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, fmt.Errorf("%.40q must be a duration as in 90m, 6h or 168h", text)
	}
	return Duration(d), nil
}

func (d Duration) String() string { return schemas.FormatDuration(time.Duration(d)) }

// MarshalText returns the duration in the short form of String, such as 90m.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText parses a duration like ParseDuration.
func (d *Duration) UnmarshalText(text []byte) (err error) {
	*d, err = ParseDuration(string(text))
	return err
}

// PrefetchOverride holds the changed prefetch settings of a source. A nil member means that the
// configured value applies.
type PrefetchOverride struct {
	Enabled *bool                    `json:"enabled,omitempty"`
	Facets  map[string]FacetOverride `json:"facets,omitempty"`
}

// FacetOverride holds the changed prefetch settings of one facet. A nil member means that the
// configured value applies.
type FacetOverride struct {
	Hot         *Duration `json:"hot,omitempty"`
	Warm        *Duration `json:"warm,omitempty"`
	Cold        *Duration `json:"cold,omitempty"`
	MinInterval *Duration `json:"minInterval,omitempty"`
	MaxInterval *Duration `json:"maxInterval,omitempty"`
	Active      *Active   `json:"active,omitempty"`
}

// PrefetchPatch is a change of a source's prefetch settings.
type PrefetchPatch struct {
	Enabled Member[bool]                          `json:"enabled,omitzero"`
	Facets  Member[map[string]Member[FacetPatch]] `json:"facets,omitzero"`
}

// FacetPatch is a change of one facet's prefetch settings.
type FacetPatch struct {
	Hot         Member[Duration] `json:"hot,omitzero"`
	Warm        Member[Duration] `json:"warm,omitzero"`
	Cold        Member[Duration] `json:"cold,omitzero"`
	MinInterval Member[Duration] `json:"minInterval,omitzero"`
	MaxInterval Member[Duration] `json:"maxInterval,omitzero"`
	Active      Member[Active]   `json:"active,omitzero"`
}

func (p FacetPatch) applyTo(o FacetOverride) FacetOverride {
	p.Hot.applyTo(&o.Hot)
	p.Warm.applyTo(&o.Warm)
	p.Cold.applyTo(&o.Cold)
	p.MinInterval.applyTo(&o.MinInterval)
	p.MaxInterval.applyTo(&o.MaxInterval)
	p.Active.applyTo(&o.Active)
	return o
}

// applyPrefetch applies a patch to an override. An override without members becomes nil.
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
	m.value.Enabled.applyTo(&o.Enabled)
	switch facets := m.value.Facets; {
	case !facets.given:
	case facets.value == nil:
		o.Facets = nil
	default:
		if o.Facets == nil {
			o.Facets = map[string]FacetOverride{}
		}
		for name, change := range *facets.value {
			var facet FacetOverride // override of the facet; it stays empty if the patch has null for the facet, which resets all settings of the facet
			if change.value != nil {
				facet = change.value.applyTo(o.Facets[name])
			}
			if o.Facets[name] = facet; facet == (FacetOverride{}) {
				delete(o.Facets, name) // no setting of this facet is changed any more, so the override must not contain the facet
			}
		}
	}
	if *to = &o; o.Enabled == nil && len(o.Facets) == 0 {
		*to = nil
	}
}
