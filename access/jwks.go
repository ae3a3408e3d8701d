package access

import (
	"context"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/MicahParks/jwkset"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/observe"
)

const (
	// fetchInterval is the interval between fetches of the signing keys. fetchRetryDelay is used
	// instead until the first fetch has succeeded, and while the cached keys are older than maxAge.
	fetchRetryDelay = 5 * time.Second
	fetchInterval   = 10 * time.Minute
	// unknownKeyInterval is the minimum interval between two fetches that tokens with an unknown
	// key id (kid) cause. Otherwise forged key ids could flood the issuer with requests.
	unknownKeyInterval = 10 * time.Second
	fetchTimeout       = 5 * time.Second
	maxKeySetSize      = 1 << 20 // maximum size of the key set, in bytes
	minRSABits         = 2048    // minimum length of an RSA key, in bits (NIST SP 800-131A)
)

// keySet has the public keys that verify JWTs. It does not use the HTTP client of the jwkset
// library: that client delays requests to keep its rate limit, and reads responses of any size.
type keySet struct {
	*jwkset.MemoryJWKSet
	url    string
	client *http.Client
	log    *slog.Logger
	now    func() time.Time
	maxAge time.Duration    // how long the keys stay valid while they can't be fetched
	readAt prometheus.Gauge // gauge with the time of the last fetch, in Unix seconds

	conditions observe.Conditions

	mu             sync.Mutex
	inFlight       chan struct{} // channel that is closed when the current fetch ends; nil: no fetch is running
	unknownFetched time.Time     // time of the last fetch that an unknown kid caused
	fetched        time.Time     // start of the last successful fetch; zero: no fetch has succeeded
	fetchErr       error         // error of the last fetch; nil: the last fetch succeeded
}

var (
	errKeysUnavailable = errors.New("the key is unknown, and the keys can't be fetched")
	errAmbiguousKey    = errors.New("the token has no kid, and there is more than one key")
)

// ready reports whether the last successful fetch is at most maxAge old.
func (s *keySet) ready() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.fetched.IsZero() && s.now().Sub(s.fetched) <= s.maxAge
}

// lastError returns the error of the last fetch, or nil.
func (s *keySet) lastError() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fetchErr
}

// readOnlyKey returns the only key of the set. If there is not exactly one key, it returns an
// error.
func (s *keySet) readOnlyKey(ctx context.Context) (key jwkset.JWK, err error) {
	all, err := s.KeyReadAll(ctx)
	if err != nil {
		return key, err
	}
	if len(all) != 1 {
		return key, errAmbiguousKey
	}
	return all[0], nil
}

// KeyRead returns the key with the id kid. If the id is unknown, the keys are fetched again, at
// most once per unknownKeyInterval. If that fetch fails, the error is errKeysUnavailable, because
// the id may belong to a new key.
func (s *keySet) KeyRead(ctx context.Context, kid string) (jwkset.JWK, error) {
	key, err := s.readOrFetch(ctx, kid)
	if err == nil {
		return key, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fetchErr != nil || ctx.Err() != nil {
		return key, errKeysUnavailable
	}
	return key, err
}

func (s *keySet) readOrFetch(ctx context.Context, kid string) (jwkset.JWK, error) {
	key, err := s.MemoryJWKSet.KeyRead(ctx, kid)
	if err == nil || !errors.Is(err, jwkset.ErrKeyNotFound) {
		return key, err
	}
	s.mu.Lock()
	inFlight := s.inFlight
	if inFlight == nil {
		if s.now().Sub(s.unknownFetched) < unknownKeyInterval {
			s.mu.Unlock()
			return key, err
		}
		s.unknownFetched = s.now()
		inFlight = s.startFetch(context.WithoutCancel(ctx)) // the fetch must not end with this request, because other requests may wait for it too
	}
	s.mu.Unlock()
	select {
	case <-inFlight:
		return s.MemoryJWKSet.KeyRead(ctx, kid)
	case <-ctx.Done():
		return key, ctx.Err()
	}
}

// fetch fetches the keys, or waits for the current fetch.
func (s *keySet) fetch(ctx context.Context) {
	s.mu.Lock()
	inFlight := s.inFlight
	if inFlight == nil {
		inFlight = s.startFetch(ctx)
	}
	s.mu.Unlock()
	<-inFlight
}

// startFetch starts a fetch, and returns a channel that is closed when the fetch ends. The caller
// must hold the mutex mu.
func (s *keySet) startFetch(ctx context.Context) chan struct{} {
	done := make(chan struct{})
	s.inFlight = done
	go func() {
		ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
		defer cancel()
		began := s.now()
		keys, err := s.get(ctx)
		if err == nil {
			err = s.KeyReplaceAll(ctx, keys) // a key that the issuer no longer lists is removed, which revokes it
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.conditions.Record(s.log, observe.Condition{
			Event: "signing_keys_unread", Failing: "signing keys can't be fetched; cached keys stay valid until access.maxAge.signingKeys", Recovered: "fetching the signing keys works again", Attr: "url", Value: s.url,
		}, err)
		s.fetchErr, s.inFlight = err, nil
		if err == nil {
			s.fetched = began
			s.readAt.Set(float64(began.Unix()))
		}
		close(done)
	}()
	return done
}

func (s *keySet) get(ctx context.Context) ([]jwkset.JWK, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url, http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the response status is %s", resp.Status)
	}
	var set jwkset.JWKSMarshal
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxKeySetSize)).Decode(&set); err != nil {
		return nil, fmt.Errorf("the response is not a key set: %w", err)
	}
	if set.Keys == nil {
		return nil, errors.New("the response is not a key set: it has no member \"keys\"")
	}
	var keys []jwkset.JWK
	for _, k := range set.Keys {
		if k.USE != "" && k.USE != jwkset.UseSig {
			continue
		}
		// Only public keys are read, so a symmetric key, which is always secret, is invalid here. An
		// invalid key is skipped and does not affect the other keys.
		key, err := jwkset.NewJWKFromMarshal(k, jwkset.JWKMarshalOptions{}, jwkset.JWKValidateOptions{})
		if err != nil {
			continue
		}
		if public, ok := key.Key().(*rsa.PublicKey); ok && public.N.BitLen() < minRSABits {
			continue
		}
		keys = append(keys, key)
	}
	if len(keys) == 0 && len(set.Keys) > 0 { // an empty key set is valid and revokes all keys; a set that has only unusable keys is an error
		return nil, errors.New("the key set has no valid public key for signatures")
	}
	return keys, nil
}

// run fetches the keys periodically until ctx ends.
func (s *keySet) run(ctx context.Context) {
	for {
		wait := fetchInterval
		if !s.ready() {
			wait = fetchRetryDelay
		}
		select {
		case <-ctx.Done():
			s.waitForFetch()
			return
		case <-time.After(wait):
		}
		s.fetch(ctx)
	}
}

// waitForFetch waits for the current fetch, if there is one.
func (s *keySet) waitForFetch() {
	s.mu.Lock()
	inFlight := s.inFlight
	s.mu.Unlock()
	if inFlight != nil {
		<-inFlight
	}
}
