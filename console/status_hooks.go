package console

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/freshet/freshet/status"
	"github.com/freshet/freshet/webhooks"
)

var hookColumns = []column{textColumn("Webhook").explained("webhook"), textColumn("Last delivery"), numberColumn("Accepted"), numberColumn("Rejected"), textColumn("Reasons")}

// hookAccepted is the result of a delivery from which a refresh follows.
const hookAccepted = "accepted"

// hookTones has the tones of results that an operator should look into.
var hookTones = map[string]string{"bad-signature": toneWarn, "expired": toneWarn, "bad-body": toneWarn, "too-large": toneWarn, "limited": toneWarn, "unavailable": toneBad}

// hookRows returns a table row for each webhook of the source.
func hookRows(all []webhooks.Deliveries, source string, now time.Time) [][]statusItem {
	rows := [][]statusItem{}
	for _, h := range all {
		if h.Source != source {
			continue
		}
		last := "none"
		if !h.Last.IsZero() {
			last = formatDuration(max(0, now.Sub(h.Last))) + " ago"
		}
		results := slices.SortedFunc(maps.Keys(h.Results), func(a, b string) int {
			return cmp.Or(cmp.Compare(h.Results[b], h.Results[a]), cmp.Compare(a, b))
		})
		rejected, tone := int64(0), ""
		var reasons []string
		for _, result := range results {
			n := h.Results[result]
			if result == hookAccepted || n == 0 {
				continue
			}
			rejected += n
			reasons = append(reasons, result+" "+status.FormatInt(n))
			if tone != toneBad {
				tone = cmp.Or(hookTones[result], tone)
			}
		}
		rows = append(rows, []statusItem{
			{Text: h.Name},
			{Text: last},
			{Text: status.FormatInt(h.Results[hookAccepted])},
			{Text: status.FormatInt(rejected)},
			{Text: strings.Join(reasons, ", "), Tone: tone},
		})
	}
	return rows
}
