package console

import (
	"strings"
	"time"

	"github.com/freshet/freshet/status"
	"github.com/freshet/freshet/webhooks"
)

var hookColumns = []column{textColumn("Webhook").explained("webhook"), textColumn("Last delivery"), numberColumn("Accepted"), numberColumn("Rejected"), textColumn("Reasons")}

// hookTones maps a severity to the tone (colour) of deliveries that an operator should examine.
var hookTones = map[webhooks.Severity]string{webhooks.Refused: toneWarn, webhooks.Failed: toneBad}

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
		rejected, worst := int64(0), webhooks.Ignored
		var reasons []string
		for _, r := range h.NotAccepted() {
			rejected, worst = rejected+r.Count, max(worst, r.Severity)
			reasons = append(reasons, r.Result+" "+status.FormatInt(r.Count))
		}
		rows = append(rows, []statusItem{
			{Text: h.Name},
			{Text: last},
			{Text: status.FormatInt(h.Accepted())},
			{Text: status.FormatInt(rejected)},
			{Text: strings.Join(reasons, ", "), Tone: hookTones[worst]},
		})
	}
	return rows
}
