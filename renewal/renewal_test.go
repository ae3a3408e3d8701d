package renewal

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/freshet/freshet/simulator/oauth"
	"github.com/freshet/freshet/source/token"
	"github.com/freshet/freshet/store/tokens"
)

func TestRenewer_FiveProcessesRenewOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, oauth.Config{Lifetime: time.Hour, Rotate: true, Delay: time.Second})
		var all []*process
		for _, name := range []string{"a", "b", "c", "d", "e"} {
			all = append(all, f.start(name))
		}
		for _, p := range all {
			if err := p.call(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if got := f.server.Stats(); got.Renewals != 1 || got.Requests != 1 {
			t.Errorf("after the start: got %+v, want 1 renewal", got)
		}
		time.Sleep(56 * time.Minute)
		if got := f.server.Stats(); got.Renewals != 2 || got.MaxInFlight != 1 {
			t.Errorf("before the end: got %+v, want 2 renewals, 1 in flight", got)
		}
		for _, p := range all {
			p.stop()
		}
		f.wantNoSecret("the log", f.logs.text())
	})
}

func TestRenewer_ManyRefusalsRenewOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, oauth.Config{Lifetime: time.Hour, Rotate: true, Delay: 100 * time.Millisecond})
		all := []*process{f.start("a"), f.start("b")}
		for generation := 2; generation < 6; generation++ {
			time.Sleep(time.Minute)
			f.server.RevokeTokens(false)
			var failed atomic.Int64
			var wg sync.WaitGroup
			for n := range 100 {
				wg.Go(func() {
					if all[n%2].call(t.Context()) != nil {
						failed.Add(1)
					}
				})
			}
			wg.Wait()
			if got := f.server.Stats(); got.Renewals != generation || failed.Load() != 0 {
				t.Fatalf("generation %d: got %d renewals, %d failed calls", generation, got.Renewals, failed.Load())
			}
		}
		for _, p := range all {
			p.stop()
		}
	})
}

func TestRenewer_RefusedNewTokenIsNotRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, oauth.Config{Lifetime: time.Hour})
		p := f.start("a")
		defer p.stop()
		_ = p.call(t.Context())
		for range 50 {
			f.server.RevokeTokens(false)
			_ = p.call(t.Context())
			time.Sleep(time.Second)
		}
		if got := f.server.Stats().Renewals; got > 6 {
			t.Errorf("an API that refuses each token for 50 s: got %d renewals, want at most one in %v", got, minRefusedAge)
		}
	})
}

func TestRenewer_OutageInsideMarginHarmsNoCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, oauth.Config{Lifetime: time.Hour, Rotate: true})
		var down atomic.Bool
		f.down = down.Load
		p := f.start("a")
		defer p.stop()
		if err := p.call(t.Context()); err != nil {
			t.Fatal(err)
		}
		down.Store(true)
		time.Sleep(55 * time.Minute) // the renewal is due after this time
		failed, calls := 0, 0
		for range 270 { // the loop ends 30 s before the token expires
			time.Sleep(time.Second)
			calls++
			if p.call(t.Context()) != nil {
				failed++
			}
		}
		if row := f.row(); failed != 0 || row.Failures < 3 || !strings.Contains(row.Error, "connection refused") {
			t.Errorf("%d calls inside the margin: got %d failed, %d failed renewals (%s)", calls, failed, row.Failures, row.Error)
		}
		time.Sleep(time.Minute) // the token has expired after this time
		if err := p.call(t.Context()); !errors.Is(err, ErrNoToken) || !strings.Contains(err.Error(), "connection refused") {
			t.Errorf("after the end: got %v, want ErrNoToken with its reason", err)
		}
		down.Store(false)
		time.Sleep(6 * time.Minute)
		if err := p.call(t.Context()); err != nil || f.server.Stats().Expired != 0 {
			t.Errorf("after the outage: got %v, %+v", err, f.server.Stats())
		}
	})
}

// crashing is a store of a process that ends after the response of the token endpoint, and before the
// commit.
type crashing struct {
	Store
	crash *atomic.Bool
}

func (c crashing) SaveToken(ctx context.Context, t tokens.Token, lifetime, renewIn time.Duration) (bool, error) {
	if c.crash.Swap(false) {
		return true, nil // report success, although nothing is stored
	}
	return c.Store.SaveToken(ctx, t, lifetime, renewIn)
}

