// Package reference describes the settings of a configuration file. It reads their names, types and
// defaults from Go structs, and their meaning from the doc comments of the structs' fields. From
// this description it finds the mistakes in a file, and writes the JSON Schema, the document and the
// comments.
//
// A program does not contain its doc comments, so they are in descriptions.json. A test of
// cmd/freshet compares that file with the source, and writes it with -update.
package reference

import (
	"reflect"
	"strings"
	"time"
)

// Setting is one setting, or a section of settings. Exactly one of these is true: it has Fields (a
// section), it has an Element (a list or a map), or it has a single value.
type Setting struct {
	// Name is the key in the file. It is NAME for the elements of a map, and empty for the elements
	// of a list.
	Name string
	// Path is the path of the setting, such as sources.NAME.quota.policies[].limit.
	Path string
	// Doc is the meaning, in one paragraph, with the names of settings in backticks.
	Doc string
	// Owner is the Go field of the setting, such as source.Facet.KeyPattern.
	Owner string
	// Default is the value that applies if the file does not have the setting. It is the zero
	// reflect.Value if the setting has no default.
	Default reflect.Value
	Fields  []*Setting
	Element *Setting
	IsList  bool // true if Element describes the elements of a list; false if it describes the elements of a map

	inList bool         // true if the setting is a part of an element of a list; such a setting has no default
	kind   reflect.Type // Go type of a single value, without pointers
	form   Form
}

// Form describes the values of a type in a configuration file.
type Form struct {
	Name string // noun with article, such as "a duration"
	// Hint says how to write a value. If it is empty, the error of the type's own parser must
	// contain that advice.
	Hint string
	// Pattern is a regular expression for the text of a value, in the syntax of ECMA-262.
	Pattern string
	Enum    []string // all valid values, if the type lists them; otherwise empty
	Integer bool     // a value can also be a whole number
	Section bool     // a value is a text or a section with the fields of the type
}

var durationForm = Form{
	Name: "a duration", Hint: "write a duration as in 500ms, 30s or 1h",
	Pattern: `^(0|([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+)$`,
}

// New returns the description of a configuration. The parameter `config` is the Go struct of the
// configuration with its default values. `forms` has the forms of the types that have their own
// parser.
func New(config any, forms map[reflect.Type]Form) *Setting {
	return newSetting(&Setting{}, reflect.ValueOf(config), forms)
}

// newSetting fills in the setting s from the Go value `value`. The type of `value` becomes the
// setting's type, and `value` becomes the setting's default.
func newSetting(s *Setting, value reflect.Value, forms map[reflect.Type]Form) *Setting {
	for value.Kind() == reflect.Pointer {
		value = reflect.Zero(value.Type().Elem())
	}
	s.kind = value.Type()
	if form, known := forms[s.kind]; known {
		s.form = form
		if form.Section {
			s.addFields(value, forms)
		}
		return s
	}
	switch s.kind.Kind() { //nolint:exhaustive // no setting has another kind
	case reflect.Struct:
		s.addFields(value, forms)
	case reflect.Slice:
		s.IsList = true
		s.Element = newSetting(&Setting{Path: s.Path + "[]", inList: true}, reflect.Zero(s.kind.Elem()), forms)
	case reflect.Map:
		s.Element = newSetting(&Setting{Name: "NAME", Path: strings.TrimPrefix(s.Path+".NAME", "."), inList: s.inList}, defaultOf(s.kind.Elem()), forms)
	case reflect.Bool:
		s.form = Form{Name: "true or false"}
	case reflect.Int, reflect.Int64:
		s.form = Form{Name: "a whole number", Integer: true}
		if s.kind == reflect.TypeFor[time.Duration]() {
			s.form = durationForm
		}
	case reflect.Float64:
		s.form = Form{Name: "a number"}
	case reflect.String:
		s.form = Form{Name: "text"}
	}
	return s
}

// defaultOf returns the default of an element of a map: the value that the type's UnmarshalYAML
// gives an empty section.
func defaultOf(t reflect.Type) reflect.Value {
	v := reflect.New(t)
	if u, ok := reflect.TypeAssert[interface{ UnmarshalYAML(func(any) error) error }](v); ok && t.Kind() == reflect.Struct {
		_ = u.UnmarshalYAML(func(any) error { return nil })
	}
	return v.Elem()
}

// addFields adds the fields of a struct. Fields of an embedded struct belong to the same section.
func (s *Setting) addFields(value reflect.Value, forms map[reflect.Type]Form) {
	for i := range value.NumField() {
		field := value.Type().Field(i)
		name, options, _ := strings.Cut(field.Tag.Get("yaml"), ",")
		if options == "inline" {
			s.addFields(value.Field(i), forms)
			continue
		}
		if name == "-" || name == "" {
			continue
		}
		child := newSetting(&Setting{Name: name, Path: strings.TrimPrefix(s.Path+"."+name, "."), inList: s.inList}, value.Field(i), forms)
		child.Owner = value.Type().String() + "." + field.Name
		child.Doc = describe(child.Owner, child.kind)
		if enum := field.Tag.Get("enum"); enum != "" {
			leaf := child
			for leaf.Element != nil {
				leaf = leaf.Element
			}
			leaf.form.Enum = strings.Split(enum, ",")
		}
		if v := value.Field(i); !s.inList && (options != "omitempty" || !v.IsZero()) {
			child.Default = v
		}
		s.Fields = append(s.Fields, child)
	}
}

// Walk calls f for the setting and all settings below it, parents first.
func (s *Setting) Walk(f func(*Setting)) {
	f(s)
	for _, field := range s.Fields {
		field.Walk(f)
	}
	if s.Element != nil {
		s.Element.Walk(f)
	}
}

// Section returns the Go type of a section, such as source.Facet, and an empty string for other
// settings.
func (s *Setting) Section() string {
	if s.Fields == nil {
		return ""
	}
	return s.kind.String()
}

// Enum returns all values of a setting, or nil if its values are not enumerated.
func (s *Setting) Enum() []string { return s.form.Enum }

// field returns the field of a section with this name, or nil.
func (s *Setting) field(name string) *Setting {
	for _, f := range s.Fields {
		if f.Name == name {
			return f
		}
	}
	return nil
}

// names returns the names of the fields of a section.
func (s *Setting) names() []string {
	all := make([]string, len(s.Fields))
	for i, f := range s.Fields {
		all[i] = f.Name
	}
	return all
}

// FormOf returns the form of the values of a type, or the zero Form if the type has none.
func FormOf(t reflect.Type, forms map[reflect.Type]Form) Form {
	return newSetting(&Setting{}, reflect.Zero(t), forms).form
}
