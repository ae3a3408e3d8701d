package app

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/schemas"
)

// changedSettings is a limiter.Settings that the test changes.
type changedSettings struct {
	mu       sync.Mutex
	override limiter.Override
	revision int64
	err      error
}

func (s *changedSettings) Quota(context.Context, string) (limiter.Override, int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.override, s.revision, s.err
}

// set stores a new limit of the policy "second".
func (s *changedSettings) set(limit int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.revision++
	s.override = limiter.Override{Policies: map[string]limiter.PolicyOverride{"second": {Limit: &limit}}}
}

func (s *changedSettings) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

// follow runs liveBounds with these stored settings and with the source "api", whose configured quota
// is 60 calls a second. The returned function waits for one boundsInterval. It then returns a client's
// maximum number of outstanding requests in the facet "one", and the log since its previous call.
func follow(t *testing.T, settings limiter.Settings) (next func() (outstanding int, logged string)) {
	t.Helper()
	text := strings.NewReplacer("LIMITS", "", "POLICIES", "{name: second, limit: 60, window: 1s}").Replace(bounded)
	config, err := loadConfig(write(t, text), nil, OptionalSources)
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	b, err := newLiveBounds(config, settings, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("Run: got %v, want none", err)
		}
	})
	return func() (int, string) {
		time.Sleep(boundsInterval) // returns at once, because the clock of the synctest bubble is fake
		synctest.Wait()
		defer log.Reset()
		return b.of(schemas.Entity{Source: "api", Facet: "one", Key: "k"}).Outstanding, log.String()
	}
}

func TestLiveBounds_FollowAChangedQuota(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var settings changedSettings
		next := follow(t, &settings)
		configured, _ := next()
		if configured < 110 || configured > 120 {
			t.Fatalf("configured: got %d outstanding, want about 120 (2 s of 60/s)", configured)
		}
		settings.set(30)
		lowered, logged := next()
		if lowered < configured/2-5 || lowered > configured/2 {
			t.Errorf("after the limit was halved: got %d outstanding, want about %d", lowered, configured/2)
		}
		if want := `msg="client limits changed" source=api revision=1`; !strings.Contains(logged, want) {
			t.Errorf("log: got %q, want %q in it", logged, want)
		}
		settings.set(60)
		if got, _ := next(); got != configured {
			t.Errorf("after the limit was set back: got %d outstanding, want %d", got, configured)
		}
		if _, logged := next(); logged != "" {
			t.Errorf("without a change: got the log %q, want none", logged)
		}
	})
}

func TestLiveBounds_KeepTheLastThatHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var settings changedSettings
		next := follow(t, &settings)
		settings.set(30)
		want, _ := next()
		settings.set(-1)
		if got, logged := next(); got != want || !strings.Contains(logged, "changed quota is invalid") {
			t.Errorf("a limit of -1: got %d outstanding and the log %q, want %d and an error", got, logged, want)
		}
		settings.fail(errors.New("the database is away"))
		if got, logged := next(); got != want || !strings.Contains(logged, "client limits can't be read from the settings") {
			t.Errorf("unreadable: got %d outstanding and the log %q, want %d and a warning", got, logged, want)
		}
		if _, logged := next(); logged != "" {
			t.Errorf("still unreadable: got the log %q, want one warning", logged)
		}
		settings.fail(nil)
		settings.set(60)
		if got, logged := next(); got <= want || !strings.Contains(logged, "reading the client limits works again") {
			t.Errorf("readable again: got %d outstanding and the log %q, want more than %d", got, logged, want)
		}
	})
}
