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

// secretEvery is how often a credential's file is read: it has no other way to say
// that it was changed.
const secretEvery = 2 * time.Second

// place is where one credential of a source is found.
type place struct {
	name      string // of the credential; empty: the source's only one
	setting   string // that says where
	env, file string // the variable or the file; both empty: the source has none
}

// places are those of a source's credentials.
func places(c source.Config) []place {
	if len(c.Credentials) == 0 {
		return []place{{"", "auth", c.Auth.SecretEnv, c.Auth.SecretFile}}
	}
	all := make([]place, len(c.Credentials))
	for i, one := range c.Credentials {
		all[i] = place{one.Name, fmt.Sprintf("credentials[%d]", i), one.SecretEnv, one.SecretFile}
	}
	return all
}

// requireSecret reads a credential; it must be there.
func requireSecret(at place) (string, error) {
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
		return "", fmt.Errorf("%s.secretEnv: %s is not set; set it to the upstream's credential", at.setting, hidden(at.env, "secretEnv"))
	}
	return "", nil
}

func noSecret(place) (string, error) { return "", nil }

// followSecret has a source use the credential that its file holds now, and tells
// of each change, until ctx ends. A file that can't be read, or is empty, changes
// nothing: it may be in the middle of being written. If it stays so, that is said.
func followSecret(ctx context.Context, at place, s *source.Source, changed func(name string), log *slog.Logger) error {
	if at.file == "" {
		return nil
	}
	var known string // the source is given what is found first, too: it may have changed since
	failures := 0
	tick := time.NewTicker(secretEvery)
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
