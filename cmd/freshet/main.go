package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	// The first signal starts a graceful shutdown. AfterFunc then restores the default
	// handling, so a second signal ends the process at once.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr))
}
