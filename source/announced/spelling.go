package announced

import (
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// plausible bounds how far from ours an upstream's clock may be to be believed.
const plausible = 24 * time.Hour

// clock returns the time by which the answer's times are to be read: its own Date, for
// the upstream's clock is not ours; or now, if there is none or none that can be true.
func clock(header http.Header, now time.Time) (at time.Time, own bool) {
	date := header["Date"]
	if len(date) == 0 {
		return now, false
	}
	at, err := http.ParseTime(date[0])
	if err != nil || at.Sub(now).Abs() > plausible {
		return now, false
	}
	return at, true
}

// ownSlack is by how much a time may be late that is read by the answer's own Date: each
// of the two is cut to a second.
const ownSlack = 2 * time.Second

// From these on a number is an epoch in seconds (1973) or in milliseconds (1973
// too): nobody asks to wait three years, and none of the epochs is that old.
const (
	leastEpoch       = 1e8
	leastEpochMillis = 1e11
)

// until reads how many seconds remain to a time that an answer tells: a number of
// seconds, an epoch in seconds or milliseconds, a duration such as 6m0s, or a date by
// ISO 8601 or HTTP, which alone can have passed. slack is by how much later it may be,
// for the answer rounds.
func until(text string, header http.Header, now time.Time) (seconds float64, slack time.Duration, ok bool) {
	text = strings.TrimSpace(text)
	if text == "" {
		return 0, 0, false
	}
	slack = time.Second
	if n, ok := decimal(text); ok {
		if strings.Contains(text, ".") {
			slack = time.Millisecond
		}
		switch {
		case n >= leastEpochMillis:
			return untilEpoch(n/1e3, time.Millisecond, header, now)
		case n >= leastEpoch:
			return untilEpoch(n, slack, header, now)
		}
		return n, slack, n >= 0
	}
	if len(text) > maxTime {
		return 0, 0, false
	}
	if d, err := time.ParseDuration(text); err == nil {
		return d.Seconds(), smallestUnit(text), d >= 0
	}
	at, ok := date(text)
	if !ok {
		return 0, 0, false
	}
	if strings.Contains(text, ".") {
		slack = time.Millisecond
	}
	return untilEpoch(epoch(at), slack, header, now)
}

// maxTime bounds a duration or a date, in bytes; each attempt to read one copies it.
const maxTime = 64

func untilEpoch(at float64, slack time.Duration, header http.Header, now time.Time) (float64, time.Duration, bool) {
	from, own := clock(header, now)
	if own {
		slack = ownSlack
	}
	return at - epoch(from), slack, true
}

// epoch returns a time in seconds, also one that has no number of nanoseconds.
func epoch(at time.Time) float64 { return float64(at.Unix()) + float64(at.Nanosecond())/1e9 }

// date reads a time by ISO 8601, to the minute or finer and of UTC if no zone is
// written, or by HTTP.
func date(text string) (time.Time, bool) {
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

// units are those of a duration, the smallest first: no name is a part of one behind it.
var units = []struct {
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
	for _, unit := range units {
		if strings.Contains(text, unit.name) {
			if strings.Contains(text, ".") {
				return min(unit.size, time.Millisecond)
			}
			return unit.size
		}
	}
	return time.Second
}

// decimal reads digits with at most one point, and a sign if it is a minus; no
// exponent. What is more than a number can hold is infinite.
func decimal(text string) (float64, bool) {
	if text == "" || strings.Trim(strings.TrimPrefix(text, "-"), "0123456789.") != "" {
		return 0, false
	}
	n, err := strconv.ParseFloat(text, 64)
	return n, err == nil || math.IsInf(n, 0)
}

// maxCount bounds a limit, what is left of it and what a call costs.
const maxCount = 1e12

// count reads a number from 0 to maxCount; not a whole one is rounded by round.
func count(text string, round func(float64) float64) int64 {
	n, ok := decimal(strings.TrimSpace(text))
	if !ok || n < 0 || n > maxCount {
		return Unknown
	}
	return int64(round(n))
}

// left returns what remains of a limit of which so much is used.
func left(limit, used int64) int64 {
	if limit == Unknown || used == Unknown {
		return Unknown
	}
	return max(0, limit-used)
}

// entryOf returns the number of that entry of a list count:seconds,… that is of the
// window; empty if there is none.
func entryOf(list string, window time.Duration) string {
	for entry := range strings.SplitSeq(list, ",") {
		number, seconds, _ := strings.Cut(entry, ":")
		if n, ok := decimal(strings.TrimSpace(seconds)); ok && n == window.Seconds() {
			return number
		}
	}
	return ""
}
