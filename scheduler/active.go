package scheduler

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/prefetched"
)

// Active is a rule that selects the prefetched entities of a facet, by their stored content and
// params. An entity that does not match the rule stays registered. It is not requested, but the
// rule is applied again at each of its due times. So a changed rule, or new content after a manual
// refresh, takes effect at the next due time.
//
// Paths have the syntax of "select" in the configuration: names joined by dots, the first of which
// is a document. A dot within a name is written as \.
type Active struct {
	Status Status `yaml:"status,omitempty"`
	// Unless is a list of paths. An entity whose content has a value at one of them, such as a final
	// result, is finished. It is not prefetched.
	Unless []string `yaml:"unless,omitempty"`
	// Params are the names of params. An entity is prefetched only if it has a value for each of
	// them.
	Params []string `yaml:"params,omitempty"`
}

// Status selects the entities to prefetch by a value in their content. Entities whose content has no
// value at Path are prefetched.
type Status struct {
	// Path is the path of the value, as document.member.
	Path string `yaml:"path,omitempty"`
	// Allow lists the values of prefetched entities; empty means every value that is not in Block.
	Allow []string `yaml:"allow,omitempty"`
	// Block lists the values of entities that are not prefetched.
	Block []string `yaml:"block,omitempty"`
}

func (a Active) check() error {
	var errs []error
	if s := a.Status; (s.Path == "") != (len(s.Allow)+len(s.Block) == 0) {
		errs = append(errs, errors.New("active.status: needs `path`, and at least one value in `allow` or `block`"))
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
		errs = append(errs, errors.New("active: the lists `unless` and `params` must not contain an empty name"))
	}
	return errors.Join(errs...)
}

// needsContent reports whether the rule depends on the stored content of an entity.
func (a Active) needsContent() bool { return a.Status.Path != "" || len(a.Unless) > 0 }

// allows reports whether the rule selects an entity. It selects an entity with unreadable content,
// because a refresh replaces the content.
func (a Active) allows(c prefetched.Candidate) bool {
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

// valueAt returns the value at a path (see Active) in JSON content.
func valueAt(content []byte, path string) gjson.Result {
	names := strings.Split(strings.ReplaceAll(path, `\.`, "\x00"), ".")
	for i, name := range names {
		names[i] = gjson.Escape(strings.ReplaceAll(name, "\x00", "."))
	}
	return gjson.GetBytes(content, strings.Join(names, "."))
}

// nonEmpty reports whether the value exists and is not null, "", [] or {}.
func nonEmpty(r gjson.Result) bool {
	return r.Exists() && r.Type != gjson.Null && !slices.Contains([]string{`""`, "[]", "{}"}, r.Raw)
}
