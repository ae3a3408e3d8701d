package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/freshet/freshet/source"
)

// secretReloadInterval is how often a credential's file is read: it has no other way to say
// that it was changed.
const secretReloadInterval = 2 * time.Second

// secretRef is where one credential of a source is found.
type secretRef struct {
	name      string // of the credential; empty: the source's only one
	setting   string // that says where
	env, file string // the variable or the file; both empty: the source has none
}

// secretRefs are those of a source's credentials.
func secretRefs(c source.Config) []secretRef {
	if len(c.Credentials) == 0 {
		return []secretRef{{"", "auth", c.Auth.SecretEnv, c.Auth.SecretFile}}
	}
	all := make([]secretRef, len(c.Credentials))
	for i, one := range c.Credentials {
		all[i] = secretRef{one.Name, fmt.Sprintf("credentials[%d]", i), one.SecretEnv, one.SecretFile}
	}
	return all
}

// requireSecret reads a credential; it must be there.
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

// reloadSecret has a source use the credential that its file holds now, and tells
// of each change, until ctx ends. A file that can't be read, or is empty, changes
// nothing: it may be in the middle of being written. If it stays so, that is said.
func reloadSecret(ctx context.Context, at secretRef, s *source.Source, changed func(name string), log *slog.Logger) error {
	if at.file == "" {
		return nil
	}
	var known string // the source is given what is found first, too: it may have changed since
	failures := 0
	tick := time.NewTicker(secretReloadInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		now, err := requireSecret(at)
		if err != nil {
			if failures++; failures == 3 {
				log.Warn("the credential's file can't be used; the credential stays as it was", "source", s.Name(), "credential", at.name, "err", err)
			}
			continue
		}
		failures = 0
		if now == known {
			continue
		}
		first := known == ""
		known = now
		if err := s.SetCredential(at.name, now); err != nil {
			log.Error("the changed credential can't be used; the one before stays", "source", s.Name(), "credential", at.name, "err", err)
			continue
		}
		if !first {
			log.Info("the credential was changed", "source", s.Name(), "credential", at.name)
			changed(at.name)
		}
	}
}
