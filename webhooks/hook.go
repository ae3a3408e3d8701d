package webhooks

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/freshet/freshet/access"
)

// Hook is one webhook with its secrets. Its methods may be called concurrently.
type Hook struct {
	source, name string
	config       Config
	keys         Keys
	secrets      atomic.Pointer[[][]byte]
	newKeys      newKeyLimit
}

// NewHook returns a webhook of a source. Config.Check must have accepted the configuration. `secrets`
// is the text of the secret file or of the environment variable.
func NewHook(source, name string, c Config, keys Keys, secrets string) (*Hook, error) {
	h := &Hook{source: source, name: name, config: c, keys: keys}
	h.newKeys.rate = c.NewKeys.CallRate()
	return h, h.SetSecrets(secrets)
}

// SetSecrets replaces the secrets by the secrets in the text. If the text is invalid, it returns an
// error and the old secrets stay in use. The error does not contain the text.
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

// allow reports whether one more key may be refreshed now. If not, it returns the time until a key may
// be refreshed; 0 means that keys may never be refreshed.
func (l *newKeyLimit) allow(now time.Time) (ok bool, after time.Duration) {
	if l.rate.Unlimited() { // the setting newKeys is 0
		return false, 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	after = l.bucket.Take(l.rate, 1, now)
	return after == 0, after
}
