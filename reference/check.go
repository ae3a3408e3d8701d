package reference

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// Mistake is an unknown setting, or a value of a wrong type.
type Mistake struct {
	Path    string // path of the setting in the file, such as sources.shop.url
	Message string
	Token   *token.Token // token of the unknown key, or of the wrong value
}

// Check returns all unknown settings and all values of a wrong type below a node of a file. In maps,
// it replaces elements without a value by empty sections, so that their defaults apply.
func (s *Setting) Check(node ast.Node) []Mistake {
	c := &checker{root: s, anchors: map[string]ast.Node{}}
	ast.Walk(c, node)
	c.check(s, node, "")
	return c.mistakes
}

type checker struct {
	root     *Setting
	anchors  map[string]ast.Node
	mistakes []Mistake
}

// Visit implements ast.Visitor. It collects the anchors of the file.
func (c *checker) Visit(node ast.Node) ast.Visitor {
	if a, ok := node.(*ast.AnchorNode); ok {
		c.anchors[a.Name.GetToken().Value] = a.Value
	}
	return c
}

// maxAliases bounds the length of a chain of aliases. The chain would be endless if an alias refers
// to an anchor that contains this alias.
const maxAliases = 100

// resolve returns the node that an alias or an anchor stands for. If the anchor is missing, it
// returns nil; the decoder of the file reports that error.
func (c *checker) resolve(node ast.Node) ast.Node {
	for range maxAliases {
		switch n := node.(type) {
		case *ast.AnchorNode:
			node = n.Value
		case *ast.AliasNode:
			target, known := c.anchors[n.Value.GetToken().Value]
			if !known {
				return nil
			}
			node = target
		default:
			return node
		}
	}
	return nil
}

func (c *checker) fail(path string, at *token.Token, format string, args ...any) {
	c.mistakes = append(c.mistakes, Mistake{path, fmt.Sprintf(format, args...), at})
}

// check checks a node as the value of a setting at this path in the file.
func (c *checker) check(s *Setting, node ast.Node, path string) {
	at := node.GetToken()
	value := c.resolve(node)
	if _, null := value.(*ast.NullNode); null || value == nil || s.kind.Kind() == reflect.Interface {
		return // nothing to check: the default applies, or the decoder reports the missing anchor, or every value is valid
	}
	switch {
	case s.Element != nil && s.IsList:
		list, ok := value.(*ast.SequenceNode)
		if !ok {
			c.fail(path, at, "must be a list, as in [a, b], not %s", nounOf(value))
			return
		}
		for i, element := range list.Values {
			c.check(s.Element, element, path+"["+strconv.Itoa(i)+"]")
		}
	case s.Element != nil || s.Fields != nil:
		entries, ok := value.(ast.MapNode)
		if _, scalar := value.(ast.ScalarNode); scalar && s.form.Section {
			return
		}
		if !ok {
			c.fail(path, at, "must be a section, as in {%s: …}, not %s", s.firstName(), nounOf(value))
			return
		}
		for it := entries.MapRange(); it.Next(); {
			c.checkEntry(s, it.KeyValue(), path)
		}
	default:
		c.checkValue(s, value, path)
	}
}

// firstName returns the name of the first setting of a section, as an example for an error message.
func (s *Setting) firstName() string {
	if len(s.Fields) > 0 {
		return s.Fields[0].Name
	}
	return s.Element.Name
}

// checkEntry checks one entry of a section or a map.
func (c *checker) checkEntry(s *Setting, entry *ast.MappingValueNode, path string) {
	if _, merge := entry.Key.(*ast.MergeKeyNode); merge {
		switch merged := c.resolve(entry.Value).(type) {
		case *ast.SequenceNode:
			for _, one := range merged.Values {
				c.check(s, one, path)
			}
		case ast.MapNode:
			c.check(s, entry.Value, path)
		}
		return
	}
	key := entry.Key.GetToken()
	at := strings.TrimPrefix(path+"."+key.Value, ".")
	if s.Element != nil {
		if _, null := c.resolve(entry.Value).(*ast.NullNode); null && s.Element.Fields != nil && !s.Element.form.Section {
			entry.Value = ast.Mapping(entry.Value.GetToken(), true)
			return
		}
		c.check(s.Element, entry.Value, at)
		return
	}
	field := s.field(key.Value)
	if field == nil {
		c.fail(at, key, "unknown setting; %s", c.suggest(s, key.Value))
		return
	}
	c.check(field, entry.Value, at)
}

// suggest returns a hint for an unknown setting of a section: a similar setting of the section, or
// else the setting of the same name in another section, or else all settings of the section.
func (c *checker) suggest(s *Setting, unknown string) string {
	if near := Suggest(unknown, s.names()); near != "" {
		return "did you mean " + near + "?"
	}
	for _, in := range []*Setting{s, c.root} {
		found := ""
		in.Walk(func(other *Setting) {
			if found == "" && EnvName(other.Name) == EnvName(unknown) {
				found = other.Path
			}
		})
		if found != "" {
			return "did you mean " + found + "?"
		}
	}
	return "the settings here are " + strings.Join(s.names(), ", ")
}

// checkValue decodes a single value in the same way as the decoder of the whole file.
func (c *checker) checkValue(s *Setting, value ast.Node, path string) {
	if _, scalar := value.(ast.ScalarNode); !scalar {
		c.fail(path, value.GetToken(), "must be %s, not %s", s.form.Name, nounOf(value))
		return
	}
	if err := yaml.NodeToValue(value, reflect.New(s.kind).Interface()); err != nil {
		c.fail(path, value.GetToken(), "%s", s.form.Explain(value.GetToken().Value, err))
	}
}

// Explain returns the message for a text that the parser of the type rejects with an error.
func (f Form) Explain(text string, err error) string {
	switch {
	case f.Hint != "":
		return fmt.Sprintf("%s is not %s; %s", strconv.Quote(text), f.Name, f.Hint)
	case f.Pattern != "" || f.Enum != nil: // the type has its own parser, and the error of this parser contains a hint
		return strings.TrimSpace(yaml.FormatError(err, false, false))
	}
	return fmt.Sprintf("%s must be %s", strconv.Quote(text), f.Name)
}

// nounOf returns the words that name a node in an error message, such as "a list".
func nounOf(node ast.Node) string {
	switch n := node.(type) {
	case *ast.SequenceNode:
		return "a list"
	case ast.MapNode:
		return "a section"
	case ast.ScalarNode:
		return strconv.Quote(n.GetToken().Value)
	}
	return "another value"
}
