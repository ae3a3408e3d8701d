//go:build unix

package app

import (
	"io"
	"log/slog"
	"syscall"
	"testing"

	"github.com/freshet/freshet/servicetest"
)

func TestLogLevel_FollowsSignals(t *testing.T) {
	p := NewProcess(nil, io.Discard, io.Discard)
	log := p.logger(t.Context(), LogConfig{Level: slog.LevelWarn}, "worker")
	for _, c := range []struct {
		signal syscall.Signal
		want   slog.Level
	}{{syscall.SIGUSR1, slog.LevelDebug}, {syscall.SIGUSR2, slog.LevelWarn}} {
		if err := syscall.Kill(syscall.Getpid(), c.signal); err != nil {
			t.Fatal(err)
		}
		servicetest.WaitFor(t, eventTimeout, "the level "+c.want.String()+" after "+c.signal.String(), func() bool {
			return log.Enabled(t.Context(), c.want) && !log.Enabled(t.Context(), c.want-1)
		})
	}
}
