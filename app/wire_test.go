package app

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// firstLine is a log writer that signals the first line.
type firstLine struct {
	once sync.Once
	seen chan struct{}
}

func (f *firstLine) Write(p []byte) (int, error) {
	f.once.Do(func() { close(f.seen) })
	return len(p), nil
}

func TestWorker_WaitsForRedisAtStart(t *testing.T) {
	m := miniredis.RunT(t)
	address := m.Addr()
	m.Close()
	rdb := redis.NewClient(&redis.Options{Addr: address, MaxRetries: -1})
	defer func() { _ = rdb.Close() }()
	said := &firstLine{seen: make(chan struct{})}
	p := parts{rdb: rdb, log: slog.New(slog.NewTextHandler(said, nil))}
	answered := make(chan error, 1)
	go func() { answered <- p.waitForRedis(t.Context()) }()
	<-said.seen
	select {
	case err := <-answered:
		t.Fatalf("worker without Redis: got %v, want it to wait", err)
	default:
	}
	if err := m.StartAddr(address); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-answered:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(eventTimeout):
		t.Error("worker: got no notice that Redis responds, want one")
	}

	stopped, stop := context.WithCancelCause(t.Context())
	stop(errors.New("SIGTERM"))
	m.Close()
	if err := p.waitForRedis(stopped); err != nil {
		t.Errorf("stop while waiting: got %v, want no error", err)
	}
}
