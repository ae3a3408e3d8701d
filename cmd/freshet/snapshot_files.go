package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/freshet/freshet/app"
)

func snapshotExport(p *program) *cobra.Command {
	c := &cobra.Command{
		Use:   "export SOURCE/FACET --to DIR",
		Short: "Write the stored documents of a raw facet as files",
		Long: `Write the stored documents of a raw facet as files, for the facet's setting static. The path of a file
below the directory is the key of its document. A file that has the content already is not written.
The command reads the database of the configuration. Exit code 4: documents were skipped.`,
		Example: `  freshet snapshot export court/layout --to /etc/freshet/layouts`,
		Args:    cobra.ExactArgs(1),
	}
	return copyDocuments(p, c, "to", "directory to write the files to", app.ExportDocuments)
}

func snapshotImport(p *program) *cobra.Command {
	c := &cobra.Command{
		Use:   "import SOURCE/FACET --from DIR",
		Short: "Store files as documents of a raw facet",
		Long: `Store the files of a directory as documents of a raw facet. The path of a file below the directory is
the key of its document. Each file must be valid content of the facet. A stored document that was
fetched after its file was modified is kept. The command writes to the database of the
configuration, and notifies the query services through Redis. Exit code 4: files were skipped.`,
		Example: `  freshet snapshot import court/layout --from layouts`,
		Args:    cobra.ExactArgs(1),
	}
	return copyDocuments(p, c, "from", "directory to read the files from", app.ImportDocuments)
}

// copyDocuments completes a command that copies documents between the database and a directory.
func copyDocuments(p *program, c *cobra.Command, flag, usage string, run func(ctx context.Context, p *app.Process, source, facet, dir string) (app.Documents, error)) *cobra.Command {
	var dir string
	c.Flags().StringVar(&dir, flag, "", usage)
	c.RunE = func(cmd *cobra.Command, args []string) error {
		source, facet, found := strings.Cut(args[0], "/")
		if !found || strings.Contains(facet, "/") {
			return app.UsageErrorf("%q must be source/facet, as in court/layout", args[0])
		}
		if dir == "" {
			return app.UsageErrorf("pass a directory with --%s", flag)
		}
		out, err := run(cmd.Context(), p.Process, source, facet, dir)
		for _, key := range slices.Sorted(maps.Keys(out.Skipped)) {
			fmt.Fprintf(p.Stderr, "%s: skipped: %v\n", escapeUnprintable(key), out.Skipped[key])
		}
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(p.Stdout, "%d documents written, %d unchanged, %d skipped\n", out.Written, out.Unchanged, len(out.Skipped)); err != nil {
			return err
		}
		if len(out.Skipped) > 0 {
			return partialError{fmt.Errorf("%d documents were skipped", len(out.Skipped))}
		}
		return nil
	}
	return c
}
