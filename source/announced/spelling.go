package announced

import (
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// maxClockSkew is the largest plausible difference between the upstream's clock and ours.
const maxClockSkew = 24 * time.Hour

// upstreamTime returns the time in the Date header of the response, and true. It is the time of the
// upstream's clock, which may differ from ours. Without a plausible Date header upstreamTime returns
// now and false.
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

// dateSlack is the maximum rounding error of the difference between a reset time and the Date
// header. The upstream truncates both times to a second.
const dateSlack = 2 * time.Second

// A number of at least minEpochMillis is an epoch in milliseconds, and another number of at least
// minEpoch is an epoch in seconds; both constants are times in 1973. A smaller number is the delay in
// seconds, at most three years.
const (
	minEpoch       = 1e8
	minEpochMillis = 1e11
)

// secondsUntil parses the time until a reset: seconds, an epoch in seconds or milliseconds, a duration
// such as 6m0s, or an ISO 8601 or HTTP date. Only a date or an epoch may be in the past. `slack` is
// the maximum rounding error of the result.
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

// maxTimeLength bounds the length of a duration or date in bytes, because each attempt to parse the
// text copies it.
const maxTimeLength = 64

func secondsUntilEpoch(at float64, slack time.Duration, header http.Header, now time.Time) (float64, time.Duration, bool) {
	from, own := upstreamTime(header, now)
	if own {
		slack = dateSlack
	}
	return at - epoch(from), slack, true
}

// epoch returns a time in seconds. Unlike UnixNano it does not overflow for distant years.
func epoch(at time.Time) float64 { return float64(at.Unix()) + float64(at.Nanosecond())/1e9 }

// parseDate parses an HTTP date or an ISO 8601 time. An ISO 8601 time can omit the seconds. Without a
// zone it is a time in UTC.
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

// durationUnits lists units in ascending order. The function smallestUnit needs this order: it must
// search for "ms" before "m" and "s", which "ms" contains.
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

// smallestUnit returns the smallest unit in the text of a duration, for example a second for
// "6m0s". That is the precision of the duration.
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

// parseDecimal parses an optional minus, digits and at most one point, without an exponent. It
// returns an infinite value for a number that float64 cannot represent.
func parseDecimal(text string) (float64, bool) {
	if text == "" || strings.Trim(strings.TrimPrefix(text, "-"), "0123456789.") != "" {
		return 0, false
	}
	n, err := strconv.ParseFloat(text, 64)
	return n, err == nil || math.IsInf(n, 0)
}

// maxCount bounds a limit, its remainder and the cost of a call.
const maxCount = 1e12

// parseCount parses a number from 0 to maxCount and rounds it with round.
func parseCount(text string, round func(float64) float64) int64 {
	n, ok := parseDecimal(strings.TrimSpace(text))
	if !ok || n < 0 || n > maxCount {
		return Unknown
	}
	return int64(round(n))
}

// remainingOf returns limit - used, at least 0, or Unknown.
func remainingOf(limit, used int64) int64 {
	if limit == Unknown || used == Unknown {
		return Unknown
	}
	return max(0, limit-used)
}

// listEntry returns the number for a window from a list of number:seconds, such as 20:1,100:120. It
// returns "" if no entry has that window.
func listEntry(list string, window time.Duration) string {
	for entry := range strings.SplitSeq(list, ",") {
		number, seconds, _ := strings.Cut(entry, ":")
		if n, ok := parseDecimal(strings.TrimSpace(seconds)); ok && n == window.Seconds() {
			return number
		}
	}
	return ""
}
