package console

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/freshet/freshet/status"
)

// A text from outside, such as an upstream error, is cut for display. These constants are the maximum
// numbers of bytes.
const (
	maxKeyShown    = 256
	maxErrorShown  = 300
	maxReasonShown = 60
	maxBriefShown  = 110 // for a text that is shown in full on a linked page
	maxLongShown   = 4 << 10
)

// displayText prepares a text from outside for display. The result has at most `limit` bytes of valid
// UTF-8. It has no control and format characters, because these could change how the surrounding
// text looks.
func displayText(text string, limit int) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	cut := len(text) > limit
	if cut {
		for limit > 0 && !utf8.RuneStart(text[limit]) {
			limit--
		}
		text = text[:limit]
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

// formatDuration formats a duration: 40 s, 12 min, 3 h 20 min, 9 days.
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

// formatAgo formats the time since t: "5 min ago", or "just now" within the first second.
func formatAgo(t, now time.Time) string {
	if d := now.Sub(t); d >= time.Second {
		return formatDuration(d) + " ago"
	}
	return "just now"
}

// formatTime formats the time t as a time of day in UTC. The result contains seconds if t is within
// two minutes of now. It contains the date if t and `now` are on different days.
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

// formatExact is like formatTime, and always contains seconds.
func formatExact(t, now time.Time) string {
	t, now = t.UTC(), now.UTC()
	if t.YearDay() == now.YearDay() && t.Year() == now.Year() {
		return t.Format("15:04:05")
	}
	return t.Format("2 Jan 15:04:05")
}

// formatCount formats a number with thousands separators. Numbers from a million on are shortened,
// for example to "1.2 M".
func formatCount[N int | int64](n N) string {
	if n >= 1_000_000 {
		return strings.TrimSuffix(strconv.FormatFloat(float64(n)/1e6, 'f', 1, 64), ".0") + " M"
	}
	return status.FormatInt(n)
}

// plural formats a number with a noun: "one" is the noun in the singular, "many" in the plural.
func plural[N int | int64](n N, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return status.FormatInt(n) + " " + many
}

// formatRate formats calls a second. Below 10 the result has one decimal.
func formatRate(n float64) string {
	if n > 0 && n < 9.95 {
		return strings.TrimSuffix(strconv.FormatFloat(n, 'f', 1, 64), ".0")
	}
	return status.FormatInt(int64(n + 0.5))
}

// formatPercent formats `part` as a percentage of `whole`; empty if `whole` is 0.
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
