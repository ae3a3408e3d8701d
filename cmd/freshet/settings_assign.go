package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/settings"
)

// prefetchSetting is the setting that enables prefetching of a source, and the first part of the
// names of its facets' prefetch settings.
const prefetchSetting = "prefetch"

// parseAssignments parses assignments such as second.target=400 and
// prefetch.character.hot=30m.
// An empty value resets a setting to its configured value.
func parseAssignments(assignments []string) (settings.Patch, error) {
	var patch settings.Patch
	policies := map[string]settings.PolicyPatch{}
	prefetch := prefetchAssignments{facets: map[string]settings.FacetPatch{}}
	seen := map[string]bool{}
	for _, a := range assignments {
		name, value, found := strings.Cut(a, "=")
		if !found {
			return patch, fmt.Errorf("%q has no =VALUE; write it as in second.target=400", a)
		}
		if seen[name] {
			return patch, fmt.Errorf("%s is set twice", name)
		}
		seen[name] = true
		if matched, err := prefetch.assign(name, value); matched {
			if err != nil {
				return patch, fmt.Errorf("%s: %w", name, err)
			}
			continue
		}
		policy, field, _ := strings.Cut(name, ".")
		change := policies[policy]
		var err error
		switch field {
		case "limit":
			change.Limit, err = parseMember(value, parseInt)
		case "target":
			change.Target, err = parseMember(value, parseInt)
		case "highReserve":
			change.HighReserve, err = parseMember(value, limiter.ParseReserve)
		case "lowReserve":
			change.LowReserve, err = parseMember(value, parseInt)
		default:
			return patch, fmt.Errorf("unknown setting %q; the settings are POLICY.limit, .target, .highReserve and .lowReserve, prefetch, and prefetch.FACET.hot, .warm, .cold, .minInterval, .maxInterval and .active", name)
		}
		if err != nil {
			return patch, fmt.Errorf("%s: %w", name, err)
		}
		policies[policy] = change
	}
	if len(policies) > 0 {
		changes := map[string]settings.Member[settings.PolicyPatch]{}
		for name, change := range policies {
			changes[name] = settings.Set(change)
		}
		patch.Policies = settings.Set(changes)
	}
	patch.Prefetch = prefetch.toPatch()
	return patch, nil
}

// prefetchAssignments collects the assignments to prefetch settings.
type prefetchAssignments struct {
	enabled settings.Member[bool]
	facets  map[string]settings.FacetPatch
	given   bool
}

// assign parses the assignment if its name is a prefetch setting. matched reports whether the name is
// a prefetch setting.
func (p *prefetchAssignments) assign(name, value string) (matched bool, err error) {
	if name == prefetchSetting {
		p.given = true
		p.enabled, err = parseMember(value, parseOnOff)
		return true, err
	}
	parts := strings.Split(name, ".")
	if len(parts) != 3 || parts[0] != prefetchSetting {
		return false, nil
	}
	change := p.facets[parts[1]]
	switch parts[2] {
	case "hot":
		change.Hot, err = parseMember(value, settings.ParseDuration)
	case "warm":
		change.Warm, err = parseMember(value, settings.ParseDuration)
	case "cold":
		change.Cold, err = parseMember(value, settings.ParseDuration)
	case "minInterval":
		change.MinInterval, err = parseMember(value, settings.ParseDuration)
	case "maxInterval":
		change.MaxInterval, err = parseMember(value, settings.ParseDuration)
	case "active":
		change.Active, err = parseMember(value, settings.ParseActive)
	default:
		return false, nil
	}
	p.given, p.facets[parts[1]] = true, change
	return true, err
}

// toPatch returns the collected assignments as a member of a settings.Patch.
func (p *prefetchAssignments) toPatch() (m settings.Member[settings.PrefetchPatch]) {
	if !p.given {
		return m
	}
	patch := settings.PrefetchPatch{Enabled: p.enabled}
	if len(p.facets) > 0 {
		facets := map[string]settings.Member[settings.FacetPatch]{}
		for name, change := range p.facets {
			facets[name] = settings.Set(change)
		}
		patch.Facets = settings.Set(facets)
	}
	return settings.Set(patch)
}

func parseOnOff(text string) (bool, error) {
	if text != "on" && text != "off" {
		return false, fmt.Errorf("%.40q must be on or off", text)
	}
	return text == "on", nil
}

func parseMember[T any](value string, parse func(string) (T, error)) (settings.Member[T], error) {
	if value == "" {
		return settings.Reset[T](), nil
	}
	v, err := parse(value)
	return settings.Set(v), err
}

func parseInt(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0, fmt.Errorf("%q must be a whole number", text)
	}
	return n, nil
}
