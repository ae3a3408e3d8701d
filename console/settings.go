package console

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/limiter"
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
	RateCaps string
	// RateCapsConfigured contains the rate caps of the LOW lane in the configuration file. RateCaps
	// contains the current or submitted rate caps.
	RateCapsConfigured string
	Prefetch           prefetchForm
	Note               string
}

// policyForm has the fields of one policy.
type policyForm struct {
	Name, Window string
	Fields       []policyField
}

type policyField struct {
	Name, Label, Value, Configured string
	Whole                          bool // the value is an integer
}

func (c *Console) settings(w http.ResponseWriter, r *http.Request, _ access.Client) {
	c.showSettings(w, r, http.StatusOK, "", "")
}

// showSettings shows the settings of all sources. problem is an error message for the submitted
// form of the given source.
func (c *Console) showSettings(w http.ResponseWriter, r *http.Request, status int, source, problem string) {
	ctx, cancel := requestContext(r)
	defer cancel()
	n := c.sampler.latest(ctx)
	p := settingsPage{livePage: livePage{liveStatus: c.statusOf(n, c.Sources)}}
	for _, name := range c.Sources {
		state, err := c.Limits.Get(ctx, name)
		s := settingsForm{State: state}
		if err != nil {
			c.Log.Warn("console settings unavailable", "source", name, "err", err)
			s.Source, s.Unread, s.Problem = name, true, "The settings of "+name+" can't be read; see the log."
		} else {
			s.fill()
			// The sample may be older than the last change of the settings. So the page uses a copy
			// of the sample that contains the settings just read.
			of := *n.Sources[name]
			of.Settings = &state
			p.addSettings(name, &of, n.At)
		}
		if name == source && problem != "" {
			s.Problem = problem
			s.keepInput(r)
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
			{"limit." + p.Name, "Limit", strconv.Itoa(p.Limit), strconv.Itoa(was.Limit), true},
			{"target." + p.Name, "Target", strconv.Itoa(p.Target), strconv.Itoa(was.Target), true},
			{"high." + p.Name, "Reserved for HIGH", p.HighReserve.String(), was.HighReserve.String(), false},
			{"low." + p.Name, "Reserved for LOW", strconv.Itoa(p.LowReserve), strconv.Itoa(was.LowReserve), true},
		}})
	}
	s.RateCaps, s.RateCapsConfigured = rateCapsText(now.LowRateCaps), rateCapsText(s.Configured.LowRateCaps)
	s.Prefetch = newPrefetchForm(now.Prefetch, s.Configured.Prefetch)
}

// keepInput replaces the current values in the form by the values that the client submitted.
func (s *settingsForm) keepInput(r *http.Request) {
	if _, typed := r.PostForm["rateCaps"]; !typed {
		return
	}
	for i := range s.Policies {
		for j := range s.Policies[i].Fields {
			f := &s.Policies[i].Fields[j]
			f.Value = displayText(r.PostFormValue(f.Name), 40)
		}
	}
	s.Prefetch.keepInput(r)
	s.RateCaps, s.Note = displayText(r.PostFormValue("rateCaps"), maxErrorShown), displayText(r.PostFormValue("note"), maxNoteLength)
}

// rateCapsText formats rate caps, for example as "19-23 150/s, 400/s". A rate cap without hours
// applies to all hours.
func rateCapsText(all []limiter.RateCap) string {
	var parts []string
	for _, c := range all {
		if c.From == 0 && c.To == 0 {
			parts = append(parts, c.Rate.String())
		} else {
			parts = append(parts, fmt.Sprintf("%d-%d %s", c.From, c.To, c.Rate))
		}
	}
	return strings.Join(parts, ", ")
}

// readRateCaps parses rate caps as rateCapsText formats them. It also accepts the syntax of the
// command line: 19-23:150/s.
func readRateCaps(text string) (settings.RateCaps, error) {
	all := settings.RateCaps{}
	for part := range strings.SplitSeq(text, ",") {
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}
		hours, rate, timed := strings.Cut(strings.Replace(part, ":", " ", 1), " ")
		if !timed {
			hours, rate = "0-0", part
		}
		from, to, both := strings.Cut(hours, "-")
		first, e1 := strconv.Atoi(from)
		last, e2 := strconv.Atoi(to)
		r, err := limiter.ParseRate(strings.TrimSpace(rate))
		if !both || e1 != nil || e2 != nil || err != nil {
			return nil, fmt.Errorf("LOW's rate caps: %q must be hours and a rate, as in 19-23 150/s, or a rate for all hours", displayText(part, 40))
		}
		all = append(all, limiter.RateCap{From: first, To: last, Rate: r})
	}
	return all, nil
}

// readPatch returns the changes that a submitted form makes to the settings. The patch contains
// only the changed fields.
func readPatch(r *http.Request, s settings.State) (patch settings.Patch, changed bool, err error) {
	if r.PostFormValue("reset") != "" {
		return settings.Patch{
			Policies:    settings.Reset[map[string]settings.Member[settings.PolicyPatch]](),
			LowRateCaps: settings.Reset[settings.RateCaps](),
			Prefetch:    settings.Reset[settings.PrefetchPatch](),
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
			if _, there := r.PostForm[f.Name]; !there || text == f.Value {
				continue
			}
			touched = true
			errs = append(errs, setPolicyField(&of, j, text, f))
		}
		if touched {
			policies[p.Name] = settings.Set(of)
		}
	}
	if len(policies) > 0 {
		patch.Policies, changed = settings.Set(policies), true
	}
	if text := strings.TrimSpace(r.PostFormValue("rateCaps")); text != form.RateCaps && r.PostForm["rateCaps"] != nil {
		rateCaps, err := readRateCaps(text)
		errs = append(errs, err)
		patch.LowRateCaps, changed = settings.Set(rateCaps), true
		if text == form.RateCapsConfigured {
			patch.LowRateCaps = settings.Reset[settings.RateCaps]()
		}
	}
	prefetch, also, err := form.Prefetch.readPatch(r)
	patch.Prefetch, changed = prefetch, changed || also
	return patch, changed, errors.Join(append(errs, err)...)
}
