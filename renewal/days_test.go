package renewal

import (
	"errors"
	"flag"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/freshet/freshet/simulator/oauth"
	"github.com/freshet/freshet/store/tokens"
)

var (
	seeds = flag.Int("seeds", 1, "number of seeds of the random run")
	days  = flag.Int("days", 1, "virtual days of the random run")
)

// TestRenewer_KeepsTokensForDays runs three processes for virtual days, with random outages of the token
// endpoint, revocations, lost notifications and restarts. No call is sent with a token that has ended,
// and at most one renewal is in flight.
func TestRenewer_KeepsTokensForDays(t *testing.T) {
	for seed := range uint64(*seeds) {
		synctest.Test(t, func(t *testing.T) {
			t.Logf("seed %d", seed)
			random := rand.New(rand.NewPCG(seed, 0))
			f := newFleet(t, oauth.Config{Lifetime: time.Hour, Rotate: true, ReuseGrace: 2 * time.Minute, Delay: 300 * time.Millisecond})
			var down atomic.Bool
			f.down = down.Load
			all := []*process{f.start("a"), f.start("b"), f.start("c")}
			calls, failed, end := 0, 0, time.Now().Add(time.Duration(*days)*24*time.Hour)
			var outageEnds time.Time
			for time.Now().Before(end) {
				time.Sleep(time.Duration(random.Int64N(int64(2 * time.Minute))))
				switch random.IntN(60) {
				case 0:
					down.Store(true)
					outageEnds = time.Now().Add(time.Duration(random.Int64N(int64(20 * time.Minute))))
				case 1:
					f.server.RevokeTokens(false)
				case 2:
					n := random.IntN(len(all))
					all[n].stop()
					all[n] = f.start("restarted")
				case 3:
					f.bus.mu.Lock()
					f.bus.lost = !f.bus.lost
					f.bus.mu.Unlock()
				}
				if time.Now().After(outageEnds) {
					down.Store(false)
				}
				calls++
				err := all[random.IntN(len(all))].call(t.Context())
				if err == nil {
					continue
				}
				failed++
				row := f.row()
				// A token that the upstream revokes in its first seconds is not renewed. Otherwise an API that
				// refuses each token would cause a renewal for each call. The worker probes until the token is
				// old enough.
				young := time.Since(row.RenewedAt) < minRefusedAge+time.Second
				if !down.Load() && !errors.Is(err, ErrNoToken) && row.Failures == 0 && !young {
					t.Errorf("seed %d: call failed without an outage: %v", seed, err)
				}
			}
			down.Store(false)
			time.Sleep(6 * time.Minute)
			for _, p := range all {
				if err := p.call(t.Context()); err != nil {
					t.Errorf("seed %d: call at the end: got %v, want none", seed, err)
				}
				p.stop()
			}
			s, row := f.server.Stats(), f.row()
			t.Logf("seed %d: %d calls, %d failed, %+v", seed, calls, failed, s)
			if s.Expired != 0 || s.MaxInFlight > 1 || s.Reuses != 0 || row.State != tokens.Active || int64(s.Renewals) != row.Generation || s.Renewals < 22**days {
				t.Errorf("seed %d: got %+v, generation %d %s, want an ACTIVE token, each generation from one renewal, and no expired token", seed, s, row.Generation, row.State)
			}
			f.wantNoSecret("the log", f.logs.text())
		})
	}
}
