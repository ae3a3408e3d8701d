package app

import (
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/status"
)

// explainQuota prints the effect of each quota policy, and the maximum calls of each lane under
// all policies.
func explainQuota(to io.Writer, s SourceConfig, quota limiter.Quota) {
	bounds := map[string]limiter.PolicyBound{}
	for _, b := range quota.Bounds() {
		bounds[b.Name] = b
	}
	for _, p := range s.Quota.Policies {
		fmt.Fprintf(to, "  quota   %s: %s\n", p.Name, formatPolicy(p, bounds[p.Name]))
	}
	for _, name := range slices.Sorted(maps.Keys(s.quota().Breakers)) {
		fmt.Fprintf(to, "  breaker %s: a rejected one has its own circuit breaker\n", name)
	}
	for _, lane := range []schemas.Lane{schemas.High, schemas.Low} {
		fmt.Fprintf(to, "  %-6s  at most %s a second, %s a minute, %s an hour, %s a day\n", lane,
			formatMaxCalls(quota, lane, time.Second), formatMaxCalls(quota, lane, time.Minute), formatMaxCalls(quota, lane, time.Hour), formatMaxCalls(quota, lane, 24*time.Hour))
	}
	fmt.Fprintf(to, "          after Redis loses its data, no calls for %v\n", quota.Quiet().Round(time.Millisecond))
}

func formatMaxCalls(q limiter.Quota, lane schemas.Lane, within time.Duration) string {
	n := q.MaxCalls(lane, within)
	if math.IsInf(n, 1) {
		return "any number"
	}
	return status.FormatInt(int64(n))
}

// formatPolicy describes the effect of one policy.
func formatPolicy(p limiter.Policy, b limiter.PolicyBound) string {
	units := "calls"
	if p.Unit != "" {
		units = p.Unit
	}
	var text string
	switch {
	case p.MinInterval != nil && p.MinInterval.Max > p.MinInterval.Min:
		text = fmt.Sprintf("calls are %v to %v apart", p.MinInterval.Min, p.MinInterval.Max)
	case p.MinInterval != nil:
		text = fmt.Sprintf("calls are %v apart", p.MinInterval.Min)
	case p.Window == limiter.InFlight:
		text = status.FormatInt(p.Limit) + " in flight, of all processes together"
	case p.Restore > 0:
		text = fmt.Sprintf("%s %s at once, and %s a second", status.FormatInt(p.Limit), units, formatCalls(float64(p.Restore)))
	case len(p.CountedStatuses) > 0:
		text = fmt.Sprintf("%s responses with status %s in %v", status.FormatInt(p.Limit), formatStatuses(p.CountedStatuses), p.Window)
	case p.Reported:
		text = fmt.Sprintf("%s %s in %v, or the limit that responses report", status.FormatInt(p.Limit), units, p.Window)
	case p.Unit != "" || p.Scope != "":
		text = fmt.Sprintf("%s %s in %v; up to %s are used", status.FormatInt(p.Limit), units, p.Window, formatCalls(b.PerWindow))
	default:
		text = fmt.Sprintf("%d in %v; up to %s are used, %s of them reserved for HIGH; at most %d can arrive",
			b.Limit, b.Window, formatCalls(b.PerWindow), formatCalls(b.PerWindow-b.Low), b.Max)
	}
	if scopes := limiter.Placeholders(p.Scope); len(scopes) > 0 {
		text += ", for each " + strings.Join(scopes, " and ")
	}
	if len(p.Match.Methods)+len(p.Match.Endpoints) > 0 {
		text += ", of " + strings.Join(append(slices.Clone(p.Match.Methods), p.Match.Endpoints...), ", ")
	}
	if len(p.Costs) > 0 {
		var costs []string
		for _, of := range slices.Sorted(maps.Keys(p.Costs)) {
			costs = append(costs, fmt.Sprintf("%s %d", of, p.Costs[of]))
		}
		text += "; " + strings.Join(costs, ", ")
	}
	if len(p.FreeStatuses) > 0 {
		text += "; responses with status " + formatStatuses(p.FreeStatuses) + " are free"
	}
	if !p.HighReserve.IsZero() && (p.Unit != "" || p.Scope != "" || p.Reported || p.Restore > 0) {
		text += fmt.Sprintf("; %v reserved for HIGH", p.HighReserve)
	}
	return text
}

func formatStatuses(all []int) string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(all), " ", ", "), "[]")
}
