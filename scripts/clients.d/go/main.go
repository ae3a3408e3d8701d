// Command read reads a snapshot with the client that oapi-codegen generates.
package main

import (
	"context"
	"fmt"
	"os"

	"clients/freshet"
)

func main() {
	if err := run(context.Background(), os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "go:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, server string) error {
	client, err := freshet.NewClientWithResponses(server)
	if err != nil {
		return err
	}
	wait := freshet.Wait("20s")
	read, err := client.ReadSnapshotWithResponse(ctx, "nexon", "character", "somebody", &freshet.ReadSnapshotParams{Wait: &wait})
	if err != nil {
		return err
	}
	if read.JSON200 == nil || read.JSON200.Freshness != freshet.FreshnessFRESH || read.JSON200.Snapshot == nil {
		return fmt.Errorf("got %s %.200s, want a fresh snapshot", read.Status(), read.Body)
	}
	if _, found := (*read.JSON200.Snapshot)["item-equipment"].(map[string]any); !found {
		return fmt.Errorf("got the snapshot %.200v, want the document item-equipment", *read.JSON200.Snapshot)
	}
	invalid, err := client.ReadSnapshotWithResponse(ctx, "nexon", "character-by-ocid", "a b", nil)
	if err != nil {
		return err
	}
	if p := invalid.ApplicationproblemJSON400; p == nil || p.Code != freshet.BadKey {
		return fmt.Errorf("got %s %s, want the problem %s", invalid.Status(), invalid.Body, freshet.BadKey)
	}
	fmt.Println("go: read a snapshot that is", read.JSON200.Freshness)
	return nil
}
