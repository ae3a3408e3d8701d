package entities_test

import (
	"fmt"

	"github.com/freshet/freshet/entities"
)

// If the spec contains a tier, the entity is pinned to that tier.
func ExampleParseEntitySpec() {
	spec, err := entities.ParseEntitySpec([]byte(`{"key":"somebody","tier":"hot"}`))
	fmt.Println(spec.Key, spec.Tier, err)
	_, err = entities.ParseEntitySpec([]byte(`{"key":"somebody","tier":"boiling"}`))
	fmt.Println(err)
	// Output:
	// somebody hot <nil>
	// the tier "boiling" must be hot, warm or cold
}
