package console

import (
	"errors"
	"net/http"
	"strconv"
	"strings"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/admin"
	"github.com/freshet/freshet/settings"
)

// settingsPage is the data of the settings page.
type settingsPage struct {
	livePage
	All []settingsForm
}

// settingsForm is the form with the settings of one source.
type settingsForm struct {
	settings.State
	Problem  string // error message for the submitted form, or if the settings can't be read
	Unread   bool
	Policies []policyForm
	Prefetch prefetchForm
	Note     string
}

// policyForm has the fields of one policy.
type policyForm struct {
	Name, Window string
	Fields       []policyField
}

type policyField struct {
	Name, Label, Value, Configured string
	Whole                          bool   // the value is an integer
	Problem                        string // error message for the submitted value
}

// settingsPages are the pages of the settings and of the audit log.
type settingsPages struct{ *Console }

func (c *settingsPages) settings(w http.ResponseWriter, r *http.Request, _ access.Client) {
	c.showSettings(w, r, http.StatusOK, "", nil)
}

// showSettings shows the settings of all sources. `problem` is the error of the submitted form of the
// given source; nil: there is none.
func (c *settingsPages) showSettings(w http.ResponseWriter, r *http.Request, status int, source string, problem error) {
	ctx, cancel := requestContext(r)
	defer cancel()
	n := c.sampler.latest(ctx)
	p := settingsPage{livePage: livePage{liveStatus: c.statusOf(n, c.Sources)}}
	for _, name := range c.Sources {
		state, err := c.Limits.Get(ctx, name)
		s := settingsForm{State: state}
		if err != nil {
			c.Log.Warn("settings of a source can't be read; the settings page shows an error for this source", "source", name, "err", err)
			s.Source, s.Unread, s.Problem = name, true, "The settings of "+name+" can't be read; see the log."
		} else {
			s.fill()
			// The sample may be older than the last change of the settings. So the page uses a copy
			// of the sample that contains the settings just read.
			of := *n.Sources[name]
			of.Settings = &state
			p.addSettings(name, &of, n.At)
		}
		if name == source && problem != nil {
			s.Problem = policyPrefix.ReplaceAllString(errorSentence(problem), "${1}olicy ")
			s.keepInput(r)
			s.markFields(problem)
		}
		p.All = append(p.All, s)
	}
	c.render(w, r, status, "settings", "Settings", p)
}

// effectiveQuota returns the quota that is in force. If the stored changes no longer fit the
// configuration, the configured quota is in force.
func effectiveQuota(s settings.State) settings.Values {
	if s.Effective != nil {
		return *s.Effective
	}
	return s.Configured
}

func (s *settingsForm) fill() {
	now := effectiveQuota(s.State)
	for i, p := range now.Policies {
		if i >= len(s.Configured.Policies) {
			break
		}
		was := s.Configured.Policies[i]
		s.Policies = append(s.Policies, policyForm{p.Name, p.Window, []policyField{
			{"limit." + p.Name, "Limit", strconv.Itoa(p.Limit), strconv.Itoa(was.Limit), true, ""},
			{"target." + p.Name, "Target", targetValue(p.Target), targetValue(was.Target), true, ""},
			{"high." + p.Name, "Reserved for HIGH", p.HighReserve.String(), was.HighReserve.String(), false, ""},
			{"low." + p.Name, "Reserved for LOW", strconv.Itoa(p.LowReserve), strconv.Itoa(was.LowReserve), true, ""},
		}})
	}
	s.Prefetch = newPrefetchForm(now.Prefetch, s.Configured.Prefetch)
}

// targetValue returns the value of the field of a target. It is empty if the target is not set.
func targetValue(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

// keepInput replaces the current values in the form by the values that the client submitted.
func (s *settingsForm) keepInput(r *http.Request) {
	if _, edited := r.PostForm["revision"]; !edited {
		return // the form to stop or resume the source has no settings
	}
	for i := range s.Policies {
		for j := range s.Policies[i].Fields {
			f := &s.Policies[i].Fields[j]
			f.Value = displayText(r.PostFormValue(f.Name), 40)
		}
	}
	s.Prefetch.keepInput(r)
	s.Note = displayText(r.PostFormValue("note"), admin.MaxNoteLength)
}

// readPatch returns the changes that a submitted form makes to the settings. The patch contains
// only the changed fields.
func readPatch(r *http.Request, s settings.State) (patch settings.Patch, changed bool, err error) {
	if r.PostFormValue("reset") != "" {
		return settings.Patch{
			Policies: settings.Reset[map[string]settings.Member[settings.PolicyPatch]](),
			Prefetch: settings.Reset[settings.PrefetchPatch](),
		}, true, nil
	}
	form := settingsForm{State: s}
	form.fill()
	policies := map[string]settings.Member[settings.PolicyPatch]{}
	var errs []error
	for _, p := range form.Policies {
		var of settings.PolicyPatch
		touched := false
		for j, f := range p.Fields {
			text := strings.TrimSpace(r.PostFormValue(f.Name))
			if strings.HasPrefix(f.Name, "target.") && text == "0" {
				text = "" // 0 and an empty field both mean that no target is set
			}
			if _, there := r.PostForm[f.Name]; !there || text == f.Value {
				continue
			}
			touched = true
			if err := setPolicyField(&of, j, text, f); err != nil {
				errs = append(errs, fieldError{f.Name, err})
			}
		}
		if touched {
			policies[p.Name] = settings.Set(of)
		}
	}
	if len(policies) > 0 {
		patch.Policies, changed = settings.Set(policies), true
	}
	prefetch, also, err := form.Prefetch.readPatch(r)
	patch.Prefetch, changed = prefetch, changed || also
	return patch, changed, errors.Join(append(errs, err)...)
}
