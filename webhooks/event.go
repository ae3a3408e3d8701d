package webhooks

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/freshet/freshet/schemas"
)

const (
	// maxKeys is the maximum number of keys of one delivery.
	maxKeys = 1000
	// maxDepth is the maximum nesting of a body. The parser calls itself for each level, so a body with
	// millions of brackets would exhaust the stack and end the process.
	maxDepth = 100
)

var (
	errNotJSON  = errors.New("the body is not JSON; let the upstream send application/json, without a content encoding")
	errTooDeep  = fmt.Errorf("the body is nested deeper than %d levels", maxDepth)
	errManyKeys = fmt.Errorf("the delivery has more than %d keys", maxKeys)
)

// target is an entity to refresh, with the rule that chose it.
type target struct {
	entity schemas.Entity
	rule   *Rule
}

// event has the entities to refresh that the rules have found in a delivery.
type event struct {
	targets []target
	matched bool // at least one rule applies
	badKeys int  // values that are not valid keys of their facet
}

// read returns the entities to refresh that the rules choose. If several rules choose an entity, the
// result contains it once, with the first of these rules.
func (h *Hook) read(header http.Header, body []byte) (event, error) {
	if err := checkDepth(body); err != nil {
		return event{}, err
	}
	if !gjson.ValidBytes(body) {
		return event{}, errNotJSON
	}
	var ev event
	seen := map[schemas.Entity]bool{}
	for i := range h.config.Map {
		r := &h.config.Map[i]
		if !r.When.holds(header, body) {
			continue
		}
		ev.matched = true
		values, err := r.values(header, body)
		if err != nil {
			return event{}, err
		}
		for _, value := range values {
			e := schemas.Entity{Source: h.source, Facet: r.Facet, Key: h.keys.Fold(r.Facet, value)}
			if e.Check() != nil || h.keys.CheckKey(e.Facet, e.Key) != nil {
				ev.badKeys++
				continue
			}
			if seen[e] {
				continue
			}
			seen[e] = true
			if ev.targets = append(ev.targets, target{e, r}); len(ev.targets) > maxKeys {
				return event{}, errManyKeys
			}
		}
	}
	return ev, nil
}

func (c Condition) holds(header http.Header, body []byte) bool {
	switch {
	case c.Header != "":
		return slices.Contains(c.Equals, header.Get(c.Header))
	case c.Body != "":
		r := gjson.GetBytes(body, c.Body)
		text, ok := textOf(r)
		if r.Type == gjson.True || r.Type == gjson.False {
			text, ok = r.Raw, true
		}
		return ok && slices.Contains(c.Equals, text)
	}
	return true
}

// values returns the values that the delivery has at the place Rule.Key.
func (r *Rule) values(header http.Header, body []byte) ([]string, error) {
	if name, ok := strings.CutPrefix(r.Key, headerPlace); ok {
		if value := header.Get(name); value != "" {
			return []string{value}, nil
		}
		return nil, nil
	}
	return appendTexts(nil, gjson.GetBytes(body, strings.TrimPrefix(r.Key, bodyPlace)), maxArrays)
}

// appendTexts appends the text of a value. If the value is an array, it appends the texts of its
// elements. `levels` is the number of nested arrays that are allowed: each # in a path adds one level.
func appendTexts(all []string, r gjson.Result, levels int) ([]string, error) {
	if !r.IsArray() {
		if text, ok := textOf(r); ok {
			all = append(all, text)
		}
		return all, nil
	}
	if levels == 0 {
		return all, nil
	}
	var err error
	r.ForEach(func(_, element gjson.Result) bool {
		if all, err = appendTexts(all, element, levels-1); err == nil && len(all) > maxKeys {
			err = errManyKeys
		}
		return err == nil
	})
	return all, err
}

// textOf returns the text of a JSON string, or the digits of a JSON number. It does not convert a
// number to a float, because this would change the last digits of a long id.
func textOf(r gjson.Result) (string, bool) {
	switch r.Type { //nolint:exhaustive // other values have no text
	case gjson.String:
		return r.Str, r.Str != ""
	case gjson.Number:
		return r.Raw, true
	}
	return "", false
}

// checkDepth returns an error if the body is nested deeper than maxDepth.
func checkDepth(body []byte) error {
	depth := 0
	inString := false
	for i := 0; i < len(body); i++ {
		switch c := body[i]; {
		case inString:
			switch c {
			case '\\':
				i++
			case '"':
				inString = false
			}
		case c == '"':
			inString = true
		case c == '{' || c == '[':
			if depth++; depth > maxDepth {
				return errTooDeep
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return nil
}
