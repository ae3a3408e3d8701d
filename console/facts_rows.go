package console

import (
	"slices"
	"time"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/schemas"
)

func lanesOf(of *seen) [][]fact {
	rows := [][]fact{}
	for _, l := range of.Lanes {
		rate := fact{Text: "not known yet"}
		if of.Rates.Known {
			rate.Text = rated(of.Rates.Low)
			if l.Lane == schemas.High {
				rate.Text = rated(of.Rates.High)
			}
		}
		records, wait := fact{Text: exact(l.Records)}, fact{Text: span(behind(l)), Tone: laneTone(l)}
		switch {
		case !l.Known:
			records.Text, wait.Text = "not known", "not known"
		case l.Records == 0:
			wait.Text = "nothing"
		case stands(l):
			wait.Text = "not known: nobody has worked for " + span(l.Unworked)
			if of.Limits != nil {
				_, wait.Tone = whyStands(of.Limits, of.Lanes, l, of.Limits.At)
			}
		case !l.WaitKnown:
			wait.Text = "not known yet"
		}
		rows = append(rows, []fact{{Text: string(l.Lane)}, rate, mayOf(of.Limits, l.Lane), records, wait})
	}
	return rows
}

// policiesOf are what each policy has left. Of one that is kept by lanes the use is reckoned
// by what was permitted lately.
func policiesOf(of *seen, now time.Time) [][]fact {
	rows := [][]fact{}
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
			each = every(window)
		}
		use, bar := fact{Text: "not known yet"}, fact{}
		if known {
			use.Text = rated(used) + " of " + count(target) + " " + each
			part := 0
			if target > 0 {
				part = min(100, int(100*used/float64(target)+0.5))
			}
			bar = fact{Part: &part, Text: share(int64(used+0.5), int64(target))}
		}
		kept := "HIGH alone may use " + exact(p.Remaining-p.RemainingForLow)
		if p.ResetsAt != nil {
			kept += "; it is new in " + span(p.ResetsAt.Sub(now))
		}
		rows = append(rows, []fact{{Text: shown(p.Name, 60)}, use, bar, {Text: exact(p.Remaining)}, {Text: exact(p.RemainingForLow)}, {Text: kept}})
	}
	return rows
}

func processesOf(v *limiter.View) [][]fact {
	rows := [][]fact{}
	for _, p := range v.Processes {
		for _, lane := range []struct {
			name schemas.Lane
			view limiter.LaneView
		}{{schemas.High, p.High}, {schemas.Low, p.Low}} {
			longest, why := "", "nobody waits"
			if lane.view.Waiting > 0 {
				longest, why = span(time.Duration(lane.view.OldestMS*float64(time.Millisecond))), shown(lane.view.Reason, errorShown)
			}
			rows = append(rows, []fact{
				{Text: shown(p.Process, 60)}, {Text: string(lane.name)}, {Text: exact(lane.view.Waiting)}, {Text: longest}, {Text: exact(lane.view.Granted)}, {Text: why},
			})
		}
	}
	return rows
}

func scopesOf(v *limiter.View, now time.Time) [][]fact {
	rows := [][]fact{}
	for _, s := range v.Scopes {
		left, state := "not told yet", fact{Text: "goes", Tone: toneOK}
		if s.Remaining != nil {
			left = exact(*s.Remaining)
			if *s.Remaining == 0 {
				state = fact{Text: "used up", Tone: toneWarn}
			}
		}
		if s.BreakerOpen {
			left, state = "", fact{Text: "halted alone", Tone: toneBad}
		}
		if s.Until != nil && s.Until.After(now) {
			state.Text += ", until " + clock(*s.Until, now)
		}
		rows = append(rows, []fact{{Text: shown(s.Policy, 60)}, {Text: shown(s.Scope, 80)}, {Text: left}, {Text: exact(s.InFlight)}, state})
	}
	return rows
}

func readsOf(all []Reads, sources []string) [][]fact {
	rows := [][]fact{}
	for _, r := range all {
		total := r.Fresh + r.Stale + r.Updating + r.Absent
		if !slices.Contains(sources, r.Source) || total == 0 {
			continue
		}
		of := func(n int64) fact { return fact{Text: share(n, total)} }
		rows = append(rows, []fact{
			{Text: r.Source}, {Text: exact(total)}, of(r.Fresh), of(r.Stale), of(r.Updating), of(r.Absent), {Text: age(r.AgeHalf)}, {Text: age(r.AgeMost)},
		})
	}
	return rows
}

func age(d time.Duration) string {
	if d == 0 {
		return "not known"
	}
	return span(d)
}

func dependsOf(all []Dependency) [][]fact {
	rows := [][]fact{}
	for _, d := range all {
		state := fact{Text: "answers", Tone: toneOK}
		if d.Error != "" {
			state = fact{Text: "does not answer: " + shown(d.Error, errorShown), Tone: toneBad}
		}
		rows = append(rows, []fact{{Text: shown(d.Name, keyShown)}, state})
	}
	return rows
}

// weatherTitle is what the weather is called.
func (c *Console) weatherTitle(name string) string {
	if c.Weather != nil {
		for _, k := range c.Weather.Kinds() {
			if k.Name == name {
				return k.Title
			}
		}
	}
	return name
}
