package console

import (
	"fmt"
	"time"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/settings"
	"github.com/freshet/freshet/status"
)

// addSettings adds the changing texts and tables of the settings page for one source.
func (f *liveStatus) addSettings(source string, of *sourceSample, now time.Time) {
	f.Items["set."+source] = stopState(of.Settings)
	f.Items["force."+source] = statusItem{Text: revisionMessage(of, now)}
	empty := "The settings can't be read."
	if of.Settings != nil {
		empty = "It has no policy."
	}
	f.addTable("force."+source, "Settings of "+source+", with the configured value where it differs", empty,
		[]column{textColumn("Policy"), numberColumn("Limit"), numberColumn("Target"), numberColumn("Reserved for HIGH"), numberColumn("Reserved for LOW")}, settingRows(of.Settings))
}

func stopState(s *settings.State) statusItem {
	switch {
	case s == nil:
		return statusItem{Text: "not known", Tone: toneBad}
	case s.Stopped:
		return statusItem{Text: string(limiter.StateStopped), Tone: toneBad}
	}
	return statusItem{Text: "not stopped", Tone: toneOK}
}

// revisionMessage describes which revision of the settings is stored, and which revision the limiter
// uses.
func revisionMessage(of *sourceSample, now time.Time) string {
	s, v := of.Settings, of.Limits
	if s == nil {
		return "The settings can't be read; see the log. The previous settings stay in force."
	}
	text := "As configured"
	if s.Revision > 0 && s.ChangedAt != nil && s.ChangedBy != nil {
		text = fmt.Sprintf("Revision %d, by %s, %s", s.Revision, displayText(*s.ChangedBy, 60), formatTime(*s.ChangedAt, now))
	}
	switch {
	case v == nil:
		text += "; whether it is in force is unknown, because Redis does not answer."
	case v.State == limiter.StateUnused:
		text += "; no process has called the source yet."
	case v.Revision < s.Revision && len(v.Processes) == 0:
		text += fmt.Sprintf("; revision %d is in force in Redis, and no worker is running to apply the new one.", v.Revision)
	case v.Revision < s.Revision:
		text += fmt.Sprintf("; revision %d is in force; all processes apply the new one within two seconds.", v.Revision)
	case v.Revision > s.Revision:
		text += fmt.Sprintf("; but Redis has the newer revision %d, and that revision is in force. The database was restored to an older state. See \"After the restore of an older database\" in docs/operating.md.", v.Revision)
	default:
		text += "; in force."
	}
	return text
}

// settingRows returns a table row for each policy, with its current and configured settings.
func settingRows(s *settings.State) [][]statusItem {
	if s == nil {
		return nil
	}
	rows := [][]statusItem{}
	now := effectiveQuota(*s)
	for i, p := range now.Policies {
		if i >= len(s.Configured.Policies) {
			break
		}
		was := s.Configured.Policies[i]
		rows = append(rows, []statusItem{
			{Text: policyLabel(p)},
			withConfigured(status.FormatInt(p.Limit), status.FormatInt(was.Limit)), withConfigured(targetText(p.Target), targetText(was.Target)),
			withConfigured(p.HighReserve.String(), was.HighReserve.String()), withConfigured(status.FormatInt(p.LowReserve), status.FormatInt(was.LowReserve)),
		})
	}
	return rows
}

// withConfigured returns the current value of a setting. If the configured value differs, the text
// contains both.
func withConfigured(set, configured string) statusItem {
	if set == configured {
		return statusItem{Text: set}
	}
	return statusItem{Text: set + " (configured " + configured + ")", Tone: toneWarn}
}

// policyLabel returns the name of a policy and its window.
func policyLabel(p settings.Policy) string {
	if p.Name == p.Window {
		return displayText(p.Name, 60)
	}
	return displayText(p.Name, 60) + " (" + p.Window + ")"
}

// targetText formats the target of a policy: the number of calls per window that the limiter
// allows. If the target is 0 (not set), the limiter derives that number from the policy's limit,
// and the text is "derived from the limit".
func targetText(n int) string {
	if n == 0 {
		return "derived from the limit"
	}
	return status.FormatInt(n)
}
