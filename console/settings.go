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

// settingsPage is the page of all quotas.
type settingsPage struct {
	livePage
	All []settingsOf
}

// settingsOf is one source's quota, as a form has it.
type settingsOf struct {
	settings.State
	Problem  string // with what was ordered, or why it can't be read
	Unread   bool
	Policies []policyForm
	Ceilings string
	// CeilingsBefore is what is configured.
	CeilingsBefore string
	Prefetch       prefetchForm
	Note           string
}

// policyForm is one policy as a form has it: what is in force or was typed, and what is
// configured.
type policyForm struct {
	Name, Window string
	Fields       []policyField
}

type policyField struct {
	Name, Label, Value, Configured string
	Whole                          bool // it is a whole number
}

func (c *Console) settings(w http.ResponseWriter, r *http.Request, _ access.Client) {
	c.showSettings(w, r, http.StatusOK, "", "")
}

// showSettings shows all quotas; problem is with what was ordered of the source.
func (c *Console) showSettings(w http.ResponseWriter, r *http.Request, status int, source, problem string) {
	ctx, cancel := bounded(r)
	defer cancel()
	n := c.sampler.now(ctx)
	p := settingsPage{livePage: livePage{facts: c.factsOf(n, c.Sources)}}
	for _, name := range c.Sources {
		state, err := c.Limits.Get(ctx, name)
		s := settingsOf{State: state}
		if err != nil {
			c.Log.Warn("the console can't show a quota", "source", name, "err", err)
			s.Source, s.Unread, s.Problem = name, true, "The settings of "+name+" can't be read; the log says why."
		} else {
			s.fill()
			of := *n.Sources[name] // what was seen may be from before a stop that is told of here
			of.Set = &state
			p.quota(name, &of, n.At)
		}
		if name == source && problem != "" {
			s.Problem = problem
			s.keep(r)
		}
		p.All = append(p.All, s)
	}
	c.render(w, r, status, "settings", "Settings", p)
}

// inForce is the quota that a form shows: what is configured, where what was changed does not
// fit it.
func inForce(s settings.State) settings.Values {
	if s.Effective != nil {
		return *s.Effective
	}
	return s.Configured
}

func (s *settingsOf) fill() {
	now := inForce(s.State)
	for i, p := range now.Policies {
		if i >= len(s.Configured.Policies) {
			break
		}
		was := s.Configured.Policies[i]
		s.Policies = append(s.Policies, policyForm{p.Name, p.Window, []policyField{
			{"limit." + p.Name, "Limit", strconv.Itoa(p.Limit), strconv.Itoa(was.Limit), true},
			{"target." + p.Name, "Target", strconv.Itoa(p.Target), strconv.Itoa(was.Target), true},
			{"high." + p.Name, "Kept for HIGH", p.HighReserve.String(), was.HighReserve.String(), false},
			{"low." + p.Name, "Kept for LOW", strconv.Itoa(p.LowReserve), strconv.Itoa(was.LowReserve), true},
		}})
	}
	s.Ceilings, s.CeilingsBefore = ceilingsText(now.LowCeilings), ceilingsText(s.Configured.LowCeilings)
	s.Prefetch = prefetchOf(now.Prefetch, s.Configured.Prefetch)
}

// keep has the form show again what was typed.
func (s *settingsOf) keep(r *http.Request) {
	if _, typed := r.PostForm["ceilings"]; !typed {
		return
	}
	for i := range s.Policies {
		for j := range s.Policies[i].Fields {
			f := &s.Policies[i].Fields[j]
			f.Value = shown(r.PostFormValue(f.Name), 40)
		}
	}
	s.Prefetch.keep(r)
	s.Ceilings, s.Note = shown(r.PostFormValue("ceilings"), errorShown), shown(r.PostFormValue("note"), noteMost)
}

// ceilingsText is a list of ceilings as people write it: 19-23 150/s, 400/s. One without
// hours holds at all of them.
func ceilingsText(all []limiter.Ceiling) string {
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

// readCeilings reads them, also as the command takes them: 19-23:150/s.
func readCeilings(text string) (settings.Ceilings, error) {
	all := settings.Ceilings{}
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
			return nil, fmt.Errorf("LOW's ceilings: %q must be hours and a rate, as in 19-23 150/s, or a rate for all hours", shown(part, 40))
		}
		all = append(all, limiter.Ceiling{From: first, To: last, Rate: r})
	}
	return all, nil
}

// changeOf reads what was changed of a quota. What is as it was stays as it was.
func changeOf(r *http.Request, s settings.State) (patch settings.Patch, changed bool, err error) {
	if r.PostFormValue("reset") != "" {
		return settings.Patch{
			Policies:    settings.Reset[map[string]settings.Member[settings.PolicyPatch]](),
			LowCeilings: settings.Reset[settings.Ceilings](),
			Prefetch:    settings.Reset[settings.PrefetchPatch](),
		}, true, nil
	}
	form := settingsOf{State: s}
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
			errs = append(errs, setField(&of, j, text, f))
		}
		if touched {
			policies[p.Name] = settings.Set(of)
		}
	}
	if len(policies) > 0 {
		patch.Policies, changed = settings.Set(policies), true
	}
	if text := strings.TrimSpace(r.PostFormValue("ceilings")); text != form.Ceilings && r.PostForm["ceilings"] != nil {
		ceilings, err := readCeilings(text)
		errs = append(errs, err)
		patch.LowCeilings, changed = settings.Set(ceilings), true
		if text == form.CeilingsBefore {
			patch.LowCeilings = settings.Reset[settings.Ceilings]()
		}
	}
	prefetch, also, err := form.Prefetch.change(r)
	patch.Prefetch, changed = prefetch, changed || also
	return patch, changed, errors.Join(append(errs, err)...)
}
