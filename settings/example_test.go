package settings_test

import (
	"encoding/json"
	"fmt"

	"github.com/freshet/freshet/settings"
)

// This patch sets a policy's target and resets all settings of another policy. It leaves all
// other settings unchanged.
func ExamplePatch() {
	patch := settings.Patch{
		Policies: settings.Set(map[string]settings.Member[settings.PolicyPatch]{
			"second": settings.Set(settings.PolicyPatch{Target: settings.Set(400)}),
			"day":    settings.Reset[settings.PolicyPatch](),
		}),
	}
	text, err := json.Marshal(patch)
	fmt.Println(string(text), err)
	// Output: {"policies":{"day":null,"second":{"target":400}}} <nil>
}

// The rule "active" selects the entities that are prefetched: here all cases that are not closed.
func ExampleParseActive() {
	rule, err := settings.ParseActive(`{"status":{"path":"case.status","block":["closed"]}}`)
	fmt.Println(rule.Status.Path, rule.Status.Block, err)
	// Output: case.status [closed] <nil>
}
