package reference

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"strings"

	"github.com/goccy/go-yaml"
)

// schema is the part of JSON Schema (draft 2020-12) that describes settings.
type schema struct {
	Draft       string     `json:"$schema,omitempty"`
	ID          string     `json:"$id,omitempty"`
	Title       string     `json:"title,omitempty"`
	Description string     `json:"description,omitempty"`
	Type        any        `json:"type,omitempty"` // name of a JSON type, or a list of such names
	Default     any        `json:"default,omitempty"`
	Enum        []any      `json:"enum,omitempty"`
	Pattern     string     `json:"pattern,omitempty"`
	Items       *schema    `json:"items,omitempty"`
	Properties  properties `json:"properties,omitempty"`
	Additional  any        `json:"additionalProperties,omitempty"` // false, or the schema of the members that are not in Properties
}

// properties are the schemas of a section's settings, in the order of the settings.
type properties []property

type property struct {
	name  string
	value *schema
}

// MarshalJSON writes an object with its members in order.
func (p properties) MarshalJSON() ([]byte, error) {
	var out bytes.Buffer
	out.WriteByte('{')
	for i, one := range p {
		if i > 0 {
			out.WriteByte(',')
		}
		value, err := json.Marshal(one.value)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&out, "%q:%s", one.name, value)
	}
	out.WriteByte('}')
	return out.Bytes(), nil
}

// Schema returns the JSON Schema (draft 2020-12) of the configuration file. It accepts a section or a
// setting without a value (null), as Check does.
func (s *Setting) Schema(id, title string) ([]byte, error) {
	made := s.schema()
	made.Draft, made.ID, made.Title = "https://json-schema.org/draft/2020-12/schema", id, title
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	err := encoder.Encode(made)
	return out.Bytes(), err
}

func (s *Setting) schema() *schema {
	made := &schema{Description: strings.ReplaceAll(s.Doc, "`", ""), Default: s.plainDefault()}
	switch {
	case s.Fields != nil:
		made.Type, made.Additional = []string{"object", "null"}, false
		if s.form.Section {
			made.Type = []string{"object", "string", "number", "boolean", "null"}
		}
		for _, f := range s.Fields {
			made.Properties = append(made.Properties, property{f.Name, f.schema()})
		}
	case s.IsList:
		made.Type, made.Items = []string{"array", "null"}, s.Element.schema()
	case s.Element != nil:
		made.Type, made.Additional = []string{"object", "null"}, s.Element.schema()
	default:
		made.describeValue(s)
	}
	return made
}

// describeValue adds the valid values of a setting with a single value.
func (m *schema) describeValue(s *Setting) {
	types := []string{"string"}
	switch {
	case s.kind.Kind() == reflect.Interface:
		return // this type has no constraint: every value is valid
	case s.kind.Kind() == reflect.Bool:
		types = []string{"boolean"}
	case s.kind.Kind() == reflect.Float64 && s.form.Pattern == "":
		types = []string{"number"}
	case s.form.Integer && s.form.Pattern != "":
		types = []string{"string", "integer"}
	case s.form.Integer:
		types = []string{"integer"}
	case s.form.Pattern == "" && s.form.Enum == nil && s.Name == "NAME":
		types = []string{"string", "number", "boolean"} // the value of a header or a parameter: YAML reads a value without quotes, such as 2, as a number
	}
	m.Type, m.Pattern = append(types, "null"), s.form.Pattern
	for _, word := range s.form.Enum {
		m.Enum = append(m.Enum, word)
	}
	if s.form.Enum != nil {
		m.Enum = append(m.Enum, nil)
	}
}

// plainDefault returns the default as a JSON value, or nil if the setting has no default. It returns
// nil for a section too, because the settings of the section have their own defaults.
func (s *Setting) plainDefault() any {
	if !s.Default.IsValid() || s.Fields != nil {
		return nil
	}
	text, err := yaml.Marshal(s.Default.Interface())
	if err != nil {
		return nil
	}
	var plain any
	if err := yaml.Unmarshal(text, &plain); err != nil {
		return nil
	}
	return shorten(plain)
}

var zeroUnits = regexp.MustCompile(`^([0-9.]+h)0m0s$|^([0-9.]+h[0-9]+m|[0-9.]+m)0s$`)

// shorten removes the units that are zero from durations: 1h instead of 1h0m0s. It returns nil for
// an empty text, list or section, because the schema and the document do not show such a default.
func shorten(plain any) any {
	switch v := plain.(type) {
	case string:
		if v == "" {
			return nil
		}
		return zeroUnits.ReplaceAllString(v, "$1$2")
	case []any:
		if len(v) == 0 {
			return nil
		}
		for i := range v {
			v[i] = shorten(v[i])
		}
	case map[string]any:
		if len(v) == 0 {
			return nil
		}
	}
	return plain
}
