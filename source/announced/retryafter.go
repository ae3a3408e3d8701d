package announced

import (
	"math"
	"net/http"
	"strings"
	"time"
)

// maxRetryAfter bounds the delay, so that an invalid header cannot block a source for years.
const maxRetryAfter = 24 * time.Hour

// RetryAfter returns the delay that a response requests, from 0 to 24 hours. The delay is 0 if the
// response requests none, or if the requested time has passed. Invalid values are ignored. The
// parameter `refused` is true if the upstream would refuse other calls too, and not only this one.
//
// Retry-After (RFC 9110 §10.2.3) has precedence over all other headers, even if it is 0. The reset
// headers count only if refused is true, because successful responses contain them too.
func RetryAfter(refused bool, header http.Header, now time.Time) time.Duration {
	if wait, ok := readRetryAfter(header, now); ok {
		return wait
	}
	if !refused {
		return 0
	}
	for _, read := range []func(http.Header, time.Time) (time.Duration, bool){
		readStructuredReset, readRateLimitReset, readXRateLimitReset, readDurationReset,
	} {
		if wait, ok := read(header, now); ok {
			return wait
		}
	}
	return 0
}

// readRetryAfter parses Retry-After: whole or fractional seconds, or a date.
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

// readStructuredReset parses RateLimit of the IETF draft
// (draft-ietf-httpapi-ratelimit-headers), a list of "policy";r=remaining;t=seconds. It returns
// the largest t of the policies with r=0, or of all policies if each has a positive r.
func readStructuredReset(header http.Header, _ time.Time) (time.Duration, bool) {
	list, ok := parseItems(strings.Join(header.Values("RateLimit"), ","))
	if !ok {
		// The list is too long or cut off, so it may lack the policy with the longest reset.
		return 0, false
	}
	used, all := -1.0, -1.0
	for _, item := range list {
		t, timed := parseDecimal(item.t)
		if !timed {
			continue
		}
		all = max(all, t, 0)
		if remaining, ok := parseDecimal(item.r); ok && remaining <= 0 {
			used = max(used, t, 0)
		}
	}
	if used >= 0 {
		all = used
	}
	return bounded(all), all >= 0
}

// readRateLimitReset parses the header RateLimit-Reset, which earlier versions of the IETF draft
// define.
func readRateLimitReset(header http.Header, now time.Time) (time.Duration, bool) {
	return ifExhausted(header, "RateLimit-Remaining", func() (time.Duration, bool) {
		return readReset(header, "RateLimit-Reset", now)
	})
}

// readXRateLimitReset parses X-RateLimit-Reset-After or X-RateLimit-Reset. The latter has no
// standard: GitHub sends an epoch in seconds, other upstreams an epoch in milliseconds, Reddit the
// remaining seconds, Jira an ISO 8601 time.
func readXRateLimitReset(header http.Header, now time.Time) (time.Duration, bool) {
	return ifExhausted(header, "X-RateLimit-Remaining", func() (time.Duration, bool) {
		if n, ok := parseDecimal(strings.TrimSpace(header.Get("X-RateLimit-Reset-After"))); ok {
			return bounded(n), true
		}
		return readReset(header, "X-RateLimit-Reset", now)
	})
}

// ifExhausted returns the result of the function `read`, unless the remaining quota is above 0. If
// quota is left, the call was refused for another reason: the credential, or another limit such as
// GitHub's secondary rate limit. A wait until the reset in the header could then be an hour too long.
func ifExhausted(header http.Header, remainingHeader string, read func() (time.Duration, bool)) (time.Duration, bool) {
	if remaining, ok := parseDecimal(strings.TrimSpace(header.Get(remainingHeader))); ok && remaining > 0 {
		return 0, false
	}
	return read()
}

// readDurationReset parses the two reset headers of OpenAI, such as 1s and 6m0s. The response
// does not say which budget was exhausted, so the longer delay counts.
func readDurationReset(header http.Header, _ time.Time) (wait time.Duration, ok bool) {
	for _, name := range []string{"X-RateLimit-Reset-Requests", "X-RateLimit-Reset-Tokens"} {
		if d, err := time.ParseDuration(strings.TrimSpace(header.Get(name))); err == nil {
			wait, ok = max(wait, bounded(d.Seconds())), true
		}
	}
	return wait, ok
}

// readReset parses a reset header in any supported format.
func readReset(header http.Header, name string, now time.Time) (time.Duration, bool) {
	seconds, _, ok := secondsUntil(header.Get(name), header, now)
	return bounded(seconds), ok
}

// bounded converts seconds to a delay from 0 to maxRetryAfter.
func bounded(seconds float64) time.Duration {
	return time.Duration(math.Round(min(max(0, seconds), maxRetryAfter.Seconds()) * 1e9))
}
