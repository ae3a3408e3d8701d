package reference

import (
	_ "embed" // for the directive go:embed below
	"encoding/json"
	"reflect"
)

//go:embed descriptions.json
var descriptionsFile []byte

// descriptions has the meaning of each field, by package.Type.Field, and of each section, by
// package.Type.
var descriptions = func() (all map[string]string) {
	if err := json.Unmarshal(descriptionsFile, &all); err != nil {
		panic(err) // cannot happen: a test reads the embedded file
	}
	return all
}()

// describe returns the description of a Go field. If the field has no description, it returns the
// description of the field's type.
func describe(owner string, kind reflect.Type) string {
	if text := descriptions[owner]; text != "" {
		return text
	}
	return descriptions[kind.String()]
}
