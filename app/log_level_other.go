//go:build !unix

package app

import (
	"context"
	"log/slog"
)

// handleLevelSignals does nothing: this system has no signals for the log level.
func handleLevelSignals(context.Context, *slog.LevelVar, slog.Level, *slog.Logger) {}
