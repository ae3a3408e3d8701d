// Command freshet keeps local snapshots of data fresh when that data lives
// behind a scarce, rate-limited API, and serves reads in milliseconds whatever
// that API is doing. `freshet dev` runs all of it in one process.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	// The first signal stops in order, a second one at once.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr))
}

// run is the program: data goes to stdout, everything else to stderr. It returns
// the exit code: 0 ok, 1 error, 2 usage, 3 not found, 4 partial.
func run(ctx context.Context, args, env []string, stdout, stderr io.Writer) int {
	root := newRoot(env, stdout, stderr)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintln(root.ErrOrStderr(), "freshet: "+err.Error())
	if errors.As(err, new(usageError)) {
		return 2
	}
	if errors.As(err, new(notFoundError)) {
		return 3
	}
	if errors.As(err, new(partialError)) {
		return 4
	}
	return 1
}
