package limiter

import (
	"encoding/json"
	"fmt"
)

// kind is the kind of a policy in the scripts limiter_acquire and limiter_buckets. The constants are the
// kinds of scoped policies.
type kind string

const (
	unitLogKind     kind = "unitLog"
	leakyBucketKind kind = "leakyBucket"
	minIntervalKind kind = "minInterval"
	reportedKind    kind = "reported"
	concurrencyKind kind = "concurrency"
	breakerKind     kind = "breaker"
)

// quotaTerms is the quota in the form that limiter_acquire takes. Horizon and Quiet are in µs.
type quotaTerms struct {
	Revision int64         `json:"revision"`
	Stopped  bool          `json:"stopped"`
	Horizon  int64         `json:"horizon"`
	Quiet    int64         `json:"quiet"`
	Policies []policyTerms `json:"policies"`
}

// policyTerms are the numbers of one policy. Times are in µs, unless a name ends with Ns.
type policyTerms interface{ head() policyHead }

// policyHead is the kind of a policy and the id by which the script recognises the policy after a change
// of the quota. A policy with a new id begins as if it were used up.
type policyHead struct {
	Kind kind   `json:"kind"`
	ID   string `json:"id"`
}

func (h policyHead) head() policyHead { return h }

func newPolicyHead(k kind, of any) policyHead { return policyHead{k, fmt.Sprintf("%s %v", k, of)} }

// partitionsTerms are the intervals T and the bursts B of a window's GCRA partitions. T is 0 if there is
// no such partition.
type partitionsTerms struct {
	policyHead
	Window  int64 `json:"window"`
	HighT   int64 `json:"highT"`
	HighB   int64 `json:"highB"`
	SharedT int64 `json:"sharedT"`
	SharedB int64 `json:"sharedB"`
	LowT    int64 `json:"lowT"`
	LowB    int64 `json:"lowB"`
}

// windowLogTerms are the numbers of a sliding-window log of calls: the maximum number of calls in it
// after a call of HIGH, and after a call of LOW. 0 means that the log does not count the lane.
type windowLogTerms struct {
	policyHead
	Reach    int64 `json:"reach"`
	Slots    int64 `json:"slots"`
	LowSlots int64 `json:"lowSlots"`
}

// dayTerms are the calls of a calendar day. Reserve is in millionths of a call per second.
type dayTerms struct {
	policyHead
	Calls   int64 `json:"calls"`
	Reserve int64 `json:"reserve"`
}

// unitLogTerms are the numbers of a sliding-window log of units.
type unitLogTerms struct {
	policyHead
	Reach     int64 `json:"reach"`
	Units     int64 `json:"units"`
	LowUnits  int64 `json:"lowUnits"`
	Grain     int64 `json:"grain"`     // times of slots are rounded up to a multiple of it
	PaceNs    int64 `json:"paceNs"`    // time per unit; 0 means no pace
	Burst     int64 `json:"burst"`     // burst of the pace, in units
	HighBurst int64 `json:"highBurst"` // part of the burst that only HIGH can use
	AtOnce    int64 `json:"atOnce"`    // units that could have been used at once before a loss of state
}

// leakyBucketTerms are the numbers of a policy that restores units, and of an error budget.
type leakyBucketTerms struct {
	policyHead
	UnitNs   int64 `json:"unitNs"` // time in which one unit is restored
	Size     int64 `json:"size"`
	ForHigh  int64 `json:"forHigh"`
	Reported int64 `json:"reported"` // 1 if responses report the level, else 0
	KeepFor  int64 `json:"keepFor"`  // how long the bucket is kept after its last use
}

// minIntervalTerms are the limits of the time between two slots.
type minIntervalTerms struct {
	policyHead
	MinGap int64 `json:"minGap"`
	MaxGap int64 `json:"maxGap"`
}

// reportedTerms are the numbers of a limit whose remaining units the upstream reports.
type reportedTerms struct {
	policyHead
	Units   int64 `json:"units"`
	Window  int64 `json:"window"`
	ForHigh int64 `json:"forHigh"`
	Paced   int64 `json:"paced"` // 1 if LOW is paced, else 0
	Lease   int64 `json:"lease"`
}

// concurrencyTerms are the maximum numbers of calls in flight.
type concurrencyTerms struct {
	policyHead
	Slots    int64 `json:"slots"`
	LowSlots int64 `json:"lowSlots"`
	Lease    int64 `json:"lease"`
}

// breakerTerms stand for a scope with a circuit breaker of its own.
type breakerTerms struct{ policyHead }

func boolNumber(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// encode returns the quota as argument of limiter_acquire.
func (q Quota) encode(revision int64, stopped bool) string {
	t := quotaTerms{Revision: revision, Stopped: stopped, Horizon: horizon.Microseconds(), Quiet: q.quiet().Microseconds()}
	for _, p := range q.named() {
		t.Policies = append(t.Policies, p.terms)
	}
	return encodeJSON(t)
}

// encodeJSON encodes an argument of limiter_acquire, which contains only numbers and texts.
func encodeJSON(argument any) string {
	text, err := json.Marshal(argument)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// namedTerms are the terms that the script gets for a policy, and the policy's name.
type namedTerms struct {
	name  string
	terms policyTerms
}

// named returns the terms of all policies, in the order in which the script numbers them.
func (q Quota) named() (all []namedTerms) {
	for _, l := range q.partitioned {
		all = append(all, namedTerms{l.policy.Name, l.terms()})
	}
	for _, r := range q.windowLogs {
		for _, t := range r.terms() {
			all = append(all, namedTerms{r.policy.Name, t})
		}
	}
	if q.day != nil {
		all = append(all, namedTerms{q.day.policy.Name, dayTerms{newPolicyHead("day", ""), int64(q.day.policy.Limit), int64(q.day.reserve * 1e6)}})
	}
	for _, s := range q.scoped {
		all = append(all, namedTerms{s.policy.Name, s.terms})
	}
	return all
}
