package announced

import (
	"math"
	"net/http"
	"strings"
	"time"
)

// maxRetryAfter bounds what an upstream may ask for: a garbled header must not
// stop a source for years.
const maxRetryAfter = 24 * time.Hour

// RetryAfter returns how long an answer asks to wait, within 0 and 24 hours; 0 if it
// says nothing, or a time that has passed. What can't be read is as if it were not
// there. refused says that the answer refuses everybody, and not only this call.
//
// Retry-After (RFC 9110 §10.2.3) is meant for whoever reads it and decides
// alone, also where it says 0. The end of a window stands on healthy answers
// too, and so counts only where the answer refuses everybody.
func RetryAfter(refused bool, header http.Header, now time.Time) time.Duration {
	if wait, said := readRetryAfter(header, now); said {
		return wait
	}
	if !refused {
		return 0
	}
	for _, read := range []func(http.Header, time.Time) (time.Duration, bool){
		readStructuredReset, readRateLimitReset, readXRateLimitReset, readDurationReset,
	} {
		if wait, said := read(header, now); said {
			return wait
		}
	}
	return 0
}

// readRetryAfter reads whole or fractional seconds, or a date.
func readRetryAfter(header http.Header, now time.Time) (time.Duration, bool) {
	text := strings.TrimSpace(header.Get("Retry-After"))
	if n, ok := parseDecimal(text); ok {
		return bounded(n), true
	}
	if at, err := http.ParseTime(text); err == nil {
		from, _ := upstreamTime(header, now)
		return bounded(at.Sub(from).Seconds()), true
	}
	return 0, false
}

// readStructuredReset reads RateLimit of the IETF draft (draft-ietf-httpapi-ratelimit-headers):
// a list of "policy";r=remaining;t=seconds. The longest t of the policies with
// nothing left counts; if all have something left, the longest of all.
func readStructuredReset(header http.Header, _ time.Time) (time.Duration, bool) {
	list, ok := parseItems(strings.Join(header.Values("RateLimit"), ","))
	if !ok {
		return 0, false // half a list may lack the policy that matters
	}
	used, all := -1.0, -1.0
	for _, one := range list {
		t, timed := parseDecimal(one.t)
		if !timed {
			continue
		}
		all = max(all, t, 0)
		if left, ok := parseDecimal(one.r); ok && left <= 0 {
			used = max(used, t, 0)
		}
	}
	if used >= 0 {
		all = used
	}
	return bounded(all), all >= 0
}

// readRateLimitReset reads RateLimit-Reset, from the draft's earlier versions.
func readRateLimitReset(header http.Header, now time.Time) (time.Duration, bool) {
	return ifExhausted(header, "RateLimit-Remaining", func() (time.Duration, bool) {
		return readReset(header, "RateLimit-Reset", now)
	})
}

// readXRateLimitReset reads X-RateLimit-Reset-After, or X-RateLimit-Reset, which has no
// definition: of GitHub it is an epoch in seconds, of others one in
// milliseconds, of Reddit the seconds left, of Jira a time by ISO 8601.
func readXRateLimitReset(header http.Header, now time.Time) (time.Duration, bool) {
	return ifExhausted(header, "X-RateLimit-Remaining", func() (time.Duration, bool) {
		if n, ok := parseDecimal(strings.TrimSpace(header.Get("X-RateLimit-Reset-After"))); ok {
			return bounded(n), true
		}
		return readReset(header, "X-RateLimit-Reset", now)
	})
}

// ifExhausted reads a reset, unless its budget has something left: then another limit
// refused the call (GitHub's secondary one, say), or the credential did, and to
// wait for this window could take an hour too long.
func ifExhausted(header http.Header, remaining string, read func() (time.Duration, bool)) (time.Duration, bool) {
	if left, ok := parseDecimal(strings.TrimSpace(header.Get(remaining))); ok && left > 0 {
		return 0, false
	}
	return read()
}

// readDurationReset reads OpenAI's two resets, such as 1s and 6m0s; which of the two
// budgets refused the call is not said, so the longer one counts.
func readDurationReset(header http.Header, _ time.Time) (wait time.Duration, said bool) {
	for _, name := range []string{"X-RateLimit-Reset-Requests", "X-RateLimit-Reset-Tokens"} {
		if d, err := time.ParseDuration(strings.TrimSpace(header.Get(name))); err == nil {
			wait, said = max(wait, bounded(d.Seconds())), true
		}
	}
	return wait, said
}

// readReset reads a reset in any spelling as a wait.
func readReset(header http.Header, name string, now time.Time) (time.Duration, bool) {
	seconds, _, ok := secondsUntil(header.Get(name), header, now)
	return bounded(seconds), ok
}

// bounded returns a number of seconds as a wait.
func bounded(seconds float64) time.Duration {
	return time.Duration(math.Round(min(max(0, seconds), maxRetryAfter.Seconds()) * 1e9))
}
