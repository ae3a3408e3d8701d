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
