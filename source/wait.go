package source

import (
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// maxRetryAfter bounds what an upstream may ask for: a garbled header must not
// stop a source for years.
const maxRetryAfter = 24 * time.Hour

// retryAfter returns how long an answer of that class asks to wait, within 0 and
// 24 hours; 0 if it says nothing, or a time that has passed. What can't be read
// is as if it were not there.
//
// Retry-After (RFC 9110 §10.2.3) is meant for whoever reads it and decides
// alone, also where it says 0. The end of a window stands on healthy answers
// too, and so counts only where the answer refuses everybody.
func retryAfter(class Class, header http.Header, now time.Time) time.Duration {
	if wait, said := delayOrDate(header.Get("Retry-After"), now); said {
		return wait
	}
	if class != Quota && class != Maintenance && class != AuthRefused {
		return 0
	}
	for _, read := range []func(http.Header, time.Time) (time.Duration, bool){
		structuredReset, numberedReset, budgetReset, durationReset,
	} {
		if wait, said := read(header, now); said {
			return wait
		}
	}
	return 0
}

// delayOrDate reads whole or fractional seconds, or a date.
func delayOrDate(text string, now time.Time) (time.Duration, bool) {
	text = strings.TrimSpace(text)
	if n, ok := decimal(text); ok {
		return bounded(n), true
	}
	if at, err := http.ParseTime(text); err == nil {
		return bounded(at.Sub(now).Seconds()), true
	}
	return 0, false
}

// structuredReset reads RateLimit of the IETF draft (draft-ietf-httpapi-ratelimit-headers):
// a list of "policy";r=remaining;t=seconds. The longest t of the policies with
// nothing left counts; if all have something left, the longest of all.
func structuredReset(header http.Header, _ time.Time) (time.Duration, bool) {
	items, ok := splitOutsideQuotes(strings.Join(header.Values("RateLimit"), ","), ',')
	if !ok {
		return 0, false // half a list may lack the policy that matters
	}
	used, all := -1.0, -1.0
	for _, item := range items {
		parameters, _ := splitOutsideQuotes(item, ';')
		t, timed, empty := 0.0, false, false
		for _, parameter := range parameters[1:] {
			name, value, _ := strings.Cut(strings.TrimSpace(parameter), "=")
			n, ok := decimal(value)
			switch {
			case name == "t":
				t, timed = max(0, n), ok
			case name == "r" && ok:
				empty = n <= 0
			}
		}
		if !timed {
			continue
		}
		all = max(all, t)
		if empty {
			used = max(used, t)
		}
	}
	if used >= 0 {
		all = used
	}
	return bounded(all), all >= 0
}

// splitOutsideQuotes splits a structured field (RFC 9651) at a separator that
// stands in no quoted string, and reports whether each string has its end.
func splitOutsideQuotes(text string, separator byte) (parts []string, ok bool) {
	from, quoted := 0, false
	for i := 0; i < len(text); i++ {
		switch {
		case quoted && text[i] == '\\':
			i++
		case text[i] == '"':
			quoted = !quoted
		case text[i] == separator && !quoted:
			parts = append(parts, text[from:i])
			from = i + 1
		}
	}
	return append(parts, text[from:]), !quoted
}

// numberedReset reads RateLimit-Reset, from the draft's earlier versions.
func numberedReset(header http.Header, now time.Time) (time.Duration, bool) {
	return budget(header, "RateLimit-Remaining", func() (time.Duration, bool) {
		return secondsOrTime(header.Get("RateLimit-Reset"), now)
	})
}

// budgetReset reads X-RateLimit-Reset-After, or X-RateLimit-Reset, which has no
// definition: of GitHub it is an epoch in seconds, of others one in
// milliseconds, of Reddit the seconds left, of Jira a time by ISO 8601.
func budgetReset(header http.Header, now time.Time) (time.Duration, bool) {
	return budget(header, "X-RateLimit-Remaining", func() (time.Duration, bool) {
		if n, ok := decimal(strings.TrimSpace(header.Get("X-RateLimit-Reset-After"))); ok {
			return bounded(n), true
		}
		return secondsOrTime(header.Get("X-RateLimit-Reset"), now)
	})
}

// budget reads a reset, unless its budget has something left: then another limit
// refused the call (GitHub's secondary one, say), or the credential did, and to
// wait for this window could take an hour too long.
func budget(header http.Header, remaining string, read func() (time.Duration, bool)) (time.Duration, bool) {
	if left, ok := decimal(strings.TrimSpace(header.Get(remaining))); ok && left > 0 {
		return 0, false
	}
	return read()
}

// From these on a number is an epoch in seconds (1973) or in milliseconds (1973
// too): nobody asks to wait three years, and none of the epochs is that old.
const (
	leastEpoch       = 1e8
	leastEpochMillis = 1e11
)

// secondsOrTime reads a number of seconds, or a time in any of its spellings.
func secondsOrTime(text string, now time.Time) (time.Duration, bool) {
	text = strings.TrimSpace(text)
	if n, ok := decimal(text); ok {
		epoch := float64(now.UnixNano()) / 1e9
		switch {
		case n >= leastEpochMillis:
			n = n/1e3 - epoch
		case n >= leastEpoch:
			n -= epoch
		}
		return bounded(n), true
	}
	for _, layout := range []string{
		time.RFC3339, "2006-01-02T15:04Z07:00", "2006-01-02T15:04:05Z0700", "2006-01-02T15:04:05", http.TimeFormat,
	} {
		if at, err := time.Parse(layout, text); err == nil {
			return bounded(at.Sub(now).Seconds()), true
		}
	}
	return 0, false
}

// durationReset reads OpenAI's two resets, such as 1s and 6m0s; which of the two
// budgets refused the call is not said, so the longer one counts.
func durationReset(header http.Header, _ time.Time) (wait time.Duration, said bool) {
	for _, name := range []string{"X-RateLimit-Reset-Requests", "X-RateLimit-Reset-Tokens"} {
		if d, err := time.ParseDuration(strings.TrimSpace(header.Get(name))); err == nil {
			wait, said = max(wait, bounded(d.Seconds())), true
		}
	}
	return wait, said
}

// decimal reads digits with at most one point, and a sign if it is a minus; no
// exponent, no infinity.
func decimal(text string) (float64, bool) {
	if strings.Trim(strings.TrimPrefix(text, "-"), "0123456789.") != "" {
		return 0, false
	}
	n, err := strconv.ParseFloat(text, 64)
	return n, err == nil || math.IsInf(n, 0) // more digits than a float holds
}

// bounded returns a number of seconds as a wait.
func bounded(seconds float64) time.Duration {
	return time.Duration(math.Round(min(max(0, seconds), maxRetryAfter.Seconds()) * 1e9))
}
