package console

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/freshet/freshet/settings"
)

// prefetchForm has the fields for the prefetch settings of one source.
type prefetchForm struct {
	// On is the current or submitted setting, and OnConfigured the setting in the configuration:
	// "on" or "off".
	On, OnConfigured string
	Facets           []facetForm
}

// facetForm has the fields for the prefetch settings of one facet.
type facetForm struct {
	Facet, Mode string
	Fields      []policyField
}

const (
	prefetchField  = "prefetch" // the field that enables prefetching; also the first part of the names of the other fields
	switchOn       = "on"
	switchOff      = "off"
	activeField    = "active"
	maxActiveShown = 2000 // maximum number of bytes that are shown of a submitted value; enough for the longest field, "active"
)

func onOff(on bool) string {
	if on {
		return switchOn
	}
	return switchOff
}

// newPrefetchForm returns the form. "now" contains the current settings, and "was" the configured
// settings.
func newPrefetchForm(now, was settings.Prefetch) prefetchForm {
	form := prefetchForm{On: onOff(now.Enabled), OnConfigured: onOff(was.Enabled)}
	for _, name := range slices.Sorted(maps.Keys(was.Facets)) {
		n, w := now.Facets[name], was.Facets[name]
		f := facetForm{Facet: name, Mode: w.Mode}
		for _, of := range []struct{ name, label, now, was string }{
			{"hot", "Tier hot, every", n.Hot.String(), w.Hot.String()},
			{"warm", "Tier warm, every", n.Warm.String(), w.Warm.String()},
			{"cold", "Tier cold, every", n.Cold.String(), w.Cold.String()},
			{"minInterval", "Adaptive, shortest", n.MinInterval.String(), w.MinInterval.String()},
			{"maxInterval", "Adaptive, longest", n.MaxInterval.String(), w.MaxInterval.String()},
			{activeField, "Active entities, as JSON", n.Active.String(), w.Active.String()},
		} {
			f.Fields = append(f.Fields, policyField{prefetchField + "." + name + "." + of.name, of.label, of.now, of.was, false, ""})
		}
		form.Facets = append(form.Facets, f)
	}
	return form
}

// keepInput replaces the current values in the form by the values that the client submitted.
func (f *prefetchForm) keepInput(r *http.Request) {
	if _, typed := r.PostForm[prefetchField]; typed {
		f.On = onOff(r.PostFormValue(prefetchField) == switchOn)
	}
	for i := range f.Facets {
		for j := range f.Facets[i].Fields {
			field := &f.Facets[i].Fields[j]
			if _, typed := r.PostForm[field.Name]; typed {
				field.Value = displayText(r.PostFormValue(field.Name), maxActiveShown)
			}
		}
	}
}

// readPatch returns the changes that a submitted form makes to the prefetch settings. If a field is
// empty or equals the configured value, the patch resets the field to the configuration.
func (f *prefetchForm) readPatch(r *http.Request) (m settings.Member[settings.PrefetchPatch], changed bool, err error) {
	var patch settings.PrefetchPatch
	if text, typed := r.PostFormValue(prefetchField), r.PostForm[prefetchField] != nil; typed && text != f.On {
		changed = true
		switch text {
		case f.OnConfigured:
			patch.Enabled = settings.Reset[bool]()
		case switchOn, switchOff:
			patch.Enabled = settings.Set(text == switchOn)
		default:
			return m, false, fmt.Errorf("prefetch: %q must be on or off", displayText(text, 40))
		}
	}
	facets := map[string]settings.Member[settings.FacetPatch]{}
	var errs []error
	for _, facet := range f.Facets {
		var of settings.FacetPatch
		touched := false
		for _, field := range facet.Fields {
			text := strings.TrimSpace(r.PostFormValue(field.Name))
			if r.PostForm[field.Name] == nil || text == field.Value {
				continue
			}
			touched = true
			if err := setFacetField(&of, field, text); err != nil {
				errs = append(errs, fieldError{field.Name, fmt.Errorf("%s: %w", field.Label, err)})
			}
		}
		if touched {
			facets[facet.Facet] = settings.Set(of)
		}
	}
	if len(facets) > 0 {
		patch.Facets, changed = settings.Set(facets), true
	}
	if changed {
		m = settings.Set(patch)
	}
	return m, changed, errors.Join(errs...)
}

// setFacetField sets one field of a patch of a facet's prefetch settings.
func setFacetField(of *settings.FacetPatch, field policyField, text string) error {
	_, name, _ := strings.Cut(strings.TrimPrefix(field.Name, prefetchField+"."), ".")
	back := text == "" || text == field.Configured
	if name == activeField {
		return setMember(&of.Active, back, text, settings.ParseActive)
	}
	to := map[string]*settings.Member[settings.Duration]{
		"hot": &of.Hot, "warm": &of.Warm, "cold": &of.Cold, "minInterval": &of.MinInterval, "maxInterval": &of.MaxInterval,
	}[name]
	return setMember(to, back, text, settings.ParseDuration)
}

func setMember[T any](to *settings.Member[T], back bool, text string, parse func(string) (T, error)) error {
	if back {
		*to = settings.Reset[T]()
		return nil
	}
	value, err := parse(text)
	*to = settings.Set(value)
	return err
}
