package settings

import (
	"encoding/json"

	"github.com/freshet/freshet/admin"
	"github.com/freshet/freshet/limiter"
)

// Patch is a change of one source's settings. Its JSON form is a merge patch (RFC 7396): a
// missing member stays unchanged, and null resets a member to its configured value.
type Patch struct {
	Policies Member[map[string]Member[PolicyPatch]] `json:"policies,omitzero"`
	Prefetch Member[PrefetchPatch]                  `json:"prefetch,omitzero"`
}

// PatchRequest is the body of a request that changes settings: a patch, and the reason for the
// audit.
type PatchRequest struct {
	Patch
	Note string `json:"note,omitempty"`
}

// PolicyPatch is a change of one quota policy.
type PolicyPatch struct {
	Limit       Member[int]             `json:"limit,omitzero"`
	Target      Member[int]             `json:"target,omitzero"`
	HighReserve Member[limiter.Reserve] `json:"highReserve,omitzero"`
	LowReserve  Member[int]             `json:"lowReserve,omitzero"`
}

// Member is one member of a patch. The zero value leaves the setting unchanged.
type Member[T any] struct {
	given bool
	value *T // the new value; nil: reset to the configured value
}

// Set returns a Member that sets a value.
func Set[T any](value T) Member[T] { return Member[T]{true, &value} }

// Reset returns a Member that resets a setting to its configured value.
func Reset[T any]() Member[T] { return Member[T]{given: true} }

// applyTo writes the member's value to one field of an override. A reset writes nil, which stands
// for the configured value.
func (m Member[T]) applyTo(to **T) {
	if m.given {
		*to = m.value
	}
}

// MarshalJSON writes the value, or null for a reset. An unchanged setting is left out of the JSON
// by the omitzero tag of its field.
func (m Member[T]) MarshalJSON() ([]byte, error) { return json.Marshal(m.value) }

// UnmarshalJSON reads a value, or null, which resets the setting.
func (m *Member[T]) UnmarshalJSON(text []byte) error {
	*m = Reset[T]()
	if string(text) == "null" {
		return nil
	}
	m.value = new(T)
	return admin.Decode(text, m.value)
}

func (p Patch) apply(o *Override) {
	applyPrefetch(p.Prefetch, &o.Prefetch)
	switch {
	case !p.Policies.given:
		return
	case p.Policies.value == nil:
		o.Policies = nil
		return
	case o.Policies == nil:
		o.Policies = map[string]limiter.PolicyOverride{}
	}
	for name, change := range *p.Policies.value {
		policy := o.Policies[name]
		if change.value == nil {
			policy = limiter.PolicyOverride{}
		} else {
			change.value.Limit.applyTo(&policy.Limit)
			change.value.Target.applyTo(&policy.Target)
			change.value.HighReserve.applyTo(&policy.HighReserve)
			change.value.LowReserve.applyTo(&policy.LowReserve)
		}
		o.Policies[name] = policy
		if policy == (limiter.PolicyOverride{}) {
			delete(o.Policies, name) // no setting of this policy is changed any more, so the override must not contain the policy
		}
	}
}
