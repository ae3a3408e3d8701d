package main

import (
	"fmt"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"

	"github.com/freshet/freshet/app"
	"github.com/freshet/freshet/presets"
)

func configCommand(p *program) *cobra.Command {
	c := &cobra.Command{Use: "config", Short: "Check or print the configuration"}
	c.AddCommand(&cobra.Command{
		Use:   "check",
		Short: "Check the configuration, and print its effects",
		RunE: func(*cobra.Command, []string) error {
			config, err := p.Load(app.RequiredSources)
			if err != nil {
				return err
			}
			if err := config.Explain(p.Stdout, p.Env); err != nil {
				return err
			}
			_, err = fmt.Fprintln(p.Stdout, "the configuration is valid")
			return err
		},
	})
	comments := false
	printed := &cobra.Command{
		Use:   "print",
		Short: "Print the configuration with defaults, without secrets",
		RunE: func(*cobra.Command, []string) error {
			config, err := p.Load(app.RequiredSources)
			if err != nil {
				return err
			}
			text, err := yaml.Marshal(config.Redacted())
			if err == nil && comments {
				text, err = app.Reference().Comment(text)
				text = append([]byte(app.SchemaComment), text...)
			}
			if err != nil {
				return fmt.Errorf("print the configuration: %w", err)
			}
			_, err = p.Stdout.Write(text)
			return err
		},
	}
	printed.Flags().BoolVar(&comments, "comments", false, "print the meaning of each setting as a comment above its first occurrence")
	c.AddCommand(printed)
	c.AddCommand(&cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of the configuration file",
		Long: `Print the JSON Schema (draft 2020-12) of the configuration file. With it, an editor completes and
explains settings, and marks mistakes. For editors with the YAML language server, write the schema
next to the configuration, and begin the configuration with a line that names it:

  freshet config schema > freshet.schema.json
  # yaml-language-server: $schema=freshet.schema.json`,
		RunE: func(*cobra.Command, []string) error {
			text, err := app.Schema()
			if err != nil {
				return fmt.Errorf("print the schema: %w", err)
			}
			_, err = p.Stdout.Write(text)
			return err
		},
	})
	preset := &cobra.Command{
		Use:   "preset NAME",
		Short: "Print a ready-made configuration of a well-known upstream",
		Long: `Print the configuration of a well-known upstream as a complete file that you can adapt. With
"preset: NAME", a source uses it without a copy. The quota
of each preset is tested against a simulator that enforces the upstream's real quota. Without a
name, the command lists the presets.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				_, err := fmt.Fprintln(p.Stdout, strings.Join(presets.Names(), "\n"))
				return err
			}
			text, known := presets.All()[args[0]]
			if !known {
				return app.UsageErrorf("unknown preset %q; the presets are %s", args[0], strings.Join(presets.Names(), ", "))
			}
			_, err := fmt.Fprintf(p.Stdout, "%s%s", app.SchemaComment, presets.File(args[0], text))
			return err
		},
	}
	c.AddCommand(preset)
	return c
}