func TestRenewer_CrashBetweenAnswerAndCommit(t *testing.T) {
	for name, test := range map[string]struct {
		grace   time.Duration
		recover bool
	}{"with reuse grace": {5 * time.Minute, true}, "without reuse grace": {0, false}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, oauth.Config{Lifetime: time.Hour, Rotate: true, ReuseGrace: test.grace})
				var crash atomic.Bool
				f.saveFunc = func(s Store) Store { return crashing{Store: s, crash: &crash} }
				p := f.start("a")
				defer p.stop()
				if err := p.call(t.Context()); err != nil {
					t.Fatal(err)
				}
				crash.Store(true)
				time.Sleep(58 * time.Minute)
				row := f.row()
				if test.recover && (row.Generation != 2 || row.State != tokens.Active) {
					t.Errorf("got %+v, want generation 2", row)
				}
				if !test.recover && (row.State != tokens.Stopped || !strings.Contains(row.Error, "invalid_grant")) {
					t.Errorf("got %+v, want a stopped credential", row)
				}
				requests := f.server.Stats().Requests
				time.Sleep(time.Hour)
				if got := f.server.Stats().Requests; !test.recover && got != requests {
					t.Errorf("a stopped credential: got %d further requests", got-requests)
				}
				f.wantNoSecret("the log", f.logs.text())
				f.wantNoSecret("the stored error", row.Error)
			})
		})
	}
}

func TestRenewer_WrongAnswers(t *testing.T) {
	expires := func(text string) *oauth.Answer { return &oauth.Answer{Expires: &text} }
	for name, test := range map[string]struct {
		answer   *oauth.Answer
		lifetime time.Duration // expected lifetime; 0: no token is expected
		says     string
	}{
		"HTML with 200":        {&oauth.Answer{Status: 200, ContentType: "text/html", Body: "<html>sign in</html>"}, 0, "without a token"},
		"empty":                {&oauth.Answer{Status: 200}, 0, "without a token"},
		"error with 200":       {&oauth.Answer{Status: 200, ContentType: "application/json", Body: `{"error":"bad_verification_code"}`}, 0, "bad_verification_code"},
		"token with a space":   {&oauth.Answer{Status: 200, ContentType: "application/json", Body: `{"access_token":"a b"}`}, 0, "a header must not contain"},
		"500":                  {&oauth.Answer{Status: 500, Body: "no"}, 0, "answered 500"},
		"connection closed":    {&oauth.Answer{Hang: true}, 0, "did not answer"},
		"no expires_in":        {expires(""), time.Hour, "has no body:expires_in"},
		"negative expires_in":  {expires("-5"), time.Minute, "below the minimum"},
		"expires_in of zero":   {expires("0"), time.Minute, "below the minimum"},
		"text with a space":    {expires(`"3600 "`), time.Hour, ""},
		"text":                 {expires(`"soon"`), time.Hour, "neither seconds nor a time"},
		"ten years":            {expires("315360000"), 366 * 24 * time.Hour, "above the maximum"},
		"NaN":                  {expires(`"NaN"`), time.Hour, "neither seconds nor a time"},
		"end as a time":        {expires(`"2000-01-01T00:30:00Z"`), 30 * time.Minute, ""},
		"end in seconds":       {expires("946686600"), 946686600 * time.Second, "above the maximum"},
		"expires_in of object": {expires(`{"a":1}`), time.Hour, "neither seconds nor a time"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // virtual time begins at 2000-01-01T00:00:00Z
				f := newFleet(t, oauth.Config{Lifetime: time.Hour})
				f.server.SetAnswer(test.answer)
				p := f.start("a")
				time.Sleep(time.Second)
				p.stop()
				row := f.row()
				got := row.ExpiresAt.Sub(row.RenewedAt)
				want := min(test.lifetime, maxTestLifetime)
				if test.lifetime == 0 && (row.Generation != 0 || !strings.Contains(row.Error, test.says)) {
					t.Errorf("got %+v, want an error that says %q", row, test.says)
				}
				if test.lifetime > 0 && (row.Generation != 1 || (got-want).Abs() > 2*time.Second || !strings.Contains(f.logs.text(), test.says)) {
					t.Errorf("got generation %d, lifetime %v, want %v; log: %s", row.Generation, got, want, f.logs.text())
				}
				f.wantNoSecret("the log", f.logs.text())
				f.wantNoSecret("the stored error", row.Error)
			})
		})
	}
}

