//go:build !production

package main

import (
	"context"
	"os/exec"
	"runtime"
)

// openBrowser opens a URL with the operating system's program for opening URLs, such as xdg-open. It
// returns when this program exits or ctx ends; the browser stays open in both cases.
func openBrowser(ctx context.Context, url string) error {
	opener := []string{"xdg-open"}
	switch runtime.GOOS {
	case "darwin":
		opener = []string{"open"}
	case "windows":
		opener = []string{"rundll32", "url.dll,FileProtocolHandler"}
	}
	command := exec.CommandContext(context.WithoutCancel(ctx), opener[0], append(opener[1:], url)...) //nolint:gosec // our own address
	if err := command.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- command.Wait() }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return nil
	}
}
