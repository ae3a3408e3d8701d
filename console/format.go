package console

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// How much of a text from outside is shown.
const (
	maxKeyShown    = 256
	maxErrorShown  = 300
	maxReasonShown = 60
	maxBriefShown  = 110 // where the whole stands a click away
	maxLongShown   = 4 << 10
)

// displayText returns a text from outside as people may read it: cut, in UTF-8, and without what
// would change how the text around it reads.
func displayText(text string, most int) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	cut := len(text) > most
	if cut {
		for most > 0 && !utf8.RuneStart(text[most]) {
			most--
		}
		text = text[:most]
	}
	text = strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == '\u2028' || r == '\u2029') {
			return '\uFFFD'
		}
		return r
	}, text)
	if cut {
		text += " …"
	}
	return text
}

// formatDuration is a length of time in words: 40 s, 12 min, 3 h 20 min, 9 days.
func formatDuration(d time.Duration) string {
	if d < 0 {
		d = -d
	}
	switch {
	case d == 0:
		return "0 s"
	case d < time.Second:
		return strconv.FormatInt(max(1, d.Milliseconds()), 10) + " ms"
	case d < time.Minute:
		return strconv.Itoa(int(d/time.Second)) + " s"
	case d < time.Hour:
		return strconv.Itoa(int(d/time.Minute)) + " min"
	case d < 48*time.Hour:
		hours, minutes := int(d/time.Hour), int(d%time.Hour/time.Minute)
		if minutes == 0 || hours >= 10 {
			return strconv.Itoa(hours) + " h"
		}
		return fmt.Sprintf("%d h %d min", hours, minutes)
	default:
		return strconv.Itoa(int(d/(24*time.Hour))) + " days"
	}
}

// formatAgo is how long a time is past, in words.
func formatAgo(t, now time.Time) string {
	if d := now.Sub(t); d >= time.Second {
		return formatDuration(d) + " ago"
	}
	return "just now"
}

// formatTime is a time of day in UTC; a time of another day has its date, and one that is near
// its seconds.
func formatTime(t, now time.Time) string {
	t, now = t.UTC(), now.UTC()
	switch d := t.Sub(now).Abs(); {
	case d < 2*time.Minute:
		return t.Format("15:04:05")
	case t.YearDay() == now.YearDay() && t.Year() == now.Year():
		return t.Format("15:04")
	case d < 300*24*time.Hour:
		return t.Format("2 Jan 15:04")
	default:
		return t.Format("2 Jan 2006")
	}
}

// formatCount is a number with its thousands apart; from a million on in millions.
func formatCount[N int | int64](n N) string {
	if n >= 1_000_000 {
		return strings.TrimSuffix(strconv.FormatFloat(float64(n)/1e6, 'f', 1, 64), ".0") + " M"
	}
	return formatInt(n)
}

// formatInt is a number with its thousands apart.
func formatInt[N int | int64](n N) string {
	text := strconv.FormatInt(int64(n), 10)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// plural is a number and what is counted.
func plural[N int | int64](n N, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return formatInt(n) + " " + many
}

// formatRate is a number of calls a second or so, as precise as it is of use.
func formatRate(n float64) string {
	if n > 0 && n < 9.95 {
		return strings.TrimSuffix(strconv.FormatFloat(n, 'f', 1, 64), ".0")
	}
	return formatInt(int64(n + 0.5))
}

// formatPercent is a part of a whole, in percent; empty without a whole.
func formatPercent(part, whole int64) string {
	if whole == 0 {
		return ""
	}
	p := 100 * float64(part) / float64(whole)
	if p > 0 && p < 0.1 {
		return "< 0.1 %"
	}
	if part < whole && p >= 99.95 {
		return "> 99.9 %"
	}
	return strings.TrimSuffix(strconv.FormatFloat(p, 'f', 1, 64), ".0") + " %"
}
