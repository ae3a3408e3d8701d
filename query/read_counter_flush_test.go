package query

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/freshet/freshet/schemas"
)

// waitUntilCached reads the key, so that the cache has its entry. The response is 304 and needs no
// decoder, because a decoder must not be created in a synctest bubble.
func (r *rig) waitUntilCached(key string) {
	r.Helper()
	if a := r.get(key, "If-None-Match", "*"); a.StatusCode != http.StatusNotModified {
		r.Errorf("got %d %s, want 304", a.StatusCode, a.text)
	}
}

func TestReadCounter_FlushesEveryTenSecondsAndAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &fakeRecorder{}
		r := newRig(t, withRecorder(l))
		r.putSnapshot("a", time.Minute)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.server.Run(ctx) }()
		for n := range 3 {
			r.waitUntilCached("a")
			r.waitUntilCached("a")
			<-time.After(flushInterval - time.Second)
			if got := l.recorded()["a"]; got != 2*n {
				t.Errorf("before the interval ended: got %d recorded reads, want %d", got, 2*n)
			}
			<-time.After(time.Second)
			synctest.Wait()
			if got := l.recorded()["a"]; got != 2*n+2 {
				t.Errorf("got %d recorded reads, want %d", got, 2*n+2)
			}
		}
		r.waitUntilCached("a")
		stop()
		if err := <-ended; err != nil || l.recorded()["a"] != 7 {
			t.Errorf("end of Run: got %v and %d recorded reads, want no error and 7", err, l.recorded()["a"])
		}
	})
}

// A ReadRecorder that hangs is canceled after flushTimeout. It must block no read, and delay a
// shutdown by at most finalFlushTimeout.
func TestReadCounter_ShutdownHasATimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var took []time.Duration
		l := &fakeRecorder{observe: func(ctx context.Context, _ []ReadCount) error {
			began := time.Now()
			<-ctx.Done()
			took = append(took, time.Since(began))
			return ctx.Err()
		}}
		r := newRig(t, withRecorder(l))
		r.putSnapshot("a", time.Minute)
		var log bytes.Buffer
		r.server.readCounter.log = slog.New(slog.NewTextHandler(&log, nil))
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.server.Run(ctx) }()
		r.waitUntilCached("a")
		<-time.After(flushInterval + flushTimeout + time.Second)
		synctest.Wait()
		if len(took) != 1 || took[0] != flushTimeout {
			t.Errorf("RecordReads: got calls of %v, want one of %v", took, flushTimeout)
		}
		r.waitUntilCached("a")
		<-time.After(flushInterval - flushTimeout) // after this time the next flush is in progress
		r.waitUntilCached("a")
		stop()
		began := time.Now()
		if err := <-ended; err != nil || time.Since(began) > finalFlushTimeout {
			t.Errorf("end of Run: got %v after %v, want no error within %v", err, time.Since(began), finalFlushTimeout)
		}
		if lost := testutil.ToFloat64(r.server.metrics.unrecordedFailed); lost != 3 {
			t.Errorf("unrecorded reads: got %v, want 3", lost)
		}
		if n := strings.Count(log.String(), "level=WARN"); n != 1 {
			t.Errorf("warnings: got %d, want 1: %s", n, &log)
		}
	})
}

// If the subscription fails, the read counter ends too: Run leaves no goroutine.
func TestRun_EndsWhenTheSubscriptionFails(t *testing.T) {
	l := &fakeRecorder{}
	r := newRig(t, withRecorder(l))
	r.putSnapshot("a", time.Minute)
	broken := errors.New("broken")
	r.server.subscriber = failingSubscriber{broken}
	r.get("a")
	if err := r.server.Run(t.Context()); !errors.Is(err, broken) || l.recorded()["a"] != 1 {
		t.Errorf("Run: got %v and the recorded reads %v, want %v and 1", err, l.recorded(), broken)
	}
}

type failingSubscriber struct{ with error }

func (b failingSubscriber) Subscribe(context.Context, func(schemas.Settled), func(bool)) error {
	return b.with
}
