package console

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/freshet/freshet/store/deadletters"
)

// hoursShown is the number of hours that the picture of dead letters shows, and maxReasonsShown the
// number of reasons with a colour of their own. Rarer reasons share the last colour.
const hoursShown, maxReasonsShown = 24, 5

// hoursPicture shows the dead letters of each of the last 24 hours as a bar. Each part of a bar
// stands for one reason, and links to the list of its dead letters.
type hoursPicture struct {
	From, To time.Time
	Parts    []hourPart
	Legend   [][2]string // CSS class and text of each reason
	Rows     []hourRow   // the same numbers as a table, the newest hour first
}

type hourPart struct {
	Class, Link, Title string
	X, Y, Height       string
}

type hourRow struct {
	At     time.Time
	Text   string // number of dead letters of each reason, as text
	Link   string
	Number int64
}

// newHoursPicture returns the picture of the hours up to now. The links keep the filter's source,
// facet and disposition.
func newHoursPicture(all []deadletters.Group, f dlqFilter, now time.Time) *hoursPicture {
	p := &hoursPicture{To: now.UTC().Truncate(time.Hour).Add(time.Hour)}
	p.From = p.To.Add(-hoursShown * time.Hour)
	totals, byHour, highest := map[string]int64{}, map[time.Time]int64{}, int64(1)
	for _, h := range all {
		totals[string(h.Reason)] += h.Count
		byHour[h.First] += h.Count
		highest = max(highest, byHour[h.First])
	}
	var reasons []string
	for reason := range totals {
		reasons = append(reasons, reason)
	}
	slices.SortFunc(reasons, func(a, b string) int {
		if totals[a] != totals[b] {
			return int(min(1, max(-1, totals[b]-totals[a])))
		}
		return strings.Compare(a, b)
	})
	class := map[string]string{}
	for i, reason := range reasons {
		class[reason] = fmt.Sprintf("c-k%d", min(i, maxReasonsShown-1))
		p.Legend = append(p.Legend, [2]string{class[reason], displayText(reason, maxReasonShown)})
	}
	below := map[time.Time]int64{}
	for _, h := range all {
		hour := int(h.First.Sub(p.From) / time.Hour)
		if hour < 0 || hour >= hoursShown {
			continue
		}
		link := hourLink(f, h.First, string(h.Reason))
		top := below[h.First] + h.Count
		p.Parts = append(p.Parts, hourPart{
			Class: class[string(h.Reason)], Link: link, Title: fmt.Sprintf("%s: %d %s", h.First.Format("15:04"), h.Count, h.Reason),
			X: strconv.Itoa(10*hour + 1), Y: percentOf(highest-top, highest), Height: percentOf(h.Count, highest),
		})
		below[h.First] = top
		if n := len(p.Rows); n == 0 || !p.Rows[n-1].At.Equal(h.First) {
			p.Rows = append(p.Rows, hourRow{At: h.First, Link: hourLink(f, h.First, "")})
		}
		row := &p.Rows[len(p.Rows)-1]
		row.Text, row.Number = strings.TrimPrefix(fmt.Sprintf("%s, %d %s", row.Text, h.Count, h.Reason), ", "), row.Number+h.Count
	}
	slices.Reverse(p.Rows)
	return p
}

func hourLink(f dlqFilter, at time.Time, reason string) string {
	q := url.Values{"source": {f.Filter.Source}, "handled": {f.Filter.Handled}, "since": {exactTime(at)}, "until": {exactTime(at.Add(time.Hour))}}
	if f.Filter.Facet != "" {
		q.Set("facet", f.Filter.Facet)
	}
	if reason != "" {
		q.Set("reason", reason)
	}
	return root + "/dlq?" + q.Encode()
}

// readHours reads the dead letters of the last 24 hours for the picture. It uses only the source, the
// facet, the disposition and the visibility of the page's filter.
func (p *dlqPage) readHours(ctx context.Context, c *dlqPages) error {
	f := p.storeFilter(p.client)
	now := c.Clock()
	hours, err := c.DLQIndex.DeadLetterHours(ctx, deadletters.Filter{
		Source: f.Source, Facet: f.Facet, Handled: f.Handled, Visibilities: f.Visibilities, Since: now.UTC().Truncate(time.Hour).Add(-(hoursShown - 1) * time.Hour),
	})
	if err != nil {
		return err
	}
	p.Hours = newHoursPicture(hours, p.dlqFilter, now)
	return nil
}
