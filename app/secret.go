package app

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/freshet/freshet/poll"
	"github.com/freshet/freshet/source"
)

// secretReloadInterval is the interval at which the file of a credential is read again.
const secretReloadInterval = 2 * time.Second

// secretRef refers to one credential of a source.
type secretRef struct {
	name      string // name of the credential; empty: the source has only one credential, without a name
	setting   string // path of the credential's settings, such as auth
	env, file string // environment variable or file with the secret; both empty: the source needs no secret
}

// secretRefs returns the references to all credentials of a source that do not renew themselves.
func secretRefs(c source.Config) []secretRef {
	if len(c.Credentials) == 0 {
		return []secretRef{{"", "auth", c.Auth.SecretEnv, c.Auth.SecretFile}}
	}
	var all []secretRef
	for i, one := range c.Credentials {
		if one.Token == nil { // a token is read from the database
			all = append(all, secretRef{one.Name, fmt.Sprintf("credentials[%d]", i), one.SecretEnv, one.SecretFile})
		}
	}
	return all
}

// requireSecret reads a credential. It returns an error for a missing or empty credential, and ""
// if the source needs no credential.
func requireSecret(at secretRef) (string, error) {
	switch {
	case at.file != "":
		secret, err := readSecret(at.setting+".secretFile", at.file)
		if err == nil && secret == "" {
			err = fmt.Errorf("%s.secretFile: %s is empty", at.setting, at.file)
		}
		return secret, err
	case at.env != "":
		if secret := strings.TrimSpace(os.Getenv(at.env)); secret != "" {
			return secret, nil
		}
		return "", fmt.Errorf("%s.secretEnv: %s is not set; set it to the upstream's credential", at.setting, redactValue(at.env, "secretEnv"))
	}
	return "", nil
}

func noSecret(secretRef) (string, error) { return "", nil }

// reloadSecret reads the file of a credential every secretReloadInterval until ctx ends, and updates
// the source when the secret changes. It calls the function `changed` after each update. While the
// file is unreadable or empty, the last secret stays in use, because another process may be writing
// the file. The third failure in a row is logged.
func reloadSecret(ctx context.Context, at secretRef, s *source.Source, changed func(name string), log *slog.Logger) error {
	if at.file == "" {
		return nil
	}
	first := true // true until the first read: the file may have changed between the start and this read
	read := func() (string, error) { return requireSecret(at) }
	followSecret(ctx, "", read, func(now string) error {
		isFirst := first
		first = false
		switch err := s.SetCredential(at.name, now); {
		case err != nil:
			log.Error("changed credential invalid; the old credential stays in use", "source", s.Name(), "credential", at.name, "err", err)
		case !isFirst:
			log.Info("credential changed", "source", s.Name(), "credential", at.name)
			changed(at.name)
		}
		return nil
	}, func(err error) {
		log.Warn("credential file unusable; the old credential stays in use", "source", s.Name(), "credential", at.name, "err", err)
	})
	return nil
}

// followSecret calls the function `read` every secretReloadInterval until ctx ends. If the secret
// differs from the one in use, it calls the function `use` with the new secret. known is the secret
// in use at the start. If `read` or `use` fails, another process may be writing the file. So
// followSecret calls the function `unusable` only after three failures in a row.
func followSecret(ctx context.Context, known string, read func() (string, error), use func(now string) error, unusable func(error)) {
	failures := 0
	poll.Every(ctx, secretReloadInterval, func(context.Context) {
		now, err := read()
		if err == nil && now != known {
			err = use(now)
		}
		if err != nil {
			if failures++; failures == 3 {
				unusable(err)
			}
			return
		}
		known, failures = now, 0
	})
}
