package contract

import (
	"cmp"
	"encoding/json"
	"maps"
	"math"
	"net/http"
	"slices"
	"time"
)

// Stats are what an upstream saw since its start or the last reset.
type Stats struct {
	Arrivals int `json:"arrivals"` // refused ones included
	Refused  int `json:"refused"`  // by a policy; what a switch does to an accepted call is none
	// Refusals has the refused by the first policy that refused them.
	Refusals map[string]int `json:"refusals"`
	// Policies has an entry for every policy and scope that was charged.
	Policies    []PolicyStats `json:"policies"`
	MaxInFlight int           `json:"maxInFlight"`
	// Violations tell of the first 20 refusals.
	Violations []string  `json:"violations"`
	First      time.Time `json:"first,omitzero"` // arrival, by the true clock
	Last       time.Time `json:"last,omitzero"`
}

// PolicyStats are what a scope had and used of one policy.
type PolicyStats struct {
	Name   string `json:"name"`
	Scope  string `json:"scope"`
	Unit   string `json:"unit"`
	Limit  int    `json:"limit"`
	Window string `json:"window"` // as it is enforced
	// Used is what accepted calls took, in units; of a policy on calls in flight
	// in unit-seconds.
	Used float64 `json:"used"`
	// Budget is the most that a perfect client could have used between the first
	// arrival and the last, in the units of Used: whole windows, or a full bucket
	// and what was restored.
	Budget float64 `json:"budget"`
	// MaxInWindow is the greatest number of units that arrived in one window,
	// refused ones included; of a bucket, beyond what was restored meanwhile; of
	// calls in flight, at once. Above Limit only if calls were refused.
	MaxInWindow float64 `json:"maxInWindow"`
}

// Stats is what GET /_stats answers.
func (u *Upstream) Stats() Stats {
	u.mu.Lock()
	defer u.mu.Unlock()
	s := Stats{
		Arrivals: u.arrivals, Refusals: maps.Clone(u.refusals), Policies: []PolicyStats{}, MaxInFlight: u.maxInFlight,
		Violations: append([]string{}, u.violations...), First: u.first.Round(0), Last: u.last.Round(0),
	}
	for _, n := range u.refusals {
		s.Refused += n
	}
	for _, a := range u.accounts {
		if len(a.log) == 0 {
			continue
		}
		p, last := a.policy, u.last.Add(u.options.Skew)
		if end := a.log[len(a.log)-1].at; p.kind == concurrency && end.After(last) {
			last = end
		}
		s.Policies = append(s.Policies, PolicyStats{
			Name: p.name, Scope: a.scope, Unit: p.unit, Limit: int(p.limit), Window: p.span(),
			Used: roundUnits(a.used()), Budget: roundUnits(p.budget(u.first.Add(u.options.Skew), last)), MaxInWindow: roundUnits(a.maxInWindow(a.log)),
		})
	}
	slices.SortFunc(s.Policies, func(a, b PolicyStats) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Scope, b.Scope))
	})
	return s
}

// roundUnits rounds away what adding fractions leaves.
func roundUnits(units float64) float64 { return math.Round(units*1e6) / 1e6 }

// reset forgets the statistics. Quotas stay as they are.
func (u *Upstream) reset() {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, a := range u.accounts {
		a.resetLog(u.now())
	}
	clear(u.refusals)
	u.violations, u.arrivals, u.maxInFlight = nil, 0, u.inFlight
	u.first, u.last = time.Time{}, time.Time{}
}

// serveOperator answers the paths that are not the upstream's.
func (u *Upstream) serveOperator(w http.ResponseWriter, r *http.Request) {
	switch r.Method + " " + r.URL.Path {
	case "GET /_stats":
		w.Header().Set("Content-Type", "application/json")
		out := json.NewEncoder(w)
		out.SetIndent("", "  ")
		_ = out.Encode(u.Stats()) // fails only when the client has gone
	case "POST /_reset":
		u.reset()
		w.WriteHeader(http.StatusNoContent)
	default:
		http.Error(w, "there are only GET /_stats and POST /_reset", http.StatusNotFound)
	}
}
