package schemas

import (
	"strings"
	"testing"
)

// TestOpenAPI_NamesAreUniqueAcrossComponents checks that a code generator can give each component
// and each operation a type of its own. Generators write the first letter in upper case, and add
// Params, Request and Response to the names of operations.
func TestOpenAPI_NamesAreUniqueAcrossComponents(t *testing.T) {
	d, err := readDocument(OpenAPI)
	if err != nil {
		t.Fatal(err)
	}
	places := map[string]string{}
	add := func(name, place string) {
		name = strings.ToLower(name)
		if was, exists := places[name]; exists {
			t.Errorf("%s: got it as %s and as %s, want one place", name, was, place)
		}
		places[name] = place
	}
	for _, c := range d.Components.Schemas {
		add(c.Name, "schema")
	}
	for _, c := range d.Components.Parameters {
		add(c.Name, "parameter")
	}
	for _, c := range d.Components.RequestBodies {
		add(c.Name, "request body")
	}
	for _, c := range d.Components.Headers {
		add(c.Name, "header")
	}
	for _, c := range d.Components.Responses {
		add(c.Name, "response")
	}
	for _, at := range d.Paths {
		for _, o := range at.Value.operations() {
			for _, suffix := range []string{"Params", "Request", "RequestBody", "Response"} {
				add(o.Value.OperationID+suffix, "operation")
			}
		}
	}
}
