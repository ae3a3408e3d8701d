package guess

import (
	"fmt"
	"net"
	"regexp"
	"slices"
	"strings"
	"time"
)

// genericLabels are labels of host names that do not name an API.
var genericLabels = []string{"api", "apis", "www", "rest", "open", "public", "gateway", "gw", "data", "dev", "prod", "staging", "sandbox", "test", "v1", "v2", "v3", "eu", "us"}

// secondLevels are labels below a country's domain under which names are registered, as in co.uk.
var secondLevels = []string{"co", "com", "org", "net", "gov", "ac", "go", "or", "edu", "ne"}

// sourceName derives the name of a source from a host: shop for api.shop.co.uk.
func sourceName(host string) string {
	if ip := net.ParseIP(host); host == "localhost" || ip != nil && ip.IsLoopback() {
		return "local"
	} else if ip != nil || strings.Contains(host, "%") {
		return "api"
	}
	labels := strings.Split(strings.Trim(host, "."), ".")
	if len(labels) > 1 {
		top := labels[len(labels)-1]
		labels = labels[:len(labels)-1]
		if n := len(labels); n > 1 && len(top) == 2 && slices.Contains(secondLevels, labels[n-1]) {
			labels = labels[:n-1]
		}
	}
	for _, label := range slices.Backward(labels) {
		if name := cleanName(label); name != "" && !slices.Contains(genericLabels, name) {
			return name
		}
	}
	return "api"
}

var (
	camel   = regexp.MustCompile(`([a-z0-9])([A-Z])`)
	notName = regexp.MustCompile(`[^a-z0-9]+`)
)

// cleanName returns a text as a name that schemas.CheckName accepts, or "".
func cleanName(text string) string {
	name := notName.ReplaceAllString(strings.ToLower(camel.ReplaceAllString(text, "$1-$2")), "-")
	return strings.Trim(name[:min(len(name), 40)], "-")
}

// facetName derives the name of a facet from its URL. `at` is the index of the path segment that {key}
// replaces, or -1 if it replaces no segment. `chosen` is the index of the query parameter whose value
// {key} replaces, or -1. `ids` are the indexes of all ids in the path.
func facetName(segments []string, at int, ids []int, query []parameter, chosen int) string {
	named := func(i int) string {
		if slices.Contains(ids, i) || version.MatchString(segments[i]) || slices.Contains([]string{"api", "rest"}, strings.ToLower(segments[i])) {
			return ""
		}
		return cleanName(extension.ReplaceAllString(segments[i], "$1"))
	}
	if at >= 0 {
		// The name after the id has precedence: /users/42/profile is "profile", not "user".
		for i := len(segments) - 1; i > at; i-- {
			if name := named(i); name != "" {
				return name
			}
		}
		for i := at - 1; i >= 0; i-- {
			if name := named(i); name != "" {
				return singular(name)
			}
		}
	}
	for i := len(segments) - 1; i >= 0 && at < 0; i-- {
		if name := named(i); name != "" {
			return name
		}
	}
	if chosen >= 0 {
		if name := cleanName(query[chosen].name); name != "" {
			return name
		}
	}
	return "item"
}

// unique returns name, or name with a number if it is taken.
func unique(name string, taken func(string) bool) string {
	for n := 2; taken(name); n++ {
		base := strings.TrimRight(name, "0123456789")
		name = fmt.Sprintf("%s-%d", strings.TrimSuffix(base, "-"), n)
	}
	return name
}

// envName returns the environment variable for the credential of a source.
func envName(source string) string {
	name := strings.ToUpper(strings.ReplaceAll(source, "-", "_")) + "_KEY"
	if name[0] >= '0' && name[0] <= '9' {
		name = "API_" + name
	}
	return name
}

// windowName returns the name of a policy with that window.
func windowName(d time.Duration) string {
	for _, w := range []struct {
		length time.Duration
		name   string
	}{{time.Second, "second"}, {time.Minute, "minute"}, {time.Hour, "hour"}, {24 * time.Hour, "day"}, {31 * 24 * time.Hour, "month"}} {
		if d == w.length {
			return w.name
		}
	}
	return "window"
}
