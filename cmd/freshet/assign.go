package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/settings"
)

const noCeilings = "none"

// patchOf reads assignments as in second.target=400 or lowCeilings=19-23:150/s,250/s.
// An empty value returns a setting to what is configured.
func patchOf(assignments []string) (settings.Patch, error) {
	var patch settings.Patch
	policies := map[string]settings.PolicyPatch{}
	seen := map[string]bool{}
	for _, a := range assignments {
		name, value, found := strings.Cut(a, "=")
		if !found {
			return patch, fmt.Errorf("%q sets nothing; write it as in second.target=400", a)
		}
		if seen[name] {
			return patch, fmt.Errorf("%s is given twice", name)
		}
		seen[name] = true
		policy, limit, _ := strings.Cut(name, ".")
		change := policies[policy]
		var err error
		switch limit {
		case "limit":
			change.Limit, err = member(value, whole)
		case "target":
			change.Target, err = member(value, whole)
		case "highReserve":
			change.HighReserve, err = member(value, limiter.ParseReserve)
		case "lowReserve":
			change.LowReserve, err = member(value, whole)
		default:
			if name != "lowCeilings" {
				return patch, fmt.Errorf("there is no setting %q; for each policy there are limit, target, highReserve and lowReserve, as in second.target, and for the source lowCeilings", name)
			}
			patch.LowCeilings, err = member(value, parseCeilings)
		}
		if err != nil {
			return patch, fmt.Errorf("%s: %w", name, err)
		}
		if name != "lowCeilings" {
			policies[policy] = change
		}
	}
	if len(policies) > 0 {
		changes := map[string]settings.Member[settings.PolicyPatch]{}
		for name, change := range policies {
			changes[name] = settings.Set(change)
		}
		patch.Policies = settings.Set(changes)
	}
	return patch, nil
}

func member[T any](value string, parse func(string) (T, error)) (settings.Member[T], error) {
	if value == "" {
		return settings.Configured[T](), nil
	}
	v, err := parse(value)
	return settings.Set(v), err
}

func whole(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0, fmt.Errorf("%q must be a whole number", text)
	}
	return n, nil
}

// parseCeilings reads a list of rates, each for all hours or for some.
func parseCeilings(text string) (settings.Ceilings, error) {
	all := settings.Ceilings{}
	if text == noCeilings {
		return all, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		var c limiter.Ceiling
		rate := part
		if hours, after, found := strings.Cut(part, ":"); found {
			from, to, _ := strings.Cut(hours, "-")
			var wrong [2]error
			c.From, wrong[0] = strconv.Atoi(from)
			c.To, wrong[1] = strconv.Atoi(to)
			if wrong[0] != nil || wrong[1] != nil {
				return nil, fmt.Errorf("%q must be full hours, as in 19-23:150/s", part)
			}
			rate = after
		}
		var err error
		if c.Rate, err = limiter.ParseRate(rate); err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return all, nil
}
