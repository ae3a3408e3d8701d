package schemas

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/goccy/go-yaml"
)

// The following types are the part of an OpenAPI document that the page supports. Parsing is
// strict: if the document has a field that these types lack, parsing fails, because the field would
// be missing on the page.

type document struct {
	OpenAPI    string
	Info       info
	Servers    []server
	Security   []requirement
	Tags       []tag
	Paths      ordered[path]
	Components components
}

type info struct {
	Title, Version, Summary, Description, TermsOfService string
	License                                              struct{ Name, Identifier, URL string }
	Contact                                              struct{ Name, URL, Email string }
}

type server struct{ URL, Description, Name string }

type tag struct {
	Name, Summary, Description string
}

// requirement maps the names of security schemes to the scopes that a request needs. A request must
// fulfil all schemes of a requirement.
type requirement = ordered[[]string]

type path struct {
	Summary, Description                                string
	Parameters                                          []parameter
	Get, Put, Post, Delete, Options, Head, Patch, Trace *operation
}

type operation struct {
	OperationID          string `yaml:"operationId"`
	Tags                 []string
	Summary, Description string
	Deprecated           bool
	Parameters           []parameter
	RequestBody          *requestBody `yaml:"requestBody"`
	Responses            ordered[response]
	Security             *[]requirement
}

type parameter struct {
	Ref                   string `yaml:"$ref"`
	Name, In, Description string
	Required, Deprecated  bool
	Style                 string
	Explode               *bool
	AllowReserved         bool `yaml:"allowReserved"`
	Schema                *schema
	Example               *literal
	Examples              ordered[namedExample]
}

type requestBody struct {
	Ref         string `yaml:"$ref"`
	Description string
	Required    bool
	Content     ordered[media]
}

type response struct {
	Ref                  string `yaml:"$ref"`
	Summary, Description string
	Headers              ordered[parameter]
	Content              ordered[media]
}

type media struct {
	Schema   *schema
	Example  *literal
	Examples ordered[namedExample]
}

type namedExample struct {
	Ref                  string `yaml:"$ref"`
	Summary, Description string
	Value                *literal
}

type components struct {
	Parameters      ordered[parameter]
	RequestBodies   ordered[requestBody] `yaml:"requestBodies"`
	Headers         ordered[parameter]
	Responses       ordered[response]
	Examples        ordered[namedExample]
	Schemas         ordered[schema]
	SecuritySchemes ordered[securityScheme] `yaml:"securitySchemes"`
}

type securityScheme struct {
	Type, Description, Name, In, Scheme string
	BearerFormat                        string `yaml:"bearerFormat"`
	OpenIDConnectURL                    string `yaml:"openIdConnectUrl"`
	Flows                               ordered[struct {
		AuthorizationURL string `yaml:"authorizationUrl"`
		TokenURL         string `yaml:"tokenUrl"`
		RefreshURL       string `yaml:"refreshUrl"`
		Scopes           ordered[string]
	}]
}

// schema is a JSON Schema: either an object with members, or one of the values true and false. The
// field Always contains this value; it is nil if the schema is an object.
type schema struct {
	Always *bool
	schemaMembers
}

