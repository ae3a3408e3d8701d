package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/freshet/freshet/app"
)

func main() {
	// The first signal starts a graceful shutdown. AfterFunc then restores the default
	// handling, so a second signal ends the process at once.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr))
}

// run executes a command and returns the exit code: 0 success, 1 error, 2 usage error, 3 not
// found, 4 partial success. Data goes to stdout, everything else to stderr.
func run(ctx context.Context, args, env []string, stdout, stderr io.Writer) int {
	root := newRoot(env, stdout, stderr)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintln(root.ErrOrStderr(), "freshet: "+err.Error())
	if errors.As(err, new(app.UsageError)) {
		return 2
	}
	if errors.As(err, new(app.NotFoundError)) {
		return 3
	}
	if errors.As(err, new(partialError)) {
		return 4
	}
	return 1
}
