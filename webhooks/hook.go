package webhooks

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/freshet/freshet/access"
)

// Hook is one configured webhook. Its methods may be called concurrently.
type Hook struct {
	source, name string
	config       Config
	keys         Keys
	secrets      atomic.Pointer[[][]byte]
	newKeys      newKeyLimit
}

// NewHook returns the webhook of a source. The configuration must have passed Config.Check. secrets is the
// text of its file or environment variable.
func NewHook(source, name string, c Config, keys Keys, secrets string) (*Hook, error) {
	h := &Hook{source: source, name: name, config: c, keys: keys}
	h.newKeys.rate = c.NewKeys.CallRate()
	return h, h.SetSecrets(secrets)
}

// SetSecrets replaces the secrets with the secrets in the text of the file. After an error the old secrets stay in
// use. The error does not show the text.
func (h *Hook) SetSecrets(text string) error {
	secrets, err := parseSecrets(h.config.Verify.Scheme, text)
	if err != nil {
		return fmt.Errorf("sources.%s.webhooks.%s.verify: %w", h.source, h.name, err)
	}
	h.secrets.Store(&secrets)
	return nil
}

// newKeyLimit limits the refreshes of keys that are neither stored nor registered.
type newKeyLimit struct {
	rate access.CallRate

	mu     sync.Mutex
	bucket access.Bucket
}

// allow reports whether a key may be refreshed. If not, it returns the time until one may; 0: never.
func (l *newKeyLimit) allow(now time.Time) (ok bool, after time.Duration) {
	if l.rate.Unlimited() { // newKeys is not set
		return false, 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	after = l.bucket.Take(l.rate, 1, now)
	return after == 0, after
}
