package console

import (
	"context"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/status"
	"github.com/freshet/freshet/status/find"
	"github.com/freshet/freshet/store/prefetched"
)

// agesTTL is how long the counted ages of entities are cached.
const agesTTL = time.Minute

// ageHistogram returns the histogram of the ages of a source's entities; nil: there are none, or they
// could not be read.
func ageHistogram(ctx context.Context, of *status.Cached[find.Ages]) *histogram {
	ages, _, err := of.Get(ctx, agesTTL)
	if err != nil || ages.Sampled == 0 {
		return nil
	}
	counts := make([][]int64, len(find.AgeLabels))
	for i := range counts {
		counts[i] = ages.Counts[i][:]
	}
	h := newHistogram("Age of entities, relative to their interval", "Time since the last due time, as a part of the interval, of "+plural(ages.Sampled, "sampled entity", "sampled entities"),
		"Age", find.AgeLabels[:], [][2]string{{"c-" + tierName(prefetched.Hot), "hot"}, {"c-" + tierName(prefetched.Warm), "warm"}, {"c-" + tierName(prefetched.Cold), "cold"}}, counts)
	return &h
}

// burnDown is a diagram of one daily quota. It compares the part that is left with an even use over
// the day. Positions are in percent.
type burnDown struct {
	Title, Message string
	Tone           string
	Now            string // position of the present time
	Left           string // line of the part that was left, from the start of the day to now
	Forecast       string // line of the part that will be left, from now to the end of the day, at the rate of the last hour
	Start, End     time.Time
}

// burnDowns returns one diagram for each daily quota whose use is known. perSecond is the rate of the
// last hour; negative: unknown.
func burnDowns(v *limiter.View, perSecond float64, now time.Time) (all []burnDown) {
	if v == nil {
		return nil
	}
	for _, p := range v.Policies {
		if p.Window != limiter.Day.String() || p.Used == nil || p.ResetsAt == nil || p.Limit <= 0 {
			continue
		}
		all = append(all, newBurnDown(p, perSecond, now))
	}
	return all
}

func newBurnDown(p limiter.PolicyView, perSecond float64, now time.Time) burnDown {
	b := burnDown{Title: "Remaining calls of the policy " + displayText(p.Name, maxReasonShown), End: *p.ResetsAt, Start: p.ResetsAt.Add(-day)}
	elapsed := math.Min(1, math.Max(0, float64(now.Sub(b.Start))/float64(day)))
	used, rest := float64(*p.Used), b.End.Sub(now)
	limit := float64(p.Limit)
	if perSecond < 0 {
		perSecond = used / math.Max(1, elapsed*day.Seconds())
	}
	y := func(calls float64) float64 { return 100 * math.Min(1, math.Max(0, calls/limit)) }
	x := 100 * elapsed
	b.Now = fmt.Sprintf("%.1f", x)
	b.Left = fmt.Sprintf("M0 0 L%.1f %.1f", x, y(used))
	end := used + perSecond*rest.Seconds()
	to := 100.0
	b.Message = fmt.Sprintf("%s of %s calls are used, and %s remain. An even pace would have used %s. ", formatCount(int64(used)), formatCount(p.Limit), formatDuration(rest), formatCount(int64(limit*elapsed)))
	if end > limit && perSecond > 0 {
		out := now.Add(time.Duration((limit - used) / perSecond * float64(time.Second)))
		to = x + (100-x)*float64(out.Sub(now))/float64(rest)
		b.Tone = toneWarn
		b.Message += "At the rate of the last hour, they are used up at " + formatTime(out, now) + "."
	} else {
		b.Message += fmt.Sprintf("At the rate of the last hour, %s remain at the end of the day.", formatCount(int64(limit-end)))
	}
	b.Forecast = fmt.Sprintf("M%.1f %.1f L%.1f %.1f", x, y(used), math.Min(100, to), y(end))
	return b
}

// hourRate returns the mean rate of calls in the known part of a history, in calls a second;
// negative: unknown.
func hourRate(h status.History) float64 {
	calls, seconds := 0.0, 0.0
	for i, length := range h.Seconds {
		if math.IsNaN(float64(length)) {
			continue
		}
		seconds += float64(length)
		for _, rates := range h.Calls {
			calls += float64(rates[i]) * float64(length)
		}
	}
	if seconds == 0 {
		return -1
	}
	return calls / seconds
}

// entityLine shows the life of an entity's content: since its fetch, fresh, stale, and no longer
// served. Positions are in percent.
type entityLine struct {
	From   time.Time
	Begin  string // name of the event at From
	Parts  []barPart
	Now    string
	Text   string      // description of the picture for screen readers
	Legend [][2]string // class and text of each part
}

// newEntityLine returns the line of an entity; nil: nothing is stored.
func newEntityLine(e Entity, now time.Time) *entityLine {
	if !e.Stored {
		return nil
	}
	s := e.State
	type span struct {
		class, label string
		until        time.Time
	}
	line := &entityLine{From: s.FetchedAt, Begin: "fetched"}
	var spans []span
	switch {
	case s.NotFound:
		line.From, line.Begin = s.CheckedAt, "checked"
		spans = []span{{"c-not-found", "not found", s.CheckedAt.Add(e.NotFoundFor)}, {"c-kept", "the next read requests a refresh", time.Time{}}}
	case s.HasContent():
		spans = []span{{"c-304", "unchanged since the fetch", s.CheckedAt}, {"c-fresh", "fresh", s.CheckedAt.Add(e.FreshFor)}, {"c-kept", "stale", time.Time{}}}
		if e.FreshFor >= source.ImmutableFor {
			spans = []span{spans[0], {"c-fresh", "fresh, because the facet is immutable", time.Time{}}}
		}
		if e.KeepFor > 0 {
			spans[len(spans)-1].until = s.FetchedAt.Add(e.KeepFor)
			spans = append(spans, span{"c-gone", "no longer served", time.Time{}})
		}
	default:
		return nil
	}
	to := now
	for _, p := range spans {
		if p.until.After(to) {
			to = p.until
		}
	}
	to = to.Add(to.Sub(line.From)/10 + time.Second)
	position := func(t time.Time) float64 {
		return 100 * math.Min(1, math.Max(0, float64(t.Sub(line.From))/float64(to.Sub(line.From))))
	}
	line.Now = fmt.Sprintf("%.2f", position(now))
	at, texts := line.From, []string{}
	for _, p := range spans {
		until := p.until
		if until.IsZero() {
			until = to
		}
		if !until.After(at) {
			continue
		}
		line.Parts = append(line.Parts, barPart{p.class, fmt.Sprintf("%.2f", position(at)), fmt.Sprintf("%.2f", position(until)-position(at))})
		legend, text := p.label, p.label+" from "+formatTime(at, now)
		if !p.until.IsZero() {
			legend += " until " + formatTime(until, now)
			text += " to " + formatTime(until, now)
		}
		line.Legend = append(line.Legend, [2]string{p.class, legend})
		texts, at = append(texts, text), until
	}
	line.Text = strings.Join(texts, ", ") + "; now it is " + formatTime(now, now)
	return line
}
