package settings

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"

	"github.com/freshet/freshet/limiter"
)

// Patch is a change of a source's settings. As JSON it is a merge patch (RFC 7396): a member
// that is not there stays as it is, and null returns it to what is configured.
type Patch struct {
	Policies    Member[map[string]Member[PolicyPatch]] `json:"policies,omitzero"`
	LowRateCaps Member[RateCaps]                       `json:"lowRateCaps,omitzero"`
	Prefetch    Member[PrefetchPatch]                  `json:"prefetch,omitzero"`
}

// PolicyPatch changes one policy.
type PolicyPatch struct {
	Limit       Member[int]             `json:"limit,omitzero"`
	Target      Member[int]             `json:"target,omitzero"`
	HighReserve Member[limiter.Reserve] `json:"highReserve,omitzero"`
	LowReserve  Member[int]             `json:"lowReserve,omitzero"`
}

// Member is a member of a patch; the zero value leaves what it stands for alone.
type Member[T any] struct {
	given bool
	value *T // nil: as it is configured
}

// Set returns a member that sets a value.
func Set[T any](value T) Member[T] { return Member[T]{true, &value} }

// Reset returns a member that returns a value to what is configured.
func Reset[T any]() Member[T] { return Member[T]{given: true} }

func (m Member[T]) onto(to **T) {
	if m.given {
		*to = m.value
	}
}

// MarshalJSON writes the value or null. A member that is not given is left out
// by its omitzero tag.
func (m Member[T]) MarshalJSON() ([]byte, error) { return json.Marshal(m.value) }

// UnmarshalJSON reads a value or null.
func (m *Member[T]) UnmarshalJSON(text []byte) error {
	*m = Reset[T]()
	if string(text) == "null" {
		return nil
	}
	m.value = new(T)
	return decode(text, m.value)
}

// RateCaps are the whole list; an empty one lifts every rate cap.
type RateCaps []limiter.RateCap

// UnmarshalJSON reads a list in which every rate cap has its rate: without one it
// would keep LOW from calling at all.
func (c *RateCaps) UnmarshalJSON(text []byte) error {
	var list []struct {
		From, To int
		Rate     *limiter.Rate
	}
	if err := decode(text, &list); err != nil {
		return err
	}
	*c = RateCaps{}
	for i, given := range list {
		if given.Rate == nil {
			return fmt.Errorf(`lowRateCaps[%d] has no rate; write one as in {"from":19,"to":23,"rate":"150/s"}`, i)
		}
		*c = append(*c, limiter.RateCap{From: given.From, To: given.To, Rate: *given.Rate})
	}
	return nil
}

func (p Patch) apply(o *Override) {
	applyPrefetch(p.Prefetch, &o.Prefetch)
	if p.LowRateCaps.given {
		o.LowRateCaps = (*[]limiter.RateCap)(p.LowRateCaps.value)
	}
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
			change.value.Limit.onto(&policy.Limit)
			change.value.Target.onto(&policy.Target)
			change.value.HighReserve.onto(&policy.HighReserve)
			change.value.LowReserve.onto(&policy.LowReserve)
		}
		o.Policies[name] = policy
		if policy == (limiter.PolicyOverride{}) {
			delete(o.Policies, name) // nothing of it is changed any more
		}
	}
}

// decode reads one JSON value and refuses what it does not know.
func decode(text []byte, to any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	err := d.Decode(to)
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Errorf("%s given where %s belongs", wrong.Value, describeType(wrong.Type))
	}
	if err != nil {
		return errors.New(strings.TrimPrefix(err.Error(), "json: "))
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the JSON value")
	}
	return nil
}

func describeType(t reflect.Type) string {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t.Kind() {
	case reflect.Int:
		return "a whole number"
	case reflect.Slice:
		return "a list"
	case reflect.Bool:
		return "true or false"
	case reflect.Int64:
		return "a duration as in \"6h\""
	case reflect.Float64:
		return "a rate as in \"25/s\""
	case reflect.String:
		return "text"
	default:
		return "an object"
	}
}
