//go:build production

package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

// dev and simulate are left out of a build with the tag production, together with the
// simulator, the embedded Kafka, Redis and SQLite: a production image has no use for them.

func (p *program) dev() *cobra.Command { return leftOut("dev") }

func (p *program) simulate() *cobra.Command { return leftOut("simulate") }

// leftOut returns a hidden command that says which build has it.
func leftOut(name string) *cobra.Command {
	return &cobra.Command{
		Use:                name,
		Hidden:             true,
		DisableFlagParsing: true,
		Args:               cobra.ArbitraryArgs,
		RunE: func(*cobra.Command, []string) error {
			return usageError{fmt.Errorf("this build has no command %s: the tag production leaves out the simulator and the embedded services; "+
				"build freshet without that tag, as `go install github.com/freshet/freshet/cmd/freshet@latest` does", name)}
		},
	}
}
