package app

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/servicetest"
)

func TestWorker_WaitsForRedisAtStart(t *testing.T) {
	m := miniredis.RunT(t)
	address := m.Addr()
	m.Close()
	rdb := redis.NewClient(&redis.Options{Addr: address, MaxRetries: -1})
	defer func() { _ = rdb.Close() }()
	failed := make(chan struct{})
	closeFailed := sync.OnceFunc(func() { close(failed) })
	rdb.AddHook(servicetest.RedisHook(func(ctx context.Context, _ []redis.Cmder, send func(context.Context) error) error {
		defer closeFailed()
		return send(ctx)
	}))
	p := workerRole{parts{rdb: rdb}}
	answered := make(chan error, 1)
	go func() { answered <- p.waitForRedis(t.Context()) }()
	<-failed
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
