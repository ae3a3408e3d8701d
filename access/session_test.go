package access

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/freshet/freshet/client"
	"github.com/freshet/freshet/problem"
)

// service returns a transport whose requests the guard authenticates. A request with a valid token
// gets a snapshot.
func (r *rig) service() transport {
	return func(req *http.Request) (*http.Response, error) {
		w := httptest.NewRecorder()
		if _, err := r.Authenticate(req, "192.0.2.7"); err != nil {
			p, ok := errors.AsType[*problem.HTTPError](err)
			if !ok {
				return nil, err
			}
			err = p.Write(w, req)
			return w.Result(), err
		}
		_, err := io.WriteString(w, `{"snapshot":{},"freshness":"FRESH"}`)
		return w.Result(), err
	}
}

// 100 goroutines send an expired token. The issuer has begun to sign with another key, so the service
// does not know the key of the renewed token yet.
func TestSession_SurvivesAKeyChangeOfTheIssuer(t *testing.T) {
	r, i := withIssuer(t, "one")
	old := sign(t, jwt.SigningMethodRS256, "one", validClaims("exp", now.Add(-2*time.Minute).Unix()))
	i.serves("one", "two")
	var renewals, answers atomic.Int64
	var last atomic.Pointer[error]
	c, err := client.New("http://freshet.example", client.Options{
		Transport: r.service(), Token: client.Token{Value: old},
		Renew: func(context.Context) (client.Token, error) {
			renewals.Add(1)
			return client.Token{Value: sign(t, jwt.SigningMethodRS256, "two", validClaims())}, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() {
			got, err := c.Get(t.Context(), client.Entity{Source: "nexon", Facet: "character", Key: "somebody"})
			if err == nil && got.Freshness == client.Fresh {
				answers.Add(1)
			} else {
				last.Store(&err)
			}
		})
	}
	all.Wait()
	if got := answers.Load(); got != 100 {
		t.Errorf("got %d answers, want 100; the last error is %v", got, *last.Load())
	}
	if got := renewals.Load(); got != 1 {
		t.Errorf("got %d renewals, want 1", got)
	}
	if got := i.fetches.Load(); got != 2 {
		t.Errorf("got %d fetches of the signing keys, want 2: at the start, and for the new key", got)
	}
}

func TestCheckIssuer_ReturnsTheErrorOfTheLastFetch(t *testing.T) {
	if err := newRig(t, nil).CheckIssuer(t.Context()); err != nil {
		t.Errorf("without an issuer: got %v, want nil", err)
	}
	r, i := withIssuer(t)
	if err := r.CheckIssuer(t.Context()); err == nil || !strings.Contains(err.Error(), "502") {
		t.Errorf("in an outage: got %v, want the status 502", err)
	}
	i.serves("one")
	if err := r.CheckIssuer(t.Context()); err == nil {
		t.Error("before the next fetch: got nil, want the error of the last one")
	}
	r.verifier.fetch(t.Context())
	if err := r.CheckIssuer(t.Context()); err != nil {
		t.Errorf("after the outage: got %v, want nil", err)
	}
	if got := i.fetches.Load(); got != 2 {
		t.Errorf("got %d fetches, want 2", got)
	}
}
