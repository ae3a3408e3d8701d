package console

import (
	"fmt"
	"time"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/settings"
)

// quota tells what the page of the settings shows live of a source.
func (f *facts) quota(source string, of *seen, now time.Time) {
	f.Facts["set."+source] = setState(of.Set)
	f.Facts["force."+source] = fact{Text: forceSays(of, now)}
	empty := "The settings can't be read."
	if of.Set != nil {
		empty = "It has no policy."
	}
	f.table("force."+source, "What is set for "+source+", and what is configured where that is another", empty,
		[]string{"Policy", "Limit", "Target", "HIGH keeps", "LOW keeps"}, "01111", setOf(of.Set))
}

func setState(s *settings.State) fact {
	switch {
	case s == nil:
		return fact{Text: "not known", Tone: toneBad}
	case s.Stopped:
		return fact{Text: stateStopped, Tone: toneBad}
	}
	return fact{Text: "not stopped", Tone: toneOK}
}

// forceSays is which revision is set, which is in force, and LOW's rate cap.
func forceSays(of *seen, now time.Time) string {
	s, v := of.Set, of.Limits
	if s == nil {
		return "The settings can't be read; the log says why. What was in force goes on."
	}
	text := "As it is configured"
	if s.Revision > 0 && s.ChangedAt != nil && s.ChangedBy != nil {
		text = fmt.Sprintf("Revision %d, by %s, %s", s.Revision, shown(*s.ChangedBy, 60), clock(*s.ChangedAt, now))
	}
	switch {
	case v == nil:
		text += "; whether it is in force is not known, since Redis does not answer."
	case v.State == stateUnused:
		text += "; no process has called the source yet."
	case v.Revision < s.Revision && len(v.Processes) == 0:
		text += fmt.Sprintf("; revision %d is in force for Redis, and no worker runs that could follow.", v.Revision)
	case v.Revision < s.Revision:
		text += fmt.Sprintf("; revision %d is in force, and all processes follow within two seconds.", v.Revision)
	case v.Revision > s.Revision:
		text += fmt.Sprintf("; but revision %d is in force for Redis, which the database does not have: it was restored. See \"After the restore of an older database\" in docs/operating.md.", v.Revision)
	default:
		text += "; in force."
	}
	if v == nil {
		return text
	}
	for _, b := range v.Low.Bounds {
		if b.Kind == limiter.ByRateCap {
			return text + " At this hour LOW may make " + rated(b.PerSecond) + " calls a second at most."
		}
	}
	return text
}

// setOf is what is set of each policy.
func setOf(s *settings.State) [][]fact {
	if s == nil {
		return nil
	}
	rows := [][]fact{}
	now := inForce(*s)
	for i, p := range now.Policies {
		if i >= len(s.Configured.Policies) {
			break
		}
		was := s.Configured.Policies[i]
		rows = append(rows, []fact{
			{Text: windowed(p)},
			besides(exact(p.Limit), exact(was.Limit)), besides(targetOf(p.Target), targetOf(was.Target)),
			besides(p.HighReserve.String(), was.HighReserve.String()), besides(exact(p.LowReserve), exact(was.LowReserve)),
		})
	}
	rateCaps, before := rateCapsText(now.LowRateCaps), rateCapsText(s.Configured.LowRateCaps)
	if rateCaps != before {
		rows = append(rows, []fact{{Text: "LOW's rate caps"}, besides(orNone(rateCaps), orNone(before)), {Text: ""}, {Text: ""}, {Text: ""}})
	}
	return rows
}

// besides is what is set, and what is configured beside it.
func besides(set, configured string) fact {
	if set == configured {
		return fact{Text: set}
	}
	return fact{Text: set + " (configured " + configured + ")", Tone: toneWarn}
}

func orNone(text string) string {
	if text == "" {
		return "none"
	}
	return text
}

// windowed is a policy with its window.
func windowed(p settings.Policy) string {
	if p.Name == p.Window {
		return shown(p.Name, 60)
	}
	return shown(p.Name, 60) + " (" + p.Window + ")"
}

// targetOf is a target; none is as many as the limit's bound allows.
func targetOf(n int) string {
	if n == 0 {
		return "by the limit"
	}
	return exact(n)
}
