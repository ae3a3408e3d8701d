package limiter

import (
	"slices"
	"strings"
	"time"
)

// ScopeView is the state of one policy, or of one scope breaker, for one value of its scope.
type ScopeView struct {
	Policy string `json:"policy"`
	Scope  string `json:"scope"`
	// Remaining is the number of units that can be used now. Nil means unknown, for example because
	// no response has reported it yet. InFlight is the number of units of calls that have not ended.
	Remaining *int64 `json:"remaining,omitempty"`
	InFlight  int64  `json:"inFlight"`
	// Until is when more units are available, or when an open breaker is probed.
	Until       *time.Time `json:"until,omitempty"`
	BreakerOpen bool       `json:"breakerOpen,omitempty"`
	At          time.Time  `json:"at"`
}

func sortScopes(all []ScopeView) {
	slices.SortFunc(all, func(a, b ScopeView) int {
		if c := strings.Compare(a.Policy, b.Policy); c != 0 {
			return c
		}
		return strings.Compare(a.Scope, b.Scope)
	})
}

// mergeScopes returns the newest state of each bucket from all reports.
func mergeScopes(processes []ProcessView) []ScopeView {
	newest := map[[2]string]ScopeView{}
	for _, p := range processes {
		for _, s := range p.Scopes {
			if id := [2]string{s.Policy, s.Scope}; s.At.After(newest[id].At) {
				newest[id] = s
			}
		}
	}
	all := make([]ScopeView, 0, len(newest))
	for _, s := range newest {
		all = append(all, s)
	}
	sortScopes(all)
	return all
}
