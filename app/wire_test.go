package app

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// dialSignal is a Redis hook that signals the first attempt to connect.
type dialSignal struct {
	once sync.Once
	seen chan struct{}
}

func (d *dialSignal) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := next(ctx, network, address)
		d.once.Do(func() { close(d.seen) })
		return conn, err
	}
}

func (d *dialSignal) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (d *dialSignal) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func TestWorker_WaitsForRedisAtStart(t *testing.T) {
	m := miniredis.RunT(t)
	address := m.Addr()
	m.Close()
	rdb := redis.NewClient(&redis.Options{Addr: address, MaxRetries: -1})
	defer func() { _ = rdb.Close() }()
	firstDial := &dialSignal{seen: make(chan struct{})}
	rdb.AddHook(firstDial)
	p := parts{rdb: rdb}
	answered := make(chan error, 1)
	go func() { answered <- p.waitForRedis(t.Context()) }()
	<-firstDial.seen
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
