package consumer_test

import (
	"context"
	"encoding/base64"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/consumer"
	"github.com/freshet/freshet/observe"
	"github.com/freshet/freshet/poll"
	"github.com/freshet/freshet/renewal"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/simulator/oauth"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/source/token"
	"github.com/freshet/freshet/store/postgres"
)

// appPermits grants every permit at once, for the credential app.
type appPermits struct{ freePermits }

func (appPermits) Acquire(context.Context, schemas.Lane, source.Call) (consumer.Permit, error) {
	return appPermits{}, nil
}

func (appPermits) AcquireRetry(context.Context, schemas.Lane, source.Call) (consumer.Permit, error) {
	return appPermits{}, nil
}

func (appPermits) Reacquire(context.Context, schemas.Lane, source.Call) (consumer.Permit, error) {
	return appPermits{}, nil
}

func (appPermits) Credential() string { return "app" }

// benchCredential returns a credential that renews itself at a new token endpoint.
func benchCredential(b *testing.B) source.Credential {
	b.Helper()
	endpoint := httptest.NewServer(oauth.New(oauth.Config{Lifetime: time.Hour}, ""))
	b.Cleanup(endpoint.Close)
	return source.Credential{Name: "app", Token: &token.Config{Grant: token.ClientCredentials, TokenURL: endpoint.URL + "/token", ClientID: "app", ClientSecretEnv: "S"}}
}

// startBenchRenewal renews the credential until ctx ends. The function renew makes a renewal due.
func startBenchRenewal(b *testing.B, ctx context.Context, src *source.Source, c source.Credential, rdb redis.UniversalClient, pg *postgres.Store) (_ consumer.Tokens, renew func()) {
	b.Helper()
	file := filepath.Join(b.TempDir(), "keys")
	if err := os.WriteFile(file, []byte("k1 "+base64.StdEncoding.EncodeToString(make([]byte, 32))), 0o600); err != nil {
		b.Fatal(err)
	}
	keys, err := renewal.NewKeyring(file)
	if err != nil {
		b.Fatal(err)
	}
	notifier := poll.New("tokens:{"+src.Name()+"}", rdb, slog.New(slog.DiscardHandler), observe.Condition{})
	r := renewal.New(src.Name(), []renewal.Credential{{Name: "app", Token: *c.Token}}, renewal.Deps{
		Store: pg, Keys: keys, Notifier: notifier,
		Spend:  func(context.Context, string) (func(int), error) { return func(int) {}, nil },
		Secret: func(token.Secret) (string, error) { return "a-client-secret", nil },
		Use: func(credential string, t renewal.Token) error {
			return src.SetToken(credential, t.Value, t.Generation, t.Until)
		},
		Client: token.NewClient(renewal.CallTimeout), Process: "p", Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
	})
	go func() { _ = r.Run(ctx) }()
	return r, func() {
		if _, err := pg.RestartToken(ctx, src.Name(), "app"); err != nil {
			b.Error(err)
		}
		notifier.WakeLocal(time.Now())
	}
}