const maxTestLifetime = 366 * 24 * time.Hour

func TestRenewer_SignsAgainWithWrongClock(t *testing.T) {
	for _, offset := range []time.Duration{10 * time.Minute, -10 * time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t, oauth.Config{Lifetime: time.Hour, ClockOffset: offset})
			f.config = token.Config{Grant: token.JWTBearer, TokenURL: "https://auth.example/token", ClientAuth: "basic", ClientID: "app", ClientSecretEnv: "secret", JWT: &token.JWT{KeyEnv: "key"}}
			p := f.start("a")
			defer p.stop()
			if err := p.call(t.Context()); err != nil {
				t.Fatalf("clock off by %v: %v", offset, err)
			}
			if got := f.server.Stats(); got.Requests != 2 || got.Renewals != 1 {
				t.Errorf("clock off by %v: got %+v, want 2 requests", offset, got)
			}
			time.Sleep(56 * time.Minute)
			if got := f.server.Stats(); got.Requests != 3 {
				t.Errorf("second renewal: got %d requests, want 3, with the known offset", got.Requests)
			}
		})
	}
}

// The clocks of the database, of three processes and of the token endpoint differ by 10 minutes, which
// is longer than a token lives.
func TestRenewer_WrongClocksDoNotMatter(t *testing.T) {
	for _, endpoint := range []time.Duration{10 * time.Minute, -10 * time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t, oauth.Config{Lifetime: 4 * time.Minute, Rotate: true, ClockOffset: endpoint})
			var all []*process
			for _, by := range []time.Duration{0, 10 * time.Minute, -10 * time.Minute} {
				f.saveFunc = func(s Store) Store { return shifted{s, by} }
				all = append(all, f.start(by.String()))
			}
			for range 720 { // 720 steps of 5 s are one hour
				for _, p := range all {
					if err := p.call(t.Context()); err != nil {
						t.Errorf("call: got %v, want none", err)
					}
				}
				time.Sleep(5 * time.Second)
			}
			for _, p := range all {
				p.stop()
			}
			// A token is renewed after half of its lifetime, so every 2 minutes.
			if got := f.server.Stats(); got.Expired+got.Refused+got.Reuses != 0 || got.MaxInFlight != 1 || got.Renewals < 30 || got.Renewals > 31 {
				t.Errorf("endpoint off by %v: got %+v, want 30 or 31 renewals and no refused call", endpoint, got)
			}
		})
	}
}

func TestRenewer_WrongClientSecretIsNotLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, oauth.Config{Lifetime: time.Hour})
		f.config.ClientID = "other"
		p := f.start("a")
		time.Sleep(time.Minute)
		p.stop()
		if row := f.row(); row.Failures < 2 || row.State != tokens.Active || !strings.Contains(row.Error, "invalid_client (secret REDACTED is wrong)") {
			t.Errorf("got %+v", row)
		}
		f.wantNoSecret("the log", f.logs.text())
	})
}

func TestRenewer_RestartContinuesStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, oauth.Config{Lifetime: time.Hour, Rotate: true})
		f.server.RevokeTokens(true)
		p := f.start("a")
		defer p.stop()
		if err := p.call(t.Context()); !errors.Is(err, ErrNoToken) {
			t.Fatalf("revoked refresh token: got %v, want ErrNoToken", err)
		}
		next := tokens.Token{Source: "api", Credential: "app", Generation: 1}
		f.server = oauth.New(oauth.Config{Lifetime: time.Hour, Rotate: true, ClientID: "app", ClientSecret: clientSecret}, "consented")
		p.deps.Client.Transport = direct{handler: f.server}
		if err := p.deps.Keys.Seal(&next, Secrets{Refresh: "consented"}); err != nil {
			t.Fatal(err)
		}
		if ok, err := f.db.SaveToken(t.Context(), next, 0, 0); !ok || err != nil {
			t.Fatal(ok, err)
		}
		p.deps.Notifier.WakeAt(t.Context(), time.Now())
		time.Sleep(3 * time.Second)
		if err := p.call(t.Context()); err != nil {
			t.Errorf("after new consent: %v", err)
		}
	})
}
