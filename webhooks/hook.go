package webhooks

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"
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
	calls, window := c.NewKeys.Parse()
	h.newKeys = newKeyLimit{max: float64(calls), window: window, left: float64(calls)}
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

// newKeyLimit is a token bucket that limits the refreshes of keys that are neither stored nor registered.
type newKeyLimit struct {
	max    float64 // keys that may be refreshed at once, and in each window
	window time.Duration

	mu   sync.Mutex
	left float64
	at   time.Time
}

// take takes up to n keys and returns how many it took, and after which time the next one is allowed.
func (l *newKeyLimit) take(n int, now time.Time) (taken int, after time.Duration) {
	if l.max == 0 {
		return 0, 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	perKey := l.window / time.Duration(l.max)
	if l.at.IsZero() {
		l.at = now
	}
	if passed := now.Sub(l.at); passed > 0 { // concurrent deliveries may arrive here in another order
		l.left, l.at = min(l.max, l.left+float64(passed)/float64(perKey)), now
	}
	taken = min(n, int(l.left))
	l.left -= float64(taken)
	return taken, time.Duration((1 - min(1, l.left)) * float64(perKey))
}
