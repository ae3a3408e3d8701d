package console

import (
	"slices"
	"time"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/status"
)

func laneRows(of *sourceSample) [][]statusItem {
	rows := [][]statusItem{}
	for _, l := range of.Lanes {
		rate := statusItem{Text: "not known yet"}
		if of.Rates.Known {
			rate.Text = formatRate(of.Rates.Low)
			if l.Lane == schemas.High {
				rate.Text = formatRate(of.Rates.High)
			}
		}
		records, wait := statusItem{Text: status.FormatInt(l.Records)}, statusItem{Text: formatDuration(lag(l)), Tone: laneTone(l)}
		switch {
		case !l.RecordsKnown:
			records.Text, wait.Text = "not known", "not known"
		case l.Records == 0:
			wait.Text = "nothing"
		case stalled(l):
			wait.Text = "not known: no worker has processed a record for " + formatDuration(l.StalledFor)
			if of.Limits != nil {
				_, wait.Tone = stallReason(of.Limits, of.Lanes, l, of.Limits.At)
			}
		case !l.WaitKnown:
			wait.Text = "not known yet"
		case of.Limits != nil && !of.Limits.State.AllowsCalls() && wait.Tone == toneOK:
			wait.Tone = toneWarn // no calls are made now, so the lag grows
		}
		rows = append(rows, []statusItem{{Text: string(l.Lane)}, rate, laneLimit(of.Limits, l.Lane), records, wait})
	}
	return rows
}

// policyRows returns a table row for each policy. If a policy gives each lane its own part of the
// limit (GCRA), its usage is estimated from the permits that the processes have received.
func policyRows(of *sourceSample, now time.Time) [][]statusItem {
	rows := [][]statusItem{}
	for _, p := range of.Limits.Policies {
		target := p.Target
		if target == 0 {
			target = p.Limit
		}
		used, known := 0.0, false
		window, err := time.ParseDuration(p.Window)
		if p.Used != nil {
			used, known = float64(*p.Used), true
		} else if err == nil && of.Rates.Known {
			used, known = (of.Rates.High+of.Rates.Low)*window.Seconds(), true
		}
		each := "a day"
		if err == nil {
			each = perWindow(window)
		}
		use, bar := statusItem{Text: "not known yet"}, statusItem{}
		if known {
			use.Text = formatRate(used) + " of " + formatCount(target) + " " + each
			part := 0
			if target > 0 {
				part = min(100, int(100*used/float64(target)+0.5))
			}
			bar = statusItem{Percent: &part, Text: formatPercent(int64(used+0.5), int64(target))}
		}
		notes := status.FormatInt(p.Remaining-p.RemainingForLow) + " only for HIGH"
		if p.ResetsAt != nil {
			notes += "; it resets in " + formatDuration(p.ResetsAt.Sub(now))
		}
		rows = append(rows, []statusItem{{Text: displayText(p.Name, 60)}, use, bar, {Text: status.FormatInt(p.Remaining)}, {Text: status.FormatInt(p.RemainingForLow)}, {Text: notes}})
	}
	return rows
}

func processRows(v *limiter.View) [][]statusItem {
	rows := [][]statusItem{}
	for _, p := range v.Processes {
		for _, lane := range []struct {
			name schemas.Lane
			view limiter.LaneView
		}{{schemas.High, p.High}, {schemas.Low, p.Low}} {
			longest, why := "", "no request waits"
			if lane.view.Waiting > 0 {
				longest, why = formatDuration(time.Duration(lane.view.OldestMS*float64(time.Millisecond))), displayText(string(lane.view.Reason), maxErrorShown)
			}
			rows = append(rows, []statusItem{
				{Text: displayText(p.Process, 60)}, {Text: string(lane.name)}, {Text: status.FormatInt(lane.view.Waiting)}, {Text: longest}, {Text: status.FormatInt(lane.view.Granted)}, {Text: why},
			})
		}
	}
	return rows
}

func scopeRows(v *limiter.View, now time.Time) [][]statusItem {
	rows := [][]statusItem{}
	for _, s := range v.Scopes {
		left, state := "not reported yet", statusItem{Text: "ok", Tone: toneOK}
		if s.Remaining != nil {
			left = status.FormatInt(*s.Remaining)
			if *s.Remaining == 0 {
				state = statusItem{Text: "used up", Tone: toneWarn}
			}
		}
		if s.BreakerOpen {
			left, state = "", statusItem{Text: "breaker open", Tone: toneBad}
		}
		if s.Until != nil && s.Until.After(now) {
			state.Text += ", until " + formatTime(*s.Until, now)
		}
		rows = append(rows, []statusItem{{Text: displayText(s.Policy, 60)}, {Text: displayText(s.Scope, 80)}, {Text: left}, {Text: status.FormatInt(s.InFlight)}, state})
	}
	return rows
}

func readRows(all []status.ReadStats, sources []string) [][]statusItem {
	rows := [][]statusItem{}
	for _, r := range all {
		total := r.Fresh + r.Stale + r.Updating + r.NotFound
		if !slices.Contains(sources, r.Source) || total == 0 {
			continue
		}
		of := func(n int64) statusItem { return statusItem{Text: formatPercent(n, total)} }
		rows = append(rows, []statusItem{
			{Text: r.Source}, {Text: status.FormatInt(total)}, of(r.Fresh), of(r.Stale), of(r.Updating), of(r.NotFound), {Text: formatKnownAge(r.AgeP50)}, {Text: formatKnownAge(r.AgeP95)},
		})
	}
	return rows
}

func formatKnownAge(d time.Duration) string {
	if d == 0 {
		return "not known"
	}
	return formatDuration(d)
}

func dependencyRows(all []Dependency) [][]statusItem {
	rows := [][]statusItem{}
	for _, d := range all {
		state := statusItem{Text: "answers", Tone: toneOK}
		if d.Error != "" {
			state = statusItem{Text: "does not answer: " + displayText(d.Error, maxErrorShown), Tone: toneBad}
		}
		rows = append(rows, []statusItem{{Text: displayText(d.Name, maxKeyShown)}, state})
	}
	return rows
}

// scenarioTitle returns the title of the fault scenario with this name.
func (c *Console) scenarioTitle(name string) string {
	if c.FaultScenarios != nil {
		for _, k := range c.FaultScenarios.List() {
			if k.Name == name {
				return k.Title
			}
		}
	}
	return name
}
