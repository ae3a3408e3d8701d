package access

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
)

const (
	cronHeader = "X-Cron-Secret"
	cronClient = "cron"
)

// secretFile is a secret in a file, which is read again when it changes. Only its hash is kept.
type secretFile struct {
	path string
	name string // of the secret, for the log
	hash atomic.Pointer[[sha256.Size]byte]

	removedFailures, fileFailures failures
}

// matches reports whether a text is the secret. The time of the comparison does not depend on the
// secret. A text longer than maxTokenSize does not match, and takes the time of an empty text.
func (f *secretFile) matches(text string) bool {
	hash, isShort := f.hash.Load(), len(text) <= maxTokenSize
	var want [sha256.Size]byte // without a secret, the text is compared with a hash that no text has
	if hash != nil {
		want = *hash
	}
	if !isShort {
		text = ""
	}
	sum := sha256.Sum256([]byte(text))
	return subtle.ConstantTimeCompare(sum[:], want[:]) == 1 && isShort && hash != nil
}

// load reads the secret for the first time. Without a path there is no secret.
func (f *secretFile) load() error {
	if f.path == "" {
		return nil
	}
	sum, err := readSecretFile(f.path)
	if err == nil {
		f.hash.Store(&sum)
	}
	return err
}

// reread reads the file again. If the file is missing at two successive calls, the secret is revoked.
// If the file can't be read, the previous secret stays valid, because another program may be writing
// the file.
func (f *secretFile) reread(log *slog.Logger) {
	if f.path == "" {
		return
	}
	sum, err := readSecretFile(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		if f.removedFailures.isSecond(err) && f.hash.Swap(nil) != nil {
			log.Warn("secret file removed; secret revoked", "secret", f.name, "err", err)
		}
		return
	}
	f.removedFailures = 0
	if f.fileFailures.isSecond(err) {
		log.Warn("secret file invalid; keeping the previous secret", "secret", f.name, "err", err)
	}
	if err != nil {
		return
	}
	if before := f.hash.Swap(&sum); before == nil || sum != *before {
		log.Info("secret file changed; new secret in use", "secret", f.name)
	}
}

func readSecretFile(file string) (sum [sha256.Size]byte, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return sum, err
	}
	token := strings.TrimSpace(string(text))
	if len(token) < minSecretSize || strings.ContainsAny(token, " \t\r\n") {
		return sum, fmt.Errorf("%s must contain one word of at least %d characters; create one with `openssl rand -hex 32`", file, minSecretSize)
	}
	return sha256.Sum256([]byte(token)), nil
}

// Cron returns a handler that calls next for a request with the secret of access.cronSecretFile in the
// header X-Cron-Secret. A request with another value of the header gets status 401. A request without
// the header needs the scope admin.
func (g *Guard) Cron(next http.Handler) http.Handler {
	admin := g.Admin(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		values := r.Header[cronHeader]
		if len(values) == 0 {
			admin.ServeHTTP(w, r)
			return
		}
		if g.cron.matches(values[0]) && len(values) == 1 {
			next.ServeHTTP(w, r.WithContext(WithClient(r.Context(), Client{Name: cronClient})))
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		w.WriteHeader(http.StatusUnauthorized)
		if _, err := w.Write([]byte(`{"error":"UNAUTHORIZED","message":"Invalid cron secret"}` + "\n")); err != nil { //nolint:misspell // callers know this code
			g.log.Debug("client disconnected before the response", "err", err)
		}
	})
}
