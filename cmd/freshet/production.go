//go:build production

package main

import (
	"github.com/spf13/cobra"

	"github.com/freshet/freshet/app"
)

// A build with the tag production has no commands dev and simulate. The program then does not contain
// the simulator and the embedded Kafka, Redis and SQLite, which a production image never uses.

func devCommand(p *program) *cobra.Command { return leftOut("dev") }

func simulateCommand(p *program) *cobra.Command { return leftOut("simulate") }

// leftOut returns a hidden command that only returns an error. The error names the build that has
// the command.
func leftOut(name string) *cobra.Command {
	return &cobra.Command{
		Use:                name,
		Hidden:             true,
		DisableFlagParsing: true,
		Args:               cobra.ArbitraryArgs,
		RunE: func(*cobra.Command, []string) error {
			return app.UsageErrorf("this build has no command %s: the build tag production excludes the simulator and the embedded services; "+
				"build freshet without that tag, as `go install github.com/freshet/freshet/cmd/freshet@latest` does", name)
		},
	}
}
