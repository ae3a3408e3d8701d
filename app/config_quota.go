package app

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/source/announced"
)

// leaseMargin is added to the call timeout to get the lease of a slot in flight. After the longest
// possible call, the worker then still has time to release the slot before the lease expires.
const leaseMargin = 5 * time.Second

// quota returns the configuration of the source's limiter: the quota settings, completed with
// values from the source's timeout, credentials, documents and rules.
func (s SourceConfig) quota() limiter.Config {
	q := s.Quota
	q.Lease = s.Timeout + leaseMargin
	q.Credentials = max(1, len(s.Credentials))
	q.Endpoints, q.Hosts = len(endpointsOf(s.Facets)), len(hostsOf(s))
	q.Costs = costRanges(s.Facets)
	for _, r := range s.Announced {
		if r.Cost != "" {
			q.CostReported = append(q.CostReported, r.Policy)
		}
	}
	q.Breakers = map[string]string{}
	if len(s.Credentials) > 0 { // each listed credential gets its own breaker, identified by its name, even if the list has only one
		q.Breakers[source.BlockCredential] = "{credential}"
	}
	for _, r := range s.Rules {
		switch {
		case r.Block == source.BlockEndpoint || r.Block == source.BlockResource:
			q.Breakers[r.Block] = "{credential}/{" + r.Block + "}"
		case r.Block == source.BlockCredential && r.Class == source.Quota:
			q.Breakers[r.Block] = "{credential}"
		}
	}
	return q
}

// costRanges returns, for each cost unit, the lowest and the highest estimated cost of a document.
// A document without an estimate for a unit costs 1 of that unit.
func costRanges(facets map[string]source.Facet) map[string]limiter.CostRange {
	ranges, documents := map[string]limiter.CostRange{}, 0
	named := map[string]int{}
	for _, f := range facets {
		for _, d := range f.Documents {
			documents++
			for unit, n := range d.Cost {
				r, known := ranges[unit]
				if !known {
					r = limiter.CostRange{Min: n, Max: n}
				}
				ranges[unit] = limiter.CostRange{Min: min(r.Min, n), Max: max(r.Max, n)}
				named[unit]++
			}
		}
	}
	for unit, n := range named {
		if r := ranges[unit]; n < documents {
			ranges[unit] = limiter.CostRange{Min: min(r.Min, 1), Max: max(r.Max, 1)}
		}
	}
	return ranges
}

// endpointsOf returns the names that the documents of the facets have in quotas, in the form
// facet/document.
func endpointsOf(facets map[string]source.Facet) []string {
	var all []string
	for name, f := range facets {
		for document := range f.Documents {
			all = append(all, name+"/"+document)
		}
	}
	slices.Sort(all)
	return all
}

// checkQuota returns an error for each quota setting that contradicts the rest of the source's
// configuration. Each error begins with the setting's path below quota.
func (s SourceConfig) checkQuota() (errs []error) {
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	endpoints, placeholders := endpointsOf(s.Facets), map[string]bool{}
	for _, c := range renewing(s) {
		endpoints = append(endpoints, tokenEndpoint, tokenEndpoint+"/"+c.Name)
	}
	for _, name := range []string{"credential", "endpoint", "facet", "host", "method", "key", "resource"} {
		placeholders[name] = true
	}
	for name, f := range s.Facets {
		endpoints = append(endpoints, name)
		for param := range f.Params {
			placeholders[param] = true
		}
		for _, param := range f.ProvidedParams() {
			placeholders[param] = true
		}
	}
	reported := map[string]bool{}
	for _, r := range s.Announced {
		reported[r.Policy] = true
	}
	for i, p := range s.Quota.Policies {
		at := fmt.Sprintf("policies[%d]", i)
		if p.Lease != 0 && p.Window != limiter.InFlight {
			fail("%s.lease: only a policy with window: in-flight has leases; remove it", at)
		}
		for _, name := range limiter.Placeholders(p.Scope) {
			if !placeholders[name] {
				fail("%s.scope: unknown placeholder {%s}; the source has %s", at, name, joinNames(placeholders))
			}
		}
		for _, name := range p.Match.Endpoints {
			if !slices.Contains(endpoints, name) {
				fail("%s.match.endpoints: %q is not a facet or facet/document of the source, which has %s", at, name, endpointsOf(s.Facets))
			}
		}
		for _, name := range p.Match.Methods {
			if !slices.Contains(supportedMethods, name) {
				fail("%s.match.methods: %q is not supported; sources call with %s", at, name, strings.Join(supportedMethods, " and "))
			}
		}
		for _, name := range slices.Sorted(maps.Keys(p.Costs)) {
			if !slices.Contains(endpoints, name) && !slices.Contains(supportedMethods, name) {
				fail("%s.costs.%s: must be a method or a facet/document of the source, which has %s", at, name, endpointsOf(s.Facets))
			}
		}
		for _, status := range append(slices.Clone(p.FreeStatuses), p.CountedStatuses...) {
			if http.StatusText(status) == "" {
				fail("%s: %d is not an HTTP status", at, status)
			}
		}
		if p.Reported && !reported[p.Name] {
			fail("%s.reported: no rule in announced reads the limit of %s from responses; add one with policy: %s", at, p.Name, p.Name)
		}
	}
	return errs
}

var supportedMethods = []string{http.MethodGet, http.MethodPost}

// checkCosts returns an error for each cost of a document in a unit that no policy counts. A policy
// without a unit counts calls and ignores costs.
func checkCosts(facets map[string]source.Facet, policies []limiter.Policy) (errs []error) {
	units := map[string]bool{}
	for _, p := range policies {
		if p.Unit != "" {
			units[p.Unit] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(facets)) {
		documents := facets[name].Documents
		for _, document := range slices.Sorted(maps.Keys(documents)) {
			for _, unit := range slices.Sorted(maps.Keys(documents[document].Cost)) {
				if !units[unit] {
					errs = append(errs, fmt.Errorf("facets.%s.documents.%s.cost.%s: no policy of the quota counts that unit; counted units: %s", name, document, unit, joinNames(units)))
				}
			}
		}
	}
	return errs
}

// checkAnnounced checks the rules of the setting `announced` (how to read a reported limit). It
// returns an error for each rule whose policy is not in the quota.
func checkAnnounced(rules []announced.Rule, policies []limiter.Policy) error {
	var errs []error
	for i, r := range rules {
		if !slices.ContainsFunc(policies, func(p limiter.Policy) bool { return p.Name == r.Policy }) {
			errs = append(errs, fmt.Errorf("announced[%d].policy: the quota has no policy %q", i, r.Policy))
		}
	}
	return errors.Join(errs...)
}