type schemaMembers struct {
	Ref                     string `yaml:"$ref"`
	Title, Description      string
	Type                    types
	Format, Pattern         string
	Enum, Examples          []literal
	Const, Default, Example *literal
	Minimum, Maximum        *literal
	ExclusiveMinimum        *literal `yaml:"exclusiveMinimum"`
	ExclusiveMaximum        *literal `yaml:"exclusiveMaximum"`
	MultipleOf              *literal `yaml:"multipleOf"`
	MinLength               *literal `yaml:"minLength"`
	MaxLength               *literal `yaml:"maxLength"`
	MinItems                *literal `yaml:"minItems"`
	MaxItems                *literal `yaml:"maxItems"`
	MinProperties           *literal `yaml:"minProperties"`
	MaxProperties           *literal `yaml:"maxProperties"`
	UniqueItems             bool     `yaml:"uniqueItems"`
	ReadOnly                bool     `yaml:"readOnly"`
	WriteOnly               bool     `yaml:"writeOnly"`
	ContentMediaType        string   `yaml:"contentMediaType"`
	ContentEncoding         string   `yaml:"contentEncoding"`
	Deprecated              bool
	Required                []string
	Properties              ordered[schema]
	PatternProperties       ordered[schema] `yaml:"patternProperties"`
	PropertyNames           *schema         `yaml:"propertyNames"`
	AdditionalProperties    *schema         `yaml:"additionalProperties"`
	UnevaluatedProperties   *schema         `yaml:"unevaluatedProperties"`
	Items                   *schema
	AllOf                   []schema `yaml:"allOf"`
	AnyOf                   []schema `yaml:"anyOf"`
	OneOf                   []schema `yaml:"oneOf"`
	Not                     *schema
	Discriminator           *struct {
		PropertyName string `yaml:"propertyName"`
		Mapping      ordered[string]
	}
}

func (s *schema) UnmarshalYAML(read func(any) error) error {
	var value any
	if err := read(&value); err != nil {
		return err
	}
	if always, ok := value.(bool); ok {
		s.Always = &always
		return nil
	}
	return read(&s.schemaMembers)
}

// types is the list of types in a schema's member `type`, which can be one name or a list of names.
type types []string

func (t *types) UnmarshalYAML(read func(any) error) error {
	var one string
	if read(&one) == nil {
		*t = types{one}
		return nil
	}
	return read((*[]string)(t))
}

// ordered is a map whose entries keep their order in the document.
type ordered[T any] []entry[T]

type entry[T any] struct {
	Name  string
	Value T
}

func (o *ordered[T]) UnmarshalYAML(read func(any) error) error {
	var order yaml.MapSlice
	if err := read(&order); err != nil {
		return err
	}
	var values map[string]T
	if err := read(&values); err != nil {
		return err
	}
	*o = make(ordered[T], 0, len(order))
	for _, item := range order {
		name := fmt.Sprint(item.Key)
		value, ok := values[name]
		if !ok {
			return fmt.Errorf("%s can't be read", name)
		}
		*o = append(*o, entry[T]{name, value})
	}
	return nil
}

// literal is an example or default value in the document, encoded as JSON.
type literal string

func (l *literal) UnmarshalYAML(read func(any) error) error {
	var value any
	if err := read(&value); err != nil {
		return err
	}
	return l.of(value)
}

func (l *literal) of(value any) error {
	text, err := toJSON(value)
	*l = literal(text)
	return err
}

// String returns the value for display: a string without its quotes, other values as JSON.
func (l literal) String() string {
	var text string
	if json.Unmarshal([]byte(l), &text) == nil {
		return text
	}
	return string(l)
}

// toJSON encodes a YAML value as JSON, with the members in the order of the YAML file.
func toJSON(value any) (string, error) {
	switch value := value.(type) {
	case yaml.MapSlice:
		var members []string
		for _, m := range value {
			name, err := toJSON(fmt.Sprint(m.Key))
			if err != nil {
				return "", err
			}
			member, err := toJSON(m.Value)
			if err != nil {
				return "", err
			}
			members = append(members, name+": "+member)
		}
		return "{" + strings.Join(members, ", ") + "}", nil
	case []any:
		var items []string
		for _, item := range value {
			text, err := toJSON(item)
			if err != nil {
				return "", err
			}
			items = append(items, text)
		}
		return "[" + strings.Join(items, ", ") + "]", nil
	default:
		var b strings.Builder
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false) // the HTML template escapes the text
		err := e.Encode(value)
		return strings.TrimSuffix(b.String(), "\n"), err
	}
}

func readDocument(text []byte) (*document, error) {
	var d document
	err := yaml.UnmarshalWithOptions(text, &d, yaml.Strict(), yaml.UseOrderedMap())
	return &d, err
}
