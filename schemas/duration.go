package schemas

import (
	"strings"
	"time"
)

// FormatDuration formats a duration without zero units: 1h instead of 1h0m0s.
func FormatDuration(d time.Duration) string {
	text := d.String()
	for _, zeros := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, zeros) {
			text = text[:len(text)-2]
		}
	}
	return text
}

// OptionalTime returns a pointer to the time, or nil for the zero time: JSON then has no time.
func OptionalTime(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
