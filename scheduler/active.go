package scheduler

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/freshet/freshet/store"
)

// Active says which entities are asked for by themselves; the others are looked at when
// they are due, and left alone. It is judged by what is stored then: a changed rule holds
// at once, and what a person's refresh finds open again comes back. A path is names joined
// by dots, the first a document's, as in select; a dot within a name is written \.
type Active struct {
	Status Status `yaml:"status,omitempty"`
	// Unless are paths where an entity that has come to its end holds something, as a
	// final result.
	Unless []string `yaml:"unless,omitempty"`
	// Params are those that must be registered for an entity to be asked for: what is
	// not linked to the upstream can't be.
	Params []string `yaml:"params,omitempty"`
}

// Status is a word that says how it stands with an entity. One that is not there says
// nothing: it takes a reason to leave an entity out.
type Status struct {
	Path  string   `yaml:"path,omitempty"`
	Allow []string `yaml:"allow,omitempty"` // empty: all that are not blocked
	Block []string `yaml:"block,omitempty"`
}

func (a Active) check() error {
	var errs []error
	if s := a.Status; (s.Path == "") != (len(s.Allow)+len(s.Block) == 0) {
		errs = append(errs, errors.New("active.status: it takes a path, and words to allow or to block"))
	}
	for _, word := range a.Status.Allow {
		if slices.Contains(a.Status.Block, word) {
			errs = append(errs, fmt.Errorf("active.status: %q is both allowed and blocked", word))
		}
	}
	for _, p := range append([]string{a.Status.Path}, a.Unless...) {
		if p != "" && (!strings.Contains(p, ".") || strings.HasPrefix(p, ".") || strings.HasSuffix(p, ".") || strings.Contains(p, "..")) {
			errs = append(errs, fmt.Errorf("active: %q must be a path as in document.member", p))
		}
	}
	if slices.Contains(a.Unless, "") || slices.Contains(a.Params, "") {
		errs = append(errs, errors.New("active: unless and params must not hold an empty name"))
	}
	return errors.Join(errs...)
}

// needsContent reports whether content is judged.
func (a Active) needsContent() bool { return a.Status.Path != "" || len(a.Unless) > 0 }

// allows reports whether an entity is asked for. Content that can't be read speaks
// against nothing: the refresh mends it.
func (a Active) allows(c store.Candidate) bool {
	for _, name := range a.Params {
		if c.Params[name] == "" {
			return false
		}
	}
	if !a.needsContent() || len(c.Payload) == 0 {
		return true
	}
	content, err := store.Snapshot{State: c.State, Payload: c.Payload}.Decode(nil)
	if err != nil {
		return true
	}
	for _, p := range a.Unless {
		if nonEmpty(valueAt(content, p)) {
			return false
		}
	}
	if a.Status.Path == "" {
		return true
	}
	word := valueAt(content, a.Status.Path)
	if !nonEmpty(word) {
		return true
	}
	allowed := len(a.Status.Allow) == 0 || slices.Contains(a.Status.Allow, word.String())
	return allowed && !slices.Contains(a.Status.Block, word.String())
}

// valueAt returns what stands at a path.
func valueAt(content []byte, path string) gjson.Result {
	names := strings.Split(strings.ReplaceAll(path, `\.`, "\x00"), ".")
	for i, name := range names {
		names[i] = gjson.Escape(strings.ReplaceAll(name, "\x00", "."))
	}
	return gjson.GetBytes(content, strings.Join(names, "."))
}

// nonEmpty reports whether there is something: null and what is empty are nothing.
func nonEmpty(r gjson.Result) bool {
	return r.Exists() && r.Type != gjson.Null && !slices.Contains([]string{`""`, "[]", "{}"}, r.Raw)
}
