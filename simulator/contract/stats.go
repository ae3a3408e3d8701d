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

// Stats describe the calls since the start or the last reset.
type Stats struct {
	Arrivals int `json:"arrivals"` // number of calls, including refused calls
	Refused  int `json:"refused"`  // number of calls refused by a policy, not by a switch
	// Refusals counts refused calls by the first exceeded policy.
	Refusals map[string]int `json:"refusals"`
	// Policies has an entry for every policy and scope that was charged.
	Policies    []PolicyStats `json:"policies"`
	MaxInFlight int           `json:"maxInFlight"`
	// Violations describes the first 20 refusals.
	Violations []string  `json:"violations"`
	First      time.Time `json:"first,omitzero"` // time of the first call by the real clock
	Last       time.Time `json:"last,omitzero"`
}

// PolicyStats describes the use of one policy by one scope.
type PolicyStats struct {
	Name   string `json:"name"`
	Scope  string `json:"scope"`
	Unit   string `json:"unit"`
	Limit  int    `json:"limit"`
	Window string `json:"window"` // length of the policy's window, after applying Options.Speed
	// Used is the number of units of accepted calls. For a concurrency limit it is in
	// unit-seconds: units times seconds in flight.
	Used float64 `json:"used"`
	// Budget is the maximum of Used that a perfect client could have reached between the first
	// call and the last: the limit of every window that began in this time, or a full bucket plus the
	// restored units.
	Budget float64 `json:"budget"`
	// MaxInWindow is the maximum number of units that arrived in one window, including refused
	// calls. For a bucket it counts the taken units minus the restored units, for a concurrency
	// limit the calls in flight. It exceeds Limit only if calls were refused.
	MaxInWindow float64 `json:"maxInWindow"`
}

// Stats returns the response of GET /_stats.
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

// roundUnits removes rounding errors of sums.
func roundUnits(units float64) float64 { return math.Round(units*1e6) / 1e6 }

// reset clears the statistics. Quotas stay as they are.
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

// serveOperator answers the endpoints that are not part of the API.
func (u *Upstream) serveOperator(w http.ResponseWriter, r *http.Request) {
	switch r.Method + " " + r.URL.Path {
	case "GET /_stats":
		w.Header().Set("Content-Type", "application/json")
		out := json.NewEncoder(w)
		out.SetIndent("", "  ")
		_ = out.Encode(u.Stats()) // fails only if the client has disconnected
	case "POST /_reset":
		u.reset()
		w.WriteHeader(http.StatusNoContent)
	default:
		http.Error(w, "unknown endpoint; use GET /_stats or POST /_reset", http.StatusNotFound)
	}
}
