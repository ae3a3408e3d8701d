package runs

import (
	"errors"
	"fmt"
	"strings"

	"github.com/tidwall/gjson"
)

// template is the key of a step with paths of an item in braces, such as "{owner.login}/{name}".
type template []templatePart

type templatePart struct {
	text string // literal text before the path
	path string // gjson path after the text; empty means that the template ends here
}

func parseTemplate(text string) (t template, err error) {
	if text == "" {
		return nil, errors.New("is missing; write the path of the key in an item, as in \"{full_name}\"")
	}
	paths := 0
	for text != "" {
		literal, rest, found := strings.Cut(text, "{")
		if strings.Contains(literal, "}") {
			return nil, fmt.Errorf("%q has a } without a {", literal+"}")
		}
		part := templatePart{text: literal}
		if text = rest; found {
			if part.path, text, found = strings.Cut(rest, "}"); !found || part.path == "" || strings.Contains(part.path, "{") {
				return nil, fmt.Errorf("%q has a { without a path and a }", "{"+rest)
			}
			paths++
		}
		t = append(t, part)
	}
	if paths == 0 {
		return nil, errors.New("has no path in braces, so each item would have the same key; write the path of a member, as in \"{full_name}\"")
	}
	return t, nil
}

// keyOf returns the key of the step for an item. It fails if the item has neither a text nor a number
// at one of the paths.
func (t template) keyOf(item gjson.Result) (string, error) {
	var b strings.Builder
	for _, part := range t {
		b.WriteString(part.text)
		if part.path == "" {
			continue
		}
		value := item.Get(part.path)
		if value.Type != gjson.String && value.Type != gjson.Number {
			return "", fmt.Errorf("the item has no text or number at the path %q", part.path)
		}
		b.WriteString(value.String())
	}
	return b.String(), nil
}
