package announced

import (
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// maxClockSkew bounds how far from ours an upstream's clock may be to be believed.
const maxClockSkew = 24 * time.Hour

// upstreamTime returns the time by which the answer's times are to be read: its own Date, for
// the upstream's clock is not ours; or now, if there is none or none that can be true.
func upstreamTime(header http.Header, now time.Time) (at time.Time, own bool) {
	date := header["Date"]
	if len(date) == 0 {
		return now, false
	}
	at, err := http.ParseTime(date[0])
	if err != nil || at.Sub(now).Abs() > maxClockSkew {
		return now, false
	}
	return at, true
}

// dateSlack is by how much a time may be late that is read by the answer's own Date: each
// of the two is cut to a second.
const dateSlack = 2 * time.Second

// From these on a number is an epoch in seconds (1973) or in milliseconds (1973
// too): nobody asks to wait three years, and none of the epochs is that old.
const (
	minEpoch       = 1e8
	minEpochMillis = 1e11
)

// secondsUntil reads how many seconds remain to a time that an answer tells: a number of
// seconds, an epoch in seconds or milliseconds, a duration such as 6m0s, or a date by
// ISO 8601 or HTTP, which alone can have passed. slack is by how much later it may be,
// for the answer rounds.
func secondsUntil(text string, header http.Header, now time.Time) (seconds float64, slack time.Duration, ok bool) {
	text = strings.TrimSpace(text)
	if text == "" {
		return 0, 0, false
	}
	slack = time.Second
	if n, ok := parseDecimal(text); ok {
		if strings.Contains(text, ".") {
			slack = time.Millisecond
		}
		switch {
		case n >= minEpochMillis:
			return secondsUntilEpoch(n/1e3, time.Millisecond, header, now)
		case n >= minEpoch:
			return secondsUntilEpoch(n, slack, header, now)
		}
		return n, slack, n >= 0
	}
	if len(text) > maxTimeLength {
		return 0, 0, false
	}
	if d, err := time.ParseDuration(text); err == nil {
		return d.Seconds(), smallestUnit(text), d >= 0
	}
	at, ok := parseDate(text)
	if !ok {
		return 0, 0, false
	}
	if strings.Contains(text, ".") {
		slack = time.Millisecond
	}
	return secondsUntilEpoch(epoch(at), slack, header, now)
}

// maxTimeLength bounds a duration or a date, in bytes; each attempt to read one copies it.
const maxTimeLength = 64

func secondsUntilEpoch(at float64, slack time.Duration, header http.Header, now time.Time) (float64, time.Duration, bool) {
	from, own := upstreamTime(header, now)
	if own {
		slack = dateSlack
	}
	return at - epoch(from), slack, true
}

// epoch returns a time in seconds, also one that has no number of nanoseconds.
func epoch(at time.Time) float64 { return float64(at.Unix()) + float64(at.Nanosecond())/1e9 }

// parseDate reads a time by ISO 8601, to the minute or finer and of UTC if no zone is
// written, or by HTTP.
func parseDate(text string) (time.Time, bool) {
	for _, layout := range []string{
		time.RFC3339, "2006-01-02T15:04Z07:00", "2006-01-02T15:04:05Z0700", "2006-01-02T15:04:05",
	} {
		if at, err := time.Parse(layout, text); err == nil {
			return at, true
		}
	}
	at, err := http.ParseTime(text)
	return at, err == nil
}

// durationUnits are those of a duration, the smallest first: no name is a part of one behind it.
var durationUnits = []struct {
	name string
	size time.Duration
}{
	{"ns", time.Nanosecond},
	{"us", time.Microsecond},
	{"µs", time.Microsecond},
	{"μs", time.Microsecond},
	{"ms", time.Millisecond},
	{"s", time.Second},
	{"m", time.Minute},
	{"h", time.Hour},
}

// smallestUnit returns to what a duration is rounded, going by how it is written.
func smallestUnit(text string) time.Duration {
	for _, unit := range durationUnits {
		if strings.Contains(text, unit.name) {
			if strings.Contains(text, ".") {
				return min(unit.size, time.Millisecond)
			}
			return unit.size
		}
	}
	return time.Second
}

// parseDecimal reads digits with at most one point, and a sign if it is a minus; no
// exponent. What is more than a number can hold is infinite.
func parseDecimal(text string) (float64, bool) {
	if text == "" || strings.Trim(strings.TrimPrefix(text, "-"), "0123456789.") != "" {
		return 0, false
	}
	n, err := strconv.ParseFloat(text, 64)
	return n, err == nil || math.IsInf(n, 0)
}

// maxCount bounds a limit, what is left of it and what a call costs.
const maxCount = 1e12

// parseCount reads a number from 0 to maxCount; not a whole one is rounded by round.
func parseCount(text string, round func(float64) float64) int64 {
	n, ok := parseDecimal(strings.TrimSpace(text))
	if !ok || n < 0 || n > maxCount {
		return Unknown
	}
	return int64(round(n))
}

// remainingOf returns what remains of a limit of which so much is used.
func remainingOf(limit, used int64) int64 {
	if limit == Unknown || used == Unknown {
		return Unknown
	}
	return max(0, limit-used)
}

// listEntry returns the number of that entry of a list count:seconds,… that is of the
// window; empty if there is none.
func listEntry(list string, window time.Duration) string {
	for entry := range strings.SplitSeq(list, ",") {
		number, seconds, _ := strings.Cut(entry, ":")
		if n, ok := parseDecimal(strings.TrimSpace(seconds)); ok && n == window.Seconds() {
			return number
		}
	}
	return ""
}
