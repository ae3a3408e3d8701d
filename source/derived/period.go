package derived

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Period is the length of the calendar periods by which items are grouped.
type Period string

// The kinds of periods. An item is counted in the period that contains the item's time.
const (
	Year  Period = "year"
	Month Period = "month"
	Week  Period = "week"
	Day   Period = "day"
)

// Periods lists the values of Period.
var Periods = []Period{Year, Month, Week, Day}

// total is the kind of the only bucket that contains all items.
const total Period = "total"

// bucket identifies one period, such as November 2026. `number` is greater for later periods of the
// same kind.
type bucket struct {
	kind   Period
	number int32
}

// bucketOf returns the period of the given kind that contains a time. The time must be in the time zone
// of the setting timeZone.
func bucketOf(kind Period, at time.Time) bucket {
	switch kind {
	case Year:
		return bucket{kind, int32(at.Year())} //nolint:gosec // a year of RFC 3339 has 4 digits
	case Month:
		return bucket{kind, int32(at.Year()*12 + int(at.Month()) - 1)} //nolint:gosec // see above
	case Week:
		year, week := at.ISOWeek()
		return bucket{kind, int32(year*100 + week)} //nolint:gosec // see above
	case Day:
		return bucket{kind, int32((at.Year()*12+int(at.Month())-1)*32 + at.Day())} //nolint:gosec // see above
	case total:
	}
	return bucket{kind: total}
}

// label returns the name of the period in the content: 2026, 2026-11, 2026-W48 or 2026-11-26.
func (b bucket) label() string {
	n := int(b.number)
	switch b.kind {
	case Year:
		return fmt.Sprintf("%04d", n)
	case Month:
		return fmt.Sprintf("%04d-%02d", n/12, n%12+1)
	case Week:
		return fmt.Sprintf("%04d-W%02d", n/100, n%100)
	case Day:
		return fmt.Sprintf("%04d-%02d-%02d", n/32/12, n/32%12+1, n%32)
	case total:
	}
	return string(total)
}

var errLabel = errors.New("is not the name of a period")

// parseBucket returns the period with this label.
func parseBucket(kind Period, label string) (bucket, error) {
	var parts [3]int
	texts := strings.Split(strings.Replace(label, "-W", "-", 1), "-")
	if len(texts) > len(parts) {
		return bucket{}, fmt.Errorf("%.40q %w", label, errLabel)
	}
	for i, text := range texts {
		n, err := strconv.ParseUint(text, 10, 16)
		if err != nil {
			return bucket{}, fmt.Errorf("%.40q %w", label, errLabel)
		}
		parts[i] = int(n)
	}
	var n int
	switch kind {
	case Year:
		n = parts[0]
	case Month:
		n = parts[0]*12 + parts[1] - 1
	case Week:
		n = parts[0]*100 + parts[1]
	case Day:
		n = (parts[0]*12+parts[1]-1)*32 + parts[2]
	case total:
	}
	b := bucket{kind, int32(n)}
	if b.label() != label {
		return bucket{}, fmt.Errorf("%.40q %w", label, errLabel)
	}
	return b, nil
}
