package status

import "strconv"

// FormatInt formats a number with thousands separators, as in 20,000,000.
func FormatInt[N int | int64](n N) string {
	text := strconv.FormatInt(int64(n), 10)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}
