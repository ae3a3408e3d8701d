//go:build unix

package app

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
)

// handleLevelSignals changes the log level until ctx ends: SIGUSR1 sets it to debug, SIGUSR2 sets it
// to the configured level again. After ctx has ended, both signals are ignored, so that they do not
// kill a process that is shutting down.
func handleLevelSignals(ctx context.Context, level *slog.LevelVar, configured slog.Level, log *slog.Logger) {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGUSR1, syscall.SIGUSR2)
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case s := <-signals:
				// The INFO line is logged while the level is DEBUG, because the configured level may suppress it.
				if s == syscall.SIGUSR1 {
					level.Set(slog.LevelDebug)
					log.Info("log level changed", "level", slog.LevelDebug)
				} else {
					log.Info("log level changed", "level", configured)
					level.Set(configured)
				}
			}
		}
	}()
}
